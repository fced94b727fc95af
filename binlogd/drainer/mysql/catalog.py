"""What the downstream's information_schema says about a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import SqlRefused, SqlSession
from binlogd.drainer.rows.shape import DownstreamColumn, DownstreamKey, DownstreamTable

Row = tuple[Any, ...]


async def table_of(session: SqlSession, database: str, table: str) -> DownstreamTable | None:
    """None: there is no such table. Raises as `SqlSession.rows`."""
    where = b" WHERE table_schema = " + sql.text(database) + b" AND table_name = " + sql.text(table)
    kinds = await session.rows(b"SELECT table_type FROM information_schema.tables" + where)
    if not kinds:
        return None
    columns = await session.rows(
        b"SELECT column_name, data_type, collation_name, is_nullable, extra,"
        b" generation_expression FROM information_schema.columns" + where
    )
    parts = await session.rows(
        b"SELECT index_name, column_name, sub_part FROM information_schema.statistics"
        + where
        + b" AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"
    )
    triggers = await session.rows(
        b"SELECT COUNT(*), VERSION() FROM information_schema.triggers WHERE trigger_schema = "
        + sql.text(database)
        + b" AND event_object_table = "
        + sql.text(table)
    )
    return DownstreamTable(
        tuple(map(_column, columns)),
        _keys(parts),
        has_triggers=triggers[0][0] > 0,
        is_versioned=str(kinds[0][0]).upper() == "SYSTEM VERSIONED",
        calls_row=_calls_row(str(triggers[0][1])),
    )


def _calls_row(version: str) -> bool:
    """MySQL from 8.0.19 on; MariaDB and TiDB say their names."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None or "MariaDB" in version or "TiDB" in version:
        return False
    return tuple(map(int, found.groups())) >= (8, 0, 19)


async def fingerprint(session: SqlSession, database: str, table: str) -> str:
    """Differs before and after a DDL that changes the table, its name included; "" is unknown.

    Raises DownstreamUnavailable.
    """
    if not table:
        return ""
    try:
        rows = await session.rows(b"SHOW CREATE TABLE " + sql.qualified(database, table))
    except SqlRefused:
        return "absent"
    text = " ".join(word for word in str(rows[0][1]).split() if not word.startswith("AUTO_INCR"))
    said = sql.checksum(text.encode("utf-8", "surrogateescape"))
    return f"{await _inner_id(session, database, table)} {said}"


async def _inner_id(session: SqlSession, database: str, table: str) -> str:
    """InnoDB's numbers of the table or its partitions: they go along when names are swapped, and
    when a partition is exchanged."""
    name = b"CONCAT(%b, '/', %b)" % (_in_a_file_name(database), _in_a_file_name(table))
    where = b" WHERE name = %b OR LEFT(name, LENGTH(%b) + 3) = CONCAT(%b, '#P#') ORDER BY name"
    for place in (b"innodb_sys_tables", b"innodb_tables"):
        try:
            rows = await session.rows(
                b"SELECT table_id FROM information_schema." + place + where % (name, name, name)
            )
        except SqlRefused:  # not this server, or no privilege for it
            rows = []
        if rows:
            return sql.checksum(b",".join(b"%d" % number for (number,) in rows))
    return "?"


def _in_a_file_name(name: str) -> bytes:
    """`a-b` stands as `a@002db` there."""
    return b"CONVERT(BINARY CONVERT(" + sql.text(name) + b" USING filename) USING utf8mb4)"


async def is_busy(session: SqlSession, thread_id: int) -> bool:
    """Whether that connection is at a statement. Raises as `SqlSession.rows`.

    One that idles is not asked for: numbers begin anew when the server does.
    """
    try:
        rows = await session.rows(
            b"SELECT COUNT(*) FROM information_schema.processlist WHERE id = %d" % thread_id
            + b" AND id <> CONNECTION_ID() AND command <> 'Sleep'"
        )
    except SqlRefused:  # a server that does not tell
        return False
    return bool(rows[0][0])


async def stage_of(session: SqlSession, thread_id: int) -> tuple[str, float] | None:
    """What a connection is at, and how much of that is done in per cent; None: at nothing.

    Raises DownstreamUnavailable.
    """
    text = (
        b"SELECT state, %b FROM information_schema.processlist WHERE id = %d AND command <> 'Sleep'"
    )
    try:
        rows = await session.rows(text % (b"progress", thread_id))
    except SqlRefused:  # MariaDB's own column
        rows = await session.rows(text % (b"0", thread_id))
    return (str(rows[0][0] or ""), float(rows[0][1] or 0)) if rows else None


def _column(row: Row) -> DownstreamColumn:
    name, data_type, collation, nullable, extra, expression = row
    return DownstreamColumn(
        name=str(name),
        data_type=str(data_type).lower(),
        collation=str(collation or "").lower(),
        is_nullable=str(nullable).upper() == "YES",
        is_generated=bool(expression) or "GENERATED" in str(extra).upper().split(),
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
