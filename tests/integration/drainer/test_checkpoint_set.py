"""Whoever sets the checkpoint back is obeyed, and the progress of the lanes goes along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.errors import ConfigError
from binlogd.host.disk import PosixDisk
from binlogd.log.directory import LOCK_FILE
from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.tools.checkpoint import look, set_to
from binlogd.tso import Tso
from tests.support.appliance import into_mariadb
from tests.support.mariadb import MariaDb
from tests.support.mysql_rows import NUMBER, TEXT, dml, inserted, table
from tests.support.replay import CLUSTER_ID, running, server_of, sink_for

T = table(1, "t", NUMBER, TEXT)
KEYLESS = table(2, "k", NUMBER, has_key=False)
TXNS = [dml(ts, inserted(T, (ts, 1, b"")), inserted(KEYLESS, (ts, 1))) for ts in range(10, 60)]
ROWS = "SELECT (SELECT COUNT(*) FROM s.t), (SELECT COUNT(*) FROM s.k)"


@pytest.fixture
async def db(mariadb: MariaDb) -> MariaDb:
    """Everything is applied, and the checkpoint somewhere in the middle."""
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))",
        "CREATE TABLE s.k (id BIGINT, b BIGINT)",
    )
    sink = sink_for(mariadb, lanes=3)
    async with running(sink):
        await sink.submit(TXNS[:25])
        await sink.flush()
        await sink.save(Checkpoint(Tso(34), schema_version=3, ts_map={"primary-ts": 9}))
        await sink.submit(TXNS[25:])
        await sink.flush()
    return mariadb


async def again(
    db: MariaDb, *, lanes: int = 3, is_transactional: bool = False
) -> Checkpoint | None:
    """A new life of the sink, to which all is submitted once more."""
    sink = sink_for(db, lanes, is_transactional=is_transactional)
    stored = await sink.open()
    await sink.close()
    async with running(sink_for(db, lanes, is_transactional=is_transactional)) as fresh:
        await fresh.submit(TXNS)
        await fresh.flush()
    return stored


def _set_row(db: MariaDb, commit_ts: int) -> None:
    db.execute(
        "UPDATE tidb_binlog.checkpoint SET checkPoint ="
        f" REPLACE(checkPoint, '\"commitTS\":34', '\"commitTS\":{commit_ts}')"
    )


async def test_progress_ahead_of_the_checkpoint_is_kept(db: MariaDb) -> None:
    assert await again(db) == Checkpoint(Tso(34), False, 3, {"primary-ts": 9})
    assert db.execute(ROWS) == [(b"50", b"50")]


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_a_checkpoint_set_back_with_its_data_begins_there(
    db: MariaDb, *, is_transactional: bool
) -> None:
    db.execute("DELETE FROM s.t WHERE id > 19", "DELETE FROM s.k WHERE id > 19")
    _set_row(db, 19)
    stored = await again(db, is_transactional=is_transactional)
    assert stored == Checkpoint(Tso(19), False, 0, {"primary-ts": 9})
    assert db.execute(ROWS) == [(b"50", b"50")]
    await again(db)  # obeyed once, not at every start
    assert db.execute(ROWS) == [(b"50", b"50")]


async def test_an_order_is_remembered_by_a_process_that_dies_with_it(db: MariaDb) -> None:
    db.execute("DELETE FROM s.t WHERE id > 19", "DELETE FROM s.k WHERE id > 19")
    _set_row(db, 19)
    for _ in range(2):
        sink = sink_for(db, 3)
        assert await sink.open() == Checkpoint(Tso(19), False, 0, {"primary-ts": 9})
        await sink.close()
    await again(db)
    assert db.execute(ROWS) == [(b"50", b"50")]


async def test_a_checkpoint_that_was_deleted_begins_anew(db: MariaDb) -> None:
    db.execute("DELETE FROM s.t", "DELETE FROM s.k", "DELETE FROM tidb_binlog.checkpoint")
    assert await again(db) is None
    assert db.execute(ROWS) == [(b"50", b"50")]


async def stored_map(db: MariaDb) -> Mapping[str, int]:
    """The `ts-map` of the checkpoint."""
    store = MySqlStore(server_of(db), "tidb_binlog", CLUSTER_ID)
    try:
        checkpoint, _ = await store.state()
    finally:
        store.close()
    assert checkpoint is not None
    return checkpoint.ts_map


def setup_for(db: MariaDb, directory: Path) -> Setup:
    return Setup(config.parse(f'data-dir = "{directory}"\n' + into_mariadb(db), "test"))


async def test_the_command_moves_checkpoint_and_progress_together(
    db: MariaDb, tmp_path: Path
) -> None:
    setup = setup_for(db, tmp_path)
    before = await look(setup)
    assert (before.cluster_id, before.checkpoint.commit_ts) == (CLUSTER_ID, 34)
    assert [lane.commit_ts for lane in before.lanes] == [59, 59, 59]
    db.execute("DELETE FROM s.t WHERE id > 15", "DELETE FROM s.k WHERE id > 15")
    was, now = await set_to(setup, Tso(15))
    assert was == before
    assert [lane.commit_ts for lane in now.lanes] == [15]
    assert now.checkpoint == replace(before.checkpoint, commit_ts=Tso(15), schema_version=0)
    await again(db)
    assert db.execute(ROWS) == [(b"50", b"50")]


async def test_the_command_leaves_a_running_process_alone(db: MariaDb, tmp_path: Path) -> None:
    lock = await PosixDisk().lock(tmp_path / LOCK_FILE)
    try:
        with pytest.raises(ConfigError):
            await set_to(setup_for(db, tmp_path), Tso(15))
    finally:
        await lock.release()
    assert (await look(setup_for(db, tmp_path))).checkpoint.commit_ts == 34


@pytest.mark.parametrize("statements", [(), ("CREATE DATABASE tidb_binlog",)])
async def test_where_nothing_is_stored_the_command_says_so(
    mariadb: MariaDb, tmp_path: Path, statements: Sequence[str]
) -> None:
    if statements:
        mariadb.execute(*statements)
    with pytest.raises(ConfigError):
        await look(setup_for(mariadb, tmp_path))


async def test_a_downstream_with_timestamps_of_its_own_is_mapped(
    db: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB has no such timestamps; what it is asked here has the form of TiDB's answer."""
    question = b"SELECT 'tidb-binlog', COUNT(*) FROM s.t"
    monkeypatch.setattr("binlogd.drainer.mysql.sink.POSITION", question)
    options = MySqlSinkOptions(lanes=2, has_positions=True)
    sink = MySqlSink(server_of(db), CLUSTER_ID, options, Random(1))
    later = [dml(ts, inserted(T, (ts, 1, b""))) for ts in (70, 71, 72)]
    async with running(sink):
        await sink.submit(later[:1])
        await sink.submit(later[1:])
        await sink.flush()
        await sink.save(Checkpoint(Tso(72), ts_map={"other": 1}))
    assert await stored_map(db) == {"other": 1, "primary-ts": 59, "secondary-ts": 50}


async def test_a_downstream_that_tells_nothing_is_not_mapped(db: MariaDb) -> None:
    options = MySqlSinkOptions(lanes=2, has_positions=True)
    sink = MySqlSink(server_of(db), CLUSTER_ID, options, Random(1))
    async with running(sink):
        await sink.submit([dml(70, inserted(T, (70, 1, b"")))])
        await sink.flush()
        await sink.save(Checkpoint(Tso(70)))
    assert await stored_map(db) == {}


@pytest.mark.parametrize(("schema", "name"), [("tidb_binlog", "checkpoint"), ("my-own", "cp 2")])
async def test_the_stored_text_is_that_of_the_original(
    mariadb: MariaDb, schema: str, name: str
) -> None:
    store = MySqlStore(server_of(mariadb), schema, CLUSTER_ID, name)
    try:
        _, restart, _ = await store.open(2)
        await store.save(Checkpoint(Tso(414529105591271429), schema_version=44), restart.lanes)
        await store.save(Checkpoint(Tso(414529105591271430), schema_version=45), restart.lanes)
        rows = mariadb.execute(f"SELECT clusterID, checkPoint FROM `{schema}`.`{name}`")
    finally:
        store.close()
        store.close()
        mariadb.execute(f"DROP DATABASE `{schema}`")
    text = b'{"consistent":false,"commitTS":414529105591271430,"ts-map":{},"schema-version":45}'
    assert rows == [(b"%d" % CLUSTER_ID, text)]


async def test_the_checkpoint_of_a_go_drainer_is_gone_on_from(mariadb: MariaDb) -> None:
    mariadb.execute(
        "create schema if not exists tidb_binlog",
        "create table if not exists tidb_binlog.checkpoint"
        "(clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)",
        f"replace into tidb_binlog.checkpoint values({CLUSTER_ID},"
        """ '{"consistent":true,"commitTS":39,"ts-map":{"master-ts":5},"schema-version":2}')""",
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))",
        "CREATE TABLE s.k (id BIGINT, b BIGINT)",
    )
    assert await again(mariadb) == Checkpoint(Tso(39), True, 2, {"primary-ts": 5})
    assert mariadb.execute(ROWS) == [(b"20", b"20")]


async def test_the_checkpoint_may_be_on_another_server(mariadb: MariaDb) -> None:
    """Another name of the same server, which is what counts here."""
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))",
        "CREATE TABLE s.k (id BIGINT, b BIGINT)",
        "CREATE OR REPLACE USER keeper@'%'",
        "GRANT ALL ON tidb_binlog.* TO keeper@'%'",
    )
    keeper = MySqlServer(mariadb.host, mariadb.port, "keeper", "")
    options = MySqlSinkOptions(lanes=2, checkpoint_server=keeper)

    def sink() -> MySqlSink:
        return MySqlSink(server_of(mariadb), CLUSTER_ID, options, Random(1))

    first = sink()
    async with running(first):
        await first.submit(TXNS[:25])
        await first.flush()
        await first.save(Checkpoint(Tso(34)))
        await first.submit(TXNS[25:])
        await first.flush()
    async with running(sink()) as ahead:
        await ahead.submit(TXNS)
        await ahead.flush()
    assert mariadb.execute(ROWS) == [(b"50", b"50")]
    mariadb.execute("DELETE FROM s.t WHERE id > 19", "DELETE FROM s.k WHERE id > 19")
    _set_row(mariadb, 19)
    async with running(sink()) as back:
        await back.submit(TXNS)
        await back.flush()
    assert mariadb.execute(ROWS) == [(b"50", b"50")]
