"""A row that a server does not find by its values: found all the same, or told."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.sink import RowNotFoundRule
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.errors import RowNotFound
from binlogd.host.disk import PosixDisk
from binlogd.tidb.columns import Value
from binlogd.tidb.model import ActionType
from tests.support.ddl_upstream import Upstream, table
from tests.support.mariadb import MariaDb
from tests.support.replay import apply_all, sink_for
from tests.support.replica_reader import replica_rows
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef

MEMBERS = tuple(f"m{n}" for n in range(64))
LAST = 1 << 63
COLUMNS = (
    ColumnDef("n", tidb.integer()),
    ColumnDef("f", tidb.real("FLOAT")),
    ColumnDef("s", tidb.set_of(*MEMBERS)),
    ColumnDef("e", tidb.enum("a", "b")),
    ColumnDef("j", tidb.json()),
)
NEAR_ZERO = 1.401298464324817e-45
CREATE = (
    "CREATE TABLE `t` (`n` INT, `f` FLOAT, `s` SET("
    + ",".join(f"'{each}'" for each in MEMBERS)
    + "), `e` ENUM('a','b'), `j` JSON)"
)
TALL = "SELECT n, f + 0e0, CAST(s AS UNSIGNED), e + 0, j FROM shop.t ORDER BY 1, 2, 3, 4, 5"


@pytest.fixture
def upstream() -> Upstream:
    return _upstream()


def _upstream(dialect: Dialect = Dialect.MYSQL) -> Upstream:
    made = Upstream(dialect=dialect)
    made.database("shop", "CREATE DATABASE `shop`;")
    made.ddl(ActionType.CREATE_TABLE, CREATE, table(10, "t", *COLUMNS, primary=""))
    return made


async def test_the_last_member_of_a_set_and_a_float_near_zero_are_found(
    each_server: MariaDb, upstream: Upstream
) -> None:
    first: list[Value] = [1, NEAR_ZERO, LAST, 0, "null"]
    second: list[Value] = [1, -NEAR_ZERO, LAST | 1, 2, None]
    upstream.insert(10, first, second, first)
    upstream.update(10, (first, [2, 0.5, (1 << 64) - 1, 1, "1"]))
    upstream.update(10, ([2, 0.5, (1 << 64) - 1, 1, "1"], [3, None, None, None, None]))
    upstream.delete(10, second)
    await upstream.replicate(each_server)
    assert each_server.execute(TALL) == [
        (b"1", b"1.401298464324817e-45", b"%d" % LAST, b"0", b"null"),
        (b"3", None, None, None, None),
    ]


async def test_a_key_with_the_last_member_of_a_set_finds_its_row(each_server: MariaDb) -> None:
    made = Upstream()
    made.database("shop", "CREATE DATABASE `shop`;")
    columns = [
        ColumnDef("s", tidb.set_of(*MEMBERS), not_null=True),
        ColumnDef("n", tidb.integer()),
    ]
    create = CREATE.replace("`n` INT, `f` FLOAT, ", "").split(", `e`")[0]
    made.ddl(
        ActionType.CREATE_TABLE,
        f"{create} NOT NULL PRIMARY KEY, `n` INT)",
        table(10, "t", *columns, primary="s"),
    )
    made.insert(10, [LAST, 1], [LAST | 1, 2], [5, 3])
    await made.replicate(each_server)
    made.update(10, ([LAST, 1], [LAST, 4]))
    made.delete(10, [LAST | 1, 2])
    await made.replicate(each_server)
    rows = each_server.execute("SELECT CAST(s AS UNSIGNED), n FROM shop.t ORDER BY 2")
    assert rows == [(b"5", b"3"), (b"%d" % LAST, b"4")]


OLD: list[list[Value]] = [
    [1, 0.5, 3, 1, document] for document in ('{"a": 1, "b": 2}', '{"a": 1}', "[1.5]")
]


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_of_rows_that_are_alike_the_one_with_equal_values_is_taken(
    mariadb: MariaDb, upstream: Upstream, *, is_transactional: bool
) -> None:
    """A copy of the data that printed its JSON in another way."""
    upstream.insert(10, *OLD)
    await upstream.replicate(mariadb)
    mariadb.execute("UPDATE shop.t SET j = REPLACE(REPLACE(j, ' ', ''), '1.5', '15e-1')")
    new: list[Value] = [2, 0.25, LAST, 2, '{"c": 3}']
    upstream.update(10, (OLD[1], new), (new, [3, None, None, None, None]))
    upstream.delete(10, OLD[2])
    await apply_all(sink_for(mariadb, is_transactional=is_transactional), iter(upstream.txns))
    assert mariadb.execute(TALL) == [
        (b"1", b"0.5", b"3", b"1", b'{"a":1,"b":2}'),
        (b"3", None, None, None, None),
    ]


def _with_a_row_that_is_gone(upstream: Upstream) -> None:
    upstream.update(10, ([1, 0.5, 3, 1, '{"a": 1}'], [2, 0.5, 3, 1, '{"a": 1}']))
    upstream.insert(10, [7, None, None, None, None])
    upstream.delete(10, [5, 0.5, 3, 1, "[]"])


async def _stopped(sink: MySqlSink | SqliteSink, upstream: Upstream) -> RowNotFound:
    with pytest.raises(BaseExceptionGroup) as caught:
        await apply_all(sink, iter(upstream.txns))
    found = caught.value.subgroup(RowNotFound)
    assert found is not None
    error: BaseException = found
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RowNotFound)
    return error


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_a_row_that_is_not_there_stops_with_its_values_and_the_ways_on(
    mariadb: MariaDb, upstream: Upstream, *, is_transactional: bool
) -> None:
    await upstream.replicate(mariadb)
    upstream.insert(10, [1, 0.5, 3, 1, '{"a": 2}'])  # not by this
    upstream.delete(10, [1, 0.5, 3, 1, '{"a": 1}'])
    commit_ts = upstream.txns[-1].commit_ts
    sink = sink_for(mariadb, is_transactional=is_transactional)
    error = await _stopped(sink, upstream)
    assert (error.table, error.commit_ts, error.verb) == ("shop.t", commit_ts, "deletes")
    assert """n = 1, f = 0.5e0, s = 3, e = 1, j = '{"a": 1}'""" in error.message
    assert "syncer.row-not-found" in error.todo
    assert error.skip_ts == commit_ts
    assert sink.applied_ts() < commit_ts


async def test_a_row_that_is_not_there_is_repaired_where_that_is_asked_for(
    each_server: MariaDb, upstream: Upstream
) -> None:
    _with_a_row_that_is_gone(upstream)
    sink = sink_for(each_server, row_not_found=RowNotFoundRule.REPAIR)
    await apply_all(sink, iter(upstream.txns))
    assert each_server.execute("SELECT n FROM shop.t ORDER BY n") == [(b"2",), (b"7",)]
    assert sink.statistics().rows_not_found == 2


async def test_a_row_that_is_not_there_is_counted_where_that_is_asked_for(
    mariadb: MariaDb, upstream: Upstream
) -> None:
    _with_a_row_that_is_gone(upstream)
    sink = sink_for(mariadb, row_not_found=RowNotFoundRule.COUNT)
    await apply_all(sink, iter(upstream.txns))
    assert mariadb.execute("SELECT n FROM shop.t") == [(b"7",)]
    assert sink.statistics().rows_not_found == 2


@pytest.mark.parametrize(
    ("rule", "held"), [(RowNotFoundRule.REPAIR, [2, 7]), (RowNotFoundRule.COUNT, [7])]
)
async def test_a_replica_goes_by_the_same_rule(
    rule: RowNotFoundRule, held: list[int], tmp_path: Path
) -> None:
    made = _upstream(Dialect.FILE)
    _with_a_row_that_is_gone(made)
    disk = PosixDisk(threads=1)
    path = tmp_path / "replica.db"
    error = await _stopped(SqliteSink(path, disk), made)
    assert (error.table, error.verb) == ("shop.t", "updates")
    assert "n = 1, f = 0.5" in error.values
    sink = SqliteSink(path, disk, row_not_found=rule)
    await apply_all(sink, iter(made.txns))
    disk.close()
    assert replica_rows(path, "shop.t", "n") == held
    assert sink.statistics().rows_not_found == 2
