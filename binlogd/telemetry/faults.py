"""An exception that nobody foresaw becomes an error with a name, and its traceback a log line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from binlogd.errors import BinlogdError, Unavailable, Unforeseen, first_bug, leading_error

Answer = TypeVar("Answer")

log = structlog.get_logger(__name__)


def unforeseen(
    part: str, error: BaseException, commit_ts: int = 0, *, is_logged: bool = True
) -> Unforeseen:
    """What to hold against `part`; logged, with the traceback, where `is_logged`. One that
    has its name keeps it."""
    found = first_bug(error)
    if isinstance(found, Unforeseen):
        return found
    if is_logged:
        log.error("unforeseen_error", part=part, cause=repr(found), exc_info=error)
    return Unforeseen(part, found, commit_ts)


def named(part: str, error: Exception, *, is_logged: bool = True) -> BinlogdError:
    """An error that has a name as it is, of a group the one that leads; another one as `unforeseen`
    names it."""
    known = leading_error(error) if isinstance(error, ExceptionGroup) else error
    if isinstance(known, BinlogdError):
        return known
    return unforeseen(part, error, is_logged=is_logged)


async def apart(run: Callable[[], Awaitable[Answer]]) -> Answer:
    """Runs in a task of its own, and ends with whoever waits. A group that fails while it is left
    counts a cancellation against its task (CPython up to 3.12), and nobody could tell whether
    somebody meant it. One that hides that who waits is cancelled is raised as that."""

    async def within() -> Answer:
        return await run()

    try:
        return await asyncio.get_running_loop().create_task(within())
    except Exception as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise


def let_go(error: BaseException) -> None:
    """Lets go of what the calls that it ended held, when nobody needs to know any more where it
    was raised: by its traceback it refers to all of them, and they to it."""
    ahead, seen = [error], set[int]()
    while ahead:
        each = ahead.pop()
        if id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            ahead += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
            ahead += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


async def answer_of(part: str, asked: Awaitable[Answer]) -> Answer:
    """What somebody outside answers; one whose answer makes no sense is asked again like one that
    gives none. Raises Unavailable, and other errors with a name as they are."""
    try:
        return await asked
    except (BinlogdError, TimeoutError):
        raise
    except Exception as error:
        raise Unavailable(str(unforeseen(part, error))) from error
