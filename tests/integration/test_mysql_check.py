"""Values of the workload survive a server, and are read back in the form of the model."""

from __future__ import annotations

import random

import pytest

from binlogd.errors import ConfigError
from binlogd.tidb.model import Column
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import connect
from tests.workload.model import Contents
from tests.workload.mysql_check import MySqlReader, MySqlUrl, as_mysql_prints
from tests.workload.replica import differences
from tests.workload.schema import TableDef, build_table, create_table_sql, literal, quoted
from tests.workload.tables import STANDARD
from tests.workload.values import Value, draw, draw_key

ROWS = 150


def sql(value: Value) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return literal(value)
        case _:
            return repr(value)


def random_rows(rng: random.Random, definition: TableDef, columns: tuple[Column, ...]) -> Contents:
    keys = {name for group in (definition.primary, *definition.unique) for name in group}
    rows = [
        tuple(
            draw_key(rng, column, serial) if column.name in keys else draw(rng, column)
            for column in columns
        )
        for serial in range(1, ROWS + 1)
    ]
    return Contents(tuple(column.name for column in columns), tuple(rows))


async def test_every_type_comes_back_as_it_was_written(mariadb: MariaDb) -> None:
    rng = random.Random(4)
    url = MySqlUrl.parse(f"mysql://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}")
    tables, expected = {}, {}
    with connect(mariadb.host, mariadb.port) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")
        for database in sorted({each.database for each in STANDARD}):
            cursor.execute(f"CREATE DATABASE {quoted('check_' + database)}")
        for definition in STANDARD:
            name = ("check_" + definition.database, definition.name)
            table = build_table(definition, 1)
            statement = create_table_sql(definition).replace(
                quoted(definition.database), quoted(name[0]), 1
            )
            cursor.execute(statement)
            contents = random_rows(rng, definition, table.columns)
            for row in contents.rows:
                values = ", ".join(map(sql, row))
                cursor.execute(f"INSERT INTO {quoted(*name)} VALUES ({values})")
            tables[name] = table
            expected[name] = as_mysql_prints(contents, table)
        connection.commit()
    async with MySqlReader.connected(url) as reader:
        found = await reader.contents(tables, "check_")
        assert differences(expected, found) == []
        for database in await reader.databases("check_"):
            await reader.drop_database(database)
        assert await reader.databases("check_") == []


def test_a_url_says_where_and_who() -> None:
    assert MySqlUrl.parse("mysql://me:p%40ss@db:3307") == MySqlUrl("db", 3307, "me", "p@ss")
    assert MySqlUrl.parse("mysql://localhost") == MySqlUrl("localhost", 3306, "root", "")
    with pytest.raises(ConfigError):
        MySqlUrl.parse("localhost:3306")
