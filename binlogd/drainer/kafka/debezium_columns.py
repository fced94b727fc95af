"""What a column is in Debezium's messages: its type and how a value is written, in one table.

| MySQL | type, name | written as |
|---|---|---|
| TINYINT, SMALLINT; with MEDIUMINT, INT; BIGINT | int16; int32; int64, UNSIGNED wider | number |
| BIGINT UNSIGNED, DECIMAL | bytes, Connect's Decimal | as the encoding does: exact in each |
| FLOAT; DOUBLE | float; double | number |
| DATE | int32, Date | days since 1970 |
| DATETIME(0..3); DATETIME(4..6) | int64, Timestamp; MicroTimestamp | ms; µs since 1970 |
| TIMESTAMP | string, ZonedTimestamp | text, `2024-02-29T12:00:00Z` |
| TIME | int64, MicroTime | µs |
| YEAR | int32, Year | number |
| BIT(1); BIT(n) | boolean; bytes, Bits | boolean; bytes, lowest first |
| BINARY, BLOB | bytes | bytes |
| ENUM, SET, JSON, text | string, Enum, EnumSet, Json | text; labels of a SET joined by commas |

Names are Debezium's, below `io.debezium`; a type with a name is told with it. A date that is none
(a month or day of zero) is null, in a NOT NULL column 0 or the epoch. A NOT NULL column that was
added has a default: what the rows from before it hold. Of a column that may be NULL it is not told:
Kafka Connect would put it in the place of NULL.
Source: debezium.io documentation, MySQL connector: change events, data type mappings.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from binlogd.drainer.kafka.row_events import shortest, text_of
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column
from binlogd.tidb.row import Value
from binlogd.tidb.times import duration_us

Schema = dict[str, Any]
"""As Kafka Connect's JsonConverter reads it; other forms are made of it."""
Writer = Callable[[Value], Any]
Exact = Callable[[int], Writer]
"""Of a scale: how DECIMAL, told as text, and BIGINT UNSIGNED are written."""
DECIMAL = "org.apache.kafka.connect.data.Decimal"
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_MILLIS_DIGITS_MAX = 3
_INTEGERS: Mapping[int, tuple[str, str]] = {
    Tp.TINY: ("int16", "int16"),
    Tp.SHORT: ("int16", "int32"),
    Tp.INT24: ("int32", "int32"),
    Tp.LONG: ("int32", "int64"),
}
"""Signed, and UNSIGNED."""


class ColumnType(NamedTuple):
    """The type of a column, without its name, and how a value that is not NULL is written."""

    schema: Schema
    write: Writer


def column_type(column: Column, exact: Exact) -> ColumnType:
    """`exact` is asked for what no number of 64 bits holds."""
    kind = column.field_type
    if kind.tp in STRING_TYPES:
        if column.is_binary:
            return ColumnType({"type": "bytes"}, _same)
        return ColumnType({"type": "string"}, text_of(column))
    if kind.tp in _INTEGERS:
        return ColumnType({"type": _INTEGERS[kind.tp][column.is_unsigned]}, _same)
    if kind.tp == Tp.NEW_DECIMAL or (kind.tp == Tp.LONGLONG and column.is_unsigned):
        is_decimal = kind.tp == Tp.NEW_DECIMAL
        precision, scale = (kind.flen, max(kind.decimal, 0)) if is_decimal else (20, 0)
        parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
        schema = {"type": "bytes", "name": DECIMAL, "version": 1, "parameters": parameters}
        return ColumnType(schema, exact(scale))
    special = _SPECIAL.get(kind.tp)
    return special(column) if special is not None else ColumnType({"type": "string"}, _same)


def default_of(column: Column, write: Writer) -> Any:
    """What a NOT NULL column holds in rows from before it was added, as it is written; else None.
    Raises CorruptRow for a default that is none of the column."""
    was_added = column.origin_default is not None or column.origin_default_bit is not None
    return write(missing_value(column)) if was_added and column.not_null else None


def _named(kind: str, name: str, **parameters: str) -> Schema:
    more = {"parameters": parameters} if parameters else {}
    return {"type": kind, "name": f"io.debezium.{name}", "version": 1, **more}


def _same(value: Value) -> Any:
    return value


def _bit(column: Column) -> ColumnType:
    bits = column.field_type.flen
    if bits == 1:
        return ColumnType({"type": "boolean"}, bool)
    size = (max(bits, 1) + 7) // 8

    def write(value: Value) -> bytes:
        assert isinstance(value, int)
        return value.to_bytes(size, "little")

    return ColumnType(_named("bytes", "data.Bits", length=str(bits)), write)


def _labelled(column: Column) -> ColumnType:
    kind = column.field_type
    name = "data.EnumSet" if kind.tp == Tp.SET else "data.Enum"

    def write(value: Value) -> str:
        assert isinstance(value, int)
        return kind.label(value)

    return ColumnType(_named("string", name, allowed=",".join(kind.elems)), write)


def _date(column: Column) -> ColumnType:
    none = 0 if column.not_null else None

    def write(value: Value) -> int | None:
        day = _day(str(value))
        return none if day is None else day

    return ColumnType(_named("int32", "time.Date"), write)


def _datetime(column: Column) -> ColumnType:
    none = 0 if column.not_null else None
    is_ms = column.field_type.decimal <= _MILLIS_DIGITS_MAX
    unit_us = 1000 if is_ms else 1

    def write(value: Value) -> int | None:
        date, _, clock = str(value).partition(" ")
        day = _day(date)
        return none if day is None else (day * _DAY_US + duration_us(clock)) // unit_us

    return ColumnType(_named("int64", "time.Timestamp" if is_ms else "time.MicroTimestamp"), write)


def _timestamp(column: Column) -> ColumnType:
    none = "1970-01-01T00:00:00Z" if column.not_null else None

    def write(value: Value) -> str | None:
        text = str(value)
        return none if _day(text[:10]) is None else text.replace(" ", "T") + "Z"

    return ColumnType(_named("string", "time.ZonedTimestamp"), write)


def _time(_column: Column) -> ColumnType:
    return ColumnType(_named("int64", "time.MicroTime"), lambda value: duration_us(str(value)))


def _day(text: str) -> int | None:
    """Days since 1970; None for what is no day of a calendar."""
    try:
        return datetime.date.fromisoformat(text).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


_SPECIAL: Mapping[int, Callable[[Column], ColumnType]] = {
    Tp.LONGLONG: lambda _: ColumnType({"type": "int64"}, _same),
    Tp.FLOAT: lambda _: ColumnType({"type": "float"}, shortest),
    Tp.DOUBLE: lambda _: ColumnType({"type": "double"}, _same),
    Tp.YEAR: lambda _: ColumnType(_named("int32", "time.Year"), _same),
    Tp.DATE: _date,
    Tp.NEWDATE: _date,
    Tp.DATETIME: _datetime,
    Tp.TIMESTAMP: _timestamp,
    Tp.DURATION: _time,
    Tp.BIT: _bit,
    Tp.ENUM: _labelled,
    Tp.SET: _labelled,
    Tp.JSON: lambda _: ColumnType(_named("string", "data.Json"), _same),
}
