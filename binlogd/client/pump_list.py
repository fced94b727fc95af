"""The Pumps of a configuration as the members of a merge: shards in this process, and others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from binlogd.binlog import Pulled
from binlogd.client.pump_client import RemoteSource
from binlogd.errors import PromiseAhead
from binlogd.host.tls import ClientTls
from binlogd.ports import BinlogSource, Clock, Member
from binlogd.settings.quantities import shown_address
from binlogd.tso import NO_TS, Tso, physical_ms


class PumpList:
    """`Sources`: all in the merge from its beginning, none ever leaves.

    A Pump of the list that is not there yet, or no longer, holds the merge until it is.
    """

    def __init__(
        self,
        local: Sequence[BinlogSource],
        remote: Sequence[tuple[str, int]],
        cluster_id: Callable[[], Awaitable[int]],
        horizon: Horizon,
        tls: ClientTls | None = None,
    ) -> None:
        """`horizon` is told every commit_ts that another Pump has promised: a shard in this process
        that nobody writes to may then promise the same."""
        self._local, self._remote = local, remote
        self._tls = tls
        self._cluster_id, self._horizon = cluster_id, horizon

    async def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        """See Sources."""
        cluster_id = await self._cluster_id()
        others = [
            RemoteSource(
                shown_address(each),
                *each,
                cluster_id=cluster_id,
                tls=self._tls,
                observe=self._horizon.take,
            )
            for each in self._remote
        ]
        yield [Member(source) for source in (*self._local, *others)]
        await asyncio.Event().wait()


class Horizon:
    """How far ahead a timestamp of another Pump may lie: as one that is written to this one.

    Of the wall clock, and of everything before it; `observe` is told what is believed.
    """

    def __init__(self, observe: Callable[[Tso], None], clock: Clock, *, ahead_max_s: float) -> None:
        self._observe, self._clock = observe, clock
        self._ahead_max_ms = int(ahead_max_s * 1000)
        self._newest = NO_TS

    def take(self, source: str, pulled: Pulled) -> None:
        """Takes note of a batch. Raises PromiseAhead, and then no promise of it counts."""
        newest_ms = max(self._clock.wall_ms(), physical_ms(self._newest))
        horizon_ms = newest_ms + self._ahead_max_ms
        if physical_ms(pulled.resolved_ts) >= horizon_ms:
            for each in pulled.binlogs:
                if physical_ms(each.commit_ts) >= horizon_ms:
                    raise PromiseAhead(source, each.start_ts, each.commit_ts, horizon_ms)
        self._newest = max(self._newest, pulled.resolved_ts)
        self._observe(pulled.resolved_ts)
