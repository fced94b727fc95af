"""Reads pinned value log files in slices: first which transactions there are, then their rows.

A slice is a run of whole records of one file, found by walking the record headers once. What is
torn at the end of a shard's last file is not part of the log yet and is passed over; bad bytes
anywhere else end the export. Runs in Spark's Python workers and knows nothing of Spark.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptRecord, CorruptRow, MalformedBinlog, UnreadableRow
from binlogd.record import (
    FOOTER_BYTES,
    HEADER_BYTES,
    RECORD_MAGIC,
    decode,
    footer_ts,
    next_magic,
    payload_at,
)
from binlogd.snapshot.log.moves import Moves
from binlogd.snapshot.log.rowkey import (
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
from binlogd.wire.peek import Mutation, PlainHead, body, changes, peek, plain_head

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
_VARINT_BYTES_MAX = 10
_PUT, _DELETE, _UPDATE = Op.PUT.value, Op.DELETE.value, Op.UPDATE.value


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

    With `has_before`, `CHANGES` are read instead of `EVENTS`. Rows that `moves` concern are given
    to the table that they belong to at the end.
    """

    handles: Mapping[int, Handle]
    passed_over: Set[int]
    before_ts: int
    has_before: bool = False
    moves: Moves = field(default_factory=Moves)

    def has(self, table_id: int) -> bool:
        """Whether rows of it are looked at; those of a table that nobody knows are, to be told."""
        if table_id in self.handles or table_id in self.moves.known:
            return True
        return not (table_id in self.passed_over or is_reserved(table_id))

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
            payload = payload_at(log, at)
            if payload is None:
                raise CorruptRecord(part.path, at, _what_is_wrong(log, at))
            yield at, payload
            at += HEADER_BYTES + len(payload)


def _what_is_wrong(log: mmap.mmap, at: int) -> str:
    _, length = _HEADER_START.unpack_from(log, at)
    found = decode(log[at : at + HEADER_BYTES + length], length=length)
    assert isinstance(found, str)
    return found


# --- which transactions there are --------------------------------------------------------


def heads(part: Slice) -> Iterator[pa.RecordBatch]:
    """`HEADS` of a slice. Raises CorruptRecord, also for a payload that is no binlog."""
    plain = _PlainHeads(part)
    ddl = _Batch(HEADS)
    for at, payload in payloads(part):
        head = plain_head(payload)
        if head is not None:
            if plain.add(at, head):
                yield plain.take()
        elif (row := _odd_head(part, at, payload)) is not None and ddl.add(row, len(payload)):
            yield ddl.take()
    if plain.rows:
        yield plain.take()
    if ddl.rows:
        yield ddl.take()


class _PlainHeads:
    """Heads without DDL; their timestamps are decoded together."""

    def __init__(self, part: Slice) -> None:
        self._part = part
        self.rows: list[tuple[int, PlainHead]] = []

    def add(self, at: int, head: PlainHead) -> bool:
        """Whether the batch is full."""
        self.rows.append((at, head))
        return len(self.rows) >= BATCH_ROWS_MAX

    def take(self) -> pa.RecordBatch:
        """The batch; the next one begins. Those without timestamps were left by old versions."""
        part, rows = self._part, self.rows
        self.rows = []
        size = len(rows)
        at = np.fromiter((each[0] for each in rows), np.int64, size)
        start_ts = _int64s([each[1].start_ts for each in rows])
        commit_ts = _int64s([each[1].commit_ts for each in rows])
        columns = {
            "shard": np.full(size, part.shard, np.int32),
            "position": at + (part.fid << POSITION_BITS),
            "is_seen": at < part.seen,
            "tp": np.fromiter((each[1].tp for each in rows), np.int32, size),
            "start_ts": start_ts,
            "commit_ts": commit_ts,
            "ddl_job_id": np.zeros(size, np.int64),
            "ddl_state": np.zeros(size, np.int32),
            "ddl_query": pa.nulls(size, pa.binary()),
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=HEADS)
        return batch.filter(pa.array((start_ts != 0) | (commit_ts != 0)))


def _int64s(varints: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Varints of at most ten bytes, all at once."""
    padded = b"".join([each.ljust(_VARINT_BYTES_MAX, b"\0") for each in varints])
    groups = np.frombuffer(padded, np.uint8).reshape(-1, _VARINT_BYTES_MAX) & 0x7F
    found = np.zeros(len(varints), np.uint64)
    for place in range(_VARINT_BYTES_MAX):
        found |= groups[:, place].astype(np.uint64) << np.uint64(7 * place)
    return found.view(np.int64)


def _odd_head(part: Slice, at: int, payload: bytes) -> tuple[object, ...] | None:
    """One of a DDL, or in a form that no Pump of today writes; None for one that counts nothing."""
    try:
        head = peek(payload)
    except MalformedBinlog as error:
        raise CorruptRecord(part.path, at, f"no binlog: {error}") from error
    if head.start_ts == 0 and head.commit_ts == 0:
        return None
    ddl: tuple[int, int, bytes | None] = (0, 0, None)
    if head.ddl_job_id and head.tp == BinlogType.COMMIT:
        found = body(payload)
        ddl = (head.ddl_job_id, found.ddl_schema_state, found.ddl_query)
    position = part.fid << POSITION_BITS | at
    return part.shard, position, at < part.seen, head.tp, head.start_ts, head.commit_ts, *ddl


# --- what they changed ---------------------------------------------------------------------


def events(part: Slice, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """`EVENTS` of the prewrites of a slice, committed or not.

    Raises CorruptRecord, UnreadableRow.
    """
    batch, moves = _Events(wanted), wanted.moves
    for at, payload in payloads(part):
        if not payload.startswith(_PREWRITE):
            continue
        try:
            head = peek(payload)
            if head.ddl_job_id or head.start_ts >= wanted.before_ts:
                continue
            version, tables = changes(payload, wanted.has)
        except MalformedBinlog as error:
            raise CorruptRecord(part.path, at, f"no row changes: {error}") from error
        for change in tables:
            run = change.table_id, head.start_ts, version
            try:
                if moves.concerns(change.table_id, version):
                    yield from batch.fill_moved(change, run)
                else:
                    yield from batch.fill(change, run)
            except CorruptRow as error:
                label = f"table id {change.table_id}"
                raise UnreadableRow(label, head.start_ts, str(error)) from error
    if batch.keys:
        yield batch.take()


_Run = tuple[int, int, int]
"""table_id, start_ts, schema_version."""


class _Events:
    """Row changes on their way into Arrow, as columns. What a run of them shares stands once."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._followed = wanted.moves.followed()
        self._clear()

    def _clear(self) -> None:
        self._runs: list[_Run] = []
        self._begins: list[int] = []
        self._bytes = 0
        self.keys: list[bytes] = []
        self._seqs: list[int] = []
        self._ops: list[int] = []
        self._rows: list[bytes] = []
        self._before: list[bytes] = []

    def _begin(self, run: _Run) -> None:
        """What follows is about this table in this transaction."""
        self._runs.append(run)
        self._begins.append(len(self.keys))

    def _add(self, seq: int, key: bytes, op: int, row: bytes, before: bytes) -> bool:
        """Whether the batch is full."""
        self.keys.append(key)
        self._seqs.append(seq)
        self._ops.append(op)
        self._rows.append(row)
        self._before.append(before)
        self._bytes += len(row) + len(before)
        return len(self.keys) >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def fill(self, change: Mutation, run: _Run) -> Iterator[pa.RecordBatch]:
        """Takes the rows of one table in one transaction. Batches that got full meanwhile."""
        handle = self._wanted.handles.get(change.table_id)
        found: Iterable[_Found]
        if handle is None and change.table_id in self._wanted.moves.known:
            return  # its rows are no more, whatever they were
        self._begin(run)
        if handle is None:
            found = ((b"", Op.UNKNOWN_TABLE.value, b"", b""),)
        elif self._wanted.has_before:
            found = _rows_with_before(change, handle)
        else:
            found = _rows(change, handle)
        for seq, each in enumerate(found):
            if self._add(seq, *each):
                yield self.take()
                self._begin(run)

    def fill_moved(self, change: Mutation, run: _Run) -> Iterator[pa.RecordBatch]:
        """As `fill`, for rows that may belong to another table at the end, or to none."""
        table_id, start_ts, version = run
        handle = self._wanted.moves.handles[table_id]

        def home(row: bytes) -> int | None:
            found = self._followed.home(table_id, version, row)
            return found if found in self._wanted.handles else None

        for seq, (table, each) in enumerate(_moved_rows(change, handle, home)):
            if table is not None:
                self._begin((table, start_ts, version))
                if self._add(seq, *each):
                    yield self.take()

    def take(self) -> pa.RecordBatch:
        """The batch; the next one begins."""
        begins = np.array([*self._begins, len(self.keys)], np.int64)
        counts = begins[1:] - begins[:-1]
        table_id, start_ts, version = (
            np.repeat(np.array(column, np.int64), counts) for column in _columns(self._runs)
        )
        columns = {
            "table_id": table_id,
            "key": _binary(self.keys),
            "start_ts": start_ts,
            "seq": np.array(self._seqs, np.int32),
            "op": np.array(self._ops, np.int32),
            "schema_version": version,
            "row": _binary(self._rows),
        }
        if self._wanted.has_before:
            columns["before"] = _binary(self._before)
        batch = pa.RecordBatch.from_pydict(columns, schema=self._wanted.schema)
        self._clear()
        return batch


def _binary(values: Sequence[bytes]) -> pa.Array:
    """The same as `pa.array`, in half the time."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _columns(runs: list[_Run]) -> Iterable[tuple[int, ...]]:
    return zip(*runs, strict=True)


_Found = tuple[bytes, int, bytes, bytes]
"""Key, op, row, row before."""


def _rows(change: Mutation, handle: Handle) -> Iterator[_Found]:
    rows = {0: iter(change.inserted), 1: iter(change.updated), 4: iter(change.deleted)}
    for kind in change.sequence:
        row = next(rows[kind])
        if kind == 0:
            key, put = inserted(handle, row)
        elif kind == 1:
            gone, (key, put) = updated(handle, row)
            if gone is not None:
                yield gone.key, _DELETE, b"", b""
        else:
            yield deleted(handle, row).key, _DELETE, b"", b""
            continue
        yield key, _PUT, put, b""


def _rows_with_before(change: Mutation, handle: Handle) -> Iterator[_Found]:
    rows = {0: iter(change.inserted), 1: iter(change.updated), 4: iter(change.deleted)}
    for kind in change.sequence:
        row = next(rows[kind])
        if kind == 0:
            put = inserted(handle, row)
            yield put.key, _PUT, put.row, b""
        elif kind == 1:
            images = both_images(handle, row)
            if images.old_key == images.new_key:
                yield images.new_key, _UPDATE, images.new, images.old
            else:
                yield images.old_key, _DELETE, b"", images.old
                yield images.new_key, _PUT, images.new, b""
        else:
            last = last_image(handle, row)
            yield last.key, _DELETE, b"", last.row


def _moved_rows(
    change: Mutation, handle: Handle, home: Callable[[bytes], int | None]
) -> Iterator[tuple[int | None, _Found]]:
    """Each change of a row with the table that it is about at the end."""
    rows = {0: iter(change.inserted), 1: iter(change.updated), 4: iter(change.deleted)}
    for kind in change.sequence:
        row = next(rows[kind])
        if kind == 0:
            put = inserted(handle, row)
            yield home(put.row), (put.key, _PUT, put.row, b"")
        elif kind == 1:
            images = both_images(handle, row)
            old, new = home(images.old), home(images.new)
            if old == new and images.old_key == images.new_key:
                yield new, (images.new_key, _UPDATE, images.new, images.old)
            else:
                yield old, (images.old_key, _DELETE, b"", images.old)
                yield new, (images.new_key, _PUT, images.new, b"")
        else:
            last = last_image(handle, row)
            yield home(last.row), (last.key, _DELETE, b"", last.row)


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
