"""Whole transactions in source order, written by several connections, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from random import Random

import pymysql
import pytest

from binlogd.drainer.mysql.connection import SqlSession
from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.txn import Dml, Txn
from binlogd.errors import DownstreamUnavailable, StatementRejected
from tests.support.mariadb import MariaDb
from tests.support.mysql_rows import NUMBER, TEXT, dml, failing, inserted, table, updates
from tests.support.recordings_reader import RECORDINGS, compare
from tests.support.replay import BATCH, SKIPPED, apply_all, running, server_of, sink_for, translated

SMALL = Limits(changes_max=40, bytes_max=1 << 16, cut_changes_max=80, cut_bytes_max=1 << 17)
MEDIUM = Limits(changes_max=200, bytes_max=1 << 20, cut_changes_max=600)
LIMITS = {"keys": SMALL, "few": SMALL, "ddl": SMALL, "mixed": MEDIUM}
T = table(1, "t", NUMBER, TEXT)
LEDGER = table(2, "ledger", NUMBER, has_key=False)
ACCOUNTS = 30


@pytest.fixture
def db(mariadb: MariaDb) -> MariaDb:
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))",
        "CREATE TABLE s.ledger (id BIGINT, b BIGINT)",
    )
    return mariadb


def ordered(db: MariaDb, limits: Limits | None = None, connections: int = 3) -> MySqlSink:
    return sink_for(db, connections, limits=limits, is_transactional=True)


def _txns(name: str) -> Iterator[Txn]:
    return translated(RECORDINGS / name, SKIPPED[name])


def _differences(name: str, mariadb: MariaDb) -> list[object]:
    connection = mariadb.connect()
    try:
        return list(compare(RECORDINGS / name, connection, SKIPPED[name]))
    finally:
        connection.close()


# --- what it ends with -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddl", pytest.param("mixed", marks=pytest.mark.soak)])
async def test_a_recording_arrives_exactly_in_whole_transactions(
    name: str, mariadb: MariaDb
) -> None:
    await apply_all(ordered(mariadb, LIMITS[name]), _txns(name))
    assert _differences(name, mariadb) == []
    rows = mariadb.execute("SELECT lane, lanes, piece FROM tidb_binlog.progress")
    assert rows == [(b"0", b"1", b"0")]


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
async def test_connections_that_are_killed_leave_no_half_of_a_transaction(
    name: str, mariadb: MariaDb
) -> None:
    rng, lives = Random(12), 1
    chance = 0.002 if name == "mixed" else 0.05
    while lives:  # until all was applied by one life of a sink after the other
        sink = ordered(mariadb, LIMITS[name])
        try:
            async with running(sink):
                after = sink.applied_ts()
                for txn in _txns(name):
                    await sink.submit([txn])
                    if txn.commit_ts > after and rng.random() < chance:
                        _kill_one(mariadb, rng)
                await sink.flush()
                break
        except* DownstreamUnavailable:
            lives += 1
    assert _differences(name, mariadb) == []


class Abandoned(Exception):
    """As if the process had been killed."""


async def _abandon_after(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    raise Abandoned


@pytest.mark.parametrize(
    ("name", "lives"),
    [
        ("few", 6),
        *(pytest.param(name, n, marks=pytest.mark.soak) for name, n in (("keys", 6), ("ddl", 8))),
    ],
)
async def test_the_order_may_change_with_every_life(
    name: str, lives: int, mariadb: MariaDb
) -> None:
    """Lanes first level out, then the transactions are kept whole; and back."""
    rng = Random(lives)
    abandoned = 0
    for _ in range(lives):
        sink = sink_for(
            mariadb,
            lanes=rng.choice([1, 3, 4]),
            limits=LIMITS[name],
            is_transactional=rng.random() < 0.6,
        )
        try:
            async with running(sink), asyncio.TaskGroup() as group:
                group.create_task(_abandon_after(rng.randrange(20, 3000)))
                after = sink.applied_ts()
                txns = (txn for txn in _txns(name) if txn.commit_ts > after)
                while batch := list(islice(txns, rng.randrange(1, BATCH))):
                    await sink.submit(batch)
                await sink.flush()
        except* Abandoned:
            abandoned += 1
    await apply_all(ordered(mariadb), _txns(name))
    assert abandoned > lives // 4
    assert _differences(name, mariadb) == []


# --- what a reader sees ------------------------------------------------------------------------


def _transfers(first_ts: int, count: int, rng: Random) -> list[Dml]:
    """Money moves between accounts, each time with a line in a ledger that has no key."""
    money = dict.fromkeys(range(ACCOUNTS), 100)
    txns = [dml(first_ts, inserted(T, *((n, 100, b"") for n in money)))]
    for step in range(1, count):
        pairs = []
        for account, amount in zip(rng.sample(sorted(money), 2), (-5, 5), strict=True):
            old = money[account]
            money[account] = old + amount
            pairs.append(((account, old, b""), (account, old + amount, b"")))
        txns.append(dml(first_ts + step, inserted(LEDGER, (step, 5)), updates(T, *pairs)))
    return txns


async def test_a_reader_sees_only_states_that_the_upstream_had(db: MariaDb) -> None:
    txns = _transfers(5, 1500, Random(3))
    seen: list[tuple[int, int, int]] = []
    is_over = asyncio.Event()

    async def look() -> None:
        session = await SqlSession.connect(server_of(db))
        while not is_over.is_set():
            found = await session.rows(
                b"SELECT (SELECT SUM(b) FROM s.t), (SELECT COUNT(*) FROM s.ledger),"
                b" (SELECT COALESCE(MAX(id), 0) FROM s.ledger)"
            )
            seen.extend((int(a or 0), int(b), int(c)) for a, b, c in found)
        session.close()

    sink = ordered(db, Limits(changes_max=20))
    async with running(sink), asyncio.TaskGroup() as group:
        group.create_task(look())
        for begin in range(0, len(txns), 10):
            await sink.submit(txns[begin : begin + 10])
        await sink.flush()
        is_over.set()
    assert len(set(seen)) > 5
    assert {total for total, _, _ in seen} <= {0, ACCOUNTS * 100}
    assert all(count == last for _, count, last in seen)
    assert db.execute("SELECT SUM(b) FROM s.t") == [(b"%d" % (ACCOUNTS * 100),)]


async def test_a_large_transaction_is_written_in_pieces_and_seen_as_a_whole(db: MariaDb) -> None:
    limits = Limits(changes_max=10, cut_changes_max=300)
    rows = [(n, n) for n in range(3000)]
    txns = [
        dml(5, inserted(T, (9000, 1, b""))),
        dml(6, inserted(LEDGER, *rows), inserted(T, *((n, n, b"x") for n in range(3000)))),
        dml(7, inserted(T, (9001, 1, b""))),
    ]
    seen: set[int] = set()
    sink = ordered(db, limits)
    async with running(sink), asyncio.TaskGroup() as group:
        is_over = asyncio.Event()

        async def look() -> None:
            session = await SqlSession.connect(server_of(db))
            while not is_over.is_set():
                found = await session.rows(b"SELECT COUNT(*) FROM s.ledger")
                seen.add(int(found[0][0]))
                assert sink.applied_ts() < 6 or int(found[0][0]) in (0, 3000)
            session.close()

        group.create_task(look())
        await sink.submit(txns)
        await sink.flush()
        assert sink.applied_ts() == 7
        is_over.set()
    assert seen <= {0, 3000}
    assert db.execute("SELECT COUNT(*), COUNT(DISTINCT id) FROM s.ledger") == [(b"3000", b"3000")]
    assert db.execute("SELECT COUNT(*) FROM s.t") == [(b"3002",)]


async def test_a_large_transaction_that_ends_with_a_piece_is_committed(db: MariaDb) -> None:
    sink = ordered(db, Limits(changes_max=10, cut_changes_max=256))
    async with running(sink):
        await sink.submit([dml(5, inserted(LEDGER, *((n, n) for n in range(512))))])
        await sink.flush()
        assert sink.applied_ts() == 5
        await sink.submit([dml(6, inserted(LEDGER, (1, 1)))])
        await sink.flush()
    assert db.execute("SELECT COUNT(*) FROM s.ledger") == [(b"513",)]


# --- groups that meet ------------------------------------------------------------------------


async def test_groups_that_meet_in_the_server_give_way_to_the_first(db: MariaDb) -> None:
    """A lock of somebody else stands in for one that two groups have of each other."""
    txns = [
        dml(10 + n, inserted(T, *((n * 50 + each, each, b"") for each in range(50))))
        for n in range(40)
    ]
    holder = db.connect()
    sink = ordered(db, Limits(changes_max=50))
    try:
        async with running(sink):
            with holder.cursor() as cursor:  # somebody else holds a row that the second needs
                cursor.execute("START TRANSACTION")
                cursor.execute("INSERT INTO s.t (id, b, c) VALUES (75, 0, 'other')")
                async with asyncio.TaskGroup() as group:
                    group.create_task(sink.submit(txns))
                    while not sink.statistics().retries:  # noqa: ASYNC110 - until one gave way
                        await asyncio.sleep(0.05)
                    cursor.execute("ROLLBACK")
            await sink.flush()
            assert sink.statistics().retries_by_kind["contention"] >= 1
    finally:
        holder.close()
    assert db.execute("SELECT COUNT(*) FROM s.t") == [(b"2000",)]


async def test_a_refused_row_is_named_and_all_before_it_is_there(db: MariaDb) -> None:
    db.execute("ALTER TABLE s.t ADD CHECK (b < 100)")
    txns = [dml(ts, inserted(T, (ts, ts % 50, b"secret"))) for ts in range(50, 150)]
    error = await failing(
        ordered(db, Limits(changes_max=8)), *txns, dml(151, inserted(T, (1, 100, b"secret")))
    )
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, error.code) == (151, 4025)
    assert "secret" not in str(error)
