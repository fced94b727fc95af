"""A few threads that wait in the place of the event loop.

The way of the standard library (a future for the thread, another for the loop, a wake-up for
each) costs the loop as much as a small write costs the disk. Here a call wakes one thread, that
which has waited for the shortest time, and what has ended meanwhile is told to the loop together.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

_Queued = tuple["asyncio.Future[Any]", Callable[[], Any]]
_Ended = tuple["asyncio.Future[Any]", Any, BaseException | None]


class _Worker:
    """A thread that waits for its next call, or for the end, which is None.

    A queue that all threads wait at would wake them one by one for each call: three of the four
    that wake find nothing, and each takes the interpreter from the event loop to find that out.
    """

    def __init__(self, first: _Queued) -> None:
        self.next: _Queued | None = first
        self.woken = threading.Lock()
        self.woken.acquire()


class Threads:
    """At most `count` threads, begun when they are needed; all calls come from event loops."""

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._name = name
        self._begun: list[threading.Thread] = []
        self._handing = threading.Lock()  # over what waits: calls for threads, or threads for calls
        self._calls: deque[_Queued] = deque()
        self._waiting: list[_Worker] = []
        self._ended: deque[_Ended] = deque()
        self._telling: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Calls it in a thread. Who cancels the future before the call has begun prevents it, and
        afterwards only does not hear of it. Raises RuntimeError after `close`, OSError where the
        system gives not even one thread."""
        if self._is_closed:
            raise RuntimeError(f"the threads of {self._name} have ended")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._hand((future, call), is_full=len(self._begun) == self._count)
        return future

    def _hand(self, queued: _Queued, *, is_full: bool) -> None:
        with self._handing:
            worker = self._waiting.pop() if self._waiting else None
            if worker is None and is_full:
                self._calls.append(queued)
                return
        if worker is not None:
            worker.next = queued
            worker.woken.release()
            return
        name, first = f"{self._name}_{len(self._begun)}", _Worker(queued)
        thread = threading.Thread(target=self._work, args=(first,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more, and those that are there do it
            if not self._begun:
                raise OSError(errno.EAGAIN, str(error)) from error
            self._hand(queued, is_full=True)
        else:
            self._begun.append(thread)

    def close(self) -> None:
        """Waits for what was begun or queued, and ends the threads."""
        with self._handing:
            self._is_closed = True
        for worker in self._waiting:
            worker.woken.release()
        for thread in self._begun:
            thread.join()

    def _next(self, worker: _Worker) -> _Queued | None:
        """What is to be called now; waits for it. None after `close`."""
        with self._handing:
            if self._calls:
                return self._calls.popleft()
            if self._is_closed:
                return None
            self._waiting.append(worker)
        worker.woken.acquire()
        queued, worker.next = worker.next, None
        return queued

    def _work(self, worker: _Worker) -> None:
        queued, worker.next = worker.next, None
        while queued is not None:  # until `close`
            future, call = queued
            result, error = None, None
            if not future.cancelled():
                try:
                    result = call()
                except BaseException as raised:  # noqa: BLE001 - whoever waits gets it
                    error = raised
            self._ended.append((future, result, error))
            loop = future.get_loop()
            del queued, future, call, result, error  # or it would keep them while it waits
            if self._telling is not loop:
                self._telling = loop
                try:
                    loop.call_soon_threadsafe(self._tell)
                except RuntimeError:  # the loop is closed, and nobody waits any more
                    self._telling = None
            del loop
            queued = self._next(worker)

    def _tell(self) -> None:
        self._telling = None  # what ends from now on needs another wake-up
        while self._ended:
            future, result, error = self._ended.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


async def over(step: asyncio.Future[T]) -> T:
    """What a call comes to. Who is cancelled meanwhile hears of that when it has ended: nobody may
    go on, or tidy up, beside it. Raises what the call raises."""
    cancelled: asyncio.CancelledError | None = None
    while not step.done():  # ends with the call
        try:
            await asyncio.wait([step])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        step.exception()  # nobody is left to hear of it
        raise cancelled
    return step.result()


@asynccontextmanager
async def stacked(threads: Threads) -> AsyncIterator[ExitStack]:
    """A stack for what is entered by calls of these threads; they leave it at the end of the block,
    which is over when they have."""
    stack = ExitStack()
    try:
        yield stack
    except BaseException as error:
        await over(threads.run(partial(stack.__exit__, type(error), error, error.__traceback__)))
        raise
    else:
        await over(threads.run(stack.close))
