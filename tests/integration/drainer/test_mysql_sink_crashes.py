"""The MySQL sink in the middle of something: closed, or started again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from binlogd.drainer.mysql.connection import SqlSession
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.txn import Ddl, Dml, Skip, TableChange, Txn
from binlogd.errors import BinlogdError, DownstreamUnavailable
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType, Table, TableAt, job_from_json
from binlogd.tidb.row import encode_insert
from binlogd.tso import Tso
from binlogd.wire.peek import Mutation
from tests.mariadb import MariaDb
from tests.replay import CLUSTER_ID, running, server_of, sink_for

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

    async def _patiently(self, session: SqlSession, statement: bytes) -> None:
        if statement.startswith((b"ALTER", b"RENAME")):
            raise DownstreamUnavailable("died here")
        await super()._patiently(session, statement)


@pytest.mark.parametrize("was_done", [False, True])
@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("ALTER TABLE `p-p` EXCHANGE PARTITION x WITH TABLE n", "p-p"),
        ("RENAME TABLE `a-b` TO x, `c.d` TO `a-b`, x TO `c.d`", "c.d"),
    ],
)
async def test_what_would_undo_itself_is_done_once(
    statement: str, name: str, mariadb: MariaDb, *, was_done: bool
) -> None:
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.`p-p` (id INT PRIMARY KEY) PARTITION BY RANGE (id)"
        " (PARTITION x VALUES LESS THAN (100))",
        "CREATE TABLE s.n (id INT PRIMARY KEY)",
        "INSERT INTO s.n VALUES (1)",
        "CREATE TABLE s.`a-b` (id INT PRIMARY KEY)",
        "CREATE TABLE s.`c.d` (id INT PRIMARY KEY)",
        "INSERT INTO s.`a-b` VALUES (1)",
    )
    event = replace(ddl(20, statement, kind=42), table=name)
    options = MySqlSinkOptions(lanes=1)
    dying = DiesAtDdl(server_of(mariadb), CLUSTER_ID, options, Random(1))
    await dying.open()
    with pytest.raises(DownstreamUnavailable):
        await dying.submit([Skip(Tso(19)), event])
    await dying.close()
    if was_done:
        mariadb.execute("USE s", statement)
    sink = sink_for(mariadb, lanes=1)
    async with running(sink):
        await sink.submit([event])
        await sink.flush()
    moved = "p-p" if name == "p-p" else "c.d"
    assert mariadb.execute(f"SELECT COUNT(*) FROM s.`{moved}`") == [(b"1",)]
