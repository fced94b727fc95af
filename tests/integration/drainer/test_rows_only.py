"""`syncer.sync-ddl = false`: no DDL reaches a downstream, by whatever road; its rows do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.files.sink import FileSink
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.kafka.sink import KafkaSink
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedOptions
from binlogd.drainer.restore_original import restore_original
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl
from binlogd.errors import StatementRejected
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.node.replicated import table_filter
from binlogd.settings import config
from binlogd.tidb.kinds import ActionType
from tests.integration.drainer.test_kafka_edges import options
from tests.integration.drainer.test_restore import Replica
from tests.integration.drainer.test_restore_original import (
    LAST_TS,
    load,
    sink_of,
    tables,
)
from tests.integration.drainer.test_restore_original import relay as relay
from tests.support.ddl_upstream import ID, Upstream, table
from tests.support.kafka import Kafka, read_committed
from tests.support.mariadb import MariaDb
from tests.support.pb_reader import decode, file_records
from tests.support.replay import apply_all, server_of
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef

V = ColumnDef("v", tidb.varchar(9))


@pytest.fixture
def disk() -> Iterator[PosixDisk]:
    disk = PosixDisk(threads=2)
    yield disk
    disk.close()


def rows_only() -> TableFilter:
    """As the configuration makes it."""
    return table_filter(config.parse("[syncer]\nsync-ddl = false", "a test").syncer)


def archived(dialect: Dialect = Dialect.MYSQL) -> Upstream:
    """A table that is made, written, truncated, written, altered and dropped upstream."""
    upstream = Upstream(rows_only(), dialect)
    upstream.database("shop", "CREATE DATABASE `shop`")
    made, again = table(10, "t", ID, V), table(11, "t", ID, V)
    upstream.ddl(ActionType.CREATE_TABLE, "CREATE TABLE `t` (`id` INT PRIMARY KEY)", made)
    upstream.insert(10, (1, b"before"))
    upstream.ddl(ActionType.TRUNCATE_TABLE, "TRUNCATE TABLE `t`", again, table_id=10)
    upstream.insert(11, (2, b"behind"))
    upstream.ddl(ActionType.DROP_TABLE, "DROP TABLE `t`", table_id=11)
    upstream.ddl(ActionType.DROP_SCHEMA, "DROP DATABASE `shop`")
    assert all(txn.is_skipped for txn in upstream.txns if isinstance(txn, Ddl))
    return upstream


async def test_a_database_keeps_what_is_truncated_and_dropped_upstream(mariadb: MariaDb) -> None:
    mariadb.execute(
        "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(9))"
    )
    await archived().replicate(mariadb)
    with mariadb.connect().cursor() as cursor:
        cursor.execute("SELECT id, v FROM shop.t ORDER BY id")
        assert cursor.fetchall() == ((b"1", b"before"), (b"2", b"behind"))


async def test_a_replica_in_sqlite_keeps_it(tmp_path: Path, disk: PosixDisk) -> None:
    await apply_all(SqliteSink(tmp_path / "replica.db", disk), iter(archived().txns))
    with closing(sqlite3.connect(tmp_path / "replica.db")) as replica:
        assert replica.execute('SELECT * FROM "shop.t"').fetchall() == [
            (1, "before"),
            (2, "behind"),
        ]


async def test_files_hold_rows_alone(tmp_path: Path, disk: PosixDisk) -> None:
    out = tmp_path / "out"
    sink = FileSink(out, tmp_path / "savepoint", disk=disk, clock=WallClock())
    await apply_all(sink, iter(archived(Dialect.FILE).txns))
    found = [decode(record.payload) for _, record in file_records(out)]
    assert [len(each.events) for each in found] == [1, 1]
    assert not any(each.ddl for each in found)


async def test_messages_hold_rows_alone(kafka: Kafka) -> None:
    sink = KafkaSink(options(kafka, "rows-only"), CanalJson())
    await apply_all(sink, iter(archived().txns))
    found = [str(each.value) for each in await read_committed(kafka.address, "edges")]
    assert sum("behind" in each for each in found) == 1
    assert not any('"isDdl":true' in each for each in found)


async def test_a_restore_executes_none(tmp_path: Path, disk: PosixDisk) -> None:
    replica = Replica(
        disk, tmp_path, "ddl", lambda tracker: Translator(tracker, rows_only(), Dialect.FILE)
    )
    await replica.relay(start=replica.ts(0), end=replica.ts(1))
    await replica.apply("replica", up_to=replica.ts(0.3), saved=replica.ts(0.2))
    done = await replica.restore()
    assert done.to_ts == replica.ts(1)
    found = [decode(payload) for payload in replica.records()]
    assert len(found) > 50
    assert not any(each.ddl for each in found)


async def test_a_restore_from_the_originals_relay_log_executes_none(
    relay: Path, mariadb: MariaDb
) -> None:
    load(mariadb, "drainer_relay_keys.downstream")
    before = tables(mariadb)
    applier = NamedApplier(server_of(mariadb), NamedOptions(is_safe=True), Random(1))
    with pytest.raises(StatementRejected, match=r"rows of keys\.loaded; create the table"):
        await restore_original(
            relay_directory=relay,
            sink=sink_of(mariadb),
            applier=applier,
            table_filter=rows_only(),
            to_ts=LAST_TS,
        )
    assert applier.counters.ddls == 0
    assert tables(mariadb).keys() == before.keys(), "nothing was made, nothing dropped"
