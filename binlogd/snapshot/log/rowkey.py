"""Which row of its table a binlog row is about, without decoding the row.

Invariant. At any moment a table holds at most one row per key, and the last event of a key tells
whether it is there and what it holds.
Why it holds. The key is the value of TiDB's row handle: the hidden row id, the integer primary key,
or the values of a clustered key's columns, byte for byte. It is at least as fine as TiDB's own key
(which folds case where the collation does), and an update or a delete names the exact old values;
so an update that changes them, if only in case, ends the old key and begins the new one.

Every row that stays is turned into the form of an inserted row (handle, then columns), so that one
decoder reads all.
Source: pingcap/tidb table/tables/tables.go (addInsertBinlog and its siblings).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from binlogd.errors import CorruptRow
from binlogd.tidb.datum import (
    COMPACT,
    UVARINT,
    VARINT,
    as_signed,
    read_compact_bytes,
    read_datum,
    skip_datum,
)
from binlogd.tidb.encode import datum_of
from binlogd.tidb.layout import ROWID
from binlogd.tidb.model import Column, Table
from binlogd.tidb.row import Value
from binlogd.tidb.varint import UINT64_MASK, read_uvarint, uvarint, varint

NUMBER_BYTES = 8
"""Of a key that is a number."""
SEQ_STEP = 2
"""Between two rows of a transaction: a row change may be the end of one key and the beginning of
another."""


class Op(IntEnum):
    """What an event does to its key."""

    PUT = 0
    DELETE = 1
    UNKNOWN_TABLE = 2
    UPDATE = 3
    """As PUT, of a key that held a row before; told apart only where changes are exported."""


class HandleKind(IntEnum):
    """What tells the rows of a table apart."""

    HIDDEN = 0
    INTEGER = 1
    COMMON = 2
    PLACED = 3
    """A hidden row id, unique within a partition only: rows of another table came by an exchange.
    Its keys have the id of the partition behind the number."""


@dataclass(frozen=True, slots=True)
class Handle:
    """The row handle of a table; `column_ids` in the order of the primary key."""

    kind: HandleKind
    column_ids: tuple[int, ...]


def handle_of(info: Table) -> Handle:
    """What tells the rows of a table apart."""
    ids = () if info.has_hidden_id else tuple(each.id for each in info.primary_key())
    if not ids:
        return Handle(HandleKind.HIDDEN, (ROWID,))
    return Handle(HandleKind.INTEGER if info.pk_is_handle else HandleKind.COMMON, ids)


class Put(NamedTuple):
    """The key holds this row from now on; `row` is in the form of an inserted row."""

    key: bytes
    row: bytes


def inserted(handle: Handle, row: bytes) -> Put:
    """What an inserted row does. Raises CorruptRow."""
    if handle.kind is not HandleKind.COMMON:
        value, _ = _integer(row, 0)
        return Put(value.to_bytes(8, "big"), row)
    parts: dict[int, bytes] = {}
    pos = 0
    for column_id in handle.column_ids:
        begin, pos = pos, _end_of_datum(row, pos)
        parts[column_id] = _canonical(row, begin, pos)
    # the handle holds sort keys and prefixes; where it does, the column is in the row as well
    for column_id, begin, end in pairs(row, pos):
        if column_id in parts:
            parts[column_id] = _canonical(row, begin, end)
    return Put(b"".join(parts.values()), row)


def updated(handle: Handle, row: bytes) -> tuple[bytes | None, Put]:
    """The key that holds nothing any more, if one does, and what an updated row does. Raises
    CorruptRow."""
    if handle.kind is not HandleKind.COMMON:
        plain = _plain_update(row, handle.column_ids[0])
        if plain is not None:
            return plain
    boundary, old, new = _halves(row)
    old_key, new_key = _key(handle, row, old), _key(handle, row, new)
    put = Put(new_key, _prefix(handle, row, new) + row[boundary:])
    return (None if old_key == new_key else old_key), put


def deleted(handle: Handle, row: bytes) -> bytes:
    """The key that holds nothing any more. Raises CorruptRow."""
    return _key(handle, row, _spans(pairs(row, 0)))


def key_of_values(kind: HandleKind, columns: Sequence[Column], values: Sequence[Value]) -> bytes:
    """The key of a row by the values of its handle's columns. Raises CorruptRow, ValueError."""
    datums = [datum_of(column, value) for column, value in zip(columns, values, strict=True)]
    if kind is HandleKind.INTEGER:
        return _integer(datums[0], 0)[0].to_bytes(8, "big")
    return b"".join(_canonical(datum, 0, len(datum)) for datum in datums)


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """The key of a table whose row handle is another, hidden one: what a reader can see of it.

    `defaults` is what rows hold, in canonical form, that are older than a column of the key.
    """

    column_ids: tuple[int, ...]
    defaults: Mapping[int, bytes]

    def inserted(self, row: bytes) -> bytes:
        """Of an inserted row. Raises CorruptRow."""
        return self._key(row, _spans(pairs(row, _end_of_datum(row, 0))))

    def updated(self, row: bytes) -> tuple[bytes, bytes]:
        """Of an updated row, before and after. Raises CorruptRow."""
        _, old, new = _halves(row)
        return self._key(row, old), self._key(row, new)

    def deleted(self, row: bytes) -> bytes:
        """Of a deleted row. Raises CorruptRow."""
        return self._key(row, _spans(pairs(row, 0)))

    def _key(self, row: bytes, spans: _Spans) -> bytes:
        return b"".join(
            [
                _canonical(row, *spans[each]) if each in spans else self.defaults[each]
                for each in self.column_ids
            ]
        )


def placed(key: bytes, partition_id: int) -> bytes:
    """The key of a row of a table whose handle is PLACED."""
    return key + partition_id.to_bytes(8, "big")


def primary_key(info: Table, defaults: Sequence[Value]) -> PrimaryKey:
    """By the columns of `info`'s primary index, and what rows hold that lack them. Raises
    ValueError."""
    columns = info.primary_key()
    assert columns, "a table with a primary index"
    datums = [datum_of(column, value) for column, value in zip(columns, defaults, strict=True)]
    ids = tuple(each.id for each in columns)
    canonical = [_canonical(datum, 0, len(datum)) for datum in datums]
    return PrimaryKey(ids, dict(zip(ids, canonical, strict=True)))


class Images(NamedTuple):
    """Both rows of an update, in the form of inserted rows, with their keys."""

    old_key: bytes
    old: bytes
    new_key: bytes
    new: bytes


def both_images(handle: Handle, row: bytes) -> Images:
    """An updated row before and after. Raises CorruptRow."""
    boundary, old, new = _halves(row)
    return Images(
        _key(handle, row, old),
        _prefix(handle, row, old) + row[:boundary],
        _key(handle, row, new),
        _prefix(handle, row, new) + row[boundary:],
    )


def last_image(handle: Handle, row: bytes) -> Put:
    """A deleted row as it was. Raises CorruptRow."""
    spans = _spans(pairs(row, 0))
    return Put(_key(handle, row, spans), _prefix(handle, row, spans) + row)


def columns_of(handle: Handle, row: bytes) -> set[int]:
    """Ids of the columns that a row in the form of an inserted row holds. Raises CorruptRow."""
    pos = 0
    for _ in range(max(1, len(handle.column_ids))):
        pos = _end_of_datum(row, pos)
    return {column_id for column_id, _, _ in pairs(row, pos)}


Pair = tuple[int, int, int]
"""A column id, and where its datum begins and ends."""


def pairs(row: bytes, pos: int) -> list[Pair]:
    """The columns of a row from `pos` on. Raises CorruptRow."""
    found: list[Pair] = []
    size = len(row)
    if size - pos == 1 and row[pos] == 0:
        return found  # a row without columns
    try:
        while pos < size:
            byte = row[pos + 1]
            if byte < 0x80 and row[pos] == VARINT:  # the id of nearly every column
                column_id, begin = (byte >> 1) ^ -(byte & 1), pos + 2
            else:
                value, begin = _integer(row, pos)
                column_id = as_signed(value)
            pos = _end_of_datum(row, begin)
            found.append((column_id, begin, pos))
    except IndexError:
        raise CorruptRow(f"a row of {size} bytes ends inside a column") from None
    if pos > size:
        raise CorruptRow(f"a row of {size} bytes ends inside a column")
    return found


_Spans = dict[int, tuple[int, int]]


def _spans(found: Sequence[Pair]) -> _Spans:
    return {column_id: (begin, end) for column_id, begin, end in found}


def _plain_update(  # noqa: C901, PLR0912 - two loops for every column that comes
    row: bytes, handle_id: int
) -> tuple[bytes | None, Put] | None:
    """An update as TiDB writes it: both halves have the same columns in the same order, and most
    are the same. None for any other form, and for ids from 64 on. Hot: few calls."""
    handle, first = handle_id << 1 ^ handle_id >> 63, row[1:2]
    ends: list[int] = []
    at = pos = handle_end = 0
    try:
        while not pos or row[pos + 1] != first[0]:
            if row[pos] != VARINT or row[pos + 1] > 0x7F:
                return None
            is_handle = row[pos + 1] == handle
            flag, size = row[pos + 2], row[pos + 3]
            if flag == COMPACT and size < 0x80:
                pos += 4 + (size >> 1)
            else:
                pos = _end_of_datum(row, pos + 2)
            ends.append(pos)
            if is_handle:
                handle_end = pos
        boundary = pos
        for end in ends:
            begin = pos
            if row.startswith(row[at:end], pos):
                pos += end - at
            elif row.startswith(row[at : at + 2], pos):
                pos = _end_of_datum(row, pos + 2)
            else:
                return None
            if end == handle_end:
                old, new = at + 2, begin + 2
                old_is, new_is = row[old:end], row[new:pos]
            at = end
    except IndexError:
        return None
    if not handle_end or pos != len(row):
        return None
    key = _integer(row, new)[0]
    in_front = new_is if row[new] == VARINT else b"\x08" + varint(as_signed(key))
    put = Put(key.to_bytes(8, "big"), in_front + row[boundary:])
    if old_is == new_is:
        return None, put
    old_key = _integer(row, old)[0]
    return (None if old_key == key else old_key.to_bytes(8, "big")), put


def _halves(row: bytes) -> tuple[int, _Spans, _Spans]:
    """Where the new half of an updated row begins, and the datums of both halves."""
    whole = pairs(row, 0)
    half = len(whole) // 2
    old, new = _spans(whole[:half]), _spans(whole[half:])
    if not half or len(old) != half or old.keys() != new.keys():
        ids = [column_id for column_id, _, _ in whole]
        raise CorruptRow(f"an updated row has columns {ids}: not the same ones twice")
    return whole[half - 1][2], old, new


def _key(handle: Handle, row: bytes, spans: _Spans) -> bytes:
    try:
        if handle.kind is HandleKind.COMMON:
            return b"".join(_canonical(row, *spans[each]) for each in handle.column_ids)
        begin, _ = spans[handle.column_ids[0]]
    except KeyError as error:
        raise CorruptRow(f"a row without column {error} of its key") from None
    return _integer(row, begin)[0].to_bytes(8, "big")


def _prefix(handle: Handle, row: bytes, spans: _Spans) -> bytes:
    """The handle as an inserted row has it in front."""
    if handle.kind is HandleKind.COMMON:
        parts = [spans[each] for each in handle.column_ids]
        return b"".join([row[begin:end] for begin, end in parts])
    begin, end = spans[handle.column_ids[0]]
    if row[begin] == VARINT:
        return row[begin:end]
    return b"\x08" + varint(as_signed(_integer(row, begin)[0]))


def _integer(row: bytes, pos: int) -> tuple[int, int]:
    """An integer datum modulo 2^64, and where it ends."""
    try:
        flag = row[pos]
        if flag == VARINT:
            raw, end = read_uvarint(row, pos + 1)
            return (raw >> 1 ^ -(raw & 1)) & UINT64_MASK, end
        if flag == UVARINT:
            return read_uvarint(row, pos + 1)
        flag, value, end = read_datum(row, pos)
    except IndexError:
        raise CorruptRow(f"a row of {len(row)} bytes ends inside a number") from None
    if not isinstance(value, int):
        raise CorruptRow(f"a number is wanted at byte {pos} of a row, flag {flag} found")
    return value & UINT64_MASK, end


def _end_of_datum(row: bytes, pos: int) -> int:
    """Where the datum at `pos` ends."""
    try:
        return skip_datum(row, pos)
    except IndexError:
        raise CorruptRow(f"a row of {len(row)} bytes ends inside a value") from None


def _canonical(row: bytes, begin: int, end: int) -> bytes:
    """A datum so that equal values of one column have equal bytes, and of several no others."""
    if row[begin] == COMPACT:
        text, _ = read_compact_bytes(row, begin + 1)
        return uvarint(len(text)) + text
    _, value, _ = read_datum(row, begin)
    if isinstance(value, int):
        return (value & UINT64_MASK).to_bytes(8, "big")
    if isinstance(value, bytes):
        return uvarint(len(value)) + value
    if isinstance(value, float):
        return row[begin:end]
    return _shortest(value).encode() if isinstance(value, str) else b""


def _shortest(decimal: str) -> str:
    """A decimal without the zeros that only its declared scale adds."""
    return (decimal.rstrip("0").rstrip(".") if "." in decimal else decimal) + ";"
