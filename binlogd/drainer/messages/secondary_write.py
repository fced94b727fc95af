"""Rows and DDL to the original's secondary protobuf; see `secondary`, which reads it.

Every message begins with what never changes (names, columns, keys of a table), which is kept as
ready bytes. All columns of the schema are written, those on their way in or out too: in an insert
or a delete a missing one has its default, in an update it is NULL (as the original has it).

Source: tidb-binlog drainer/translator/kafka.go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.messages.pb_write import mysql_type
from binlogd.tidb.columns import Value
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.kinds import SchemaState, Tp
from binlogd.tidb.model import Column, Table, TableAt
from binlogd.tidb.row import RowDecoder
from binlogd.tidb.varint import bytes_field, uvarint
from binlogd.tso import Tso
from binlogd.wire.in_order import INSERT, UPDATE, changes_of
from binlogd.wire.mutation import Mutation

_DOUBLE = struct.Struct("<d")
_NULL = b"\x0a\x02\x08\x01"
_NUMBERS = frozenset({Tp.TINY, Tp.SHORT, Tp.LONG, Tp.LONGLONG, Tp.INT24})
_REALS = frozenset({Tp.FLOAT, Tp.DOUBLE})
_BYTES, _STRING = b"\x2a", b"\x32"


class SecondaryEncoder:
    """One table as the rows of one moment see it. Keep it, like a RowDecoder."""

    def __init__(self, table: TableAt) -> None:
        info = table.info
        columns = tuple(replace(each, state=SchemaState.PUBLIC) for each in info.columns)
        self._decoder = RowDecoder(replace(table, info=replace(info, columns=columns)))
        self._columns = [
            (each.id, _writer_of(each), _writer_of(each)(missing_value(each))) for each in columns
        ]
        self._head = (
            bytes_field(b"\x0a", table.database.encode())
            + bytes_field(b"\x12", info.name.encode())
            + b"".join(bytes_field(b"\x1a", _column_info(each)) for each in info.columns)
        )
        self._tail = b"".join(bytes_field(b"\x2a", _key(*key)) for key in _unique_keys(info))

    def table(self, mutations: Iterable[bytes]) -> bytes:
        """An entry of `DMLData.tables`, of entries that `mutations` gave."""
        return bytes_field(b"\x0a", b"".join((self._head, *mutations, self._tail)))

    def mutations(self, mutation: Mutation) -> Iterator[bytes]:
        """An entry of `Table.mutations` for each row, in their order. Raises CorruptRow."""
        for kind, old, new in changes_of(mutation, self._decoder):
            if kind == INSERT:
                yield _mutation(RowKind.INSERT, self._row(new, is_whole=True))
            elif kind == UPDATE:
                before = self._row(old, is_whole=False)
                yield _mutation(RowKind.UPDATE, self._row(new, is_whole=False), before)
            else:
                yield _mutation(RowKind.DELETE, self._row(old, is_whole=True))

    def _row(self, values: Mapping[int, Value], *, is_whole: bool) -> bytes:
        return b"".join(
            [
                write(values[each]) if each in values else (missing if is_whole else _NULL)
                for each, write, missing in self._columns
            ]
        )


def dml_message(commit_ts: Tso, tables: Iterable[bytes]) -> bytes:
    """A `Binlog` of the rows of one transaction, of what `SecondaryEncoder.table` gave."""
    return b"\x08\x00\x10" + uvarint(commit_ts) + bytes_field(b"\x1a", b"".join(tables))


def ddl_message(commit_ts: Tso, database: str, table: str, query: bytes) -> bytes:
    """A `Binlog` of a DDL; `query` is the text as the upstream's binlog has it."""
    names = bytes_field(b"\x0a", database.encode()) + bytes_field(b"\x12", table.encode())
    data = names + bytes_field(b"\x1a", query)
    return b"\x08\x01\x10" + uvarint(commit_ts) + bytes_field(b"\x22", data)


def _mutation(kind: RowKind, row: bytes, before: bytes | None = None) -> bytes:
    content = b"\x08" + bytes((kind,)) + bytes_field(b"\x12", row)
    if before is not None:
        content += bytes_field(b"\x1a", before)
    return bytes_field(b"\x22", content)


def _column_info(column: Column) -> bytes:
    kind = column.field_type
    return b"".join(
        (
            bytes_field(b"\x0a", column.name.encode()),
            bytes_field(b"\x12", mysql_type(column).encode()),
            b"\x18\x01" if column.is_primary_key else b"\x18\x00",
            b"\x20" + uvarint(kind.flen),
            b"\x28" + uvarint(kind.decimal),
        )
    )


def _unique_keys(info: Table) -> Iterator[tuple[str, list[str]]]:
    """The handle as PRIMARY; then every unique index of any state, with its first letters too."""
    handle = info.handle_column()
    if handle is not None:
        yield "PRIMARY", [handle.name]
    for index in info.indexes:
        is_told = index.name.upper() == "PRIMARY" and handle is not None
        if (index.is_unique or index.is_primary) and not is_told:
            yield index.name, [part.name for part in index.columns]


def _key(name: str, columns: list[str]) -> bytes:
    return bytes_field(b"\x0a", name.encode()) + b"".join(
        bytes_field(b"\x12", column.encode()) for column in columns
    )


# --- values ----------------------------------------------------------------------------------


def _writer_of(column: Column) -> Callable[[Any], bytes]:
    """From a value of the column, whose type vouches for it, to an entry of `Row.columns`."""
    tp = column.field_type.tp
    write = _text(_STRING)
    if column.field_type.is_array or tp == Tp.JSON or column.is_binary:
        write = _text(_BYTES)
    elif tp in _NUMBERS and not column.is_unsigned:
        write = _varint(b"\x10")
    elif tp in _NUMBERS or tp in (Tp.ENUM, Tp.SET):
        write = _varint(b"\x18")
    elif tp in _REALS:
        write = _real
    elif tp == Tp.BIT:
        write = _bits(max(1, (column.field_type.flen + 7) // 8))
    return write


def _entry(content: bytes) -> bytes:
    return bytes_field(b"\x0a", content)


def _varint(tag: bytes) -> Callable[[Any], bytes]:
    return lambda value: _NULL if value is None else _entry(tag + uvarint(value))


def _real(value: Any) -> bytes:
    return _NULL if value is None else _entry(b"\x21" + _DOUBLE.pack(value))


def _bits(size: int) -> Callable[[Any], bytes]:
    def write(value: Any) -> bytes:
        return _NULL if value is None else _entry(bytes_field(b"\x2a", value.to_bytes(size, "big")))

    return write


def _text(tag: bytes) -> Callable[[Any], bytes]:
    """Of text as bytes or as str, and of a YEAR."""

    def write(value: Any) -> bytes:
        if value is None:
            return _NULL
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        return _entry(bytes_field(tag, raw))

    return write
