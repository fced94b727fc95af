"""The event loop of a process: begun for one piece of work, ended when that is over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import uvloop

from binlogd.errors import GaveUp, leading_error

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """One event loop for one command; of several errors at once, the one that counts is raised."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    except BaseExceptionGroup as group:
        error = leading_error(group)
        if error is None:
            raise
        raise error from group


class EndedByTerm(GaveUp):
    """Somebody ended a command by SIGTERM; it has tidied up."""


async def ended_by_term(work: Awaitable[T]) -> T:
    """What `work` gives. SIGTERM cancels it, as Ctrl-C does. Raises EndedByTerm."""
    loop, task, is_by_term = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal is_by_term
        is_by_term = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        return await work
    except asyncio.CancelledError:
        if is_by_term:
            raise EndedByTerm("ended by SIGTERM; nothing was published, nothing is left") from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
