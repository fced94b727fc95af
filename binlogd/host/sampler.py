"""Samples of what every thread is at: a profile that costs a running process next to nothing."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import FrameType

from binlogd.host.threads import Threads

SECONDS_MAX = 60.0
_INTERVAL_S = 0.01


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
