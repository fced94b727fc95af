"""Contents of tables in a MySQL or MariaDB, in the form of the model's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import aiomysql

from binlogd.errors import ConfigError, DownstreamUnavailable
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, Table
from binlogd.wire.mysql import for_mysql
from tests.workload.model import Contents, TableName
from tests.workload.schema import quoted
from tests.workload.values import Value

_NUMBERED = (Tp.BIT, Tp.ENUM, Tp.SET)
_TEXTUAL = (
    Tp.FLOAT,
    Tp.NEW_DECIMAL,
    Tp.DATE,
    Tp.DATETIME,
    Tp.TIMESTAMP,
    Tp.DURATION,
    Tp.JSON,
)
_STRINGS = (
    Tp.STRING,
    Tp.VARCHAR,
    Tp.TINY_BLOB,
    Tp.BLOB,
    Tp.MEDIUM_BLOB,
    Tp.LONG_BLOB,
)


@dataclass(frozen=True, slots=True)
class MySqlUrl:
    """A server and who asks."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> MySqlUrl:
        """Of `mysql://user:password@host:port`. Raises ConfigError."""
        parts = urlsplit(url)
        if parts.scheme != "mysql" or not parts.hostname:
            raise ConfigError("write mysql://user:password@host:port")
        return cls(
            parts.hostname,
            parts.port or 3306,
            unquote(parts.username or "root"),
            unquote(parts.password or ""),
        )


class MySqlReader:
    """Reads whole tables; values as a row decoder would give them."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: MySqlUrl) -> AsyncIterator[MySqlReader]:
        """A session in UTC. Raises DownstreamUnavailable."""
        try:
            connection = await aiomysql.connect(
                host=url.host,
                port=url.port,
                user=url.user,
                password=for_mysql(url.password),
                charset="utf8mb4",
                autocommit=True,
                init_command="SET time_zone = '+00:00'",
            )
        except aiomysql.MySQLError as error:
            raise DownstreamUnavailable(f"{url.host}:{url.port}: {error}") from error
        try:
            yield cls(connection)
        finally:
            connection.close()

    async def databases(self, prefix: str) -> list[str]:
        """The databases whose names begin so."""
        rows = await self._query("SELECT schema_name FROM information_schema.schemata")
        return sorted(name for (name,) in rows if name.startswith(prefix))

    async def drop_database(self, name: str) -> None:
        """Takes a database away, with everything in it."""
        await self._query(f"DROP DATABASE IF EXISTS {quoted(name)}")

    async def contents(
        self, tables: Mapping[TableName, Table], prefix: str
    ) -> dict[TableName, Contents]:
        """The tables of all databases that begin with the prefix.

        One that is not among `tables` shows no rows: that it is there is difference enough.
        """
        found: dict[TableName, Contents] = {}
        for database in await self.databases(prefix):
            names = await self._query(f"SHOW TABLES FROM {quoted(database)}")
            for (name,) in names:
                table = tables.get((database, name))
                found[database, name] = (
                    Contents((), ()) if table is None else await self._rows(database, table)
                )
        return found

    async def _rows(self, database: str, table: Table) -> Contents:
        public = [column for column in table.columns if column.is_public]
        selected = ", ".join(_selected(column) for column in public)
        rows = await self._query(f"SELECT {selected} FROM {quoted(database, table.name)}")
        return Contents(
            tuple(column.name for column in public),
            tuple(
                tuple(_read(column, value) for column, value in zip(public, row, strict=True))
                for row in rows
            ),
        )

    async def _query(self, statement: str) -> list[tuple[Any, ...]]:
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall())


def as_mysql_prints(contents: Contents, table: Table) -> Contents:
    """The model's contents with what a server cannot tell apart made equal: the digits of a FLOAT
    behind the sixth, and the spacing of JSON."""
    public = [column for column in table.columns if column.is_public]
    return Contents(
        contents.columns,
        tuple(
            tuple(_blurred(column, value) for column, value in zip(public, row, strict=True))
            for row in contents.rows
        ),
    )


def _selected(column: Column) -> str:
    name, tp = quoted(column.name), column.field_type.tp
    if tp in _NUMBERED:
        return f"CAST({name} AS UNSIGNED)"
    if tp in _TEXTUAL:
        return f"CAST({name} AS CHAR)"
    return f"CAST({name} AS BINARY)" if tp in _STRINGS else name


def _read(column: Column, value: Value) -> Value:
    if value is None:
        return None
    if column.field_type.tp in _TEXTUAL and isinstance(value, bytes):
        value = value.decode()
    return _blurred(column, float(value) if column.field_type.tp == Tp.FLOAT else value)


def _blurred(column: Column, value: Value) -> Value:
    if column.field_type.tp == Tp.FLOAT and isinstance(value, float):
        return float(f"{value:.6g}")
    if column.field_type.tp == Tp.JSON and isinstance(value, str):
        return json.dumps(json.loads(value), sort_keys=True)
    return value
