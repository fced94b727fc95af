"""Values to `pb_binlog.Binlog`, the message of file-sink logs: one pass, no message objects.

What never changes (names, type codes, the head of each column by the size of its value) is kept as
ready bytes, so that a value costs a look-up and a concatenation. Names are encoded, not checked;
text is passed on as bytes. The format is described in `drainer/messages/pb.py`.

Source: tidb-binlog proto/pb_binlog.proto, drainer/translator/pb.go; docs/FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.messages.pb import NULL_DATUM
from binlogd.tidb.columns import Value
from binlogd.tidb.datum import compact_bytes, comparable_float
from binlogd.tidb.layout import Form, form_of
from binlogd.tidb.model import Column, Table, Tp
from binlogd.tidb.varint import bytes_field, uvarint, varint
from binlogd.tso import Tso

_DML_HEAD, _DDL_HEAD = b"\x08\x00\x10", b"\x08\x01\x10"


# A row holds whatever its table says: the datum functions take the value as it is (`Any`), since
# the type of the column, which chose the function, vouches for it.


def _bytes(value: Any) -> bytes:
    return NULL_DATUM if value is None else b"\x02" + compact_bytes(value)


def _text(value: Any) -> bytes:
    return NULL_DATUM if value is None else _bytes(value.encode())


_DATUMS: dict[Form, Callable[[Any], bytes]] = {
    Form.SIGNED: lambda value: NULL_DATUM if value is None else b"\x08" + varint(value),
    Form.UNSIGNED: lambda value: NULL_DATUM if value is None else b"\x09" + uvarint(value),
    Form.BYTES: _bytes,
    Form.FLOAT: lambda value: NULL_DATUM if value is None else b"\x05" + comparable_float(value),
}
"""Of values that the file has as numbers or bytes; all others are text."""

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


def datum_of(column: Column) -> Callable[[Any], bytes]:
    """From a value of the column to the bytes of `value`."""
    form = form_of(column)
    return _bytes if form is None else _DATUMS.get(form, _text)


class EntryHeads(dict[int, bytes]):
    """By the size of a value: all that stands before it in an entry of `row`."""

    def __init__(self, column_head: bytes) -> None:
        super().__init__()
        self._column_head = column_head

    def __missing__(self, size: int) -> bytes:
        value_head = b"\x22" + uvarint(size)
        column = self._column_head + value_head
        head = b"\x22" + uvarint(len(column) + size) + column
        if len(self) < _HEADS_KEPT_MAX:
            self[size] = head
        return head


class PairHeads(dict[int, bytes]):
    """By `old size << 30 | new size`: all that stands before the old value of an update."""

    def __init__(self, column_head: bytes) -> None:
        super().__init__()
        self._column_head = column_head

    def __missing__(self, sizes: int) -> bytes:
        old, new = sizes >> 30, sizes & PAIR_SIZE_MAX
        column = self._column_head + b"\x22" + uvarint(old)
        size = len(column) + old + len(changed_head(new)) + new
        head = b"\x22" + uvarint(size) + column
        if len(self) < _HEADS_KEPT_MAX:
            self[sizes] = head
        return head


_HEADS_KEPT_MAX = 512
PAIR_SIZE_MAX = (1 << 30) - 1
"""Values of an update are smaller; TiDB refuses rows of 6 MB and more by default."""
_CHANGED_HEADS = tuple(b"\x2a" + uvarint(size) for size in range(256))


def changed_head(size: int) -> bytes:
    """What stands before the new value of an update."""
    return _CHANGED_HEADS[size] if size < 256 else b"\x2a" + uvarint(size)


class _ColumnEncoder(NamedTuple):
    column_id: int
    heads: EntryHeads
    pairs: PairHeads
    datum: Callable[[Any], bytes]

    def one(self, value: Value) -> bytes:
        """An entry of `row` with a value."""
        datum = self.datum(value)
        return self.heads[len(datum)] + datum

    def two(self, old: Value, new: Value) -> bytes:
        """An entry of `row` with a value and a changed value."""
        before, after = self.datum(old), self.datum(new)
        head = self.pairs[len(before) << 30 | len(after)]
        return b"".join((head, before, changed_head(len(after)), after))


class TableEncoder:
    """Rows of one table, as one moment's schema sees it, to entries of `DMLData.events`.

    Inserts have every column that the schema knows, NULL where no value is given; updates those
    public and not generated of which there is a new value; deletes those of which there is a value.
    Values are of the kind that the row decoder gives for the column.
    """

    def __init__(self, database: str, table: Table) -> None:
        self._heads = event_heads(database, table)
        self._columns = [
            _ColumnEncoder(
                column.id,
                EntryHeads(column_head(column)),
                PairHeads(column_head(column)),
                datum_of(column),
            )
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
        return event_entry([self._heads[RowKind.INSERT], *entries])

    def update(self, old: Mapping[int, Value], new: Mapping[int, Value]) -> bytes:
        """A row before and after."""
        entries = [
            each.two(old.get(each.column_id), new[each.column_id])
            for each in self._updated
            if each.column_id in new
        ]
        return event_entry([self._heads[RowKind.UPDATE], *entries])

    def delete(self, values: Mapping[int, Value]) -> bytes:
        """A row that is gone."""
        entries = [
            each.one(values[each.column_id]) for each in self._columns if each.column_id in values
        ]
        return event_entry([self._heads[RowKind.DELETE], *entries])


def event_heads(database: str, table: Table) -> list[bytes]:
    """What an event begins with, by its kind."""
    names = bytes_field(b"\x0a", database.encode()) + bytes_field(b"\x12", table.name.encode())
    return [names + b"\x18" + bytes((kind,)) for kind in RowKind]


def column_head(column: Column) -> bytes:
    """Name, tp and mysql_type of a column, each with its tag."""
    return (
        bytes_field(b"\x0a", column.name.encode())
        + bytes_field(b"\x12", bytes((column.field_type.tp,)))
        + bytes_field(b"\x1a", mysql_type(column).encode())
    )


def event_entry(pieces: Iterable[bytes]) -> bytes:
    """An entry of `DMLData.events`: what it begins with, and the entries of its `row`."""
    return bytes_field(b"\x0a", b"".join(pieces))


def dml_binlog(commit_ts: Tso, events: Iterable[bytes]) -> bytes:
    """A `Binlog` of the rows of one transaction, as `TableEncoder` gives them."""
    return _DML_HEAD + uvarint(commit_ts) + bytes_field(b"\x1a", b"".join(events))


def ddl_binlog(commit_ts: Tso, text: str) -> bytes:
    """A `Binlog` of one DDL; see `ddl_text`."""
    raw = text.encode(errors="surrogateescape")
    return _DDL_HEAD + uvarint(commit_ts) + bytes_field(b"\x22", raw)


def ddl_text(database: str, query: str) -> str:
    """What the file holds for a DDL: always ended by one `;` more, behind a `use` if there is a
    database to use (CREATE DATABASE has none)."""
    if not database:
        return f"{query};"
    name = database.replace("`", "``")
    return f"use `{name}`; {query};"
