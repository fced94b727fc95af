"""Writing to several Pumps: the same Pump for a transaction, another for the next, whoever dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.client.directory import FixedPumps, PumpNode
from binlogd.client.pump_client import ClientLimits
from binlogd.client.pumps_client import PumpsClient, PumpsLimits
from binlogd.client.strategy import Strategy
from binlogd.errors import PumpUnavailable, Refused
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.state import NodeState
from binlogd.serving.server import Server
from binlogd.tso import Tso
from binlogd.wire import peek
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.support.memory_pump import Cluster, MemoryPump
from tests.support.pump_world import eventually

CLUSTER = 77
QUICK = PumpsLimits(
    each=ClientLimits(
        deadline_s=60,
        prewrite_retry_s=60,
        prewrite_retry_interval_s=0.005,
        outcome_retry_s=60,
        outcome_retry_interval_s=0.01,
    ),
    probe_every_s=0.02,
    look_every_s=0.02,
    errors_max=2,
)
HASTY = replace(QUICK, each=replace(QUICK.each, prewrite_retry_s=0.2, outcome_retry_s=0.2))
"""For who shall give up."""


class Pumps:
    """Some Pumps in memory behind real ports, and the directory that names them."""

    def __init__(self) -> None:
        self.pumps: list[MemoryPump] = []
        self.servers: list[Server] = []
        self.nodes: list[PumpNode] = []

    async def add(self, stack: AsyncExitStack, score: int) -> None:
        pump = MemoryPump()
        service = PumpService(pump, Cluster(CLUSTER), ServiceLimits(message_bytes_max=1 << 16))
        server = Server([service])
        host, port = await server.start("127.0.0.1", 0)
        stack.push_async_callback(server.close)
        stack.push_async_callback(service.close)
        self.nodes.append(PumpNode(f"pump{len(self.pumps)}", (host, port), score=score))
        self.pumps.append(pump)
        self.servers.append(server)

    def mark(self, number: int, state: str) -> None:
        self.nodes[number] = replace(self.nodes[number], state=state)

    @property
    def counts(self) -> list[int]:
        return [len(pump.stored) for pump in self.pumps]


class Listed:
    """A Directory over `Pumps`."""

    def __init__(self, pumps: Pumps) -> None:
        self._pumps = pumps

    async def pumps(self) -> Sequence[PumpNode]:
        return list(self._pumps.nodes)


@asynccontextmanager
async def some_pumps(*scores: int) -> AsyncIterator[Pumps]:
    pumps = Pumps()
    async with AsyncExitStack() as stack:
        for score in scores:
            await pumps.add(stack, score)
        yield pumps


def client(
    pumps: Pumps, strategy: Strategy = Strategy.RANGE, limits: PumpsLimits = QUICK
) -> PumpsClient:
    return PumpsClient(Listed(pumps), cluster_id=CLUSTER, strategy=strategy, limits=limits)


def prewrite(start_ts: int, size: int = 4) -> bytes:
    return prewrite_binlog(Tso(start_ts), prewrite_key=b"k", prewrite_value=bytes(size))


def commit(start_ts: int) -> bytes:
    return commit_binlog(Tso(start_ts), Tso(start_ts + 1))


@pytest.mark.parametrize("strategy", Strategy)
async def test_an_outcome_goes_where_its_prewrite_went_whatever_became_of_that_pump(
    strategy: Strategy,
) -> None:
    async with some_pumps(50, 50, 50) as pumps, client(pumps, strategy) as writer:
        for start_ts in range(10, 70, 10):
            await writer.write(prewrite(start_ts))
        for number in range(3):
            pumps.pumps[number].state = NodeState.CLOSING
            pumps.mark(number, "closing")
        await writer.look()
        assert not any(view.is_available for view in writer.statistics())
        writer.use(Strategy.HASH if strategy is Strategy.RANGE else Strategy.RANGE)
        for start_ts in range(10, 70, 10):
            await writer.write(commit(start_ts))
        for pump in pumps.pumps:
            started = {peek.peek(each).start_ts for each in pump.stored}
            assert len(pump.stored) == 2 * len(started), "each has its outcome beside it"
        assert sum(pumps.counts) == 12


async def test_an_outcome_follows_its_pump_to_another_address() -> None:
    """A Pump that comes back elsewhere under its name has the prewrite, and waits."""
    async with (
        some_pumps(50, 50) as pumps,
        client(pumps) as writer,
        asyncio.TaskGroup() as group,
    ):
        await writer.write(prewrite(10))
        (number,) = [n for n in range(2) if pumps.counts[n]]
        await pumps.servers[number].close()
        writing = group.create_task(writer.write(commit(10)))
        await asyncio.sleep(0.05)
        moved = Server([PumpService(pumps.pumps[number], Cluster(CLUSTER))])
        address = await moved.start("127.0.0.1", 0)
        pumps.nodes[number] = replace(pumps.nodes[number], address=address)
        await writer.look()
        try:
            async with asyncio.timeout(120):
                await writing
        finally:
            await moved.close()
        assert pumps.counts[number] == 2


async def test_transactions_are_spread() -> None:
    async with some_pumps(50, 50, 50) as pumps, client(pumps) as writer:
        for start_ts in range(1, 10):
            await writer.write(prewrite(start_ts))
        assert pumps.counts == [3, 3, 3]


async def test_scores_decide_and_load_counts_against_them() -> None:
    async with some_pumps(90, 30) as pumps, client(pumps, Strategy.SCORE) as writer:
        for pump in pumps.pumps:
            pump.gate.clear()
        async with asyncio.TaskGroup() as group:
            for start_ts in range(1, 41):
                group.create_task(writer.write(prewrite(start_ts)))
            await eventually(lambda: sum(view.in_flight for view in writer.statistics()) == 40)
            for pump in pumps.pumps:
                pump.gate.set()
        assert pumps.counts == [pytest.approx(30, abs=2), pytest.approx(10, abs=2)]


async def test_one_dead_pump_hurts_nobody_and_is_left_alone() -> None:
    async with some_pumps(50, 50) as pumps, client(pumps) as writer:
        await pumps.servers[0].close()
        for start_ts in range(1, 11):
            await writer.write(prewrite(start_ts))
        assert pumps.counts == [0, 10]
        assert [view.is_available for view in writer.statistics()] == [False, True]


async def test_too_large_is_refused_at_once() -> None:
    async with some_pumps(50, 50) as pumps, client(pumps) as writer:
        with pytest.raises(Refused, match="message larger than max"):
            await writer.write(prewrite(1, 1 << 17))
        assert all(view.errors == 0 for view in writer.statistics())


async def test_when_all_are_dead_the_last_reason_is_told() -> None:
    async with some_pumps(50, 50) as pumps, client(pumps, limits=HASTY) as writer:
        await writer.write(prewrite(1))
        for server in pumps.servers:
            await server.close()
        with pytest.raises(PumpUnavailable, match="write binlog failed, the last error pump 127"):
            await writer.write(prewrite(2))
        with pytest.raises(PumpUnavailable):
            await writer.write(commit(1))


async def test_a_pump_that_was_given_up_is_still_tried_when_there_is_no_other() -> None:
    patient = replace(HASTY, probe_every_s=60)
    async with some_pumps(50) as pumps, client(pumps, limits=patient) as writer:
        pumps.pumps[0].state = NodeState.PAUSED
        with pytest.raises(PumpUnavailable, match="no online: paused"):
            await writer.write(prewrite(1))
        assert not writer.statistics()[0].is_available
        pumps.pumps[0].state = NodeState.ONLINE
        await writer.write(prewrite(2))
        assert writer.statistics()[0].is_available


async def test_a_pump_comes_back_by_a_probe_and_by_the_directory() -> None:
    async with some_pumps(50, 50) as pumps, client(pumps) as writer, asyncio.TaskGroup() as group:
        running = group.create_task(writer.run())
        pumps.pumps[0].state = NodeState.PAUSED
        for start_ts in range(1, 11):
            await writer.write(prewrite(start_ts))
        pumps.pumps[0].state = NodeState.ONLINE
        await eventually(lambda: available(writer) == [True, True])
        pumps.mark(1, "paused")
        await eventually(lambda: available(writer) == [True, False])
        pumps.mark(1, "online")
        await eventually(lambda: available(writer) == [True, True])
        gone = pumps.nodes.pop()
        await eventually(lambda: available(writer) == [True, False])
        pumps.nodes.append(gone)
        await eventually(lambda: available(writer) == [True, True])
        running.cancel()


def available(writer: PumpsClient) -> list[bool]:
    return [view.is_available for view in writer.statistics()]


async def test_an_outcome_of_a_stranger_is_refused_unless_there_is_no_doubt() -> None:
    async with some_pumps(50, 50) as pumps, client(pumps) as writer:
        with pytest.raises(Refused, match="the prewrite of start_ts 8 was not written by this"):
            await writer.write(commit(8))
    async with some_pumps(50) as pumps, client(pumps) as writer:
        await writer.write(prewrite(8))
        async with client(pumps) as another:
            await another.write(commit(8))
        assert pumps.counts == [2]


async def test_only_so_many_open_transactions_are_remembered() -> None:
    few = replace(QUICK, open_max=2)
    async with some_pumps(50, 50) as pumps, client(pumps, limits=few) as writer:
        for start_ts in (10, 20, 30):
            await writer.write(prewrite(start_ts))
        with pytest.raises(Refused):
            await writer.write(commit(10))
        await writer.write(commit(30))


async def test_a_local_socket_is_a_pump_like_any_other(tmp_path: Path) -> None:
    pump = MemoryPump()
    service = PumpService(pump, Cluster(CLUSTER))
    server = Server([service], sinks=service.sinks())
    path = tmp_path / "pump.sock"
    await server.start("127.0.0.1", 0, path)
    async with PumpsClient(FixedPumps(path), cluster_id=CLUSTER, limits=QUICK) as writer:
        await writer.write(prewrite(1))
        await writer.write(commit(1))
    assert pump.stored == [prewrite(1), commit(1)]
    await service.close()
    await server.close()


async def test_without_a_pump_there_is_no_client() -> None:
    async with some_pumps() as pumps:
        with pytest.raises(PumpUnavailable, match="no pump found"):
            async with client(pumps):
                raise AssertionError("there is none")
