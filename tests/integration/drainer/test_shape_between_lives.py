"""The downstream of a table, or how it is written, changes while lanes stand apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.rows.shape import Shapes
from binlogd.drainer.txn import Dml, TableChange
from binlogd.tidb.model import TableAt
from tests.integration.drainer.test_downstream_faults import holding, until
from tests.support.mariadb import MariaDb
from tests.support.mysql_rows import NUMBER, apply, ddl, deleted, dml, inserted, table, updated
from tests.support.replay import running, sink_for

T = table(1, "t", NUMBER)
U = table(2, "u", NUMBER)
BLOCKED = 1000
"""A row of `t` that each transaction of the history changes; who locks it holds back its lane."""


class World(NamedTuple):
    """What the history leaves behind."""

    txns: Sequence[Dml]
    t: dict[int, int]
    u: dict[int, int]


def history(seed: int) -> World:
    rng = Random(seed)
    t, u = {BLOCKED: 0}, dict[int, int]()
    txns = [dml(10, inserted(T, (BLOCKED, 0)))]
    for ts in range(11, 60):
        changes: list[TableChange] = [updated(T, (BLOCKED, t[BLOCKED]), (BLOCKED, ts))]
        t[BLOCKED] = ts
        changes += [_changed(T, t, ts, rng), _changed(U, u, ts, rng)]
        txns.append(dml(ts, *changes))
    return World(txns, t, u)


def _changed(at: TableAt, rows: dict[int, int], value: int, rng: Random) -> TableChange:
    number = rng.randrange(20)
    old = rows.pop(number, None)
    if old is not None and rng.random() < 0.3:
        return deleted(at, (number, old))
    rows[number] = value
    if old is None:
        return inserted(at, (number, value))
    if rng.random() < 0.3 and number + 20 not in rows:
        rows[number + 20] = rows.pop(number)
        return updated(at, (number, old), (number + 20, value))
    return updated(at, (number, old), (number, value))


async def stopped_while_apart(sink: MySqlSink, db: MariaDb, txns: Sequence[Dml]) -> None:
    lock = f"SELECT * FROM s.t WHERE id = {BLOCKED} FOR UPDATE"
    async with holding(db, "START TRANSACTION", lock), running(sink):
        await sink.submit(txns)
        await until(lambda: are_apart(sink))


def are_apart(sink: MySqlSink) -> bool:
    """Whether all but the lane that waits for the lock has come to the end."""
    lanes = sink.statistics().lane_ts
    return max(lanes) == 59 and max(lanes) - min(lanes) > 40


ORIGINAL = Shapes(original=TableFilter())
TRIGGER = "CREATE TRIGGER s.r BEFORE UPDATE ON s.t FOR EACH ROW SET NEW.b = NEW.b"
CHANGES = {
    "a trigger comes": ((), TRIGGER, Shapes(), Shapes()),
    "a trigger goes": ((TRIGGER,), "DROP TRIGGER s.r", Shapes(), Shapes()),
    "a trigger and a key come": (
        (),
        f"{TRIGGER}; ALTER TABLE s.t ADD UNIQUE (b, id)",
        Shapes(),
        Shapes(),
    ),
    "a column comes": ((), "ALTER TABLE s.t ADD COLUMN note INT", Shapes(), Shapes()),
    "a column goes": (
        ("ALTER TABLE s.t ADD COLUMN note INT",),
        "ALTER TABLE s.t DROP COLUMN note",
        Shapes(),
        Shapes(),
    ),
    "a key comes": ((), "ALTER TABLE s.t ADD UNIQUE (b, id)", Shapes(), Shapes()),
    "a key goes": (
        ("ALTER TABLE s.t ADD UNIQUE k (b, id)",),
        "ALTER TABLE s.t DROP KEY k",
        Shapes(),
        Shapes(),
    ),
    "the key goes": ((), "ALTER TABLE s.t DROP PRIMARY KEY", Shapes(), Shapes()),
    "versions come": ((), "ALTER TABLE s.t ADD SYSTEM VERSIONING", Shapes(), Shapes()),
    "the words of the original come": ((), "DO 1", Shapes(), ORIGINAL),
    "the words of the original go": ((), "DO 1", ORIGINAL, Shapes()),
}


@pytest.fixture
def db(mariadb: MariaDb) -> MariaDb:
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT)",
        "CREATE TABLE s.u (id BIGINT PRIMARY KEY, b BIGINT)",
    )
    return mariadb


@pytest.mark.parametrize("lives", [pytest.param(1, marks=pytest.mark.soak), 2])
@pytest.mark.parametrize("change", CHANGES)
async def test_no_row_is_left_out_or_written_twice(change: str, lives: int, db: MariaDb) -> None:
    before, between, shapes, later = CHANGES[change]
    world = history(lives)
    db.execute(*before, "DO 1")
    await apply(sink_for(db, lanes=2, shapes=shapes), world.txns[0])
    await stopped_while_apart(sink_for(db, lanes=2, shapes=shapes), db, world.txns)
    db.execute(*between.split("; "))
    if lives == 2:
        await stopped_while_apart(sink_for(db, lanes=2, shapes=later), db, world.txns)
    more = dml(70, inserted(T, (99, 70)), updated(T, (BLOCKED, 59), (BLOCKED, 70)))
    sink = sink_for(db, lanes=3, shapes=later)
    await apply(sink, *world.txns, more)
    there = {**world.t, 99: 70, BLOCKED: 70}
    assert rows_of(db, "t") == sorted(there.items())
    assert rows_of(db, "u") == sorted(world.u.items())


def rows_of(db: MariaDb, name: str) -> list[tuple[int, int]]:
    found = db.execute(f"SELECT id, b FROM s.{name} ORDER BY id, b")
    return [(int(number or 0), int(value or 0)) for number, value in found]


async def test_lanes_are_level_before_a_table_gets_others_in_one_life(db: MariaDb) -> None:
    world = history(3)
    passed_over = replace(ddl(60, "ALTER TABLE t ADD COLUMN c INT"), is_skipped=True)
    sink = sink_for(db, lanes=2)
    async with running(sink):
        await sink.submit(world.txns)
        await sink.flush()
        db.execute(TRIGGER)
        await sink.submit([passed_over, dml(61, updated(T, (BLOCKED, 59), (BLOCKED, 61)))])
        await sink.flush()
    positions = db.execute("SELECT MIN(commit_ts) FROM tidb_binlog.progress WHERE lane >= 0")
    assert int(positions[0][0] or 0) >= 60
    assert rows_of(db, "t") == sorted({**world.t, BLOCKED: 61}.items())


async def test_what_is_noted_of_a_table_goes_with_its_ddl_and_with_level_lanes(db: MariaDb) -> None:
    world, noted = history(4), "SELECT table_id FROM tidb_binlog.shapes ORDER BY 1"
    await apply(sink_for(db, lanes=2), *world.txns)
    assert db.execute(noted) == [(b"1",), (b"2",)]
    await apply(sink_for(db, lanes=2), *world.txns, ddl(60, "ALTER TABLE u ADD KEY (b)", "u", 2))
    assert (b"2",) not in db.execute(noted)
    level = sink_for(db, lanes=2)
    await level.open()
    await level.close()
    assert db.execute(noted) == []
