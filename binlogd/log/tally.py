"""What was filed of each stretch of a log, so that a commit that its index has lost is missed.

SQLite's pages have no checksums: a flipped bit in one may take a row away, or move it to another
timestamp, where nobody asks for it. What a row leads to is compared with the record; that none is
missing is told by these. A stretch is some thousand commits; its tally counts them, and sums up
what their rows hold.

A stretch that does not fit its tally may have a commit that was sent twice, and is filed with the
second: then the log decides. An index of an older binlogd has no tallies of what it filed.
Source: LevelDB, the original's index, has checksums in its blocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from binlogd.log.pointer import FileId, ValuePointer
from binlogd.tso import MAX_TS, NO_TS

if TYPE_CHECKING:
    from mypy_extensions import i64

COMMITS_MAX = 4_096
"""A stretch with more ends."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS tallies (
    fid INTEGER, offset INTEGER, end_fid INTEGER, end_offset INTEGER,
    min_ts INTEGER, max_ts INTEGER, commits INTEGER, total INTEGER,
    PRIMARY KEY (fid, offset)) WITHOUT ROWID;
"""
SAVED = "INSERT OR REPLACE INTO tallies VALUES (?,?,?,?,?,?,?,?)"
FORGOTTEN = "DELETE FROM tallies WHERE end_fid < ?"
_PRIME: Final = (1 << 31) - 1
"""One byte of a number that changes changes what is left of it."""
_SUM = (
    f"commit_ts % {_PRIME} + 3 * (start_ts % {_PRIME}) + 5 * (fid % {_PRIME})"
    f" + 7 * (offset % {_PRIME}) + 11 * (length % {_PRIME})"
)
UNFIT = f"""
SELECT * FROM tallies AS t WHERE max_ts > ? AND min_ts <= ? AND (commits, total) IS NOT (
    SELECT count(*), coalesce(sum({_SUM}), 0) FROM commits AS c
    WHERE c.commit_ts BETWEEN t.min_ts AND t.max_ts
        AND (c.fid, c.offset) >= (t.fid, t.offset) AND (c.fid, c.offset) < (t.end_fid, t.end_offset)
)
"""
"""Rows of `tallies` with a commit behind a timestamp, and up to one, whose stretch has something
else than was filed."""
CommitRow = tuple[int, int, int, int, int]
"""commit_ts, start_ts, fid, offset, length."""


class Tally(NamedTuple):
    """Of the commits between two places of a log; a row of `tallies`."""

    fid: int
    offset: int
    end_fid: int
    end_offset: int
    min_ts: int
    max_ts: int
    commits: int
    total: int

    @property
    def begin(self) -> ValuePointer:
        """Where the stretch begins."""
        return ValuePointer(FileId(self.fid), self.offset)

    @property
    def end(self) -> ValuePointer:
        """Behind its last record."""
        return ValuePointer(FileId(self.end_fid), self.end_offset)


def tally_with(
    before: Tally | None, begin: ValuePointer, end: ValuePointer, commits: Sequence[CommitRow]
) -> Tally:
    """What follows `before`, with it; by itself where that is full, or ends elsewhere."""
    if before is None or before.commits >= COMMITS_MAX or before.end != begin:
        before = Tally(*begin, *begin, MAX_TS, NO_TS, 0, 0)
    if not commits:
        return before._replace(end_fid=end.fid, end_offset=end.offset)
    low, high, total = _summed(before, commits)
    return Tally(*before[:2], *end, low, high, before.commits + len(commits), total)


def _summed(before: Tally, commits: Sequence[CommitRow]) -> tuple[int, int, int]:
    """The smallest commit_ts, the largest, and the total, with those of before. Hot."""
    low: i64 = before.min_ts
    high: i64 = before.max_ts
    total: i64 = before.total
    for row in commits:
        commit_ts: i64 = row[0]
        start_ts: i64 = row[1]
        fid: i64 = row[2]
        offset: i64 = row[3]
        length: i64 = row[4]
        if commit_ts < low:
            low = commit_ts
        if commit_ts > high:
            high = commit_ts
        total += commit_ts % _PRIME + 3 * (start_ts % _PRIME) + 5 * (fid % _PRIME)
        total += 7 * (offset % _PRIME) + 11 * (length % _PRIME)
    return low, high, total


def fits(database: sqlite3.Connection, after: int, upto: int, *, schema: str = "main") -> bool:
    """Whether an index has all that was filed of the stretches with a commit in (after, upto]; one
    without tallies is believed. Raises sqlite3.Error."""
    names = f"SELECT 1 FROM {schema}.sqlite_master WHERE name = 'tallies'"
    if database.execute(names).fetchone() is None:
        return True
    query = UNFIT.replace("FROM tallies", f"FROM {schema}.tallies")
    query = query.replace("FROM commits", f"FROM {schema}.commits")
    return database.execute(query, (after, upto)).fetchone() is None
