"""A few threads that wait in the place of the event loop.

The way of the standard library (a future for the thread, another for the loop, a wake-up for
each) costs the loop as much as a small write costs the disk. Here a call is one entry in a queue,
and what has ended meanwhile is told to the loop together.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Ended = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Threads:
    """At most `count` threads, begun when they are needed; all calls come from event loops."""

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._name = name
        self._begun: list[threading.Thread] = []
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = (
            SimpleQueue()
        )
        self._unfinished = 0
        self._ended: deque[_Ended] = deque()
        self._telling: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Calls it in a thread. Who cancels the future before the call has begun prevents it, and
        afterwards only does not hear of it. Raises RuntimeError after `close`."""
        if self._is_closed:
            raise RuntimeError(f"the threads of {self._name} have ended")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._unfinished += 1
        if len(self._begun) < min(self._count, self._unfinished):
            thread = threading.Thread(
                target=self._work, name=f"{self._name}_{len(self._begun)}", daemon=True
            )
            self._begun.append(thread)
            thread.start()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Waits for what was begun or queued, and ends the threads."""
        self._is_closed = True
        for _ in self._begun:
            self._calls.put(None)
        for thread in self._begun:
            thread.join()

    def _work(self) -> None:
        while (queued := self._calls.get()) is not None:  # until `close`
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

    def _tell(self) -> None:
        self._telling = None  # what ends from now on needs another wake-up
        while self._ended:
            future, result, error = self._ended.popleft()
            self._unfinished -= 1
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
