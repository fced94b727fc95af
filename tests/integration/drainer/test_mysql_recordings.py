"""What a real TiDB did arrives in MariaDB and MySQL, also when connections and servers die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from random import Random

import pymysql
import pytest

from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.rows.shape import Shapes
from binlogd.drainer.txn import Txn
from binlogd.errors import DownstreamUnavailable
from tests.support.deployment import grants
from tests.support.mariadb import MariaDb
from tests.support.mysql_server import MySql
from tests.support.recordings_reader import RECORDINGS, Difference, compare
from tests.support.replay import BATCH, SKIPPED, apply_all, running, sink_for, translated

SMALL = Limits(changes_max=50, bytes_max=1 << 16, cut_changes_max=80, cut_bytes_max=1 << 17)
"""Many small parts, and transactions cut in pieces: many places to be interrupted at."""
MEDIUM = Limits(changes_max=400, bytes_max=1 << 20, cut_changes_max=600)
TINY = Limits(changes_worth=1, changes_max=1)
"""Nothing merged away that a statement must do."""
LIMITS = {"keys": SMALL, "few": SMALL, "ddl": SMALL, "mixed": MEDIUM, "windows": MEDIUM}


def _differences(name: str, mariadb: MariaDb) -> list[Difference]:
    connection = mariadb.connect()
    try:
        return compare(RECORDINGS / name, connection, SKIPPED[name])
    finally:
        connection.close()


def _txns(name: str) -> Iterator[Txn]:
    return translated(RECORDINGS / name, SKIPPED[name])


@pytest.mark.parametrize(
    "name",
    [
        *("types", "fuzz"),
        pytest.param("ddl", marks=pytest.mark.soak),  # in short: by a user of few rights, below
        pytest.param("keys", marks=pytest.mark.soak),  # in short: by eight lanes, below
        pytest.param("mixed", marks=pytest.mark.soak),  # in short: test_demo has such a workload
        pytest.param("large", marks=pytest.mark.soak),  # in short: test_large_transactions
        # in short: DDL beside rows in test_sqlite_recordings
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("race", "windows")),
    ],
)
async def test_a_recording_arrives_exactly(name: str, mariadb: MariaDb) -> None:
    sink = sink_for(mariadb)
    await apply_all(sink, _txns(name))
    assert _differences(name, mariadb) == []
    assert sink.statistics().rows_not_found == 0


@pytest.mark.parametrize(
    "name",
    [
        *("types", "few", "ddl"),
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in ("keys", "mixed", "large", "race", "windows", "fuzz")
        ),
    ],
)
async def test_a_recording_arrives_exactly_in_mysql(name: str, mysql: MySql) -> None:
    limits = TINY if name in ("keys", "few") else Limits()
    sink = sink_for(mysql, limits=limits)
    await apply_all(sink, _txns(name))
    assert _differences(name, mysql) == []
    assert sink.statistics().rows_not_found == 0


@pytest.mark.parametrize(
    ("name", "lanes"),
    [
        *(("few", 1), ("keys", 8)),
        *(pytest.param("keys", lanes, marks=pytest.mark.soak) for lanes in (1, 2)),
        *(pytest.param("mixed", lanes, marks=pytest.mark.soak) for lanes in (1, 2, 8)),
    ],
)
async def test_any_number_of_lanes_gives_the_same_tables(
    name: str, lanes: int, mariadb: MariaDb
) -> None:
    sink = sink_for(mariadb, lanes)
    await apply_all(sink, _txns(name))
    assert _differences(name, mariadb) == []
    assert sink.statistics().rows_not_found == 0


@pytest.mark.parametrize(
    ("name", "is_safe"),
    [
        *(("types", False), ("few", False), ("few", True)),
        *(pytest.param("keys", each, marks=pytest.mark.soak) for each in (False, True)),
        pytest.param("fuzz", False, marks=pytest.mark.soak),  # in short: each type once, in types
    ],
)
async def test_the_original_s_statements_give_the_same_tables(
    name: str, mariadb: MariaDb, *, is_safe: bool
) -> None:
    shapes = Shapes(TableFilter(ignored_databases=()), safe_mode=is_safe)
    sink = sink_for(mariadb, limits=Limits(changes_max=20), shapes=shapes)
    await apply_all(sink, _txns(name))
    assert _differences(name, mariadb) == []


def _kill_one(mariadb: MariaDb, rng: Random) -> None:
    found = mariadb.execute(
        "SELECT id FROM information_schema.processlist WHERE id <> connection_id()"
        " AND user = 'root' ORDER BY id"
    )
    if found:
        with suppress(pymysql.err.OperationalError):  # it has just ended by itself
            mariadb.execute(f"KILL CONNECTION {int(rng.choice(found)[0] or 0)}")


@pytest.mark.parametrize(
    "name", ["few", *(pytest.param(name, marks=pytest.mark.soak) for name in ("keys", "mixed"))]
)
async def test_connections_that_are_killed_lose_and_double_nothing(
    name: str, mariadb: MariaDb
) -> None:
    rng = Random(11)
    chance = 0.002 if name == "mixed" else 0.05
    txns = _txns(name)
    while True:  # until all was applied by one life of a sink after the other
        sink = sink_for(mariadb, limits=LIMITS[name], seed=rng.randrange(100))
        try:
            async with running(sink):
                after = sink.applied_ts()
                for txn in txns:
                    await sink.submit([txn])
                    if txn.commit_ts > after and rng.random() < chance:
                        _kill_one(mariadb, rng)
                await sink.flush()
                break
        except* DownstreamUnavailable:
            txns = _txns(name)
    assert _differences(name, mariadb) == []


class Abandoned(Exception):
    """As if the process had been killed."""


async def _abandon_after(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    raise Abandoned


async def _live_for(turns: int, name: str, sink: MySqlSink, rng: Random) -> None:
    async with running(sink), asyncio.TaskGroup() as group:
        group.create_task(_abandon_after(turns))
        after = sink.applied_ts()
        txns = (txn for txn in _txns(name) if txn.commit_ts > after)
        while batch := list(islice(txns, rng.randrange(1, BATCH))):
            await sink.submit(batch)
        await sink.flush()


@pytest.mark.parametrize(
    ("name", "lives"),
    [
        ("keys", 20),
        *(
            pytest.param(name, n, marks=pytest.mark.soak)
            for name, n in (("windows", 3), ("ddl", 15), ("mixed", 6))
        ),
    ],
)
async def test_a_sink_abandoned_at_any_point_is_taken_up_where_it_was(
    name: str, lives: int, mariadb: MariaDb
) -> None:
    rng = Random(lives)
    abandoned = 0
    for _ in range(lives):
        sink = sink_for(mariadb, lanes=rng.choice([1, 3, 4]), limits=LIMITS[name])
        try:
            await _live_for(rng.randrange(20, 3000), name, sink, rng)
        except* Abandoned:
            abandoned += 1
    await apply_all(sink_for(mariadb), _txns(name))
    assert abandoned > lives // 4
    assert _differences(name, mariadb) == []


async def test_a_server_that_is_killed_and_comes_back_is_caught_up_with(mariadb: MariaDb) -> None:
    sink = sink_for(mariadb)
    async with running(sink):
        for count, txn in enumerate(_txns("few")):
            await sink.submit([txn])
            if count % 90 == 89:
                mariadb.restart()
                await sink.flush()
        await sink.flush()
    assert _differences("few", mariadb) == []


@pytest.mark.parametrize("name", [pytest.param("keys", marks=pytest.mark.soak), "ddl"])
async def test_the_user_of_the_grants_that_are_shipped_is_enough(
    name: str, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.execute("CREATE OR REPLACE USER binlogd@'%' IDENTIFIED BY 'of its own'", *grants())
    with monkeypatch.context() as patch:
        patch.setattr(mariadb, "user", "binlogd")
        patch.setattr(mariadb, "password", "of its own")
        sink = sink_for(mariadb)
    await apply_all(sink, _txns(name))
    assert _differences(name, mariadb) == []
    ours = {"host": "127.0.0.1", "port": mariadb.port, "user": "binlogd", "password": "of its own"}
    with (
        closing(mariadb.connect()),  # of another user
        closing(pymysql.connect(**ours, ssl_disabled=True)) as session,
        session.cursor() as cursor,
    ):
        for question in SEEN_WITH_THE_GRANTS:
            cursor.execute(question)
            assert cursor.fetchall(), question


SEEN_WITH_THE_GRANTS = (
    "SELECT table_id FROM information_schema.innodb_sys_tables",
    "SELECT id FROM information_schema.processlist WHERE user <> 'binlogd'",
)
"""What `catalog.py` tells a DDL that has run from one that has not by: without PROCESS, nothing."""
