"""How the datums of one column become its values: a reader per column, chosen once.

A reader takes the row and the offset of the datum's flag, and gives the value and the offset
behind it. It knows the flag that TiDB writes for the type; any other flag goes the long way, by
the datum's natural value, and is refused where the type cannot mean it.
Source: pingcap/tidb tablecodec/tablecodec.go (unflatten), tidb-binlog drainer/translator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from binlogd.errors import CorruptRow
from binlogd.tidb.datum import (
    COMPACT,
    DECIMAL,
    FLOAT,
    JSON,
    NIL,
    UVARINT,
    VARINT,
    Flag,
    Natural,
    as_signed,
    read_datum,
    read_float,
)
from binlogd.tidb.decimals import read_decimal
from binlogd.tidb.jsonb import json_end, json_text
from binlogd.tidb.layout import Form, form_of
from binlogd.tidb.model import Column
from binlogd.tidb.times import date_text, datetime_text, duration_text
from binlogd.tidb.varint import UINT64_MASK, read_uvarint

Value = int | float | str | bytes | None
"""What a column holds: integers, YEAR, ENUM (index), SET (mask) and BIT as int; FLOAT and DOUBLE
as float (FLOAT widened); DECIMAL, DATE, DATETIME, TIMESTAMP (UTC), TIME and JSON as text; strings
as bytes (text is UTF-8 and may be invalid)."""

Reader = Callable[[bytes, int], tuple[Value, int]]
Converter = Callable[[int, Natural], Value]
"""From a datum's flag and natural value, never NULL, to the value of the column."""

_MINUS_INFINITY = float("-inf")
_F64 = Struct(">d")
_F32 = Struct("<f")
_SINGLE_DIGITS_MIN, _SINGLE_DIGITS_MAX = 6, 9


def reader_of(column: Column) -> Reader:
    """The reader of a column. The reader raises CorruptRow, or IndexError at the row's end."""
    convert = converter_of(column)
    family = _family(column)
    other = _any_reader(convert)
    return other if family is None else family.reader(other, column.field_type.decimal)


def converter_of(column: Column) -> Converter:
    """How any datum becomes a value of the column; the converter raises CorruptRow."""
    name, tp, fsp = column.name, column.field_type.tp, column.field_type.decimal
    family = _family(column)

    def convert(flag: int, value: Natural) -> Value:
        if family is None or flag not in family.flags:
            raise CorruptRow(f"column {name} of type {tp:d} has a datum with flag {flag}")
        return family.step(value, fsp)

    return convert


# --- conversions ------------------------------------------------------------------------


def _same(value: Natural, _fsp: int) -> Value:
    return value


def _number(value: Natural) -> int:
    assert isinstance(value, int)
    return value


def _bits(value: Natural) -> int:
    return _number(value) & UINT64_MASK


def _to_json(value: Natural, _fsp: int) -> Value:
    assert isinstance(value, bytes)
    return json_text(value)


# --- readers ----------------------------------------------------------------------------


def _any_reader(convert: Converter) -> Reader:
    """Of a datum with any flag."""

    def read(row: bytes, at: int) -> tuple[Value, int]:
        flag, value, at = read_datum(row, at)
        return (None if flag == NIL else convert(flag, value)), at

    return read


def _signed_reader(other: Reader, _fsp: int) -> Reader:
    def read(row: bytes, at: int) -> tuple[Value, int]:
        if row[at] != VARINT:
            return other(row, at)
        byte = row[at + 1]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 2
        raw, at = read_uvarint(row, at + 1)
        return (raw >> 1) ^ -(raw & 1), at

    return read


def _unsigned_reader(other: Reader, _fsp: int) -> Reader:
    def read(row: bytes, at: int) -> tuple[Value, int]:
        if row[at] != UVARINT:
            return other(row, at)
        byte = row[at + 1]
        return (byte, at + 2) if byte < 0x80 else read_uvarint(row, at + 1)

    return read


def _bytes_reader(other: Reader, _fsp: int) -> Reader:
    def read(row: bytes, at: int) -> tuple[Value, int]:
        if row[at] != COMPACT:
            return other(row, at)
        length = row[at + 1]
        if length < 0x80:
            at += 2
        else:
            length, at = read_uvarint(row, at + 1)
        end = at + (length >> 1)
        if length & 1 or end > len(row):
            raise CorruptRow(f"a string of {length >> 1} bytes at offset {at} of {len(row)}")
        return row[at:end], end

    return read


def _float_reader(other: Reader, _fsp: int) -> Reader:
    unpack_from = _F64.unpack_from

    def read(row: bytes, at: int) -> tuple[Value, int]:
        if row[at] != FLOAT or at + 9 > len(row):
            return other(row, at)
        # A number from zero up differs from its IEEE form in the top bit alone: it reads negated.
        value: float = unpack_from(row, at + 1)[0]
        if _MINUS_INFINITY < value <= 0.0 and row[at + 1] >= 0x80:
            return 0.0 - value, at + 9
        return read_float(row, at + 1)

    return read


def _decimal_reader(other: Reader, _fsp: int) -> Reader:
    def read(row: bytes, at: int) -> tuple[Value, int]:
        return other(row, at) if row[at] != DECIMAL else read_decimal(row, at + 1)

    return read


def _packed_reader(other: Reader, text_of: Callable[[bytes], tuple[str, int]]) -> Reader:
    def read(row: bytes, at: int) -> tuple[Value, int]:
        if row[at] != UVARINT:
            return other(row, at)
        text, size = text_of(row[at + 1 : at + _DATETIME_BYTES])
        return text, at + size

    return read


_DATETIME_BYTES = 10
"""The flag and the varint of any time of the years 218 to 9999; longer ones are out of range."""
_TEXTS_KEPT = 4096
"""Texts of times that are kept for the next row, for each number of fraction digits."""


def _datetimes_of(fsp: int) -> Callable[[bytes], tuple[str, int]]:
    """From the varint of a packed time to its text and the size of the datum, kept a while."""

    @lru_cache(maxsize=_TEXTS_KEPT)
    def datetime_of(data: bytes) -> tuple[str, int]:
        packed, end = read_uvarint(data, 0)
        return datetime_text(packed, fsp), end + 1

    return datetime_of


@lru_cache(maxsize=_TEXTS_KEPT)
def _date_of(data: bytes) -> tuple[str, int]:
    packed, end = read_uvarint(data, 0)
    return date_text(packed), end + 1


_DATETIMES_OF = tuple(_datetimes_of(fsp) for fsp in range(7))


def _duration_reader(other: Reader, fsp: int) -> Reader:
    def read(row: bytes, at: int) -> tuple[Value, int]:
        if row[at] != VARINT:
            return other(row, at)
        raw, at = read_uvarint(row, at + 1)
        return duration_text((raw >> 1) ^ -(raw & 1), fsp), at

    return read


def _json_reader(other: Reader, _fsp: int) -> Reader:
    def read(row: bytes, at: int) -> tuple[Value, int]:
        if row[at] != JSON:
            return other(row, at)
        end = json_end(row, at + 1)
        return json_text(row[at + 1 : end]), end

    return read


# --- families ---------------------------------------------------------------------------


class _Family(NamedTuple):
    """How a form is read; both functions get the column's fraction digits, and the reader the one
    for datums with another flag."""

    flags: frozenset[int]
    step: Callable[[Natural, int], Value]
    reader: Callable[[Reader, int], Reader]


_INTEGER_FLAGS = frozenset[int]({Flag.INT, Flag.UINT, Flag.VARINT, Flag.UVARINT})
_DURATION_FLAGS = frozenset[int]({Flag.INT, Flag.DURATION, Flag.VARINT})
_FAMILIES: dict[Form, _Family] = {
    Form.SIGNED: _Family(
        _INTEGER_FLAGS, lambda value, _: as_signed(_number(value)), _signed_reader
    ),
    Form.UNSIGNED: _Family(_INTEGER_FLAGS, lambda value, _: _bits(value), _unsigned_reader),
    Form.BYTES: _Family(frozenset({Flag.BYTES, Flag.COMPACT_BYTES}), _same, _bytes_reader),
    Form.FLOAT: _Family(frozenset({Flag.FLOAT}), _same, _float_reader),
    Form.DECIMAL: _Family(frozenset({Flag.DECIMAL}), _same, _decimal_reader),
    Form.DATE: _Family(
        _INTEGER_FLAGS,
        lambda value, _: date_text(_bits(value)),
        lambda other, _: _packed_reader(other, _date_of),
    ),
    Form.DATETIME: _Family(
        _INTEGER_FLAGS,
        lambda value, fsp: datetime_text(_bits(value), fsp),
        lambda other, fsp: _packed_reader(other, _DATETIMES_OF[max(fsp, 0)]),
    ),
    Form.DURATION: _Family(
        _DURATION_FLAGS, lambda value, fsp: duration_text(_number(value), fsp), _duration_reader
    ),
    Form.JSON: _Family(frozenset({Flag.JSON}), _to_json, _json_reader),
}


def _family(column: Column) -> _Family | None:
    form = form_of(column)
    return None if form is None else _FAMILIES[form]


# --- FLOAT -----------------------------------------------------------------------------


def single(value: float) -> float:
    """What 32 bits hold of it. Raises OverflowError."""
    narrowed: float = _F32.unpack(_F32.pack(value))[0]
    return narrowed


def shortest_single(value: float) -> float:
    """The number with the fewest digits that is the same in 32 bits: 0.1, not 0.10000000149."""
    wanted = _F32.pack(value)
    for digits in range(_SINGLE_DIGITS_MIN, _SINGLE_DIGITS_MAX + 1):
        short = float(f"{value:.{digits}g}")
        if _F32.pack(short) == wanted:
            return short
    return value
