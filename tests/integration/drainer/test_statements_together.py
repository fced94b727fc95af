"""Small statements go out together, and mean what they would mean one by one."""

from __future__ import annotations

import pytest

from binlogd.errors import StatementRejected
from tests.mariadb import MariaDb
from tests.mysql_rows import NUMBER, apply, dml, failing, inserted, table, updated
from tests.replay import running, sink_for

TABLES = [table(number, f"t{number}", NUMBER) for number in range(6)]


@pytest.fixture
def db(mariadb: MariaDb) -> MariaDb:
    mariadb.execute("CREATE DATABASE s")
    for each in TABLES:
        mariadb.execute(f"CREATE TABLE s.{each.info.name} (id BIGINT PRIMARY KEY, b BIGINT)")
    return mariadb


def commands(db: MariaDb, name: str) -> int:
    return int(db.execute(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1] or 0)


async def test_a_value_that_one_table_would_not_take_undoes_the_whole_group(db: MariaDb) -> None:
    db.execute("ALTER TABLE s.t3 MODIFY b TINYINT")
    txn = dml(6, *(inserted(each, (1, 1000)) for each in TABLES))
    error = await failing(sink_for(db, lanes=1), dml(5, inserted(TABLES[3], (7, 7))), txn)
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, "`t3`" in str(error)) == (6, True)
    assert db.execute("SELECT COUNT(*) FROM s.t0") == [(b"0",)]


async def test_statements_that_warn_are_undone_and_done_once(db: MariaDb) -> None:
    db.execute(
        "CREATE TABLE s.audit (b BIGINT)",
        "CREATE TRIGGER s.t AFTER UPDATE ON s.t2 FOR EACH ROW BEGIN"
        " INSERT INTO s.audit VALUES (NEW.b); SIGNAL SQLSTATE '01000'; END",
    )
    sink = sink_for(db, lanes=1)
    changes = [inserted(each, (1, 0)) for each in TABLES]
    steps = [updated(TABLES[2], (1, step), (1, step + 1)) for step in range(20)]
    txns = [dml(5, *changes), *(dml(6 + n, each) for n, each in enumerate(steps))]
    await apply(sink, *txns)
    assert db.execute("SELECT b FROM s.audit") == [(b"%d" % n,) for n in range(1, 21)]
    assert db.execute("SELECT b FROM s.t2") == [(b"20",)]


async def test_what_is_submitted_together_becomes_few_transactions(db: MariaDb) -> None:
    sink = sink_for(db, lanes=2)
    async with running(sink):
        before = commands(db, "Com_commit")
        await sink.submit([dml(5 + n, inserted(TABLES[n % 6], (n, n))) for n in range(600)])
        await sink.flush()
        assert commands(db, "Com_commit") - before <= 8
    found = db.execute(" UNION ALL ".join(f"SELECT id FROM s.t{n}" for n in range(6)))
    assert sorted(int(number or 0) for (number,) in found) == list(range(600))
