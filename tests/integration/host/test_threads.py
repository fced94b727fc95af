"""Calls in threads: results, errors, limits, cancellation and the end."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from binlogd.host.threads import Threads, over, stacked


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(2, name="test")
    yield made
    made.close()


async def test_each_call_gets_its_own_result_or_error(threads: Threads) -> None:
    def half(number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number // 2

    ended = await asyncio.gather(
        *(threads.run(lambda number=number: half(number)) for number in range(200)),  # type: ignore[misc]  # the default binds it
        return_exceptions=True,
    )
    for number, result in enumerate(ended):
        assert str(result) == (f"{number} is odd" if number % 2 else str(number // 2))


async def test_never_more_threads_than_allowed(threads: Threads) -> None:
    names = await asyncio.gather(
        *(threads.run(lambda: threading.current_thread().name) for _ in range(50))
    )
    assert set(names) <= {"test_0", "test_1"}


@contextmanager
def no_more_threads() -> Iterator[None]:
    """The system has no room for the stack of another one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = threading.stack_size(512 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        threading.stack_size(size)


async def test_where_no_more_can_be_begun_those_that_are_there_do_it(threads: Threads) -> None:
    def name() -> str:
        return threading.current_thread().name

    await threads.run(name)
    with no_more_threads():
        names = await asyncio.gather(*(threads.run(name) for _ in range(20)))
        assert set(names) == {"test_0"}
    both = threading.Barrier(2)
    await asyncio.gather(*(threads.run(lambda: both.wait(60)) for _ in range(2)))


async def test_where_none_can_be_begun_that_is_said_and_later_calls_do_not_wait() -> None:
    threads = Threads(2, name="none")
    with no_more_threads():
        for _ in range(3):
            with pytest.raises(OSError, match="can't start new thread"):
                await threads.run(lambda: 1)
    async with asyncio.timeout(60):
        assert await threads.run(lambda: 2) == 2
    threads.close()


async def test_a_call_that_has_not_begun_can_be_cancelled_and_nobody_else_suffers(
    threads: Threads,
) -> None:
    may_go_on = threading.Event()
    called: list[int] = []
    blocking = [threads.run(may_go_on.wait) for _ in range(2)]
    cancelled, kept = threads.run(lambda: called.append(1)), threads.run(lambda: called.append(2))
    cancelled.cancel()
    blocking[0].cancel()  # that one goes on in its thread
    may_go_on.set()
    await kept
    await blocking[1]
    assert called == [2]


async def test_who_closes_waits_for_what_was_queued() -> None:
    threads = Threads(1, name="closing")
    called: list[int] = []
    ended = [threads.run(lambda: called.append(1)) for _ in range(20)]
    threads.close()
    assert len(called) == 20
    await asyncio.gather(*ended)
    with pytest.raises(RuntimeError, match="closing have ended"):
        threads.run(lambda: None)


def test_one_loop_after_the_other_may_call(threads: Threads) -> None:
    async def left_behind() -> None:
        threads.run(lambda: 1)

    async def waited_for() -> int:
        return await threads.run(lambda: 2)

    for _ in range(20):
        asyncio.run(left_behind())
        assert asyncio.run(waited_for()) == 2


async def test_who_is_cancelled_hears_of_it_when_the_call_has_ended(threads: Threads) -> None:
    may_end, ended = threading.Event(), []

    def call() -> None:
        may_end.wait()
        ended.append("the call")

    async def wait() -> None:
        try:
            await over(threads.run(call))
        finally:
            ended.append("the wait")

    task = asyncio.ensure_future(wait())
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["the call", "the wait"]


async def test_what_a_thread_entered_it_leaves_and_hears_why(threads: Threads) -> None:
    seen: list[object] = []

    @contextmanager
    def held() -> Iterator[int]:
        try:
            yield threading.get_ident()
        except ValueError as error:
            seen.append(str(error))
            raise
        finally:
            seen.append(threading.get_ident() != here)

    async def enter(error: Exception | None) -> None:
        async with stacked(threads) as stack:
            assert await over(threads.run(lambda: stack.enter_context(held()))) != here
            if error is not None:
                raise error

    here = threading.get_ident()
    await enter(None)
    with pytest.raises(ValueError, match="odd"):
        await enter(ValueError("odd"))
    assert seen == [True, "odd", True]
