"""Samples of what every thread is at: a profile that costs a running process next to nothing."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from types import FrameType

SECONDS_MAX = 60.0
_INTERVAL_S = 0.01


async def sampled(seconds: float) -> Counter[str]:
    """How often each stack was seen, outermost function first, joined by semicolons."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Counter[str]] = loop.create_future()
    stopping = threading.Event()
    thread = threading.Thread(
        target=_sample, args=(seconds, loop, done, stopping), name="sampler", daemon=True
    )
    thread.start()
    try:
        return await done
    finally:
        stopping.set()


def _sample(
    seconds: float,
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[Counter[str]],
    stopping: threading.Event,
) -> None:
    counts: Counter[str] = Counter()
    own = threading.get_ident()
    for _ in range(max(1, round(seconds / _INTERVAL_S))):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # noqa: SLF001 # the documented way
            if ident != own:
                counts[";".join([names.get(ident, str(ident)), *_functions(frame)])] += 1
        if stopping.wait(_INTERVAL_S):
            return  # nobody waits for it any more
    loop.call_soon_threadsafe(_give, done, counts)


def _give(done: asyncio.Future[Counter[str]], counts: Counter[str]) -> None:
    if not done.done():
        done.set_result(counts)


def _functions(frame: FrameType | None) -> list[str]:
    names: list[str] = []
    while frame is not None:  # up to the thread's first function
        module = frame.f_globals.get("__name__", "?")
        names.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return names[::-1]
