"""What the MySQL sink promises beside equal tables: refusals, barriers, what it leaves alone."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.mysql.connection import Done, MySqlServer, SqlSession
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.txn import Dml, Skip
from binlogd.errors import (
    ConfigError,
    DownstreamUnavailable,
    DownstreamWentBack,
    StatementRejected,
)
from binlogd.tso import Tso
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


@pytest.fixture
def db(mariadb: MariaDb) -> MariaDb:
    mariadb.execute(
        "CREATE DATABASE s", "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))"
    )
    return mariadb


async def test_a_row_that_is_refused_is_named_by_its_transaction_and_not_by_its_values(
    db: MariaDb,
) -> None:
    db.execute("ALTER TABLE s.t ADD CHECK (b < 100)")
    txns = [dml(ts, inserted(T, (ts, ts, b"secret"))) for ts in range(50, 60)]
    sink = sink_for(db, lanes=1)
    error = await failing(
        sink, *txns, dml(61, inserted(T, (61, 100, b"secret"))), dml(62, inserted(T, (1, 1, b"")))
    )
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, error.code) == (61, 4025)
    assert "`s`.`t`" in str(error)
    assert "ignore-txn-commit-ts" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("MODIFY c VARCHAR(3)", 1406),
        ("MODIFY b TINYINT", 1264),
        ("MODIFY c VARCHAR(20) CHARSET ascii", 1366),
    ],
)
async def test_a_column_that_would_change_the_value_stops_instead(
    db: MariaDb, change: str, code: int
) -> None:
    db.execute(f"ALTER TABLE s.t {change}")
    sink = sink_for(db, lanes=1)
    fits = dml(5, inserted(T, (1, 1, b"abc")))
    error = await failing(sink, fits, dml(6, inserted(T, (2, 1000, "naïve".encode()))))
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, error.code in (code, 1265)) == (6, True)
    assert "naïve" not in str(error)
    assert db.execute("SELECT id FROM s.t WHERE id > 1") == []


async def test_a_missing_table_is_named(db: MariaDb) -> None:
    error = await failing(sink_for(db), dml(5, inserted(table(2, "gone", NUMBER), (1, 1))))
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, error.code) == (5, 1146)
    assert "s.gone" in str(error)


async def test_a_row_above_the_packet_limit_says_what_to_raise(db: MariaDb) -> None:
    db.execute("ALTER TABLE s.t MODIFY c LONGTEXT", "SET GLOBAL max_allowed_packet = 1048576")
    try:
        big = dml(5, inserted(T, (1, 1, b"x" * (2 << 20))))
        error = await failing(sink_for(db), dml(4, inserted(T, (2, 2, b""))), big)
    finally:
        db.execute("SET GLOBAL max_allowed_packet = 268435456")
    assert isinstance(error, StatementRejected)
    assert error.commit_ts == 5
    assert "max_allowed_packet" in str(error)


async def test_a_downstream_that_cannot_be_reached_is_unavailable() -> None:
    server = MySqlServer("127.0.0.1", 1, "root", "hidden")
    sink = MySqlSink(server, CLUSTER_ID, MySqlSinkOptions(), Random(1))
    with pytest.raises(DownstreamUnavailable, match=r"127\.0\.0\.1:1") as raised:
        await sink.open()
    await sink.close()
    assert "hidden" not in str(raised.value) + repr(server)


async def test_the_checkpoint_comes_back_and_progress_may_be_ahead_of_it(db: MariaDb) -> None:
    sink = sink_for(db, lanes=2)
    async with running(sink):
        await sink.submit([dml(10, inserted(T, (1, 1, b"a")))])
        await sink.flush()
        await sink.save(Checkpoint(Tso(10), schema_version=3, ts_map={"primary-ts": 9}))
        await sink.submit([dml(20, *(inserted(T, (n, n, b"b")) for n in range(2, 30)))])
        await sink.flush()
        assert sink.applied_ts() == 20
    again = sink_for(db, lanes=2)
    assert await again.open() == Checkpoint(Tso(10), False, 3, {"primary-ts": 9})
    assert again.applied_ts() == 20
    await again.close()


async def test_skipped_transactions_move_the_mark_without_a_statement(db: MariaDb) -> None:
    sink = sink_for(db)
    async with running(sink):
        await sink.submit([Skip(Tso(5)), Skip(Tso(9))])
        assert sink.applied_ts() == 9
        assert sink.statistics().rows_applied == 0


async def test_two_sinks_of_one_upstream_do_not_write_beside_each_other(db: MariaDb) -> None:
    old = sink_for(db, lanes=1)
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the second stops the first
        async with running(old):
            await old.submit([dml(5, inserted(T, (1, 1, b"")))])
            await old.flush()
            await apply(sink_for(db, lanes=1), dml(6, inserted(T, (2, 2, b""))))
            await old.submit([dml(6, inserted(T, (2, 2, b"")))])
            await old.flush()
    assert raised.group_contains(ConfigError, match="another Drainer", depth=None)


async def test_a_sink_whose_lanes_another_laid_out_anew_moves_none_of_them(db: MariaDb) -> None:
    """Where all stood level, lane 0 of two and lane 0 of four stand at one place."""
    old = sink_for(db, lanes=2)
    txns = [dml(6 + key, inserted(T, (key, 1, b""))) for key in range(40)]
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the second stops the first
        async with running(old):
            await apply(sink_for(db, lanes=4), Skip(Tso(5)))
            await old.submit(txns)
            await old.flush()
    assert raised.group_contains(DownstreamWentBack, depth=None)
    assert db.execute("SELECT COUNT(*) FROM s.t") == [(b"0",)]


# --- DDL -------------------------------------------------------------------------------------


async def test_ddl_stands_between_what_comes_before_and_after(db: MariaDb) -> None:
    wide = table(1, "t", NUMBER, TEXT, NUMBER)
    await apply(
        sink_for(db),
        dml(5, inserted(T, (1, 1, b"a"))),
        ddl(6, "ALTER TABLE t ADD COLUMN d BIGINT DEFAULT 7"),
        dml(7, inserted(wide, (2, 2, b"b", 8))),
        ddl(8, "ALTER TABLE t DROP COLUMN b", further="ALTER TABLE t DROP COLUMN c"),
    )
    assert db.execute("SELECT * FROM s.t ORDER BY id") == [(b"1", b"7"), (b"2", b"8")]


async def test_a_checkpoint_does_not_pass_a_ddl_of_which_a_note_says_that_it_is_at_work(
    db: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, end_ddl, applied = sink_for(db), MySqlStore.end_ddl, list[Tso]()

    async def watched(*arguments: Any) -> Any:
        applied.append(sink.applied_ts())
        return await end_ddl(*arguments)

    monkeypatch.setattr(MySqlStore, "end_ddl", watched)
    await apply(sink, dml(5, inserted(T, (1, 1, b"a"))), ddl(6, "ALTER TABLE t ADD INDEX (b)"))
    assert applied == [5]


async def test_a_ddl_that_is_refused_is_shown_with_the_way_past_it(db: MariaDb) -> None:
    error = await failing(sink_for(db), ddl(6, "ALTER TABLE t ADD COLUMN"))
    assert isinstance(error, StatementRejected)
    assert (error.commit_ts, error.code) == (6, 1064)
    assert "ALTER TABLE t ADD COLUMN" in str(error)


async def test_a_ddl_whose_outcome_is_there_already_is_passed_over(db: MariaDb) -> None:
    sink = sink_for(db)
    await apply(
        sink,
        ddl(5, "CREATE TABLE t (id BIGINT)"),
        ddl(6, "DROP TABLE u", name="u"),
        dml(7, inserted(T, (1, 1, b""))),
    )
    assert db.execute("SELECT COUNT(*) FROM s.t") == [(b"1",)]


SWAP = "RENAME TABLE one TO x, two TO one, x TO two"


@pytest.mark.parametrize("was_done", [False, True])
@pytest.mark.parametrize(
    ("statement", "name", "probe"),
    [
        ("ALTER TABLE t ADD INDEX (b)", "t", "SHOW INDEX FROM s.t"),
        ("ALTER TABLE t ADD COLUMN d BIGINT", "t", "SHOW COLUMNS FROM s.t"),
        ("ALTER TABLE t ADD PRIMARY KEY (b)", "u", "SHOW INDEX FROM s.t"),
        (SWAP, "two", "SELECT * FROM s.one"),
        ("CREATE TABLE n (a INT)", "n", "SHOW TABLES FROM s"),
        ("DROP TABLE t", "t", "SHOW TABLES FROM s"),
    ],
)
async def test_a_ddl_that_may_have_been_done_before_a_crash_is_done_once(
    statement: str, name: str, probe: str, db: MariaDb, *, was_done: bool
) -> None:
    """The note that it was begun is there; whether it was done only the table tells."""
    db.execute(
        "CREATE TABLE s.one (a INT)",
        "CREATE TABLE s.two (a INT)",
        "INSERT INTO s.one VALUES (1)",
        "ALTER TABLE s.t DROP PRIMARY KEY" if "PRIMARY" in statement else "DO 1",
    )
    event = ddl(6, statement, name)
    sink = DiesAtDdl(server_of(db), CLUSTER_ID, MySqlSinkOptions(lanes=2), Random(1))
    await failing(sink, Skip(Tso(5)), event)
    if was_done:
        db.execute("USE s", statement)
    await apply(sink_for(db, lanes=2), event)
    there = db.execute(probe)
    db.reset()
    db.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))",
        "CREATE TABLE s.one (a INT)",
        "CREATE TABLE s.two (a INT)",
        "INSERT INTO s.one VALUES (1)",
        "ALTER TABLE s.t DROP PRIMARY KEY" if "PRIMARY" in statement else "DO 1",
        "USE s",
        statement,
    )
    assert there == db.execute(probe)


class DiesAtDdl(MySqlSink):
    """Ends right before a DDL is sent, as if killed there."""

    async def _patiently(self, session: SqlSession, statement: bytes) -> Done:
        raise DownstreamUnavailable("as if killed")


# --- tables that must not be merged ------------------------------------------------------------


async def test_children_survive_the_replacement_of_their_parent(db: MariaDb) -> None:
    db.execute(
        "CREATE TABLE s.p (id BIGINT PRIMARY KEY, b BIGINT)",
        "CREATE TABLE s.ch (id BIGINT PRIMARY KEY, b BIGINT,"
        " FOREIGN KEY (b) REFERENCES s.p (id) ON DELETE CASCADE)",
    )
    parent, child = table(2, "p", NUMBER), table(3, "ch", NUMBER)
    await apply(
        sink_for(db),
        dml(5, inserted(parent, (1, 0)), inserted(child, (10, 1), (11, 1))),
        dml(6, updated(parent, (1, 0), (1, 5))),
        dml(7, deleted(child, (11, 1))),
    )
    assert db.execute("SELECT * FROM s.p") == [(b"1", b"5")]
    assert db.execute("SELECT * FROM s.ch") == [(b"10", b"1")]


async def test_columns_that_only_the_downstream_has_keep_their_values(db: MariaDb) -> None:
    db.execute("ALTER TABLE s.t ADD COLUMN note VARCHAR(20) DEFAULT 'new'")
    await apply(sink_for(db), dml(5, inserted(T, (1, 1, b"a"), (2, 2, b"b"))))
    db.execute("UPDATE s.t SET note = 'mine' WHERE id = 1")
    await apply(
        sink_for(db),
        dml(6, updated(T, (1, 1, b"a"), (1, 9, b"a"))),
        dml(7, deleted(T, (2, 2, b"b")), inserted(T, (3, 3, None))),
    )
    assert db.execute("SELECT id, b, note FROM s.t ORDER BY id") == [
        (b"1", b"9", b"mine"),
        (b"3", b"3", b"new"),
    ]


async def test_triggers_see_the_statements_of_the_upstream(db: MariaDb) -> None:
    db.execute(
        "CREATE TABLE s.log (what VARCHAR(10))",
        "CREATE TRIGGER s.i AFTER INSERT ON s.t FOR EACH ROW INSERT INTO s.log VALUES ('i')",
        "CREATE TRIGGER s.u AFTER UPDATE ON s.t FOR EACH ROW INSERT INTO s.log VALUES ('u')",
        "CREATE TRIGGER s.d AFTER DELETE ON s.t FOR EACH ROW INSERT INTO s.log VALUES ('d')",
    )
    await apply(
        sink_for(db),
        dml(5, inserted(T, (1, 1, b"a"))),
        dml(6, updated(T, (1, 1, b"a"), (1, 2, b"a"))),
        dml(7, deleted(T, (1, 2, b"a"))),
    )
    assert db.execute("SELECT * FROM s.log") == [(b"i",), (b"u",), (b"d",)]


async def test_equal_rows_of_a_table_without_a_key_are_counted(db: MariaDb) -> None:
    db.execute("CREATE TABLE s.k (id BIGINT, b VARCHAR(20) COLLATE utf8mb4_general_ci)")
    keyless = table(4, "k", TEXT, has_key=False)
    row = (1, b"a")
    await apply(
        sink_for(db),
        dml(5, inserted(keyless, row, row, row, (1, b"A"), (1, b"a "))),
        dml(6, deleted(keyless, (1, b"A"))),
        dml(7, updated(keyless, row, (2, b"z"))),
        dml(8, deleted(keyless, row)),
    )
    found = db.execute("SELECT id, CAST(b AS BINARY) FROM s.k ORDER BY id, b")
    assert sorted(found, key=str) == sorted([(b"1", b"a"), (b"1", b"a "), (b"2", b"z")], key=str)


async def test_a_transaction_above_the_limits_is_cut_and_taken_up_in_its_middle(
    db: MariaDb,
) -> None:
    db.execute("CREATE TABLE s.k (id BIGINT, b BIGINT)")
    keyless = table(4, "k", NUMBER, has_key=False)
    limits = Limits(changes_max=10, bytes_max=1 << 20, cut_changes_max=100)
    rows = [(n, n) for n in range(2000)]
    big = dml(5, inserted(keyless, *rows), inserted(T, *((n, n, b"x") for n in range(2000))))
    pieces: list[int] = []
    begun_at: list[tuple[Tso, int]] = []
    while len(pieces) < 5:
        with pytest.raises(ExceptionGroup):  # noqa: PT012 - what the group of the run ends with
            async with (
                running(sink_for(db, 2, limits=limits)) as sink,
                asyncio.TaskGroup() as group,
            ):
                stored = db.execute("SELECT MAX(commit_ts) FROM tidb_binlog.progress")[0][0]
                begun_at.append((sink.statistics().furthest_ts, int(stored or 0)))
                group.create_task(_fail_when_cut_above(max(pieces, default=0), db, pieces))
                await sink.submit([big])
    assert (5, 5) in begun_at, "a part of it was there, and no lane had it whole"
    assert all(told == stored for told, stored in begun_at)
    await apply(sink_for(db, 2, limits=limits), big)
    assert db.execute("SELECT COUNT(*), COUNT(DISTINCT id) FROM s.k") == [(b"2000", b"2000")]
    assert db.execute("SELECT COUNT(*) FROM s.t") == [(b"2000",)]


async def _fail_when_cut_above(piece: int, db: MariaDb, pieces: list[int]) -> None:
    found = piece
    async with asyncio.timeout(60):
        while found <= piece:  # ends when a lane has committed one more: the look holds up the loop
            await asyncio.sleep(0)
            found = int(db.execute("SELECT MAX(piece) FROM tidb_binlog.progress")[0][0] or 0)
    pieces.append(found)
    raise RuntimeError("abandoned")


# --- one lane ----------------------------------------------------------------------------------


async def test_one_lane_shows_only_states_that_the_upstream_had(db: MariaDb) -> None:
    """Money moves between accounts; whoever looks sees the same sum."""
    accounts = dict.fromkeys(range(20), 100)
    rng = Random(3)
    await apply(sink_for(db, 1), dml(5, inserted(T, *((n, 100, b"") for n in accounts))))
    sums: list[tuple[bytes | None, ...]] = []
    sink = sink_for(db, 1, limits=Limits(changes_max=7))
    async with running(sink):
        for ts in range(6, 400):
            one, other = rng.sample(sorted(accounts), 2)
            changes = []
            for account, amount in ((one, -5), (other, 5)):
                old = accounts[account]
                accounts[account] = old + amount
                changes.append(updated(T, (account, old, b""), (account, old + amount, b"")))
            await sink.submit([Dml(Tso(ts), Tso(ts), 1, tuple(changes))])
            if ts % 7 == 0:
                sums += db.execute("SELECT SUM(b) FROM s.t")
                await asyncio.sleep(0)
        await sink.flush()
    assert set(sums) == {(b"2000",)}
    assert set(db.execute("SELECT id, b FROM s.t")) == {
        (b"%d" % n, b"%d" % amount) for n, amount in accounts.items()
    }
