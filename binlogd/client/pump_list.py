"""The Pumps of a configuration as the members of a merge: shards in this process, and others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from binlogd.binlog import Pulled
from binlogd.client.pump_client import RemoteSource
from binlogd.host.tls import ClientTls
from binlogd.ports import BinlogSource, Member
from binlogd.tso import Tso


@dataclass(frozen=True, slots=True)
class PumpAddress:
    """Where a Pump listens; the address is its name in status and metrics."""

    host: str
    port: int

    @classmethod
    def parsed(cls, address: str) -> PumpAddress:
        """Of `host:port`, also `[::1]:port`. Raises ValueError."""
        host, _, port = address.strip().rpartition(":")
        is_number = port.isascii() and port.isdigit()
        if not host or not is_number or not 0 < int(port) < 65536:
            raise ValueError(f'expected "host:port", got "{address}"')
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PumpList:
    """`Sources`: all in the merge from its beginning, none ever leaves.

    A Pump of the list that is not there yet, or no longer, holds the merge until it is.
    """

    def __init__(
        self,
        local: Sequence[BinlogSource],
        remote: Sequence[PumpAddress],
        cluster_id: Callable[[], Awaitable[int]],
        observe: Callable[[Tso], None],
        tls: ClientTls | None = None,
    ) -> None:
        """`observe` is told every commit_ts that another Pump has promised: a shard in this process
        that nobody writes to may then promise the same."""
        self._local, self._remote = local, remote
        self._tls = tls
        self._cluster_id, self._observe = cluster_id, observe

    async def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        """See Sources."""
        cluster_id = await self._cluster_id()
        others = [
            Observed(
                RemoteSource(str(each), each.host, each.port, cluster_id=cluster_id, tls=self._tls),
                self._observe,
            )
            for each in self._remote
        ]
        yield [Member(source) for source in (*self._local, *others)]
        await asyncio.Event().wait()


class Observed:
    """A remote source whose promises are passed on."""

    def __init__(self, source: RemoteSource, observe: Callable[[Tso], None]) -> None:
        self._source, self._observe = source, observe

    @property
    def name(self) -> str:
        """See BinlogSource."""
        return self._source.name

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """See BinlogSource."""
        async with aclosing(self._source.pull(after)) as batches:
            async for pulled in batches:
                self._observe(pulled.resolved_ts)
                yield pulled
