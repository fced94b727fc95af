"""What a downstream can do to us: lost answers, locks, deadlocks, read-only, dead connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from binlogd.drainer.mysql.catalog import fingerprint
from binlogd.drainer.mysql.connection import MySqlServer, SqlSession, TryAgain
from binlogd.drainer.mysql.ddl_watch import DdlWatch
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.rows.parts import Limits
from binlogd.errors import ConfigError, DownstreamUnavailable, RowNotFound
from tests.support.mariadb import MariaDb
from tests.support.mysql_proxy import Fate, MySqlProxy
from tests.support.mysql_rows import (
    NUMBER,
    TEXT,
    apply,
    ddl,
    deleted,
    dml,
    failing,
    inserted,
    table,
    updated,
)
from tests.support.mysql_server import MySql
from tests.support.replay import CLUSTER_ID, running, sink_for

T = table(1, "t", NUMBER, TEXT)
KEYLESS = table(2, "k", NUMBER, has_key=False)
TXNS = [dml(ts, inserted(T, (ts, 1, b"")), inserted(KEYLESS, (ts, 1))) for ts in range(10, 210)]
ROWS = "SELECT (SELECT COUNT(*) FROM s.t), (SELECT COUNT(*) FROM s.k)"
SMALL = Limits(changes_max=20)
MODES = pytest.mark.parametrize("is_transactional", [False, True], ids=["key", "transaction"])


@pytest.fixture
def db(mariadb: MariaDb) -> MariaDb:
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))",
        "CREATE TABLE s.k (id BIGINT, b BIGINT)",
    )
    return mariadb


def sink_at(
    port: int, limits: Limits | None = None, *, is_transactional: bool = False, user: str = "root"
) -> MySqlSink:
    options = MySqlSinkOptions(
        lanes=3, is_transactional=is_transactional, limits=limits or Limits()
    )
    return MySqlSink(MySqlServer("127.0.0.1", port, user, ""), CLUSTER_ID, options, Random(1))


@asynccontextmanager
async def holding(db: MariaDb, *statements: str) -> AsyncIterator[Any]:
    """A session of somebody else that has run these and not committed."""
    holder = db.connect()
    try:
        with holder.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            yield cursor
    finally:
        holder.close()


async def until(condition: Any, *, every_s: float = 0.01) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - it asks from outside, as status does
            await asyncio.sleep(every_s)


# --- answers that make no sense ----------------------------------------------------------------


GREETINGS = [
    b"\x05\x00\x00\x00\x0a8.0\x00",
    b"\x01\x00\x00\x00\x0a",
    b"\x0b\x08\x05\x1a\x00" * 9,
    b"\x4a\x00\x00\x00\x0a5.7.25\x00" + bytes(66),
    b"\x10\x00\x00\x00\xff\xff\xff#HY000none\xff\xfe\xfd",
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 200,
]


@pytest.mark.parametrize("greeting", GREETINGS)
async def test_a_greeting_that_is_none_is_a_downstream_that_is_not_there(greeting: bytes) -> None:
    left = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.write_eof()
        with suppress(OSError):
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        left.set()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        sink = sink_at(server.sockets[0].getsockname()[1])
        with pytest.raises((DownstreamUnavailable, ConfigError), match=r"127\.0\.0\.1"):
            await sink.open()
        await sink.close()
        await left.wait()


async def test_a_session_that_ends_in_good_order_is_none_that_broke(db: MariaDb) -> None:
    def asked(name: str) -> int:
        return int(db.execute(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1] or 0)

    before = asked("Aborted_clients")
    session = await SqlSession.connect(MySqlServer("127.0.0.1", db.port, "root", ""))
    connected = asked("Threads_connected")
    assert await session.rows(b"SELECT 1") == [(1,)]
    session.close()
    await until(lambda: asked("Threads_connected") < connected)
    assert asked("Aborted_clients") == before


async def test_a_default_that_is_no_text_is_read_like_any_other(db: MariaDb) -> None:
    db.execute("CREATE TABLE s.b (a INT, b VARBINARY(9) DEFAULT x'ff00fe')")
    session = await SqlSession.connect(MySqlServer("127.0.0.1", db.port, "root", ""))
    try:
        before = await fingerprint(session, "s", "b")
        db.execute("ALTER TABLE s.b ALTER b SET DEFAULT x'fe00ff'")
        assert await fingerprint(session, "s", "b") != before
        assert await session.rows("SELECT 'grüße', 1".encode()) == [("grüße", 1)]
    finally:
        session.close()


# --- answers that are lost ---------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("fate", [Fate.LOSE_ANSWER, Fate.CUT_BEFORE], ids=["done", "not done"])
async def test_a_commit_whose_answer_is_lost_is_done_once(
    db: MariaDb, fate: int, *, is_transactional: bool
) -> None:
    rng, lost, is_open = Random(4), 0, False

    def decide(statement: bytes) -> int:
        nonlocal lost
        if is_open and statement == b"COMMIT" and lost < 6 and rng.random() < 0.3:
            lost += 1
            return fate
        return Fate.PASS

    async with MySqlProxy(db.port, decide).running() as proxy:
        sink = sink_at(proxy.port, SMALL, is_transactional=is_transactional)
        async with running(sink):
            is_open = True
            for txn in TXNS:
                await sink.submit([txn])
                await asyncio.sleep(0)
            await sink.flush()
            assert sink.statistics().retries_by_kind["connection"] >= lost
    assert lost >= 3
    assert db.execute(ROWS) == [(b"200", b"200")]


# --- locks -------------------------------------------------------------------------------------


@MODES
async def test_a_lock_of_somebody_else_is_waited_for(
    db: MariaDb, *, is_transactional: bool
) -> None:
    db.execute("SET GLOBAL innodb_lock_wait_timeout = 1")
    try:
        async with holding(db, "START TRANSACTION", "INSERT INTO s.t VALUES (55, 9, '')") as other:
            sink = sink_at(db.port, is_transactional=is_transactional)
            async with running(sink):
                await sink.submit(TXNS)
                await until(lambda: sink.statistics().retries_by_kind.get("contention"))
                other.execute("ROLLBACK")
                await sink.flush()
    finally:
        db.execute("SET GLOBAL innodb_lock_wait_timeout = 50")
    assert db.execute(ROWS) == [(b"200", b"200")]


async def test_a_deadlock_with_somebody_else_is_tried_again(db: MariaDb) -> None:
    """Another session takes the rows in the other order, with more work to lose."""
    db.execute("INSERT INTO s.t VALUES (1, 1, ''), (2, 1, '')", "CREATE TABLE s.x (n BIGINT)")
    change = dml(10, updated(T, (1, 1, b""), (1, 2, b"")), inserted(KEYLESS, (1, 1)))
    deadlocks = 0
    for attempt in range(30):
        sink = sink_for(db, lanes=1)
        statements = [f"INSERT INTO s.x SELECT seq FROM s.seq_1_to_{500 + attempt}"]
        async with (
            holding(db, "START TRANSACTION", *statements) as other,
            running(sink),
        ):
            other.execute("SELECT * FROM s.k FOR UPDATE")  # the gap that our INSERT needs
            await sink.submit([dml(10 + attempt, *change.changes)])
            # the server looks anew only if nobody has asked for a tenth of a second
            await until(lambda: _is_waiting(db), every_s=0.2)
            other.execute("UPDATE s.t SET b = 7 WHERE id = 1")
            other.execute("ROLLBACK")
            await sink.flush()
            deadlocks = sink.statistics().retries_by_kind.get("contention", 0)
        if deadlocks:
            break
    assert deadlocks
    assert db.execute("SELECT b FROM s.t WHERE id = 1") == [(b"2",)]


def _is_waiting(db: MariaDb) -> bool:
    found = db.execute("SELECT COUNT(*) FROM information_schema.innodb_lock_waits")
    return found != [(b"0",)]


async def test_an_interrupted_savepoint_is_no_server_without_any(
    db: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them nobody sees that a row is missing."""
    await apply(sink_for(db), dml(5, inserted(T, (1, 1, b""), (2, 1, b""))))
    db.execute("DELETE FROM s.t WHERE id = 2")
    run_all, interrupted = SqlSession.run_all, 0

    async def interrupted_once(session: SqlSession, texts: Sequence[bytes], done: Any) -> None:
        nonlocal interrupted
        interrupted += 1
        if interrupted == 1:
            raise TryAgain("error 1317: Query execution was interrupted")
        await run_all(session, texts, done)

    monkeypatch.setattr(SqlSession, "run_all", interrupted_once)
    both = dml(6, deleted(T, (1, 1, b"")), deleted(T, (2, 1, b"")), inserted(T, (3, 1, b"")))
    assert isinstance(await failing(sink_for(db, lanes=1), both), RowNotFound)


async def test_a_lock_on_the_checkpoint_stops_nothing(db: MariaDb) -> None:
    sink = sink_at(db.port)
    async with running(sink):
        await sink.submit(TXNS[:10])
        await sink.flush()
        async with holding(db, "LOCK TABLES tidb_binlog.checkpoint READ"):
            await sink.submit(TXNS[10:])
            await sink.flush()
    assert db.execute(ROWS) == [(b"200", b"200")]


# --- a server that takes no writes -------------------------------------------------------------


async def test_a_read_only_downstream_is_waited_for(db: MariaDb) -> None:
    db.execute(
        "CREATE USER IF NOT EXISTS plain@'%'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX ON *.* TO plain@'%'",
    )
    sink = sink_at(db.port, user="plain")
    try:
        async with running(sink):
            await sink.submit(TXNS[:10])
            await sink.flush()
            db.execute("SET GLOBAL read_only = 1")
            await sink.submit(TXNS[10:])
            await until(lambda: sink.statistics().retries_by_kind.get("read-only"))
            db.execute("SET GLOBAL read_only = 0")
            await sink.flush()
    finally:
        db.execute("SET GLOBAL read_only = 0")
    assert db.execute(ROWS) == [(b"200", b"200")]


async def test_too_many_connections_are_waited_for(db: MariaDb) -> None:
    db.execute("SET GLOBAL max_connections = 10")
    held = [db.connect() for _ in range(11)]
    try:
        with pytest.raises(DownstreamUnavailable, match="1040"):
            await sink_at(db.port).open()
    finally:
        for each in held:
            each.close()
        # the last place is for the administrator, so this works at any number
        db.execute("SET GLOBAL max_connections = 200")


async def test_a_server_that_is_offline_for_a_while_is_waited_for(mysql: MySql) -> None:
    plain = "plain@'127.0.0.1'"
    mysql.execute(
        f"CREATE USER {plain}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP ON *.* TO {plain}",
        "SET GLOBAL offline_mode = ON",
    )
    try:
        with pytest.raises(DownstreamUnavailable, match="3032"):
            await sink_at(mysql.port, user="plain").open()
    finally:
        mysql.execute("SET GLOBAL offline_mode = OFF", f"DROP USER {plain}")


# --- a DDL that takes its time -----------------------------------------------------------------


def watched(sink: MySqlSink, port: int) -> MySqlSink:
    sink._watch = DdlWatch(MySqlServer("127.0.0.1", port, "root", ""), look_every_s=0.05)
    return sink


async def test_a_long_ddl_is_shown_and_left_to_the_server(db: MariaDb) -> None:
    sink = watched(sink_at(db.port), db.port)
    async with running(sink), holding(db, "START TRANSACTION", "SELECT * FROM s.t") as reader:
        async with asyncio.TaskGroup() as group:
            group.create_task(sink.submit([ddl(20, "ALTER TABLE t ADD COLUMN d INT")]))
            await until(lambda: (ddl := sink.statistics().ddl) and "metadata lock" in ddl.stage)
            shown = sink.statistics().ddl
            assert shown is not None
            assert (shown.commit_ts, shown.statement) == (20, "ALTER TABLE t ADD COLUMN d INT")
            first_s = shown.elapsed_s
            await until(lambda: sink.statistics().ddl.elapsed_s > first_s)  # type: ignore[union-attr]  # still at work
            reader.execute("COMMIT")
        assert sink.statistics().ddl is None
        assert sink.statistics().ddls_applied == 1
    assert db.execute("SELECT COUNT(*) FROM s.t WHERE d IS NULL") == [(b"0",)]


async def test_a_server_that_dies_in_a_ddl_has_it_done_once(db: MariaDb) -> None:
    change = ddl(20, "ALTER TABLE t ADD COLUMN d INT")
    sink = sink_at(db.port)
    await sink.open()

    async def submit() -> None:
        with pytest.raises(DownstreamUnavailable):
            await sink.submit([change])

    async with (
        holding(db, "START TRANSACTION", "SELECT * FROM s.t"),
        asyncio.TaskGroup() as group,
    ):
        group.create_task(submit())
        await until(lambda: _is_altering(db))
        db.restart()
    await sink.close()
    again = sink_at(db.port)
    async with running(again):
        await again.submit([change, *TXNS[11:]])
        await again.flush()
    assert db.execute("SELECT COUNT(*) FROM s.t WHERE d IS NULL") == [(b"189",)]
    assert db.execute("SELECT COUNT(*) FROM tidb_binlog.progress WHERE lane = -1") == [(b"0",)]


def _is_altering(db: MariaDb) -> bool:
    found = db.execute("SELECT info FROM information_schema.processlist WHERE info LIKE 'ALTER%'")
    return bool(found)


@pytest.mark.parametrize("verb", [b"USE", b"ALTER"])
async def test_a_ddl_whose_connection_died_in_silence_is_not_waited_for(
    db: MariaDb, verb: bytes
) -> None:
    frozen: list[bytes] = []

    def decide(statement: bytes) -> int:
        if statement.startswith(verb) and not frozen:
            frozen.append(statement)
            return Fate.FREEZE
        return Fate.PASS

    async with MySqlProxy(db.port, decide).running() as proxy:
        sink = watched(sink_at(proxy.port), db.port)
        await sink.open()
        with pytest.raises(DownstreamUnavailable):
            await sink.submit([ddl(20, "ALTER TABLE t ADD COLUMN d INT")])
        await sink.close()
        again = sink_at(proxy.port)
        async with running(again):
            await again.submit([ddl(20, "ALTER TABLE t ADD COLUMN d INT"), *TXNS[11:]])
            await again.flush()
    assert frozen
    assert db.execute("SELECT COUNT(*) FROM s.t WHERE d IS NULL") == [(b"189",)]
