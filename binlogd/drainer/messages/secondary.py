"""The original's secondary protobuf: its relay log, and its messages in Kafka; reading them.

Values come out as the row decoder would give them: text types as bytes, times and decimals as text.
The numbers of the fields: docs/FORMAT.md, "In the original's format".
Source: tidb-binlog proto/binlog.proto and drainer/translator/kafka.go; tidb-tools
tidb-binlog/proto/proto/secondary_binlog.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from binlogd.drainer.messages.named import (
    NamedColumn,
    NamedDdl,
    NamedRow,
    NamedTransaction,
    RowKind,
)
from binlogd.drainer.messages.pb import head_of
from binlogd.errors import CorruptPayload, MalformedBinlog
from binlogd.tidb.columns import Value
from binlogd.wire.fields import end_of, read_uvarint, signed

_OF_BYTES = ("char", "text", "string", "blob", "binary", "geometry")
_DOUBLE = struct.Struct("<d")
_VARINT, _FIXED64, _BYTES = 0, 1, 2


class _Part(NamedTuple):
    """One field of a message: a number, or the bytes from `begin` to `end`."""

    number: int
    wire_type: int
    value: int
    begin: int
    end: int


def is_secondary(payload: bytes) -> bool:
    """Whether it is this message and not `pb_binlog.Binlog`, which has the same first fields.

    The third field of a table is a message here and a number there; a DDL is a message of three
    fields here, which a statement never looks like.
    """
    try:
        for part in _parts(payload, 0, len(payload)):
            if part.number == 3 and part.wire_type == _BYTES:
                return _is_secondary_dml(payload, part)
            if part.number == 4 and part.wire_type == _BYTES:
                inner = list(_parts(payload, part.begin, part.end))
                return bool(inner) and all(
                    each.wire_type == _BYTES and each.number in (1, 2, 3) for each in inner
                )
    except MalformedBinlog:
        return False
    return False


def _is_secondary_dml(payload: bytes, dml: _Part) -> bool:
    for table in _parts(payload, dml.begin, dml.end):
        for part in _parts(payload, table.begin, table.end):
            if part.number == 3:
                return part.wire_type == _BYTES
    return False


def decode(payload: bytes) -> NamedTransaction:
    """A serialised `Binlog`. Raises CorruptPayload; rows are decoded when they are asked for."""
    try:
        found = list(_parts(payload, 0, len(payload)))
        parts = {part.number: part for part in found}
        if len(parts) < len(found):
            raise MalformedBinlog("a field is there twice")
        ddl = _ddl(payload, parts[4]) if 4 in parts else None
    except (MalformedBinlog, UnicodeDecodeError) as error:
        raise _corrupt(error) from error

    def rows() -> Iterator[NamedRow]:
        try:
            for table in _parts_of(payload, parts[3]) if 3 in parts else ():
                if table.number == 1:
                    yield from _Table(payload, table).rows()
        except (MalformedBinlog, ValueError, struct.error) as error:
            raise _corrupt(error) from error

    return NamedTransaction(head_of(payload).commit_ts, ddl, rows)


def _corrupt(error: Exception) -> CorruptPayload:
    return CorruptPayload(f"the payload is no binlog of the original's relay log: {error}")


def _ddl(payload: bytes, part: _Part) -> NamedDdl:
    texts = {each.number: payload[each.begin : each.end] for each in _parts_of(payload, part)}
    query = texts.get(3, b"").decode(errors="surrogateescape")
    return NamedDdl(texts.get(1, b"").decode(), query)


class _Table:
    """One table of a transaction: what stands before its rows is read once."""

    def __init__(self, payload: bytes, table: _Part) -> None:
        self._payload, self._table = payload, table
        self._database = self._name = ""
        self._columns: list[tuple[str, str]] = []
        keys: list[tuple[str, tuple[str, ...]]] = []
        for part in _parts_of(payload, table):
            if part.number == 1:
                self._database = payload[part.begin : part.end].decode()
            elif part.number == 2:
                self._name = payload[part.begin : part.end].decode()
            elif part.number == 3:
                texts = _texts(payload, part)
                self._columns.append((texts.get(1, [""])[0], texts.get(2, [""])[0]))
            elif part.number == 5:
                texts = _texts(payload, part)
                keys.append((texts.get(1, [""])[0], tuple(texts.get(2, []))))
        keys.sort(key=lambda key: key[0].upper() != "PRIMARY")
        self._keys = tuple(columns for _, columns in keys)

    def rows(self) -> Iterator[NamedRow]:
        """The changes, in their order."""
        for part in _parts_of(self._payload, self._table):
            if part.number == 4:
                yield self._row(part)

    def _row(self, mutation: _Part) -> NamedRow:
        kind, row, before = RowKind.INSERT, None, None
        for part in _parts_of(self._payload, mutation):
            if part.number == 1:
                kind = RowKind(part.value)
            elif part.number == 2:
                row = self._values(part)
            elif part.number == 3:
                before = self._values(part)
        nothing: list[Value] = [None] * len(self._columns)
        values = nothing if row is None else row
        if kind is RowKind.UPDATE and before is None:
            raise ValueError("an update without the old row")
        old = {RowKind.INSERT: nothing, RowKind.DELETE: values}.get(kind, before or nothing)
        new = nothing if kind is RowKind.DELETE else values
        told = zip(self._columns, old, new, strict=True)
        columns = tuple(NamedColumn(*column, was, now) for column, was, now in told)
        return NamedRow(self._database, self._name, kind, columns, self._keys)

    def _values(self, row: _Part) -> list[Value]:
        columns = [part for part in _parts_of(self._payload, row) if part.number == 1]
        if len(columns) != len(self._columns):
            raise ValueError(
                f"a row of `{self._database}`.`{self._name}` has {len(columns)} values for"
                f" {len(self._columns)} columns"
            )
        return [
            _value(self._payload, part, mysql_type)
            for part, (_, mysql_type) in zip(columns, self._columns, strict=True)
        ]


def _value(payload: bytes, column: _Part, mysql_type: str) -> Value:
    value: Value = None
    for part in _parts_of(payload, column):
        if part.number == 1 and part.value:
            return None
        if part.number == 2:
            value = signed(part.value)
        elif part.number == 3:
            value = part.value
        elif part.number == 4:
            (value,) = _DOUBLE.unpack_from(payload, part.begin)
        elif part.number in (5, 6):
            value = _of_bytes(payload[part.begin : part.end], mysql_type)
    return value


def _of_bytes(raw: bytes, mysql_type: str) -> Value:
    if mysql_type == "bit":
        return int.from_bytes(raw, "big")
    if mysql_type == "year":
        return int(raw)
    return raw if any(kind in mysql_type for kind in _OF_BYTES) else raw.decode()


def _texts(payload: bytes, message: _Part) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for part in _parts_of(payload, message):
        if part.wire_type == _BYTES:
            found.setdefault(part.number, []).append(payload[part.begin : part.end].decode())
    return found


def _parts_of(payload: bytes, message: _Part) -> Iterator[_Part]:
    if message.wire_type != _BYTES:
        raise MalformedBinlog(f"field {message.number} is no message")
    return _parts(payload, message.begin, message.end)


def _parts(payload: bytes, at: int, end: int) -> Iterator[_Part]:
    while at < end:
        tag, at = read_uvarint(payload, at)
        if tag < 8:
            raise MalformedBinlog(f"proto: illegal tag 0 (wire type {tag})")
        wire_type, value, stop = tag & 7, 0, at
        if wire_type == _VARINT:
            value, stop = read_uvarint(payload, at)
        elif wire_type == _FIXED64:
            stop = end_of(payload, at, 8)
        elif wire_type == _BYTES:
            size, at = read_uvarint(payload, at)
            stop = end_of(payload, at, size)
        else:
            raise MalformedBinlog(f"proto: illegal wireType {wire_type}")
        if stop > end:
            raise MalformedBinlog("a field is longer than what holds it")
        yield _Part(tag >> 3, wire_type, value, at, stop)
        at = stop
