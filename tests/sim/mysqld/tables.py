"""Tables in memory, and transactions over them with an undo log, as InnoDB has it.

Invariant. A row has at most one version that is not committed, of the transaction that holds its
lock. A reader sees what is committed, or what it wrote itself (READ COMMITTED). An index leads to
every row of which either version has the key, so that whoever writes a key meets the transaction
that has made or removed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.sim.mysqld.locks import Lock
from tests.sim.mysqld.values import ColumnType

Values = tuple[Any, ...]
TableKey = tuple[str, str]
"""Database and table."""
NO_DEFAULT = object()


@dataclass(frozen=True)
class Column:
    """`default` is NO_DEFAULT where there is none; NULL is None."""

    name: str
    type: ColumnType
    is_nullable: bool
    default: Any
    extra: str = ""


@dataclass(frozen=True)
class Index:
    """`prefixes` of columns are lengths, or None for the whole."""

    name: str
    columns: tuple[str, ...]
    is_unique: bool
    prefixes: tuple[int | None, ...]


@dataclass(frozen=True)
class Partitioning:
    """BY `kind` ("RANGE", "LIST", "HASH", "KEY") of a column; bounds are those of RANGE (None is
    MAXVALUE), values of LIST."""

    kind: str
    column: str
    names: tuple[str, ...]
    bounds: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Definition:
    """What a table is. Never changed: a DDL makes another one. `bound` keeps what plans are for
    it."""

    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]
    partitioning: Partitioning | None = None
    collation: str = "utf8mb4_bin"
    bound: dict[Any, Any] = field(default_factory=dict)

    def position(self, name: str) -> int | None:
        """Of a column, whose case does not matter."""
        return self._positions.get(name.lower())

    @property
    def _positions(self) -> Mapping[str, int]:
        found = self.bound.get("positions")
        if found is None:
            found = {column.name.lower(): n for n, column in enumerate(self.columns)}
            self.bound["positions"] = found
        return found

    @property
    def unique(self) -> tuple[UniqueKey, ...]:
        """The unique keys in the order in which a server looks at them."""
        found = self.bound.get("unique")
        if found is None:
            found = self.bound["unique"] = tuple(sorted(self._unique(), key=UniqueKey.rank))
        return found

    def _unique(self) -> Iterator[UniqueKey]:
        for index in self.indexes:
            if index.is_unique:
                at = tuple(self._positions[name.lower()] for name in index.columns)
                columns = [self.columns[n] for n in at]
                yield UniqueKey(
                    index.name,
                    at,
                    tuple(column.type for column in columns),
                    any(column.is_nullable for column in columns),
                )


class UniqueKey(NamedTuple):
    """Where the columns of a unique index stand in a row."""

    name: str
    at: tuple[int, ...]
    types: tuple[ColumnType, ...]
    has_null: bool

    def rank(self) -> tuple[bool, bool]:
        """The primary key first, then those without NULL."""
        return self.name != "PRIMARY", self.has_null

    def of(self, values: Values | None) -> Any:
        """The key of a row; None where a value is NULL, which is equal to nothing."""
        if values is None:
            return None
        found = tuple(
            None if (value := values[n]) is None else kind.key(value)
            for n, kind in zip(self.at, self.types, strict=True)
        )
        return None if None in found else found


class Record:
    """A row: what is committed, and the version of who holds its lock."""

    __slots__ = ("committed", "lock", "newest", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.committed: Values | None = None
        self.newest: Values | None = None
        self.lock: Lock | None = None

    def seen_by(self, transaction: Transaction | None) -> Values | None:
        """Without a lock."""
        if transaction is not None and self.lock is not None and transaction in self.lock.holders:
            return self.newest
        return self.committed


class Table:
    """Rows and unique indexes. `number` is what the server calls it inside, whatever its name."""

    def __init__(self, number: int, definition: Definition, partitions: Sequence[int] = ()) -> None:
        self.number = number
        self.definition = definition
        self.partition_numbers = tuple(partitions)
        self.records: dict[int, Record] = {}
        self.metadata = Lock()
        self._indexes: list[dict[Any, dict[int, Record]]] = [{} for _ in definition.unique]
        self._next = 1

    def made(self) -> Record:
        """A new record that nobody sees yet."""
        record = self.records[self._next] = Record(self._next)
        self._next += 1
        return record

    def of_key(self, index: int, key: Any) -> list[Record]:
        """The records of which a version has the key."""
        found = self._indexes[index].get(key)
        return list(found.values()) if found else []

    def in_order(self) -> list[Record]:
        """As a scan meets them: by the primary key, or in the order of their making."""
        unique = self.definition.unique
        held = [each for each in self.records.values() if each.newest or each.committed]
        if not unique or unique[0].has_null:
            return held
        key = unique[0]
        return sorted(held, key=lambda each: key.of(each.newest or each.committed))

    def index(self, record: Record, values: Values | None) -> None:
        """Indexes a version of a record."""
        for entries, unique in zip(self._indexes, self.definition.unique, strict=True):
            key = unique.of(values)
            if key is not None:
                entries.setdefault(key, {})[record.number] = record

    def unindex(
        self, record: Record, values: Values | None, others: Sequence[Values | None] = ()
    ) -> None:
        """Forgets a version that is gone, unless another one of the record has its keys: what is
        committed, the newest, or one of `others`, to which a savepoint may lead back."""
        for entries, unique in zip(self._indexes, self.definition.unique, strict=True):
            key = unique.of(values)
            held_by = (record.committed, record.newest, *others)
            if key is None or key in map(unique.of, held_by):
                continue
            held = entries.get(key, {})
            held.pop(record.number, None)
            if not held:
                entries.pop(key, None)

    def load(self, rows: Mapping[int, Values]) -> None:
        """Fills an empty table with committed rows."""
        for number, values in rows.items():
            record = self.records[number] = Record(number)
            record.committed = record.newest = values
            self.index(record, values)
        self._next = max(rows, default=0) + 1

    def committed(self) -> dict[int, Values]:
        """What everybody sees."""
        return {
            number: record.committed
            for number, record in self.records.items()
            if record.committed is not None
        }


class Transaction:
    """What a session has done since it began; satisfies `locks.Owner`."""

    def __init__(self) -> None:
        self.waiting: Any = None
        self.held: dict[Lock, None] = {}
        self.undo: list[tuple[Table, Record, Values | None]] = []
        self.savepoints: dict[str, int] = {}
        self.is_lost = False
        """It was chosen to end a deadlock."""

    @property
    def weight(self) -> int:
        """See Owner."""
        return len(self.undo)

    def undo_all(self) -> None:
        """See Owner."""
        self.is_lost = True
        self.rollback()

    def put(self, table: Table, record: Record, values: Values | None) -> None:
        """Writes a version of a record, the lock of which is held; None deletes it."""
        self.undo.append((table, record, record.newest))
        record.newest = values
        table.index(record, values)

    def undo_to(self, length: int) -> None:
        """Takes back what was written after the undo log had this length; locks stay."""
        gone: list[tuple[Table, Record, Values | None]] = []
        while len(self.undo) > length:
            table, record, before = self.undo.pop()
            gone.append((table, record, record.newest))
            record.newest = before
        kept: dict[int, list[Values | None]] = {}
        for _, record, before in self.undo if gone else ():
            kept.setdefault(id(record), []).append(before)
        for table, record, version in gone:
            table.unindex(record, version, kept.get(id(record), ()))
            if record.newest is None and record.committed is None and id(record) not in kept:
                table.records.pop(record.number, None)

    def rollback(self) -> None:
        """Takes back everything and lets go of all locks."""
        self.undo_to(0)
        self._release()

    def commit(self) -> list[Table]:
        """Makes it seen; the tables that were changed."""
        changed: dict[int, Table] = {}
        stale = [(table, record, before) for table, record, before in self.undo]
        for table, record, _ in self.undo:
            if record.committed is not record.newest:
                stale.append((table, record, record.committed))
                changed[table.number] = table
            record.committed = record.newest
        for table, record, values in stale:
            table.unindex(record, values)
            if record.committed is None:
                table.records.pop(record.number, None)
        self.undo.clear()
        self._release()
        return list(changed.values())

    def _release(self) -> None:
        held, self.held = self.held, {}
        self.savepoints.clear()
        for lock in held:
            lock.release(self)
