"""The few fields of a serialised `Binlog` that a Pump needs, read and rewritten by slicing.

Invariant. Every answer equals what the generated Go decoder and encoder of tipb would give: the
same value, or `MalformedBinlog` with the same words. Canonical bytes (of `head_and_canonical`) are
what lies on disk: fields ascending, 1, 2, 3, 7 and 8 always there, unknown fields at the end.
Why it holds. One slow scanner follows the Go decoder step by step. A fast path accepts only bytes
that are canonical already, and leaves everything else to the slow one.

Source: pingcap/tipb proto/binlog/binlog.proto and gogo/protobuf's generated Unmarshal and Marshal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict, Unpack

from binlogd.binlog import BinlogType, Payload, StoredPayload
from binlogd.errors import Corrupt, MalformedBinlog
from binlogd.tso import Tso
from binlogd.wire.fields import (
    BYTES,
    VARINT,
    each_field,
    end_of,
    int64,
    read_int64,
    read_uvarint,
    signed,
    signed32,
    uvarint,
)
from binlogd.wire.mutation import (
    LARGE_BYTES,
    encode_table_mutation,
    large_table_mutation,
    table_mutation,
)
from binlogd.wire.mutation import Mutation as Mutation
from binlogd.wire.stamps import COMMIT_AT, TIMESTAMP_BYTES, is_stamped, is_started

if TYPE_CHECKING:
    from mypy_extensions import i64

NO_DDL: Final = b"\x38\x00\x40\x00"
"""How the canonical form ends of all binlogs but those of a DDL."""
_FIRST_BYTES = 256 << 10
_FIELD_BYTES = 32
"""More than a tag, and the varint behind it."""
_TABLES = 0x12  # the tag of PrewriteValue.mutations
_TABLE_ID = 0x08  # the tag of TableMutation.table_id


class Head(NamedTuple):
    """What a Pump wants to know about a payload. `ddl_job_id` > 0 means DDL."""

    tp: int
    start_ts: int
    commit_ts: int
    ddl_job_id: int


class Body(NamedTuple):
    """What a Drainer wants to know about a joined payload; absent fields are empty or 0."""

    prewrite_value: bytes
    ddl_query: bytes
    ddl_job_id: int
    ddl_schema_state: int

    @property
    def query(self) -> str:
        """The text of the DDL."""
        return self.ddl_query.decode("utf-8", "surrogateescape")

    @property
    def is_setval(self) -> bool:
        """Whether it is no DDL but the record of a sequence's next batch, whose job never is."""
        return self.ddl_query[:64].lstrip().lower().startswith(b"select setval")


def peek(payload: bytes) -> Head:
    """The head of a payload; b"" is a Prewrite with all zero. Raises MalformedBinlog."""
    marks = _marks(payload)
    if marks is not None:
        return _head(marks)
    fields = _scan(payload, payload)
    return Head(fields.tp, fields.start_ts, fields.commit_ts, fields.ddl_job_id)


def head_and_canonical(payload: bytes) -> tuple[Head, bytes]:
    """`peek`, and the payload as a Pump stores it, itself if it is so already. Raises
    MalformedBinlog."""
    marks = _marks(payload)
    if marks is not None:
        return _head(marks), payload
    fields = _scan(payload, memoryview(payload))  # which nothing is copied out of
    head = Head(fields.tp, fields.start_ts, fields.commit_ts, fields.ddl_job_id)
    rebuilt = _encode(fields)
    return head, payload if rebuilt == payload else rebuilt


def plain_numbers(payload: bytes) -> tuple[int, int, int] | None:
    """Type and timestamps of a canonical payload that is no DDL; None for any other one. Hot."""
    try:
        if payload[0] != 0x08 or payload[1] > 0x7F or payload[2] != 0x10:
            return None
        start_ts, at = _number(payload, 3)
        if start_ts < 0 or payload[at] != 0x18:
            return None
        commit_ts, at = _number(payload, at + 1)
    except IndexError:
        return None
    if commit_ts < 0 or not _plain_value_at(payload, at):
        return None
    return payload[1], start_ts, commit_ts


def _number(payload: bytes, at: i64) -> tuple[i64, i64]:
    """An int64 at `at` and where it ends; -1 for one below zero, or with a byte too many. Raises
    IndexError."""
    byte: i64 = payload[at]
    at += 1
    value: i64 = byte & 0x7F
    shift: i64 = 7
    while byte > 0x7F and shift < 63:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    is_minimal = byte <= 0x7F and (byte > 0 or shift == 7)
    return (value if is_minimal else -1), at


def _plain_value_at(payload: bytes, at: i64) -> i64:
    """Where fields 5 to 8 begin, if what stands at `at` is the rest of a canonical payload that is
    no DDL; 0 otherwise."""
    try:
        if payload[at] == 0x22:
            _, at = _content(payload, at + 1)
        value_at: i64 = at
        if payload[at] == 0x2A:
            _, at = _content(payload, at + 1)
        if payload[at] == 0x32:
            _, at = _content(payload, at + 1)
    except (IndexError, MalformedBinlog):
        return 0
    return value_at if payload[at:] == NO_DDL else 0


def prewrite_key(payload: bytes) -> bytes:
    """The transaction's primary key, raw; b"" if there is none. Raises MalformedBinlog."""
    marks = _marks(payload)
    if marks is not None:
        return payload[marks.key_at : marks.value_at]
    return bytes(_scan(payload, payload).prewrite_key or b"")


class Begin(NamedTuple):
    """The beginning of a canonical payload: its key, where fields 5 to 8 follow, its start_ts."""

    prewrite_key: bytes
    value_at: int
    start_ts: int


def begin(piece: bytes) -> Begin | None:
    """The beginning of a payload of which this is the first piece; None if it is not canonical
    so far, or the key goes on behind the piece."""
    head = _TIMESTAMPS.match(piece)
    if head is None:
        return None
    at = head.end()
    if piece[at : at + 1] != b"\x22":
        return Begin(b"", at, int64(head[2]))
    try:
        size, key_at = read_uvarint(piece, at + 1)
    except MalformedBinlog:
        return None
    value_at = key_at + size
    if value_at > len(piece):
        return None
    return Begin(piece[key_at:value_at], value_at, int64(head[2]))


def large_rows(first: bytes, last: bytes, size: int) -> tuple[int, int] | None:
    """Where the rows of a payload of `size` bytes begin and end, by its first bytes and its last;
    None unless it is canonical, with rows and without a DDL, and its key ends in the first ones."""
    found = begin(first)
    if found is None or not last.endswith(NO_DDL) or first[found.value_at :][:1] != b"\x2a":
        return None
    try:
        length, rows_at = read_uvarint(first, found.value_at + 1)
    except MalformedBinlog:
        return None
    is_whole = rows_at + length + len(NO_DDL) == size
    return (rows_at, rows_at + length) if is_whole and first[rows_at - 1] else None


def body(payload: Payload) -> Body:
    """Rows and DDL of a payload. Raises MalformedBinlog."""
    payload = bytes(payload)
    marks = _marks(payload)
    if marks is not None:
        return Body(
            payload[marks.rows_at : marks.rows_end],
            payload[marks.query_at : marks.query_end],
            int64(marks.ddl_job_id),
            payload[-1],
        )
    fields = _scan(payload, payload)
    return Body(
        bytes(fields.prewrite_value or b""),
        bytes(fields.ddl_query or b""),
        fields.ddl_job_id,
        fields.ddl_schema_state,
    )


def ddl(payload: Payload) -> Body | None:
    """The body of a payload with a DDL; None where there are rows. Raises MalformedBinlog. Hot."""
    if not isinstance(payload, bytes):
        return None
    if payload.endswith(NO_DDL):
        return None
    found = body(payload)
    return found if found.ddl_job_id > 0 else None


def join(prewrite: bytes, commit: bytes) -> bytes:
    """The Commit with prewrite_value and ddl_* of its Prewrite, canonical. Both belong to one
    transaction; the key stays the Commit's. Raises MalformedBinlog."""
    of_prewrite, of_commit = _marks(prewrite), _marks(commit)
    if of_prewrite is not None and of_commit is not None:
        return commit[: of_commit.value_at] + prewrite[of_prewrite.value_at :]
    source, target = _scan(prewrite, prewrite), _scan(commit, commit)
    return _encode(
        target._replace(
            start_ts=source.start_ts,
            prewrite_value=source.prewrite_value,
            ddl_query=source.ddl_query,
            ddl_job_id=source.ddl_job_id,
            ddl_schema_state=source.ddl_schema_state,
        )
    )


def join_of(start_ts: int, commit_ts: int, commit: bytes, prewrite: bytes | None) -> bytes | None:
    """`join` of the records of just this transaction, the commit alone without a prewrite; None
    where one of them is of another. Raises MalformedBinlog."""
    if prewrite is not None:  # told by their first bytes, as nearly always
        is_ours = is_stamped(commit, start_ts, commit_ts) and is_started(prewrite, start_ts)
        if is_ours and commit[1] == 1 and prewrite[1] == 0 and prewrite[COMMIT_AT] == 0:
            head_end = _plain_value_at(commit, COMMIT_AT + TIMESTAMP_BYTES)
            rows_at = _plain_value_at(prewrite, COMMIT_AT + 1)
            if head_end and rows_at:
                return commit[:head_end] + prewrite[rows_at:]
    if peek(commit)[1:3] != (start_ts, commit_ts):
        return None
    if prewrite is None:
        return commit
    return join(prewrite, commit) if peek(prewrite)[:2] == (BinlogType.PREWRITE, start_ts) else None


def joined(
    start_ts: int, commit_ts: int, commit: bytes, prewrite: bytes | None, *, where: str
) -> bytes:
    """`join_of` for who was led to these records by an index, or a scan. A damaged index may lead
    to whole records of another transaction, with the right checksums. Raises Corrupt where they are
    of another one, MalformedBinlog."""
    payload = join_of(start_ts, commit_ts, commit, prewrite)
    if payload is None:
        raise Corrupt(
            f"{where}: transaction {start_ts} at commit_ts {commit_ts}: the index leads to another"
            " binlog"
        )
    return payload


def fake(ts: Tso) -> bytes:
    """A binlog that only moves the watermark: a Rollback with start_ts == commit_ts."""
    return _encode(_Fields(tp=BinlogType.ROLLBACK, start_ts=ts, commit_ts=ts))


class _Others(TypedDict, total=False):
    """Fields 4 to 8 of a binlog; None leaves one out, b"" writes it empty."""

    prewrite_key: bytes | None
    prewrite_value: bytes | None
    ddl_query: bytes | None
    ddl_job_id: int
    ddl_schema_state: int


def prewrite_binlog(start_ts: Tso, **others: Unpack[_Others]) -> bytes:
    """A canonical Prewrite."""
    return _encode(_Fields(BinlogType.PREWRITE, start_ts, 0, **others))


def commit_binlog(start_ts: Tso, commit_ts: Tso, **others: Unpack[_Others]) -> bytes:
    """A canonical Commit; TiDB leaves the key and the DDL fields of the Prewrite in it."""
    return _encode(_Fields(BinlogType.COMMIT, start_ts, commit_ts, **others))


def rollback_binlog(start_ts: Tso, **others: Unpack[_Others]) -> bytes:
    """A canonical Rollback."""
    return _encode(_Fields(BinlogType.ROLLBACK, start_ts, 0, **others))


def mutations(prewrite_value: bytes) -> tuple[int, list[Mutation]]:
    """Schema version and row changes, one `Mutation` for each table. Raises MalformedBinlog, also
    when a sequence contradicts its lists or names an obsolete kind."""
    found = _mutations_in(prewrite_value, 0, len(prewrite_value))
    return found if found is not None else _any_mutations(prewrite_value)


def changes(
    payload: Payload, is_wanted: Callable[[int], bool] | None = None
) -> tuple[int, list[Mutation]]:
    """The `mutations` of a payload, whose rows are not copied as a whole. Raises as that. With
    `is_wanted`, of the table ids for which it says so only; others are stepped over."""
    if isinstance(payload, bytes):
        marks = _marks(payload)
        if marks is not None:
            found = _mutations_in(payload, marks.rows_at, marks.rows_end, is_wanted)
            if found is not None:
                return found
        version, tables = mutations(body(payload).prewrite_value)
    else:
        version, tables = _stored_mutations(payload)
    return version, [each for each in tables if is_wanted is None or is_wanted(each.table_id)]


def _mutations_in(
    data: bytes, pos: int, end: int, is_wanted: Callable[[int], bool] | None = None
) -> tuple[int, list[Mutation]] | None:
    """As TiDB writes a PrewriteValue, the version and then the tables; None for anything else."""
    schema_version, tables = 0, []
    try:
        if pos < end and data[pos] == 0x08:
            schema_version, pos = read_int64(data, pos + 1)
        while pos < end and data[pos] == _TABLES:
            size, begin = data[pos + 1], pos + 2
            if size > 0x7F:
                size, begin = read_uvarint(data, pos + 1)
            pos = begin + size
            if pos > end:
                return None
            if is_wanted is not None:
                if data[begin] != _TABLE_ID:
                    return None
                if not is_wanted(read_uvarint(data, begin + 1)[0]):
                    continue
            tables.append(table_mutation(data, begin, pos))
    except (IndexError, MalformedBinlog):
        return None
    return (schema_version, tables) if pos == end else None


def _stored_mutations(data: StoredPayload) -> tuple[int, list[Mutation]]:
    """As `_mutations_in`, of what lies on the disk."""
    size = len(data)
    rows = large_rows(data.cut(0, _FIRST_BYTES), data.cut(size - len(NO_DDL), size), size)
    assert rows is not None, "a stored payload has rows"
    schema_version, tables = 0, list[Mutation]()
    pos, end = rows
    try:
        head = data.cut(pos, pos + _FIELD_BYTES)
        if head.startswith(b"\x08"):
            schema_version, at = read_int64(head, 1)
            pos += at
        while pos < end and (head := data.cut(pos, pos + _FIELD_BYTES))[0] == _TABLES:
            length, at = read_uvarint(head, 1)
            begin, pos = pos + at, pos + at + length
            if pos > end:
                break
            if length < LARGE_BYTES:
                tables.append(table_mutation(data.cut(begin, pos), 0, length))
            else:
                tables.append(large_table_mutation(data, begin, pos))
    except MalformedBinlog:
        pos = 0
    return (schema_version, tables) if pos == end else _any_mutations(data.cut(*rows))


def _any_mutations(prewrite_value: bytes) -> tuple[int, list[Mutation]]:
    """The same for fields in any order, unknown ones between them."""
    schema_version, tables = 0, []
    for field in each_field(prewrite_value, "PrewriteValue", _PREWRITE_VALUE):
        if field.number == 1:
            schema_version = signed(field.value)
        elif field.number == 2:
            tables.append(table_mutation(prewrite_value, field.value, field.end))
    return schema_version, tables


def encode_mutations(schema_version: int, tables: list[Mutation]) -> bytes:
    """The PrewriteValue of these row changes, as TiDB serialises it."""
    parts = [b"\x08", uvarint(schema_version)]
    for table in tables:
        encoded = encode_table_mutation(table)
        parts += (b"\x12", uvarint(len(encoded)), encoded)
    return b"".join(parts)


# --- the fast path: bytes that are canonical already -------------------------------------

_MINIMAL = rb"([\x80-\xff]{0,8}[\x01-\x7f]|\x00|[\x80-\xff]{9}\x01)"
_TIMESTAMPS = re.compile(rb"\x08([\x00-\x7f])\x10" + _MINIMAL + rb"\x18" + _MINIMAL)
_DDL_NUMBERS = re.compile(rb"\x38" + _MINIMAL + rb"\x40[\x00-\x7f]")


class _Marks(NamedTuple):
    """Where things are; the numbers are still varints, because few who look want them."""

    head: re.Match[bytes]
    key_at: int
    value_at: int
    """Where fields 5 to 8 begin, and the key ends."""
    rows_at: int
    rows_end: int
    query_at: int
    query_end: int
    ddl_job_id: bytes


def _head(marks: _Marks) -> Head:
    tp, start_ts, commit_ts = marks.head.groups()
    return Head(tp[0], int64(start_ts), int64(commit_ts), int64(marks.ddl_job_id))


def _marks(payload: bytes) -> _Marks | None:
    """Where the fields of a canonical payload are; None for any other payload. Hot: no loop."""
    head = _TIMESTAMPS.match(payload)
    if head is None:
        return None
    key_at = value_at = head.end()
    try:
        if payload[key_at] == 0x22:
            key_at, value_at = _content(payload, key_at + 1)
        rows_at = rows_end = value_at
        if payload[value_at] == 0x2A:
            rows_at, rows_end = _content(payload, value_at + 1)
        query_at = query_end = rows_end
        if payload[rows_end] == 0x32:
            query_at, query_end = _content(payload, rows_end + 1)
    except (IndexError, MalformedBinlog):
        return None
    if payload[query_end:] == NO_DDL:
        job_id = b"\0"
    else:
        tail = _DDL_NUMBERS.fullmatch(payload, query_end)
        if tail is None:
            return None
        job_id = tail[1]
    return _Marks(head, key_at, value_at, rows_at, rows_end, query_at, query_end, job_id)


def _content(payload: bytes, at: i64) -> tuple[i64, i64]:
    """Begin and end of the bytes whose length is at `at`. Raises MalformedBinlog if that is not
    canonical, or too large to go on with, IndexError."""
    size: i64 = payload[at]
    if size < 0x80:
        return at + 1, at + 1 + size
    size, begin = _number(payload, at)
    if size < 0:
        raise MalformedBinlog("a length below zero, or with a byte too many")
    return begin, end_of(payload, begin, size)


# --- any other bytes: field by field -----------------------------------------------------

_BINLOG: Mapping[int, tuple[str, int]] = {
    1: ("Tp", VARINT),
    2: ("StartTs", VARINT),
    3: ("CommitTs", VARINT),
    4: ("PrewriteKey", BYTES),
    5: ("PrewriteValue", BYTES),
    6: ("DdlQuery", BYTES),
    7: ("DdlJobId", VARINT),
    8: ("DdlSchemaState", VARINT),
}
_PREWRITE_VALUE: Mapping[int, tuple[str, int]] = {
    1: ("SchemaVersion", VARINT),
    2: ("Mutations", BYTES),
}


_Bytes = bytes | memoryview


class _Fields(NamedTuple):
    tp: int
    start_ts: int
    commit_ts: int
    prewrite_key: _Bytes | None = None
    prewrite_value: _Bytes | None = None
    ddl_query: _Bytes | None = None
    ddl_job_id: int = 0
    ddl_schema_state: int = 0
    unknown: bytes = b""


def _scan(payload: bytes, cut_from: _Bytes) -> _Fields:
    """The fields, those of bytes as slices of `cut_from`, which is the payload or a view of it."""
    found: dict[int, int] = {}
    slices: dict[int, _Bytes] = {}
    unknown: list[bytes] = []
    for number, value, begin, end in each_field(payload, "Binlog", _BINLOG):
        if number == 0:
            unknown.append(payload[begin:end])
        elif 4 <= number <= 6:
            slices[number] = cut_from[value:end]
        else:
            found[number] = signed32(value) if number in (1, 8) else signed(value)
    return _Fields(
        found.get(1, 0),
        found.get(2, 0),
        found.get(3, 0),
        slices.get(4),
        slices.get(5),
        slices.get(6),
        found.get(7, 0),
        found.get(8, 0),
        b"".join(unknown),
    )


def _encode(fields: _Fields) -> bytes:
    parts: list[_Bytes] = [
        b"\x08",
        uvarint(fields.tp),
        b"\x10",
        uvarint(fields.start_ts),
        b"\x18",
        uvarint(fields.commit_ts),
    ]
    named = (
        (b"\x22", fields.prewrite_key),
        (b"\x2a", fields.prewrite_value),
        (b"\x32", fields.ddl_query),
    )
    for tag, value in named:
        if value is not None:
            parts += (tag, uvarint(len(value)), value)
    parts += (b"\x38", uvarint(fields.ddl_job_id), b"\x40", uvarint(fields.ddl_schema_state))
    parts.append(fields.unknown)
    return b"".join(parts)
