"""One downstream table as the rows of the present schema are written to it.

A `Target` lives as long as neither side of the table changes; a `Reader` is the way from the bytes
of the rows of one moment (`TableAt`) to that target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from binlogd.drainer import sql
from binlogd.drainer.rows.conflict import seed_of
from binlogd.drainer.rows.literals import laid_out
from binlogd.drainer.rows.plan import Decoders, Key, generic
from binlogd.drainer.rows.shape import Mode, Shape
from binlogd.tidb.columns import Value
from binlogd.tidb.kinds import INSERT, STRING_TYPES, UPDATE, Tp
from binlogd.tidb.layout import UNEXPECTED_LAYOUT
from binlogd.tidb.model import Column, Table, TableAt
from binlogd.tidb.row import RowDecoder

T = TypeVar("T")


class Target:
    """Compared by identity. `label` names the table for people, `name` in statements."""

    def __init__(self, database: str, info: Table, shape: Shape) -> None:
        self.table_id = info.id
        self.database = database
        self.info = info
        self.shape = shape
        self.mode = shape.mode
        self.by_key = shape.by_key
        self.seed = seed_of(info.id)
        kinds = {each.name.lower(): each.field_type.tp for each in info.columns}
        self.members = frozenset(name for name, tp in kinds.items() if tp in (Tp.ENUM, Tp.SET))
        """Columns whose values are members, in lower case."""
        self.label = f"{database}.{info.name}"
        self.name = sql.qualified(database, info.name)
        names = [column.name for column in shape.columns]
        is_unsafe = shape.mode is Mode.ORIGINAL and not shape.is_safe
        is_insert = shape.mode is Mode.SINGLE or shape.is_upsert or is_unsafe
        verb = b"INSERT" if is_insert else b"REPLACE"
        self.write_head = sql.write_head(verb, self.name, names)
        if shape.mode is Mode.ORIGINAL:
            self.write_head = self.write_head.rstrip()
        self.write_tail = b""
        if shape.is_upsert:
            self.write_tail = sql.update_on_duplicate(names, calls_row=shape.calls_row)
        self.in_lists = shape.in_lists
        self._key_names = [each.column.name for each in shape.key]
        self.delete_head = sql.delete_head(self.name, self._key_names) if shape.key else b""
        self.single_head = b"UPDATE or DELETE of one row of " + self.name

    def deletion(self, key: bytes) -> bytes:
        """DELETE of one row, by the literal of its key."""
        return b"DELETE FROM " + self.name + sql.where_key(self._key_names, key) + b" LIMIT 1"

    def presence(self, key: bytes) -> bytes:
        """An expression: whether there is a row, by the literal of its key."""
        return b"EXISTS (SELECT 1 FROM " + self.name + sql.where_key(self._key_names, key) + b")"


class RowStatement(NamedTuple):
    """What an UPDATE or a DELETE of one row is made of: all up to WHERE, the old values, and the
    columns that find the row."""

    head: bytes
    values: dict[int, Value]
    found_by: tuple[Column, ...]
    is_by_key: bool


class Reader:
    """Rows of one table at one moment."""

    def __init__(self, table: TableAt, target: Target) -> None:
        self.table = table
        self.target = target
        self._rows = RowDecoder(table)
        self._renderers = {column.id: sql.renderer(column) for column in target.shape.columns}
        shape = target.shape
        slow = generic(table, shape.columns, shape.key)
        fast = laid_out(table, shape.columns, shape.key)
        self.decoders = (fast or slow, slow)
        """The fast ones, and those for a row at which a fast one raises UNEXPECTED_LAYOUT."""
        self.decoded = slow if fast is None else _either(fast, slow)
        """Both in one. They raise CorruptRow only."""
        self._keys: Decoders | None = None

    def keys(self, kind: int, row: bytes) -> tuple[Key, Key]:
        """The old key and the new one of a row of this kind (as `original_statements`), decoded
        without the rest where rows are laid out. Raises CorruptRow."""
        if self._keys is None:
            key = self.target.shape.key
            fast = laid_out(self.table, [each.column for each in key], key)
            self._keys = self.decoded if fast is None else _either(fast, self.decoders[1])
        if kind == UPDATE:
            old, new, _ = self._keys.update(row)
            return old, new
        only = self._keys.insert(row)[0] if kind == INSERT else self._keys.delete(row)
        return only, only

    # --- one statement a row ---------------------------------------------------------------

    def original_statements(self, kind: int, row: bytes) -> tuple[bytes, ...]:
        """What the original writes for a row of this kind. Raises CorruptRow."""
        head = self.target.write_head
        if kind == INSERT:
            return (head + self.decoded.insert(row)[1],)
        if kind == UPDATE and self.target.shape.is_safe:
            gone = self._deletion(self._present(row, self._rows.update(row)[0]))
            return self._statement(gone), head + self.decoded.update(row)[2]
        return (self.statement(kind, row),)

    def statement(self, kind: int, row: bytes) -> bytes:
        """UPDATE or DELETE of one row by its key, or by all its old values. Raises CorruptRow."""
        return self._statement(self.change(kind, row))

    def change(self, kind: int, row: bytes) -> RowStatement:
        """What an UPDATE or a DELETE is made of. Raises CorruptRow."""
        if kind != UPDATE:
            return self._deletion(self._rows.delete(row))
        old, new = self._rows.update(row)
        present = self._present(row, old)
        pairs = [
            (column.name, self._renderers[column.id](new[column.id]))
            for column in self.target.shape.columns
            if present is old or column.id in present
        ]
        head = b"UPDATE " + self.target.name + b" SET " + sql.assignments(pairs)
        return self._change(head, present)

    def equals(self, column: Column, value: Value, *, is_key: bool) -> bytes:
        """A condition that a row has this value; of a key as the key compares."""
        literal = self._renderers[column.id](value)
        plain = sql.compared(column) + b" = " + literal
        if is_key:
            return plain
        is_text = column.field_type.tp in STRING_TYPES
        is_json = column.name.lower() in self.target.shape.json_names
        return sql.equals(column.name, literal, plain=plain, is_text=is_text, is_json=is_json)

    def _present(self, update: bytes, old: dict[int, Value]) -> dict[int, Value]:
        """What an update itself has of the old row; the rest may be another value downstream."""
        if not self.table.may_lack_columns:
            return old
        return {each: old[each] for each in self._rows.columns_held(update)}

    def _deletion(self, values: dict[int, Value]) -> RowStatement:
        return self._change(b"DELETE FROM " + self.target.name, values)

    def _change(self, head: bytes, values: dict[int, Value]) -> RowStatement:
        shape = self.target.shape
        for key in shape.rows_by:
            if all(values.get(column.id) is not None for column in key):
                return RowStatement(head, values, key, is_by_key=True)
        present = tuple(column for column in shape.columns if column.id in values)
        return RowStatement(head, values, present, is_by_key=False)

    def _statement(self, change: RowStatement) -> bytes:
        conditions = [
            self.equals(column, change.values[column.id], is_key=change.is_by_key)
            for column in change.found_by
        ]
        return change.head + b" WHERE " + b" AND ".join(conditions) + b" LIMIT 1"


def _either(fast: Decoders, slow: Decoders) -> Decoders:
    return Decoders(
        _first_of(fast.insert, slow.insert),
        _first_of(fast.update, slow.update),
        _first_of(fast.delete, slow.delete),
    )


def _first_of(fast: Callable[[bytes], T], slow: Callable[[bytes], T]) -> Callable[[bytes], T]:
    def decoded(row: bytes) -> T:
        try:
            return fast(row)
        except UNEXPECTED_LAYOUT:
            return slow(row)

    return decoded


def key_text(key: Key) -> bytes:
    """A key as a literal."""
    return b"%d" % key if isinstance(key, int) else key
