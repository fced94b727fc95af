"""A downstream that is not quite the upstream: columns, settings, privileges, names it lacks."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from binlogd.drainer.mysql.connection import Server, SqlSession
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.rows.shape import Shapes
from binlogd.errors import ConfigError, DownstreamUnavailable, StatementRejected
from binlogd.settings import config
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import FieldType, job_from_json
from tests.support.mariadb import MariaDb
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
from tests.support.replay import CLUSTER_ID, running, server_of, sink_for

T = table(1, "t", NUMBER, TEXT)
KEYLESS = table(2, "k", NUMBER, TEXT, has_key=False)
MOMENT = table(3, "m", FieldType(Tp.TIMESTAMP))


@pytest.fixture
def db(mariadb: MariaDb) -> MariaDb:
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, c VARCHAR(20))",
        "CREATE TABLE s.k (id BIGINT, c VARCHAR(20))",
    )
    return mariadb


def partial(db: MariaDb) -> MySqlSink:
    options = MySqlSinkOptions(lanes=2, shapes=Shapes(leaves_out_columns=True))
    return MySqlSink(server_of(db), CLUSTER_ID, options, Random(1))


# --- columns -----------------------------------------------------------------------------------


async def test_a_column_that_the_downstream_lacks_stops_with_both_ways_out(db: MariaDb) -> None:
    error = await failing(sink_for(db), dml(5, inserted(T, (1, 2, b"a"))))
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, error.code) == (5, 1054)
    assert "sync-mode = 2" in str(error)


async def test_with_sync_mode_2_it_is_left_out(db: MariaDb) -> None:
    async with running(partial(db)) as sink:
        await sink.submit(
            [
                dml(5, inserted(T, (1, 2, b"a"), (2, 2, b"b")), inserted(KEYLESS, (1, 2, b"a"))),
                dml(6, updated(T, (1, 2, b"a"), (1, 3, b"x")), inserted(KEYLESS, (2, 2, b"b"))),
                dml(7, deleted(T, (2, 2, b"b")), updated(KEYLESS, (1, 2, b"a"), (1, 5, b"y"))),
                dml(8, deleted(KEYLESS, (2, 2, b"b"))),
            ]
        )
        await sink.flush()
    assert db.execute("SELECT * FROM s.t") == [(b"1", b"x")]
    assert db.execute("SELECT * FROM s.k") == [(b"1", b"y")]


async def test_with_sync_mode_2_a_column_that_goes_later_is_looked_for_anew(db: MariaDb) -> None:
    first = partial(db)
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - what the group of the run ends with
        async with running(first):
            await first.submit([dml(5, inserted(T, (1, 2, b"a")))])
            await first.flush()
            db.execute("ALTER TABLE s.t DROP COLUMN c")
            await first.submit([dml(6, inserted(T, (2, 2, b"b")))])
            await first.flush()
    assert raised.group_contains(DownstreamUnavailable, match="gone downstream")
    async with running(partial(db)) as again:
        await again.submit([dml(6, inserted(T, (2, 2, b"b")))])
        await again.flush()
    assert db.execute("SELECT * FROM s.t") == [(b"1",), (b"2",)]


# --- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["+08:00", "-05:30"])
async def test_a_moment_is_the_same_under_any_time_zone_of_the_session(
    db: MariaDb, zone: str
) -> None:
    db.execute("CREATE TABLE s.m (id BIGINT PRIMARY KEY, b TIMESTAMP NULL)")
    base = server_of(db)
    server = Server(base.host, base.port, base.user, base.password, params={"time_zone": zone})
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    async with running(sink):
        await sink.submit([dml(5, inserted(MOMENT, (1, "2024-01-02 03:04:05")))])
        await sink.flush()
    rows = db.execute("SET time_zone = '+00:00'", "SELECT b FROM s.m")
    assert rows == [(b"2024-01-02 03:04:05",)]


@pytest.mark.parametrize("mode", [None, "", "STRICT_TRANS_TABLES,ANSI_QUOTES,NO_BACKSLASH_ESCAPES"])
async def test_text_is_the_same_under_any_sql_mode(db: MariaDb, mode: str | None) -> None:
    base = server_of(db)
    server = Server(base.host, base.port, base.user, base.password, sql_mode=mode)
    db.execute("ALTER TABLE s.t ADD COLUMN b BIGINT")
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    async with running(sink):
        await sink.submit([dml(5, inserted(T, (1, 1, b"a\\b'c\"d")))])
        await sink.flush()
    assert db.execute("SELECT c FROM s.t") == [(b"a\\b'c\"d",)]


@pytest.mark.parametrize("name", ["autocommit", "sql_mode", "FOREIGN_KEY_CHECKS"])
def test_a_variable_that_would_break_a_promise_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"params.{name}: is binlogd's own"):
        config.parse(f'[syncer.to]\nparams = {{ {name} = "1" }}', "test")


def test_a_time_zone_without_a_name_is_refused_as_the_original_does() -> None:
    with pytest.raises(ConfigError, match="not supported"):
        config.parse('[syncer.to]\nparams = { time_zone = "SYSTEM" }', "test")


async def test_a_variable_that_the_server_lacks_is_named(db: MariaDb) -> None:
    base = server_of(db)
    server = Server(base.host, base.port, base.user, base.password, params={"no_such": "1"})
    with pytest.raises(ConfigError, match="no_such"):
        await SqlSession.connect(server)


# --- names that the downstream lacks -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("CREATE TABLE n (c VARCHAR(5) COLLATE utf8mb4_xy_ai_ci)", "lacks this collation"),
        ("CREATE TABLE n (c VARCHAR(5) CHARACTER SET gb99999)", "lacks this character set"),
    ],
)
async def test_a_name_that_the_downstream_lacks_stops_with_what_to_do(
    db: MariaDb, text: str, says: str
) -> None:
    error = await failing(sink_for(db), ddl(5, text, name="n"))
    assert isinstance(error, StatementRejected)
    assert says in str(error)
    assert "add 5 to syncer.ignore-txn-commit-ts" in str(error)


async def test_a_missing_privilege_stops_with_what_to_grant(db: MariaDb) -> None:
    db.execute(
        "CREATE OR REPLACE USER poor@'%'",
        "GRANT ALL ON tidb_binlog.* TO poor@'%'",
        "GRANT SELECT ON s.* TO poor@'%'",
        "ALTER TABLE s.t ADD COLUMN b BIGINT",
    )
    server = Server("127.0.0.1", db.port, "poor", "")
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    error = await failing(sink, dml(5, inserted(T, (1, 1, b"a"))))
    assert isinstance(error, StatementRejected)
    assert "grant the user" in str(error)


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "upstream", "is_said"),
    [
        ("TINYINT", "1000", {}, True),
        ("TINYINT", "1000", {"types:1292": 5}, True),
        ("TINYINT", "1000", {"types:1264": 1}, False),
        ("TINYINT", "100", {}, False),
        ("ENUM('a')", "1000", {}, True),
    ],
)
async def test_a_ddl_that_cuts_a_value_downstream_alone_is_said_by_name(
    kind: str, value: str, upstream: dict[str, int], each_server: MariaDb, *, is_said: bool
) -> None:
    each_server.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, c VARCHAR(20))",
        f"INSERT INTO s.t VALUES (1, '{value}')",
    )
    event = ddl(20, f"ALTER TABLE t MODIFY c {kind}")
    job = {"id": 20, "type": 12, "table_id": 1, "reorg_meta": {"warnings_count": upstream}}
    sink = sink_for(each_server)
    with capture_logs() as logged:
        await apply(sink, replace(event, job=job_from_json(json.dumps(job).encode())))
    said = [each for each in logged if each["event"] == "values_cut_by_a_ddl"]
    assert sink.statistics().values_in_doubt == len(said) == is_said
    if is_said:
        assert (said[0]["database"], said[0]["table"], said[0]["ddl"]) == (
            "s",
            "t",
            event.statement,
        )
        assert "'c'" in said[0]["warnings"][0]
