"""How much may be on its way at once: back-pressure that keeps the order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import NamedTuple


class _Waiter(NamedTuple):
    admitted: asyncio.Future[None]
    records: int
    size: int


class Budget:
    """Records and bytes that are taken and given back. First come, first served.

    Something larger than the whole budget is admitted when nothing else is on its way.
    """

    def __init__(self, *, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self.records = 0
        self.size = 0
        self._waiters: deque[_Waiter] = deque()

    async def take(self, records: int, size: int) -> None:
        """Waits for room, behind all who wait already; returns at once if there is some."""
        if not self._waiters and self._fits(records, size):
            self._admit(records, size)
            return
        waiter = _Waiter(asyncio.get_running_loop().create_future(), records, size)
        self._waiters.append(waiter)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter.admitted.cancelled():  # still in the line, unless someone has skipped it
                with suppress(ValueError):
                    self._waiters.remove(waiter)
                self._wake()
            else:
                self.give(records, size)
            raise

    def give(self, records: int, size: int) -> None:
        """Makes room again."""
        self.records -= records
        self.size -= size
        assert self.records >= 0, "more was given back than taken"
        self._wake()

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiters)

    def _wake(self) -> None:
        while self._waiters:  # ends with the first who does not fit
            waiter = self._waiters[0]
            if not waiter.admitted.cancelled():
                if not self._fits(waiter.records, waiter.size):
                    return
                self._admit(waiter.records, waiter.size)
                waiter.admitted.set_result(None)
            self._waiters.popleft()

    def _fits(self, records: int, size: int) -> bool:
        is_idle = self.records == 0
        return is_idle or (
            self.records + records <= self._records_max and self.size + size <= self._bytes_max
        )

    def _admit(self, records: int, size: int) -> None:
        self.records += records
        self.size += size
