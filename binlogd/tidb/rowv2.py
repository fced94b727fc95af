"""Rows in the format that TiKV stores since TiDB 4.0.

TiDB never writes them into binlogs; they are read in case something else does.
Values stand without flags, so the type of the column decides what the bytes mean.
Source: pingcap/tidb util/rowcodec/{row,decoder}.go.
"""

from __future__ import annotations

from struct import Struct

from binlogd.errors import CorruptRow
from binlogd.tidb.datum import Flag, read_float
from binlogd.tidb.decimals import read_decimal
from binlogd.tidb.kinds import FLAG_UNSIGNED, STRING_TYPES, Tp
from binlogd.tidb.model import Column

ROW_V2 = 0x80
"""The first byte of a row in this format; no datum has such a flag."""

_HEAD = Struct("<BBHH")
_LARGE = 0x1
_CHECKSUM = 0x2
_EXTRA_CHECKSUM = 0x8
_SIGNED_TYPES = frozenset({Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG, Tp.YEAR, Tp.DURATION})


def read_row_v2(row: bytes, at: int) -> tuple[dict[int, bytes | None], int]:
    """Raw values by column id (None is NULL), and the offset behind the row. Raises CorruptRow."""
    if at + _HEAD.size > len(row):
        raise CorruptRow("a v2 row is cut in its head")
    _version, flags, filled, nulls = _HEAD.unpack_from(row, at)
    id_size, offset_size = (4, 4) if flags & _LARGE else (1, 2)
    ids_at = at + _HEAD.size
    offsets_at = ids_at + id_size * (filled + nulls)
    body_at = offsets_at + offset_size * filled
    ids = _numbers(row, ids_at, id_size, filled + nulls)
    ends = _numbers(row, offsets_at, offset_size, filled)
    values: dict[int, bytes | None] = {}
    start = 0
    for column_id, end in zip(ids, ends, strict=False):
        if end < start or body_at + end > len(row):
            raise CorruptRow(f"a v2 row ends a value at {end} after {start}")
        values[column_id] = row[body_at + start : body_at + end]
        start = end
    values.update(dict.fromkeys(ids[filled:]))
    return values, _behind_checksum(row, body_at + start, flags)


def v2_natural(column: Column, raw: bytes) -> tuple[int, int | float | str | bytes]:
    """Flag and natural value of a raw value, as a row v1 would have them. Raises CorruptRow."""
    tp = column.field_type.tp
    if tp == Tp.JSON or column.field_type.is_array:
        return Flag.JSON, raw
    if tp in STRING_TYPES:
        return Flag.COMPACT_BYTES, raw
    if tp in (Tp.FLOAT, Tp.DOUBLE):
        return Flag.FLOAT, read_float(raw, 0)[0]
    if tp == Tp.NEW_DECIMAL:
        return Flag.DECIMAL, read_decimal(raw, 0)[0]
    if len(raw) not in (1, 2, 4, 8):
        raise CorruptRow(f"an integer of {len(raw)} bytes in a v2 row")
    if tp in _SIGNED_TYPES and not column.field_type.flag & FLAG_UNSIGNED:
        return Flag.VARINT, int.from_bytes(raw, "little", signed=True)
    return Flag.UVARINT, int.from_bytes(raw, "little")


def _numbers(row: bytes, at: int, size: int, count: int) -> list[int]:
    end = at + size * count
    if end > len(row):
        raise CorruptRow("a v2 row is cut in its head")
    return [int.from_bytes(row[each : each + size], "little") for each in range(at, end, size)]


def _behind_checksum(row: bytes, at: int, flags: int) -> int:
    """Step over a checksum: a byte of its own flags, then one or two numbers of four bytes."""
    if flags & _CHECKSUM:
        at += 9 if row[at] & _EXTRA_CHECKSUM else 5
    if at > len(row):
        raise CorruptRow("a v2 row is cut in its checksum")
    return at
