"""Transactions as `pb_binlog.Binlog`, the message of file-sink logs: what they are, how they read.

A column is `name, tp (one byte: MySQL's type code), mysql_type, value, changed_value`. What a value
is, and which columns a row has: docs/FORMAT.md, "File sink".
Source: tidb-binlog proto/pb_binlog.proto, drainer/translator/pb.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from binlogd.drainer.messages.named import (
    NamedColumn,
    NamedDdl,
    NamedRow,
    NamedTransaction,
    RowKind,
)
from binlogd.errors import CorruptPayload, CorruptRow
from binlogd.tidb.columns import Value
from binlogd.tidb.datum import COMPACT, FLOAT, NIL, UVARINT, VARINT, read_datum
from binlogd.tidb.kinds import Tp
from binlogd.tidb.varint import read_uvarint
from binlogd.tso import Tso

NULL_DATUM = b"\x00"
TEXT_TYPES = frozenset[int](
    {Tp.TIMESTAMP, Tp.DATE, Tp.DURATION, Tp.DATETIME, Tp.NEWDATE, Tp.JSON, Tp.NEW_DECIMAL}
)
"""Types whose values are written as text, and are `str` when read."""


class PbReader:
    """Reads transaction after transaction; what columns begin with is remembered between them."""

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head] = {}

    def named(self, payload: bytes) -> NamedTransaction:
        """A serialised `Binlog`; rows are decoded one by one, when they are asked for. Raises
        CorruptPayload for bytes that are none; so does whoever goes along the rows."""
        try:
            commit_ts, ddl, data = _outline(payload)
        except _MALFORMED as error:
            raise _corrupt(error) from error

        def rows() -> Iterator[NamedRow]:
            try:
                for begin, end in data:
                    for tag, at, stop in _spans(payload, begin, end):
                        if tag == _EVENTS_TAG:
                            yield self._row(payload[at:stop])
            except _MALFORMED as error:
                raise _corrupt(error) from error

        return NamedTransaction(commit_ts, None if ddl is None else without_use(ddl), rows)

    def _row(self, data: bytes) -> NamedRow:
        database = table = ""
        kind = RowKind.INSERT
        columns: dict[str, NamedColumn] = {}
        at, end = 0, len(data)
        while at < end:
            tag, size = data[at], data[at + 1]
            at += 2
            if size > 0x7F:
                size, at = read_uvarint(data, at - 1)
            if tag == _KIND_TAG:
                kind = RowKind(size)
                continue
            stop = at + size
            if stop > end or tag & 7 != 2 or tag == _NO_FIELD:
                raise ValueError(f"a field with tag {tag} of {size} bytes in an event")
            if tag == _ROW_TAG:
                column = self._column(data, at, stop)
                columns[column.name] = column
            elif tag == _DATABASE_TAG:
                database = data[at:stop].decode()
            elif tag == _TABLE_TAG:
                table = data[at:stop].decode()
            at = stop
        found = list(columns.values())
        if kind is RowKind.INSERT:
            found = [NamedColumn(each.name, each.mysql_type, None, each.old) for each in found]
        elif kind is RowKind.DELETE:
            found = [NamedColumn(each.name, each.mysql_type, each.old, None) for each in found]
        return NamedRow(database, table, kind, tuple(found))

    def _column(self, data: bytes, begin: int, stop: int) -> NamedColumn:
        """As in an update: `old` is `value`, `new` is `changed_value`."""
        # name, tp and mysql_type, each with a tag and a size of one byte, unless a name is long
        at = begin + 2 + data[begin + 1]
        at += 2 + data[at + 1]
        at += 2 + data[at + 1]
        head = self._heads.get(data[begin:at])
        if head is None or data[at] != _VALUE_TAG:
            return self._column_of_any_layout(data[begin:stop], at - begin)
        size, value_at = data[at + 1], at + 2
        if size > 0x7F:
            size, value_at = read_uvarint(data, at + 1)
        end = value_at + size
        if end == stop:
            value = _read_datum(data[value_at:end], head.tp)
            return NamedColumn(head.name, head.mysql_type, value, None)
        size, changed_at = read_uvarint(data, end + 1)
        if data[end] != _CHANGED_TAG or changed_at + size != stop:
            return self._column_of_any_layout(data[begin:stop], at - begin)
        value = _read_datum(data[value_at:end], head.tp)
        changed = _read_datum(data[changed_at:stop], head.tp)
        return NamedColumn(head.name, head.mysql_type, value, changed)

    def _column_of_any_layout(self, data: bytes, head_bytes: int) -> NamedColumn:
        """A column of any layout; remembers its head if it is of the usual one."""
        spans = _spans(data, 0, len(data))
        parts = {tag >> 3: data[at:end] for tag, at, end in spans if tag & 7 == 2}
        name, tp, kind = (parts.get(number, b"") for number in (1, 2, 3))
        head = _Head(name.decode(), tp[0] if tp else 0, kind.decode())
        usual = b"".join((b"\x0a", data[1:2], name, b"\x12", bytes((len(tp),)), tp, b"\x1a"))
        is_usual = len(name) == data[1] and data.startswith(usual) and len(kind) <= 0x7F
        if is_usual and head_bytes == len(usual) + 1 + len(kind):
            if len(self._heads) >= _HEADS_KEPT_MAX:
                self._heads.clear()
            self._heads[data[:head_bytes]] = head
        old, new = (_read_datum(parts.get(n, NULL_DATUM), head.tp) for n in (4, 5))
        return NamedColumn(head.name, head.mysql_type, old, new)


def _corrupt(error: Exception) -> CorruptPayload:
    return CorruptPayload(f"the payload is no pb_binlog.Binlog: {error}")


_USE = re.compile(r"\s*use\s+(?:`((?:[^`]|``)+)`|([^\s;`]+))\s*;", re.IGNORECASE)


def without_use(text: str) -> NamedDdl:
    """The statement of a DDL text, and the database that a leading `use` names."""
    match, database = _USE.match(text), ""
    if match is not None:
        database = match[1].replace("``", "`") if match[1] else match[2]
        text = text[match.end() :]
    return NamedDdl(database, text.strip().rstrip(";").rstrip())


_HEADS_KEPT_MAX = 10_000
_FIELDS, _DATA_TAG, _DDL_TAG = 4, 0x1A, 0x22
_EVENTS_TAG, _NO_FIELD = 0x0A, 0x02
_DATABASE_TAG, _TABLE_TAG, _KIND_TAG, _ROW_TAG = 0x0A, 0x12, 0x18, 0x22
_VALUE_TAG, _CHANGED_TAG = 0x22, 0x2A


class _Head(NamedTuple):
    name: str
    tp: int
    mysql_type: str


class PbHead(NamedTuple):
    """What a reader must know of a transaction that it does not decode."""

    commit_ts: Tso
    is_ddl: bool


def head_of(payload: bytes) -> PbHead:
    """The head of a serialised `Binlog`, whose first fields are always there. Raises
    CorruptPayload."""
    return _head(payload)[0]


def _head(payload: bytes) -> tuple[PbHead, int]:
    """The head, and where it ends."""
    if payload[:2] not in (b"\x08\x00", b"\x08\x01") or payload[2:3] != b"\x10":
        raise CorruptPayload("the payload is no pb_binlog.Binlog: its type or commit_ts is missing")
    try:
        commit_ts, end = read_uvarint(payload, 3)
    except (IndexError, CorruptRow) as error:
        raise CorruptPayload("the payload is no pb_binlog.Binlog: its commit_ts is cut") from error
    return PbHead(Tso(commit_ts), payload[1] == 1), end


def _outline(payload: bytes) -> tuple[Tso, str | None, list[tuple[int, int]]]:
    """The commit_ts that `head_of` says, the text of a DDL, and where rows begin and end."""
    head, at = _head(payload)
    ddl, data = None, []
    for tag, begin, end in _spans(payload, at, len(payload)):
        if tag == _DATA_TAG:
            data.append((begin, end))
        elif tag == _DDL_TAG:
            ddl = payload[begin:end].decode(errors="surrogateescape")
        elif tag >> 3 <= _FIELDS:
            raise ValueError(f"a field with the tag {tag} behind the head")
    return head.commit_ts, ddl, data


def _spans(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Tag, begin and end of each field; of a varint the begin."""
    after: int  # a size has up to 64 bits, whatever the end has
    while at < end:
        tag, at = read_uvarint(data, at)
        size, after = read_uvarint(data, at)
        if tag & 7 == 2:
            at, after = after, after + size
        if tag & 7 not in (0, 2) or tag < 8:  # no field has the number 0
            raise ValueError(f"a field with the tag {tag}")
        if after > end:
            raise IndexError("a field is longer than what holds it")
        yield tag, at, after
        at = after


def _read_datum(datum: bytes, tp: int) -> Value:
    flag, value, end = read_datum(datum, 0)
    if flag not in _FLAGS or end != len(datum):
        raise ValueError(f"a value with the flag {flag} ends at {end} of {len(datum)}")
    return value.decode() if isinstance(value, bytes) and tp in TEXT_TYPES else value


_FLAGS = frozenset[int]({NIL, COMPACT, FLOAT, VARINT, UVARINT})
_MALFORMED = (IndexError, ValueError, CorruptRow)
"""What reading raises at bytes that are none."""
