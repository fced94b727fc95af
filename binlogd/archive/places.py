"""Where the transactions of a log stand: out of an archive, a shard's index, or the log itself.

Three ways to the same answer. Paths are relative to the store of the log, so that whoever reads
the payloads need not know which it was.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from binlogd.archive.catalog import (
    ArchiveCatalog,
    TailPart,
    behind,
    read_catalog,
    removed,
    segments_in,
)
from binlogd.archive.cuts import cuts, transactions
from binlogd.archive.files import MOVES_MAX, LogFiles, commits_path, segment_path
from binlogd.archive.store import ArchiveStore
from binlogd.errors import Behind, ConfigError, Corrupt, CorruptIndex, Refused
from binlogd.log.directory import ShardDirectory, shards_below
from binlogd.log.drive import segment_batches
from binlogd.log.gone import gone_ts
from binlogd.log.index_file import MARKS_QUERY, Marks, marks_of
from binlogd.log.pointer import FIRST, segment_name
from binlogd.log.record import extend
from binlogd.log.segment_index import Fold, LogPosition, PlacesStretch, SegmentIndex, resolved
from binlogd.log.tally import fits
from binlogd.tso import MAX_TS, NO_TS, Tso

_COLUMNS = (
    "commit_ts",
    "start_ts",
    "offset",
    "length",
    "prewrite_fid",
    "prewrite_offset",
    "prewrite_length",
)
PLACES = pa.schema([(name, pa.int64()) for name in _COLUMNS])
GROUP_ROWS = 1 << 16
"""Commits that are fetched together, about a megabyte."""
BATCH_ROWS = 1 << 13
"""Of these so many at a time are objects of Python."""


# --- an archive ----------------------------------------------------------------------------


def encode_places(places: Sequence[LogPosition]) -> tuple[bytes, tuple[PlacesStretch, ...]]:
    """The commits of one segment as a Parquet file, by commit_ts, and its stretches."""
    ordered = sorted(places)
    columns = [pa.array([getattr(each, name) for each in ordered], pa.int64()) for name in _COLUMNS]
    return encode_table(pa.Table.from_arrays(columns, schema=PLACES))


def encode_table(table: pa.Table) -> tuple[bytes, tuple[PlacesStretch, ...]]:
    """The same of a table with these columns, in order: a stretch for each row group, and one for
    the end of the file, which is read with any of them."""
    sink = BytesIO()
    pq.write_table(
        table, sink, compression="zstd", write_page_checksum=True, row_group_size=GROUP_ROWS
    )
    content, found, begin = sink.getvalue(), [], 0
    metadata = pq.read_metadata(BytesIO(content))
    for number in range(metadata.num_row_groups if table.num_rows else 0):
        group = metadata.row_group(number)
        columns = [group.column(at) for at in range(group.num_columns)]
        end = max(_begin(each) + each.total_compressed_size for each in columns)
        of = columns[0].statistics
        found.append(PlacesStretch(end, extend(0, content[begin:end]), of.min, of.max))
        begin = end
    return content, (*found, PlacesStretch(len(content), extend(0, content[begin:])))


def _begin(column: pq.ColumnChunkMetaData) -> int:
    offsets = (column.dictionary_page_offset, column.data_page_offset)
    return int(min(each for each in offsets if each is not None))


class Unwanted(NamedTuple):
    """Ids of tables that a reader does not want, and the DDL jobs that they were told by."""

    tables: Collection[int]
    jobs: Container[int]


class ArchivedIndex:
    """Where transactions stand, out of the index files of an archive.

    What has rows of `unwanted` tables alone is passed over, where the DDL jobs of the stretch are
    known: another one may make one of them wanted.
    """

    def __init__(
        self,
        store: ArchiveStore,
        catalog: ArchiveCatalog,
        unwanted: Callable[[], Unwanted] | None = None,
    ) -> None:
        self._store, self._catalog, self._unwanted = store, catalog, unwanted
        self._files = LogFiles(store, catalog)

    def resolved_ts(self) -> Tso:
        """Every transaction up to here is there, or was collected: what the catalog says."""
        return Tso(self._catalog.resolved_ts)

    def gone_ts(self) -> Tso:
        """Behind this nothing was garbage collected: what the directory said when the archive was
        begun. Raises Refused where nobody knows."""
        late = [shard for shard, fid in self._catalog.first_fids().items() if fid]
        if late and not self._catalog.gone_ts:
            raise Refused(
                f"{self._store.url}: the log of shard {min(late)} begins late, and the archive does"
                " not tell up to when binlogs are gone: archive it anew, elsewhere"
            )
        return Tso(max(self._catalog.gone_ts, self._catalog.leaving_ts))

    def begin(self, after: Tso, upto: Tso) -> Tso:
        """Where a read of (after, upto] that is planned now begins: NO_TS is the first moment
        behind which all is there. Raises Behind for one before that."""
        return self._from(after, upto, Tso(max(self._catalog.gone_ts, self._catalog.leaving_ts)))

    def _from(self, after: Tso, upto: Tso, gone_ts: Tso) -> Tso:
        if after < gone_ts if after else NO_TS < upto <= gone_ts:
            raise behind(self._store, after, gone_ts)
        return max(after, gone_ts)

    def has_any(self, after: Tso, upto: Tso) -> bool:
        """Whether something may have committed in (after, upto], by the catalog alone."""
        return bool(segments_in(self._store, self._catalog, after, upto))

    def transactions(self, after: Tso, upto: Tso) -> int:
        """About how many committed in (after, upto], by the catalog alone."""
        return transactions(segments_in(self._store, self._catalog, after, upto), after, upto)

    def bounds(self, after: Tso, upto: Tso, every: int) -> list[Tso]:
        """Where parts of about so many transactions end, by the catalog alone."""
        return cuts(self._wanted(after, upto), after, upto, every)

    def found(self, after: Tso, upto: Tso, *, at_most: int = 0) -> Iterator[LogPosition]:
        """The commits in (after, upto] in commit order, each once; the first `at_most` at least,
        if that is not 0. A segment is opened when its first commit_ts is reached. What was
        announced to go is still found: whoever planned before is reading it. Raises Behind,
        Corrupt."""
        del at_most  # what is not asked for is not read
        after = self._from(after, upto, Tso(self._catalog.gone_ts))
        wanted = sorted(self._wanted(after, upto), key=lambda each: each.min_ts)
        opened = ((each.min_ts, self._of(each, after, upto)) for each in wanted)
        return _once(merged_lazily(opened))

    def path(self, shard: int, fid: int) -> str:
        """The file of a segment, relative to the store."""
        return segment_path(shard, fid)

    def read_ranges(
        self, store: ArchiveStore, shard: int, fid: int, ranges: Sequence[tuple[int, int]]
    ) -> list[bytes]:
        """The bytes of each (offset, length) of a segment, ascending. Raises FileNotFoundError."""
        return self._files.read_ranges(shard, fid, ranges)

    def why_removed(self, shard: int, fid: int, asked_ts: int) -> Behind | None:
        """Why a segment is not there that was named; None: it should be."""
        return removed(self._store, shard, fid, asked_ts)

    def reaching_back(self, segment: SegmentIndex, fid: int) -> Iterator[LogPosition]:
        """The commits of a segment whose prewrite stands in one before segment `fid`."""

        def reaches_back(batch: pa.RecordBatch) -> pa.Array:
            of = batch.column(_COLUMNS.index("prewrite_fid"))
            return pc.and_(pc.greater_equal(of, 0), pc.less(of, fid))

        return self._rows(segment, range(len(segment.places) - 1), reaches_back)

    def _wanted(self, after: Tso, upto: Tso) -> list[SegmentIndex]:
        found = segments_in(self._store, self._catalog, after, upto)
        if self._unwanted is None:
            return found
        tables, jobs = self._unwanted()
        if any(job not in jobs for each in found for job in each.ddl_jobs):
            return found
        unsure = [each for each in found if each.carried is None]
        return [
            each
            for each in found
            if not each.has_none_but(tables) or any(_may_share(each, other) for other in unsure)
        ]

    def _of(self, segment: SegmentIndex, after: Tso, upto: Tso) -> Iterator[LogPosition]:
        def inside(batch: pa.RecordBatch) -> pa.Array:
            commit_ts = batch.column(0)
            return pc.and_(pc.greater(commit_ts, after), pc.less_equal(commit_ts, upto))

        met = [
            number
            for number, group in enumerate(segment.places[:-1])
            if group.max_ts > after and group.min_ts <= upto
        ]
        return self._rows(segment, met, inside)

    def _rows(
        self,
        segment: SegmentIndex,
        groups: Sequence[int],
        are_wanted: Callable[[pa.RecordBatch], pa.Array],
    ) -> Iterator[LogPosition]:
        for batch in commits_of(self._store, segment, groups):
            columns = [column.to_pylist() for column in batch.filter(are_wanted(batch)).columns]
            for commit, start, *place in zip(*columns, strict=True):
                yield LogPosition(commit, start, segment.shard, segment.fid, *place)


def commits_of(
    store: ArchiveStore, segment: SegmentIndex, groups: Sequence[int], moves: int = MOVES_MAX
) -> Iterator[pa.RecordBatch]:
    """`PLACES` of some row groups of `segment.places`, some thousand at a time; all, where the
    catalog does not name any. Raises Corrupt."""
    name = commits_path(segment)
    try:
        yield from _batches(store, name, segment, groups)
    except (pa.ArrowException, OSError) as error:
        is_gone = isinstance(error, FileNotFoundError)
        if is_gone and moves and isinstance(segment, TailPart):  # it is read whole, so at its begin
            yield from _elsewhere(store, segment, moves - 1)
            return
        why = removed(store, segment.shard, segment.fid) if is_gone else None
        raise why or Corrupt(f"{store.url}/{name}: {error}") from error


def _elsewhere(store: ArchiveStore, part: TailPart, moves: int) -> Iterator[pa.RecordBatch]:
    """The commits of a part that gave way to another one, or to its segment."""
    found = [PLACES.empty_table()]
    for each in segments_in(store, read_catalog(store), Tso(part.min_ts - 1), Tso(part.max_ts)):
        if (each.shard, each.fid) == (part.shard, part.fid):
            for batch in commits_of(store, each, range(len(each.places) - 1), moves):
                at = batch.column(_COLUMNS.index("offset"))
                inside = pc.and_(pc.greater_equal(at, part.begin), pc.less(at, part.end))
                found.append(pa.Table.from_batches([batch.filter(inside)]))
    yield from _in_order(pa.concat_tables(found)).to_batches(BATCH_ROWS)


def places_together(store: ArchiveStore, parts: Iterable[TailPart]) -> bytes:
    """The commits of some parts as `encode_places` has them. Raises Corrupt."""
    found = [batch for part in parts for batch in commits_of(store, part, ())]
    return encode_table(_in_order(pa.Table.from_batches(found, PLACES)))[0]


def _in_order(table: pa.Table) -> pa.Table:
    order = [(name, "ascending") for name in ("commit_ts", "start_ts", "offset")]
    return table.sort_by(order).combine_chunks()


def _batches(
    store: ArchiveStore, name: str, segment: SegmentIndex, wanted: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    if not segment.places:
        content = store.read(name)
        if segment.places_crc32c not in (None, extend(0, content)):
            raise OSError("its checksum is not the one in the catalog")
        yield from _rows_of(content, None)
        return
    *groups, end = segment.places
    begins = [0, *(each.end for each in groups)]
    parts: list[bytes] = []
    for number in wanted:
        group = groups[number]
        ranges = [(begins[number], group.end - begins[number])]
        if not parts:  # the end comes with the first group that is read
            ranges.append((begins[-1], end.end - begins[-1]))
        parts[:1] = store.read_ranges(name, ranges)
        for part, stretch in zip(parts, (group, end), strict=True):
            if extend(0, part) != stretch.crc32c:
                raise OSError("its checksum is not the one in the catalog")
        yield from _rows_of(_with_holes(end.end, (begins[number], begins[-1]), parts), number)


def _with_holes(size: int, begins: Iterable[int], parts: Iterable[bytes]) -> bytearray:
    """A file with what was read of it; where nothing was, its pages are never touched."""
    content = bytearray(size)
    for begin, part in zip(begins, parts, strict=True):
        content[begin : begin + len(part)] = part
    return content


def _rows_of(content: bytes | bytearray, group: int | None) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)), page_checksum_verification=True)
    groups = None if group is None else [group]
    yield from file.iter_batches(BATCH_ROWS, row_groups=groups, use_threads=False)


def merged_lazily(
    streams: Iterable[tuple[int, Iterator[LogPosition]]],
) -> Iterator[LogPosition]:
    """Ascending streams as one, each with a number that its first item is not below, by which they
    come. A stream is asked for nothing before its number is reached, and let go at its end."""
    coming = deque(streams)
    heads: list[tuple[LogPosition, int, Iterator[LogPosition]]] = []
    begun = 0
    while coming or heads:  # ends with the last stream
        while coming and (not heads or coming[0][0] <= heads[0][0].commit_ts):
            stream = coming.popleft()[1]
            begun += 1
            if (first := next(stream, None)) is not None:
                heappush(heads, (first, begun, stream))
        if not heads:
            continue
        found, number, stream = heads[0]
        yield found
        if (following := next(stream, None)) is None:
            heappop(heads)
        else:
            heapreplace(heads, (following, number, stream))


def _may_share(one: SegmentIndex, other: SegmentIndex) -> bool:
    """Whether a Commit may stand in both, sent twice: its prewrite is with the first of them only,
    so who reads the other needs both."""
    overlap = one.min_ts <= other.max_ts and other.min_ts <= one.max_ts
    return one.shard == other.shard and overlap


def _once(found: Iterable[LogPosition]) -> Iterator[LogPosition]:
    """A binlog that was sent twice stands in the log twice; its prewrite is with one of them."""
    held: LogPosition | None = None
    for each in found:
        if held is not None and each[:2] == held[:2]:
            held = each if held.prewrite_fid < 0 else held
            continue
        if held is not None:
            yield held
        held = each
    if held is not None:
        yield held


# --- a data directory ------------------------------------------------------------------------

_FOUND = """
SELECT c.commit_ts, c.start_ts, c.fid, c.offset, c.length,
    coalesce(p.fid, -1), coalesce(p.offset, 0), coalesce(p.length, 0)
FROM commits c LEFT JOIN prewrites p ON p.start_ts = c.start_ts
WHERE c.commit_ts > ? AND c.commit_ts <= ? AND c.start_ts <> c.commit_ts
ORDER BY c.commit_ts, c.start_ts LIMIT ?
"""
_COUNTED = """
SELECT count(*) FROM commits WHERE commit_ts > ? AND commit_ts <= ? AND start_ts <> commit_ts
"""


@dataclass(frozen=True, slots=True)
class _Indexed:
    number: int
    index: Path

    def marks(self) -> Marks:
        with self._opened() as database:
            return self._marks(database)

    def found(self, after: Tso, upto: Tso, at_most: int) -> Iterator[LogPosition]:
        """All of one moment: garbage that is collected meanwhile takes nothing away."""
        with self._opened() as database:
            database.execute("BEGIN")
            marks = self._marks(database)
            if NO_TS < after < marks.gc_ts:
                raise Behind(after, marks.gc_ts)
            rows = database.execute(_FOUND, (after, upto, at_most or -1)).fetchall()
            if not all(isinstance(each, int) and each >= -1 for row in rows for each in row):
                raise CorruptIndex(self.index, "a row of it is no row of numbers")
        for commit, start, *place in rows:
            yield LogPosition(commit, start, self.number, *place)

    def count(self, after: Tso, upto: Tso) -> int:
        with self._opened() as database:
            ((found,),) = database.execute(_COUNTED, (after, upto))
            return int(found)

    def fits(self, after: Tso) -> bool:
        """Whether it has what was filed behind a timestamp; else the log has to tell."""
        with self._opened() as database:
            return fits(database, after, MAX_TS)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        uri = f"{self.index.resolve().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
                yield database
        except (sqlite3.Error, ValueError) as error:  # an error's words may be no text
            raise CorruptIndex(self.index, str(error)) from error

    def _marks(self, database: sqlite3.Connection) -> Marks:
        return marks_of(database.execute(MARKS_QUERY).fetchall()) or Marks()


class DirectoryIndex:
    """Where those of a data directory stand. A shard without an index has its log read once."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.shards = shards_below(data_dir)
        """By number."""
        if not self.shards:
            raise ConfigError(f"{data_dir}: is no data directory of a Pump, and no archive")
        self._fitting: dict[int, tuple[Tso, bool]] = {}
        self._scanned: dict[int, tuple[SegmentIndex, list[LogPosition]]] = {}

    def resolved_ts(self) -> Tso:
        """The lowest watermark of the shards, as they were filed last."""
        indexes = [self._index(number) for number in range(len(self.shards))]
        marks = [index.marks().max_commit_ts for index in indexes if index is not None]
        before = self._sizes()
        scanned = [self._scan(number)[0] for number, index in enumerate(indexes) if index is None]
        is_whole = not marks and self._sizes() == before
        if scanned:
            marks.append(resolved(scanned, len(scanned), is_whole=is_whole))
        return min(marks, default=NO_TS)

    def gone_ts(self) -> Tso:
        """What garbage collection wrote down before it removed a file."""
        return max(
            (gone_from(number, each) for number, each in enumerate(self.shards)), default=NO_TS
        )

    def begin(self, after: Tso, upto: Tso) -> Tso:
        """Where it was asked for: `found` raises Behind for what is gone."""
        return after

    def bounds(self, after: Tso, upto: Tso, every: int) -> list[Tso]:
        """Where parts of so many transactions end."""
        ends = (Tso(each.commit_ts) for each in self.found(after, upto))
        return [*(each for each in islice(ends, every - 1, None, every) if each < upto), upto]

    def has_any(self, after: Tso, upto: Tso) -> bool:
        """Whether something committed in (after, upto]."""
        return next(self.found(after, upto, at_most=1), None) is not None

    def _sizes(self) -> list[int]:
        return [path.stat().st_size for shard in self.shards for path in shard.segments().values()]

    def found(self, after: Tso, upto: Tso, *, at_most: int = 0) -> Iterator[LogPosition]:
        """As of an archive. Raises Corrupt."""
        streams = []
        for number, index in self._known(after):
            if index is not None:
                streams.append(index.found(after, upto, at_most))
            else:
                streams.append(self._places(number, after, upto))
        return _once(heapq.merge(*streams))

    def transactions(self, after: Tso, upto: Tso) -> int:
        """About how many committed in (after, upto]; one that was sent twice counts so."""
        return sum(
            index.count(after, upto)
            if index is not None
            else sum(1 for _ in self._places(number, after, upto))
            for number, index in self._known(after)
        )

    def _known(self, after: Tso) -> Iterator[tuple[int, _Indexed | None]]:
        """By shard its index; None where the log has to tell what lies behind a timestamp."""
        for number in range(len(self.shards)):
            index = self._index(number)
            yield number, index if index is not None and self._fits(index, after) else None

    def _places(self, number: int, after: Tso, upto: Tso) -> Iterator[LogPosition]:
        return (each for each in self._scan(number)[1] if after < each.commit_ts <= upto)

    def _fits(self, index: _Indexed, after: Tso) -> bool:
        """Looked at once: what is filed later, a Pump has in memory."""
        known = self._fitting.get(index.number)
        if known is None or (known[1] and after < known[0]):
            known = self._fitting[index.number] = after, index.fits(after)
        return known[1]

    def path(self, shard: int, fid: int) -> str:
        """The file of a segment, relative to the store."""
        directory = self.shards[shard].directory.relative_to(self._data_dir)
        return str(directory / segment_name(fid))  # type: ignore[arg-type]  # a FileId in effect

    def read_ranges(
        self, store: ArchiveStore, shard: int, fid: int, ranges: Sequence[tuple[int, int]]
    ) -> list[bytes]:
        """As of an archive."""
        return store.read_ranges(self.path(shard, fid), ranges)

    def why_removed(self, shard: int, fid: int, asked_ts: int) -> Behind | None:
        """Nobody knows; a read of a directory links what it needs."""
        return None

    def _index(self, number: int) -> _Indexed | None:
        index = self.shards[number].index
        return None if index is None else _Indexed(number, index)

    def _scan(self, number: int) -> tuple[SegmentIndex, list[LogPosition]]:
        """The state at the end of the log, and all commits of it."""
        kept = self._scanned.get(number)
        if kept is None:
            fold, places = Fold(number), list[LogPosition]()
            segments = self.shards[number].segments()
            for fid, path in segments.items():
                fold.begin(fid)
                for batch in segment_batches(path, is_last=fid == max(segments)):
                    for offset, payload in batch:
                        fold.take(offset, payload)
                places += fold.places
            end = fold.index(size_bytes=0, crc32c=0, is_sealed=False)
            kept = self._scanned[number] = end, sorted(places)
        return kept


TransactionIndex = ArchivedIndex | DirectoryIndex
"""Where transactions stand, and up to where that is all of them."""


def gone_from(number: int, shard: ShardDirectory) -> Tso:
    """Up to when binlogs of a shard may be gone. Raises Refused where nobody knows."""
    return gone_ts(number, shard.directory, min(shard.segments(), default=FIRST.fid))
