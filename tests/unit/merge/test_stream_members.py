"""Sources that join, pause, move and leave while the merged stream runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.errors import PumpUnavailable, Unavailable
from binlogd.merge.stream import MergedStream, MergeLimits, merged
from binlogd.ports import Member, SourceState
from binlogd.tso import NO_TS, Tso
from tests.support.memory_pump import MemorySource

PATIENT = MergeLimits(retry_after_s=0.001)


def commit(commit_ts: int) -> CommittedBinlog:
    return CommittedBinlog(Tso(commit_ts - 1), Tso(commit_ts), b"payload")


class Changing:
    """Sources as a test announces them."""

    def __init__(self, *members: Member) -> None:
        self._lists: asyncio.Queue[Sequence[Member]] = asyncio.Queue()
        self.announce(*members)

    def announce(self, *members: Member) -> None:
        self._lists.put_nowait(members)

    async def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        while True:  # until the stream ends
            yield await self._lists.get()
            self._lists.task_done()

    async def heard(self) -> None:
        """Returns when all that was announced has been taken in."""
        await self._lists.join()


async def read_up_to(stream: MergedStream, ts: int) -> list[int]:
    seen: list[int] = []
    async for pulled in stream:
        seen += [binlog.commit_ts for binlog in pulled.binlogs]
        if pulled.resolved_ts >= ts:
            return seen
    return seen


async def stands_still(stream: MergedStream) -> bool:
    try:
        async with asyncio.timeout(0.02):
            await anext(stream)
    except TimeoutError:
        return True
    return False


def position(stream: MergedStream, name: str) -> SourceState | None:
    return next((s.state for s in stream.statistics().sources if s.name == name), None)


async def test_one_that_joins_holds_the_merge_from_where_it_is_and_nothing_comes_twice() -> None:
    first, late = MemorySource("first"), MemorySource("late")
    first.add(*map(commit, (2, 4)))
    late.add(*map(commit, (3, 7, 9)))
    sources = Changing(Member(first))
    async with merged(sources, NO_TS) as stream:
        assert await read_up_to(stream, 4) == [2, 4]
        sources.announce(Member(first), Member(late))
        await sources.heard()
        first.add(commit(8))
        assert await read_up_to(stream, 8) == [7, 8]
        assert await stands_still(stream)
        assert stream.statistics().blocking == "first"


async def test_without_any_source_the_stream_waits() -> None:
    sources = Changing()
    async with merged(sources, Tso(5)) as stream:
        assert await stands_still(stream)
        first = MemorySource("first")
        first.add(*map(commit, (4, 6)))
        sources.announce(Member(first))
        assert await read_up_to(stream, 6) == [6]


async def test_an_offline_source_leaves_when_it_has_delivered_what_it_had() -> None:
    stays, goes = MemorySource("stays"), MemorySource("goes")
    stays.add(*map(commit, (2, 20)))
    goes.add(commit(3))
    sources = Changing(Member(stays), Member(goes))
    async with merged(sources, NO_TS) as stream:
        assert await read_up_to(stream, 3) == [2, 3]
        sources.announce(Member(stays), Member(goes, SourceState.OFFLINE, last_ts=Tso(7)))
        await sources.heard()
        assert await stands_still(stream)
        assert position(stream, "goes") is SourceState.OFFLINE
        goes.add(commit(5), commit(7))
        assert await read_up_to(stream, 20) == [5, 7, 20]
        assert position(stream, "goes") is None


async def test_what_waits_of_a_source_that_leaves_is_not_lost() -> None:
    stays, goes = MemorySource("stays"), MemorySource("goes")
    goes.add(*map(commit, (3, 5)))
    sources = Changing(Member(stays), Member(goes))
    async with merged(sources, NO_TS) as stream:
        assert await stands_still(stream)
        sources.announce(Member(stays), Member(goes, SourceState.OFFLINE))
        await sources.heard()
        stays.add(commit(4), commit(9))
        assert await read_up_to(stream, 9) == [3, 4, 5, 9]


async def test_one_that_was_offline_before_is_passed_over_and_may_come_back() -> None:
    stays, back = MemorySource("stays"), MemorySource("back")
    stays.add(commit(2), commit(6))
    sources = Changing(Member(stays), Member(back, SourceState.OFFLINE))
    async with merged(sources, NO_TS) as stream:
        assert await read_up_to(stream, 6) == [2, 6]
        sources.announce(Member(stays), Member(back))
        await sources.heard()
        stays.add(commit(8))
        assert await stands_still(stream)
        back.add(commit(7), commit(10))
        assert await read_up_to(stream, 8) == [7, 8]


async def test_a_paused_or_vanished_source_is_waited_for_and_said_to_be_so() -> None:
    stays, rests = MemorySource("stays"), MemorySource("rests")
    stays.add(commit(2), commit(6))
    rests.add(commit(3))
    sources = Changing(Member(stays), Member(rests))
    async with merged(sources, NO_TS) as stream:
        assert await read_up_to(stream, 3) == [2, 3]
        for members in [(Member(stays), Member(rests, SourceState.PAUSED)), (Member(stays),)]:
            sources.announce(*members)
            await sources.heard()
            assert await stands_still(stream)
        now = stream.statistics()
        assert (now.blocking, position(stream, "rests")) == ("rests", SourceState.PAUSED)
        assert now.blocked_s > 0
        rests.add(commit(7))
        assert await read_up_to(stream, 6) == [6]


class Broken:
    """A source whose first connections fail in the middle."""

    def __init__(self, inner: MemorySource, failures: int) -> None:
        self.name, self._inner, self.failures = inner.name, inner, failures
        self.begun_after: list[int] = []

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        self.begun_after.append(after)
        async for pulled in self._inner.pull(after):
            yield pulled
            if self.failures:
                self.failures -= 1
                raise PumpUnavailable("gone")


async def test_a_source_that_breaks_is_pulled_again_from_what_it_promised() -> None:
    inner = MemorySource("a")
    source = Broken(inner, failures=2)
    inner.add(commit(2))
    async with merged([source], NO_TS, PATIENT) as stream:
        assert await read_up_to(stream, 2) == [2]
        while not stream.statistics().sources[0].trouble:  # noqa: ASYNC110 # as an operator looks
            await asyncio.sleep(0)
        inner.add(commit(4))
        assert await read_up_to(stream, 4) == [4]
        inner.add(commit(6))
        assert await read_up_to(stream, 6) == [6]
        assert stream.statistics().sources[0].trouble == ""
    assert source.begun_after == [0, 2, 4]


async def test_where_nobody_waits_it_out_a_failure_ends_the_stream() -> None:
    inner = MemorySource("a")
    inner.fail(PumpUnavailable("gone"))
    with pytest.raises(Unavailable):
        async with merged([inner], NO_TS) as stream:
            await anext(stream)


async def test_a_source_that_has_moved_is_pulled_at_its_new_place() -> None:
    old, new = MemorySource("a"), MemorySource("a")
    old.add(commit(2))
    new.add(commit(2), commit(4))
    sources = Changing(Member(old))
    async with merged(sources, NO_TS) as stream:
        assert await read_up_to(stream, 2) == [2]
        sources.announce(Member(new))
        assert await read_up_to(stream, 4) == [4]
