"""Whatever goes wrong in replication or beside it, the Pump goes on and the node says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.measures import DrainerMeasures
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.schema_log import SchemaLog
from binlogd.errors import BinlogdError, DownstreamUnavailable
from binlogd.merge.members import FixedSources
from binlogd.merge.stream import MergeLimits
from binlogd.node.bulkhead import Bulkhead
from binlogd.node.operations import Node
from binlogd.node.problems import problems
from binlogd.node.replication import FirstContact, Replication
from binlogd.ports import BinlogSource
from binlogd.pump.pump import Pump
from binlogd.relay.log import RelayWriter
from binlogd.tidb.row import encode_insert
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.contract.memory_sink import MemorySink, MemoryStore
from tests.integration.drainer.test_drainer import CREATE, CREATED, DATABASE, TABLE
from tests.integration.node.test_node import Standing, standing
from tests.support.job_history import MemoryHistory
from tests.support.pump_world import eventually, outcome, written

PORTS = {
    "source": ["pull"],
    "history": ["job", "index", "read"],
    "sink": ["open", "run", "submit", "flush", "applied_ts", "save", "close", "statistics"],
    "sinks": ["make"],
    "relay": ["open", "append", "collect", "close", "statistics"],
    "measures": ["pulled", "submitted", "statistics"],
    "relay measures": ["wrote"],
    "schema log": ["load", "begin", "append", "collect", "close"],
    "filter": ["ignores_transaction", "replicates"],
    "saved": ["tell"],
    "schema": ["at"],
    "tables": ["name"],
    "upstream": ["ready"],
}
AFTERWARDS: dict[str, Callable[[], BinlogdError]] = {
    "close": lambda: DownstreamUnavailable("gone away"),
}
"""What is called when something else has failed, and that."""
COUNTED = b'binlogd_unforeseen_errors{part="replication"}'
CALLS = [(port, method) for port, methods in PORTS.items() for method in methods]


class Broken:
    """Makes one method of one port raise what nobody foresaw, for as long as it is to."""

    def __init__(self, port: str, method: str) -> None:
        self.port, self.method = port, method
        self.is_on = True

    def within(self, port: str, thing: Any) -> Any:
        if port == self.port:
            original = getattr(thing, self.method)

            def method(*arguments: Any, **named: Any) -> Any:
                if self.is_on:
                    raise ValueError(f"{port} cannot {self.method}")
                return original(*arguments, **named)

            async def closed() -> None:
                await original()
                if self.is_on:
                    raise ValueError(f"{port} cannot {self.method}")

            setattr(thing, self.method, closed if self.method == "close" else method)
        return thing


@dataclass
class Odds:
    """Ports that are functions."""

    saves: list[Checkpoint] = field(default_factory=list)
    make: Callable[[], Any] = lambda: None

    def tell(self, checkpoint: Checkpoint) -> None:
        self.saves.append(checkpoint)

    async def at(self, _: Tso) -> None:
        """The history is read instead."""

    async def name(self, _: int) -> str:
        return "shop.gone"

    async def ready(self) -> None:
        """There is something to replicate."""


class Source:
    """One of a Pump's, whose methods can be replaced."""

    def __init__(self, source: BinlogSource) -> None:
        self.name = source.name
        self.pull = source.pull


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """What was logged; a traceback in colours would take longer than the tests."""
    with capture_logs() as logged:
        yield logged


@asynccontextmanager
async def replicating(
    alone: Standing, store: MemoryStore, broken: Broken
) -> AsyncIterator[Replication]:
    world, within = alone.world, broken.within
    relay = RelayWriter(world.directory / "r", world.disk, max_file_bytes=400)
    measures = within("measures", DrainerMeasures())
    within("relay measures", measures.relay)
    sources = FixedSources([within("source", Source(each)) for each in alone.pump.sources()])
    odds = Odds(make=lambda: within("sink", MemorySink(store)))
    ports = DrainerPorts(
        sources=sources,
        on_pulled=lambda name, pulled: measures.pulled(name, pulled, world.clock.wall_ms()),
        history=within("history", MemoryHistory([DATABASE, CREATE])),
        make_sink=lambda: within("sinks", odds).make(),
        relay=within("relay", relay),
        measures=measures,
        schema_log=within("schema log", SchemaLog(world.directory / "schema", world.disk)),
        table_filter=within("filter", TableFilter()),
        on_saved=lambda checkpoint: within("saved", odds).tell(checkpoint),
        schema_at=lambda ts: within("schema", odds).at(ts),
        table_name=lambda number: within("tables", odds).name(number),
    )
    options = DrainerOptions(
        dialect=Dialect.MYSQL,
        checkpoint_interval_s=0.002,
        merge=MergeLimits(retry_after_s=0.01),
        part_txns_max=1,
    )

    def backoff() -> Backoff:
        return Backoff(Random(1), first_s=0.1, max_s=0.1)

    replication = Replication(
        lambda: Drainer(ports, backoff(), options),
        lambda: None,
        FirstContact(
            lambda: within("upstream", odds).ready(), lambda: within("sink", odds).open(), backoff()
        ),
        backoff(),
    )
    alone.node.drainer = replication
    async with asyncio.TaskGroup() as group:
        group.create_task(replication.run())
        yield replication
        await replication.end()


async def ddl(pump: Pump, job_id: int, commit_ts: int, query: str) -> None:
    start_ts = Tso(commit_ts - 1)
    made = prewrite_binlog(start_ts, ddl_query=query.encode(), ddl_job_id=job_id)
    await written(pump, made, commit_binlog(start_ts, Tso(commit_ts)))


async def insert(pump: Pump, commit_ts: int, row: int, table_id: int = 10) -> None:
    values = encode_insert(TABLE, {1: row, 2: row}, handle=row)
    value = encode_mutations(2, [Mutation(table_id, [values], [], [], b"\x00")])
    start_ts = Tso(commit_ts - 1)
    made = prewrite_binlog(start_ts, prewrite_value=value)
    await written(pump, made, commit_binlog(start_ts, Tso(commit_ts)))


def unforeseen(node: Node) -> int:
    drainer = node.drainer
    return drainer.statistics().unforeseen_errors if drainer is not None else 0


@pytest.mark.parametrize(("port", "method"), CALLS)
async def test_a_port_that_raises_what_nobody_foresaw_is_stuck_and_the_pump_acknowledges(
    tmp_path: Path, logs: list[Any], port: str, method: str
) -> None:
    store, broken = MemoryStore(), Broken(port, method)
    async with standing(tmp_path) as alone:
        await ddl(alone.pump, 1, 2, "CREATE DATABASE `shop`;")
        await ddl(alone.pump, 2, CREATED, "CREATE TABLE `t` (`id` INT,`v` BIGINT);")
        await insert(alone.pump, 11, 1)
        if method in AFTERWARDS:
            store.failures[11] = AFTERWARDS[method]()
        if method == "name":
            await insert(alone.pump, 13, 3, table_id=77)
        async with replicating(alone, store, broken):
            told: list[str] = []

            def is_stuck() -> bool:
                status = alone.node.own_status()
                told.extend(each.title for each in problems(status))
                said = status.drainer
                return said.state == "stuck" and "not foreseen" in said.error

            await eventually(is_stuck)
            first = unforeseen(alone.node)
            await eventually(lambda: unforeseen(alone.node) > first or method in AFTERWARDS)
            assert await outcome(alone.pump, prewrite_binlog(Tso(20))) is None
            await written(alone.pump, commit_binlog(Tso(20), Tso(21)))
            assert "Replication is stuck" in told
            assert COUNTED in alone.node.metrics()
            broken.is_on = False
            if method != "name":
                await eventually(lambda: store.applied_ts >= 11)
        traced = [each for each in logs if each["event"] == "unforeseen_error"]
        assert traced
        assert all(isinstance(each["exc_info"], BaseException) for each in traced)


async def test_a_transaction_that_cannot_be_translated_is_named_and_those_before_it_applied(
    tmp_path: Path,
) -> None:
    store, broken = MemoryStore(), Broken("filter", "ignores_transaction")
    broken.is_on = False
    async with standing(tmp_path) as alone, replicating(alone, store, broken):
        await ddl(alone.pump, 1, 2, "CREATE DATABASE `shop`;")
        await ddl(alone.pump, 2, CREATED, "CREATE TABLE `t` (`id` INT,`v` BIGINT);")
        await insert(alone.pump, 11, 1)
        await eventually(lambda: store.applied_ts >= 11)
        broken.is_on = True
        await insert(alone.pump, 13, 3)

        def is_named() -> bool:
            return "commit_ts 13" in alone.node.own_status().drainer.error

        await eventually(is_named)
        assert store.commit_tss == [11]


async def test_a_route_that_fails_at_every_look_is_counted_each_time_and_logged_once(
    tmp_path: Path, logs: list[Any]
) -> None:
    async with standing(tmp_path) as alone:
        for _ in range(5):
            said = alone.node.route_failed("GET /status", ValueError("no status today"))
        assert "no status today" in str(said)
        assert b'binlogd_unforeseen_errors{part="GET /status"} 5' in alone.node.metrics()
    assert [each["event"] for each in logs].count("unforeseen_error") == 1


async def test_what_works_beside_the_pump_is_begun_again_and_named(tmp_path: Path) -> None:
    begun = 0

    async def fail() -> None:
        raise ValueError("no report today")

    async def report() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            await fail()
        if begun == 2:
            async with asyncio.TaskGroup() as group:  # fails while it is waited for
                group.create_task(fail())
        await asyncio.Event().wait()

    async with standing(tmp_path) as alone:
        alone.node.bulkhead = Bulkhead(Random(1), first_wait_s=0.001)
        async with asyncio.TaskGroup() as group:
            task = alone.node.bulkhead.start(group, "the report", report)
            await eventually(lambda: begun == 3)
            status = alone.node.own_status()
            assert [each.part for each in status.stuck_parts] == ["the report"]
            assert "no report today" in status.stuck_parts[0].error
            assert any(each.title.startswith("The report failed") for each in problems(status))
            assert b'binlogd_unforeseen_errors{part="the report"} 2' in alone.node.metrics()
            task.cancel()
