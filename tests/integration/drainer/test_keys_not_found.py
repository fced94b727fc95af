"""Rows of a table with a key that went behind binlogd's back: told when they are changed next."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.drainer.rows.parts import SLICE_ROWS, Limits
from binlogd.drainer.sink import RowNotFoundRule
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.drainer.txn import Dml, TableChange
from binlogd.errors import RowNotFound
from binlogd.host.disk import PosixDisk
from binlogd.tidb.columns import Value
from binlogd.tidb.model import ActionType
from binlogd.wire.mutation import Mutation
from tests.support.ddl_upstream import Upstream
from tests.support.mariadb import MariaDb
from tests.support.replay import CLUSTER_ID, apply_all, running, server_of, sink_for
from tests.support.replica_reader import replica_rows
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef, TableDef, build_table

Row = list[Value]
_T = TypeVar("_T")
NUMBER = ColumnDef("n", tidb.integer("BIGINT"), not_null=True)
VALUE = ColumnDef("v", tidb.integer("BIGINT"))
LETTER = ColumnDef("k", tidb.enum("a", "b", "c"), not_null=True)
TEXT = ColumnDef("k", tidb.varchar(20), not_null=True)
CREATES = {
    "one": "CREATE TABLE `t` (`n` BIGINT NOT NULL PRIMARY KEY, `v` BIGINT)",
    "pair": "CREATE TABLE `t` (`k` ENUM('a','b','c') NOT NULL, `n` BIGINT NOT NULL, `v` BIGINT,"
    " PRIMARY KEY (`k`, `n`))",
    "several": "CREATE TABLE `t` (`n` BIGINT NOT NULL PRIMARY KEY, `v` BIGINT, UNIQUE KEY (`v`))",
    "inexact": "CREATE TABLE `t` (`k` VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY,"
    " `v` BIGINT)",
    "unique": "CREATE TABLE `t` (`n` BIGINT NOT NULL, `v` BIGINT, UNIQUE KEY `un` (`n`))",
}
DEFINITIONS = {
    "one": TableDef("shop", "t", (NUMBER, VALUE), ("n",)),
    "pair": TableDef("shop", "t", (LETTER, NUMBER, VALUE), ("k", "n")),
    "several": TableDef("shop", "t", (NUMBER, VALUE), ("n",), unique=(("v",),)),
    "inexact": TableDef("shop", "t", (TEXT, VALUE), ("k",)),
    "unique": TableDef("shop", "t", (NUMBER, VALUE), unique=(("n",),)),
    "none": TableDef("shop", "t", (NUMBER, VALUE)),
}

CREATE_WITHOUT_A_KEY = "CREATE TABLE `t` (`n` BIGINT NOT NULL, `v` BIGINT)"
ONE_BY_ONE = Limits(changes_worth=1, changes_max=1, cut_changes_max=1)


def _key(kind: str, n: int) -> Row:
    """Of the n-th row."""
    keys: dict[str, Row] = {"pair": [n % 3 + 1, n], "inexact": [b"Key %d" % n]}
    return keys.get(kind, [n])


def _row(kind: str, n: int, v: int) -> Row:
    return [*_key(kind, n), v]


def _upstream(kind: str, rows: int = 9) -> Upstream:
    made = Upstream()
    made.database("shop", "CREATE DATABASE `shop`;")
    create = CREATES.get(kind, CREATE_WITHOUT_A_KEY)
    made.ddl(ActionType.CREATE_TABLE, create, build_table(DEFINITIONS[kind], 10))
    made.insert(10, *(_row(kind, n, n) for n in range(rows)))
    return made


def _twice(rows: Iterable[_T]) -> Iterator[_T]:
    return (row for row in rows for _ in range(2))


def _gone_and_gone_again(upstream: Upstream, kind: str) -> Dml:
    """The row 1, by one transaction."""
    upstream.delete(10, _row(kind, 1, 1))
    upstream.insert(10, _row(kind, 1, 1))
    inserts, deletes = upstream.txns.pop(), upstream.txns.pop()
    assert isinstance(inserts, Dml)
    assert isinstance(deletes, Dml)
    (change,), (other,) = deletes.changes, inserts.changes
    rows = Mutation(10, other.mutation.inserted, [], [*change.mutation.deleted] * 2, b"\4\0\4")
    made = (TableChange(change.table, rows),)
    return Dml(inserts.start_ts, inserts.commit_ts, inserts.schema_version, made)


def _gone(server: MariaDb, *values: int) -> None:
    server.execute("DELETE FROM shop.t WHERE v IN (" + ",".join(map(str, values)) + ")")


def _values(server: MariaDb) -> list[int]:
    return sorted(int(v or b"") for (v,) in server.execute("SELECT v FROM shop.t"))


async def _stopped(sink: MySqlSink, upstream: Upstream) -> RowNotFound:
    with pytest.raises(BaseExceptionGroup) as caught:
        await apply_all(sink, iter(upstream.txns))
    return _found_in(caught.value)


def _found_in(group: BaseExceptionGroup[BaseException]) -> RowNotFound:
    error: BaseException | None = group.subgroup(RowNotFound)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RowNotFound)
    return error


@pytest.mark.parametrize("kind", list(CREATES))
async def test_a_deletion_of_a_row_that_is_gone_stops_with_its_key_and_the_ways_on(
    each_server: MariaDb, kind: str
) -> None:
    upstream = _upstream(kind)
    await upstream.replicate(each_server)
    _gone(each_server, 4)
    upstream.delete(10, *(_row(kind, n, n) for n in (1, 4, 7)))
    commit_ts = upstream.txns[-1].commit_ts
    sink = sink_for(each_server, lanes=1)
    error = await _stopped(sink, upstream)
    shown = {"pair": "k = 2, n = 4", "inexact": "k = 'Key 4'"}.get(kind, "n = 4")
    assert (error.table, error.commit_ts, error.verb) == ("shop.t", commit_ts, "deletes")
    assert error.values == shown
    assert "syncer.row-not-found" in error.todo
    assert error.skip_ts == commit_ts
    assert sink.applied_ts() < commit_ts
    assert _values(each_server) == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("kind", "is_transactional"),
    [("one", False), ("one", True), ("pair", False), ("inexact", False)],
)
async def test_an_update_of_a_row_that_is_gone_stops(
    each_server: MariaDb, kind: str, *, is_transactional: bool
) -> None:
    upstream = _upstream(kind)
    await upstream.replicate(each_server)
    _gone(each_server, 4)
    upstream.update(10, *((_row(kind, n, n), _row(kind, n, n + 100)) for n in (1, 4, 7)))
    commit_ts = upstream.txns[-1].commit_ts
    upstream.update(10, (_row(kind, 4, 104), _row(kind, 4, 204)))
    sink = sink_for(each_server, 1, is_transactional=is_transactional)
    error = await _stopped(sink, upstream)
    assert (error.table, error.commit_ts, error.verb) == ("shop.t", commit_ts, "updates")
    assert _values(each_server) == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("one", RowNotFoundRule.REPAIR),
        ("pair", RowNotFoundRule.COUNT),
        ("inexact", RowNotFoundRule.COUNT),
    ],
)
async def test_rows_that_are_gone_are_counted_and_get_what_the_upstream_has(
    each_server: MariaDb, kind: str, rule: RowNotFoundRule
) -> None:
    upstream = _upstream(kind)
    await upstream.replicate(each_server)
    _gone(each_server, 2, 3, 4)
    upstream.delete(10, *(_row(kind, n, n) for n in (1, 2)))
    upstream.update(10, *((_row(kind, n, n), _row(kind, n, n + 100)) for n in (3, 5)))
    sink = sink_for(each_server, row_not_found=rule)
    await apply_all(sink, iter(upstream.txns))
    assert sink.statistics().rows_not_found == 2
    assert _values(each_server) == [0, 6, 7, 8, 103, 105]


async def test_one_that_is_missing_among_many_is_found_whatever_else_its_part_does(
    mariadb: MariaDb,
) -> None:
    """Rows that become what they were count once for the server, as those that are missing do."""
    upstream = _upstream("one", rows=600)
    await upstream.replicate(mariadb)
    _gone(mariadb, 300)
    for n in range(100):
        upstream.update(10, (_row("one", n, n), _row("one", n, -n - 1)))
        upstream.update(10, (_row("one", n, -n - 1), _row("one", n, n)))
    upstream.insert(10, *(_row("one", n, n) for n in range(1000, 1100)))
    upstream.update(10, *((_row("one", n, n), _row("one", n, n + 5000)) for n in range(200, 400)))
    upstream.delete(10, *(_row("one", n, n) for n in range(1000, 1050)))
    error = await _stopped(sink_for(mariadb, lanes=1), upstream)
    assert error.values == "n = 300"


async def _unhurt(
    server: MariaDb, upstream: Upstream, sink: Callable[[], MySqlSink], held: Sequence[int]
) -> None:
    made = sink()
    await apply_all(made, iter(upstream.txns))
    assert made.statistics().rows_not_found == 0
    assert _values(server) == sorted(held)


@pytest.mark.parametrize(
    ("kind", "is_transactional"),
    [*((kind, False) for kind in CREATES), ("one", True), ("several", True)],
)
async def test_keys_that_come_and_go_and_wander_are_no_finding(
    each_server: MariaDb, kind: str, *, is_transactional: bool
) -> None:
    """One at a time, in parts that hold all of it, and in pieces of a transaction."""
    upstream = _upstream(kind)
    await upstream.replicate(each_server)

    def row(n: int, v: int) -> Row:
        return _row(kind, n, v)

    upstream.insert(10, row(20, 20), row(21, 21))
    upstream.delete(10, row(20, 20))  # born and gone
    upstream.update(10, (row(21, 21), row(22, 22)))  # born, and called otherwise
    upstream.delete(10, row(22, 22))
    upstream.update(10, (row(1, 1), row(31, 1)), (row(31, 1), row(1, 1)))  # and back
    upstream.update(10, (row(2, 2), row(32, 2)))  # 2 goes, and comes again
    upstream.insert(10, row(2, 42))
    upstream.update(10, (row(3, 3), row(3, 43)))
    upstream.update(10, (row(3, 43), row(3, 3)))  # as it was
    upstream.update(10, (row(5, 5), row(33, 5)), (row(6, 6), row(5, 6)), (row(33, 5), row(6, 5)))
    upstream.delete(10, row(7, 7))
    upstream.insert(10, row(7, 7))  # as it was
    upstream.delete(10, row(8, 8))
    upstream.insert(10, row(8, 48))
    upstream.delete(10, row(8, 48))
    held = [0, 1, 2, 42, 3, 4, 5, 6, 7]
    for limits in (Limits(), ONE_BY_ONE):
        each_server.execute("DROP DATABASE shop")
        each_server.execute("DROP DATABASE tidb_binlog")
        await _unhurt(
            each_server,
            upstream,
            lambda limits=limits: sink_for(  # type: ignore[misc]
                each_server, 2, limits=limits, is_transactional=is_transactional
            ),
            held,
        )


@pytest.mark.parametrize("kind", ["one", "several", "inexact"])
async def test_rows_that_are_written_twice_are_no_finding_wherever_a_transaction_is_divided(
    mariadb: MariaDb, kind: str
) -> None:
    """As TiDB writes them of a plain table that is being partitioned. All of it is cut, between
    the two of a row as well."""
    rows = 2 * SLICE_ROWS
    upstream = _upstream(kind, rows)
    upstream.delete(10, _row(kind, 0, 0), *_twice(_row(kind, n, n) for n in range(1, rows)))
    upstream.insert(10, *(_row(kind, n, n) for n in range(rows)))
    pairs = ((_row(kind, n, n), _row(kind, n + rows, n)) for n in range(1, rows))
    upstream.update(10, (_row(kind, 0, 0), _row(kind, 0, 0)), *_twice(pairs))
    for limits in (Limits(), ONE_BY_ONE):
        sink = sink_for(mariadb, 2, limits=limits)
        await _unhurt(mariadb, upstream, lambda sink=sink: sink, range(rows))  # type: ignore[misc]
        mariadb.execute("DROP DATABASE shop")
        mariadb.execute("DROP DATABASE tidb_binlog")


@pytest.mark.parametrize("limits", [Limits(), ONE_BY_ONE])
async def test_of_rows_without_a_key_one_goes_that_is_written_twice(
    mariadb: MariaDb, limits: Limits
) -> None:
    """They have an equal one, which TiDB tells from them by a hidden id."""
    count = 2 * SLICE_ROWS
    upstream = _upstream("none", 0)
    upstream.insert(10, *_twice(_row("none", n, n) for n in range(count)))
    upstream.delete(10, *_twice(_row("none", n, n) for n in range(1, SLICE_ROWS)))
    pairs = [(_row("none", n, n), _row("none", n, -n)) for n in range(SLICE_ROWS, count)]
    upstream.update(10, (_row("none", 0, 0), _row("none", 0, -count)), *_twice(pairs))
    held = [-count, *range(count), *range(1 - count, 1 - SLICE_ROWS)]
    await _unhurt(mariadb, upstream, lambda: sink_for(mariadb, 2, limits=limits), held)


@pytest.mark.parametrize("kind", ["one", "inexact", "none"])
async def test_a_row_that_goes_comes_again_and_goes_is_not_written_twice(
    mariadb: MariaDb, kind: str
) -> None:
    """Downstream, no key tells it: the second deletion holds the same bytes as the first."""
    upstream = _upstream(kind, 2)
    await upstream.replicate(mariadb)
    upstream.txns.append(_gone_and_gone_again(upstream, kind))
    await _unhurt(mariadb, upstream, lambda: sink_for(mariadb), [0])


async def test_what_comes_once_more_after_the_checkpoint_was_set_back_is_no_finding(
    mariadb: MariaDb,
) -> None:
    upstream = _upstream("one")
    back_to = upstream.txns[-1].commit_ts
    upstream.delete(10, _row("one", 1, 1))
    upstream.update(10, (_row("one", 2, 2), _row("one", 22, 2)))

    async def saved() -> None:
        async with running(sink_for(mariadb)) as sink:
            await sink.save(Checkpoint(upstream.txns[-1].commit_ts))

    await upstream.replicate(mariadb)
    await saved()
    for way in ("by hand", "by command"):
        if way == "by hand":
            text = Checkpoint(back_to).to_json().decode()
            mariadb.execute(f"UPDATE tidb_binlog.checkpoint SET checkPoint = '{text}'")
        else:
            store = MySqlStore(server_of(mariadb), "tidb_binlog", CLUSTER_ID)
            await store.state()
            await store.set_to(Checkpoint(back_to), upstream.txns[-1].commit_ts)
            store.close()
        async with running(sink_for(mariadb)) as sink:  # and dies before it has come far
            assert sink.applied_ts() <= back_to
        await _unhurt(mariadb, upstream, lambda: sink_for(mariadb), [0, 2, 3, 4, 5, 6, 7, 8])
        await saved()
    _gone(mariadb, 5)
    upstream.delete(10, _row("one", 5, 5))
    assert (await _stopped(sink_for(mariadb), upstream)).values == "n = 5"


async def test_what_a_copy_may_hold_already_is_no_finding(mariadb: MariaDb) -> None:
    """It was loaded before the first start, and is newer than the commit_ts that was given."""
    upstream = _upstream("one")
    await upstream.replicate(mariadb)
    mariadb.execute("DROP DATABASE tidb_binlog")
    _gone(mariadb, 4)
    copied_from = len(upstream.txns)
    upstream.delete(10, _row("one", 4, 4))
    now_ts = upstream.txns[-1].commit_ts
    upstream.delete(10, _row("one", 5, 5))

    def sink() -> MySqlSink:
        made = sink_for(mariadb)
        made._options = replace(made._options, now_ts=now_ts)
        return made

    behind = Upstream()
    behind.txns = upstream.txns[copied_from:]
    await _unhurt(mariadb, behind, sink, [0, 1, 2, 3, 6, 7, 8])


async def test_what_an_operator_left_out_stops_nothing_by_key(mariadb: MariaDb) -> None:
    upstream = _upstream("one")
    left_out = upstream.txns.pop()
    upstream.update(10, (_row("one", 1, 1), _row("one", 1, 11)))
    upstream.delete(10, _row("one", 2, 2))
    sink = sink_for(mariadb, passed_over={left_out.commit_ts})
    await apply_all(sink, iter(upstream.txns))
    assert _values(mariadb) == [11]
    assert sink.statistics().rows_not_found == 2


async def test_where_others_write_downstream_keys_are_not_looked_after(mariadb: MariaDb) -> None:
    upstream = _upstream("one")
    await upstream.replicate(mariadb)
    _gone(mariadb, 1)
    upstream.delete(10, _row("one", 1, 1))
    await _unhurt(
        mariadb, upstream, lambda: sink_for(mariadb, tells_missing=False), [0, *range(2, 9)]
    )


async def test_a_table_that_rolls_nothing_back_is_not_looked_after(mariadb: MariaDb) -> None:
    upstream = _upstream("one")
    await upstream.replicate(mariadb)
    mariadb.execute("ALTER TABLE shop.t ENGINE = MyISAM")
    _gone(mariadb, 1)
    upstream.delete(10, _row("one", 1, 1))
    await _unhurt(mariadb, upstream, lambda: sink_for(mariadb), [0, *range(2, 9)])


# --- a replica in one file ---------------------------------------------------------------------


def _file_upstream(kind: str = "one") -> Upstream:
    made = Upstream(dialect=Dialect.FILE)
    made.database("shop", "CREATE DATABASE `shop`;")
    create = CREATES.get(kind, CREATE_WITHOUT_A_KEY)
    made.ddl(ActionType.CREATE_TABLE, create, build_table(DEFINITIONS[kind], 10))
    made.insert(10, *(_row(kind, n, n) for n in range(9)))
    return made


@pytest.mark.parametrize("verb", ["updates", "deletes"])
async def test_a_replica_goes_by_the_same_rule(verb: str, tmp_path: Path) -> None:
    upstream, path, disk = _file_upstream(), tmp_path / "replica.db", PosixDisk(threads=1)
    await apply_all(SqliteSink(path, disk), iter(upstream.txns))
    with closing(sqlite3.connect(path)) as by_hand, by_hand:
        by_hand.execute('DELETE FROM "shop.t" WHERE n = 4')
    if verb == "updates":
        upstream.update(10, *((_row("one", n, n), _row("one", n, n + 100)) for n in (3, 4)))
    else:
        upstream.delete(10, _row("one", 3, 3), _row("one", 4, 4))
    behind = upstream.txns[3:]
    with pytest.raises(BaseExceptionGroup) as caught:
        await apply_all(SqliteSink(path, disk), iter(behind))
    error = _found_in(caught.value)
    assert (error.table, error.commit_ts, error.verb) == ("shop.t", behind[0].commit_ts, verb)
    assert error.values == "n = 4"
    sink = SqliteSink(path, disk, passed_over={1})
    await apply_all(sink, iter(behind))
    disk.close()
    held = [0, 1, 2, 5, 6, 7, 8, *([103, 104] if verb == "updates" else [])]
    assert replica_rows(path, "shop.t", "v") == held
    assert sink.statistics().rows_not_found == 1


@pytest.mark.parametrize("kind", ["one", "none"])
async def test_a_replica_changes_once_what_is_written_twice(kind: str, tmp_path: Path) -> None:
    upstream, path, disk = _file_upstream(kind), tmp_path / "replica.db", PosixDisk(threads=1)
    upstream.txns.append(_gone_and_gone_again(upstream, kind))
    if kind == "none":
        upstream.insert(10, *(_row(kind, n, n) for n in range(9)))
    upstream.delete(10, *_twice(_row(kind, n, n) for n in range(2, 5)))
    upstream.update(10, *_twice((_row(kind, n, n), _row(kind, -n, -n)) for n in range(5, 9)))
    sink = SqliteSink(path, disk)
    await apply_all(sink, iter(upstream.txns))
    disk.close()
    held = [-8, -7, -6, -5, 0] if kind == "one" else [-8, -7, -6, -5, 0, 0, *range(1, 9)]
    assert Counter(replica_rows(path, "shop.t", "v")) == Counter(held)
    assert sink.statistics().rows_not_found == 0


async def test_a_table_that_a_replica_did_not_see_from_its_beginning_is_not_looked_after(
    tmp_path: Path,
) -> None:
    """Its older rows were never there; what it holds is still what is written to it, once it is
    emptied upstream."""
    upstream, path, disk = _file_upstream(), tmp_path / "replica.db", PosixDisk(threads=1)
    upstream.update(10, (_row("one", 3, 3), _row("one", 3, 103)))
    upstream.delete(10, _row("one", 4, 4))
    await apply_all(SqliteSink(path, disk), iter(upstream.txns[3:]))
    assert replica_rows(path, "shop.t", "v") == [103]
    upstream.ddl(
        ActionType.TRUNCATE_TABLE,
        "TRUNCATE TABLE `t`",
        build_table(DEFINITIONS["one"], 11),
        table_id=10,
    )
    upstream.insert(11, _row("one", 5, 5))
    upstream.update(11, (_row("one", 6, 6), _row("one", 6, 106)))
    with pytest.raises(BaseExceptionGroup) as caught:
        await apply_all(SqliteSink(path, disk), iter(upstream.txns[5:]))
    disk.close()
    assert _found_in(caught.value).values == "n = 6"
