"""Rows that tell names, as statements for one downstream table.

There is no schema of the upstream behind these rows: which columns are written and which key finds
a row is what the downstream's own table says. One connection writes them in the order of the file,
so no collation can confuse it. Consecutive rows of one shape become one statement.

Safely (after a crash, when nobody knows what has been applied) an insert is a REPLACE, an update
a DELETE of the old key, if it changed, and a REPLACE: writing a row twice is right then, but for
tables without any key. Source: tidb-binlog pkg/loader/model.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from binlogd.drainer import sql
from binlogd.drainer.messages.named import NamedColumn, NamedRow, RowKind
from binlogd.drainer.rows.shape import DownstreamColumn, DownstreamTable
from binlogd.tidb.columns import Value

_BINARY = ("blob", "binary", "geometry")


class Piece(NamedTuple):
    """A part of a statement: pieces of one `head` are joined by commas. Without a head, `item` is a
    statement of its own. `finds_row`: a row that it does not find is counted as missing."""

    head: bytes
    item: bytes
    finds_row: bool = False


class NamedTable:
    """One downstream table. `left_out` names the columns of rows that it does not have."""

    def __init__(
        self, database: str, table: str, downstream: DownstreamTable, *, is_safe: bool
    ) -> None:
        self.left_out: set[str] = set()
        self.members = {each.name.lower() for each in downstream.columns if each.is_of_members}
        self._name, self.label = sql.qualified(database, table), f"{database}.{table}"
        self._columns = {each.name.lower(): each for each in downstream.columns}
        self._keys = [tuple(name.lower() for name in key.columns) for key in downstream.keys]
        self._is_safe = is_safe
        self._heads: dict[tuple[bytes, tuple[str, ...]], bytes] = {}

    def pieces(self, row: NamedRow) -> Iterator[Piece]:
        """What writes a row, in order."""
        if row.kind is RowKind.INSERT:
            yield self._write(row)
        elif row.kind is RowKind.DELETE:
            yield self._delete(row)
        elif not self._is_safe:
            yield self._update(row)
        else:
            if self._key_of(row, is_new=False) != self._key_of(row, is_new=True) or not self._keys:
                yield self._delete(row)
            yield self._write(row)

    def _write(self, row: NamedRow) -> Piece:
        verb = b"REPLACE" if self._is_safe else b"INSERT"
        written = [column for column, _ in self._written(row)]
        names = tuple(column.name for column in written)
        head = self._heads.get((verb, names))
        if head is None:
            head = self._heads[verb, names] = sql.write_head(verb, self._name, names)
        literals = [value_literal(column.new, column.mysql_type) for column in written]
        return Piece(head, b"(" + b",".join(literals) + b")")

    def _update(self, row: NamedRow) -> Piece:
        pairs = [
            (column.name, value_literal(column.new, column.mysql_type))
            for column, _ in self._written(row)
        ]
        statement = b"UPDATE " + self._name + b" SET " + sql.assignments(pairs)
        return Piece(b"", statement + self._where(row), finds_row=True)

    def _delete(self, row: NamedRow) -> Piece:
        key = self._key_of(row, is_new=False)
        found_by = [there for there, _ in key]
        is_alone = len(key) == 1 and found_by[0].data_type != "set"
        if is_alone or (key and all(each.is_found_in_lists for each in found_by)):
            head = sql.delete_head(self._name, [each.name for each in found_by])
            return Piece(head, sql.tuple_of([literal for _, literal in key]), finds_row=True)
        return Piece(b"", b"DELETE FROM " + self._name + self._where(row), finds_row=True)

    def _where(self, row: NamedRow) -> bytes:
        key = self._key_of(row, is_new=False)
        if key:
            conditions = [sql.is_value(there.name, there.data_type, each) for there, each in key]
        else:
            conditions = [self._equals(column, there) for column, there in self._written(row)]
        return b" WHERE " + b" AND ".join(conditions) + b" LIMIT 1"

    def _key_of(self, row: NamedRow, *, is_new: bool) -> list[tuple[DownstreamColumn, bytes]]:
        """The first unique key that has a value in all of its columns; [] if none has."""
        held = {
            each.name.lower(): (value, each.mysql_type)
            for each in row.columns
            if (value := each.new if is_new else each.old) is not None
        }
        for key in self._keys:
            if all(name in held for name in key):
                return [(self._columns[name], value_literal(*held[name])) for name in key]
        return []

    def _written(self, row: NamedRow) -> Iterator[tuple[NamedColumn, DownstreamColumn]]:
        """The columns that the table has, but for those that the server computes."""
        for column in row.columns:
            there = self._columns.get(column.name.lower())
            if there is None:
                self.left_out.add(column.name)
            elif not there.is_generated:
                yield column, there

    def _equals(self, column: NamedColumn, there: DownstreamColumn) -> bytes:
        """Exactly this value, NULL included; text by its bytes, whatever the collation says."""
        literal = value_literal(column.old, column.mysql_type)
        plain = sql.is_value(there.name, there.data_type, literal)
        is_text = isinstance(column.old, bytes)
        return sql.equals(column.name, literal, plain=plain, is_text=is_text, is_json=there.is_json)


def value_literal(value: Value, mysql_type: str) -> bytes:
    """A value as a server reads it in a statement, whatever its character set."""
    return _renderer(mysql_type)(value)


@lru_cache(maxsize=256)
def _renderer(mysql_type: str) -> Callable[[Value], bytes]:
    return sql.renderer_of(is_binary=is_binary(mysql_type), is_decimal=mysql_type == "decimal")


def is_binary(mysql_type: str) -> bool:
    """Whether its values are bytes, and no text of some character set."""
    return any(word in mysql_type for word in _BINARY)
