"""The merged order as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

import pytest

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.errors import UnsupportedDdl, UpstreamUnavailable
from binlogd.merge.stream import MergeLimits, merged
from binlogd.tso import NO_TS, Tso


def commit(commit_ts: int) -> CommittedBinlog:
    return CommittedBinlog(Tso(commit_ts - 1), Tso(commit_ts), b"payload")


class Scripted:
    """A source that delivers what it was given, then waits for ever, or fails."""

    def __init__(
        self, name: str, batches: Iterable[Pulled], failure: UpstreamUnavailable | None = None
    ) -> None:
        self.name = name
        self._batches = list(batches)
        self._failure = failure
        self.delivered = 0
        self.is_closed = False

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        try:
            for batch in self._batches:
                self.delivered += 1
                yield batch
            if self._failure is not None:
                raise self._failure
            await asyncio.Event().wait()
        finally:
            self.is_closed = True


def each(*times: int) -> list[Pulled]:
    return [Pulled([commit(ts)], Tso(ts)) for ts in times]


async def test_the_stream_is_in_order_and_its_pullers_end_with_it() -> None:
    sources = [Scripted("a", each(2, 6, 9)), Scripted("b", each(3, 5, 9))]
    seen: list[int] = []
    async with merged(sources, NO_TS) as stream:
        async for pulled in stream:
            seen += [binlog.commit_ts for binlog in pulled.binlogs]
            if pulled.resolved_ts == 9:
                break
    assert seen == [2, 3, 5, 6, 9]
    assert all(source.is_closed for source in sources)


async def read(sources: Sequence[Scripted], raising: UnsupportedDdl | None = None) -> None:
    async with merged(sources, NO_TS) as stream:
        async for _ in stream:
            if raising is not None:
                raise raising


async def test_a_failing_source_fails_the_stream() -> None:
    failing = Scripted("a", each(2), UpstreamUnavailable("gone"))
    waiting = Scripted("b", [])
    with pytest.raises(UpstreamUnavailable, match="gone"):
        await read([failing, waiting])
    assert failing.is_closed
    assert waiting.is_closed


async def test_the_readers_own_error_comes_out_bare() -> None:
    with pytest.raises(UnsupportedDdl):
        await read([Scripted("a", each(2))], raising=UnsupportedDdl(2, "FLASHBACK", "no"))


async def test_a_source_ahead_of_the_others_is_not_pulled_without_limit() -> None:
    ahead, behind = Scripted("ahead", each(*range(2, 100))), Scripted("behind", each(99))
    limits = MergeLimits(binlogs_waiting_max=5)
    seen = 0
    async with merged([ahead, behind], NO_TS, limits) as stream:
        async for pulled in stream:
            seen += len(pulled.binlogs)
            assert ahead.delivered <= seen + 6
            if pulled.resolved_ts == 99:
                break
    assert seen == 98


async def test_a_stream_that_is_stopped_ends_even_while_its_reader_waits() -> None:
    async with merged([Scripted("a", each(2))], NO_TS) as stream:
        seen = []
        async for pulled in stream:
            seen.append(pulled.resolved_ts)
            asyncio.get_running_loop().call_soon(stream.stop)
    assert seen == [2]


class Large:
    """A source of large binlogs; `held` counts those of all that are read and not done with."""

    def __init__(self, name: str, times: Sequence[int], held: list[int]) -> None:
        self.name = name
        self._times = times
        self._held = held

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        for ts in self._times:
            yield Pulled([], Tso(ts - 1), next_bytes=1_000)
            self._held.append(ts)
            yield Pulled([commit(ts)], Tso(ts))
            self._held.remove(ts)
        yield Pulled([], Tso(100))
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "times", [((10, 40), (20, 30), (25,)), ((30,), (20,), (10,)), ((10, 11, 12), (5,), (13,))]
)
async def test_of_large_binlogs_one_is_read_at_a_time_whatever_their_order(
    times: Sequence[Sequence[int]],
) -> None:
    held: list[int] = []
    sources = [Large(str(number), each, held) for number, each in enumerate(times)]
    seen: list[int] = []
    async with asyncio.timeout(120), merged(sources, NO_TS) as stream:
        async for pulled in stream:
            assert len(held) <= 1
            seen += [binlog.commit_ts for binlog in pulled.binlogs]
            if pulled.resolved_ts == 100:
                break
    assert seen == sorted(ts for each in times for ts in each)
