"""A process that keeps facts, decisions and nodes in `upstream.db`, and what is right afterwards.

As a program (arguments: the data directory, how many rounds) it prints the number of each round
when all of it was kept.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from binlogd.host.disk import PosixDisk
from binlogd.log.directory import STORE_FILE
from binlogd.ports import NodeStatus
from binlogd.tso import Tso
from binlogd.upstream.entry import PUMP
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.registry import NodeRegistry
from binlogd.upstream.store import SkipEntry, UpstreamStore

NODES = 3


@dataclass
class Kept:
    """The two that live in one file."""

    store: UpstreamStore
    registry: NodeRegistry

    async def round(self, number: int) -> None:
        """One of each."""
        await self.store.put_fact("round", number)
        await self.store.put_skip(SkipEntry(Tso(number), "because", number))
        name = f"pump{number % NODES}"
        await self.registry.register(
            NodeStatus(PUMP, name, "127.0.0.1:1", "online", Tso(number), Tso(number))
        )

    async def check(self, acknowledged: int) -> None:
        """Everything up to a round is there, and at most the next one."""
        fact = await self.store.fact("round") or 0
        assert acknowledged <= fact <= acknowledged + 1
        skips = [each.commit_ts for each in await self.store.skips()]
        assert skips in (list(range(1, acknowledged + 1)), list(range(1, acknowledged + 2)))
        nodes = {each.node_id: int(each.update_ts) for each in await self.registry.nodes(PUMP)}
        for number in range(max(1, acknowledged - NODES + 1), acknowledged + 1):
            assert nodes[f"pump{number % NODES}"] in (number, acknowledged + 1)
        assert all(number <= acknowledged + 1 for number in nodes.values())
        await self.round(fact + 1)


@asynccontextmanager
async def opened(data_dir: Path) -> AsyncIterator[Kept]:
    """As a node opens them."""
    with closing(PosixDisk(threads=1)) as disk:
        await disk.make_directory(data_dir)
    store = await UpstreamStore.open(data_dir / STORE_FILE)
    try:
        keyspace = await KeyspaceStore.open(data_dir / STORE_FILE, Random(1))
        try:
            yield Kept(store, NodeRegistry(keyspace))
        finally:
            await keyspace.close()
    finally:
        await store.close()


async def _main(data_dir: Path, rounds: int) -> None:
    async with opened(data_dir) as kept:
        begin = await kept.store.fact("round") or 1  # perhaps not all of that round was kept
        for number in range(begin, begin + rounds):
            await kept.round(number)
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2])))
