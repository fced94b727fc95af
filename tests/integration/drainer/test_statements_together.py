"""Small statements go out together, and mean what they would mean one by one."""

from __future__ import annotations

import pytest

from binlogd.drainer.txn import TableChange
from binlogd.errors import StatementRejected
from binlogd.tidb.model import TableAt
from binlogd.tidb.row import encode_delete
from binlogd.wire.mutation import Mutation
from tests.support.mariadb import MariaDb
from tests.support.mysql_rows import NUMBER, apply, dml, failing, inserted, table, updated
from tests.support.replay import running, sink_for
from tests.workload.schema import ColumnDef, TableDef, build_table, integer

FIRST, SECOND = (ColumnDef(name, integer("BIGINT"), not_null=True) for name in "ab")
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


async def test_a_row_of_a_key_of_two_columns_is_deleted_beside_a_lock_on_another(
    mariadb: MariaDb,
) -> None:
    pair = build_table(TableDef("s", "p", (FIRST, SECOND), ("a", "b")), 9)
    values = {1: 7, 2: 70}
    handle = None if pair.is_common_handle else 1
    gone = Mutation(9, [], [], [encode_delete(pair, values, handle=handle)], b"\x04")
    change = TableChange(TableAt("s", pair, 1, None, {}, may_lack_columns=False), gone)
    mariadb.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.p (a BIGINT, b BIGINT, PRIMARY KEY (a, b))",
        "INSERT INTO s.p SELECT seq, seq * 10 FROM s.seq_1_to_1000",
        "SET GLOBAL innodb_lock_wait_timeout = 1",
    )
    other = mariadb.connect()
    try:
        with other.cursor() as cursor:
            cursor.execute("START TRANSACTION")
            cursor.execute("SELECT * FROM s.p WHERE a = 3 AND b = 30 FOR UPDATE")
            sink = sink_for(mariadb, lanes=2)
            await apply(sink, dml(5, change))
    finally:
        other.close()
        mariadb.execute("SET GLOBAL innodb_lock_wait_timeout = 50")
    assert sink.statistics().retries == 0
    assert mariadb.execute("SELECT COUNT(*), SUM(a = 7) FROM s.p") == [(b"999", b"0")]
