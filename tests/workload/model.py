"""What every table must contain at every commit_ts.

Rows are kept as versions, newest last, each with the ids of the columns it was written with; a
column that came later shows its origin default. So a change costs one tuple, whatever the size of
its table, and any moment can be read back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType

from binlogd.tidb.model import Table
from binlogd.tso import MAX_TS, Tso
from tests.workload.values import Value

TableName = tuple[str, str]
"""Database and table, in the case they were created with."""
RowKey = Hashable
"""The handle: an integer, or the values of a clustered key."""
Layout = tuple[int, ...]
"""Column ids in the order of a row's values."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row as it was written."""

    layout: Layout
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """A table at one moment; rows are a multiset, in no order that means anything."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


Catalogue = Mapping[TableName, Table]
Missing = Mapping[int, Value]
"""What the columns of a table hold, by id, in rows from before the column existed."""


@dataclass(slots=True)
class _Rows:
    versions: dict[RowKey, list[tuple[Tso, StoredRow | None]]] = field(default_factory=dict)


class Model:
    """Contents of all tables as of any commit_ts.

    Commits are told in the order of their commit_ts. With `history=False` only the newest version
    of each row is kept, and only `contents()` without a moment can be asked.
    """

    def __init__(self, *, history: bool = True) -> None:
        self._history = history
        self._rows: dict[int, _Rows] = {}
        self._catalogues: list[tuple[Tso, Catalogue]] = []
        self._missing: dict[int, Missing] = {}
        self.last_commit_ts = Tso(0)

    def define(
        self,
        commit_ts: Tso,
        tables: Catalogue,
        missing: Mapping[int, Missing],
        emptied: Mapping[int, Iterable[RowKey]] = MappingProxyType({}),
    ) -> None:
        """From commit_ts on these tables are there. `missing` is by table id, and so is `emptied`:
        rows that went with their partition."""
        self._advance(commit_ts)
        for table_id, keys in emptied.items():
            versions = self._rows.setdefault(table_id, _Rows()).versions
            for key in keys:
                self._write_row(versions, key, commit_ts, None)
        self._missing.update(missing)
        if not self._history:
            self._catalogues.clear()
            alive = {table.id for table in tables.values()}
            self._rows = {key: rows for key, rows in self._rows.items() if key in alive}
        self._catalogues.append((commit_ts, dict(tables)))

    def write(
        self, commit_ts: Tso, changes: Mapping[int, Mapping[RowKey, StoredRow | None]]
    ) -> None:
        """One transaction: the rows that it leaves behind, by table id; None is a deleted row."""
        self._advance(commit_ts)
        for table_id, rows in changes.items():
            versions = self._rows.setdefault(table_id, _Rows()).versions
            for key, row in rows.items():
                self._write_row(versions, key, commit_ts, row)

    def moments(self) -> list[Tso]:
        """Every commit_ts at which the set of tables changed, ascending."""
        return [ts for ts, _ in self._catalogues]

    def tables(self, commit_ts: Tso = MAX_TS) -> dict[TableName, Table]:
        """The tables that are there after the transaction of commit_ts."""
        return dict(self._at(commit_ts))

    def contents(self, commit_ts: Tso = MAX_TS) -> dict[TableName, Contents]:
        """All tables after the transaction of commit_ts; by default after the last one.

        A column on its way out is shown until its DELETE ONLY binlog, one on its way in from the
        binlog that makes it public.
        """
        assert self._history or commit_ts == MAX_TS, "this model keeps no history"
        return {name: self._table_contents(table, commit_ts) for name, table in self._at(commit_ts)}

    def row_count(self) -> int:
        """Rows in all tables after the last transaction."""
        return sum(
            row is not None
            for _, table in self._at(MAX_TS)
            for _, row in self._newest(table.id, MAX_TS)
        )

    def _advance(self, commit_ts: Tso) -> None:
        assert commit_ts > self.last_commit_ts, "commits are told in order"
        self.last_commit_ts = commit_ts

    def _write_row(
        self,
        versions: dict[RowKey, list[tuple[Tso, StoredRow | None]]],
        key: RowKey,
        commit_ts: Tso,
        row: StoredRow | None,
    ) -> None:
        if self._history:
            versions.setdefault(key, []).append((commit_ts, row))
        elif row is None:
            versions.pop(key, None)
        else:
            versions[key] = [(commit_ts, row)]

    def _at(self, commit_ts: Tso) -> Iterator[tuple[TableName, Table]]:
        n = bisect_right(self._catalogues, commit_ts, key=itemgetter(0))
        if n:
            yield from self._catalogues[n - 1][1].items()

    def _newest(self, table_id: int, commit_ts: Tso) -> Iterator[tuple[RowKey, StoredRow | None]]:
        rows = self._rows.get(table_id)
        for key, versions in rows.versions.items() if rows else ():
            n = bisect_right(versions, commit_ts, key=itemgetter(0))
            if n:
                yield key, versions[n - 1][1]

    def _table_contents(self, table: Table, commit_ts: Tso) -> Contents:
        public = [column for column in table.columns if column.is_public]
        ids = [column.id for column in public]
        missing = self._missing.get(table.id, {})
        rows = []
        for _, row in self._newest(table.id, commit_ts):
            if row is not None:
                values = dict(zip(row.layout, row.values, strict=True))
                rows.append(tuple(values.get(each, missing.get(each)) for each in ids))
        return Contents(tuple(column.name for column in public), tuple(rows))
