"""What signals mean from the first look at the data directory until the node takes binlogs.

That may take long: where PD is away it lasts until PD is back. SIGTERM then ends it in good order,
and SIGHUP reads the configuration again; the default of both, the sudden death of the process,
means nothing at all to the first process of a container.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

import structlog

log = structlog.get_logger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
RELOAD_SIGNAL = signal.SIGHUP
STOP_S = 9.5
"""SIGTERM ends the process within ten seconds, drained or not."""


async def stoppable(node: Awaitable[int], reload: Callable[[], object]) -> int:
    """What `node` gives, which starts a node and then is it; 0 when a signal ends it before it
    listens for signals by itself. `reload` takes a changed configuration until then."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    cause = ""

    def end(number: signal.Signals) -> None:
        nonlocal cause
        if not cause:  # a second one must not disturb the tidying up
            cause = number.name
            log.info("start_interrupted", signal=number.name)
            signal.signal(signal.SIGALRM, _cut_off)
            signal.setitimer(signal.ITIMER_REAL, STOP_S)
            task.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(RELOAD_SIGNAL, reload)
    try:
        return await node
    except asyncio.CancelledError:
        if not cause:
            raise
        task.uncancel()
        log.info("service_stopped", state="not started", cause=cause)
        return 0


def _cut_off(_: int, __: FrameType | None) -> None:
    """A thread may be reading a large log, and would keep the process alive; nothing that was
    acknowledged depends on it."""
    log.warning("stop_timed_out", after_s=STOP_S)
    sys.stdout.flush()
    os._exit(1)
