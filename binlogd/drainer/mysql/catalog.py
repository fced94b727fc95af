"""What the downstream's information_schema says about a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from binlogd.drainer import sql
from binlogd.drainer.mysql import innodb_name
from binlogd.drainer.mysql.connection import SqlRefused, SqlSession
from binlogd.drainer.rows.shape import DownstreamColumn, DownstreamKey, DownstreamTable

Row = tuple[Any, ...]
_PRIVILEGE_MISSING = 1227
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_WITHOUT_ROLLBACK = frozenset({"aria", "archive", "csv", "memory", "mrg_myisam", "myisam"})


def where(database: str, table: str) -> bytes:
    """Which rows of information_schema are of a table."""
    return b" WHERE table_schema = " + sql.text(database) + b" AND table_name = " + sql.text(table)


async def table_of(session: SqlSession, database: str, table: str) -> DownstreamTable | None:
    """None: there is no such table. Raises as `SqlSession.rows`."""
    there = where(database, table)
    kinds = await session.rows(b"SELECT table_type, engine FROM information_schema.tables" + there)
    if not kinds:
        return None
    columns = await session.rows(
        b"SELECT column_name, data_type, collation_name, is_nullable, extra,"
        b" generation_expression, column_type FROM information_schema.columns" + there
    )
    parts = await session.rows(
        b"SELECT index_name, column_name, sub_part FROM information_schema.statistics"
        + there
        + b" AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"
    )
    ((triggers, version),) = await session.rows(
        b"SELECT COUNT(*), VERSION() FROM information_schema.triggers WHERE trigger_schema = %b"
        b" AND event_object_table = %b" % (sql.text(database), sql.text(table))
    )
    return DownstreamTable(
        tuple(map(_column, columns)),
        _keys(parts),
        has_triggers=triggers > 0,
        is_versioned=str(kinds[0][0]).upper() == "SYSTEM VERSIONED",
        calls_row=_calls_row(str(version)),
        is_rolled_back=str(kinds[0][1]).lower() not in _WITHOUT_ROLLBACK,
    )


def _calls_row(version: str) -> bool:
    """MySQL from 8.0.19 on; MariaDB and TiDB say their names."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None or "MariaDB" in version or "TiDB" in version:
        return False
    return tuple(map(int, found.groups())) >= (8, 0, 19)


async def fingerprint(session: SqlSession, database: str, table: str) -> str:
    """Differs before and after a DDL that changes the table, its name included; "" is unknown.
    Raises DownstreamUnavailable."""
    if not table:
        return ""
    rows = await session.rows_if_told(b"SHOW CREATE TABLE " + sql.qualified(database, table))
    if not rows:
        return "absent"
    text = " ".join(word for word in str(rows[0][1]).split() if not word.startswith("AUTO_INCR"))
    return sql.checksum(text.encode("utf-8", "surrogateescape"))


async def number(session: SqlSession, database: str, table: str, partition: str) -> str:
    """What a table, or a partition of it, is called inside the server, whatever its name; "?" where
    the server does not tell, or not of which of two tables. InnoDB wants PROCESS for it.

    Raises DownstreamUnavailable."""
    of_tidb = b"tidb_table_id FROM information_schema.tables"
    there = where(database, table)
    if partition:
        of_tidb = b"tidb_partition_id FROM information_schema.partitions"
        there += b" AND partition_name = " + sql.text(partition)
    like = innodb_name.like(database, table)
    of_innodb = b"name, table_id FROM information_schema.%b WHERE name LIKE %b ORDER BY name"
    for question in (
        of_innodb % (b"innodb_sys_tables", sql.text(like)),
        of_innodb % (b"innodb_tables", sql.text(like)),
        b"'', " + of_tidb + there,
    ):
        rows = await session.rows_if_told(b"SELECT " + question)
        found = [(str(name), int(each)) for name, each in rows if each is not None]
        if found and found[0][0]:
            found = innodb_name.of_table(found, database, table, partition)
        if found:
            return sql.checksum(b",".join(b"%d" % each for _, each in found))
    return "?"


async def lacks_process(session: SqlSession) -> bool:
    """Whether InnoDB would tell `number` with the PROCESS privilege, and does not. Raises
    DownstreamUnavailable."""
    for table in (b"innodb_sys_tables", b"innodb_tables"):
        try:
            await session.rows(b"SELECT table_id FROM information_schema." + table + b" LIMIT 1")
        except SqlRefused as error:
            if error.code == _PRIVILEGE_MISSING:
                return True
    return False


async def names(session: SqlSession, database: str, table: str) -> tuple[set[str], set[str]]:
    """Of the columns and of the indexes, in lower case. Raises as `SqlSession.rows`."""
    there = where(database, table)
    columns = await session.rows(b"SELECT column_name FROM information_schema.columns" + there)
    indexes = await session.rows(b"SELECT index_name FROM information_schema.statistics" + there)
    return {str(name).lower() for (name,) in columns}, {str(name).lower() for (name,) in indexes}


async def connection_of(session: SqlSession, thread_id: int) -> str:
    """A checksum of user, host and port of a connection, "-" where there is none by that number.

    Numbers begin anew when the server does, and another server has its own. Raises
    DownstreamUnavailable.
    """
    rows = await session.rows_if_told(
        b"SELECT user, host FROM information_schema.processlist WHERE id = %d" % thread_id
    )
    return sql.checksum(f"{rows[0][0]}@{rows[0][1]}".encode()) if rows else "-"


async def is_busy(session: SqlSession, thread_id: int, connection: str) -> bool:
    """Whether that connection is at a statement; one that idles is not asked for. `connection` is
    what `connection_of` told of it, "" for nothing. Raises DownstreamUnavailable."""
    if thread_id in (0, session.thread_id) or await stage_of(session, thread_id) is None:
        return False
    return not connection or connection == await connection_of(session, thread_id)


async def stage_of(session: SqlSession, thread_id: int) -> tuple[str, float] | None:
    """What a connection is at, and how much of that is done in per cent; None: at nothing. Raises
    DownstreamUnavailable."""
    text = (
        b"SELECT state, %b FROM information_schema.processlist WHERE id = %d AND command <> 'Sleep'"
    )
    try:
        rows = await session.rows(text % (b"progress", thread_id))
    except SqlRefused:  # MariaDB's own column
        rows = await session.rows(text % (b"0", thread_id))
    return (str(rows[0][0] or ""), float(rows[0][1] or 0)) if rows else None


def _column(row: Row) -> DownstreamColumn:
    name, data_type, collation, nullable, extra, expression, column_type = row
    members = _MEMBER.findall(str(column_type)) if data_type in ("enum", "set") else ()
    return DownstreamColumn(
        name=str(name),
        data_type=str(data_type).lower(),
        collation=str(collation or "").lower(),
        is_nullable=str(nullable).upper() == "YES",
        is_generated=bool(expression) or "GENERATED" in str(extra).upper().split(),
        members=tuple(each.replace("''", "'") for each in members),
    )


def _keys(parts: Sequence[Row]) -> tuple[DownstreamKey, ...]:
    found: dict[str, list[Row]] = {}
    for part in parts:
        found.setdefault(str(part[0]), []).append(part)
    return tuple(
        DownstreamKey(
            name,
            tuple(str(column or "") for _, column, _ in columns),
            has_prefix=any(length is not None for _, _, length in columns),
        )
        for name, columns in found.items()
    )
