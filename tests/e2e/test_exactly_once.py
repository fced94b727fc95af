"""kill -9 of binlogd and of MariaDB at any moment: nothing lost, nothing twice, no halves."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import pytest

from tests.support import bank
from tests.support.appliance import Appliance, into_mariadb
from tests.support.faults import RecordProperty, counted
from tests.support.mariadb import MariaDb

SEEN_AT_ONCE = (
    "SELECT (SELECT SUM(money) FROM bank.account), (SELECT COUNT(*) FROM bank.ledger),"
    " (SELECT MAX(n) FROM bank.ledger)"
)
Seen = tuple[bytes | None, ...]


@contextmanager
def both_killed_at_random(
    appliance: Appliance, server: MariaDb, rng: random.Random, kills: int
) -> Iterator[None]:
    """SIGKILL of the one or the other, and a new start, beside the body and to the last kill."""

    def kill_and_start() -> None:
        pause = threading.Event()
        for kill in range(kills):
            pause.wait(rng.uniform(0.2, 1.2))
            if kill % 2 == 0:
                server.restart()
            else:
                appliance.kill()
                appliance.start(is_ready=False)

    killer = threading.Thread(target=kill_and_start)
    killer.start()
    try:
        yield
    finally:
        killer.join()


@contextmanager
def watched(server: MariaDb, seen: set[Seen]) -> Iterator[None]:
    """Reads what is there all the time, as far as there is somebody to ask."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            with (
                suppress(pymysql.err.MySQLError),  # it was killed just now
                server.connect() as connection,
                connection.cursor() as cursor,
            ):
                while not over.wait(0.003):
                    cursor.execute(SEEN_AT_ONCE)
                    seen.update(cursor.fetchall())

    reader = threading.Thread(target=look)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()


def survives(
    directory: Path, server: MariaDb, consistency: str, *, txns: int, kills: int, seed: int
) -> set[Seen]:
    """What was seen on the way. At the end each change is there, once."""
    server.execute(*bank.create())
    syncer = into_mariadb(server, extra=f'consistency = "{consistency}"')
    appliance = Appliance(directory, history=bank.history(), syncer=syncer)
    seen: set[Seen] = set()
    rng = random.Random(seed)
    try:
        appliance.start()
        with watched(server, seen), both_killed_at_random(appliance, server, rng, kills):
            # however fast the machine is, there is something to see on the way
            asyncio.run(bank.feed(bank.transfers(txns, seed), appliance.target, pace_s=0.001))
        appliance.wait_until_applied(bank.commit_ts_of(txns - 1))
        assert appliance.stop() == 0
    finally:
        appliance.close()
    last = b"%d" % (txns - 1)
    assert server.execute(SEEN_AT_ONCE) == [(b"%d" % bank.TOTAL, last, last)]
    assert server.execute("SELECT COUNT(DISTINCT n) FROM bank.ledger") == [(last,)]
    return seen


def expect_no_halves(seen: set[Seen]) -> None:
    """All states that were seen are states of the bank."""
    assert len(seen) > 3
    assert {total for total, _, _ in seen} <= {None, b"%d" % bank.TOTAL}
    assert all(count == (last or b"0") for _, count, last in seen)


@contextmanager
def kills_counted(record_property: RecordProperty, consistency: str, kills: int) -> Iterator[None]:
    """For the report."""
    target = f"binlogd and MariaDB, by {consistency}"
    with counted(record_property, fault="kill -9", target=target) as cases:
        yield
        cases.number = kills


@pytest.mark.soak
def test_whole_transactions_survive_kills_of_both_sides(
    tmp_path: Path, mariadb: MariaDb, record_property: RecordProperty
) -> None:
    with kills_counted(record_property, "transaction", 2):
        seen = survives(tmp_path, mariadb, "transaction", txns=600, kills=2, seed=1)
        expect_no_halves(seen)


def test_lanes_survive_kills_of_both_sides(
    tmp_path: Path, mariadb: MariaDb, record_property: RecordProperty
) -> None:
    with kills_counted(record_property, "key", 2):
        survives(tmp_path, mariadb, "key", txns=800, kills=2, seed=2)


@pytest.mark.soak
@pytest.mark.parametrize("consistency", ["key", "transaction"])
@pytest.mark.parametrize("seed", range(10))
def test_both_modes_survive_many_kills_of_both_sides(
    consistency: str, seed: int, tmp_path: Path, mariadb: MariaDb, record_property: RecordProperty
) -> None:
    with kills_counted(record_property, consistency, 16):
        seen = survives(tmp_path, mariadb, consistency, txns=8_000, kills=16, seed=seed)
        if consistency == "transaction":
            expect_no_halves(seen)
