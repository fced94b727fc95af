"""The rows of a transaction one by one, decoded, with what a message needs to know of the table.

Notations that key their messages see no update that moves a row to another key: it comes as a
delete and an insert, so that each of them is in the partition of its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.txn import Dml
from binlogd.errors import CorruptRow
from binlogd.tidb.columns import shortest_single
from binlogd.tidb.model import Column, Table, TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tidb.row import RowDecoder, Value
from binlogd.wire.in_order import DELETE, INSERT, changes_of

W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class RowEvent:
    """One row; `old` is None for an insert, `new` for a delete; values by column id."""

    table: TableAt
    kind: RowKind
    old: Mapping[int, Value] | None
    new: Mapping[int, Value] | None

    @property
    def present(self) -> Mapping[int, Value]:
        """The row as it is afterwards, or was."""
        values = self.new if self.new is not None else self.old
        assert values is not None
        return values


def key_columns(info: Table) -> tuple[Column, ...]:
    """What a message is keyed by: the primary key, else a unique key without NULLs, else ()."""
    handle = info.handle_column()
    if handle is not None:
        return (handle,)
    columns = info.columns
    for index in sorted(info.indexes, key=lambda each: not each.is_primary):
        of = tuple(columns[each.offset] for each in index.columns)
        if (index.is_primary or index.is_unique) and all(
            each.not_null and each.is_public and not each.is_virtual for each in of
        ):
            return of
    return ()


class ColumnWriters(Generic[W]):
    """How the values of a table's visible columns are written down, by `writer_of` a column, and
    under which name."""

    def __init__(
        self,
        info: Table,
        writer_of: Callable[[Column], Callable[[Value], W]],
        name_of: Callable[[str], str] = str,
    ) -> None:
        self._writers = [
            (each.id, name_of(each.name), writer_of(each)) for each in info.stored_columns()
        ]
        self._key_ids = {each.id for each in key_columns(info)}

    def values(self, values: Mapping[int, Value]) -> dict[str, W | None]:
        """Column names to what is written; columns that the row does not hold are left out."""
        return {
            name: None if values[each] is None else write(values[each])
            for each, name, write in self._writers
            if each in values
        }

    def key(self, values: Mapping[int, Value]) -> bytes | None:
        """The key columns as JSON; None for a table without a key."""
        return msgspec.json.encode(self.keys(values)) if self._key_ids else None

    def keys(self, values: Mapping[int, Value]) -> dict[str, W]:
        """The key columns as `values` has them."""
        return {name: write(values[n]) for n, name, write in self._writers if n in self._key_ids}


def shortest(value: Value) -> float:
    """Of a FLOAT: the number whose digits are the fewest that give the same 32 bits again."""
    assert isinstance(value, float)
    return shortest_single(value)


def text_of(column: Column) -> Callable[[Value], str]:
    """Text columns: the writer raises CorruptRow for bytes that are no UTF-8."""

    def write(value: Value) -> str:
        assert isinstance(value, bytes)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise CorruptRow(
                f"column {column.name} holds bytes that are no UTF-8, which no message can hold"
            ) from None

    return write


class RowReader:
    """Keeps the decoders of the tables that come again and again."""

    def __init__(self) -> None:
        self._decoders = PerTable(RowDecoder)

    def events(self, dml: Dml) -> Iterator[RowEvent]:
        """In the order of execution. Raises CorruptRow."""
        for change in dml.changes:
            table, decoder = change.table, self._decoders.of(change.table)
            key = [each.id for each in key_columns(table.info)]
            for kind, old, new in changes_of(change.mutation, decoder):
                if kind == INSERT:
                    yield RowEvent(table, RowKind.INSERT, None, new)
                elif kind == DELETE:
                    yield RowEvent(table, RowKind.DELETE, old, None)
                elif any(old.get(each) != new.get(each) for each in key):
                    yield RowEvent(table, RowKind.DELETE, old, None)
                    yield RowEvent(table, RowKind.INSERT, None, new)
                else:
                    yield RowEvent(table, RowKind.UPDATE, old, new)
