"""The watermark law, over all interleavings of small histories and over random long ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.log.pointer import FileId, Place
from binlogd.pump.shard.sorter import Sorter
from binlogd.tso import NO_TS, Tso


def place(offset: int) -> Place:
    return Place(FileId(0), offset, 10)


def prewrite(sorter: Sorter, start_ts: int, *, now_s: float = 0.0) -> None:
    sorter.prewrite(Tso(start_ts), place(start_ts), now_s)


def commit(sorter: Sorter, start_ts: int, commit_ts: int) -> None:
    sorter.outcome(Tso(start_ts), Tso(commit_ts))


def rollback(sorter: Sorter, start_ts: int) -> None:
    sorter.outcome(Tso(start_ts), NO_TS)


def test_a_commit_releases_its_transaction() -> None:
    sorter = Sorter()
    prewrite(sorter, 1)
    assert sorter.watermark == 0
    commit(sorter, 1, 2)
    assert sorter.watermark == 2


def test_a_commit_behind_an_open_prewrite_waits() -> None:
    sorter = Sorter()
    prewrite(sorter, 1)
    prewrite(sorter, 2)
    commit(sorter, 2, 3)
    assert sorter.watermark == 0
    commit(sorter, 1, 10)
    assert sorter.watermark == 10


def test_a_smaller_commit_never_lowers_the_mark() -> None:
    sorter = Sorter()
    prewrite(sorter, 1)
    prewrite(sorter, 2)
    commit(sorter, 1, 10)
    commit(sorter, 2, 9)
    assert sorter.watermark == 10
    prewrite(sorter, 20)
    commit(sorter, 20, 200)
    assert sorter.watermark == 200


def test_a_rollback_lets_the_others_pass() -> None:
    sorter = Sorter()
    prewrite(sorter, 1)
    prewrite(sorter, 2)
    commit(sorter, 2, 3)
    rollback(sorter, 1)
    assert sorter.watermark == 3


def test_a_witness_waits_for_the_prewrites_before_it_and_not_for_those_behind() -> None:
    sorter = Sorter()
    prewrite(sorter, 1)
    sorter.witness(Tso(5))
    prewrite(sorter, 6)
    assert sorter.watermark == 0
    rollback(sorter, 1)
    assert sorter.watermark == 5


def test_a_witness_passes_at_once_when_nothing_is_open() -> None:
    sorter = Sorter(watermark=Tso(7))
    sorter.witness(Tso(5))
    assert sorter.watermark == 7
    sorter.witness(Tso(9))
    assert sorter.watermark == 9


def test_a_commit_without_a_prewrite_passes() -> None:
    sorter = Sorter()
    assert sorter.outcome(Tso(1), Tso(2)) is None
    assert sorter.watermark == 2


def test_a_repeated_prewrite_keeps_the_first_place() -> None:
    sorter = Sorter()
    sorter.prewrite(Tso(1), place(100), 0.0)
    sorter.prewrite(Tso(1), place(900), 5.0)
    assert sorter.open_count == 1
    assert sorter.outcome(Tso(1), Tso(2)) == place(100)


def test_a_prewrite_repeated_behind_its_outcome_does_not_wait() -> None:
    sorter = Sorter()
    prewrite(sorter, 1)
    commit(sorter, 1, 2)
    prewrite(sorter, 1)
    prewrite(sorter, 3)
    rollback(sorter, 3)
    prewrite(sorter, 3)
    assert sorter.open_count == 0


def test_outcomes_are_forgotten_after_a_while() -> None:
    sorter = Sorter(outcomes_kept=2)
    for start_ts in (1, 2, 3):
        commit(sorter, start_ts, start_ts + 100)
    prewrite(sorter, 1)
    assert sorter.open_count == 1
    assert sorter.settle(Tso(1)) == place(1)
    assert sorter.settle(Tso(1)) is None
    assert sorter.open_count == 0


def test_of_too_many_outcomes_the_oldest_go_and_few_more_than_must() -> None:
    sorter = Sorter(outcomes_kept=640)
    for start_ts in range(1, 2_001):
        commit(sorter, start_ts, start_ts + 10_000)
    for start_ts in range(1, 2_001):
        prewrite(sorter, start_ts)  # one behind its own outcome is not waited for
    assert 2_000 - 640 <= sorter.open_count <= 2_000 - 620
    assert not sorter.is_open(Tso(2_000 - 619))


def test_the_oldest_prewrite_is_the_one_that_came_first() -> None:
    sorter = Sorter()
    for start_ts in (9, 2, 5):
        prewrite(sorter, start_ts, now_s=float(10 - start_ts))
    assert sorter.oldest is not None
    assert sorter.oldest.start_ts == 9
    rollback(sorter, 9)
    assert sorter.oldest.start_ts == 2


def test_those_who_wait_too_long_are_named_oldest_first() -> None:
    sorter = Sorter()
    for at, start_ts in enumerate((9, 2, 5)):
        prewrite(sorter, start_ts, now_s=float(at))
    assert [each.start_ts for each in sorter.waiting_since(1.0)] == [9, 2]


# --- the law -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something that reaches the shard. `commit_ts` 0: a prewrite, -1: a rollback."""

    start_ts: int
    commit_ts: int


def play(events: Sequence[Event]) -> None:
    """Feeds a history and holds every watermark against what is still to come."""
    sorter, before = Sorter(), 0
    for at, event in enumerate(events):
        if event.commit_ts == 0:
            prewrite(sorter, event.start_ts)
        elif event.commit_ts < 0:
            rollback(sorter, event.start_ts)
        else:
            commit(sorter, event.start_ts, event.commit_ts)
        assert sorter.watermark >= before, "the mark fell"
        before = sorter.watermark
        late = [later.commit_ts for later in events[at + 1 :] if 0 < later.commit_ts <= before]
        assert not late, f"{late} came below the mark {before} in {events}"
    assert sorter.open_count == 0
    assert sorter.watermark == max((event.commit_ts for event in events), default=0)


def interleavings(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not any(left):
        yield ()
        return
    for number, count in enumerate(left):
        if count:
            rest = (*left[:number], count - 1, *left[number + 1 :])
            for tail in interleavings(rest):
                yield (number, *tail)


@pytest.mark.parametrize(("transactions", "orders"), [(2, 70), (3, 34_650)])
def test_the_law_holds_in_every_interleaving(transactions: int, orders: int) -> None:
    """Each transaction takes its start_ts, has its prewrite acknowledged, takes its commit_ts,
    and sends its commit, which may arrive at any time after that."""
    played = 0
    for shuffled in interleavings((4,) * transactions):
        progress, start, commit_ts = [0] * transactions, [0] * transactions, [0] * transactions
        events = []
        for now, number in enumerate(shuffled, start=1):
            match progress[number]:
                case 0:
                    start[number] = now
                case 1:
                    events.append(Event(start[number], 0))
                case 2:
                    commit_ts[number] = now
                case _:
                    events.append(Event(start[number], commit_ts[number]))
            progress[number] += 1
        play(events)
        played += 1
    assert played == orders


@st.composite
def random_history(draw: st.DrawFn) -> list[tuple[int, Event]]:
    """What a cluster sends to several shards, in the order of arrival: (shard, event)."""
    shards = draw(st.integers(1, 3))
    now = 0
    states: list[list[int]] = []  # phase, start_ts, commit_ts
    arrivals: list[tuple[int, Event]] = []
    for _ in range(draw(st.integers(1, 60))):
        now += 1
        open_ones = [state for state in states if state[0] < 3]
        if not open_ones or draw(st.booleans()):
            states.append([0, now, 0])
            continue
        state = draw(st.sampled_from(open_ones))
        shard = state[1] % shards
        if state[0] == 0:
            arrivals.append((shard, Event(state[1], 0)))
        elif state[0] == 1:
            state[2] = now if draw(st.integers(0, 4)) else -1
        else:
            arrivals.append((shard, Event(state[1], state[2])))
        state[0] += 1
    for state in states:
        if state[0] == 2:
            arrivals.append((state[1] % shards, Event(state[1], state[2])))
        elif state[0] == 1:
            arrivals.append((state[1] % shards, Event(state[1], -1)))
    return arrivals


@given(random_history())
def test_the_law_holds_over_shards_that_tell_each_other(
    arrivals: list[tuple[int, Event]],
) -> None:
    sorters = [Sorter() for _ in range(3)]
    for at, (shard, event) in enumerate(arrivals):
        if event.commit_ts == 0:
            prewrite(sorters[shard], event.start_ts)
        elif event.commit_ts < 0:
            rollback(sorters[shard], event.start_ts)
        else:
            for other, sorter in enumerate(sorters):
                if other != shard:
                    sorter.witness(Tso(event.commit_ts))
            commit(sorters[shard], event.start_ts, event.commit_ts)
        for other, sorter in enumerate(sorters):
            late = [
                later
                for number, later in arrivals[at + 1 :]
                if number == other and 0 < later.commit_ts <= sorter.watermark
            ]
            assert not late
    highest = max((event.commit_ts for _, event in arrivals), default=0)
    assert {sorter.watermark for sorter in sorters} == {max(0, highest)}


@pytest.mark.parametrize("count", [5_000])
def test_memory_follows_the_open_transactions_alone(count: int) -> None:
    sorter = Sorter(outcomes_kept=10)
    prewrite(sorter, 1)
    for start_ts in range(2, count):
        prewrite(sorter, start_ts)
        commit(sorter, start_ts, start_ts + count)
    assert sorter.open_count == 1
    assert sorter.watermark == 0
    oldest = sorter.oldest
    assert oldest is not None
    assert oldest.behind is None
    commit(sorter, 1, 2)
    assert sorter.watermark == 2 * count - 1


# --- rollbacks that somebody can verify ------------------------------------------------------


def test_a_doubted_rollback_holds_like_an_open_prewrite_until_it_is_settled() -> None:
    sorter = Sorter(believes_rollbacks=False)
    prewrite(sorter, 1)
    prewrite(sorter, 2)
    rollback(sorter, 1)
    commit(sorter, 2, 3)
    assert sorter.watermark == 0
    assert [each.start_ts for each in sorter.doubted()] == [1]
    sorter.settle(Tso(1))
    assert sorter.watermark == 3
    assert list(sorter.doubted()) == []


def test_a_doubted_rollback_gives_way_to_a_commit() -> None:
    sorter = Sorter(believes_rollbacks=False)
    prewrite(sorter, 1)
    rollback(sorter, 1)
    assert sorter.outcome(Tso(1), Tso(2)) == place(1)
    assert sorter.watermark == 2
    assert list(sorter.doubted()) == []


def test_a_rollback_of_nothing_is_not_doubted() -> None:
    sorter = Sorter(believes_rollbacks=False)
    rollback(sorter, 1)
    assert list(sorter.doubted()) == []
    assert sorter.open_count == 0
