"""What the sink relies on in a MySQL, held against a MariaDB and the simulated server alike.

Everything goes through the product's own session, so what is the same here is the same for a sink:
rows affected, warnings, errors by their numbers, who sees what, who waits for whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import MySqlServer, SqlRefused, SqlSession, TryAgain
from binlogd.drainer.rows.shape import DownstreamColumn, DownstreamKey
from tests.sim.mysql import SimMySql
from tests.support.mariadb import MariaDb
from tests.support.replay import server_of

TABLES = (
    "CREATE DATABASE s",
    "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b INT, c VARCHAR(5) NOT NULL DEFAULT 'd')",
    "CREATE TABLE s.pair (a INT NOT NULL, b VARCHAR(10) NOT NULL, v INT, PRIMARY KEY (a, b))",
    "CREATE TABLE s.two (id INT PRIMARY KEY, u INT, v INT, UNIQUE KEY u (u))",
    "CREATE TABLE s.plain (a INT, b VARCHAR(10))",
    "CREATE TABLE s.part (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
)
Answers = list[object]
"""Of each statement the rows affected (or its rows, of a query), or the number of its error."""


@pytest.fixture(params=["mariadb", "simulated"])
def server(request: pytest.FixtureRequest) -> MySqlServer:
    if request.param == "mariadb":
        mariadb: MariaDb = request.getfixturevalue("mariadb")
        mariadb.execute(*TABLES)
        return server_of(mariadb)
    simulated = SimMySql(Random(1))
    simulated.execute(*TABLES)
    return simulated.server()


@asynccontextmanager
async def session(
    server: MySqlServer, *, for_rows: bool = True, wait_s: int = 5
) -> AsyncIterator[SqlSession]:
    wishes = (b"innodb_lock_wait_timeout = %d" % wait_s,)
    opened = await SqlSession.connect(server, for_rows=for_rows, wishes=wishes)
    try:
        yield opened
    finally:
        opened.close()


async def answer(opened: SqlSession, statement: str) -> object:
    """See Answers."""
    text = statement.encode()
    try:
        if text.startswith((b"SELECT", b"SHOW")):
            return await opened.rows(text)
        return (await opened.run(text)).affected
    except SqlRefused as error:
        return f"error {error.code}"
    except TryAgain as error:
        return f"again {str(error).split('error ')[1][:4]}"


async def answers(opened: SqlSession, *statements: str) -> Answers:
    return [await answer(opened, each) for each in statements]


# --- rows and what they affect -----------------------------------------------------------------

SHAPES: dict[str, tuple[tuple[str, object], ...]] = {
    "a replaced row counts twice, unless it is replaced by what it was": (
        ("REPLACE INTO `s`.`t`(`id`,`b`,`c`) VALUES (1,1,'a'),(2,2,'b')", 2),
        ("REPLACE INTO `s`.`t`(`id`,`b`,`c`) VALUES (1,1,'a'),(2,3,'b'),(3,3,'c')", 4),
        ("REPLACE INTO `s`.`t`(`id`,`b`,`c`) VALUES (1,NULL,'a')", 2),
        ("SELECT id, b, c FROM s.t ORDER BY id", [(1, None, "a"), (2, 3, "b"), (3, 3, "c")]),
    ),
    "a row takes the place of several": (
        ("INSERT INTO `s`.`two`(`id`,`u`,`v`) VALUES (1,1,1),(2,2,2),(3,3,3)", 3),
        ("REPLACE INTO `s`.`two`(`id`,`u`,`v`) VALUES (1,2,9)", 3),
        ("REPLACE INTO `s`.`two`(`id`,`u`,`v`) VALUES (1,2,9)", 2),
        ("REPLACE INTO `s`.`two`(`id`,`u`,`v`) VALUES (4,3,4)", 2),
        ("REPLACE INTO `s`.`two`(`id`,`u`,`v`) VALUES (5,NULL,4),(6,NULL,4)", 2),
        ("SELECT id, u FROM s.two ORDER BY id", [(1, 2), (4, 3), (5, None), (6, None)]),
    ),
    "a list deletes what is there": (
        ("REPLACE INTO `s`.`t`(`id`,`b`,`c`) VALUES (1,1,'a'),(2,2,'b'),(3,3,'c')", 3),
        ("DELETE FROM `s`.`t` WHERE `id` IN (1,3,5)", 2),
        ("DELETE FROM `s`.`t` WHERE `id` IN (1)", 0),
        ("DELETE FROM `s`.`t` WHERE `id` = 2 LIMIT 1", 1),
        ("REPLACE INTO `s`.`pair`(`a`,`b`,`v`) VALUES (1,'x',1),(1,'y',2),(2,'x',3)", 3),
        ("DELETE FROM `s`.`pair` WHERE (`a`,`b`) IN ((1,'x'),(1,'x'))", 1),
        ("DELETE FROM `s`.`pair` WHERE (`a`,`b`) IN ((1,'y'),(2,'x'),(2,'z'))", 2),
        ("SELECT COUNT(*), 1 FROM s.pair", [(0, 1)]),
    ),
    "an upsert counts once, twice, or once": (
        ("INSERT INTO `s`.`t`(`id`,`b`) VALUES (1,1) ON DUPLICATE KEY UPDATE `b`=VALUES(`b`)", 1),
        ("INSERT INTO `s`.`t`(`id`,`b`) VALUES (1,2) ON DUPLICATE KEY UPDATE `b`=VALUES(`b`)", 2),
        ("INSERT INTO `s`.`t`(`id`,`b`) VALUES (1,2) ON DUPLICATE KEY UPDATE `b`=VALUES(`b`)", 1),
        ("INSERT INTO s.t VALUES (1, 2, 'x') ON DUPLICATE KEY UPDATE b = b + 1", 2),
        ("SELECT id, b, c FROM s.t", [(1, 3, "d")]),
    ),
    "an update counts what it finds": (
        ("INSERT INTO `s`.`plain`(`a`,`b`) VALUES (1,'x'),(1,'x'),(NULL,'y')", 3),
        ("UPDATE `s`.`plain` SET `a` = 1,`b` = 'x' WHERE `a` = 1 LIMIT 1", 1),
        ("UPDATE `s`.`plain` SET `a` = 2 WHERE `a` = 1 AND `b` = 'x' LIMIT 1", 1),
        ("UPDATE `s`.`plain` SET `a` = 3 WHERE `a` IS NULL AND `b` = 'y' LIMIT 1", 1),
        ("UPDATE `s`.`plain` SET `a` = 3 WHERE `a` = 9 LIMIT 1", 0),
        (
            "DELETE FROM `s`.`plain` WHERE `a` = 2 AND `b` = 'x'"
            " AND CAST(CONVERT(`b` USING utf8mb4) AS BINARY) = _binary'x' LIMIT 1",
            1,
        ),
        ("SELECT a, b FROM s.plain ORDER BY a", [(1, "x"), (3, "y")]),
        (
            "SELECT EXISTS (SELECT 1 FROM s.plain WHERE a = 1),EXISTS (SELECT 1 FROM s.plain"
            " WHERE a = 2)",
            [(1, 0)],
        ),
    ),
    "trailing spaces do not count, case does": (
        ("INSERT INTO `s`.`pair`(`a`,`b`,`v`) VALUES (1,'x',1)", 1),
        ("INSERT INTO `s`.`pair`(`a`,`b`,`v`) VALUES (1,'x ',1)", "error 1062"),
        ("INSERT INTO `s`.`pair`(`a`,`b`,`v`) VALUES (1,'X',1)", 1),
        ("REPLACE INTO `s`.`pair`(`a`,`b`,`v`) VALUES (1,'x ',1)", 2),
        ("DELETE FROM `s`.`pair` WHERE `a` = 1 AND `b` = 'x   ' LIMIT 1", 1),
    ),
    "an error undoes its statement and no more": (
        ("INSERT INTO `s`.`t`(`id`,`b`) VALUES (1,1)", 1),
        ("INSERT INTO `s`.`t`(`id`,`b`) VALUES (2,1),(1,1)", "error 1062"),
        ("UPDATE `s`.`t` SET `id` = 1 WHERE `id` = 1 LIMIT 1", 1),
        ("INSERT INTO `s`.`t`(`id`,`b`) VALUES (3,1)", 1),
        ("UPDATE `s`.`t` SET `id` = 1 WHERE `id` = 3 LIMIT 1", "error 1062"),
        ("SELECT id FROM s.t ORDER BY id", [(1,), (3,)]),
    ),
    "what is not there has a number": (
        ("INSERT INTO `s`.`none`(`id`) VALUES (1)", "error 1146"),
        ("INSERT INTO `none`.`t`(`id`) VALUES (1)", "error 1146"),
        ("INSERT INTO `t`(`id`) VALUES (1)", "error 1046"),
        ("INSERT INTO `s`.`t`(`id`,`no`) VALUES (1,1)", "error 1054"),
        ("REPLACE INTO `s`.`t`(`id`,`b`) VALUES (1)", "error 1136"),
        ("DELETE FROM `s`.`t` WHERE `no` IN (1)", "error 1054"),
        ("UPDATE `s`.`t` SET `no` = 1 WHERE `id` = 1 LIMIT 1", "error 1054"),
        ("SELECT no FROM s.t", "error 1054"),
        ("INSERT INTO `s`.`t`(`id`,`c`) VALUES (1,NULL)", "error 1048"),
        ("INSERT INTO `s`.`part`(`id`,`v`) VALUES (20,1)", "error 1526"),
        ("ROLLBACK TO SAVEPOINT nowhere", "error 1305"),
        ("SET SESSION no_such_thing = 1", "error 1193"),
        ("SET SESSION sql_mode = 'NO_SUCH_MODE'", "error 1231"),
        ("USE none", "error 1049"),
    ),
    "savepoints": (
        ("SAVEPOINT one", 0),
        ("INSERT INTO `s`.`t`(`id`,`b`) VALUES (1,1)", 1),
        ("SAVEPOINT two", 0),
        ("DELETE FROM `s`.`t` WHERE `id` IN (1)", 1),
        ("INSERT INTO `s`.`t`(`id`,`b`) VALUES (1,5),(2,5)", 2),
        ("ROLLBACK TO SAVEPOINT two", 0),
        ("SELECT id, b FROM s.t", [(1, 1)]),
        ("ROLLBACK TO SAVEPOINT one", 0),
        ("ROLLBACK TO SAVEPOINT two", "error 1305"),
        ("SELECT id, b FROM s.t", []),
    ),
    "a key that went and came back behind a savepoint": (
        ("INSERT INTO `s`.`two`(`id`,`u`) VALUES (1,1)", 1),
        ("UPDATE `s`.`two` SET `u` = 2 WHERE `id` = 1 LIMIT 1", 1),
        ("SAVEPOINT g", 0),
        ("UPDATE `s`.`two` SET `u` = 1 WHERE `id` = 1 LIMIT 1", 1),
        ("ROLLBACK TO SAVEPOINT g", 0),
        ("INSERT INTO `s`.`two`(`id`,`u`) VALUES (2,1),(3,2)", "error 1062"),
        ("INSERT INTO `s`.`two`(`id`,`u`) VALUES (2,1)", 1),
    ),
    "a value that does not fit warns": (
        ("REPLACE INTO `s`.`t`(`id`,`b`,`c`) VALUES (1,99999999999,'a')", 1),
        ("SHOW WARNINGS", [("Warning", 1264, "Out of range value for column 'b' at row 1")]),
        ("REPLACE INTO `s`.`t`(`id`,`b`,`c`) VALUES (2,1,'abcdefgh'),(3,1,NULL)", 2),
        (
            "SHOW WARNINGS",
            [
                ("Warning", 1265, "Data truncated for column 'c' at row 1"),
                ("Warning", 1048, "Column 'c' cannot be null"),
            ],
        ),
        (
            "SELECT id, b, c FROM s.t ORDER BY id",
            [(1, 2147483647, "a"), (2, 1, "abcde"), (3, 1, "")],
        ),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
async def test_a_statement_affects(server: MySqlServer, name: str) -> None:
    async with session(server) as opened:
        statements, expected = zip(*SHAPES[name], strict=True)
        assert await answers(opened, *statements) == list(expected)


# --- sessions ----------------------------------------------------------------------------------


async def test_what_is_not_committed_is_seen_by_nobody_else(server: MySqlServer) -> None:
    async with session(server) as one, session(server) as other:
        look = "SELECT id, b FROM s.t"
        await answers(one, "INSERT INTO s.t(id,b) VALUES (1,1)")
        assert await answers(one, look) == [[(1, 1)]]
        assert await answers(other, look) == [[]]
        await answers(one, "COMMIT", "UPDATE s.t SET b = 2 WHERE id = 1 LIMIT 1")
        assert await answers(other, look) == [[(1, 1)]]
        await answers(one, "DELETE FROM s.t WHERE id IN (1)")
        assert await answers(other, look) == [[(1, 1)]]
        await answers(one, "ROLLBACK")
        assert await answers(one, look) == [[(1, 1)]]


async def test_what_is_closed_is_undone(server: MySqlServer) -> None:
    async with session(server) as one:
        await answers(one, "INSERT INTO s.t(id,b) VALUES (1,1)")
    async with session(server) as other:
        assert await answers(other, "REPLACE INTO s.t(id,b) VALUES (1,2)") == [1]


async def test_each_statement_is_committed_by_itself_outside_of_rows(server: MySqlServer) -> None:
    async with session(server, for_rows=False) as one, session(server) as other:
        await answers(one, "INSERT INTO s.t(id,b) VALUES (1,1)", "ROLLBACK")
        assert await answers(other, "SELECT id FROM s.t") == [[(1,)]]
        await answers(one, "START TRANSACTION", "INSERT INTO s.t(id,b) VALUES (2,1)", "ROLLBACK")
        assert await answers(other, "SELECT id FROM s.t") == [[(1,)]]
        assert await answers(one, "SAVEPOINT a", "ROLLBACK TO SAVEPOINT a") == [0, "error 1305"]


async def test_a_strict_session_refuses_what_does_not_fit(server: MySqlServer) -> None:
    async with session(server, for_rows=False) as one:
        assert await answers(
            one,
            "INSERT INTO s.t(id,b) VALUES (1,99999999999)",
            "INSERT INTO s.t(id,c) VALUES (1,'abcdefgh')",
            "INSERT INTO s.t(id,c) VALUES (1,'a'),(2,NULL)",
            "INSERT INTO s.two(u) VALUES (1)",
            "SELECT id FROM s.t",
        ) == ["error 1264", "error 1406", "error 1048", "error 1364", []]


async def test_several_statements_end_at_the_first_that_fails(server: MySqlServer) -> None:
    async with session(server) as one:
        done: list[object] = []
        with pytest.raises(SqlRefused) as caught:
            await one.run_all(
                [
                    b"INSERT INTO s.t(id,c) VALUES (1,'a;b')",
                    b"INSERT INTO s.t(id) VALUES (1)",
                    b"INSERT INTO s.t(id) VALUES (2)",
                ],
                done,  # type: ignore[arg-type]
            )
        assert caught.value.code == 1062
        assert len(done) == 1
        assert await answers(one, "SELECT id, c FROM s.t") == [[(1, "a;b")]]


# --- locks -------------------------------------------------------------------------------------


async def waits(work: Awaitable[object], then: Callable[[], Awaitable[object]]) -> object:
    """What work answers, which must be waiting until `then` was done."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_of(work))
        for _ in range(3):
            await asyncio.sleep(0.02)
        assert not task.done(), "it did not wait"
        await then()
        return await task


async def _of(work: Awaitable[object]) -> object:
    return await work


WRITES = {
    "an insert of a key that was inserted": (
        "INSERT INTO s.t(id,b) VALUES (1,1)",
        "INSERT INTO s.t(id,b) VALUES (1,2)",
        ("error 1062", 1),
    ),
    "a replace of a key that was inserted": (
        "INSERT INTO s.t(id,b) VALUES (1,1)",
        "REPLACE INTO s.t(id,b) VALUES (1,2)",
        (2, 1),
    ),
    "a delete of a key that was inserted": (
        "INSERT INTO s.t(id,b) VALUES (1,1)",
        "DELETE FROM s.t WHERE id IN (1)",
        (1, 0),
    ),
    "an insert of a key that was deleted": (
        "DELETE FROM s.t WHERE id IN (5)",
        "INSERT INTO s.t(id,b) VALUES (5,2)",
        (1, "error 1062"),
    ),
    "an update of a row that was changed": (
        "UPDATE s.t SET b = 7 WHERE id = 5 LIMIT 1",
        "UPDATE s.t SET b = 8 WHERE id = 5 AND b = 5",
        (0, 1),
    ),
    "a look with a lock at a row that was changed": (
        "UPDATE s.t SET b = 7 WHERE id = 5 LIMIT 1",
        "SELECT b FROM s.t WHERE id = 5 FOR UPDATE",
        ([(7,)], [(5,)]),
    ),
    "a delete by look at every row": (
        "UPDATE s.plain SET a = 7 WHERE a = 5 LIMIT 1",
        "DELETE FROM s.plain WHERE a = 5 AND b = 'x' LIMIT 1",
        (0, 1),
    ),
    "a second unique key": (
        "UPDATE s.two SET u = 9 WHERE id = 5 LIMIT 1",
        "INSERT INTO s.two(id,u) VALUES (6,5)",
        (1, "error 1062"),
    ),
}


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("name", WRITES)
async def test_who_writes_waits_for_who_has_written(
    server: MySqlServer, name: str, ends: str
) -> None:
    first, second, expected = WRITES[name]
    async with session(server) as one, session(server) as other:
        await answers(
            one,
            "INSERT INTO s.t(id,b) VALUES (5,5)",
            "INSERT INTO s.plain(a,b) VALUES (5,'x')",
            "INSERT INTO s.two(id,u) VALUES (5,5)",
            "COMMIT",
            first,
        )
        found = await waits(answer(other, second), lambda: answer(one, ends))
        assert found == expected[ends == "ROLLBACK"]


async def test_a_wait_that_takes_too_long_undoes_its_statement(server: MySqlServer) -> None:
    async with session(server) as one, session(server, wait_s=1) as other:
        await answers(one, "INSERT INTO s.t(id,b) VALUES (1,1)")
        assert await answers(
            other,
            "INSERT INTO s.t(id,b) VALUES (2,1)",
            "INSERT INTO s.t(id,b) VALUES (3,1),(1,2)",
            "SELECT id FROM s.t",
        ) == [1, "again 1205", [(2,)]]


async def test_one_of_two_that_wait_for_each_other_loses_everything(server: MySqlServer) -> None:
    async with session(server) as one, session(server) as other:
        await answers(one, "INSERT INTO s.t(id,b) VALUES (1,1),(2,2),(9,9),(10,10)", "COMMIT")
        await answers(one, "UPDATE s.t SET b = 7 WHERE id IN (1,9,10)")
        await answers(other, "UPDATE s.t SET b = 8 WHERE id = 2 LIMIT 1")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(answer(one, "UPDATE s.t SET b = 7 WHERE id = 2 LIMIT 1"))
            await asyncio.sleep(0.05)
            second = group.create_task(answer(other, "UPDATE s.t SET b = 8 WHERE id = 1 LIMIT 1"))
        assert (first.result(), second.result()) == (1, "again 1213")
        assert await answers(other, "SELECT b FROM s.t ORDER BY id") == [[(1,), (2,), (9,), (10,)]]
        await answers(one, "COMMIT")
        assert await answers(other, "SELECT b FROM s.t ORDER BY id") == [[(7,), (7,), (7,), (7,)]]


async def test_rows_that_were_not_touched_are_free(server: MySqlServer) -> None:
    async with session(server) as one, session(server, wait_s=1) as other:
        await answers(one, "INSERT INTO s.t(id,b) VALUES (1,1),(2,2)", "COMMIT")
        await answers(one, "DELETE FROM s.t WHERE id IN (1)", "INSERT INTO s.t(id,b) VALUES (4,4)")
        assert await answers(
            other,
            "DELETE FROM s.t WHERE id IN (2)",
            "REPLACE INTO s.t(id,b) VALUES (3,3),(5,5)",
            "SELECT b FROM s.t WHERE id = 2 FOR UPDATE",
            "COMMIT",
        ) == [1, 2, [], 0]


async def test_a_ddl_waits_for_who_has_read_the_table(server: MySqlServer) -> None:
    async with session(server) as one, session(server, for_rows=False) as other:
        await answers(one, "SELECT id FROM s.t")
        found = await waits(
            answer(other, "ALTER TABLE s.t ADD COLUMN x INT"), lambda: answer(one, "COMMIT")
        )
        assert found == 0
        assert await answers(one, "INSERT INTO s.t(id,x) VALUES (1,1)") == [1]


async def test_a_ddl_commits_what_is_open(server: MySqlServer) -> None:
    async with session(server) as one, session(server) as other:
        await answers(one, "INSERT INTO s.t(id,b) VALUES (1,1)", "CREATE TABLE s.n (a INT)")
        assert await answers(other, "SELECT id FROM s.t", "ROLLBACK") == [[(1,)], 0]


# --- DDL ---------------------------------------------------------------------------------------

DDLS: dict[str, tuple[tuple[str, object], ...]] = {
    "what is there already, or not": (
        ("CREATE DATABASE s", "error 1007"),
        ("DROP DATABASE none", "error 1008"),
        ("CREATE TABLE s.t (a INT)", "error 1050"),
        ("CREATE TABLE none.t (a INT)", "error 1049"),
        ("CREATE TABLE IF NOT EXISTS s.t (a INT)", 0),
        ("DROP TABLE s.none", "error 1051"),
        ("DROP TABLE IF EXISTS s.none", 0),
        ("TRUNCATE TABLE s.none", "error 1146"),
        ("RENAME TABLE s.t TO s.two", "error 1050"),
        ("RENAME TABLE s.none TO s.n", "error 1146"),
        ("ALTER TABLE s.none ADD COLUMN x INT", "error 1146"),
        ("ALTER TABLE s.t ADD COLUMN b INT", "error 1060"),
        ("ALTER TABLE s.t DROP COLUMN x", "error 1091"),
        ("ALTER TABLE s.t DROP INDEX x", "error 1091"),
        ("ALTER TABLE s.t DROP COLUMN b, DROP COLUMN b", "error 1091"),
        ("ALTER TABLE s.t ADD INDEX i (b), ADD INDEX i (c)", "error 1061"),
        ("ALTER TABLE s.t ADD INDEX i (x)", "error 1072"),
        ("ALTER TABLE s.t ADD PRIMARY KEY (b)", "error 1068"),
        ("ALTER TABLE s.t RENAME INDEX x TO y", "error 1176"),
        ("ALTER TABLE s.t MODIFY COLUMN x INT", "error 1054"),
        ("ALTER TABLE s.part ADD PARTITION (PARTITION p1 VALUES LESS THAN (30))", "error 1517"),
        ("ALTER TABLE s.part ADD PARTITION (PARTITION p2 VALUES LESS THAN (5))", "error 1493"),
        ("ALTER TABLE s.part DROP PARTITION p9", "error 1507"),
    ),
    "columns come and go": (
        ("INSERT INTO s.t(id,b,c) VALUES (1,1,'a'),(2,2,'b')", 2),
        ("ALTER TABLE s.t ADD COLUMN x INT NOT NULL DEFAULT 7 AFTER id, ADD COLUMN y INT", None),
        (
            "SELECT id, x, b, c, y FROM s.t ORDER BY id",
            [(1, 7, 1, "a", None), (2, 7, 2, "b", None)],
        ),
        ("ALTER TABLE s.t DROP COLUMN y, CHANGE COLUMN b bb BIGINT", None),
        ("ALTER TABLE s.t ADD COLUMN z VARCHAR(3) NOT NULL FIRST", None),
        ("INSERT INTO s.t VALUES ('z',3,8,30000000000,'c')", 1),
        (
            "SELECT z, id, x, bb, c FROM s.t ORDER BY id",
            [("", 1, 7, 1, "a"), ("", 2, 7, 2, "b"), ("z", 3, 8, 30000000000, "c")],
        ),
        ("ALTER TABLE s.t MODIFY COLUMN bb INT", "error 1264"),
        ("ALTER TABLE s.t MODIFY COLUMN c VARCHAR(5) NULL", None),
        ("ALTER TABLE s.t ALTER COLUMN x SET DEFAULT 1", None),
        ("INSERT INTO s.t(z,id,c) VALUES ('',4,NULL)", 1),
        ("SELECT x, c FROM s.t WHERE id = 4", [(1, None)]),
        ("CREATE TABLE s.d (id INT, e ENUM('n','o') DEFAULT _UTF8MB4'o')", 0),
        ("INSERT INTO s.d(id) VALUES (1)", 1),
        ("SELECT e + 0 FROM s.d", [(2,)]),
    ),
    "keys come and go": (
        ("INSERT INTO s.two(id,u,v) VALUES (1,1,5),(2,2,5)", 2),
        ("CREATE UNIQUE INDEX v ON s.two (v)", "error 1062"),
        ("ALTER TABLE s.two DROP INDEX u", None),
        ("INSERT INTO s.two(id,u,v) VALUES (3,1,6)", 1),
        ("ALTER TABLE s.two ADD UNIQUE KEY u2 (u, v)", None),
        ("INSERT INTO s.two(id,u,v) VALUES (4,1,6)", "error 1062"),
        ("ALTER TABLE s.two RENAME INDEX u2 TO u3", None),
        ("ALTER TABLE s.two DROP PRIMARY KEY", None),
        ("INSERT INTO s.two(id,u,v) VALUES (3,2,7)", 1),
        ("ALTER TABLE s.two ADD PRIMARY KEY (id)", "error 1062"),
    ),
    "tables change names": (
        ("INSERT INTO s.t(id,b) VALUES (1,1)", 1),
        ("RENAME TABLE s.t TO s.n, s.two TO s.t", 0),
        ("SELECT b FROM s.n", [(1,)]),
        ("ALTER TABLE s.n RENAME TO s.m", 0),
        ("TRUNCATE TABLE s.m", 0),
        ("SELECT b FROM s.m", []),
        ("CREATE TABLE s.l LIKE s.m", 0),
        ("INSERT INTO s.l(id) VALUES (1)", 1),
        ("INSERT INTO s.l(id) VALUES (1)", "error 1062"),
        ("DROP TABLE s.m", 0),
        ("SELECT b FROM s.m", "error 1146"),
    ),
    "partitions": (
        ("INSERT INTO s.part(id,v) VALUES (1,1),(11,2)", 2),
        ("ALTER TABLE s.part ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))", None),
        ("INSERT INTO s.part(id,v) VALUES (21,3)", 1),
        ("ALTER TABLE s.part TRUNCATE PARTITION p0", None),
        ("SELECT id FROM s.part ORDER BY id", [(11,), (21,)]),
        ("ALTER TABLE s.part DROP PARTITION p1", None),
        ("SELECT id FROM s.part ORDER BY id", [(21,)]),
        ("INSERT INTO s.part(id,v) VALUES (11,1)", 1),
    ),
}


@pytest.mark.parametrize("name", DDLS)
async def test_a_ddl(server: MySqlServer, name: str) -> None:
    async with session(server, for_rows=False) as opened:
        for statement, expected in DDLS[name]:
            found = await answer(opened, statement)
            assert found == expected or (expected is None and isinstance(found, int)), statement


async def test_what_the_server_says_of_a_table(server: MySqlServer) -> None:
    async with session(server, for_rows=False) as opened:
        found = await catalog.table_of(opened, "s", "pair")
        assert found is not None
        assert found.columns == (
            DownstreamColumn("a", "int", "", is_nullable=False, is_generated=False),
            DownstreamColumn("b", "varchar", "utf8mb4_bin", is_nullable=False, is_generated=False),
            DownstreamColumn("v", "int", "", is_nullable=True, is_generated=False),
        )
        assert found.keys == (DownstreamKey("PRIMARY", ("a", "b"), has_prefix=False),)
        assert (found.has_triggers, found.is_versioned, found.calls_row) == (False, False, False)
        assert found.is_rolled_back
        two = await catalog.table_of(opened, "s", "two")
        assert two is not None
        assert [key.name for key in two.keys] == ["PRIMARY", "u"]
        assert await catalog.table_of(opened, "s", "none") is None
        assert await catalog.names(opened, "s", "two") == ({"id", "u", "v"}, {"primary", "u"})
        assert await catalog.fingerprint(opened, "s", "none") == "absent"


async def test_a_fingerprint_and_a_number_tell_tables_apart(server: MySqlServer) -> None:
    async with session(server, for_rows=False) as opened:

        async def told() -> list[str]:
            return [
                await catalog.fingerprint(opened, "s", "t"),
                await catalog.number(opened, "s", "t", ""),
                await catalog.number(opened, "s", "two", ""),
                await catalog.number(opened, "s", "part", "p1"),
            ]

        before = await told()
        assert "?" not in before
        assert len(set(before)) == 4
        assert before == await told()
        await answers(opened, "RENAME TABLE s.t TO s.x, s.two TO s.t, s.x TO s.two")
        after = await told()
        assert (after[1], after[2]) == (before[2], before[1])
        assert after[0] != before[0]


async def test_a_connection_at_work_is_told_from_one_that_sleeps(server: MySqlServer) -> None:
    async with session(server) as one, session(server) as other, session(server) as third:
        await answers(one, "INSERT INTO s.t(id,b) VALUES (1,1)")
        async with asyncio.timeout(5):  # a server may be at a statement a moment behind its answer
            while await catalog.is_busy(third, one.thread_id, ""):
                pass
        assert not await catalog.is_busy(third, 999_999, "")

        async def looked() -> None:
            assert await catalog.is_busy(third, other.thread_id, "")
            mine = await catalog.connection_of(third, other.thread_id)
            assert mine != "-"
            assert not await catalog.is_busy(third, other.thread_id, "another")
            await answer(one, "COMMIT")

        assert await waits(answer(other, "DELETE FROM s.t WHERE id IN (1)"), looked) == 1


# --- anything ----------------------------------------------------------------------------------


def drawn(rng: Random) -> str:
    """A statement of a shape that a sink sends, over few keys."""
    n, m, v = rng.randrange(5), rng.randrange(5), rng.choice(("NULL", "0", "1", "2"))
    rows = [f"({rng.randrange(5)},{rng.choice(('NULL', '1', '2', '3'))},{v})" for _ in range(1 + m)]
    return rng.choice(
        (
            f"REPLACE INTO `s`.`two`(`id`,`u`,`v`) VALUES {','.join(rows)}",
            f"INSERT INTO `s`.`two`(`id`,`u`,`v`) VALUES {','.join(rows[:2])}",
            f"INSERT INTO `s`.`two`(`id`,`u`,`v`) VALUES {rows[0]} ON DUPLICATE KEY UPDATE"
            " `u`=VALUES(`u`),`v`=VALUES(`v`)",
            f"DELETE FROM `s`.`two` WHERE `id` IN ({n},{m})",
            f"DELETE FROM `s`.`two` WHERE `u` = {n} LIMIT 1",
            f"UPDATE `s`.`two` SET `id` = {n},`u` = {v} WHERE `id` = {m} LIMIT 1",
            f"UPDATE `s`.`two` SET `v` = {n} WHERE `v` = {m} LIMIT 1",
            f"INSERT INTO `s`.`plain`(`a`,`b`) VALUES ({n},'{m}'),({m},'x')",
            f"DELETE FROM `s`.`plain` WHERE `a` = {n} AND `b` = '{m}' LIMIT 1",
            f"UPDATE `s`.`plain` SET `b` = 'y' WHERE `a` = {n} LIMIT 1",
            "SAVEPOINT g",
            "ROLLBACK TO SAVEPOINT g",
            "COMMIT",
            "ROLLBACK",
            "TRUNCATE TABLE `s`.`plain`",
        )
    )


LOOKS = ("SELECT id, u, v FROM s.two ORDER BY id", "SELECT a, b FROM s.plain ORDER BY a, b")


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_sent_is_answered_alike(mariadb: MariaDb, seed: int) -> None:
    await _alike(mariadb, Random(seed), 250)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 40))
async def test_whatever_is_sent_is_answered_alike_for_long(mariadb: MariaDb, seed: int) -> None:
    await _alike(mariadb, Random(seed), 2500)


async def _alike(mariadb: MariaDb, rng: Random, count: int) -> None:
    mariadb.execute(*TABLES)
    simulated = SimMySql(Random(1))
    simulated.execute(*TABLES)
    said: list[str] = []
    async with session(server_of(mariadb)) as real, session(simulated.server()) as other:
        for number in range(count):
            said.append(drawn(rng))
            here, there = await answer(real, said[-1]), await answer(other, said[-1])
            assert here == there, said[-12:]
            if number % 5 == 0:
                assert await answers(real, *LOOKS) == await answers(other, *LOOKS), said[-12:]
