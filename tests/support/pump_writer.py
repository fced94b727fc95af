"""A process that writes transactions into a Pump until it is killed.

Prints `start commit` of each transaction once its commit is durable, and `refused` for each binlog
that the Pump could not make durable: a prewrite is given up then, a commit tried again, as TiDB
does. Arguments: the data directory, the first timestamp to use, and of how many prewrites one is
written as a large one, 0 for none.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path

from binlogd.errors import Unavailable
from binlogd.pump.pump import Pump
from binlogd.wire.outline import outline
from binlogd.wire.peek import NO_DDL
from tests.support.pump_world import ROOMY, commit, posix_world, prewrite, rollback, written

OPTIONS = replace(ROOMY, segment_bytes_max=100_000, index_queue_max=500, window_bytes_max=20_000)
WRITERS = 32
PIECE_BYTES = 1_000


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def spooled(pump: Pump, payload: bytes) -> None:
    """Writes it as `written` does, and as a large one comes."""
    whole = outline(payload[:PIECE_BYTES], NO_DDL, len(payload))
    assert whole is not None, "canonical"
    async with pump.spools.begun(whole) as spool:
        for begin in range(0, len(payload), PIECE_BYTES):
            await spool.write(payload[begin : begin + PIECE_BYTES])
        await pump.spools.write(whole, spool)


async def main(directory: Path, first: int, spooled_of: int) -> None:
    """Runs until SIGKILL."""
    rng = random.Random(first)
    ts = first

    def following() -> int:
        nonlocal ts
        ts += 1
        return ts

    async with posix_world(directory) as world, world.pump(OPTIONS, shards=2) as pump:

        async def insist(payload: bytes) -> None:
            while True:  # ends when it is durable, or with the process
                try:
                    return await written(pump, payload)
                except Unavailable:
                    say("refused")
                    await asyncio.sleep(0.01)

        async def writer() -> None:
            while True:  # ends with the process
                start = following()
                try:
                    if spooled_of and rng.randrange(spooled_of) == 0:
                        await spooled(pump, prewrite(start, rng.randrange(1, 5_000)))
                    else:
                        await written(pump, prewrite(start, rng.randrange(1, 100)))
                except Unavailable:
                    say("refused")
                    await insist(rollback(start))
                    continue
                commit_ts = following()
                await insist(commit(start, commit_ts))
                say(f"{start} {commit_ts}")

        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(writer())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
