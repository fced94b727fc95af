"""Text that users put into names, strings and comments, at real servers: none of it is executed."""

from __future__ import annotations

import pytest

from binlogd.drainer import sql
from binlogd.drainer.mysql.connection import SqlRefused, SqlSession
from binlogd.tidb.model import ActionType
from tests.support.ddl_upstream import ID, Upstream, table
from tests.support.mariadb import MariaDb
from tests.support.replay import server_of

SMUGGLED = (
    "CREATE INDEX i ON shop.t ((LOWER(a))) COMMENT '*/ ; DROP DATABASE other; -- ';",
    "ALTER TABLE `shop`.`t` ADD INDEX `i`((LOWER(`a`))) COMMENT 'x*/ ADD COLUMN evil INT -- ';",
    "ALTER TABLE `shop`.`t` ADD INDEX `i`((LOWER(`a`))) COMMENT '/*', COMMENT ' */ evil INT -- ';",
    "ALTER TABLE shop.t ADD INDEX `*/ ; DROP DATABASE other; -- ` ((lower(a)));",
    "ALTER TABLE shop.t ADD INDEX `*/ ADD COLUMN evil INT -- ` ((lower(a))), COMMENT 'x';",
)
MADE = (
    "CREATE TABLE `shop`.`u` (`a` VARCHAR(9), CHECK (`a` <> '*/) ; DROP DATABASE other; -- '));",
    "CREATE TABLE `shop`.`u` (`a` VARCHAR(9), CHECK (`a` <> '*/, evil INT) -- '));",
    "CREATE TABLE `shop`.`u` (`a` VARCHAR(9), INDEX ((LOWER(`a`))) COMMENT '*/, evil INT) -- ');",
    "CREATE TABLE shop.u (a VARCHAR(9)) /*M! AS SELECT 1 AS evil */",
    "CREATE TABLE shop.u (a VARCHAR(9) /*M!100000 , evil INT */)",
    "CREATE TABLE shop.u (a VARCHAR(9), $b$ INT, c INT COMMENT '$b$ INT, evil INT) -- ')",
)


@pytest.fixture
def upstream(each_server: MariaDb) -> Upstream:
    each_server.execute("CREATE DATABASE other")
    made = Upstream()
    made.database("shop", "CREATE DATABASE `shop`;")
    made.ddl(
        ActionType.CREATE_TABLE,
        "CREATE TABLE `shop`.`t` (`id` BIGINT PRIMARY KEY,`a` VARCHAR(20));",
        table(10, "t", ID),
    )
    return made


def columns(server: MariaDb, name: str) -> list[bytes | None]:
    wanted = f"table_schema = 'shop' AND table_name = '{name}' ORDER BY ordinal_position"
    rows = server.execute(
        f"SELECT column_name FROM information_schema.columns WHERE {wanted}",
    )
    return [column for (column,) in rows]


@pytest.mark.parametrize("statement", SMUGGLED)
async def test_what_an_alter_hides_is_not_executed(
    each_server: MariaDb, upstream: Upstream, statement: str
) -> None:
    upstream.ddl(ActionType.ADD_INDEX, statement, table(10, "t", ID))
    await upstream.replicate(each_server)
    assert columns(each_server, "t") == [b"id", b"a"]
    assert each_server.execute("SHOW DATABASES LIKE 'other'")


@pytest.mark.parametrize("statement", MADE)
async def test_what_a_create_hides_is_not_executed(
    each_server: MariaDb, upstream: Upstream, statement: str
) -> None:
    upstream.ddl(ActionType.CREATE_TABLE, statement, table(11, "u", ID))
    await upstream.replicate(each_server)
    assert b"evil" not in columns(each_server, "u")
    assert b"a" in columns(each_server, "u")
    assert each_server.execute("SHOW DATABASES LIKE 'other'")


async def test_only_a_session_for_rows_sends_several_statements_at_a_time(
    each_server: MariaDb,
) -> None:
    both = b"CREATE DATABASE one; CREATE DATABASE two"
    session = await SqlSession.connect(server_of(each_server))
    try:
        with pytest.raises(SqlRefused, match="error 1064"):
            await session.run(both)
        assert await session.rows(b"SELECT " + sql.text("a;b")) == [("a;b",)]
    finally:
        session.close()
    assert not each_server.execute("SHOW DATABASES LIKE 'one'")
