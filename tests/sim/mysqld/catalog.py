"""What the server says about itself: information_schema, and SHOW CREATE TABLE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.sim.mysqld.errors import ServerError, no_database
from tests.sim.mysqld.tables import (
    NO_DEFAULT,
    Column,
    Definition,
    Index,
    Table,
    TableKey,
    Values,
)
from tests.sim.mysqld.values import ColumnType

if TYPE_CHECKING:
    from tests.sim.mysqld.session import Session

SCHEMA = "information_schema"
_TEXT = ColumnType("varchar", "varchar(512)", 512, collation="utf8mb4_bin")
_NUMBER = ColumnType("bigint", "bigint(21)", 64)


def is_system(name: TableKey) -> bool:
    """Whether it is a table of information_schema."""
    return name[0].lower() == SCHEMA


def system_table(session: Session, name: str) -> tuple[Definition, list[Values]]:
    """Its definition and rows. Raises ServerError for one that this server has not."""
    found = _TABLES.get(name.lower())
    if found is None:
        raise ServerError(1109, f"Unknown table '{name}' in {SCHEMA}")
    definition, rows = found
    return definition, list(rows(session))


def _definition(names: str, numbers: str = "") -> Definition:
    made = [(name, _TEXT) for name in names.split()] + [(name, _NUMBER) for name in numbers.split()]
    return Definition(
        tuple(Column(name, kind, is_nullable=True, default=None) for name, kind in made), ()
    )


def _all(session: Session) -> Iterator[tuple[str, str, Table]]:
    for database, tables in session.server.databases.items():
        for name, table in tables.items():
            yield database, name, table


def _tables(session: Session) -> Iterator[Values]:
    for database, name, _ in _all(session):
        yield database, name, "BASE TABLE", "InnoDB"


def _columns(session: Session) -> Iterator[Values]:
    for database, name, table in _all(session):
        for number, column in enumerate(table.definition.columns, start=1):
            nullable = "YES" if column.is_nullable else "NO"
            kind = "longtext" if column.type.data_type == "json" else column.type.data_type
            collation = column.type.collation or None
            told = database, name, column.name, kind, collation, nullable, column.extra
            yield *told, None, column.type.text, number


def _statistics(session: Session) -> Iterator[Values]:
    for database, name, table in _all(session):
        for index in table.definition.indexes:
            parts = zip(index.columns, index.prefixes, strict=True)
            for number, (column, prefix) in enumerate(parts, start=1):
                unique = int(not index.is_unique)
                yield database, name, index.name, column, prefix, unique, number


def _schemata(session: Session) -> Iterator[Values]:
    for database in session.server.databases:
        yield (database,)


def _none(session: Session) -> Iterator[Values]:
    return iter(())


def _processes(session: Session) -> Iterator[Values]:
    for thread_id, each in session.server.sessions.items():
        command = "Query" if each.busy_with else "Sleep"
        host = f"simulated:{thread_id}"
        yield each.user, host, each.database, command, each.busy_with, thread_id, 0


def _inside(session: Session) -> Iterator[Values]:
    for database, name, table in _all(session):
        partitioning = table.definition.partitioning
        if partitioning is None:
            yield f"{_as_file(database)}/{_as_file(name)}", table.number
            continue
        for partition, number in zip(partitioning.names, table.partition_numbers, strict=True):
            yield f"{_as_file(database)}/{_as_file(name)}#P#{_as_file(partition)}", number


def _as_file(name: str) -> str:
    return "".join(
        char if char.isascii() and (char.isalnum() or char == "_") else f"@{ord(char):04x}"
        for char in name
    )


_TABLES: dict[str, tuple[Definition, Callable[[Session], Iterator[Values]]]] = {
    "tables": (_definition("table_schema table_name table_type engine"), _tables),
    "columns": (
        _definition(
            "table_schema table_name column_name data_type collation_name is_nullable extra"
            " generation_expression column_type",
            "ordinal_position",
        ),
        _columns,
    ),
    "statistics": (
        _definition(
            "table_schema table_name index_name column_name", "sub_part non_unique seq_in_index"
        ),
        _statistics,
    ),
    "schemata": (_definition("schema_name"), _schemata),
    "triggers": (_definition("trigger_schema event_object_table"), _none),
    "processlist": (_definition("user host db command state", "id progress"), _processes),
    "innodb_sys_tables": (_definition("name", "table_id"), _inside),
}


# --- SHOW CREATE TABLE -------------------------------------------------------------------------


def show_create(session: Session, key: TableKey) -> list[Values]:
    """Its one row. Raises ServerError."""
    if key[0] not in session.server.databases:
        raise no_database(key[0])
    definition = session.server.table(key).definition
    lines = [_column(column) for column in definition.columns]
    lines += [_index(index) for index in definition.indexes]
    text = f"CREATE TABLE {_quoted(key[1])} (\n  " + ",\n  ".join(lines) + "\n) ENGINE=InnoDB"
    text += f" DEFAULT CHARSET=utf8mb4 COLLATE={definition.collation}"
    partitioning = definition.partitioning
    if partitioning is not None:
        parts = zip(partitioning.names, partitioning.bounds or partitioning.names, strict=True)
        text += f"\n PARTITION BY {partitioning.kind} ({_quoted(partitioning.column)})\n("
        text += ",\n ".join(f"PARTITION {_quoted(name)} {bound}" for name, bound in parts) + ")"
    return [(key[1], text)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _column(column: Column) -> str:
    text = f"{_quoted(column.name)} {column.type.text}"
    text += "" if column.is_nullable else " NOT NULL"
    if column.default is not NO_DEFAULT and (column.default is not None or column.is_nullable):
        text += f" DEFAULT {_literal(column.default)}"
    return f"{text} {column.extra.upper()}".rstrip()


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float | Decimal):
        return str(value)
    shown = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
    return "'" + shown.replace("'", "''") + "'"


def _index(index: Index) -> str:
    columns = ",".join(
        _quoted(name) + (f"({prefix})" if prefix else "")
        for name, prefix in zip(index.columns, index.prefixes, strict=True)
    )
    if index.name == "PRIMARY":
        return f"PRIMARY KEY ({columns})"
    return f"{'UNIQUE ' if index.is_unique else ''}KEY {_quoted(index.name)} ({columns})"
