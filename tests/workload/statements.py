"""What a transaction does to a table: the statements of a user, as row changes.

While a column is on its way in or out, a TiDB of this age refuses DELETE, REPLACE and changes of a
clustered key; inserts and plain updates go through.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from binlogd.tidb.model import Column, Table
from tests.workload.draft import Draft
from tests.workload.model import RowKey
from tests.workload.store import Store, unique_indexes, writable_columns
from tests.workload.values import Value, draw, draw_key

_PICKS = 4  # how often another row is looked for when one is held by somebody else


class Statements:
    """Random statements on behalf of one draft."""

    def __init__(self, rng: random.Random, store: Store, *, rows_max: int = 0) -> None:
        self._rng = rng
        self._store = store
        self._rows_max = rows_max

    def run(self, draft: Draft, table: Table) -> bool:
        """One statement of any kind; False if it found nothing to change."""
        chance, rows = self._rng.random(), len(self._store.table(table.id).rows)
        if rows < 5 or chance < 0.35:
            is_full = 0 < self._rows_max <= rows and all(each.is_public for each in table.columns)
            return self.delete(draft, table) if is_full else self.insert(draft, table)
        if chance < 0.70:
            return self.update(draft, table)
        if not all(column.is_public for column in table.columns):
            return self.insert(draft, table)
        return self._with_full_schema(draft, table)

    def insert(self, draft: Draft, table: Table) -> bool:
        """A new row; into a table without key now and then a second copy of one."""
        if not table.pk_is_handle and table.primary_index() is None and self._rng.random() < 0.2:
            key = self._pick(draft, table)
            values = draft.row(table, key) if key is not None else None
            if values is not None and not unique_indexes(table):
                return draft.insert(table, values)
        return draft.insert(table, self._new_row(table))

    def update(self, draft: Draft, table: Table) -> bool:
        """Some columns of a row; its clustered key stays."""
        key = self._pick(draft, table)
        if key is None:
            return False
        old = draft.row(table, key)
        assert old is not None
        handles = _handle_ids(table)
        free = [each for each in table.columns if each.is_public and each.id not in handles]
        if not free:
            return False
        new = dict(old)
        keyed = _keyed_ids(table)
        for column in self._rng.sample(free, self._rng.randint(1, min(3, len(free)))):
            new[column.id] = self._value(table, column, keyed)
        return draft.update(table, key, new)

    def _with_full_schema(self, draft: Draft, table: Table) -> bool:
        statement: Callable[[Draft, Table], bool] = self._rng.choices(
            (self.delete, self._move, self._replace, self._swap), weights=(12, 5, 4, 4)
        )[0]
        return statement(draft, table)

    def delete(self, draft: Draft, table: Table) -> bool:
        """Takes a row away."""
        key = self._pick(draft, table)
        return key is not None and draft.delete(table, key)

    def _move(self, draft: Draft, table: Table) -> bool:
        """An UPDATE of the primary key: delete and insert, where the key is the handle."""
        handles = _handle_ids(table)
        key = self._pick(draft, table)
        if not handles or key is None:
            return self.update(draft, table)
        new = draft.row(table, key)
        assert new is not None
        fresh = self._new_row(table)
        new.update({each: fresh[each] for each in handles})
        return draft.delete(table, key) and draft.insert(table, new)

    def _replace(self, draft: Draft, table: Table) -> bool:
        """A REPLACE: delete and insert under the same key."""
        key = self._pick(draft, table)
        if key is None:
            return False
        old = draft.row(table, key)
        assert old is not None
        new = self._new_row(table)
        kept = {column.id for column in table.columns if column.is_primary_key}
        new.update({each: old[each] for each in kept})
        return draft.delete(table, key) and draft.insert(table, new)

    def _swap(self, draft: Draft, table: Table) -> bool:
        """Two rows exchange the value of a unique key, by way of NULL or a third value."""
        indexes = [each for each in unique_indexes(table) if len(each.columns) == 1]
        first, second = self._pick(draft, table), self._pick(draft, table)
        if not indexes or first is None or second is None or first == second:
            return self.update(draft, table)
        column = table.columns[self._rng.choice(indexes).columns[0].offset]
        one, other = draft.row(table, first), draft.row(table, second)
        assert one is not None
        assert other is not None
        if column.id in _handle_ids(table) or one[column.id] == other[column.id]:
            return self.update(draft, table)
        between = self._value(table, column, _keyed_ids(table)) if column.not_null else None
        return (
            draft.update(table, first, {**one, column.id: between})
            and draft.update(table, second, {**other, column.id: one[column.id]})
            and draft.update(table, first, {**one, column.id: other[column.id]})
        )

    def _pick(self, draft: Draft, table: Table) -> RowKey | None:
        """A row that this transaction may change."""
        rows = self._store.table(table.id)
        for _ in range(_PICKS):
            key = rows.random_key(self._rng)
            if key is None:
                return None
            if draft.hold(table, key) and draft.row(table, key) is not None:
                return key
        return None

    def _new_row(self, table: Table) -> dict[int, Value]:
        rows = self._store.table(table.id)
        values, keyed = dict(rows.missing), _keyed_ids(table)
        for column in writable_columns(table):
            if column.is_public:
                values[column.id] = self._value(table, column, keyed)
        return values

    def _value(self, table: Table, column: Column, keyed: set[int]) -> Value:
        """Of a keyed column one that no other row has, else any."""
        if column.id in keyed:
            if not column.not_null and self._rng.random() < 0.15:
                return None
            return draw_key(self._rng, column, self._store.table(table.id).next_serial())
        return draw(self._rng, column)


def _handle_ids(table: Table) -> set[int]:
    """Ids of the columns that are the row's handle."""
    handle = table.handle_column()
    if handle is not None:
        return {handle.id}
    primary = table.primary_index()
    if primary is None or not table.is_common_handle:
        return set()
    return {table.columns[each.offset].id for each in primary.columns}


def _keyed_ids(table: Table) -> set[int]:
    """Ids of the columns whose values must not collide."""
    unique = {
        table.columns[each.offset].id for index in unique_indexes(table) for each in index.columns
    }
    return unique | _handle_ids(table)
