"""The real sink before the simulated server: whatever becomes of a COMMIT, each change is there
once, and in one order every state that could be seen is one that the upstream had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from binlogd.drainer.mysql.sink import MySqlSink
from binlogd.drainer.rows.parts import Limits
from binlogd.drainer.txn import Txn
from binlogd.errors import DownstreamUnavailable
from tests.sim.mysql import Fault, NotSimulated, SimMySql
from tests.support.mysql_rows import NUMBER, TEXT, apply, dml, inserted, table, updated
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
