"""Reads pinned value log files in slices: first which transactions there are, then their rows.

A slice is a run of whole records of one file, found by walking the record headers once. What is
torn at the end of a shard's last file is not part of the log yet and is passed over; bad bytes
anywhere else end the export. Runs in Spark's Python workers and knows nothing of Spark.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptRecord, CorruptRow, MalformedBinlog, RowMismatch
from binlogd.record import (
    FOOTER_BYTES,
    HEADER_BYTES,
    RECORD_MAGIC,
    decode,
    footer_ts,
    next_magic,
)
from binlogd.snapshot.rowkey import (
    Handle,
    Op,
    both_images,
    deleted,
    inserted,
    last_image,
    updated,
)
from binlogd.snapshot.spec import Segment
from binlogd.tidb.schema import is_reserved
from binlogd.wire.peek import Head, Mutation, body, mutations, peek

BATCH_ROWS_MAX = 32_768
BATCH_BYTES_MAX = 16 << 20
"""An Arrow batch ends at whichever comes first; one row may be larger."""

POSITION_BITS = 40
"""A position in a shard is the file's id and, in so many bits, the offset in it."""

HEADS = pa.schema(
    [
        ("shard", pa.int32()),
        ("position", pa.int64()),
        ("is_seen", pa.bool_()),
        ("tp", pa.int32()),
        ("start_ts", pa.int64()),
        ("commit_ts", pa.int64()),
        ("ddl_job_id", pa.int64()),
        ("ddl_state", pa.int32()),
        ("ddl_query", pa.binary()),
    ]
)
"""One binlog each. The DDL columns are filled in Commits of DDL only."""

EVENTS = pa.schema(
    [
        ("table_id", pa.int64()),
        ("key", pa.binary()),
        ("start_ts", pa.int64()),
        ("seq", pa.int32()),
        ("op", pa.int32()),
        ("schema_version", pa.int64()),
        ("row", pa.binary()),
    ]
)
"""One change of one key each, in the order of `seq` within a transaction and table."""

CHANGES = EVENTS.append(pa.field("before", pa.binary()))
"""As `EVENTS`, with the row that a key held before, where it held one."""

_PREWRITE = b"\x08\x00"
"""How every Prewrite in a log begins: payloads are stored in canonical form."""
_HEADER_START = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole records of one file, from `start` to `end`; those below `seen` may bound the export."""

    shard: int
    fid: int
    path: str
    start: int
    end: int
    seen: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tables' rows are read: handles by table id, and ids whose rows are passed over.

    With `has_before`, `CHANGES` are read instead of `EVENTS`.
    """

    handles: Mapping[int, Handle]
    passed_over: Set[int]
    before_ts: int
    has_before: bool = False

    @property
    def schema(self) -> pa.Schema:
        """What `events` gives."""
        return CHANGES if self.has_before else EVENTS


def slices(segments: Sequence[Segment], slice_bytes: int) -> list[Slice]:
    """The files cut into slices of about this size. Raises CorruptRecord."""
    newest: dict[int, int] = {}
    for segment in segments:
        newest[segment.shard] = max(segment.fid, newest.get(segment.shard, -1))
    found = []
    for segment in segments:
        if segment.size_bytes:
            found += _cut(segment, slice_bytes, is_last=segment.fid == newest[segment.shard])
    return found


def tasks(parts: Sequence[Slice], slice_bytes: int) -> list[tuple[Slice, ...]]:
    """Slices put together so that small files do not make small tasks."""
    found: list[list[Slice]] = []
    room = 0
    for part in parts:
        size = part.end - part.start
        if size > room:
            found.append([])
            room = slice_bytes
        found[-1].append(part)
        room -= size
    return [tuple(each) for each in found]


def _cut(segment: Segment, slice_bytes: int, *, is_last: bool) -> list[Slice]:
    with _mapped(segment.path) as log:
        size = min(segment.size_bytes, len(log))
        is_sealed = footer_ts(log[max(0, size - FOOTER_BYTES) : size]) is not None
        end = size - FOOTER_BYTES if is_sealed else size
        bounds, last, reached = _walk(log, end, slice_bytes)
        if reached < end:
            fault = f"wrong record header, {end - reached} bytes before the end of the records"
            if not is_last or is_sealed or _is_record_behind(log, reached + 1, end):
                raise CorruptRecord(segment.path, reached, fault)
        if is_last and not is_sealed and reached > last and not _is_whole(log, last, reached):
            reached = last  # written in part when the machine stopped
    bounds = [*(bound for bound in bounds if bound < reached), reached]
    return [
        Slice(segment.shard, segment.fid, segment.path, start, stop, segment.seen_bytes)
        for start, stop in itertools.pairwise(bounds)
    ]


def _walk(log: mmap.mmap, end: int, slice_bytes: int) -> tuple[list[int], int, int]:
    """Where slices begin, where the last record begins, and how far the records go."""
    bounds, last, at = [0], 0, 0
    unpack = _HEADER_START.unpack_from
    while at + HEADER_BYTES <= end:
        magic, length = unpack(log, at)
        after = at + HEADER_BYTES + length
        if magic != RECORD_MAGIC or after > end:
            break
        if at - bounds[-1] >= slice_bytes:
            bounds.append(at)
        last, at = at, after
    return bounds, last, at


def _is_whole(log: mmap.mmap, begin: int, end: int) -> bool:
    return isinstance(decode(log[begin:end], length=end - begin - HEADER_BYTES), bytes)


def _is_record_behind(log: mmap.mmap, start: int, end: int) -> bool:
    """Whether bad bytes have a good record behind them: then they are no torn end."""
    tail = log[start:end]
    at = next_magic(tail, 0)
    while at is not None and at + HEADER_BYTES <= len(tail):
        _, length = _HEADER_START.unpack_from(tail, at)
        whole = tail[at : at + HEADER_BYTES + length]
        if isinstance(decode(whole, length=length), bytes):
            return True
        at = next_magic(tail, at + 1)
    return False


def _mapped(path: str) -> mmap.mmap:
    with Path(path).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def payloads(part: Slice) -> Iterator[tuple[int, bytes]]:
    """Offset and payload of each record of a slice. Raises CorruptRecord."""
    with _mapped(part.path) as log:
        at = part.start
        while at < part.end:
            _, length = _HEADER_START.unpack_from(log, at)
            after = at + HEADER_BYTES + length
            payload = decode(log[at:after], length=length)
            if isinstance(payload, str):
                raise CorruptRecord(part.path, at, payload)
            yield at, payload
            at = after


# --- which transactions there are --------------------------------------------------------


def heads(part: Slice) -> Iterator[pa.RecordBatch]:
    """`HEADS` of a slice. Raises CorruptRecord, also for a payload that is no binlog."""
    batch = _Batch(HEADS)
    base = part.fid << POSITION_BITS
    for at, payload in payloads(part):
        head = _head(part, at, payload)
        if head.start_ts == 0 and head.commit_ts == 0:
            continue  # left by old versions
        ddl: tuple[int, int, bytes | None] = (0, 0, None)
        if head.ddl_job_id and head.tp == BinlogType.COMMIT:
            found = body(payload)
            ddl = (head.ddl_job_id, found.ddl_schema_state, found.ddl_query)
        row = (part.shard, base | at, at < part.seen, head.tp, head.start_ts, head.commit_ts, *ddl)
        if batch.add(row, 0):
            yield batch.take()
    if batch.rows:
        yield batch.take()


def _head(part: Slice, at: int, payload: bytes) -> Head:
    try:
        return peek(payload)
    except MalformedBinlog as error:
        raise CorruptRecord(part.path, at, f"no binlog: {error}") from error


# --- what they changed ---------------------------------------------------------------------


def events(part: Slice, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """`EVENTS` of the prewrites of a slice, committed or not. Raises CorruptRecord, RowMismatch."""
    batch = _Batch(wanted.schema)
    for at, payload in payloads(part):
        if not payload.startswith(_PREWRITE):
            continue
        head = _head(part, at, payload)
        if head.tp != BinlogType.PREWRITE or head.ddl_job_id or head.start_ts >= wanted.before_ts:
            continue
        try:
            version, changes = mutations(body(payload).prewrite_value)
        except MalformedBinlog as error:
            raise CorruptRecord(part.path, at, f"no row changes: {error}") from error
        for change in changes:
            for row in _changes(change, head.start_ts, version, wanted):
                if batch.add(row, len(row[6]) + len(row[-1])):
                    yield batch.take()
    if batch.rows:
        yield batch.take()


_Event = (
    tuple[int, bytes, int, int, int, int, bytes]
    | tuple[int, bytes, int, int, int, int, bytes, bytes]
)


def _changes(change: Mutation, start_ts: int, version: int, wanted: Wanted) -> Iterator[_Event]:
    table_id = change.table_id
    handle = wanted.handles.get(table_id)
    if handle is None:
        if table_id not in wanted.passed_over and not is_reserved(table_id):
            unknown = (table_id, b"", start_ts, 0, Op.UNKNOWN_TABLE, version, b"")
            yield (*unknown, b"") if wanted.has_before else unknown
        return
    rows = _rows_with_before if wanted.has_before else _rows
    try:
        yield from rows(change, handle, start_ts, version)
    except CorruptRow as error:
        raise RowMismatch(f"table id {table_id}", start_ts, str(error)) from error


def _rows(change: Mutation, handle: Handle, start_ts: int, version: int) -> Iterator[_Event]:
    table_id, seq = change.table_id, 0
    rows = {0: iter(change.inserted), 1: iter(change.updated), 4: iter(change.deleted)}
    for kind in change.sequence:
        row = next(rows[kind])
        if kind == 0:
            put = inserted(handle, row)
        elif kind == 1:
            gone, put = updated(handle, row)
            if gone is not None:
                yield table_id, gone.key, start_ts, seq, Op.DELETE, version, b""
                seq += 1
        else:
            yield table_id, deleted(handle, row).key, start_ts, seq, Op.DELETE, version, b""
            seq += 1
            continue
        yield table_id, put.key, start_ts, seq, Op.PUT, version, put.row
        seq += 1


def _rows_with_before(
    change: Mutation, handle: Handle, start_ts: int, version: int
) -> Iterator[_Event]:
    table_id, seq = change.table_id, 0
    rows = {0: iter(change.inserted), 1: iter(change.updated), 4: iter(change.deleted)}
    for kind in change.sequence:
        row = next(rows[kind])
        found: list[tuple[bytes, Op, bytes, bytes]]
        if kind == 0:
            put = inserted(handle, row)
            found = [(put.key, Op.PUT, put.row, b"")]
        elif kind == 1:
            images = both_images(handle, row)
            found = [(images.new_key, Op.UPDATE, images.new, images.old)]
            if images.old_key != images.new_key:
                found = [
                    (images.old_key, Op.DELETE, b"", images.old),
                    (images.new_key, Op.PUT, images.new, b""),
                ]
        else:
            last = last_image(handle, row)
            found = [(last.key, Op.DELETE, b"", last.row)]
        for key, op, after, before in found:
            yield table_id, key, start_ts, seq, op, version, after, before
            seq += 1


class _Batch:
    """Rows on their way into an Arrow batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._bytes = 0
        self.rows: list[tuple[object, ...]] = []

    def add(self, row: tuple[object, ...], size_bytes: int) -> bool:
        """Whether the batch is full."""
        self.rows.append(row)
        self._bytes += size_bytes
        return len(self.rows) >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def take(self) -> pa.RecordBatch:
        """The batch; the next one begins."""
        columns = zip(*self.rows, strict=True)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self.rows, self._bytes = [], 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
