"""The rows of one table as statements for a SQLite replica.

A row of a table with a clustered key is known by that key: writing it twice is right. Any other
row is known by all its values, one of equal rows being as good as the next. That a row is there
that is changed is checked, by its key as far as the replica has all that was ever written.
Source: tidb-binlog pkg/loader/model.go (which columns find a row), made exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from typing import NamedTuple

from binlogd.drainer.sqlite.replica import (
    NotStorable,
    Stored,
    key_columns,
    quoted,
    stored_columns,
    storer_of,
)
from binlogd.errors import CorruptRow, RowNotFound
from binlogd.tidb.model import Table, TableAt
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tso import Tso
from binlogd.wire.in_order import INSERT, UPDATE, rows_of
from binlogd.wire.mutation import Mutation

_VALUES_SHOWN_MAX = 1000
_ROW_ID_NAMES = ("rowid", "_rowid_", "oid")


class SqliteStatement(NamedTuple):
    """One statement; `must_match` says that exactly one row has to be changed by it."""

    sql: str
    values: tuple[Stored, ...]
    must_match: bool


class SqliteRowWriter:
    """Makes the statements for one table as the rows of one moment see it, stored as `stored`."""

    def __init__(
        self, name: str, stored: Table, table: TableAt, *, tells_missing: bool = False
    ) -> None:
        """`tells_missing`: a row that the log changes is there, by its key too."""
        columns = stored_columns(stored)
        seen = {each.id: each for each in stored_columns(table.info)}
        unknown = [each.name for each in columns if each.id not in seen]
        if unknown or len(seen) != len(columns):
            raise CorruptRow(f"the replica's table has other columns: {', '.join(unknown)}")
        self._decoder = RowDecoder(table)
        self._ids = tuple(each.id for each in columns)
        self._storers = tuple((each.id, storer_of(seen[each.id])) for each in columns)
        key = {each.id for each in key_columns(stored)}
        self._key = tuple(pair for pair in self._storers if pair[0] in key)
        self.has_key = bool(key)
        self._label = name
        self._names = {each.id: each.name for each in columns}
        self._must_match = not key or tells_missing
        quoted_names, marks = list(map(quoted, self._names.values())), ", ".join("?" * len(columns))
        verb = "INSERT OR REPLACE" if self.has_key else "INSERT"
        self._put = f"{verb} INTO {quoted(name)} ({', '.join(quoted_names)}) VALUES ({marks})"
        sets = ", ".join(f"{each} = ?" for each in quoted_names)
        self._update = f"UPDATE {quoted(name)} SET {sets}"
        self._texts: dict[tuple[str, tuple[int, ...]], str] = {}
        self._may_lack_columns = not key and table.may_lack_columns

    def changes(self, mutation: Mutation) -> Iterator[SqliteStatement]:
        """In the order of execution. Raises CorruptRow."""
        last = b""
        for kind, row in rows_of(mutation):
            if kind == INSERT:
                values = self._decoder.insert(row)
                yield SqliteStatement(self._put, _stored(self._storers, values), must_match=False)
                last = b""
                continue
            if row == last:  # TiDB writes twice what it partitions anew
                continue
            last = row
            if kind == UPDATE:
                held = self._decoder.columns_held(row) if self._may_lack_columns else self._ids
                yield from self._changed(*self._decoder.update(row), held)
            else:
                yield self._deleted(self._decoder.delete(row))

    def not_found(self, sql: str, values: tuple[Stored, ...], commit_ts: Tso) -> RowNotFound:
        """The error of a statement of this table that must find a row, and does not."""
        known = next(ids for (_, ids), text in self._texts.items() if text == sql)
        names = [self._names[each] for each in known]
        pairs = zip(names, values[-len(names) :], strict=True)
        shown = ", ".join(f"{name} = {value!r}" for name, value in pairs)
        if len(shown) > _VALUES_SHOWN_MAX:
            shown = shown[:_VALUES_SHOWN_MAX] + "..."
        verb = "updates" if sql.startswith(self._update) else "deletes"
        return RowNotFound(self._label, commit_ts, verb, shown)

    def instead(
        self, sql: str, values: tuple[Stored, ...]
    ) -> tuple[str, tuple[Stored, ...]] | None:
        """Of an update that finds no row: what puts the row there that the upstream holds now."""
        return (self._put, values[: len(self._ids)]) if sql.startswith(self._update) else None

    def _changed(
        self, old: Mapping[int, Value], new: Mapping[int, Value], held: Container[int]
    ) -> Iterator[SqliteStatement]:
        after = _stored(self._storers, new)
        is_moved = any(old[each] != new[each] for each, _ in self._key if each in old)
        if is_moved:
            yield self._deleted(old)
        if self._must_match and not is_moved:
            sql, known = self._finding(self._update, old, held)
            yield SqliteStatement(sql, after + known, must_match=True)
        else:
            yield SqliteStatement(self._put, after, must_match=False)

    def _deleted(self, values: Mapping[int, Value]) -> SqliteStatement:
        head = f"DELETE FROM {quoted(self._label)}"
        return SqliteStatement(*self._finding(head, values, values), self._must_match)

    def _finding(
        self, head: str, values: Mapping[int, Value], held: Container[int]
    ) -> tuple[str, tuple[Stored, ...]]:
        """A statement on one row, and what finds it: its key, or the values of the columns that are
        held. One on its way out may be missing."""
        known = self._key or tuple(pair for pair in self._storers if pair[0] in held)
        ids = tuple(each for each, _ in known)
        if (head, ids) not in self._texts:
            self._texts[head, ids] = f"{head} {self._one(ids)}"
        return self._texts[head, ids], _stored(known, values)

    def _one(self, known: Collection[int]) -> str:
        """One row that has these values; equal rows are as good as each other."""
        table, taken = quoted(self._label), {name.lower() for name in self._names.values()}
        row_id = next((name for name in _ROW_ID_NAMES if name not in taken), None)
        if row_id is None:
            raise NotStorable(f"{table} has columns of all names that SQLite has for row ids")
        names = [quoted(name) for each, name in self._names.items() if each in known]
        equal = " AND ".join(f"{name} IS ?" for name in names)
        return f"WHERE {row_id} = (SELECT {row_id} FROM {table} WHERE {equal} LIMIT 1)"


def _stored(
    storers: tuple[tuple[int, Callable[[Value], Stored]], ...], values: Mapping[int, Value]
) -> tuple[Stored, ...]:
    try:
        return tuple([store(values[each]) for each, store in storers])
    except KeyError as error:
        raise CorruptRow(f"the row lacks column {error}") from None
