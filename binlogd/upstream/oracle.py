"""Timestamps without PD: what the binlogs carried, or the clock of this machine."""

from __future__ import annotations

import asyncio

from binlogd.ports import Clock, TsoSource
from binlogd.tso import LOGICAL_BITS, NO_TS, Tso, compose, logical, physical_ms
from binlogd.upstream.store import UpstreamStore

TAKE_MAX = 1 << LOGICAL_BITS
"""As many timestamps as one millisecond has."""
_LIMIT = "tso_limit"
_WINDOW_MS = 3000


class ObservedTso:
    """The largest timestamp that any binlog has carried: never ahead of the writers.

    So a recording, or the log of a dead cluster, can be fed at any later time. It says the same
    timestamp again while nothing arrives, and it may be a transaction's own.
    """

    def __init__(self) -> None:
        self._largest = NO_TS

    async def next(self) -> Tso:
        """NO_TS before the first binlog."""
        return self._largest

    def observe(self, ts: Tso) -> None:
        """Takes note of a start_ts or commit_ts."""
        self._largest = max(self._largest, ts)


class ClockTso:
    """Timestamps from the wall clock: strictly increasing, also over restarts and clock steps.

    Invariant. No timestamp is handed out at or above the durable limit, and a restart begins at the
    limit. Source: PD's timestamp oracle, which persists a window ahead in the same way.
    """

    def __init__(self, store: UpstreamStore, clock: Clock, limit: Tso) -> None:
        self._store = store
        self._clock = clock
        self._limit = limit
        self._last = limit
        self._extending = asyncio.Lock()

    @classmethod
    async def open(cls, store: UpstreamStore, clock: Clock) -> ClockTso:
        """Goes on above everything that was handed out before."""
        return cls(store, clock, Tso(await store.fact(_LIMIT) or NO_TS))

    async def next(self) -> Tso:
        """Unique. Raises UpstreamUnavailable when the window cannot be made durable."""
        return await self.take(1)

    async def take(self, count: int) -> Tso:
        """The last of so many in a row, all of one millisecond; at most TAKE_MAX."""
        while True:  # once more after each extension, because others may have used it up
            first = max(compose(self._clock.wall_ms()), Tso(self._last + 1))
            if logical(first) + count > TAKE_MAX:
                first = compose(physical_ms(first) + 1)
            last = Tso(first + count - 1)
            if last < self._limit:
                self._last = last
                return last
            await self._extend_past(last)

    def observe(self, ts: Tso) -> None:
        """What is handed out from now on lies above `ts`."""
        self._last = max(self._last, ts)

    async def _extend_past(self, ts: Tso) -> None:
        async with self._extending:
            if ts >= self._limit:
                limit = compose(physical_ms(ts) + _WINDOW_MS)
                await self._store.put_fact(_LIMIT, limit)
                self._limit = limit


class Overheard:
    """A TsoSource whose observations another one hears as well: what PD would hand out lies above
    all that binlogs carry, whoever tells this node the time."""

    def __init__(self, source: TsoSource, listener: TsoSource) -> None:
        self._source, self._listener = source, listener

    async def next(self) -> Tso:
        """See TsoSource."""
        return await self._source.next()

    def observe(self, ts: Tso) -> None:
        """Takes note of a start_ts or commit_ts."""
        self._source.observe(ts)
        self._listener.observe(ts)
