"""Transactions as `pb_binlog.Binlog`, the message of file-sink logs: rows to bytes, and back.

Encoding is one pass from values to bytes; no message object is built. A `TableEncoder` keeps what
never changes (names, type codes, the head of each column) as ready bytes, so that a value costs a
table look-up and a concatenation. Names are encoded, not checked; text is passed on as bytes.

A column is `name, tp (one byte: MySQL's type code), mysql_type, value, changed_value`; an update
has the old row in `value` and the new one in `changed_value`. A value is a flag byte and a body:
0 NULL; 2 bytes (all text, and decimals, times and JSON as text); 5 float, 8 bytes in memcomparable
order; 8 zigzag varint; 9 uvarint (UNSIGNED, ENUM, SET and BIT as numbers).

Source: tidb-binlog proto/pb_binlog.proto, drainer/translator/pb.go; docs/FORMAT.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from binlogd.errors import Corrupt
from binlogd.tidb.model import Column, SchemaState, Table, TableAt, Tp
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tso import Tso
from binlogd.wire.peek import Mutation


class EventKind(IntEnum):
    """What happened to a row; the numbers are those of the file."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


class PbColumn(NamedTuple):
    """One column of one row. `changed_value` is the new value of an update, else None."""

    tp: int
    mysql_type: str
    value: Value
    changed_value: Value


@dataclass(frozen=True, slots=True)
class PbEvent:
    """One changed row; columns by name, in the order of the table."""

    database: str
    table: str
    kind: EventKind
    columns: Mapping[str, PbColumn]


@dataclass(frozen=True, slots=True)
class PbTransaction:
    """One transaction: either rows in the order in which they changed, or one DDL text."""

    commit_ts: Tso
    ddl: str
    events: tuple[PbEvent, ...]


# --- rows to bytes -----------------------------------------------------------------------

MUTATION_INSERT, MUTATION_UPDATE = 0, 1
_DML_HEAD, _DDL_HEAD = b"\x08\x00\x10", b"\x08\x01\x10"
_NULL_DATUM = b"\x00"
_FLOAT = struct.Struct(">d")
_BITS = struct.Struct(">Q")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


_SMALL = tuple(_varint(number) for number in range(1 << 12))
_SMALL_SIZE = len(_SMALL)


def _uvarint(number: int) -> bytes:
    return _SMALL[number] if number < _SMALL_SIZE else _varint(number)


# A row holds whatever its table says: the datum functions take the value as it is (`Any`), since
# the type of the column, which chose the function, vouches for it.


def _signed(value: Any) -> bytes:
    if value is None:
        return _NULL_DATUM
    return b"\x08" + _uvarint(value << 1 if value >= 0 else ~value << 1 | 1)


def _unsigned(value: Any) -> bytes:
    return _NULL_DATUM if value is None else b"\x09" + _uvarint(value)


def _real(value: Any) -> bytes:
    if value is None:
        return _NULL_DATUM
    (bits,) = _BITS.unpack(_FLOAT.pack(value))
    return b"\x05" + _BITS.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def _bytes(value: Any) -> bytes:
    return _NULL_DATUM if value is None else b"\x02" + _uvarint(len(value) << 1) + value


def _text(value: Any) -> bytes:
    return _NULL_DATUM if value is None else _bytes(value.encode())


_INTEGERS = frozenset({Tp.TINY, Tp.SHORT, Tp.LONG, Tp.LONGLONG, Tp.INT24, Tp.YEAR})
_NUMBERED = frozenset({Tp.ENUM, Tp.SET, Tp.BIT})
_REALS = frozenset({Tp.FLOAT, Tp.DOUBLE})
_TEXTS = frozenset(
    {Tp.TIMESTAMP, Tp.DATE, Tp.DURATION, Tp.DATETIME, Tp.NEWDATE, Tp.JSON, Tp.NEW_DECIMAL}
)

_TYPE_NAMES: Mapping[int, str] = {
    Tp.DECIMAL_OLD: "decimal",
    Tp.TINY: "tinyint",
    Tp.SHORT: "smallint",
    Tp.LONG: "int",
    Tp.FLOAT: "float",
    Tp.DOUBLE: "double",
    Tp.NULL: "null",
    Tp.TIMESTAMP: "timestamp",
    Tp.LONGLONG: "bigint",
    Tp.INT24: "mediumint",
    Tp.DATE: "date",
    Tp.DURATION: "time",
    Tp.DATETIME: "datetime",
    Tp.YEAR: "year",
    Tp.VARCHAR: "varchar",
    Tp.BIT: "bit",
    Tp.JSON: "json",
    Tp.NEW_DECIMAL: "decimal",
    Tp.ENUM: "enum",
    Tp.SET: "set",
    Tp.TINY_BLOB: "tinytext",
    Tp.MEDIUM_BLOB: "mediumtext",
    Tp.LONG_BLOB: "longtext",
    Tp.BLOB: "text",
    Tp.VAR_STRING: "var_string",
    Tp.STRING: "char",
    Tp.GEOMETRY: "geometry",
}


def mysql_type(column: Column) -> str:
    """The name of the column's type as the original writes it; "" for one without a name."""
    kind = column.field_type
    name = _TYPE_NAMES.get(kind.tp, "")
    if kind.charset == "binary":
        if kind.tp in (Tp.TINY_BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB, Tp.BLOB):
            return name.replace("text", "blob")
        if kind.tp in (Tp.STRING, Tp.VARCHAR):
            return name.replace("char", "binary")
    return name


def _datum_of(column: Column) -> Callable[[Any], bytes]:
    tp = column.field_type.tp
    if column.field_type.is_array:
        return _text
    if tp in _NUMBERED or (tp in _INTEGERS and column.is_unsigned and tp != Tp.YEAR):
        return _unsigned
    if tp in _INTEGERS:
        return _signed
    if tp in _REALS:
        return _real
    return _text if tp in _TEXTS else _bytes


class _ColumnEncoder(NamedTuple):
    column_id: int
    head: bytes  # name, tp and mysql_type, each with its tag
    datum: Callable[[Any], bytes]

    def one(self, value: Value) -> bytes:
        """An entry of `row` with a value."""
        datum = self.datum(value)
        column = self.head + b"\x22" + _uvarint(len(datum)) + datum
        return b"\x22" + _uvarint(len(column)) + column

    def two(self, old: Value, new: Value) -> bytes:
        """An entry of `row` with a value and a changed value."""
        before, after = self.datum(old), self.datum(new)
        column = b"".join(
            (
                self.head,
                b"\x22",
                _uvarint(len(before)),
                before,
                b"\x2a",
                _uvarint(len(after)),
                after,
            )
        )
        return b"\x22" + _uvarint(len(column)) + column


class TableEncoder:
    """Rows of one table, as one moment's schema sees it, to entries of `DMLData.events`.

    Inserts have every column that the schema knows, NULL where no value is given; updates those
    public and not generated of which there is a new value; deletes those of which there is a value.
    Values are of the kind that the row decoder gives for the column.
    """

    def __init__(self, database: str, table: Table) -> None:
        names = _bytes_field(b"\x0a", database.encode())
        names += _bytes_field(b"\x12", table.name.encode()) + b"\x18"
        self._heads = [names + bytes((kind,)) for kind in EventKind]
        self._columns = [
            _ColumnEncoder(column.id, _column_head(column), _datum_of(column))
            for column in table.columns
        ]
        self._updated = [
            encoder
            for encoder, column in zip(self._columns, table.columns, strict=True)
            if column.is_public and not column.is_generated
        ]

    def insert(self, values: Mapping[int, Value]) -> bytes:
        """A new row."""
        get = values.get
        entries = [each.one(get(each.column_id)) for each in self._columns]
        return _event(self._heads[EventKind.INSERT], entries)

    def update(self, old: Mapping[int, Value], new: Mapping[int, Value]) -> bytes:
        """A row before and after."""
        entries = [
            each.two(old.get(each.column_id), new[each.column_id])
            for each in self._updated
            if each.column_id in new
        ]
        return _event(self._heads[EventKind.UPDATE], entries)

    def delete(self, values: Mapping[int, Value]) -> bytes:
        """A row that is gone."""
        entries = [
            each.one(values[each.column_id]) for each in self._columns if each.column_id in values
        ]
        return _event(self._heads[EventKind.DELETE], entries)


def _bytes_field(tag: bytes, content: bytes) -> bytes:
    return tag + _uvarint(len(content)) + content


def _column_head(column: Column) -> bytes:
    return (
        _bytes_field(b"\x0a", column.name.encode())
        + _bytes_field(b"\x12", bytes((column.field_type.tp,)))
        + _bytes_field(b"\x1a", mysql_type(column).encode())
    )


def _event(head: bytes, entries: Sequence[bytes]) -> bytes:
    event = head + b"".join(entries)
    return b"\x0a" + _uvarint(len(event)) + event


class ChangeEncoder:
    """What a transaction did to one table, from row bytes to events. Keep it, like a RowDecoder."""

    def __init__(self, table: TableAt) -> None:
        self._decoder = RowDecoder(table)
        # an insert shows columns on their way in or out too, as the original does
        columns = tuple(replace(each, state=SchemaState.PUBLIC) for each in table.info.columns)
        self._insert_decoder = RowDecoder(replace(table, info=replace(table.info, columns=columns)))
        self._encoder = TableEncoder(table.database, table.info)

    def events(self, mutation: Mutation) -> Iterator[bytes]:
        """One event a row, in the order in which the rows changed. Raises CorruptRow."""
        encoder, decoder, decode_insert = self._encoder, self._decoder, self._insert_decoder.insert
        inserted, updated = iter(mutation.inserted), iter(mutation.updated)
        deleted = iter(mutation.deleted)
        for kind in mutation.sequence:
            if kind == MUTATION_INSERT:
                yield encoder.insert(decode_insert(next(inserted)))
            elif kind == MUTATION_UPDATE:
                yield encoder.update(*decoder.update(next(updated)))
            else:
                yield encoder.delete(decoder.delete(next(deleted)))


def dml_binlog(commit_ts: Tso, events: Iterable[bytes]) -> bytes:
    """A `Binlog` of the rows of one transaction, as `TableEncoder` gives them."""
    data = b"".join(events)
    return b"".join((_DML_HEAD, _uvarint(commit_ts), b"\x1a", _uvarint(len(data)), data))


def ddl_binlog(commit_ts: Tso, text: str) -> bytes:
    """A `Binlog` of one DDL; see `ddl_text`."""
    return (
        _DDL_HEAD
        + _uvarint(commit_ts)
        + _bytes_field(b"\x22", text.encode(errors="surrogateescape"))
    )


def ddl_text(database: str, query: str) -> str:
    """What the file holds for a DDL: always ended by one `;` more, behind a `use` if there is a
    database to use (CREATE DATABASE has none)."""
    if not database:
        return f"{query};"
    name = database.replace("`", "``")
    return f"use `{name}`; {query};"


# --- bytes to rows -----------------------------------------------------------------------


def decode(payload: bytes) -> PbTransaction:
    """A serialised `Binlog`. Raises Corrupt for bytes that are none."""
    try:
        return _transaction(payload)
    except (IndexError, ValueError, struct.error) as error:
        raise Corrupt(f"the payload is no pb_binlog.Binlog: {error}") from error


class PbHead(NamedTuple):
    """What a reader must know of a transaction that it does not decode."""

    commit_ts: Tso
    is_ddl: bool


def head_of(payload: bytes) -> PbHead:
    """The head of a serialised `Binlog`, whose first fields are always there. Raises Corrupt."""
    if payload[:2] not in (b"\x08\x00", b"\x08\x01") or payload[2:3] != b"\x10":
        raise Corrupt("the payload is no pb_binlog.Binlog: its type or commit_ts is missing")
    try:
        commit_ts, _ = _read_uvarint(payload, 3)
    except IndexError as error:
        raise Corrupt("the payload is no pb_binlog.Binlog: its commit_ts is cut") from error
    return PbHead(Tso(commit_ts), payload[1] == 1)


def _read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:  # ends at the first byte below 0x80, or by IndexError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterable[tuple[int, int | bytes]]:
    at, end = 0, len(data)
    while at < end:
        tag, at = _read_uvarint(data, at)
        number, at = _read_uvarint(data, at)
        if tag & 7 == 2:
            if at + number > end:
                raise IndexError("a field is longer than what holds it")
            yield tag >> 3, data[at : at + number]
            at += number
        elif tag & 7 == 0:
            yield tag >> 3, number
        else:
            raise ValueError(f"wire type {tag & 7}")


def _transaction(payload: bytes) -> PbTransaction:
    commit_ts, ddl = 0, ""
    events: list[PbEvent] = []
    for number, value in _fields(payload):
        if number == 2 and isinstance(value, int):
            commit_ts = value
        elif number == 3 and isinstance(value, bytes):
            events += [_read_event(e) for n, e in _fields(value) if n == 1 and isinstance(e, bytes)]
        elif number == 4 and isinstance(value, bytes):
            ddl = value.decode(errors="surrogateescape")
    return PbTransaction(Tso(commit_ts), ddl, tuple(events))


def _read_event(data: bytes) -> PbEvent:
    database = table = ""
    kind = EventKind.INSERT
    columns: dict[str, PbColumn] = {}
    for number, value in _fields(data):
        if isinstance(value, int):
            kind = EventKind(value)
        elif number == 4:
            name, column = _read_column(value)
            columns[name] = column
        elif number == 1:
            database = value.decode()
        elif number == 2:
            table = value.decode()
    return PbEvent(database, table, kind, columns)


def _read_column(data: bytes) -> tuple[str, PbColumn]:
    parts: dict[int, bytes] = {
        number: value for number, value in _fields(data) if isinstance(value, bytes)
    }
    tp = parts[2][0] if parts.get(2) else 0
    old, new = (_read_datum(parts.get(number, _NULL_DATUM), tp) for number in (4, 5))
    return parts.get(1, b"").decode(), PbColumn(tp, parts.get(3, b"").decode(), old, new)


def _read_datum(datum: bytes, tp: int) -> Value:
    flag = datum[0]
    if flag == 0:
        return None
    if flag == 2:
        size, at = _read_uvarint(datum, 1)
        if at + (size >> 1) != len(datum):
            raise ValueError("a text's length contradicts its value")
        return datum[at:].decode() if tp in _TEXTS else datum[at:]
    if flag == 5:
        (bits,) = _BITS.unpack(datum[1:])
        (real,) = _FLOAT.unpack(_BITS.pack(bits ^ _SIGN if bits & _SIGN else bits ^ _ALL))
        assert isinstance(real, float)
        return real
    if flag not in (8, 9):
        raise ValueError(f"a value has the unknown flag {flag}")
    number, _ = _read_uvarint(datum, 1)
    return number if flag == 9 else number >> 1 ^ -(number & 1)
