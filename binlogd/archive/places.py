"""Where the transactions of a log stand: out of an archive, a shard's index, or the log itself.

Three ways to the same answer. Paths are relative to the store of the log, so that whoever reads
the payloads need not know which it was.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import CATALOG_NAME as CATALOG_NAME
from binlogd.errors import Behind, ConfigError, Corrupt, CorruptIndex, Refused
from binlogd.log.checked_text import check_json
from binlogd.log.directory import ShardDirectory, shards_below
from binlogd.log.drive import segment_batches
from binlogd.log.gone import gone_ts
from binlogd.log.index_file import MARKS_QUERY, Marks, marks_of
from binlogd.log.pointer import FIRST, segment_name
from binlogd.log.record import extend
from binlogd.log.segment_index import Fold, LogPosition, SegmentIndex, resolved
from binlogd.log.tally import fits
from binlogd.tso import MAX_TS, NO_TS, Tso

HISTORY_NAME = "ddl_history.json"
CATALOG_FORMAT = 1

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


class ArchiveCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds; written last, so everything that it names is there."""

    format: int = CATALOG_FORMAT
    cluster_id: int | None
    shards: int
    resolved_ts: int
    segments: tuple[SegmentIndex, ...]
    gone_ts: int = 0
    """Up to here binlogs may have been deleted before they were archived."""
    history_crc32c: tuple[int, ...] = ()
    """Of the DDL history: while it is written anew, of both; none where nobody has told."""


class TransactionIndex(Protocol):
    """Where transactions stand, and up to where that is all of them."""

    def resolved_ts(self) -> Tso:
        """Every transaction up to here is there, or was garbage collected."""
        ...

    def gone_ts(self) -> Tso:
        """Behind this nothing was garbage collected. Raises Refused where nobody knows."""
        ...

    def found(self, after: Tso, upto: Tso, *, at_most: int = 0) -> Iterator[LogPosition]:
        """The commits in (after, upto] in commit order, each once; the first `at_most` at least,
        if that is not 0. Raises Behind, Corrupt."""
        ...

    def path(self, shard: int, fid: int) -> str:
        """The file of a segment, relative to the store."""
        ...


# --- an archive ----------------------------------------------------------------------------


def segment_path(shard: int, fid: int) -> str:
    """A segment of an archive."""
    return f"shard-{shard}/{segment_name(fid)}"  # type: ignore[arg-type]  # a FileId in effect


def index_path(shard: int, fid: int) -> str:
    """What describes it; there only when the segment is."""
    return f"shard-{shard}/{fid:06d}.json"


def places_path(shard: int, fid: int) -> str:
    """Where its commits stand."""
    return f"shard-{shard}/{fid:06d}.commits.parquet"


def encode_places(places: Sequence[LogPosition]) -> bytes:
    """The commits of one segment as a Parquet file, by commit_ts."""
    ordered = sorted(places)
    columns = [pa.array([getattr(each, name) for each in ordered], pa.int64()) for name in _COLUMNS]
    sink = BytesIO()
    table = pa.Table.from_arrays(columns, schema=PLACES)
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def read_catalog(store: ArchiveStore) -> ArchiveCatalog:
    """Raises ConfigError where there is no archive, Corrupt."""
    try:
        content = store.read(CATALOG_NAME)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{store.url}: holds no {CATALOG_NAME}, so it is no archive; `binlogd archive` makes"
            " one, and `[archive] url` of `binlogd serve` keeps one up to date"
        ) from error
    return decode_catalog(content, store.url)


def decode_catalog(content: bytes, where: str) -> ArchiveCatalog:
    """Raises Corrupt, ConfigError for a newer format."""
    try:
        check_json(content)
        catalog = msgspec.json.decode(content, type=ArchiveCatalog)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"{where}/{CATALOG_NAME}: is no catalog: {error}") from error
    if catalog.format != CATALOG_FORMAT:
        raise ConfigError(f"{where}: an archive of format {catalog.format}, this is older")
    return catalog


def history_of(store: ArchiveStore, catalog: ArchiveCatalog) -> bytes:
    """The DDL history. Raises Corrupt."""
    content = store.read(HISTORY_NAME)
    known, found = catalog.history_crc32c, extend(0, content)
    if known and found not in known and found not in read_catalog(store).history_crc32c:
        raise Corrupt(f"{store.url}/{HISTORY_NAME}: its checksum is not the one in the catalog")
    return content


class ArchivedIndex:
    """Where transactions stand, out of the index files of an archive."""

    def __init__(self, store: ArchiveStore, catalog: ArchiveCatalog) -> None:
        self._store, self._catalog = store, catalog

    def resolved_ts(self) -> Tso:
        """What the catalog says."""
        return Tso(self._catalog.resolved_ts)

    def gone_ts(self) -> Tso:
        """What the directory said when the archive was begun."""
        late = {each.shard for each in self._catalog.segments} - {
            each.shard for each in self._catalog.segments if each.fid == 0
        }
        if late and not self._catalog.gone_ts:
            raise Refused(
                f"{self._store.url}: the log of shard {min(late)} begins late, and the archive does"
                " not tell up to when binlogs are gone: archive it anew, elsewhere"
            )
        return Tso(self._catalog.gone_ts)

    def found(self, after: Tso, upto: Tso, *, at_most: int = 0) -> Iterator[LogPosition]:
        """See TransactionIndex."""
        del at_most  # an index file is read whole
        wanted = [
            each
            for each in self._catalog.segments
            if each.transactions and each.max_ts > after and each.min_ts <= upto
        ]
        return _once(heapq.merge(*(self._of(each, after, upto) for each in wanted)))

    def path(self, shard: int, fid: int) -> str:
        """See TransactionIndex."""
        return segment_path(shard, fid)

    def _of(self, segment: SegmentIndex, after: Tso, upto: Tso) -> Iterator[LogPosition]:
        name = places_path(segment.shard, segment.fid)
        try:
            content = self._store.read(name)
            if segment.places_crc32c not in (None, extend(0, content)):
                raise OSError("its checksum is not the one in the catalog")
            table = pq.read_table(BytesIO(content), page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(f"{self._store.url}/{name}: {error}") from error
        commit_ts = table["commit_ts"]
        table = table.filter(pc.and_(pc.greater(commit_ts, after), pc.less_equal(commit_ts, upto)))
        columns = [column.to_pylist() for column in table.columns]
        for commit, start, *place in zip(*columns, strict=True):
            yield LogPosition(commit, start, segment.shard, segment.fid, *place)


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
        self._shards = shards_below(data_dir)
        if not self._shards:
            raise ConfigError(f"{data_dir}: is no data directory of a Pump, and no archive")
        self._fitting: dict[int, tuple[Tso, bool]] = {}
        self._scanned: dict[int, tuple[SegmentIndex, list[LogPosition]]] = {}

    @property
    def shards(self) -> Sequence[ShardDirectory]:
        """By number."""
        return self._shards

    def resolved_ts(self) -> Tso:
        """The lowest watermark of the shards, as they were filed last."""
        indexes = [self._index(number, shard) for number, shard in enumerate(self._shards)]
        marks = [index.marks().max_commit_ts for index in indexes if index is not None]
        before = self._sizes()
        scanned = [
            self._scan(number, shard)[0]
            for number, (shard, index) in enumerate(zip(self._shards, indexes, strict=True))
            if index is None
        ]
        is_whole = not marks and self._sizes() == before
        if scanned:
            marks.append(resolved(scanned, len(scanned), is_whole=is_whole))
        return min(marks, default=NO_TS)

    def gone_ts(self) -> Tso:
        """What garbage collection wrote down before it removed a file."""
        return max(
            (gone_from(number, each) for number, each in enumerate(self._shards)), default=NO_TS
        )

    def _sizes(self) -> list[int]:
        return [path.stat().st_size for shard in self._shards for path in shard.segments().values()]

    def found(self, after: Tso, upto: Tso, *, at_most: int = 0) -> Iterator[LogPosition]:
        """See TransactionIndex."""
        streams = []
        for number, shard in enumerate(self._shards):
            index = self._index(number, shard)
            if index is not None and self._fits(index, after):
                streams.append(index.found(after, upto, at_most))
            else:
                places = self._scan(number, shard)[1]
                streams.append(each for each in places if after < each.commit_ts <= upto)
        return _once(heapq.merge(*streams))

    def _fits(self, index: _Indexed, after: Tso) -> bool:
        """Looked at once: what is filed later, a Pump has in memory."""
        known = self._fitting.get(index.number)
        if known is None or (known[1] and after < known[0]):
            known = self._fitting[index.number] = after, index.fits(after)
        return known[1]

    def path(self, shard: int, fid: int) -> str:
        """See TransactionIndex."""
        directory = self._shards[shard].directory.relative_to(self._data_dir)
        return str(directory / segment_name(fid))  # type: ignore[arg-type]  # a FileId in effect

    def _index(self, number: int, shard: ShardDirectory) -> _Indexed | None:
        return None if shard.index is None else _Indexed(number, shard.index)

    def _scan(self, number: int, shard: ShardDirectory) -> tuple[SegmentIndex, list[LogPosition]]:
        """The state at the end of the log, and all commits of it."""
        kept = self._scanned.get(number)
        if kept is None:
            fold, places, segments = Fold(number), list[LogPosition](), shard.segments()
            for fid, path in segments.items():
                fold.begin(fid)
                for batch in segment_batches(path, is_last=fid == max(segments)):
                    for offset, payload in batch:
                        fold.take(offset, payload)
                places += fold.places
            end = fold.index(size_bytes=0, crc32c=0, is_sealed=False)
            kept = self._scanned[number] = end, sorted(places)
        return kept


def gone_from(number: int, shard: ShardDirectory) -> Tso:
    """Up to when binlogs of a shard may be gone. Raises Refused where nobody knows."""
    return gone_ts(number, shard.directory, min(shard.segments(), default=FIRST.fid))


def newest_of(segments: Iterable[SegmentIndex]) -> list[SegmentIndex]:
    """The last segment of each shard."""
    found: dict[int, SegmentIndex] = {}
    for each in segments:
        if each.shard not in found or found[each.shard].fid < each.fid:
            found[each.shard] = each
    return list(found.values())


def catalog_of(
    segments: Iterable[SegmentIndex],
    *,
    cluster_id: int | None,
    shards: int,
    is_whole: bool = False,
) -> ArchiveCatalog:
    """What describes these segments; `is_whole` as `resolved` has it."""
    ordered = sorted(segments, key=lambda each: (each.shard, each.fid))
    return ArchiveCatalog(
        cluster_id=cluster_id,
        shards=shards,
        resolved_ts=resolved(newest_of(ordered), shards, is_whole=is_whole),
        segments=tuple(msgspec.structs.replace(each, open=()) for each in ordered),
    )
