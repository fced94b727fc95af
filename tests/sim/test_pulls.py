"""The judge of what Pumps give is judged: each thing that it looks for is planted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.tso import Tso
from tests.sim.pulls import JudgedSource


class Given:
    """A source that gives what it is told to: the commits of each batch, and its promise."""

    name = "pump1"

    def __init__(self, batches: Sequence[tuple[Sequence[int], int]]) -> None:
        self._batches = batches

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        del after
        for commits, resolved_ts in self._batches:
            binlogs = [CommittedBinlog(Tso(ts - 1), Tso(ts), b"") for ts in commits]
            yield Pulled(binlogs, Tso(resolved_ts))


def judged(*batches: tuple[Sequence[int], int]) -> tuple[JudgedSource, list[str]]:
    found: list[str] = []
    source = JudgedSource(Given(batches), found)

    async def read() -> None:
        async for _ in source.pull(Tso(10)):
            pass

    asyncio.run(read())
    return source, found


def test_a_pull_in_order_passes_nothing() -> None:
    source, found = judged(([12, 15], 16), ([], 20), ([23], 23))
    assert not found
    assert not any(map(source.has_passed, map(Tso, (9, 10, 12, 15, 23, 24))))


@pytest.mark.parametrize("commits", [[10], [12, 12], [15, 12]])
def test_a_binlog_behind_another_is_found(commits: list[int]) -> None:
    _, found = judged((commits, 16))
    assert found == [f"I5: pump1 gave {commits[-1]} behind {[10, *commits][-2]}"]


def test_a_promise_that_falls_is_found() -> None:
    _, found = judged(([12], 16), ([], 14))
    assert found == ["I5: the promise of pump1 fell"]


@pytest.mark.parametrize("commit_ts", [11, 13, 16])
def test_what_a_promise_holds_and_nobody_got_is_found(commit_ts: int) -> None:
    source, _ = judged(([12, 15], 16))
    assert source.has_passed(Tso(commit_ts))
