"""What a shard keeps in memory, and what it does when there is too much of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from binlogd.binlog import BinlogType
from binlogd.log.pointer import FileId, Place
from binlogd.pump.log.entry import Entry
from binlogd.pump.shard.chaser import SlowChaser, Tail
from binlogd.pump.shard.window import Window
from binlogd.tso import NO_TS, Tso


def entry(number: int) -> Entry:
    return Entry(BinlogType.PREWRITE, Tso(number), NO_TS, FileId(0), number * 100, 10)


def commit(commit_ts: int, start_ts: int) -> Entry:
    return Entry(BinlogType.COMMIT, Tso(start_ts), Tso(commit_ts), FileId(0), 0, 10)


# --- the tail ------------------------------------------------------------------------------


def test_entries_leave_in_the_order_they_came() -> None:
    tail = Tail(10)
    tail.extend([entry(1), entry(2), entry(3)])
    assert tail.first(2) == [entry(1), entry(2)]
    tail.filed(2)
    assert tail.first(2) == [entry(3)]
    assert (tail.waiting(), tail.missing()) == (1, 0)


def test_what_falls_out_is_missing_and_comes_first() -> None:
    tail = Tail(2)
    tail.extend([entry(number) for number in range(5)])
    assert (tail.waiting(), tail.missing()) == (5, 3)
    tail.filed(3)
    assert tail.missing() == 0
    assert tail.first(9) == [entry(3), entry(4)]


def test_entries_may_fall_out_while_they_are_being_filed() -> None:
    tail = Tail(2)
    tail.extend([entry(0), entry(1)])
    in_hand = tail.first(2)
    tail.extend([entry(2)])
    tail.filed(len(in_hand))
    assert tail.first(9) == [entry(2)]
    assert tail.missing() == 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4))), st.integers(1, 5))
def test_every_entry_is_filed_once_and_in_order(
    turns: list[tuple[int, int]], entries_max: int
) -> None:
    tail, logged, filed = Tail(entries_max), 0, 0
    for arriving, taken in turns:
        tail.extend([entry(number) for number in range(logged, logged + arriving)])
        logged += arriving
        missing = tail.missing()
        batch = (
            [entry(number) for number in range(filed, filed + missing)]  # read from the log
            if missing
            else tail.first(taken)
        )
        assert batch == [entry(number) for number in range(filed, filed + len(batch))]
        tail.filed(len(batch))
        filed += len(batch)
        assert tail.waiting() == logged - filed


# --- slowChaser ----------------------------------------------------------------------------


def test_the_chaser_turns_on_when_a_record_fell_out() -> None:
    chaser = SlowChaser()
    assert chaser.missed()
    assert not chaser.missed()
    chaser.read(7)
    statistics = chaser.statistics()
    assert statistics.is_on
    assert (statistics.turned_on, statistics.catch_ups, statistics.records_read) == (1, 2, 7)


def test_the_chaser_turns_on_after_three_seconds_of_waiting() -> None:
    chaser = SlowChaser()
    assert not chaser.stalled(waited_s=2.9)
    assert not chaser.is_on
    assert chaser.stalled(waited_s=3.0)
    assert chaser.is_on


def test_the_chaser_turns_off_when_the_index_is_fast_again() -> None:
    chaser = SlowChaser()
    assert not chaser.caught_up(took_s=0.1)
    chaser.missed()
    assert not chaser.caught_up(took_s=1.0)
    assert chaser.caught_up(took_s=0.9)
    statistics = chaser.statistics()
    assert (statistics.is_on, statistics.recoveries) == (False, 1)


# --- the window ----------------------------------------------------------------------------


def window(*, bytes_max: int = 1 << 20, commits_max: int = 100, floor: int = 0) -> Window:
    return Window(floor=Tso(floor), bytes_max=bytes_max, commits_max=commits_max)


def put(kept: Window, commit_ts: int, start_ts: int, payload: bytes = b"c") -> None:
    kept.commit(Tso(commit_ts), Tso(start_ts), payload, Place(FileId(0), start_ts, 1))


def timestamps(
    kept: Window, after: int, upto: int, *, commits_max: int = 100, bytes_max: int = 1 << 20
) -> tuple[list[tuple[int, int]], int]:
    found, reached = kept.after(
        Tso(after), upto=Tso(upto), commits_max=commits_max, bytes_max=bytes_max
    )
    return [(each.commit_ts, each.start_ts) for each in found], reached


def test_commits_come_out_in_order_with_their_prewrites() -> None:
    kept = window()
    kept.prewrite(Tso(1), b"one")
    kept.prewrite(Tso(2), b"two")
    put(kept, 9, 2)
    put(kept, 5, 1)
    found, reached = kept.after(Tso(0), upto=Tso(9), commits_max=9, bytes_max=1 << 20)
    assert [(each.commit_ts, each.prewrite) for each in found] == [(5, b"one"), (9, b"two")]
    assert reached == 9


def test_a_range_is_open_below_and_closed_above() -> None:
    kept = window()
    for commit_ts in (3, 5, 7, 9):
        put(kept, commit_ts, 1)
    assert timestamps(kept, 3, 7) == ([(5, 1), (7, 1)], 7)
    assert timestamps(kept, 9, 20) == ([], 20)


def test_commits_of_one_timestamp_stay_together() -> None:
    kept = window()
    for start_ts in (1, 2, 3):
        put(kept, 5, start_ts)
    put(kept, 6, 4)
    assert timestamps(kept, 0, 9, commits_max=2) == ([(5, 1), (5, 2), (5, 3)], 5)
    assert timestamps(kept, 0, 9, bytes_max=1) == ([(5, 1), (5, 2), (5, 3)], 5)


def test_a_repeated_commit_is_kept_once() -> None:
    kept = window()
    kept.prewrite(Tso(1), b"rows")
    put(kept, 5, 1)
    put(kept, 5, 1)
    assert timestamps(kept, 0, 9) == ([(5, 1)], 9)
    assert kept.has(Tso(5), Tso(1))
    found, _ = kept.after(Tso(0), upto=Tso(9), commits_max=9, bytes_max=1 << 20)
    assert found[0].prewrite == b"rows"


def test_what_is_pushed_out_raises_the_floor() -> None:
    kept = window(commits_max=2)
    for commit_ts in (5, 7, 9):
        put(kept, commit_ts, 1)
    assert kept.floor == 5
    assert timestamps(kept, 5, 9) == ([(7, 1), (9, 1)], 9)
    put(kept, 4, 2)
    assert not kept.has(Tso(4), Tso(2))


def test_a_prewrite_that_was_pushed_out_is_looked_up_by_its_place() -> None:
    kept = window(bytes_max=1_000)
    kept.prewrite(Tso(1), bytes(600))
    kept.prewrite(Tso(2), bytes(600))
    put(kept, 5, 1)
    found, _ = kept.after(Tso(0), upto=Tso(5), commits_max=9, bytes_max=1 << 20)
    assert (found[0].prewrite, found[0].place) == (None, Place(FileId(0), 1, 1))


def test_of_too_many_prewrites_the_oldest_go_and_few_more_than_must() -> None:
    kept = window(bytes_max=100_000)
    for start_ts in range(1, 1_001):
        kept.prewrite(Tso(start_ts), bytes(700))
    is_there = []
    for start_ts in range(1, 1_001):
        put(kept, 10_000 + start_ts, start_ts)
        found, _ = kept.after(
            Tso(9_999 + start_ts), upto=Tso(20_000), commits_max=9, bytes_max=1 << 20
        )
        is_there.append(found[0].prewrite is not None)
    assert is_there == sorted(is_there)
    assert 95 <= sum(is_there) <= 100


def test_a_rolled_back_prewrite_is_forgotten() -> None:
    kept = window()
    kept.prewrite(Tso(1), b"rows")
    kept.prewrite(Tso(1), b"rows")
    kept.rollback(Tso(1))
    kept.rollback(Tso(1))
    put(kept, 5, 1)
    found, _ = kept.after(Tso(0), upto=Tso(5), commits_max=9, bytes_max=1 << 20)
    assert found[0].prewrite is None


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), max_size=80), st.integers(1, 12))
def test_above_its_floor_the_window_has_everything(
    commits: list[tuple[int, int]], commits_max: int
) -> None:
    kept = window(commits_max=commits_max)
    for commit_ts, start_ts in commits:
        put(kept, commit_ts, start_ts)
    assert sum(kept.has(Tso(ts), Tso(start)) for ts, start in set(commits)) <= commits_max
    expected = sorted({each for each in commits if each[0] > kept.floor})
    position, found = kept.floor, []
    while position < 40:
        some, reached = timestamps(kept, position, 40, commits_max=3)
        found += some
        position = Tso(reached)
    assert found == expected
