"""What tasks of an export read of an archive: by its index, without a pass over the log before.

Invariant. Each transaction up to a moment is read by the part that its Commit stands in, and its
prewrite is fetched from where the index says. What goes through the driver grows with segments and
DDL, never with transactions.
Why it holds. The index of a segment has every Commit of it with the place of its prewrite. A binlog
that was sent twice stands there twice, and has its prewrite with one of them: the other is passed
over, when that one is found. Any other Commit without a prewrite ends the export.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from binlogd.archive.catalog import read_catalog, removed
from binlogd.archive.files import log_files, segment_path
from binlogd.archive.places import ArchivedIndex, commits_of
from binlogd.archive.store import GAP_BYTES, ArchiveStore, opened
from binlogd.errors import Corrupt, CorruptRecord, MalformedBinlog
from binlogd.log.record import HEADER_BYTES, payload_at, wrong_at
from binlogd.log.segment_index import SegmentIndex
from binlogd.snapshot.log.datums import Longs, Mask, longs
from binlogd.snapshot.log.events import TOGETHER_BYTES, CommittedPrewrite, WantedTables, events
from binlogd.snapshot.log.prewrites import DdlCommit, ddl_commits
from binlogd.snapshot.log.reader import tasks
from binlogd.snapshot.log.scan import RowsOfTask
from binlogd.tso import MAX_TS, Tso

TASK_BYTES, TASK_BYTES_MIN = 32 << 20, 256 << 10
"""Of the log that a task reads, about."""
TASKS_A_CORE = 2
"""Of a log that is small for the cluster, so that each core has some."""
LOOK_BYTES = 256 << 20
"""Of the log whose index a task looks through."""

LOOKED = pa.schema([("first_ts", pa.int64()), ("ddl", pa.binary())])
"""What `looked` found in the segments of one task."""


class SegmentPart(NamedTuple):
    """Some of the commits of a segment: of a row group of its index one of so many equal pieces."""

    segment: SegmentIndex
    group: int
    piece: int
    pieces: int

    @property
    def size_bytes(self) -> int:
        """Of the log, about."""
        return self.segment.size_bytes // (max(1, len(self.segment.places) - 1) * self.pieces)


def parts(segments: Iterable[SegmentIndex], upto: Tso, cores: int) -> list[tuple[SegmentPart, ...]]:
    """What each task reads of what was committed up to a moment, by the catalog alone."""
    wanted = [each for each in segments if each.transactions and each.min_ts <= upto]
    fair = sum(each.size_bytes for each in wanted) // (TASKS_A_CORE * cores)
    task_bytes = min(max(fair, TASK_BYTES_MIN), TASK_BYTES)
    found = []
    for segment in wanted:
        groups = [number for number, each in enumerate(segment.places[:-1]) if each.min_ts <= upto]
        whole = SegmentPart(segment, 0, 0, 1)
        # one that may grow has no groups: its pieces would be of different files
        pieces = max(1, -(-whole.size_bytes // task_bytes)) if groups else 1
        found += [
            whole._replace(group=group, piece=piece, pieces=pieces)
            for group in groups or [0]
            for piece in range(pieces)
        ]
    return tasks(found, task_bytes)


def looks(segments: Iterable[SegmentIndex]) -> list[tuple[SegmentPart, ...]]:
    """What each task of `looked` looks through."""
    found = (SegmentPart(each, 0, 0, 1) for each in segments if each.transactions)
    return tasks(found, LOOK_BYTES)


def slim(segment: SegmentIndex) -> SegmentIndex:
    """Without what tasks do not need: each is handed all of them."""
    return msgspec.structs.replace(segment, tables={}, sync=(), open=(), carried=None)


def rows_of(
    url: str, work: Sequence[tuple[SegmentPart, ...]], upto: Tso, wanted: WantedTables
) -> RowsOfTask:
    """The row changes that each task reads."""

    def changes(number: int) -> Iterator[pa.RecordBatch]:
        store = opened(url)
        for part in work[number]:
            yield from events(prewrites(store, part, upto), wanted)

    return changes


def looked(url: str, work: Sequence[tuple[SegmentPart, ...]]) -> RowsOfTask:
    """`LOOKED`: the first start_ts of each task's segments, and the Commits of DDL there."""

    def look(number: int) -> Iterator[pa.RecordBatch]:
        store, first_ts, ddl = opened(url), int(MAX_TS), list[DdlCommit]()
        for part in work[number]:
            groups = range(len(part.segment.places) - 1)
            for batch in commits_of(store, part.segment, groups):
                first_ts = min(first_ts, int(longs(batch, "start_ts").min(initial=first_ts)))
                if part.segment.ddl_jobs:
                    ddl += _ddl(store, part.segment, batch)
        columns = [pa.array([first_ts], pa.int64()), pa.array([msgspec.msgpack.encode(ddl)])]
        yield pa.RecordBatch.from_arrays(columns, schema=LOOKED)

    return look


def _ddl(store: ArchiveStore, segment: SegmentIndex, batch: pa.RecordBatch) -> list[DdlCommit]:
    at, length = longs(batch, "offset"), longs(batch, "length")
    order = np.argsort(at)
    try:
        found = _payloads(store, (segment.shard, segment.fid), at[order], length[order])
        return ddl_commits(list(found))
    except MalformedBinlog as error:
        name = segment_path(segment.shard, segment.fid)
        raise Corrupt(f"{store.url}/{name}: a Commit is no binlog: {error}") from error


def prewrites(store: ArchiveStore, part: SegmentPart, upto: Tso) -> Iterator[CommittedPrewrite]:
    """The prewrites of what a part committed up to a moment, in any order.

    Raises CorruptRecord, Corrupt.
    """
    table = pa.Table.from_batches(commits_of(store, part.segment, [part.group])).combine_chunks()
    begin, end = (table.num_rows * each // part.pieces for each in (part.piece, part.piece + 1))
    for batch in table.slice(begin, end - begin).to_batches():
        commit_ts, fid = longs(batch, "commit_ts"), longs(batch, "prewrite_fid")
        at, length = longs(batch, "prewrite_offset"), longs(batch, "prewrite_length")
        is_wanted = commit_ts <= upto
        odd = is_wanted & (fid < 0)
        if odd.any():
            _check_sent_twice(store, longs(batch, "start_ts"), commit_ts, fid, odd)
        for each in np.unique(fid[is_wanted & (fid >= 0)]).tolist():
            chosen = np.flatnonzero(is_wanted & (fid == each))
            chosen = chosen[np.argsort(at[chosen], kind="stable")]
            of = part.segment.shard, each
            payloads = _payloads(store, of, at[chosen], length[chosen])
            path, places = f"{store.url}/{segment_path(*of)}", at[chosen].tolist()
            yield from map(
                CommittedPrewrite, repeat(path), places, payloads, commit_ts[chosen].tolist()
            )


def _payloads(
    store: ArchiveStore, of: tuple[int, int], at: Longs, length: Longs
) -> Iterator[bytes]:
    """The payloads of some records of a segment (shard, number), by ascending places. Some
    megabytes are fetched at a time, with what little lies between. Raises CorruptRecord, Behind."""
    if not len(at):
        return
    name = segment_path(*of)
    ends = at + HEADER_BYTES + length
    is_far = at[1:] - ends[:-1] > GAP_BYTES
    is_full = np.diff(np.cumsum(ends - at) // TOGETHER_BYTES) > 0
    for some in np.split(np.arange(len(at)), np.flatnonzero(is_far | is_full) + 1):
        begin = int(at[some[0]])
        try:
            ranges = [(begin, int(ends[some].max()) - begin)]
            (stretch,) = log_files(store).read_ranges(*of, ranges)
        except FileNotFoundError as error:
            gone = "the segment is not there"
            raise removed(store, *of) or CorruptRecord(
                f"{store.url}/{name}", begin, gone
            ) from error
        for place in (at[some] - begin).tolist():
            payload = payload_at(stretch, place)
            if payload is None:
                wrong = wrong_at(stretch, place)
                raise CorruptRecord(f"{store.url}/{name}", begin + place, wrong)
            yield payload


def _check_sent_twice(
    store: ArchiveStore, start_ts: Longs, commit_ts: Longs, fid: Longs, odd: Mask
) -> None:
    """Raises Corrupt where no Commit of a transaction has its prewrite. Most that were sent twice
    stand side by side; the index is asked about the others."""
    beside = (fid >= 0) & np.isin(commit_ts, commit_ts[odd])
    one, other = (
        set(zip(start_ts[of].tolist(), commit_ts[of].tolist(), strict=True)) for of in (odd, beside)
    )
    if not one - other:
        return
    index = ArchivedIndex(store, read_catalog(store))
    for start, commit in sorted(one - other):
        found = index.found(Tso(commit - 1), Tso(commit))
        if not any(each.start_ts == start and each.prewrite_fid >= 0 for each in found):
            raise Corrupt(
                f"{store.url}: transaction {start} committed at {commit}: the log does not hold"
                " its Prewrite"
            )
