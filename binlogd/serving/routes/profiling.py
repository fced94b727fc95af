"""`/debug/pprof`: what of Go's profiles makes sense in Python, and a sentence for what does not.

Source: Go's net/http/pprof, which the original links in.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import Counter
from types import FrameType

from aiohttp import web

from binlogd.host.threads import Threads

SECONDS_MAX = 60.0
_SECONDS = 10.0
_INTERVAL_S = 0.01
_INDEX = """/debug/pprof/

cmdline      the command line
goroutine    the stack of every task and thread
profile      samples of every thread's stack: ?seconds=10, up to 60; a line is a stack and a count,
             as flame graph tools read it

allocs, block, heap, mutex, symbol, threadcreate and trace are Go's own and not here.
"""
GO_ONLY = ("allocs", "block", "heap", "mutex", "symbol", "threadcreate", "trace")


def add_profiling(router: web.UrlDispatcher) -> None:
    """Adds the routes."""
    router.add_get("/debug/pprof/", _index)
    router.add_get("/debug/pprof/cmdline", _command_line)
    router.add_get("/debug/pprof/goroutine", _stacks)
    router.add_get("/debug/pprof/profile", _Profiler().profile)
    for name in GO_ONLY:
        router.add_get(f"/debug/pprof/{name}", _not_here)
    router.add_get("/debug/metrics", _not_here)


async def _index(_: web.Request) -> web.Response:
    return web.Response(text=_INDEX)


async def _command_line(_: web.Request) -> web.Response:
    return web.Response(text="\0".join(sys.orig_argv))


async def _stacks(_: web.Request) -> web.Response:
    parts: list[str] = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        frames = (line for frame in task.get_stack() for line in traceback.format_stack(frame, 1))
        parts.append(f"task {task.get_name()}:\n{''.join(frames)}")
    for number, frame in sys._current_frames().items():  # noqa: SLF001 # the documented way
        parts.append(f"thread {number}:\n{''.join(traceback.format_stack(frame))}")
    return web.Response(text="\n".join(parts))


class _Profiler:
    """One profile at a time: each is a thread."""

    def __init__(self) -> None:
        self._is_busy = False

    async def profile(self, request: web.Request) -> web.Response:
        """Stacks with how often each was seen in so many `seconds`, the most frequent first, in the
        form that flame graphs are made of. 400 for no such number, 503 beside another one."""
        try:
            seconds = float(request.query.get("seconds", _SECONDS))
        except ValueError:
            seconds = 0
        if not 0 < seconds <= SECONDS_MAX:
            text = f"seconds: expected a number above 0 and up to {SECONDS_MAX:g}\n"
            return web.Response(status=400, text=text)
        if self._is_busy:
            return web.Response(status=503, text="a profile is being taken; ask again later\n")
        self._is_busy = True
        try:
            counts = await sampled(seconds)
        finally:
            self._is_busy = False
        lines = (f"{stack} {count}\n" for stack, count in counts.most_common())
        return web.Response(text="".join(lines))


async def _not_here(request: web.Request) -> web.Response:
    name = request.path.rsplit("/", 1)[-1]
    return web.Response(
        status=501, text=f"{name} is a profile of a Go program; /debug/pprof/ lists what is here\n"
    )


async def sampled(seconds: float) -> Counter[str]:
    """How often each stack was seen, outermost function first, joined by semicolons."""
    thread, stopping = Threads(1, name="sampler"), threading.Event()
    try:
        return await thread.run(lambda: _sample(seconds, stopping))
    finally:
        stopping.set()  # nobody waits for it any more
        thread.close()


def _sample(seconds: float, stopping: threading.Event) -> Counter[str]:
    counts: Counter[str] = Counter()
    own = threading.get_ident()
    for _ in range(max(1, round(seconds / _INTERVAL_S))):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 # the documented way
            if ident != own:
                counts[";".join([names.get(ident, str(ident)), *_functions(frame)])] += 1
        if stopping.wait(_INTERVAL_S):
            break
    return counts


def _functions(frame: FrameType | None) -> list[str]:
    names: list[str] = []
    while frame is not None:  # up to the thread's first function
        module = frame.f_globals.get("__name__", "?")
        names.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return names[::-1]
