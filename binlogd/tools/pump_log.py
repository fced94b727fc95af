"""A Pump's value log, ours or the Go Pump's: its records as written, and its transactions.

Transactions come in commit order, each commit joined with its prewrite. Where they stand is looked
up in the shard's index, if there is one and it can be read; what it does not cover (all of it,
for a Go Pump's) is scanned once into a temporary database, so that memory stays bounded however
long the log is. A binlogd that runs on the same directory is not disturbed.

Nothing is skipped: damaged bytes end the reading with their place. What the last segment ends in
may be a record that is just being written, if `log.scan` says so; it is not there yet.
"""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptIndex, CorruptRecord
from binlogd.log.directory import ShardDirectory
from binlogd.log.drive import segment_batches
from binlogd.log.index_file import marks_of
from binlogd.log.pointer import FIRST, FileId, ValuePointer, segment_name
from binlogd.log.record import decode, end_of, size_of
from binlogd.log.tally import fits
from binlogd.tools.transaction import CommitWindow, FilePosition, Meter
from binlogd.tso import Tso
from binlogd.wire.joining import joined as joined_records
from binlogd.wire.peek import peek

PAGE_ROWS = 1000
OPEN_FILES_MAX = 16
BATCH_ROWS = 10_000

_SCHEMA = """
CREATE TABLE prewrites (start_ts INTEGER PRIMARY KEY, fid INTEGER, offset INTEGER, length INTEGER);
CREATE TABLE commits (commit_ts INTEGER, start_ts INTEGER, fid INTEGER, offset INTEGER,
    length INTEGER, PRIMARY KEY (commit_ts, start_ts)) WITHOUT ROWID;
"""
_COMMITS = (
    "SELECT commit_ts, start_ts, fid, offset, length FROM {}.commits"
    " WHERE (commit_ts, start_ts) > (:ts, :start) AND commit_ts <= :stop"
    " AND commit_ts <> start_ts"
)
_PREWRITE = "SELECT fid, offset, length FROM {}.prewrites WHERE start_ts = :start"
_ONLY = " AND commit_ts IN (SELECT value FROM json_each(:only))"


class Joined(NamedTuple):
    """A commit with its prewrite; without it (`prewrite_place` None), the commit alone."""

    commit_ts: Tso
    start_ts: Tso
    payload: bytes
    place: FilePosition
    prewrite_place: FilePosition | None


def log_records(
    path: Path, *, start: int = 0, is_last: bool, meter: Meter
) -> Iterator[tuple[int, bytes]]:
    """The records of one segment as (offset, payload), in the order of writing.

    With `is_last` it may end in a torn record. Raises CorruptRecord, OSError.
    """
    size, done = path.stat().st_size, start
    meter.total_bytes += size - start
    for batch in segment_batches(path, start=start, is_last=is_last):
        yield from batch
        end = end_of(*batch[-1])
        meter.read_bytes += end - done
        done = end
    meter.read_bytes += size - done


def shard_records(shard: ShardDirectory, meter: Meter) -> Iterator[tuple[FilePosition, bytes]]:
    """Every record of a shard, in the order of writing. Raises CorruptRecord, OSError."""
    segments = shard.segments()
    for fid, path in segments.items():
        is_last = fid == max(segments)
        for offset, payload in log_records(path, is_last=is_last, meter=meter):
            yield FilePosition(path, offset), payload


def joined(
    shard: ShardDirectory, window: CommitWindow, meter: Meter, only: Sequence[Tso] | None = None
) -> Iterator[Joined]:
    """The transactions of a shard in commit order; fakes are left out. With `only`, those with
    these commit_ts.

    Raises Corrupt, OSError.
    """
    segments = shard.segments()
    with ExitStack() as stack:
        found = stack.enter_context(closing(_Catalogue(shard)))
        found.check(window, only)
        found.scan(segments, meter)
        reader = stack.enter_context(closing(_Reader(segments)))
        for commit_ts, start_ts, place, prewrite in found.commits(window, only):
            payload = joined_records(
                start_ts,
                commit_ts,
                reader.payload(*place),
                None if prewrite is None else reader.payload(*prewrite),
                where=str(shard.directory),
            )
            yield Joined(
                Tso(commit_ts),
                Tso(start_ts),
                payload,
                reader.place(*place),
                None if prewrite is None else reader.place(*prewrite),
            )


def filed_to(shard: ShardDirectory) -> ValuePointer | None:
    """Up to where the shard's index has filed its log; None without one that can be read."""
    with closing(_Catalogue(shard)) as found:
        return found.filed_to if found.has_index else None


_Found = tuple[int, int, int]
"""Number of the segment, offset, length of the payload."""


class _Catalogue:
    """Where each commit and prewrite of a shard stands: the index, and what was scanned."""

    def __init__(self, shard: ShardDirectory) -> None:
        # a temporary database: SQLite keeps it in memory while it is small, then in a file
        self._db = sqlite3.connect("", uri=True, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.executescript(_SCHEMA)
        self.filed_to, self._first_fid = FIRST, FIRST.fid
        self._index = shard.index
        self.has_index = shard.index is not None and self._attach(shard.index)

    def close(self) -> None:
        self._db.close()

    def _attach(self, index: Path) -> bool:
        """Whether the index can be read; if not, the log tells the same, only slower."""
        try:
            self._db.execute("ATTACH ? AS filed", (f"{index.resolve().as_uri()}?mode=ro",))
            marks = marks_of(self._db.execute("SELECT name, value FROM filed.marks").fetchall())
            self._db.execute("SELECT * FROM filed.commits LIMIT 1").fetchall()
            self._db.execute("SELECT * FROM filed.prewrites LIMIT 1").fetchall()
        except (sqlite3.Error, ValueError):  # an error's words may be no text
            return False
        if marks is not None:
            self.filed_to, self._first_fid = marks.head, marks.first_fid
        return marks is not None

    def check(self, window: CommitWindow, only: Sequence[Tso] | None) -> None:
        """Leaves an index alone that lacks what was filed: the log tells the same, only slower."""
        if not self.has_index:
            return
        whole = [(window.start - 1, int(window.stop))]
        spans = whole if only is None else [(ts - 1, int(ts)) for ts in only]
        try:
            is_whole = all(fits(self._db, *each, schema="filed") for each in spans)
        except (sqlite3.Error, ValueError):
            is_whole = False
        if not is_whole:
            self.has_index, self.filed_to, self._first_fid = False, FIRST, FIRST.fid

    def scan(self, segments: Mapping[FileId, Path], meter: Meter) -> None:
        """Notes what the index does not have."""
        prewrites: list[tuple[int, int, int, int]] = []
        commits: list[tuple[int, int, int, int, int]] = []
        for fid, path in segments.items():
            if fid < max(self.filed_to.fid, self._first_fid):
                continue
            start = self.filed_to.offset if fid == self.filed_to.fid else 0
            is_last = fid == max(segments)
            for offset, payload in log_records(path, start=start, is_last=is_last, meter=meter):
                head = peek(payload)
                if head.tp == BinlogType.PREWRITE:
                    prewrites.append((head.start_ts, fid, offset, len(payload)))
                elif head.tp == BinlogType.COMMIT:
                    commits.append((head.commit_ts, head.start_ts, fid, offset, len(payload)))
                if len(prewrites) + len(commits) >= BATCH_ROWS:
                    self._put(prewrites, commits)
        self._put(prewrites, commits)

    def _put(
        self,
        prewrites: list[tuple[int, int, int, int]],
        commits: list[tuple[int, int, int, int, int]],
    ) -> None:
        """A binlog that was sent twice replaces itself."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO main.prewrites VALUES (?, ?, ?, ?)", prewrites)
        self._db.executemany("INSERT OR REPLACE INTO main.commits VALUES (?, ?, ?, ?, ?)", commits)
        self._db.execute("COMMIT")
        prewrites.clear()
        commits.clear()

    def _rows(self, query: str, values: Mapping[str, object]) -> list[Any]:
        try:
            rows = self._db.execute(query, values).fetchall()
            if not all(isinstance(each, int) and each >= 0 for row in rows for each in row):
                raise ValueError("a row of it is no row of numbers")
        except (sqlite3.Error, ValueError) as error:
            raise CorruptIndex(self._index or "the index", str(error)) from error
        return rows

    def commits(
        self, window: CommitWindow, only: Sequence[Tso] | None = None
    ) -> Iterator[tuple[int, int, _Found, _Found | None]]:
        """commit_ts, start_ts, and where the commit and its prewrite stand; in commit order."""
        names = ("main", "filed") if self.has_index else ("main",)
        query = _COMMITS if only is None else _COMMITS + _ONLY
        commits = " UNION ALL ".join(query.format(name) for name in names)
        page = f"{commits} ORDER BY commit_ts, start_ts LIMIT {PAGE_ROWS}"
        prewrite = " UNION ALL ".join(_PREWRITE.format(name) for name in names)
        last = (window.start - 1, 1 << 62)
        wanted = msgspec.json.encode(only).decode() if only is not None else ""
        while True:  # ends with a page that is not full
            values = {"ts": last[0], "start": last[1], "stop": window.stop, "only": wanted}
            rows = self._rows(page, values)
            for commit_ts, start_ts, *place in rows:
                if (commit_ts, start_ts) == last:
                    continue  # the index has got it since
                last = commit_ts, start_ts
                found = next(iter(self._rows(prewrite, {"start": start_ts})), None)
                yield commit_ts, start_ts, (place[0], place[1], place[2]), found
            if len(rows) < PAGE_ROWS:
                return


class _Reader:
    """Single records, by places; a few files are kept open."""

    def __init__(self, segments: Mapping[FileId, Path]) -> None:
        self._directory = next(iter(segments.values())).parent if segments else Path()
        self._paths = dict(segments)
        self._open: OrderedDict[int, int] = OrderedDict()

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def place(self, fid: int, offset: int, _length: int) -> FilePosition:
        path = self._paths.get(FileId(fid))
        if path is None:  # begun since, or gone
            path = self._paths[FileId(fid)] = self._directory / segment_name(FileId(fid))
        return FilePosition(path, offset)

    def payload(self, fid: int, offset: int, length: int) -> bytes:
        """Raises CorruptRecord, OSError."""
        path = self.place(fid, offset, length).path
        descriptor = self._open.get(fid)
        if descriptor is None:
            if len(self._open) >= OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1])
            try:
                descriptor = self._open[fid] = os.open(path, os.O_RDONLY)
            except FileNotFoundError as error:
                raise CorruptRecord(path, offset, "the segment is not there") from error
        stored = os.pread(descriptor, size_of(length), offset)
        payload = decode(stored, length=length)
        if isinstance(payload, str):
            raise CorruptRecord(path, offset, payload)
        return payload
