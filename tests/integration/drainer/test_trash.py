"""What is dropped is put aside, and RECOVER and FLASHBACK bring it back, rows and all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from itertools import islice
from random import Random

import pytest

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.ddl.trash_names import Trash
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.mysql.connection import SqlRefused, SqlSession
from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.mysql.trash import TrashBin, TrashOptions
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl, Skip, Txn
from binlogd.errors import StatementRejected, UnsupportedDdl
from binlogd.tidb.model import ActionType, jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, compose, physical_ms
from tests.support.decoding import decoded
from tests.support.interrupted import interrupted_at_each
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, committed, compare, expected, history
from tests.support.replay import BATCH, SKIPPED, apply_all, running, server_of, sink_for, translated

SCHEMA = "binlogd_trash"
OPTIONS = TrashOptions(SCHEMA, keep_s=3600)
BROUGHT_BACK = ("fl", "fl_back", "ddl_a.rec*", "ddl_b.rec*")
LEFT_OUT = tuple(name for name in SKIPPED["ddl"] if name not in BROUGHT_BACK)


def txns() -> Iterator[Txn]:
    return translated(RECORDINGS / "ddl", LEFT_OUT, trash=Trash(SCHEMA))


def few_txns() -> Iterator[Txn]:
    """Of the tables that are brought back, and of no others."""
    return iter(_few_txns())


@cache
def _few_txns() -> list[Txn]:
    return list(_translated())


def _translated() -> Iterator[Txn]:
    directory = RECORDINGS / "ddl"
    jobs = {job.id: job for job in jobs_from_json(history(directory))}
    schema = SchemaTracker()
    schema.load(jobs.values())
    wanted = TableFilter(
        do_databases=("fl", "fl_back"),
        do_tables=[TablePattern("ddl_a", "~^rec"), TablePattern("ddl_a", "")],
    )
    translator = Translator(schema, wanted, Dialect.MYSQL, Trash(SCHEMA))
    for binlog in committed(directory):
        txn = translator.translate(decoded(binlog, jobs))
        if not isinstance(txn, Skip):
            yield txn


OTHERS = [
    table.label
    for table in expected(RECORDINGS / "ddl")
    if not table.label.startswith(("fl", "ddl_a.rec"))
]


def with_trash(mariadb: MariaDb, lanes: int = 4) -> MySqlSink:
    return sink_for(mariadb, lanes, trash=OPTIONS)


def in_the_trash(mariadb: MariaDb) -> list[str]:
    found = mariadb.execute(
        f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{SCHEMA}'"
        " ORDER BY 1"
    )
    return [(name or b"").decode() for (name,) in found]


def expect_equal(mariadb: MariaDb, skip: Sequence[str] = OTHERS) -> None:
    connection = mariadb.connect()
    try:
        assert compare(RECORDINGS / "ddl", connection, skip) == []
        for table, ids in [("ddl_a.rec_old", {1, 3, 4, 6, 50}), ("fl_back.x", {1, 2, 3, 4})]:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT id FROM {table}")
                assert {int(row[0]) for row in cursor.fetchall()} == ids
    finally:
        connection.close()


async def test_recovered_and_flashed_back_tables_arrive_with_their_rows(mariadb: MariaDb) -> None:
    await apply_all(with_trash(mariadb), txns())
    expect_equal(mariadb, LEFT_OUT)


async def test_without_a_trash_they_stop_and_name_the_way_past() -> None:
    with pytest.raises(UnsupportedDdl, match=r"drainer\.trash-schema.*ignore-txn-commit-ts"):
        list(translated(RECORDINGS / "ddl", LEFT_OUT))


class Abandoned(Exception):
    """As if the process had been killed."""


async def _live_for(turns: int, sink: MySqlSink, rng: Random) -> None:
    async def end() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise Abandoned

    async with running(sink), asyncio.TaskGroup() as group:
        group.create_task(end())
        after = sink.applied_ts()
        left = (txn for txn in few_txns() if txn.commit_ts > after)
        while batch := list(islice(left, rng.randrange(1, BATCH))):
            await sink.submit(batch)
        await sink.flush()


async def test_a_sink_abandoned_at_any_point_neither_loses_nor_doubles_what_is_put_aside(
    mariadb: MariaDb,
) -> None:
    rng = Random(5)
    for _ in range(12):
        try:
            await _live_for(rng.randrange(5, 400), with_trash(mariadb, rng.choice([1, 4])), rng)
        except* Abandoned:
            pass
    await apply_all(with_trash(mariadb), few_txns())
    expect_equal(mariadb)


@pytest.mark.parametrize("statement", [b"RENAME TABLE", b"CREATE TABLE `ddl_a`.`rec_back` LIKE"])
async def test_a_move_interrupted_at_each_statement_is_done_once(
    statement: bytes, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = await interrupted_at_each(
        lambda: apply_all(with_trash(mariadb), few_txns()), statement, monkeypatch
    )
    assert begun >= 2
    expect_equal(mariadb)


async def test_what_is_too_old_is_dropped_by_the_clock_of_the_upstream(mariadb: MariaDb) -> None:
    trash = TrashBin(server_of(mariadb), OPTIONS)
    session = await SqlSession.connect(server_of(mariadb))
    await trash.prepare(session)
    session.close()
    names = [f"{compose(10_000 + age_ms)}_{age_ms}" for age_ms in (1, 2, 3, 4)]
    for name in (*names, "mine"):
        mariadb.execute(f"CREATE TABLE {SCHEMA}.`{name}` (a INT)")
    await trash.sweep(compose(10_002 + 3600 * 1000))
    assert in_the_trash(mariadb) == [*names[2:], "mine"]
    now = trash.statistics()
    assert (now.tables, now.dropped, physical_ms(now.oldest_ts)) == (2, 2, 10_003)
    await trash.sweep(compose(10_005 + 3600 * 1000))
    assert in_the_trash(mariadb) == ["mine"]
    assert trash.statistics().oldest_ts == NO_TS


async def test_what_is_no_longer_there_stops_the_recovery(mariadb: MariaDb) -> None:
    applied: list[Txn] = []
    recovery: Ddl | None = None
    for txn in few_txns():
        if isinstance(txn, Ddl) and txn.job.type == ActionType.RECOVER_TABLE:
            recovery = txn
            break
        applied.append(txn)
    assert recovery is not None
    await apply_all(with_trash(mariadb), iter(applied))
    for name in in_the_trash(mariadb):
        mariadb.execute(f"DROP TABLE {SCHEMA}.`{name}`")
    with pytest.raises((StatementRejected, ExceptionGroup)) as stopped:
        await apply_all(with_trash(mariadb), iter([recovery]))
    error = stopped.value
    if isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, StatementRejected)
    assert str(recovery.commit_ts) in str(error)


async def test_a_schema_that_cannot_be_made_is_told_with_server_and_statement(
    mariadb: MariaDb,
) -> None:
    server = server_of(mariadb)
    session = await SqlSession.connect(server)
    with closing(session), pytest.raises(SqlRefused) as refused:
        await TrashBin(server, TrashOptions("\U0001f5d1", keep_s=1)).prepare(session)
    statement = "CREATE DATABASE IF NOT EXISTS `\U0001f5d1`"
    assert refused.value.message.startswith(f"{server} refuses {statement}: error 1300: ")
