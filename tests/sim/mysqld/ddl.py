"""DDL: each statement is one step, done or not done, and ends the transaction before it.

It waits for every transaction that has read or written its tables (metadata locks), and they wait
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.sim.mysqld import definitions as d
from tests.sim.mysqld import partitions
from tests.sim.mysqld.errors import ServerError, no_database, no_table, unknown_column
from tests.sim.mysqld.lexing import NotSimulated, Statement
from tests.sim.mysqld.tables import (
    NO_DEFAULT,
    Column,
    Definition,
    Index,
    Partitioning,
    Table,
    TableKey,
    Values,
)

if TYPE_CHECKING:
    from tests.sim.mysqld.session import Session

_VERBS = (b"CREATE", b"DROP", b"ALTER", b"RENAME", b"TRUNCATE")


def is_ddl(shape: bytes) -> bool:
    """By its first word."""
    return shape[:8].upper().startswith(_VERBS)


async def run_ddl(session: Session, statement: Statement) -> int:
    """The rows that the server says it affected. Raises ServerError, NotSimulated."""
    asked = d.ddl_of(statement)
    text = statement.shape.decode("utf-8", "replace")
    match asked:
        case d.CreateDatabase():
            changed = _create_database(session, asked)
        case d.DropDatabase():
            changed = await _drop_database(session, asked)
        case d.CreateTable():
            changed = _create_table(session, asked)
        case d.DropTable():
            changed = await _drop_tables(session, asked)
        case d.Truncate():
            changed = await _truncate(session, asked)
        case d.RenameTables():
            changed = await _rename(session, asked)
        case d.AlterTable():
            changed = await _alter(session, asked)
    if changed is not None:
        session.server.record(text, changed, session.thread_id)
    return 0


async def _locked(session: Session, name: TableKey) -> Table:
    """The table of that name, for this DDL alone. Raises ServerError."""
    key = session.key(name)
    while True:  # until the table of that name is the one that was waited for
        table = session.server.table(key)
        await session.lock_definition(table)
        if session.server.databases.get(key[0], {}).get(key[1]) is table:
            return table


# --- schemas and whole tables ------------------------------------------------------------------


def _create_database(session: Session, asked: d.CreateDatabase) -> tuple[TableKey, ...] | None:
    if asked.name in session.server.databases:
        said = f"Can't create database '{asked.name}'; database exists"
        if not asked.if_not_exists:
            raise ServerError(1007, said)
        session.warn(1007, said, "Note")
        return None
    session.server.databases[asked.name] = {}
    return ()


async def _drop_database(session: Session, asked: d.DropDatabase) -> tuple[TableKey, ...] | None:
    tables = session.server.databases.get(asked.name)
    if tables is None:
        said = f"Can't drop database '{asked.name}'; database doesn't exist"
        if not asked.if_exists:
            raise ServerError(1008, said)
        session.warn(1008, said, "Note")
        return None
    for name in list(tables):
        await _locked(session, (asked.name, name))
    session.server.databases.pop(asked.name)
    if session.database == asked.name:
        session.database = ""
    return tuple((asked.name, name) for name in tables)


def _create_table(session: Session, asked: d.CreateTable) -> tuple[TableKey, ...] | None:
    key = session.key(asked.name)
    tables = session.server.tables_of(key[0])
    if key[1] in tables:
        said = f"Table '{key[1]}' already exists"
        if not asked.if_not_exists:
            raise ServerError(1050, said)
        session.warn(1050, said, "Note")
        return None
    if asked.like is not None:
        like = session.server.table(session.key(asked.like)).definition
        definition = Definition(like.columns, like.indexes, like.partitioning, like.collation)
    else:
        definition = Definition(asked.columns, asked.indexes, asked.partitioning)
    _check(definition)
    tables[key[1]] = Table(session.server.number(), definition, _numbers(session, definition))
    return (key,)


def _numbers(session: Session, definition: Definition) -> list[int]:
    names = definition.partitioning.names if definition.partitioning is not None else ()
    return [session.server.number() for _ in names]


def _check(definition: Definition) -> None:
    names: set[str] = set()
    for column in definition.columns:
        if column.name.lower() in names:
            raise ServerError(1060, f"Duplicate column name '{column.name}'")
        names.add(column.name.lower())
    if not names:
        raise ServerError(1090, "You can't delete all columns with ALTER TABLE")
    seen: set[str] = set()
    for index in definition.indexes:
        if index.name.lower() in seen:
            if index.name == "PRIMARY":
                raise ServerError(1068, "Multiple primary key defined")
            raise ServerError(1061, f"Duplicate key name '{index.name}'")
        seen.add(index.name.lower())
        for name in index.columns:
            if name.lower() not in names:
                raise ServerError(1072, f"Key column '{name}' doesn't exist in table")
    partitioning = definition.partitioning
    if partitioning is not None:
        _check_partitions(definition, partitioning)


def _check_partitions(definition: Definition, partitioning: Partitioning) -> None:
    column = partitioning.column.lower()
    if definition.position(column) is None:
        raise unknown_column(partitioning.column, "partition function")
    for index in definition.indexes:
        if index.is_unique and column not in [name.lower() for name in index.columns]:
            raise ServerError(
                1503,
                f"A {'PRIMARY KEY' if index.name == 'PRIMARY' else 'UNIQUE INDEX'} must include"
                " all columns in the table's partitioning function",
            )
    if len(set(partitioning.names)) < len(partitioning.names):
        raise ServerError(1517, "Duplicate partition name")


async def _drop_tables(session: Session, asked: d.DropTable) -> tuple[TableKey, ...] | None:
    keys = [session.key(name) for name in asked.names]
    there = [key for key in keys if key[1] in session.server.databases.get(key[0], {})]
    for key in sorted(there):
        await _locked(session, key)
    there = [key for key in keys if key[1] in session.server.databases.get(key[0], {})]
    for database, name in there:
        session.server.databases[database].pop(name)
    missing = [f"{database}.{name}" for database, name in keys if (database, name) not in there]
    if missing:
        said = f"Unknown table '{','.join(missing)}'"
        if not asked.if_exists:
            if there:
                session.server.record("DROP TABLE", tuple(there), session.thread_id)
            raise ServerError(1051, said)
        session.warn(1051, said, "Note")
    return tuple(there) or None


async def _truncate(session: Session, asked: d.Truncate) -> tuple[TableKey, ...]:
    table = await _locked(session, asked.name)
    key = session.key(asked.name)
    fresh = Table(session.server.number(), table.definition, _numbers(session, table.definition))
    session.server.databases[key[0]][key[1]] = fresh
    return (key,)


async def _rename(session: Session, asked: d.RenameTables) -> tuple[TableKey, ...]:
    pairs = [(session.key(old), session.key(new)) for old, new in asked.pairs]
    names = sorted({key for pair in pairs for key in pair})
    for key in names:
        if key[1] in session.server.databases.get(key[0], {}):
            await _locked(session, key)
    databases = {name: dict(tables) for name, tables in session.server.databases.items()}
    for old, new in pairs:
        _move(databases, old, new)
    session.server.databases = databases
    return tuple(names)


def _move(databases: dict[str, dict[str, Table]], old: TableKey, new: TableKey) -> None:
    if old[1] not in databases.get(old[0], {}):
        raise no_table(*old)
    if new[0] not in databases:
        raise no_database(new[0])
    if new[1] in databases[new[0]]:
        raise ServerError(1050, f"Table '{new[1]}' already exists")
    databases[new[0]][new[1]] = databases[old[0]].pop(old[1])


# --- ALTER TABLE -------------------------------------------------------------------------------


class _Draft:
    """A table while an ALTER is at it: nothing of it is seen before all was done."""

    def __init__(self, session: Session, table: Table, key: TableKey) -> None:
        self.session, self.key, self.new_key = session, key, key
        self.columns = list(table.definition.columns)
        self.indexes = list(table.definition.indexes)
        self.partitioning = table.definition.partitioning
        self.partition_numbers = list(table.partition_numbers)
        self.old = table
        self.rows = {number: list(values) for number, values in table.committed().items()}

    def at(self, name: str) -> int:
        """The place of a column. Raises ServerError."""
        for number, column in enumerate(self.columns):
            if column.name.lower() == name.lower():
                return number
        raise unknown_column(name, self.key[1])

    def has(self, name: str) -> bool:
        return any(column.name.lower() == name.lower() for column in self.columns)

    def index(self, name: str) -> Index | None:
        return next((each for each in self.indexes if each.name.lower() == name.lower()), None)

    def insert(self, at: int, column: Column, values: Sequence[Any]) -> None:
        """A column at a place, with the value of each row."""
        self.columns.insert(at, column)
        for row, value in zip(self.rows.values(), values, strict=True):
            row.insert(at, value)

    def remove(self, at: int) -> list[Any]:
        """A column; the value of each row."""
        self.columns.pop(at)
        return [row.pop(at) for row in self.rows.values()]

    def place(self, place: str | None, otherwise: int) -> int:
        """Where a column goes."""
        if place is None:
            return otherwise
        return self.at(place) + 1 if place else 0

    def finished(self) -> Table:
        """Raises ServerError: a key has two rows, or a row no partition."""
        definition = Definition(tuple(self.columns), tuple(self.indexes), self.partitioning)
        _check(definition)
        rows: dict[int, Values] = {number: tuple(row) for number, row in self.rows.items()}
        seen: list[set[Any]] = [set() for _ in definition.unique]
        for row in rows.values():
            partitions.check(definition, row)
            for unique, keys in zip(definition.unique, seen, strict=True):
                found = unique.of(row)
                if found is not None and found in keys:
                    shown = "-".join(str(row[at]) for at in unique.at)
                    raise ServerError(1062, f"Duplicate entry '{shown}' for key '{unique.name}'")
                keys.add(found)
        table = Table(self.old.number, definition, self.partition_numbers)
        table.load(rows)
        return table


async def _alter(session: Session, asked: d.AlterTable) -> tuple[TableKey, ...]:
    table = await _locked(session, asked.name)
    draft = _Draft(session, table, session.key(asked.name))
    for action in asked.actions:
        _ACTIONS[type(action)](draft, action)
    made = draft.finished()
    (database, name), (new_database, new_name) = draft.key, draft.new_key
    tables = session.server.tables_of(new_database)
    if draft.new_key != draft.key:
        if new_name in tables:
            raise ServerError(1050, f"Table '{new_name}' already exists")
        session.server.databases[database].pop(name)
    tables[new_name] = made
    return tuple(dict.fromkeys((draft.key, draft.new_key)))


def _add_column(draft: _Draft, asked: d.AddColumn) -> None:
    column = asked.column
    if draft.has(column.name):
        said = f"Duplicate column name '{column.name}'"
        if not asked.if_not_exists:
            raise ServerError(1060, said)
        draft.session.warn(1060, said, "Note")
        return
    if "auto_increment" in column.extra:
        raise NotSimulated("ADD COLUMN ... AUTO_INCREMENT")
    value = column.default
    if value is NO_DEFAULT:
        value = None if column.is_nullable else column.type.implicit
    at = draft.place(asked.place, len(draft.columns))
    draft.insert(at, column, [value] * len(draft.rows))
    for index in asked.indexes:
        _add_index(draft, d.AddIndex(index, if_not_exists=False))


def _drop_column(draft: _Draft, asked: d.DropColumn) -> None:
    if not draft.has(asked.name):
        said = f"Can't DROP COLUMN `{asked.name}`; check that it exists"
        if not asked.if_exists:
            raise ServerError(1091, said)
        draft.session.warn(1091, said, "Note")
        return
    draft.remove(draft.at(asked.name))
    kept: list[Index] = []
    for index in draft.indexes:
        parts = [
            (name, prefix)
            for name, prefix in zip(index.columns, index.prefixes, strict=True)
            if name.lower() != asked.name.lower()
        ]
        if len(parts) < len(index.columns) and index.is_unique and parts:
            said = f"Key column '{asked.name}' doesn't exist in table"
            raise ServerError(1072, said)
        if parts:
            names, prefixes = zip(*parts, strict=True)
            kept.append(replace(index, columns=names, prefixes=prefixes))
    draft.indexes = kept


def _change_column(draft: _Draft, asked: d.ChangeColumn) -> None:
    at = draft.at(asked.name)
    old, column = draft.columns[at], asked.column
    primary = draft.index("PRIMARY")
    if primary is not None and old.name.lower() in [each.lower() for each in primary.columns]:
        column = replace(column, is_nullable=False)
    if column.name.lower() != old.name.lower() and draft.has(column.name):
        raise ServerError(1060, f"Duplicate column name '{column.name}'")
    values = draft.remove(at)
    kept = [
        _converted(draft.session, column, value, row) for row, value in enumerate(values, start=1)
    ]
    draft.insert(draft.place(asked.place, at), column, kept)
    _rename_in_keys(draft, old.name, column.name)


def _converted(session: Session, column: Column, value: Any, row: int) -> Any:
    said = f"Data truncated for column '{column.name}' at row {row}"
    if value is None:
        if column.is_nullable:
            return None
        code, kept = 1265, column.type.implicit
    else:
        kept, code = column.type.fitted(value)
    if code and session.is_strict:
        raise ServerError(code, said)
    if code:
        session.warn(1265 if code == 1406 else code, said)
    return kept


def _rename_in_keys(draft: _Draft, old: str, new: str) -> None:
    if draft.partitioning is not None and draft.partitioning.column.lower() == old.lower():
        draft.partitioning = replace(draft.partitioning, column=new)
    draft.indexes = [
        replace(
            index,
            columns=tuple(new if name.lower() == old.lower() else name for name in index.columns),
        )
        for index in draft.indexes
    ]


def _rename_column(draft: _Draft, asked: d.RenameColumn) -> None:
    at = draft.at(asked.name)
    if asked.after.lower() != asked.name.lower() and draft.has(asked.after):
        raise ServerError(1060, f"Duplicate column name '{asked.after}'")
    draft.columns[at] = replace(draft.columns[at], name=asked.after)
    _rename_in_keys(draft, asked.name, asked.after)


def _set_default(draft: _Draft, asked: d.SetDefault) -> None:
    at = draft.at(asked.name)
    column, value = draft.columns[at], asked.value
    if value is not NO_DEFAULT and value is not None:
        value = column.type.fitted(value).value
    draft.columns[at] = replace(column, default=value)


def _add_index(draft: _Draft, asked: d.AddIndex) -> None:
    index = asked.index
    if not index.name:
        taken = {each.name.lower() for each in draft.indexes}
        index = replace(index, name=d.free_name(index.columns[0], taken))
    if draft.index(index.name) is not None and asked.if_not_exists:
        draft.session.warn(1061, f"Duplicate key name '{index.name}'", "Note")
        return
    if index.name == "PRIMARY":
        names = {name.lower() for name in index.columns}
        for at, column in enumerate(draft.columns):
            if column.name.lower() in names:
                default = NO_DEFAULT if column.default is None else column.default
                draft.columns[at] = replace(column, is_nullable=False, default=default)
                for row in draft.rows.values():
                    if row[at] is None:
                        raise ServerError(1265, f"Data truncated for column '{column.name}'")
    draft.indexes.append(index)


def _drop_index(draft: _Draft, asked: d.DropIndex) -> None:
    index = draft.index(asked.name)
    if index is None:
        said = f"Can't DROP INDEX `{asked.name}`; check that it exists"
        if not asked.if_exists:
            raise ServerError(1091, said)
        draft.session.warn(1091, said, "Note")
        return
    draft.indexes.remove(index)


def _rename_index(draft: _Draft, asked: d.RenameIndex) -> None:
    index = draft.index(asked.name)
    if index is None:
        raise ServerError(1176, f"Key '{asked.name}' doesn't exist in table '{draft.key[1]}'")
    if asked.after.lower() != asked.name.lower() and draft.index(asked.after) is not None:
        raise ServerError(1061, f"Duplicate key name '{asked.after}'")
    draft.indexes[draft.indexes.index(index)] = replace(index, name=asked.after)


def _rename_to(draft: _Draft, asked: d.RenameTo) -> None:
    draft.new_key = (asked.name[0] or draft.key[0], asked.name[1])


def _nothing(draft: _Draft, asked: d.Nothing) -> None:
    """It changes no row, and nothing that is simulated."""


def _partitioned(draft: _Draft) -> Partitioning:
    if draft.partitioning is None:
        said = "Partition management on a not partitioned table is not possible"
        raise ServerError(1505, said)
    return draft.partitioning


def _add_partitions(draft: _Draft, asked: d.AddPartitions) -> None:
    partitioning = _partitioned(draft)
    taken = [name for name in asked.names if name in partitioning.names]
    if taken:
        raise ServerError(1517, f"Duplicate partition name {taken[0]}")
    before = partitioning.bounds[-1]
    for bound in asked.bounds if partitioning.kind == "RANGE" else ():
        if before is None or (bound is not None and bound <= before):
            raise ServerError(
                1481 if before is None else 1493,
                "VALUES LESS THAN value must be strictly increasing for each partition",
            )
        before = bound
    draft.partitioning = replace(
        partitioning,
        names=partitioning.names + asked.names,
        bounds=partitioning.bounds + asked.bounds,
    )
    draft.partition_numbers += [draft.session.server.number() for _ in asked.names]


def _drop_partitions(draft: _Draft, asked: d.DropPartitions) -> None:
    partitioning = _partitioned(draft)
    if not set(asked.names) <= set(partitioning.names):
        raise ServerError(1507, "Wrong partition name or partition list")
    definition = Definition(tuple(draft.columns), (), partitioning)
    draft.rows = {
        number: row
        for number, row in draft.rows.items()
        if partitions.partition_of(definition, tuple(row)) not in asked.names
    }
    kept = [n for n, name in enumerate(partitioning.names) if name not in asked.names]
    if asked.is_truncate:
        return
    if not kept:
        raise ServerError(1508, "Cannot remove all partitions, use DROP TABLE instead")
    draft.partition_numbers = [draft.partition_numbers[n] for n in kept]
    draft.partitioning = replace(
        partitioning,
        names=tuple(partitioning.names[n] for n in kept),
        bounds=tuple(partitioning.bounds[n] for n in kept),
    )


_ACTIONS: dict[type[Any], Callable[[_Draft, Any], None]] = {
    d.AddColumn: _add_column,
    d.DropColumn: _drop_column,
    d.ChangeColumn: _change_column,
    d.SetDefault: _set_default,
    d.RenameColumn: _rename_column,
    d.AddIndex: _add_index,
    d.DropIndex: _drop_index,
    d.RenameIndex: _rename_index,
    d.RenameTo: _rename_to,
    d.Nothing: _nothing,
    d.AddPartitions: _add_partitions,
    d.DropPartitions: _drop_partitions,
}
