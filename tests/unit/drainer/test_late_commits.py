"""What a session does about commits that came below what their source had promised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence

import pytest

from binlogd.binlog import CommittedBinlog, Late, Pulled
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.late_commits import ASKED_MAX, KnownLateCommits
from binlogd.errors import BinlogdError, LateCommit, MissedCommit, OutOfOrder, PumpUnavailable
from binlogd.ports import BinlogSource
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join
from tests.sim.loop import SimLoop
from tests.support.memory_pump import MemorySource

REACHED = Tso(20)


class Undecided:
    """Late commits of the Pump in this process, until they are dealt with."""

    sources = ("shard-0", "shard-1")

    def __init__(self, *commit_tss: int) -> None:
        self.left = [Late("shard-0", Tso(ts - 1), Tso(ts)) for ts in commit_tss]

    def unresolved(self) -> Sequence[Late]:
        return self.left

    async def resolve(self, commit_tss: Collection[Tso]) -> None:
        self.left = [each for each in self.left if each.commit_ts not in commit_tss]


def source(name: str, *commit_tss: int, rows: bytes = b"", start_ts: int = 0) -> MemorySource:
    """It has these, and stands at 30."""
    made = MemorySource(name)
    for ts in sorted({*commit_tss, 30}):
        start = Tso(start_ts or ts - 1)
        prewrite = prewrite_binlog(start, prewrite_value=rows)
        payload = join(prewrite, commit_binlog(start, Tso(ts)))
        made.add(CommittedBinlog(start, Tso(ts), payload))
    return made


def told(pump: str, *commit_tss: int) -> MissedCommit:
    return MissedCommit(f"{pump} said so", [(pump, ts - 1, ts) for ts in commit_tss])


async def judged(
    late: KnownLateCommits, *sources: BinlogSource, ignored: Sequence[Tso] = ()
) -> None:
    await late.begin(TableFilter(ignored_commit_ts=ignored), REACHED, sources)


@pytest.mark.parametrize(("commit_ts", "is_too_late"), [(19, True), (20, True), (21, False)])
async def test_it_is_too_late_for_who_has_reached_it(commit_ts: int, *, is_too_late: bool) -> None:
    local = Undecided(commit_ts)
    late = KnownLateCommits(local)
    assert isinstance(late.came(), OutOfOrder)
    if is_too_late:
        with pytest.raises(LateCommit, match=f"commit_ts {commit_ts} "):
            await judged(late)
        assert len(local.left) == 1
        await judged(late, ignored=[Tso(commit_ts)])
    else:
        await judged(late)
    assert local.left == []
    assert late.came() is None


async def test_one_that_came_by_another_pump_is_dealt_with() -> None:
    local = Undecided(15)
    await judged(KnownLateCommits(local), source("shard-0", 15), source("b"), source("c", 10, 15))
    assert local.left == []

    late = KnownLateCommits(None)
    assert isinstance(late.reported(told("a", 14, 15)), OutOfOrder)
    await judged(late, source("a", 14, 15), source("b", 15), source("shard-0", 14))


@pytest.mark.parametrize(
    "other",
    [source("b"), source("b", 15, rows=b"others"), source("b", 15, start_ts=13)],
    ids=["nothing there", "other rows", "another transaction"],
)
async def test_one_that_did_not_come_by_another_pump_stops(other: MemorySource) -> None:
    local = Undecided(15)
    with pytest.raises(LateCommit, match="commit_ts 15 "):
        await judged(KnownLateCommits(local), source("shard-0", 15), other)
    assert len(local.left) == 1

    late = KnownLateCommits(None)
    late.reported(told("a", 15))
    with pytest.raises(MissedCommit, match="a said so"):
        await judged(late, source("a", 15), other)
    await judged(late, source("a", 15), other)  # it stopped at it once: who resumes passes over it


async def test_of_several_only_those_are_passed_over_that_came() -> None:
    local = Undecided(14, 15, 16)
    with pytest.raises(LateCommit, match=r"commit_ts 15 .* others") as stopped:
        await judged(KnownLateCommits(local), source("shard-0", 14, 15, 16), source("b", 14))
    assert stopped.value.skip_ts == 15
    assert [each.commit_ts for each in local.left] == [15, 16]


async def test_two_pumps_that_have_it_too_late_do_not_speak_for_each_other() -> None:
    late = KnownLateCommits(None)
    late.reported(told("a", 15))
    late.reported(told("b", 15))
    with pytest.raises(MissedCommit, match=r"said so"):
        await judged(late, source("a", 15), source("b", 15))

    late = KnownLateCommits(Undecided(15))
    late.reported(told("b", 15))
    with pytest.raises(MissedCommit, match=r"b said so"):
        await judged(late, source("shard-0", 15), source("b", 15))


class Silent(MemorySource):
    """A Pump that cannot be reached."""

    def __init__(self) -> None:
        super().__init__("b")
        self.failure = PumpUnavailable("pump b: nobody there")
        self.asked = 0

    def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        self.asked += 1
        return super().pull(after)


@pytest.mark.parametrize("is_local", [True, False])
async def test_a_pump_that_gives_no_answer_is_asked_again_until_it_is_enough(
    *, is_local: bool
) -> None:
    late, own, silent = KnownLateCommits(Undecided(15) if is_local else None), "shard-0", Silent()
    if not is_local:
        own = "a"
        late.reported(told("a", 15))
    ended: list[BinlogdError] = []
    while len(ended) < ASKED_MAX:
        try:
            await judged(late, source(own, 15), silent)
        except BinlogdError as error:
            ended.append(error)
    assert {type(each) for each in ended[:-1]} == {PumpUnavailable}
    assert isinstance(ended[-1], LateCommit if is_local else MissedCommit)
    assert "unless it came by another Pump (pump b: nobody there)" in ended[-1].message
    assert silent.asked == ASKED_MAX


async def test_a_pump_that_gives_no_answer_is_waited_for_once_in_a_session() -> None:
    local, silent = Undecided(14, 15, 16), Silent()
    others = source("c", 15), silent
    with pytest.raises(PumpUnavailable, match="pump b: nobody there"):
        await judged(KnownLateCommits(local), source("shard-0", 14, 15, 16), *others)
    assert silent.asked == 1, "not for each of the commits"
    assert [each.commit_ts for each in local.left] == [14, 16], "one came by a Pump that answers"


async def test_what_another_pump_told_of_is_kept_until_it_can_be_judged() -> None:
    late, silent = KnownLateCommits(None), Silent()
    late.reported(told("a", 15))
    with pytest.raises(PumpUnavailable, match=r"commit_ts 15 .* is not known: pump b: nobody"):
        await judged(late, source("a", 15), silent)
    await judged(late, source("a", 15), source("b", 15))


async def test_a_shard_is_not_asked_for_what_its_sibling_has() -> None:
    sibling = source("shard-1")
    sibling.failure = PumpUnavailable("asked")
    with pytest.raises(LateCommit):
        await judged(KnownLateCommits(Undecided(15)), source("shard-0", 15), sibling)


async def test_where_some_are_only_counted_nothing_can_be_found_out() -> None:
    late, error = KnownLateCommits(None), MissedCommit("a said so, and 2000 others like it")
    assert late.reported(error) is error
    await judged(late)


def test_a_pump_that_does_not_stand_there_yet_is_not_waited_for() -> None:
    async def ask() -> None:
        late = KnownLateCommits(Undecided(15))
        with pytest.raises(PumpUnavailable, match="behind gave no answer in 15 s"):
            await judged(late, source("shard-0", 15), MemorySource("behind"))

    loop = SimLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        began_s = loop.time()
        runner.run(ask())
        assert loop.time() - began_s == 15
