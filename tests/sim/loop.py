"""An event loop whose clock moves only when nothing else can: a day passes in a second.

Order stays FIFO, as asyncio promises it; schedules differ between seeds because simulated disks,
networks and databases take differently long. Where nothing is ready and no timer is set, nothing
will ever happen again: that is an error here, and not a test that hangs.

A `Process` is what can be killed. Whatever runs in its context stops for ever at the moment of
`kill`, in the middle of whatever it did, as after SIGKILL: no `finally`, no handler, no callback.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import sys
import threading
import time
import traceback
from asyncio import events
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
L = TypeVar("L", bound="SimLoop")

EPOCH_MS = 1_700_000_000_000
_CANCELLED_MIN = 200
"""Timers that are kept although they are cancelled, before they are thrown out."""
_STEPS_MAX = 300_000
"""Of the loop in one moment."""


class SimDeadlock(AssertionError):
    """Nothing will ever happen again, or the same for ever."""


class Process:
    """Something that dies as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Handle(events.Handle):
    """A callback that happens only if its process is still there."""

    __slots__ = ()

    def _run(self) -> None:
        if _is_alive(self):
            super()._run()


class _TimerHandle(events.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        if _is_alive(self):
            super()._run()


def _is_alive(handle: events.Handle) -> bool:
    context: Context = handle._context  # type: ignore[attr-defined]
    process = context.get(PROCESS)
    return process is None or process.is_alive


class _Task(asyncio.Task[Any]):
    """A task with a number: asyncio keeps tasks in sets, and their order would be one of
    addresses."""

    def __init__(self, coro: Any, number: int, process: Process | None, **options: Any) -> None:
        self._number = number
        self.process = process
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `faults` are exceptions that nobody took."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = 0.0
        self._numbers = count(1)
        self._timer_numbers = count(1)
        self._timers: list[tuple[float, int, _TimerHandle]] = []
        self._cancelled = 0
        self._buried: list[asyncio.Task[Any]] = []
        self._strangers: list[str] = []
        self.faults: list[str] = []
        self.steps = self._moved_at = 0
        self.set_exception_handler(self._note_fault)

    # --- time ------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
                self._cancelled -= 1
            if not timers:
                raise SimDeadlock("every task is blocked and no timer is set")
            if timers[0][0] > self._now_s:
                self._now_s = timers[0][0]
                self._moved_at = self.steps
        while timers and timers[0][0] <= self._now_s:
            handle = heapq.heappop(timers)[2]
            handle._scheduled = False  # type: ignore[attr-defined]
            if handle.cancelled():
                self._cancelled -= 1
            else:
                ready.append(handle)
        self._must_move(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self.steps += 1
                handle._run()

    def _must_move(self, ready: Iterable[object]) -> None:
        if self._strangers:
            raise SimDeadlock(f"real threads, whose time is not simulated: {self._strangers}")
        if self.steps - self._moved_at > _STEPS_MAX:
            raise SimDeadlock(f"{_STEPS_MAX} steps, and no time has passed: {list(ready)[:3]}")

    def call_soon(  # type: ignore[override] # the same, with less said of its types
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_soon_threadsafe(  # type: ignore[override] # the same, with less said of its types
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        if threading.get_ident() != self._thread_id:  # type: ignore[attr-defined]
            self._strangers.append(threading.current_thread().name)
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override] # the same, with less said of its types
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> events.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > _CANCELLED_MIN and self._cancelled * 2 > len(self._timers):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # --- tasks -----------------------------------------------------------------------------

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        number = next(self._numbers)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        name = str(name or f"task {number}")
        return _Task(coro, number, process, loop=self, name=name, context=context)

    def begin(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs something as a part of a process: it ends with that."""
        context = Context()
        context.run(PROCESS.set, process)
        return self.create_task(work, name=process.name, context=context)

    def kill(self, process: Process) -> None:
        """Nothing of it happens any more."""
        process.is_alive = False
        # What waits is kept as it is: to collect it would run its handlers at some moment.
        every = sorted(asyncio.all_tasks(self), key=hash)
        self._buried += [each for each in every if getattr(each, "process", None) is process]

    def bury(self) -> None:
        """Lets go of what was killed, or never ended."""
        self.set_exception_handler(lambda *_: None)
        left = self._buried + sorted(asyncio.all_tasks(self), key=hash)
        for each in left:
            each._log_destroy_pending = False  # type: ignore[attr-defined]
        for each in left:
            _closed(each)
        self._buried.clear()
        self._timers.clear()
        self._ready.clear()  # type: ignore[attr-defined]

    def _note_fault(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        said = "".join(traceback.format_exception(error)[-4:]) if error is not None else ""
        self.faults.append(f"{context.get('message')}: {said}")

    # --- what a real loop has files for ------------------------------------------------------

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("there is no selector")

    def _write_to_self(self) -> None:
        return

    def remove_reader(self, fd: object) -> bool:
        """There are no descriptors."""
        return False


def _closed(task: asyncio.Task[Any]) -> None:
    """Ends a coroutine that nobody resumes; what it says to that is nobody's business."""
    coro: Any = task.get_coro()
    try:
        coro.close()
    except BaseException as error:  # noqa: BLE001 - a dead process
        del error


@contextmanager
def simulated(make: Callable[[], L]) -> Iterator[L]:
    """A loop, and its time for libraries that look at a clock."""
    loop = make()
    kept = time.monotonic, time.time, time.time_ns, time.perf_counter
    asyncio.set_event_loop(loop)
    time.monotonic = time.perf_counter = loop.time
    time.time = lambda: EPOCH_MS / 1000 + loop.time()
    time.time_ns = lambda: EPOCH_MS * 1_000_000 + int(loop.time() * 1e9)
    try:
        yield loop
    finally:
        loop.bury()
        time.monotonic, time.time, time.time_ns, time.perf_counter = kept
        asyncio.set_event_loop(None)
        loop.close()


@contextmanager
def forgotten() -> Iterator[None]:
    """Around a whole simulation: what it leaves is collected at the end of the block and nowhere in
    between, and what the dead say to that is not heard."""
    gc.collect()
    # What was there before is looked through by no collection to come: to do that for each life
    # would cost a third of a short one.
    gc.freeze()
    gc.disable()  # when something is collected would depend on what ran before
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        gc.collect()
        sys.unraisablehook = hook
        gc.enable()
