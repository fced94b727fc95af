"""Locks that transactions wait for, in the order of asking; who waits in a ring is told.

Invariant. A lock is held by one transaction alone, or shared by several. Whoever asks waits behind
those that asked before, unless it holds the lock already. When a wait would close a ring, the
transaction in it that changed the fewest rows is undone (error 1213), as InnoDB does; of two that
changed as many, the one that closed it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from tests.sim.mysqld.errors import ServerError


def deadlock() -> ServerError:
    """All of the transaction is undone."""
    reason = "Deadlock found when trying to get lock; try restarting transaction"
    return ServerError(1213, reason)


def timed_out() -> ServerError:
    """The statement is undone, and no more."""
    return ServerError(1205, "Lock wait timeout exceeded; try restarting transaction")


class Owner(Protocol):
    """A transaction, as locks know it."""

    waiting: Request | None
    held: dict[Lock, None]

    @property
    def weight(self) -> int:
        """How much would be undone."""
        ...

    def undo_all(self) -> None:
        """Takes everything back and lets go of its locks: it lost."""
        ...


class Request:
    """Somebody in the queue of a lock."""

    __slots__ = ("answer", "is_exclusive", "lock", "owner")

    def __init__(self, owner: Owner, lock: Lock, *, is_exclusive: bool) -> None:
        self.owner, self.lock, self.is_exclusive = owner, lock, is_exclusive
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Lock:
    """Of a row, or of a table's definition."""

    __slots__ = ("holders", "queue")

    def __init__(self) -> None:
        self.holders: dict[Owner, bool] = {}
        """Who holds it, and whether alone."""
        self.queue: deque[Request] = deque()

    def is_free_for(self, owner: Owner, *, is_exclusive: bool = True) -> bool:
        """Whether it could be had now."""
        held = self.holders.get(owner)
        if held is not None and held >= is_exclusive:
            return True
        if held is None and self.queue:
            return False
        return self._fits(owner, is_exclusive=is_exclusive)

    def _fits(self, owner: Owner, *, is_exclusive: bool) -> bool:
        return not any(
            each is not owner and (is_exclusive or alone) for each, alone in self.holders.items()
        )

    def take(self, owner: Owner, *, is_exclusive: bool = True) -> None:
        """Without a wait; to be asked first whether it `is_free_for`."""
        self.holders[owner] = is_exclusive or self.holders.get(owner, False)
        owner.held[self] = None

    def release(self, owner: Owner) -> None:
        """Lets go of it, and gives it to who is next."""
        self.holders.pop(owner, None)
        self._grant()

    def forget(self, request: Request) -> None:
        """It does not wait any more."""
        if request in self.queue:
            self.queue.remove(request)
        self._grant()

    def _grant(self) -> None:
        while self.queue:
            request = self.queue[0]
            if not self._fits(request.owner, is_exclusive=request.is_exclusive):
                return
            self.queue.popleft()
            self.take(request.owner, is_exclusive=request.is_exclusive)
            request.owner.waiting = None
            if not request.answer.done():
                request.answer.set_result(None)

    def blockers(self, request: Request) -> Iterator[Owner]:
        """For whom it waits."""
        for owner in self.holders:
            if owner is not request.owner:
                yield owner
        for earlier in self.queue:
            if earlier is request:
                return
            yield earlier.owner

    async def acquire(self, owner: Owner, timeout_s: float, *, is_exclusive: bool = True) -> None:
        """Returns when it is held. Raises ServerError: a deadlock, or it took too long; without any
        time, at once."""
        if self.is_free_for(owner, is_exclusive=is_exclusive):
            self.take(owner, is_exclusive=is_exclusive)
            return
        if timeout_s <= 0:
            raise timed_out()
        request = Request(owner, self, is_exclusive=is_exclusive)
        self.queue.append(request)
        owner.waiting = request
        try:
            while not request.answer.done():
                ring = _ring(request)
                if not ring:
                    break
                victim = min(reversed(ring), key=lambda each: each.weight)
                lose(victim)
            async with asyncio.timeout(timeout_s):
                await request.answer
        except TimeoutError:
            raise timed_out() from None
        finally:
            if owner.waiting is request:
                owner.waiting = None
                self.forget(request)


def lose(victim: Owner) -> None:
    """It is chosen to end a ring of waits: all of it is undone, and its statement told so."""
    request, victim.waiting = victim.waiting, None
    if request is not None:
        if not request.answer.done():
            request.answer.set_exception(deadlock())
        request.lock.forget(request)
    victim.undo_all()


def _ring(request: Request) -> list[Owner]:
    """The transactions of a ring of waits that this one closes, itself last; or none."""
    start = request.owner
    path: list[Owner] = []
    seen: set[int] = set()

    def visit(owner: Owner) -> bool:
        if owner is start:
            path.append(owner)
            return True
        if id(owner) in seen or owner.waiting is None:
            return False
        seen.add(id(owner))
        path.append(owner)
        if any(visit(each) for each in owner.waiting.lock.blockers(owner.waiting)):
            return True
        path.pop()
        return False

    return path if any(visit(each) for each in request.lock.blockers(request)) else []
