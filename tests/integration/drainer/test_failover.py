"""A downstream that went back: another server answers, with a copy of some transactions ago."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.mysql.connection import Done, MySqlServer, SqlSession
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.mysql.store import _Place
from binlogd.drainer.sink import Sink
from binlogd.drainer.statistics import DrainerState
from binlogd.drainer.txn import Skip
from binlogd.errors import ConfigError, DownstreamUnavailable
from binlogd.tidb.model import Column, FieldType, Tp, table_to_json
from binlogd.tso import Tso
from tests.integration.drainer.test_drainer import (
    CREATE,
    DATABASE,
    TABLE,
    Place,
    beginning,
    ddl,
    job,
    rows,
    until,
)
from tests.support.job_history import MemoryHistory
from tests.support.mariadb import MariaDb
from tests.support.mysql_proxy import Fate, MySqlProxy
from tests.support.mysql_rows import NUMBER, apply, dml, inserted, table
from tests.support.mysql_rows import ddl as alter
from tests.support.replay import CLUSTER_ID, server_of

WIDE = replace(TABLE, columns=(*TABLE.columns, Column(3, "w", 2, FieldType(Tp.LONG))))
ALTER = job(3, 70, 5, schema_id=5, table_id=10, TableInfo=json.loads(table_to_json(WIDE)))


class IntoServers(Place):
    """Through a proxy, into whatever server is behind it."""

    port = 0
    is_transactional = False

    def sink(self) -> Sink:
        options = MySqlSinkOptions(lanes=3, is_transactional=self.is_transactional)
        return MySqlSink(
            MySqlServer("127.0.0.1", self.port, "root", ""), CLUSTER_ID, options, Random(1)
        )


@pytest.fixture
def stale(tmp_path: Path) -> Iterator[MariaDb]:
    """The other server; `copied` gives it its data."""
    server = MariaDb(tmp_path / "stale")
    yield server
    server.stop()


@asynccontextmanager
async def replicating(
    place: IntoServers, db: MariaDb, stale: MariaDb
) -> AsyncIterator[tuple[Drainer, MySqlProxy]]:
    """All up to 60 is applied and saved; the copy has what is up to 40."""
    place.history = MemoryHistory([DATABASE, CREATE, ALTER])
    place.source.add(*beginning(), *(rows(ts, [ts]) for ts in range(11, 41)), resolved_ts=40)
    async with MySqlProxy(db.port, lambda _: Fate.PASS).running() as proxy:
        place.port = proxy.port
        async with place.running() as drainer:
            await until(lambda: drainer.statistics().checkpoint.commit_ts == 40)
            db.copy_to(stale)
            place.source.add(*(rows(ts, [ts]) for ts in range(41, 61)), resolved_ts=60)
            await until(lambda: drainer.statistics().checkpoint.commit_ts == 60)
            stale.start()
            yield drainer, proxy


@pytest.mark.parametrize(
    ("moment", "is_transactional"),
    [
        ("idle", False),
        ("before a DDL", True),
        ("under load", False),
        ("under load", True),
        pytest.param("idle", True, marks=pytest.mark.soak),
        pytest.param("before a DDL", False, marks=pytest.mark.soak),
    ],
)
async def test_what_a_copy_lacks_is_sent_again(
    moment: str, mariadb: MariaDb, stale: MariaDb, *, is_transactional: bool
) -> None:
    place = IntoServers()
    place.is_transactional = is_transactional
    async with replicating(place, mariadb, stale) as (drainer, proxy):
        last = 69
        if moment == "idle":
            proxy.switch(stale.port)
            place.source.add(resolved_ts=last)
        elif moment == "before a DDL":
            proxy.switch(stale.port)
            last = 70
            place.source.add(ddl(ALTER, last, "ALTER TABLE `t` ADD COLUMN `w` INT"))
        else:
            last = 400
            for ts in range(61, last + 1):
                place.source.add(rows(ts, [ts]))
                if ts == 80:
                    proxy.switch(stale.port)
                await asyncio.sleep(0)
        await until(lambda: drainer.statistics().sessions_begun > 1)
        await until(lambda: drainer.statistics().checkpoint.commit_ts == last)
        assert drainer.statistics().state is DrainerState.RUNNING
    ids = range(11, last + 1 if moment == "under load" else 61)
    assert stale.execute("SELECT id, v FROM shop.t ORDER BY id") == [
        (b"%d" % n, b"%d" % n) for n in ids
    ]
    columns = stale.execute("SHOW COLUMNS FROM shop.t")
    assert len(columns) == (3 if moment == "before a DDL" else 2)


async def test_a_server_without_anything_is_not_begun_at_the_first_binlog_in_silence(
    mariadb: MariaDb, stale: MariaDb
) -> None:
    place = IntoServers()
    async with replicating(place, mariadb, stale) as (drainer, proxy):
        stale.execute("DROP DATABASE tidb_binlog")
        proxy.switch(stale.port)
        place.source.add(resolved_ts=69)
        await until(lambda: drainer.statistics().state is DrainerState.STUCK)
        error = drainer.statistics().last_error
    assert "commit_ts 60" in error
    assert "checkpoint --set" in error


async def test_what_a_copy_lacks_and_the_log_has_no_more_is_named(
    mariadb: MariaDb, stale: MariaDb
) -> None:
    place = IntoServers()
    async with replicating(place, mariadb, stale) as (drainer, proxy):
        place.source.collect(50)
        proxy.switch(stale.port)
        place.source.add(resolved_ts=69)
        await until(lambda: drainer.statistics().state is DrainerState.STUCK)
        error = drainer.statistics().last_error
    assert "up to commit_ts 50 have been deleted" in error
    assert "after 40" in error


class DiesAtDdl(MySqlSink):
    """Ends when the statement itself is to be executed: the note is written by then."""

    async def _patiently(self, session: SqlSession, statement: bytes) -> Done:
        if statement.startswith(b"ALTER"):
            raise DownstreamUnavailable("died here")
        return await super()._patiently(session, statement)


async def test_a_copy_with_the_note_of_a_ddl_and_without_the_ddl_gets_it(
    mariadb: MariaDb, stale: MariaDb
) -> None:
    mariadb.execute("CREATE DATABASE s", "CREATE TABLE s.t (id BIGINT PRIMARY KEY)")
    event = alter(20, "ALTER TABLE t ADD COLUMN b BIGINT")
    dying = DiesAtDdl(server_of(mariadb), CLUSTER_ID, MySqlSinkOptions(lanes=2), Random(1))
    await dying.open()
    with pytest.raises(DownstreamUnavailable, match="died here"):
        await dying.submit([Skip(Tso(19)), event])
    await dying.close()
    mariadb.copy_to(stale)
    stale.start()
    lost: list[bytes] = []

    def decide(statement: bytes) -> int:
        if not lost and statement.startswith(b"DELETE") and statement.endswith(b"lane = -1"):
            lost.append(statement)
            proxy.switch(stale.port)
            return Fate.CUT_BEFORE
        return Fate.PASS

    async with MySqlProxy(mariadb.port, decide).running() as proxy:
        server = MySqlServer("127.0.0.1", proxy.port, "root", "")
        with suppress(ExceptionGroup):
            await apply(MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=2), Random(1)), event)
        await apply(MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(lanes=2), Random(1)), event)
    assert lost
    assert len(mariadb.execute("SHOW COLUMNS FROM s.t")) == 2
    assert len(stale.execute("SHOW COLUMNS FROM s.t")) == 2
    assert stale.execute("SELECT COUNT(*) FROM tidb_binlog.progress WHERE lane = -1") == [(b"0",)]


# --- the checkpoint on another server than the data --------------------------------------------

T = table(1, "t", NUMBER)
KEYLESS = table(2, "k", NUMBER, has_key=False)
TXNS = [dml(ts, inserted(T, (ts, 1)), inserted(KEYLESS, (ts, 1))) for ts in range(10, 60)]
ROWS = "SELECT (SELECT COUNT(*) FROM s.t), (SELECT COUNT(*) FROM s.k)"
DATA = ("s.t", "s.k", "tidb_binlog.progress")
KEPT = ("tidb_binlog.checkpoint", "tidb_binlog.progress")


@dataclass
class Apart:
    """The data on one server, the checkpoint on another; lives of a sink one after the other."""

    data: MariaDb
    keeper: MariaDb

    async def live(self, upto_ts: int) -> Checkpoint | None:
        """Applies and saves what follows the checkpoint that the sink tells, which is returned."""
        options = MySqlSinkOptions(lanes=2, checkpoint_server=server_of(self.keeper))
        sink = MySqlSink(server_of(self.data), CLUSTER_ID, options, Random(1))
        try:
            stored = await sink.open()
            begin_ts = stored.commit_ts if stored else 0
            async with asyncio.TaskGroup() as group:
                group.create_task(sink.run())
                await sink.submit([each for each in TXNS if begin_ts < each.commit_ts <= upto_ts])
                await sink.flush()
                await sink.save(Checkpoint(Tso(upto_ts), schema_version=3))
                await sink.close()
        finally:
            await sink.close()
        return stored


def back_up(server: MariaDb, *names: str) -> None:
    server.execute("CREATE DATABASE attic")
    for number, name in enumerate(names):
        server.execute(f"CREATE TABLE attic.t{number} SELECT * FROM {name}")


def restore(server: MariaDb, *names: str) -> None:
    for number, name in enumerate(names):
        server.execute(f"DELETE FROM {name}", f"INSERT INTO {name} SELECT * FROM attic.t{number}")


@pytest.fixture
async def apart(mariadb: MariaDb, stale: MariaDb) -> Apart:
    """All up to 30 was applied, and backed up on either server; then all up to 59."""
    stale.directory.mkdir()
    stale.start()
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT)",
        "CREATE TABLE s.k (id BIGINT, b BIGINT)",
    )
    apart = Apart(mariadb, stale)
    await apart.live(30)
    back_up(mariadb, *DATA)
    back_up(stale, *KEPT)
    await apart.live(59)
    return apart


async def test_a_backup_of_the_data_is_filled_up_although_the_checkpoint_elsewhere_is_ahead(
    apart: Apart,
) -> None:
    restore(apart.data, *DATA)
    assert await apart.live(59) == Checkpoint(Tso(30), False, 0)
    assert apart.data.execute(ROWS) == [(b"50", b"50")]


async def test_a_backup_of_the_checkpoint_alone_doubles_nothing(apart: Apart) -> None:
    restore(apart.keeper, *KEPT)
    assert await apart.live(59) == Checkpoint(Tso(30), False, 3)
    assert apart.data.execute(ROWS) == [(b"50", b"50")]


async def test_a_checkpoint_elsewhere_that_is_saved_while_it_is_read_doubles_nothing(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever has just lost the downstream, and saves what it had on its way."""
    apart.keeper.execute("CREATE DATABASE newest")
    for name in KEPT:
        copy = name.replace("tidb_binlog", "newest")
        apart.keeper.execute(f"CREATE TABLE {copy} SELECT * FROM {name}")
    restore(apart.keeper, *KEPT)
    rows = _Place.rows

    async def and_then_it_is_saved(self: _Place, statement: bytes) -> list[tuple[Any, ...]]:
        found = await rows(self, statement)
        if b"checkPoint" in statement:
            monkeypatch.setattr(_Place, "rows", rows)
            for name in KEPT:
                copy = name.replace("tidb_binlog", "newest")
                apart.keeper.execute(f"REPLACE INTO {name} SELECT * FROM {copy}")
        return found

    monkeypatch.setattr(_Place, "rows", and_then_it_is_saved)
    await apart.live(59)
    assert apart.data.execute(ROWS) == [(b"50", b"50")]


async def test_a_lost_server_of_the_checkpoint_doubles_nothing(apart: Apart) -> None:
    apart.keeper.execute("DROP DATABASE tidb_binlog")
    assert await apart.live(59) == Checkpoint(Tso(59))
    assert apart.data.execute(ROWS) == [(b"50", b"50")]


async def test_an_empty_server_for_the_data_is_not_begun_at_the_checkpoint(apart: Apart) -> None:
    apart.data.execute("DROP DATABASE tidb_binlog")
    with pytest.raises(ConfigError, match="checkpoint --set"):
        await apart.live(59)


@pytest.mark.parametrize("set_to", [19, 49])
async def test_a_checkpoint_elsewhere_that_was_set_by_hand_is_obeyed(
    apart: Apart, set_to: int
) -> None:
    restore(apart.data, *DATA)
    apart.data.execute("DELETE FROM s.t", "DELETE FROM s.k")
    old, new = '"commitTS":59', f'"commitTS":{set_to}'
    apart.keeper.execute(
        f"UPDATE tidb_binlog.checkpoint SET checkPoint = REPLACE(checkPoint, '{old}', '{new}')"
    )
    stored = await apart.live(59)
    assert stored is not None
    assert stored.commit_ts == set_to
    assert apart.data.execute(ROWS) == [(b"%d" % (59 - set_to), b"%d" % (59 - set_to))]
