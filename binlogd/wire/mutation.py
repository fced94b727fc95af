"""The rows of a transaction: `PrewriteValue` of a binlog, with a `TableMutation` for each table.

Invariant. Tables, rows and their order are those that the generated Go decoder would give, or
MalformedBinlog with its words. Why it holds: a fast path takes only what TiDB itself writes, and
leaves everything else to the slow one, which follows the Go decoder step by step.

Source: pingcap/tipb proto/binlog/binlog.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from binlogd.binlog import Payload, StoredPayload
from binlogd.errors import MalformedBinlog
from binlogd.tidb.kinds import DELETE, INSERT, UPDATE
from binlogd.wire.fields import (
    BYTES,
    ONE_BYTE,
    VARINT,
    Field,
    each_field,
    end_of,
    field_at,
    read_int64,
    read_uvarint,
    signed,
    signed32,
    uvarint,
)
from binlogd.wire.outline import large_rows
from binlogd.wire.peek import NO_DDL, body, marks_of
from binlogd.wire.slices import HEAD_BYTES_MAX, WINDOW_BYTES, RowSlices, cut

LARGE_BYTES = 4 << 20
"""Rows of a table mutation of this size are cut out of the binlog when they are asked for."""
_PREWRITE_VALUE: Mapping[int, tuple[str, int]] = {
    1: ("SchemaVersion", VARINT),
    2: ("Mutations", BYTES),
}
_TABLE_MUTATION: Mapping[int, tuple[str, int]] = {
    1: ("TableId", VARINT),
    2: ("InsertedRows", BYTES),
    3: ("UpdatedRows", BYTES),
    5: ("DeletedPks", BYTES),
    6: ("DeletedRows", BYTES),
}
_KINDS = {2: INSERT, 3: UPDATE, 6: DELETE}
"""Of rows, by the number of their field."""
_DELETED_IDS, _SEQUENCE = 4, 7  # packed or not
_TABLES: Final = 0x12  # the tag of PrewriteValue.mutations
_TABLE_ID: Final = 0x08  # the tag of TableMutation.table_id


class Mutation(msgspec.Struct, frozen=True, gc=False):
    """The changes of one table in one transaction; its lists are for reading.

    `sequence` has one byte for each row in the order of execution (0 insert, 1 update, 4 delete):
    the n-th byte of a kind stands for the n-th row of that kind's list.
    """

    table_id: int
    inserted: Sequence[bytes]
    updated: Sequence[bytes]
    deleted: Sequence[bytes]
    sequence: bytes


def mutations(prewrite_value: bytes) -> tuple[int, list[Mutation]]:
    """Schema version and row changes, one `Mutation` for each table. Raises MalformedBinlog, also
    when a sequence contradicts its lists or names an obsolete kind."""
    found = _mutations_in(prewrite_value, 0, len(prewrite_value))
    return found if found is not None else _any_mutations(prewrite_value)


def mutations_of(
    payload: Payload, is_wanted: Callable[[int], bool] | None = None
) -> tuple[int, list[Mutation]]:
    """The `mutations` of a payload, whose rows are not copied as a whole. Raises as that. With
    `is_wanted`, of the table ids for which it says so only; others are stepped over."""
    if isinstance(payload, bytes):
        marks = marks_of(payload)
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
    rows = large_rows(data.cut(0, WINDOW_BYTES), data.cut(size - len(NO_DDL), size), size)
    assert rows is not None, "a stored payload has rows"
    schema_version, tables = 0, list[Mutation]()
    pos, end = rows
    try:
        head = data.cut(pos, pos + HEAD_BYTES_MAX)
        if head.startswith(b"\x08"):
            schema_version, at = read_int64(head, 1)
            pos += at
        while pos < end and (head := data.cut(pos, pos + HEAD_BYTES_MAX))[0] == _TABLES:
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


# --- one table ---------------------------------------------------------------------------


def table_mutation(data: bytes, begin: int, end: int) -> Mutation:
    """Reads one. Raises MalformedBinlog."""
    if end - begin >= LARGE_BYTES:
        return large_table_mutation(data, begin, end)
    try:
        plain = _plain_table_mutation(data, begin, end)
    except IndexError:
        plain = None
    return plain or _any_table_mutation(data[begin:end])


def _plain_table_mutation(  # noqa: C901, PLR0911, PLR0912 - one loop for every row that comes
    data: bytes, pos: int, end: int
) -> Mutation | None:
    """As TiDB writes it: table id, rows, sequence; None for anything else. Hot: few calls."""
    if data[pos] != _TABLE_ID:
        return None
    table_id = data[pos + 1]
    pos += 2
    if table_id > 0x7F:
        table_id, pos = read_uvarint(data, pos - 1)
        if table_id >> 56:  # no table has such an id
            return None
    inserted: list[bytes] = []
    updated: list[bytes] = []
    deleted: list[bytes] = []
    while (tag := data[pos]) != 0x38:
        size = data[pos + 1]
        begin = pos + 2
        if size > 0x7F:
            more = data[begin]
            begin += 1
            if more < 0x80:
                size = size & 0x7F | more << 7
            else:
                size, begin = read_uvarint(data, pos + 1)
        pos = begin + size
        if pos >= end:
            return None
        if tag == 0x1A:
            updated.append(data[begin:pos])
        elif tag == 0x12:
            inserted.append(data[begin:pos])
        elif tag == 0x32:
            deleted.append(data[begin:pos])
        else:
            return None
    if end - pos == 2:  # a single row, as most are
        kind = data[pos + 1]
        lists = inserted if kind == INSERT else updated if kind == UPDATE else deleted
        if len(lists) != 1 or kind not in (INSERT, UPDATE, DELETE):
            return None
        if len(inserted) + len(updated) + len(deleted) != 1:
            return None
        return Mutation(table_id, inserted, updated, deleted, ONE_BYTE[kind])
    sequence = data[pos + 1 : end : 2]
    counts = sequence.count(INSERT), sequence.count(UPDATE), sequence.count(DELETE)
    if (
        counts != (len(inserted), len(updated), len(deleted))
        or sum(counts) * 2 != end - pos
        or data[pos:end:2] != b"\x38" * len(sequence)
    ):
        return None
    return Mutation(table_id, inserted, updated, deleted, sequence)


def large_table_mutation(data: Payload, begin: int, end: int) -> Mutation:
    """`table_mutation` of megabytes, which may lie on the disk."""
    head = cut(data, begin, begin + HEAD_BYTES_MAX)
    plain: Mutation | None = None
    try:
        if head[0] == _TABLE_ID:
            table_id, at = read_uvarint(head, 1)
            if not table_id >> 56:  # no table has such an id
                plain = _large_table_mutation(data, table_id, begin + at, end)
    except (IndexError, MalformedBinlog):
        plain = None  # not as TiDB writes it
    return plain or _any_table_mutation(cut(data, begin, end))


def _large_table_mutation(data: Payload, table_id: int, pos: int, end: int) -> Mutation | None:
    """The same for megabytes of rows: they stay where they are."""
    rows = {tag: RowSlices(data, tag) for tag in (0x12, 0x1A, 0x32)}
    window, at = b"", pos
    while True:  # ends with the rows: each turn steps over one
        here = pos - at
        if here + HEAD_BYTES_MAX > len(window):
            window, at, here = cut(data, pos, min(pos + WINDOW_BYTES, end)), pos, 0
        tag = window[here]
        if tag == 0x38:
            break
        size, begin = window[here + 1], here + 2
        if size > 0x7F:
            size, begin = read_uvarint(window, here + 1)
        of_kind, place = rows.get(tag), pos
        pos = at + begin + size
        if of_kind is None or pos >= end:
            return None
        of_kind.append(place, size)
    kinds = bytearray()
    while pos < end:
        window = cut(data, pos, min(pos + WINDOW_BYTES, end))
        pos += len(window)
        kinds += window[1::2]
        if len(window) % 2 or window[::2] != b"\x38" * (len(window) // 2):
            return None
    sequence = bytes(kinds)
    counts = sequence.count(INSERT), sequence.count(UPDATE), sequence.count(DELETE)
    if counts != tuple(map(len, rows.values())) or sum(counts) != len(sequence):
        return None
    return Mutation(table_id, rows[0x12], rows[0x1A], rows[0x32], sequence)


def _any_table_mutation(data: bytes) -> Mutation:
    """As the Go decoder reads it, field by field."""
    table_id, sequence, pos = 0, bytearray(), 0
    rows: dict[int, list[bytes]] = {INSERT: [], UPDATE: [], DELETE: []}
    while pos < len(data):
        field = _field(data, pos, sequence)
        if field.number == 1:
            table_id = signed(field.value)
        elif field.number in _KINDS:
            rows[_KINDS[field.number]].append(data[field.value : field.end])
        pos = field.end
    for kind, of_kind in rows.items():
        if sequence.count(kind) != len(of_kind):
            raise MalformedBinlog(
                f"TableMutation: the sequence has {sequence.count(kind)} entries of kind {kind},"
                f" the list has {len(of_kind)} rows"
            )
    if sum(map(len, rows.values())) != len(sequence):
        raise MalformedBinlog("TableMutation: the sequence has kinds other than 0, 1 and 4")
    return Mutation(table_id, rows[INSERT], rows[UPDATE], rows[DELETE], bytes(sequence))


def _field(data: bytes, begin: int, sequence: bytearray) -> Field:
    """Any field; kinds of rows are added to the sequence."""
    tag, pos = read_uvarint(data, begin)
    number, wire_type = signed32(tag >> 3), tag & 7
    if number not in (_DELETED_IDS, _SEQUENCE):
        return field_at(data, begin, "TableMutation", _TABLE_MUTATION)
    if wire_type not in (VARINT, BYTES):
        name = "Sequence" if number == _SEQUENCE else "DeletedIds"
        raise MalformedBinlog(f"proto: wrong wireType = {wire_type} for field {name}")
    value, pos = read_uvarint(data, pos)
    end = pos if wire_type == VARINT else end_of(data, pos, value)
    kinds = [value] if wire_type == VARINT else []
    while pos < end:
        value, pos = read_uvarint(data[:end], pos)
        kinds.append(value)
    if number == _SEQUENCE:
        sequence += bytes(kind if kind < 0x80 else 0xFF for kind in kinds)
    return Field(number, 0, begin, end)


def encode_mutations(schema_version: int, tables: list[Mutation]) -> bytes:
    """The PrewriteValue of these row changes, as TiDB serialises it."""
    parts = [b"\x08", uvarint(schema_version)]
    for table in tables:
        fields = [b"\x08", uvarint(table.table_id)]
        named = ((b"\x12", table.inserted), (b"\x1a", table.updated), (b"\x32", table.deleted))
        for tag, rows in named:
            for row in rows:
                fields += (tag, uvarint(len(row)), row)
        fields += (b"\x38" + ONE_BYTE[kind] for kind in table.sequence)
        encoded = b"".join(fields)
        parts += (b"\x12", uvarint(len(encoded)), encoded)
    return b"".join(parts)
