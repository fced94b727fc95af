"""Rows of an index as the commits that they tell of: the compiled form takes a column that may be
nothing for what it is."""

from __future__ import annotations

from binlogd.log.pointer import FileId, Place
from binlogd.log.record import HEADER_BYTES
from binlogd.pump.shard.found import found_commits


def test_a_commit_is_told_with_its_prewrite_and_without() -> None:
    whole, alone = found_commits([(7, 5, 1, 30, 10, 0, 2, 20), (9, 9, 1, 60, 10, None, None, None)])
    assert (whole.commit_ts, whole.start_ts) == (7, 5)
    assert (whole.place, whole.prewrite) == (Place(FileId(1), 30, 10), Place(FileId(0), 2, 20))
    assert whole.whole_bytes == 30 + 2 * HEADER_BYTES
    assert (alone.commit_ts, alone.start_ts) == (9, 9)
    assert (alone.place, alone.prewrite) == (Place(FileId(1), 60, 10), None)
    assert alone.whole_bytes == 10 + HEADER_BYTES
