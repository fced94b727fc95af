"""The rows that are committed, and the keys that open transactions hold.

A transaction holds a row, and the values it puts into or takes out of a unique key, from the first
touch to its end, as TiDB's pessimistic transactions do. So the order of commits is an order in
which the rows could have been changed one transaction after the other.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from binlogd.tidb.kinds import SchemaState
from binlogd.tidb.model import Column, Index, Table
from tests.workload.model import Missing, RowKey, StoredRow
from tests.workload.values import Value

KeyValues = tuple[Value, ...]
Held = tuple[int, str, Hashable]
"""What a transaction holds: table id, index ("" for the row itself), values or handle."""

_WRITABLE = (SchemaState.PUBLIC, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORGANIZATION)


def writable_columns(table: Table) -> list[Column]:
    """The columns that an insert or update of this schema version writes."""
    return [column for column in table.columns if column.state in _WRITABLE]


def unique_indexes(table: Table) -> list[Index]:
    """Unique indexes that are not the row's handle."""
    return [
        index
        for index in table.indexes
        if index.is_unique and not (index.is_primary and table.is_common_handle)
    ]


def index_values(table: Table, index: Index, values: Mapping[int, Value]) -> KeyValues | None:
    """What a row has in an index; None if there is a NULL in it, which equals nothing."""
    found = tuple(values[table.columns[each.offset].id] for each in index.columns)
    return None if None in found else found


@dataclass(slots=True)
class TableRows:
    """The committed rows of one table id."""

    missing: Missing
    rows: dict[RowKey, StoredRow] = field(default_factory=dict)
    unique: dict[str, dict[KeyValues, RowKey]] = field(default_factory=dict)
    _order: list[RowKey] = field(default_factory=list)
    _position: dict[RowKey, int] = field(default_factory=dict)
    _serial: int = 0
    _row_id: int = 0

    def next_serial(self) -> int:
        """A number that no key of this table has been made of."""
        self._serial += 1
        return self._serial

    def next_row_id(self) -> int:
        """The hidden `_tidb_rowid` of a new row."""
        self._row_id += 1
        return self._row_id

    def random_key(self, rng: random.Random) -> RowKey | None:
        """The key of some row; None if there is none."""
        return rng.choice(self._order) if self._order else None

    def values(self, row: StoredRow) -> dict[int, Value]:
        """A row by column id, with what columns hold that came after it."""
        return {**self.missing, **dict(zip(row.layout, row.values, strict=True))}

    def put(self, table: Table, key: RowKey, row: StoredRow | None) -> None:
        """The row is now this; None: it is gone."""
        before = self.rows.get(key)
        if before is not None:
            self._forget(table, key, before)
        if row is not None:
            self._remember(table, key, row)

    def rebuild_unique(self, table: Table, index: Index) -> bool:
        """Fills a new unique index; False, and no index, if two rows have the same values."""
        entries: dict[KeyValues, RowKey] = {}
        for key, row in self.rows.items():
            values = index_values(table, index, self.values(row))
            if values is not None and entries.setdefault(values, key) != key:
                return False
        self.unique[index.name] = entries
        return True

    def _remember(self, table: Table, key: RowKey, row: StoredRow) -> None:
        self.rows[key] = row
        self._position[key] = len(self._order)
        self._order.append(key)
        for name, values in self._unique_values(table, row):
            self.unique.setdefault(name, {})[values] = key

    def _forget(self, table: Table, key: RowKey, row: StoredRow) -> None:
        del self.rows[key]
        position, last = self._position.pop(key), self._order.pop()
        if last != key:
            self._order[position] = last
            self._position[last] = position
        for name, values in self._unique_values(table, row):
            # Another row of the same transaction may have taken the values over already.
            if self.unique.get(name, {}).get(values) == key:
                del self.unique[name][values]

    def _unique_values(self, table: Table, row: StoredRow) -> Iterator[tuple[str, KeyValues]]:
        by_id = self.values(row)
        for index in unique_indexes(table):
            values = index_values(table, index, by_id)
            if values is not None:
                yield index.name, values


class Store:
    """All tables, and who holds what."""

    def __init__(self) -> None:
        self._tables: dict[int, TableRows] = {}
        self._held: dict[Held, int] = {}
        self._open: dict[int, dict[int, int]] = {}

    def table(self, table_id: int) -> TableRows:
        """The rows of a table id that has been created."""
        return self._tables[table_id]

    def create(self, table_id: int, missing: Missing) -> None:
        """An empty table."""
        self._tables[table_id] = TableRows(missing)

    def drop(self, table_id: int) -> None:
        """Forgets a table."""
        del self._tables[table_id]

    def exists(self, table_id: int) -> bool:
        """Whether the table id is there; a transaction may outlive its table."""
        return table_id in self._tables

    def hold(self, start_ts: int, held: Held) -> bool:
        """Takes a key for a transaction; False if another one has it."""
        return self._held.setdefault(held, start_ts) == start_ts

    def opened(self, start_ts: int, table_id: int, schema_version: int) -> None:
        """A transaction works on a table, as of a schema version."""
        self._open.setdefault(table_id, {})[start_ts] = schema_version

    def ended(self, start_ts: int, held: set[Held]) -> None:
        """A transaction is over and gives back what it held."""
        for each in held:
            del self._held[each]
        for transactions in self._open.values():
            transactions.pop(start_ts, None)

    def oldest_version(self, table_id: int) -> int | None:
        """The oldest schema version that an open transaction on the table works with."""
        return min(self._open.get(table_id, {}).values(), default=None)
