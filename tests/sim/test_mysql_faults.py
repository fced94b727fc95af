"""The real sink before the simulated server: whatever becomes of a COMMIT, each change is there
once, and in one order every state that could be seen is one that the upstream had."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from pymysql import err
from pymysql.err import MySQLError

from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.txn import Txn
from binlogd.errors import BinlogdError, DownstreamUnavailable, DownstreamWentBack, leading_error
from binlogd.tidb.model import job_from_json
from binlogd.tso import compose
from tests.sim.mysql import Committed, Fault, NotSimulated, SimConnection, SimMySql
from tests.support.mysql_rows import NUMBER, TEXT, apply, ddl, dml, inserted, table, updated
from tests.support.replay import running, sink_for

KEYED = table(1, "t", NUMBER, TEXT)
LEDGER = table(2, "ledger", NUMBER, has_key=False)
LIMITS = Limits(changes_worth=1, changes_max=4)


@pytest.fixture
def downstream() -> SimMySql:
    server = SimMySql(Random(5))
    server.execute(
        "CREATE DATABASE s",
        "CREATE TABLE s.t (id BIGINT PRIMARY KEY, b BIGINT, c VARCHAR(20))",
        "CREATE TABLE s.ledger (id BIGINT, b BIGINT)",
    )
    return server


def sink(downstream: SimMySql, *, is_transactional: bool) -> MySqlSink:
    return sink_for(downstream.server(), 3, limits=LIMITS, is_transactional=is_transactional)


async def live(life: MySqlSink, made: Sequence[Txn], begun: Callable[[], None]) -> None:
    """One life of a sink; `begun` is called once it is open."""
    async with running(life):
        begun()
        for txn in made:
            await life.submit([txn])
        await life.flush()


def transactions(first: int, count: int) -> list[Txn]:
    """Each adds a line to a ledger without a key, and says so in a row of its own and a shared
    one."""
    made: list[Txn] = []
    for ts in range(first, first + count):
        shared = (
            inserted(KEYED, (0, ts, b"shared"))
            if ts == first
            else updated(KEYED, (0, ts - 1, b"shared"), (0, ts, b"shared"))
        )
        made.append(dml(ts, inserted(LEDGER, (ts, 1)), inserted(KEYED, (ts, ts, b"own")), shared))
    return made


@pytest.mark.parametrize("is_transactional", [False, True], ids=["key", "transaction"])
@pytest.mark.parametrize("fault", list(Fault))
async def test_whatever_becomes_of_a_commit_each_change_is_there_once(
    downstream: SimMySql, fault: Fault, *, is_transactional: bool
) -> None:
    made = transactions(10, 30)
    await apply(sink(downstream, is_transactional=is_transactional), *made[:5])
    downstream.faults.slow_s = (0.001, 0.002)
    downstream.faults.linger_s = (0.001, 0.01)

    def begun() -> None:
        downstream.faults.orders = [(b"COMMIT", fault)] * 4

    await live(sink(downstream, is_transactional=is_transactional), made[5:], begun)
    assert downstream.faults.orders == []
    assert sorted(row["id"] for row in downstream.rows("s", "ledger")) == list(range(10, 40))
    assert [row["b"] for row in downstream.rows("s", "t") if row["id"] == 0] == [39]
    assert len(downstream.rows("s", "t")) == 31


async def test_in_one_order_every_state_is_one_that_the_upstream_had(downstream: SimMySql) -> None:
    downstream.faults.linger_s = (0.001, 0.005)
    downstream.faults.commits = dict.fromkeys(
        (Fault.CUT_BEFORE, Fault.CUT_DONE, Fault.CUT_LATER, Fault.DEADLOCK), 0.05
    )
    ended = 0
    while downstream.faults.commits:  # until a life applies all
        assert ended < 50
        try:
            await apply(sink(downstream, is_transactional=True), *transactions(10, 60))
            downstream.faults.quiet()
        except* DownstreamUnavailable:
            ended += 1
    seen = []
    for state in downstream.history:
        if ("s", "ledger") in state.state:
            rows = state.state["s", "t"].named()
            own = {row["id"] for row in rows} - {0}
            shared = [row["b"] for row in rows if row["id"] == 0]
            ledger = {row["id"] for row in state.state["s", "ledger"].named()}
            last = shared[0] if shared else 9
            assert own == ledger == set(range(10, last + 1))
            seen.append(last)
    assert seen == sorted(seen)
    assert seen[-1] == 69


@pytest.mark.parametrize("is_transactional", [False, True], ids=["key", "transaction"])
async def test_a_transaction_that_the_server_took_back_between_two_groups_is_done_anew(
    downstream: SimMySql, *, is_transactional: bool
) -> None:
    """As a Galera node does that gives way to another: the next statement hears of it."""
    await apply(
        sink_for(downstream.server(), 3, is_transactional=is_transactional),
        dml(10, inserted(LEDGER, *((number, 0) for number in range(300)))),
    )
    downstream.faults.slow_s = (0.001, 0.001)

    def begun() -> None:
        downstream.faults.orders = [(b"SAVEPOINT", Fault.SLOW), (b"SAVEPOINT", Fault.DEADLOCK)]

    life = sink_for(downstream.server(), 3, is_transactional=is_transactional)
    changes = [updated(LEDGER, (number, 0), (number, 1)) for number in range(300)]
    await live(life, [dml(20 + number, each) for number, each in enumerate(changes)], begun)
    assert downstream.faults.orders == []
    assert [row["b"] for row in downstream.rows("s", "ledger")] == [1] * 300


@pytest.mark.parametrize("code", [1047, 1180, 3100, 3101, 8002, 8005, 9011])
async def test_a_cluster_that_takes_back_a_commit_is_asked_again(
    downstream: SimMySql, code: int
) -> None:
    """Of Galera, of MySQL's Group Replication and of TiDB."""
    refusals = [code]

    class Refusing(SimConnection):
        async def query(self, sql: bytes) -> None:
            is_refused = sql == b"COMMIT" and refusals
            await super().query(b"ROLLBACK" if is_refused else sql)
            if is_refused:
                raise err.OperationalError(refusals.pop(), "not now")

    connector = partial(Refusing, downstream, "")
    await live(
        sink_for(replace(downstream.server(), connector=connector), 1),
        transactions(10, 5),
        lambda: None,
    )
    assert refusals == []
    assert sorted(row["id"] for row in downstream.rows("s", "ledger")) == list(range(10, 15))


async def test_a_server_that_is_silent_behind_a_ddl_is_given_up(
    downstream: SimMySql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement may take any time, and is watched. What makes the session as it was is not."""
    downstream.faults.slow_s = (3600.0, 3600.0)
    job = job_from_json(b'{"id":20,"type":12,"table_id":1,"start_ts":%d}' % compose(10**12))
    modified = replace(ddl(20, "ALTER TABLE t MODIFY b INT"), job=job)

    def begun() -> None:
        downstream.faults.orders = [(b"SET SESSION timestamp = DEFAULT", Fault.SLOW)]
        monkeypatch.setattr("binlogd.drainer.mysql.connection.ANSWER_TIMEOUT_S", 1.0)

    async with asyncio.timeout(60):
        with pytest.raises(ExceptionGroup) as ended:
            await live(sink(downstream, is_transactional=False), [modified], begun)
    assert "does not answer" in str(leading_error(ended.value))


# --- the server goes away -----------------------------------------------------------------------


def connection(downstream: SimMySql) -> SimConnection:
    """As a session makes one."""
    made = downstream.server("p").connector(
        ("simulated", 3306), "u", "", autocommit=True, tls=None, without_tls=""
    )
    assert isinstance(made, SimConnection)
    return made


async def opened(downstream: SimMySql, *texts: bytes) -> SimConnection:
    made = connection(downstream)
    await made.open()
    for text in texts:
        await made.query(text)
    return made


def values(downstream: SimMySql) -> dict[int, int]:
    return {row["id"]: row["b"] for row in downstream.rows("s", "t")}


ROW = b"INSERT INTO s.t(id,b,c) VALUES (1,1,'1')"
CHANGE = b"UPDATE s.t SET b = 2 WHERE id = 1"


async def test_a_crash_keeps_what_was_committed_and_nothing_else(downstream: SimMySql) -> None:
    one = await opened(downstream, ROW, b"START TRANSACTION", CHANGE)
    downstream.crash()
    assert one.closed
    with pytest.raises(MySQLError):
        await one.query(b"COMMIT")
    assert values(downstream) == {1: 1}
    other = await opened(downstream, CHANGE)
    assert values(downstream) == {1: 2}
    downstream.is_down = True
    with pytest.raises(MySQLError, match="2003"):
        await opened(downstream)
    other.close()


async def test_a_failover_loses_the_last_states_and_says_so(downstream: SimMySql) -> None:
    one = await opened(downstream, ROW, CHANGE)
    await one.query(b"CREATE TABLE s.later (id BIGINT PRIMARY KEY)")
    numbers = [each.number for each in downstream.history]
    downstream.fail_over(lost=2)
    assert one.closed
    last = downstream.history[-1]
    assert (last.cause, last.lost, last.number) == ("failover", 2, numbers[-1] + 1)
    assert set(last.changed) == {("s", "t"), ("s", "later")}
    assert values(downstream) == {1: 1}
    assert ("s", "later") not in last.state
    await opened(downstream, CHANGE, b"INSERT INTO s.t(id,b,c) VALUES (2,2,'2')")
    assert values(downstream) == {1: 2, 2: 2}
    with pytest.raises(MySQLError, match="1062"):
        await opened(downstream, ROW)
    downstream.fail_over(lost=10**6)
    assert downstream.history[-1].state == {}


async def test_who_is_killed_lets_go_of_its_locks(downstream: SimMySql) -> None:
    one = await opened(downstream, ROW, b"START TRANSACTION", CHANGE)
    other = await opened(downstream)
    waiting = asyncio.ensure_future(other.query(b"UPDATE s.t SET b = 3 WHERE id = 1"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    downstream.kill(one)
    await waiting
    assert values(downstream) == {1: 3}


async def test_who_is_killed_with_a_lock_in_its_hand_does_nothing_with_it(
    downstream: SimMySql,
) -> None:
    """The one that it waits for is killed first: it has the lock, and its turn has not come."""
    one = await opened(downstream, ROW, b"START TRANSACTION", CHANGE)
    other = await opened(downstream, b"START TRANSACTION")
    waiting = asyncio.ensure_future(other.query(b"UPDATE s.t SET b = 3 WHERE id = 1"))
    await asyncio.sleep(0.01)
    downstream.kill(one)
    downstream.kill(other)
    with pytest.raises((MySQLError, OSError)):
        await waiting
    third = await opened(downstream, b"START TRANSACTION")
    await third.query(b"UPDATE s.t SET c = 'x' WHERE id = 1")
    await third.query(b"COMMIT")
    assert values(downstream) == {1: 1}


async def test_a_process_that_dies_takes_its_own_connections_with_it(downstream: SimMySql) -> None:
    downstream.faults.linger_s = (0.05, 0.05)
    await opened(downstream, ROW, b"START TRANSACTION", CHANGE)
    downstream.cut("another")
    assert len(downstream.connections) == 1
    downstream.cut("p")
    assert not downstream.connections
    assert len(downstream.inside.sessions) == 1  # the server has not noticed yet
    await asyncio.sleep(0.1)
    assert not downstream.inside.sessions
    assert values(downstream) == {1: 1}


# --- and the sink behind it ---------------------------------------------------------------------


async def ended_by(life: MySqlSink, work: Callable[[], Awaitable[None]]) -> BinlogdError | None:
    """What a life of a sink ends with."""
    try:
        async with running(life):
            await work()
            await life.flush()
    except BaseExceptionGroup as errors:
        return leading_error(errors)
    return None


@pytest.mark.parametrize("is_transactional", [False, True], ids=["key", "transaction"])
async def test_a_table_that_a_failover_lost_is_no_table_that_is_missing(
    downstream: SimMySql, *, is_transactional: bool
) -> None:
    """Its CREATE TABLE is done again by the next session, as everything that was lost."""
    later = table(9, "later", NUMBER)
    life = sink(downstream, is_transactional=is_transactional)

    async def work() -> None:
        await life.submit(transactions(10, 3))
        await life.flush()
        before = len(downstream.history)
        create = "CREATE TABLE later (id BIGINT PRIMARY KEY, b BIGINT)"
        await life.submit([ddl(20, create, "later", 9)])
        await life.flush()
        downstream.fail_over(lost=len(downstream.history) - before)
        await life.submit([dml(30, inserted(later, (1, 1)))])

    assert isinstance(await ended_by(life, work), DownstreamWentBack)


async def test_a_row_that_a_failover_lost_is_no_row_that_is_missing(downstream: SimMySql) -> None:
    """A group that lost its connection while it was prepared begins anew on the other server."""
    first = dml(10, inserted(KEYED, *((n, 0, b"a") for n in range(1, 7))))
    one = dml(11, updated(KEYED, (1, 0, b"a"), (1, 1, b"a")))
    other = dml(12, *(updated(KEYED, (n, 0, b"a"), (n, 1, b"a")) for n in range(2, 7)))
    life = sink(downstream, is_transactional=True)

    def committed(_: Committed) -> None:
        """When `one` is there, the server goes back to before all rows; `other` connects anew."""
        if values(downstream)[1] == 1:
            downstream.on_commit.clear()
            downstream.faults.latency_s = (0.02, 0.02)
            asyncio.get_running_loop().call_later(0.01, downstream.fail_over, 2)

    async def work() -> None:
        await life.submit([first])
        await life.flush()
        downstream.on_commit.append(committed)
        downstream.faults.slow_s = (0.05, 0.05)
        downstream.faults.orders = [
            (b"COMMIT", Fault.SLOW),
            (b"REPLACE INTO `s`.`t`", Fault.SLOW),
            (b"REPLACE INTO `s`.`t`", Fault.CUT_BEFORE),
        ]
        await life.submit([one])
        await asyncio.sleep(0.01)
        await life.submit([other])

    assert isinstance(await ended_by(life, work), DownstreamWentBack)


def test_what_is_not_known_is_refused(downstream: SimMySql) -> None:
    for statement in (
        "SELECT SUM(id) FROM s.t",
        "UPDATE s.t SET b = b - 1",
        "CREATE TABLE s.g (a POINT)",
        "ALTER TABLE s.t ORDER BY id",
        "SELECT id FROM s.t WHERE c = 1",
        "SET SESSION sql_mode = 'ANSI_QUOTES'",
        "LOAD DATA INFILE 'x' INTO TABLE s.t",
    ):
        with pytest.raises(NotSimulated):
            downstream.execute("INSERT INTO s.t(id,b,c) VALUES (1,1,'1')", statement)
        downstream.execute("DELETE FROM s.t WHERE id = 1 LIMIT 1")
