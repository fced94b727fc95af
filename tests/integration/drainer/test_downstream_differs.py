"""A downstream that is not quite the upstream: columns, settings, privileges, names it lacks."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect, edited
from binlogd.drainer.messages.named import NamedDdl, NamedTransaction
from binlogd.drainer.mysql import catalog, ddl_note
from binlogd.drainer.mysql.connection import MySqlServer, SqlSession
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedOptions
from binlogd.drainer.mysql.refusals import Warned
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.rows.shape import Shapes
from binlogd.drainer.txn import Ddl
from binlogd.errors import ConfigError, DownstreamUnavailable, StatementRejected
from binlogd.settings import config
from binlogd.tidb.kinds import FLAG_NOT_NULL, Tp
from binlogd.tidb.model import FieldType, job_from_json, table_to_json
from binlogd.tidb.row import Value
from binlogd.tso import Tso
from tests.support.deployment import grants
from tests.support.interrupted import Interrupted, interrupted_at_each
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
TIDB_MODE = 1436549152
"""What TiDB has by default, as a job tells it."""
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


# --- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["UNIQUE (b)", "UNIQUE (c(2))", "x INT AS (b) STORED UNIQUE"])
async def test_a_unique_key_that_the_upstream_lacks_takes_no_row_away(
    each_server: MariaDb, key: str
) -> None:
    each_server.execute(
        "CREATE DATABASE s",
        f"CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20), {key})",
    )
    rows = dml(5, inserted(T, (1, 1, b"abc"))), dml(6, inserted(T, (2, 1, b"abd")))
    await apply(sink_for(each_server), rows[0])
    error = await failing(sink_for(each_server), *rows)
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, error.code) == (6, 1062)
    assert "a unique key that it lacks" in str(error)
    assert each_server.execute("SELECT id FROM s.t") == [(b"1",)]


# --- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["+08:00", "-05:30"])
async def test_a_moment_is_the_same_under_any_time_zone_of_the_session(
    db: MariaDb, zone: str
) -> None:
    db.execute("CREATE TABLE s.m (id BIGINT PRIMARY KEY, b TIMESTAMP NULL)")
    base = server_of(db)
    server = MySqlServer(base.host, base.port, base.user, base.password, params={"time_zone": zone})
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    async with running(sink):
        await sink.submit([dml(5, inserted(MOMENT, (1, "2024-01-02 03:04:05")))])
        await sink.flush()
    rows = db.execute("SET time_zone = '+00:00'", "SELECT b FROM s.m")
    assert rows == [(b"2024-01-02 03:04:05",)]


async def test_a_variable_is_a_number_or_text_as_the_server_has_it(db: MariaDb) -> None:
    base = server_of(db)
    params = {"innodb_lock_wait_timeout": "20", "unique_checks": "0", "sql_select_limit": "9"}
    params["character_set_results"] = "utf8mb4"
    server = MySqlServer(base.host, base.port, base.user, base.password, params=params)
    with closing(await SqlSession.connect(server)) as session:
        (row,) = await session.rows(
            b"SELECT @@innodb_lock_wait_timeout, @@unique_checks, @@sql_select_limit"
        )
    assert [int(value) for value in row] == [20, 0, 9]


async def test_an_empty_text_is_one_under_any_sql_mode(db: MariaDb) -> None:
    base = server_of(db)
    mode = "EMPTY_STRING_IS_NULL"
    if db.name != "MariaDB":
        pytest.skip("MariaDB alone has this mode")
    server = MySqlServer(base.host, base.port, base.user, base.password, sql_mode=mode)
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    db.execute("ALTER TABLE s.t ADD COLUMN b BIGINT")
    async with running(sink):
        await sink.submit([dml(5, inserted(T, (1, 1, b"")))])
        await sink.flush()
    assert db.execute("SELECT c FROM s.t") == [(b"",)]


@pytest.mark.parametrize("mode", [None, "", "STRICT_TRANS_TABLES,ANSI_QUOTES,NO_BACKSLASH_ESCAPES"])
async def test_text_is_the_same_under_any_sql_mode(db: MariaDb, mode: str | None) -> None:
    base = server_of(db)
    server = MySqlServer(base.host, base.port, base.user, base.password, sql_mode=mode)
    db.execute("ALTER TABLE s.t ADD COLUMN b BIGINT")
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    async with running(sink):
        await sink.submit([dml(5, inserted(T, (1, 1, b"a\\b'c\"d")))])
        await sink.flush()
    assert db.execute("SELECT c FROM s.t") == [(b"a\\b'c\"d",)]


@pytest.mark.parametrize(
    ("setting", "before"),
    [
        ("completion_type = 1", "0"),
        ("completion_type = 2", "0"),
        ("sql_select_limit = 1", "DEFAULT"),
        ("max_join_size = 1", "DEFAULT"),
        ("default_storage_engine = MyISAM", "InnoDB"),
        ("lc_messages = 'de_DE'", "'en_US'"),
        ("init_connect = 'SET autocommit = 0'", "''"),
    ],
)
@pytest.mark.parametrize("is_transactional", [False, True], ids=["key", "transaction"])
async def test_no_global_setting_of_a_server_changes_what_is_done_there(
    each_server: MariaDb, setting: str, before: str, *, is_transactional: bool
) -> None:
    each_server.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b ENUM('a') NOT NULL)",
        "DROP USER IF EXISTS binlogd@'%'",
        "CREATE USER binlogd@'%' IDENTIFIED BY 'own'",
        *grants(),
    )
    at = table(1, "t", FieldType(Tp.ENUM, FLAG_NOT_NULL, elems=("a",)))
    server = replace(server_of(each_server), user="binlogd", password="own")
    sink = sink_for(server, is_transactional=is_transactional)
    holder = each_server.connect()
    with holder.cursor() as cursor:
        cursor.execute(f"SET GLOBAL {setting}")
        try:
            async with asyncio.timeout(60), running(sink):
                await sink.submit([dml(ts, inserted(at, (ts, ts % 2))) for ts in range(5, 10)])
                await sink.flush()
                await sink.submit([ddl(10, "CREATE TABLE n (id INT)", name="n")])
                await sink.submit([dml(11, deleted(at, (9, 1))), dml(12, inserted(at, (12, 0)))])
                await sink.flush()
                await sink.save(Checkpoint(Tso(12)))
        finally:
            cursor.execute(f"SET GLOBAL {setting.split()[0]} = {before}")
    holder.close()
    left = [(b"%d" % ts, b"a" if ts % 2 else b"") for ts in (5, 6, 7, 8, 12)]
    assert each_server.execute("SELECT * FROM s.t ORDER BY id") == left
    kept = "SELECT engine FROM information_schema.tables WHERE table_schema = 'tidb_binlog'"
    assert set(each_server.execute(kept)) == {(b"InnoDB",)}


async def test_progress_where_nothing_is_rolled_back_is_refused(db: MariaDb) -> None:
    db.execute("ALTER TABLE s.t ADD COLUMN b BIGINT")
    await apply(sink_for(db), dml(5, inserted(T, (1, 1, b"a"))))
    db.execute("ALTER TABLE tidb_binlog.progress ENGINE = Aria")
    error = await failing(sink_for(db), dml(6, inserted(T, (2, 1, b"a"))))
    assert isinstance(error, ConfigError)
    assert "tidb_binlog.progress has an engine without transactions" in str(error)


@pytest.mark.parametrize("name", ["autocommit", "sql_mode", "FOREIGN_KEY_CHECKS"])
def test_a_variable_that_would_break_a_promise_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"params.{name}: is binlogd's own"):
        config.parse(f'[syncer.to]\nparams = {{ {name} = "1" }}', "test")


def test_a_time_zone_without_a_name_is_refused_as_the_original_does() -> None:
    with pytest.raises(ConfigError, match="not supported"):
        config.parse('[syncer.to]\nparams = { time_zone = "SYSTEM" }', "test")


async def test_a_variable_that_the_server_lacks_is_named(db: MariaDb) -> None:
    base = server_of(db)
    server = MySqlServer(base.host, base.port, base.user, base.password, params={"no_such": "1"})
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
    server = MySqlServer("127.0.0.1", db.port, "poor", "")
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    error = await failing(sink, dml(5, inserted(T, (1, 1, b"a"))))
    assert isinstance(error, StatementRejected)
    assert "grant the user" in str(error)


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("VARCHAR(3)", TEXT, b"abc  "),
        ("DECIMAL(8,2)", FieldType(Tp.NEW_DECIMAL, flen=8, decimal=4), "1.2345"),
    ],
)
async def test_what_a_server_cuts_off_with_no_more_than_a_note_stops_too(
    each_server: MariaDb, kind: str, field: FieldType, value: Value
) -> None:
    each_server.execute("CREATE DATABASE s", f"CREATE TABLE s.t (id BIGINT PRIMARY KEY, b {kind})")
    error = await failing(sink_for(each_server), dml(5, inserted(table(1, "t", field), (1, value))))
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, error.code) == (5, 1265)
    assert each_server.execute("SELECT * FROM s.t") == []


@pytest.mark.parametrize(
    ("tp", "there"),
    [
        (Tp.ENUM, "ENUM('b', 'a')"),
        (Tp.ENUM, "ENUM('a')"),
        (Tp.ENUM, "VARCHAR(9)"),
        (Tp.ENUM, "SET('a', 'b')"),
        (Tp.SET, "SET('b', 'a')"),
        (Tp.SET, "SET('a')"),
    ],
)
async def test_a_number_never_becomes_another_member(
    each_server: MariaDb, tp: Tp, there: str
) -> None:
    each_server.execute("CREATE DATABASE s", f"CREATE TABLE s.t (id BIGINT PRIMARY KEY, b {there})")
    at = table(1, "t", FieldType(tp, charset="utf8mb4", elems=("a", "b")))
    error = await failing(sink_for(each_server), dml(5, inserted(at, (1, 2))))
    assert isinstance(error, StatementRejected)
    assert "column b has other members than upstream" in str(error)
    assert each_server.execute("SELECT * FROM s.t") == []


@pytest.mark.parametrize("tp", [Tp.ENUM, Tp.SET])
async def test_members_are_compared_as_a_server_spells_them(each_server: MariaDb, tp: Tp) -> None:
    members = ("it's", "", "c\\d", "e\nf", '"g"', "ü,", "H ")
    kind = "ENUM" if tp is Tp.ENUM else "SET"
    labels = [each for each in members if "," not in each or tp is Tp.ENUM]
    texts = ", ".join("'" + each.replace("\\", "\\\\").replace("'", "''") + "'" for each in labels)
    each_server.execute(
        "CREATE DATABASE s", f"CREATE TABLE s.t (id BIGINT PRIMARY KEY, b {kind}({texts}, 'more'))"
    )
    at = table(1, "t", FieldType(tp, charset="utf8mb4", elems=tuple(labels)))
    await apply(sink_for(each_server), dml(5, inserted(at, (1, 3))))
    assert len(each_server.execute("SELECT * FROM s.t")) == 1


def modify(kind: str, *, sql_mode: int | None, cut: dict[str, int] | None = None) -> Ddl:
    """A MODIFY COLUMN whose job tells under which mode it was done, and what was cut."""
    meta = {"warnings_count": cut or {}} | ({} if sql_mode is None else {"sql_mode": sql_mode})
    told = {"TableInfo": json.loads(table_to_json(T.info))}
    job = {"id": 20, "type": 12, "table_id": 1, "reorg_meta": meta, "binlog": told}
    event = ddl(20, f"ALTER TABLE t MODIFY c {kind}")
    return replace(event, job=job_from_json(json.dumps(job).encode()))


def holding(db: MariaDb, value: str) -> MySqlSink:
    db.execute(
        "CREATE DATABASE IF NOT EXISTS s",
        "CREATE TABLE IF NOT EXISTS s.t (id BIGINT PRIMARY KEY, c VARCHAR(20))",
        f"INSERT INTO s.t VALUES (1, {value})",
    )
    return sink_for(db)


@pytest.mark.parametrize("sql_mode", [None, TIDB_MODE])
async def test_a_ddl_that_would_cut_a_value_downstream_stops_before_it_does(
    each_server: MariaDb, *, sql_mode: int | None
) -> None:
    sink = holding(each_server, "'1000'")
    for kind in ("TINYINT", "ENUM('a')", "VARCHAR(3)", "DATE"):
        error = await failing(sink_for(each_server), modify(kind, sql_mode=sql_mode))
        assert isinstance(error, StatementRejected)
        assert "nothing of it was done: compare the table" in str(error)
        assert each_server.execute("SELECT c FROM s.t") == [(b"1000",)], kind
    each_server.execute("UPDATE s.t SET c = '100'")
    await apply(sink, modify("TINYINT", sql_mode=sql_mode))
    assert each_server.execute("SELECT c FROM s.t") == [(b"100",)]


async def test_no_configured_mode_makes_a_ddl_cut(db: MariaDb) -> None:
    db.execute("INSERT INTO s.t VALUES (1, NULL)")
    lax = replace(server_of(db), sql_mode="")
    sink = MySqlSink(lax, CLUSTER_ID, MySqlSinkOptions(lanes=1), Random(1))
    error = await failing(sink, modify("VARCHAR(20) NOT NULL", sql_mode=None))
    assert isinstance(error, StatementRejected)
    assert db.execute("SELECT c FROM s.t") == [(None,)]


@pytest.mark.parametrize(
    ("value", "upstream", "is_said"),
    [("1000", {}, True), ("1000", {"types:1264": 1}, False), ("100", {}, False)],
)
async def test_what_an_upstream_that_was_not_strict_cut_is_cut_and_what_it_did_not_is_said(
    value: str, upstream: dict[str, int], each_server: MariaDb, *, is_said: bool
) -> None:
    sink = holding(each_server, value)
    event = modify("TINYINT", sql_mode=0, cut=upstream)
    with capture_logs() as logged:
        await apply(sink, event, ddl(21, "ALTER TABLE t COMMENT 'strict again'"))
    assert each_server.execute("SELECT c FROM s.t") == [(b"%d" % min(int(value), 127),)]
    said = [each for each in logged if each["event"] == "values_cut_by_a_ddl"]
    assert sink.statistics().values_in_doubt == len(said) == is_said
    if is_said:
        assert (said[0]["database"], said[0]["table"], said[0]["ddl"]) == (
            "s",
            "t",
            event.statement,
        )
        assert "'c'" in said[0]["warnings"][0]
    error = await failing(sink_for(each_server), ddl(22, "ALTER TABLE t MODIFY c BIT(1)"))
    assert isinstance(error, StatementRejected), "the session of the next DDL is strict"


async def test_a_life_that_ends_before_it_reads_what_was_cut_is_not_silent(
    db: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the next one, which dies as it has begun the DDL again."""

    async def ends(_: SqlSession) -> list[Warned]:
        raise Interrupted

    sink, event = holding(db, "1000"), modify("TINYINT", sql_mode=0)
    with monkeypatch.context() as patch:
        patch.setattr(SqlSession, "warnings", ends)
        with pytest.raises(ExceptionGroup):
            await apply(sink, event)
    assert db.execute("SELECT c FROM s.t") == [(b"127",)]
    with capture_logs() as logged:
        lives = await interrupted_at_each(
            lambda: apply(sink_for(db), event), b"ALTER TABLE", monkeypatch
        )
    assert lives == 2
    said = [each for each in logged if each["event"] == "values_cut_by_a_ddl"]
    assert [(each["warnings"], each["cause"][:31]) for each in said] == [
        ([], "the connection or the process e")
    ]


@pytest.mark.parametrize(
    ("old", "new", "value", "made"),
    [
        ("DATETIME(3)", "DATETIME", "2019-12-31 23:59:59.500", b"2020-01-01 00:00:00"),
        ("TIMESTAMP(6)", "TIMESTAMP(2)", "2019-12-31 23:59:59.995", b"2020-01-01 00:00:00.00"),
        ("TIME(2)", "TIME", "-12:34:56.78", b"-12:34:57"),
        ("VARCHAR(30)", "DATETIME", "1999-12-31 23:59:59.98", b"2000-01-01 00:00:00"),
        ("DATETIME(3)", "TIME", "2019-12-31 12:34:56.789", b"12:34:57"),
    ],
)
async def test_a_fraction_that_finds_no_room_is_rounded_as_by_tidb(
    old: str, new: str, value: str, made: bytes, each_server: MariaDb
) -> None:
    each_server.execute(
        "CREATE DATABASE s",
        f"CREATE TABLE s.t (id BIGINT PRIMARY KEY, c {old})",
        f"INSERT INTO s.t VALUES (1, '{value}')",
    )
    await apply(sink_for(each_server), modify(new, sql_mode=TIDB_MODE))
    assert each_server.execute("SELECT c FROM s.t") == [(made,)]


async def test_a_ddl_out_of_a_file_cuts_no_value_either(each_server: MariaDb) -> None:
    holding(each_server, "'1000'")
    applier = NamedApplier(server_of(each_server), NamedOptions(is_safe=True), Random(1))
    await applier.open()

    async def run(text: str) -> None:
        await applier.apply(NamedTransaction(Tso(9), NamedDdl("s", text)), 1)

    try:
        with pytest.raises(StatementRejected, match="nothing of it was done"):
            await run("ALTER TABLE t MODIFY c TINYINT")
        await run("CREATE TABLE n (c VARCHAR(20000))")
        await run("ALTER TABLE t ADD COLUMN c INT, ADD COLUMN d INT")
    finally:
        applier.close()
    assert each_server.execute("SELECT c, d FROM s.t") == [(b"1000", None)]
    assert each_server.execute("SELECT * FROM s.n") == []


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE n (c VARCHAR(20000), d VARCHAR(1000) COLLATE utf8mb4_bin, KEY (d))",
        f"CREATE TABLE n (c TEXT COMMENT '{'x' * 1100}')",
        "CREATE TABLE n (c TEXT NOT NULL DEFAULT '')",
        "ALTER TABLE t MODIFY c VARCHAR(20000)",
        f"ALTER TABLE t COMMENT '{'x' * 2100}'",
    ],
)
async def test_a_definition_that_tidb_has_is_no_matter_of_strictness(
    statement: str, each_server: MariaDb
) -> None:
    sink = holding(each_server, "'of before'")
    with capture_logs() as logged:
        await apply(sink, ddl(20, statement))
    assert each_server.execute("SELECT c FROM s.t") == [(b"of before",)]
    assert "values_cut_by_a_ddl" not in {each["event"] for each in logged}


# --- IF EXISTS ---------------------------------------------------------------------------------

CONDITIONS = (
    "ALTER TABLE `t` ADD COLUMN IF NOT EXISTS `a` INT, ADD COLUMN IF NOT EXISTS `b` INT",
    "ALTER TABLE `t` ADD COLUMN IF NOT EXISTS (`b` INT, `d` INT)",
    "ALTER TABLE `t` MODIFY COLUMN IF EXISTS `a` BIGINT, DROP COLUMN IF EXISTS `c`",
    "ALTER TABLE `t` CHANGE COLUMN IF EXISTS `d` `e` INT COMMENT 'IF EXISTS'",
    "ALTER TABLE `t` ADD INDEX IF NOT EXISTS `i`(`a`), ADD INDEX IF NOT EXISTS `j`((`a` + 1))",
    "ALTER TABLE `t` DROP INDEX IF EXISTS `k`",
    "CREATE UNIQUE INDEX IF NOT EXISTS `u` ON `t` (`id`, `a`)",
    "DROP INDEX IF EXISTS `l` ON `t`",
    "ALTER TABLE `t` ADD PARTITION IF NOT EXISTS (PARTITION `p3` VALUES LESS THAN (30))",
    "ALTER TABLE `t` DROP PARTITION IF EXISTS `p1`",
)


@pytest.mark.parametrize(
    "before", ["SELECT 1", "ALTER TABLE s.t ADD COLUMN b INT, DROP COLUMN c, DROP INDEX l"]
)
async def test_a_condition_means_to_every_server_what_it_means_to_tidb(
    before: str, each_server: MariaDb
) -> None:
    """MySQL cannot read these. What is there, or gone, is passed over, and nothing beside it."""
    each_server.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, c INT, n INT, KEY k (n), KEY l (n))"
        " PARTITION BY RANGE (id) (PARTITION p1 VALUES LESS THAN (10),"
        " PARTITION p2 VALUES LESS THAN (20))",
        before,
    )
    texts = [edited(each, Dialect.MYSQL) for each in CONDITIONS]
    await apply(sink_for(each_server), *(ddl(20 + at, text) for at, text in enumerate(texts)))

    def named(of: str, table: str) -> set[bytes | None]:
        where = "WHERE table_schema = 's' AND table_name = 't'"
        question = f"SELECT {of} FROM information_schema.{table} {where}"
        return {name for (name,) in each_server.execute(question)}

    assert named("column_name", "columns") == {b"id", b"n", b"a", b"b", b"e"}
    expressions = {b"j"} if each_server.name == "MySQL" else set()
    assert named("index_name", "statistics") == {b"PRIMARY", b"i", b"u"} | expressions
    assert named("partition_name", "partitions") == {b"p2", b"p3"}


# --- privileges --------------------------------------------------------------------------------


async def test_the_grants_that_are_shipped_are_enough_on_every_server(each_server: MariaDb) -> None:
    each_server.execute(
        "DROP USER IF EXISTS binlogd@'%'", "CREATE USER binlogd@'%' IDENTIFIED BY 'own'", *grants()
    )
    server = replace(server_of(each_server), user="binlogd", password="own")
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=2), Random(1))
    statements = (
        "CREATE DATABASE IF NOT EXISTS s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, c VARCHAR(20))",
        "CREATE TABLE s.u (id BIGINT PRIMARY KEY, t BIGINT, FOREIGN KEY (t) REFERENCES s.t (id))",
        "CREATE ALGORITHM = UNDEFINED DEFINER = `who made it`@`%` SQL SECURITY DEFINER VIEW s.v AS"
        " SELECT c FROM s.t",
        "CREATE INDEX i ON s.t (c)",
        "TRUNCATE TABLE s.u",
        "RENAME TABLE s.u TO s.w",
        "DROP TABLE s.w",
    )
    made = (replace(ddl(20 + at, text), is_qualified=True) for at, text in enumerate(statements))
    await apply(sink, *made, dml(90, inserted(T, (1, 1, b"a"))), dml(91, deleted(T, (1, 1, b"a"))))
    assert each_server.execute("SELECT * FROM s.t") == []
    assert each_server.execute("SHOW TABLES FROM s") == [(b"t",), (b"v",)]
    session = await SqlSession.connect(server)
    other = each_server.connect()
    try:
        assert await catalog.number(session, "s", "t", "") != ddl_note.UNKNOWN, "PROCESS"
    finally:
        other.close()
        session.close()
