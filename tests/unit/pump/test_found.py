"""Rows of an index as the commits that they tell of: the compiled form takes a column that may be
nothing for what it is."""

from __future__ import annotations

from binlogd.binlog import CommittedBinlog
from binlogd.log.pointer import FileId, Place
from binlogd.log.record import HEADER_BYTES
from binlogd.pump.shard.found import (
    BatchReading,
    FoundCommit,
    apart,
    cut,
    found_commits,
    senseless,
)
from binlogd.tso import Tso
from binlogd.wire import binlogs
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join


def test_a_commit_is_told_with_its_prewrite_and_without() -> None:
    whole, alone = found_commits([(7, 5, 1, 30, 10, 0, 2, 20), (9, 9, 1, 60, 10, None, None, None)])
    assert (whole.commit_ts, whole.start_ts) == (7, 5)
    assert (whole.place, whole.prewrite) == (Place(FileId(1), 30, 10), Place(FileId(0), 2, 20))
    assert whole.whole_bytes == 30 + 2 * HEADER_BYTES
    assert (alone.commit_ts, alone.start_ts) == (9, 9)
    assert (alone.place, alone.prewrite) == (Place(FileId(1), 60, 10), None)
    assert alone.whole_bytes == 10 + HEADER_BYTES


def test_a_row_with_anything_but_numbers_or_nothing_makes_no_sense() -> None:
    sound: list[tuple[object, ...]] = [(1, 2, None), (0, 1 << 62, 3)]
    assert senseless(sound) is None
    for wrong in ("1", b"1", 1.0, -1):
        assert senseless([*sound, (1, wrong, 2)]) == (1, wrong, 2)


def commit(commit_ts: int, start_ts: int, prewrite_bytes: int | None = 20) -> FoundCommit:
    at = commit_ts * 1_000
    prewrite = None if prewrite_bytes is None else Place(FileId(0), at + 500, prewrite_bytes)
    return FoundCommit(Tso(commit_ts), Tso(start_ts), Place(FileId(0), at, 10), prewrite)


def test_a_batch_ends_where_it_is_full_and_never_between_equal_timestamps() -> None:
    some = [commit(2, 1), commit(4, 3), commit(4, 2), commit(6, 5)]
    assert cut(some, Tso(9), 1) == (some[:1], 2)
    assert cut(some, Tso(9), some[0].whole_bytes + 1) == (some[:3], 4)
    assert cut(some, Tso(9), 1 << 20) == (some, 9)


def test_a_large_one_is_left_for_a_batch_of_its_own() -> None:
    some = [commit(2, 1), commit(4, 3, prewrite_bytes=5_000), commit(6, 5)]
    size = some[1].whole_bytes
    assert apart(some, Tso(9), large_bytes=1_000, alone=False) == (some[:1], 3, size)
    assert apart(some[1:], Tso(9), large_bytes=1_000, alone=True) == (some[1:2], 4, 0)
    assert apart(some, Tso(9), large_bytes=size, alone=False) == (some, 9, 0)


def test_each_is_joined_with_its_prewrite_and_a_fake_gives_way() -> None:
    fake, beside, large = commit(8, 8, None), commit(4, 4, None), commit(6, 5, 5_000)
    orphan, first = commit(7, 1, None), commit(4, 3)
    reading = BatchReading([first, beside, large, orphan, fake], 1_000)
    assert (reading.commits, reading.orphans) == ([first, large, fake], [orphan])
    assert reading.places == [first.place, large.place, fake.place, first.prewrite]
    assert [reading.commits[number] for number in reading.large] == [large]
    commits = [commit_binlog(Tso(3), Tso(4)), commit_binlog(Tso(5), Tso(6))]
    prewrite = prewrite_binlog(Tso(3), prewrite_value=b"rows")
    assert reading.joined([*commits, binlogs.fake(Tso(8)), prewrite]) == [
        CommittedBinlog(Tso(3), Tso(4), join(prewrite, commits[0])),
        CommittedBinlog(Tso(5), Tso(6), commits[1]),
        CommittedBinlog(Tso(8), Tso(8), binlogs.fake(Tso(8))),
    ]
    assert reading.joined([*reversed(commits), binlogs.fake(Tso(8)), prewrite]) == 4
