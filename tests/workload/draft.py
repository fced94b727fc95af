"""One transaction in the making: row changes, checked against keys, encoded as TiDB does.

Source: pingcap/tidb table/tables/tables.go (addInsertBinlog, addUpdateBinlog, addDeleteBinlog).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from binlogd.tidb import datum
from binlogd.tidb.model import Index, Table
from binlogd.tidb.row import encode_delete, encode_insert, encode_update
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.workload.model import RowKey, StoredRow
from tests.workload.store import (
    Held,
    KeyValues,
    Store,
    index_values,
    unique_indexes,
    writable_columns,
)
from tests.workload.values import Value

INSERT, UPDATE, DELETE = 0, 1, 4


@dataclass(slots=True)
class _Changes:
    """What the transaction did to one table."""

    table: Table
    inserted: list[bytes] = field(default_factory=list)
    updated: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    sequence: bytearray = field(default_factory=bytearray)
    rows: dict[RowKey, StoredRow | None] = field(default_factory=dict)
    unique: dict[tuple[str, KeyValues], RowKey | None] = field(default_factory=dict)


class Draft:
    """The changes of one transaction; a change that a key forbids answers False, undone."""

    def __init__(self, store: Store, start_ts: int, schema_version: int) -> None:
        self._store = store
        self._start_ts = start_ts
        self._schema_version = schema_version
        self._changes: dict[int, _Changes] = {}
        self._held: set[Held] = set()
        self._first: tuple[Table, RowKey] | None = None

    @property
    def row_changes(self) -> int:
        """How many rows the binlog will name."""
        return sum(len(changes.sequence) for changes in self._changes.values())

    def row(self, table: Table, key: RowKey) -> dict[int, Value] | None:
        """A row as this transaction sees it; None if there is none."""
        rows = self._store.table(table.id)
        changes = self._changes.get(table.id)
        stored = changes.rows[key] if changes and key in changes.rows else rows.rows.get(key, None)
        return None if stored is None else rows.values(stored)

    def hold(self, table: Table, key: RowKey) -> bool:
        """Takes a row for this transaction; False if another one has it."""
        return self._hold((table.id, "", key))

    def insert(self, table: Table, values: Mapping[int, Value]) -> bool:
        """A new row. False if a key of it is taken or held."""
        key = self._new_key(table, values)
        if not self.hold(table, key) or self.row(table, key) is not None:
            return False
        if not self._may_take(table, key, values):
            return False
        changes = self._of(table)
        changes.inserted.append(encode_insert(table, values, handle=self._handle(table, key)))
        changes.sequence.append(INSERT)
        self._leave(changes, key, values)
        return True

    def update(self, table: Table, key: RowKey, new: Mapping[int, Value]) -> bool:
        """Other values in an existing row, its handle unchanged. False if a key is taken."""
        old = self.row(table, key)
        if old is None or not self.hold(table, key) or not self._may_take(table, key, new):
            return False
        if not self._may_give(table, old):
            return False
        ids = [column.id for column in writable_columns(table)]
        before, after = {each: old[each] for each in ids}, {each: new[each] for each in ids}
        if before == after:
            return False  # TiDB writes nothing either
        changes = self._of(table)
        handle = self._handle(table, key)
        changes.updated.append(encode_update(table, before, after, handle=handle))
        changes.sequence.append(UPDATE)
        self._give(changes, old)
        self._leave(changes, key, new)
        return True

    def delete(self, table: Table, key: RowKey) -> bool:
        """Takes a row away. False if there is none, or another transaction has it."""
        old = self.row(table, key)
        if old is None or not self.hold(table, key) or not self._may_give(table, old):
            return False
        changes = self._of(table)
        public = {column.id: old[column.id] for column in table.columns if column.is_public}
        handle = self._handle(table, key)
        changes.deleted.append(encode_delete(table, public, handle=handle))
        changes.sequence.append(DELETE)
        self._give(changes, old)
        changes.rows[key] = None
        self._touch(table, key)
        return True

    def prewrite_value(self) -> bytes:
        """The row changes as the Prewrite carries them."""
        mutations = [
            Mutation(
                changes.table.id,
                changes.inserted,
                changes.updated,
                changes.deleted,
                bytes(changes.sequence),
            )
            for changes in self._changes.values()
        ]
        return encode_mutations(self._schema_version, mutations)

    def prewrite_key(self) -> bytes:
        """The record key of the first row touched."""
        assert self._first is not None, "an empty transaction writes no binlog"
        return record_key(*self._first)

    def changes(self) -> dict[int, dict[RowKey, StoredRow | None]]:
        """What the transaction leaves behind, by table id."""
        return {table_id: changes.rows for table_id, changes in self._changes.items()}

    def commit(self) -> None:
        """Puts the rows into the store, where the table still is, and gives the keys back."""
        for table_id, changes in self._changes.items():
            if self._store.exists(table_id):
                rows = self._store.table(table_id)
                for key, stored in changes.rows.items():
                    rows.put(changes.table, key, stored)
        self.end()

    def end(self) -> None:
        """Gives back all keys."""
        self._store.ended(self._start_ts, self._held)

    # --- keys ----------------------------------------------------------------------------

    def _new_key(self, table: Table, values: Mapping[int, Value]) -> RowKey:
        handle = table.handle_column()
        if handle is not None:
            return values[handle.id]
        primary = table.primary_index()
        if primary is not None and table.is_common_handle:
            return tuple(values[table.columns[each.offset].id] for each in primary.columns)
        return self._store.table(table.id).next_row_id()

    def _handle(self, table: Table, key: RowKey) -> int | None:
        if table.pk_is_handle or table.is_common_handle:
            return None
        assert isinstance(key, int)
        return key

    def _hold(self, held: Held) -> bool:
        if held in self._held:
            return True
        if not self._store.hold(self._start_ts, held):
            return False
        self._held.add(held)
        return True

    def _may_take(self, table: Table, key: RowKey, values: Mapping[int, Value]) -> bool:
        for index in unique_indexes(table):
            wanted = index_values(table, index, values)
            if wanted is None:
                continue
            if not self._hold((table.id, index.name, wanted)):
                return False
            if self._owner(table, index, wanted) not in (None, key):
                return False
        return True

    def _may_give(self, table: Table, values: Mapping[int, Value]) -> bool:
        """Holds what a row gives back: nobody else may take it before the commit."""
        given = (
            (index.name, index_values(table, index, values)) for index in unique_indexes(table)
        )
        return all(wanted is None or self._hold((table.id, name, wanted)) for name, wanted in given)

    def _owner(self, table: Table, index: Index, values: KeyValues) -> RowKey | None:
        changes = self._changes.get(table.id)
        if changes and (index.name, values) in changes.unique:
            return changes.unique[index.name, values]
        return self._store.table(table.id).unique.get(index.name, {}).get(values)

    def _give(self, changes: _Changes, values: Mapping[int, Value]) -> None:
        for index in unique_indexes(changes.table):
            given = index_values(changes.table, index, values)
            if given is not None:
                changes.unique[index.name, given] = None

    def _leave(self, changes: _Changes, key: RowKey, values: Mapping[int, Value]) -> None:
        table = changes.table
        layout = tuple(column.id for column in writable_columns(table))
        changes.rows[key] = StoredRow(layout, tuple(values[each] for each in layout))
        for index in unique_indexes(table):
            taken = index_values(table, index, values)
            if taken is not None:
                changes.unique[index.name, taken] = key
        self._touch(table, key)

    def _touch(self, table: Table, key: RowKey) -> None:
        if self._first is None:
            self._first = (table, key)

    def _of(self, table: Table) -> _Changes:
        changes = self._changes.get(table.id)
        if changes is None:
            changes = self._changes[table.id] = _Changes(table)
            self._store.opened(self._start_ts, table.id, self._schema_version)
        return changes


def record_key(table: Table, key: RowKey) -> bytes:
    """The key of a row in TiKV; clustered keys simplified to their texts."""
    prefix = b"t" + datum.comparable_int(table.id) + b"_r"
    if isinstance(key, int):
        return prefix + datum.comparable_int(datum.as_signed(key))
    assert isinstance(key, tuple)
    return prefix + b"".join(
        b"\x01" + datum.memcomparable(each if isinstance(each, bytes) else str(each).encode())
        for each in key
    )
