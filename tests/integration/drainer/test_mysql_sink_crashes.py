"""The MySQL sink in the middle of something: closed, or started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from binlogd.drainer.mysql.connection import Done, MySqlServer, SqlSession
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.txn import Ddl, Dml, Skip, TableChange, Txn
from binlogd.errors import BinlogdError, DdlOutcomeUnknown, DownstreamUnavailable
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType, Table, TableAt, job_from_json
from binlogd.tidb.row import encode_insert
from binlogd.tso import Tso
from binlogd.wire.mutation import Mutation
from tests.integration.drainer.test_downstream_faults import holding
from tests.support.mariadb import MariaDb
from tests.support.replay import CLUSTER_ID, running, server_of, sink_for

INFO = Table(1, "t", (Column(1, "id", 0, FieldType(Tp.LONGLONG, 3)),), pk_is_handle=True)
AT = TableAt("s", INFO, 1, None, {}, may_lack_columns=False)


def inserted(ts: int, *ids: int) -> Dml:
    rows = [encode_insert(INFO, {1: each}, handle=each) for each in ids]
    change = TableChange(AT, Mutation(1, rows, [], [], bytes(len(rows))))
    return Dml(Tso(ts - 1), Tso(ts), 1, (change,))


def ddl(ts: int, statement: str, kind: int = 3) -> Ddl:
    job = job_from_json(json.dumps({"id": ts, "type": kind, "table_id": 1}).encode())
    return Ddl(Tso(ts - 1), Tso(ts), 2, job, statement, "s", "t", is_skipped=False)


@pytest.fixture
def db(mariadb: MariaDb) -> MariaDb:
    mariadb.execute("CREATE DATABASE s", "CREATE TABLE s.t (id BIGINT PRIMARY KEY)")
    return mariadb


async def until_waiting(db: MariaDb) -> None:
    """Until some connection waits for the test's lock."""
    while True:  # ends by the timeout of the test, if nothing waits
        states = [
            state for (state,) in db.execute("SELECT state FROM information_schema.processlist")
        ]
        if any(state and b"lock" in state.lower() for state in states):
            return
        await asyncio.sleep(0.02)


async def closed_in_the_middle(sink: MySqlSink, db: MariaDb, *txns: Txn) -> list[BaseException]:
    """Closes the sink while a statement of it waits for a lock; what its tasks ended with."""
    holder = db.connect()
    errors: list[BaseException] = []
    try:
        with holder.cursor() as cursor:
            cursor.execute("LOCK TABLES s.t WRITE")
        await sink.open()

        async def submit() -> None:
            await sink.submit(txns)
            await sink.flush()

        tasks = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks.append(group.create_task(sink.run()))
                tasks.append(group.create_task(submit()))
                await until_waiting(db)
                await sink.close()
        except BaseExceptionGroup as found:
            errors += found.exceptions
    finally:
        holder.close()
        await sink.close()
    return errors


def leaves(errors: Sequence[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in errors:
        found += leaves(error.exceptions) if isinstance(error, BaseExceptionGroup) else [error]
    return found


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    "txns",
    [
        [inserted(10, *range(40))],
        [inserted(10, *range(40)), ddl(20, "ALTER TABLE t ADD COLUMN b INT")],
        [ddl(20, "ALTER TABLE t ADD COLUMN b INT")],
    ],
    ids=["rows", "rows before a DDL", "DDL"],
)
async def test_a_sink_closed_in_the_middle_of_a_statement_ends_with_errors_of_ours(
    txns: list[Txn], lanes: int, db: MariaDb
) -> None:
    async with asyncio.timeout(120):
        errors = await closed_in_the_middle(sink_for(db, lanes=lanes), db, *txns)
    assert all(isinstance(each, BinlogdError) for each in leaves(errors)), errors
    again = sink_for(db, lanes=lanes)
    async with running(again):
        await again.submit([each for each in txns if isinstance(each, Dml)])
        await again.flush()
    expected = [(b"40",)] if isinstance(txns[0], Dml) else [(b"0",)]
    assert db.execute("SELECT COUNT(*) FROM s.t") == expected


class DiesAtDdl(MySqlSink):
    """Ends when the statement itself is to be executed: the note is written by then."""

    async def _patiently(self, session: SqlSession, statement: bytes) -> Done:
        if statement.startswith((b"ALTER", b"RENAME")):
            raise DownstreamUnavailable("died here")
        return await super()._patiently(session, statement)


SWAPS = pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("ALTER TABLE `p-p` EXCHANGE PARTITION `X-é` WITH TABLE n", "p-p"),
        ("RENAME TABLE `a-b` TO x, `ç日` TO `a-b`, x TO `ç日`", "ç日"),
    ],
)


async def begun(server: MySqlServer, event: Ddl) -> None:
    """The DDL is noted, and not done."""
    dying = DiesAtDdl(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    await dying.open()
    with pytest.raises(DownstreamUnavailable):
        await dying.submit([Skip(Tso(event.commit_ts - 1)), event])
    await dying.close()


@pytest.fixture
def swapping(each_server: MariaDb) -> MariaDb:
    each_server.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.`p-p` (id INT PRIMARY KEY) PARTITION BY RANGE (id)"
        " (PARTITION `X-é` VALUES LESS THAN (100))",
        "CREATE TABLE s.n (id INT PRIMARY KEY)",
        "INSERT INTO s.n VALUES (1)",
        "CREATE TABLE s.`a-b` (id INT PRIMARY KEY)",
        "CREATE TABLE s.`ç日` (id INT PRIMARY KEY)",
        "INSERT INTO s.`a-b` VALUES (1)",
    )
    return each_server


@SWAPS
@pytest.mark.parametrize("rebuilt", ["", "`p-p`", "`a-b`"])
@pytest.mark.parametrize("was_done", [False, True])
async def test_what_would_undo_itself_is_done_once(
    statement: str, name: str, rebuilt: str, swapping: MariaDb, *, was_done: bool
) -> None:
    event = replace(ddl(20, statement, kind=42), table=name)
    await begun(server_of(swapping), event)
    if was_done:
        swapping.execute("USE s", statement)
    if rebuilt:  # its number is another one then
        swapping.execute(f"ALTER TABLE s.{rebuilt} FORCE")
    sink = sink_for(swapping, lanes=1)
    async with running(sink):
        await sink.submit([event])
        await sink.flush()
    assert swapping.execute(f"SELECT COUNT(*) FROM s.`{name}`") == [(b"1",)]


@SWAPS
async def test_what_would_undo_itself_waits_for_somebody_where_nobody_can_tell(
    statement: str, name: str, swapping: MariaDb
) -> None:
    swapping.execute(
        "DROP USER IF EXISTS poor@'%'",
        "CREATE USER poor@'%'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX ON *.* TO poor@'%'",
    )
    server = replace(server_of(swapping), user="poor")
    event = replace(ddl(20, statement, kind=42), table=name)
    await begun(server, event)
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    with pytest.raises(ExceptionGroup) as raised:
        async with running(sink):
            await sink.submit([event])
    assert raised.group_contains(DdlOutcomeUnknown, match="commit_ts 20")
    again = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    async with running(again):
        await again.submit([replace(event, is_skipped=True)])
        await again.flush()
    assert swapping.execute(f"SELECT COUNT(*) FROM s.`{name}`") == [(b"0",)]


@pytest.mark.parametrize("between", ["FORCE", "COMMENT 'mine'", "ADD COLUMN mine INT"])
async def test_what_somebody_else_changed_is_not_taken_for_the_ddl(
    between: str, db: MariaDb
) -> None:
    wide = replace(INFO, columns=(*INFO.columns, Column(2, "b", 1, FieldType(Tp.LONGLONG))))
    event = ddl(20, "ALTER TABLE t ADD COLUMN b BIGINT", kind=5)
    event = replace(event, job=replace(event.job, table=wide))
    await begun(server_of(db), event)
    db.execute(f"ALTER TABLE s.t {between}")
    sink = sink_for(db, lanes=1)
    async with running(sink):
        await sink.submit([event])
        await sink.flush()
    assert b"b" in [row[0] for row in db.execute("SHOW COLUMNS FROM s.t")]


async def test_a_stranger_with_the_number_of_the_old_connection_is_not_waited_for(
    db: MariaDb,
) -> None:
    event = ddl(20, "ALTER TABLE t ADD COLUMN b BIGINT")
    await begun(server_of(db), event)
    async with holding(db, "SELECT CONNECTION_ID()") as stranger:
        number = int(stranger.fetchone()[0])
        db.execute(f"UPDATE tidb_binlog.progress SET session_id = {number} WHERE lane = -1")
        loop = asyncio.get_running_loop()
        asleep = loop.run_in_executor(None, stranger.execute, "SELECT SLEEP(1000)")
        sink = sink_for(db, lanes=1)
        async with running(sink):
            await sink.submit([event])
        assert not asleep.done()
        db.execute(f"KILL QUERY {number}")
        await asyncio.wait([asleep])
        asleep.exception()
