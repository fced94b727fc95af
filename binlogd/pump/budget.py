"""How many bytes may be on their way at once: back-pressure that keeps the order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import NamedTuple


class _Waiter(NamedTuple):
    admitted: asyncio.Future[None]
    size: int


class Budget:
    """Bytes that are taken and given back. First come, first served.

    Something larger than the whole budget is admitted when nothing else is on its way.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.size = 0
        self._waiters: deque[_Waiter] = deque()

    async def take(self, size: int) -> None:
        """Waits for room, behind all who wait already; returns at once if there is some."""
        if self.has_room(size):
            self.size += size
            return
        waiter = _Waiter(asyncio.get_running_loop().create_future(), size)
        self._waiters.append(waiter)
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter.admitted.cancelled():  # still in the line, unless someone has skipped it
                with suppress(ValueError):
                    self._waiters.remove(waiter)
                self._wake()
            else:
                self.give(size)
            raise

    def add(self, size: int) -> None:
        """Takes at once, for what is there already; the others wait for it."""
        self.size += size

    def give(self, size: int) -> None:
        """Makes room again."""
        self.size -= size
        assert self.size >= 0, "more was given back than taken"
        self._wake()

    def has_room(self, size: int) -> bool:
        """Whether `take` would return at once."""
        return not self._waiters and self._fits(size)

    def room(self) -> int:
        """How much may be taken without keeping anybody from it who waits already."""
        return 0 if self._waiters else max(0, self._bytes_max - self.size)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiters)

    def _wake(self) -> None:
        while self._waiters:  # ends with the first who does not fit
            waiter = self._waiters[0]
            if not waiter.admitted.cancelled():
                if not self._fits(waiter.size):
                    return
                self.size += waiter.size
                waiter.admitted.set_result(None)
            self._waiters.popleft()

    def _fits(self, size: int) -> bool:
        return self.size == 0 or self.size + size <= self._bytes_max


class Held:
    """What somebody has taken of a budget, until the end of a `with`."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self.size = budget, 0

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        if self.size:
            self._budget.give(self.size)

    async def take(self, size: int) -> None:
        """See Budget."""
        await self._budget.take(size)
        self.size += size
