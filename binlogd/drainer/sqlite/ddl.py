"""What a DDL does to a SQLite replica: statements, and which tables are held afterwards.

Of the DDL's text only the names of renamed columns are read. A table is known by its upstream id;
its TableInfo, kept with it, says how its rows are stored.
Source: tidb-binlog drainer/schema.go for what each action means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from binlogd.drainer.sqlite.replica import (
    Function,
    NotStorable,
    ReplicaChanges,
    Stored,
    create,
    quoted,
    reader_of,
    renamed,
    reshape,
    stored_columns,
)
from binlogd.drainer.txn import Ddl
from binlogd.tidb.ddl_text import changed_columns
from binlogd.tidb.kinds import RECOVERIES, TABLE_DROPS
from binlogd.tidb.model import ActionType, Column, Table
from binlogd.tidb.partitions import PartitionLookup, Unplaceable

Statement = tuple[str, tuple[Stored, ...]]

_PARTITION_ROWS = frozenset(
    {
        ActionType.DROP_TABLE_PARTITION,
        ActionType.TRUNCATE_TABLE_PARTITION,
        ActionType.EXCHANGE_TABLE_PARTITION,
    }
)
_CREATES = frozenset({ActionType.CREATE_TABLE, ActionType.CREATE_TABLES})
_NEW_IDS = frozenset({ActionType.ALTER_TABLE_PARTITIONING, ActionType.REMOVE_PARTITIONING})
"""They copy a table with its rows into one of another id, which has its name from then on."""
_RENAMES = frozenset({ActionType.RENAME_TABLE, ActionType.RENAME_TABLES})
_LIES_THERE = "binlogd_lies_there"
_ASIDE = "temp.binlogd_aside"


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """A table of the replica: its name there, and what it was when it was last shaped."""

    name: str
    info: Table
    is_whole: bool = False
    """The replica has made it, and all that was ever written to it."""


class ReplicaCatalog:
    """The tables of a replica by upstream id."""

    def __init__(self, tables: Mapping[int, ReplicaTable]) -> None:
        self._changed: set[int] = set()
        self._tables = dict(tables)
        self._ids = {held.name.lower(): each for each, held in tables.items()}

    def get(self, table_id: int) -> ReplicaTable | None:
        """The table of an id."""
        return self._tables.get(table_id)

    def put(self, held: ReplicaTable) -> None:
        """Takes a table in, or its new name or shape; whatever had its name is forgotten."""
        self.remove(held.info.id)
        namesake = self.named(held.name)
        if namesake is not None:
            self.remove(namesake.info.id)
        self._tables[held.info.id] = held
        self._ids[held.name.lower()] = held.info.id
        self._changed.add(held.info.id)

    def remove(self, table_id: int) -> None:
        """Forgets a table; nothing where it is not held."""
        held = self._tables.pop(table_id, None)
        if held is not None:
            self._ids.pop(held.name.lower(), None)
            self._changed.add(table_id)

    def changes(self) -> dict[int, ReplicaTable | None]:
        """What is to be kept anew since this was last asked; None for what is gone."""
        changed, self._changed = self._changed, set()
        return {each: self._tables.get(each) for each in sorted(changed)}

    def named(self, name: str) -> ReplicaTable | None:
        """The table of a name, whatever its case."""
        table_id = self._ids.get(name.lower())
        return None if table_id is None else self._tables[table_id]

    def of_database(self, database: str) -> list[ReplicaTable]:
        """All tables of a database."""
        prefix = name_of(database, "").lower()
        return [held for held in self._tables.values() if held.name.lower().startswith(prefix)]


def name_of(database: str, table: str) -> str:
    """What a table is called in the replica. A dot in the name of a database is written otherwise,
    so that the first one ends it."""
    return f"{database.replace('%', '%25').replace('.', '%2E')}.{table}"


def changes_of(ddl: Ddl, catalog: ReplicaCatalog) -> ReplicaChanges:
    """Moves the catalog; returns what to execute. Raises NotStorable."""
    kind = ddl.job.type
    if kind in _PARTITION_ROWS:
        return _of_partitions(ddl, catalog)
    if kind in RECOVERIES:
        raise NotStorable("it brings back rows that no binlog holds")
    if kind == ActionType.DROP_SCHEMA:
        return _plain(_dropped(catalog, catalog.of_database(ddl.database)))
    if kind in TABLE_DROPS:
        held = catalog.named(name_of(ddl.database, ddl.table))
        return _plain(_dropped(catalog, [held] if held else []))
    if kind in _RENAMES:
        return _plain(_renamed(ddl, catalog))
    if kind == ActionType.TRUNCATE_TABLE:
        return _plain(_truncated(ddl, catalog))
    return _shaped(ddl, catalog)


def follow(ddl: Ddl, catalog: ReplicaCatalog) -> None:
    """A DDL that an operator passed over, and does here by hand: what is held is so now."""
    _renamed(ddl, catalog)
    info = ddl.job.table
    if info is None:
        return
    held = catalog.get(info.id)
    if held is None and ddl.job.type in _NEW_IDS:
        held = catalog.named(name_of(ddl.database, ddl.table))
    if held is not None:
        catalog.put(ReplicaTable(held.name, info))


def _plain(texts: Iterable[str], *functions: Function) -> ReplicaChanges:
    return ReplicaChanges([(text, ()) for text in texts], functions)


def _dropped(catalog: ReplicaCatalog, tables: list[ReplicaTable]) -> list[str]:
    for held in tables:
        catalog.remove(held.info.id)
    return [f"DROP TABLE {quoted(held.name)}" for held in tables]


def _renamed(ddl: Ddl, catalog: ReplicaCatalog) -> list[str]:
    """A table that is not held yet is taken in under its new name when a row of it comes."""
    texts = []
    for old, new in ddl.renamed:
        held = catalog.named(name_of(old.database, old.table))
        if held is not None:
            name = name_of(new.database, new.table)
            texts += renamed(held.name, name, held.info)
            catalog.put(ReplicaTable(name, replace(held.info, name=new.table), held.is_whole))
    return texts


def _of_partitions(ddl: Ddl, catalog: ReplicaCatalog) -> ReplicaChanges:
    """Rows that go with partitions, or change places with those of another table."""
    info = ddl.job.table
    held = catalog.get(info.id) if info is not None else None
    if info is None or held is None:
        return ReplicaChanges([])
    gone = _PartitionsGone(held.info, info)
    if ddl.job.type != ActionType.EXCHANGE_TABLE_PARTITION:
        catalog.put(ReplicaTable(held.name, info, held.is_whole))
        return _plain(gone.dropped(held.name), gone.function)
    plain = catalog.get(ddl.job.table_id)
    freed = set(held.info.partition_ids) - set(info.partition_ids)
    if plain is None or len(freed) != 1:
        raise NotStorable("the table that it exchanges rows with is not in the replica")
    texts = gone.exchanged(held.name, plain.name, stored_columns(held.info))
    catalog.remove(plain.info.id)
    is_whole = held.is_whole and plain.is_whole
    catalog.put(ReplicaTable(plain.name, replace(plain.info, id=freed.pop()), is_whole))
    catalog.put(ReplicaTable(held.name, info, is_whole))
    return _plain(texts, gone.function)


def _truncated(ddl: Ddl, catalog: ReplicaCatalog) -> list[str]:
    held = catalog.named(name_of(ddl.database, ddl.table))
    if held is None:
        return []
    info = held.info if ddl.job.table is None else ddl.job.table
    catalog.remove(held.info.id)
    catalog.put(ReplicaTable(held.name, info, is_whole=True))
    return [f"DELETE FROM {quoted(held.name)}"]


def _shaped(ddl: Ddl, catalog: ReplicaCatalog) -> ReplicaChanges:
    """Whatever made tables, or changed one."""
    job = ddl.job
    if job.type == ActionType.CREATE_TABLES:
        names = [name_of(each.database, each.table) for each in ddl.created]
        pairs = list(zip(names, job.tables, strict=True))
    else:
        pairs = [(name_of(ddl.database, ddl.table), job.table)] if job.table else []
    statements: list[Statement] = []
    functions: tuple[Function, ...] = ()
    for name, info in pairs:
        if info.is_view or info.is_sequence:
            continue
        held = catalog.get(info.id)
        if held is None and job.type in _NEW_IDS:
            held = catalog.named(name)
        if held is None:
            statements += _plain(create(name, info)).statements
            is_whole = job.type in _CREATES
        else:
            is_whole = held.is_whole
            shaped = reshape(held.name, held.info, info, changed_columns(job.query))
            statements += shaped.statements
            functions = shaped.functions  # of the one table that is there: CREATE TABLES needs none
            name = held.name
        catalog.put(ReplicaTable(name, info, is_whole))
    return ReplicaChanges(statements, functions)


class _PartitionsGone:
    """The rows in the partitions that a DDL took from a table. A replica has none of them: rows are
    found by the values that decide where they lie."""

    def __init__(self, before: Table, after: Table) -> None:
        """Raises NotStorable."""
        ids = frozenset(before.partition_ids) - frozenset(after.partition_ids)
        try:
            places = PartitionLookup(before)
        except Unplaceable as error:
            raise NotStorable(f"which rows a partition holds is not known here: {error}") from error
        held = {each.id: each for each in stored_columns(before)}
        if not held.keys() >= set(places.column_ids):
            raise NotStorable("the replica does not have the columns that it is partitioned by")
        columns = [held[each] for each in places.column_ids]
        reads = [(each.id, reader_of(each)) for each in columns]

        def lies_there(*stored: Stored) -> bool:
            values = {of: read(each) for (of, read), each in zip(reads, stored, strict=True)}
            return places.look(values) in ids

        names = ", ".join(quoted(each.name) for each in columns)
        self.function = Function(_LIES_THERE, len(columns), lies_there)
        self._where = f"WHERE {_LIES_THERE}({names})"

    def dropped(self, name: str) -> list[str]:
        """Statements that delete them."""
        return [f"DELETE FROM {quoted(name)} {self._where}"]

    def exchanged(self, name: str, other: str, columns: Iterable[Column]) -> list[str]:
        """Statements that put them into another table, and the rows of that in their place."""
        names = ", ".join(quoted(each.name) for each in columns)
        one, two = quoted(name), quoted(other)
        return [
            f"CREATE TEMP TABLE {_ASIDE.removeprefix('temp.')} AS"
            f" SELECT {names} FROM {one} {self._where}",
            *self.dropped(name),
            f"INSERT INTO {one} ({names}) SELECT {names} FROM {two}",
            f"DELETE FROM {two}",
            f"INSERT INTO {two} ({names}) SELECT {names} FROM {_ASIDE}",
            f"DROP TABLE {_ASIDE}",
        ]
