"""The Pumps of a registry in a merge: they come late, pause, move, vanish and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from binlogd.client.notify import notify
from binlogd.client.registered_pumps import Horizon, RegisteredPumps
from binlogd.errors import PromiseAhead, UpstreamUnavailable
from binlogd.merge.stream import MergedStream, MergeLimits, merged
from binlogd.ports import NodeStatus, SourceState
from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from binlogd.settings.quantities import host_and_port, shown_address
from binlogd.tso import NO_TS, Tso, compose
from binlogd.upstream.entry import PUMP, node_key
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.registry import NodeRegistry
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.generated.etcdserverpb import DeleteRangeRequest
from tests.support.memory_pump import Cluster, MemoryPump
from tests.support.pump_world import StillClock, at, eventually

CLUSTER = 7
PATIENT = MergeLimits(retry_after_s=0.01, offline_grace_s=0.05)


@dataclass
class Host:
    """A Pump on a port of its own, and what it writes into the registry."""

    name: str
    registry: NodeRegistry
    pump: MemoryPump = field(default_factory=MemoryPump)
    address: str = ""
    _servers: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def listen(self) -> None:
        service = PumpService(self.pump, Cluster(CLUSTER))
        server = Server([service])
        host, port = await server.start("127.0.0.1", 0)
        self._servers.push_async_callback(server.close)
        self._servers.push_async_callback(service.close)
        self.address = f"{host}:{port}"

    async def fall_silent(self) -> None:
        await self._servers.aclose()

    async def says(self, state: str = "online", up_to: int = 0, address: str | None = None) -> None:
        host = self.address if address is None else address
        await self.registry.register(NodeStatus(PUMP, self.name, host, state, Tso(up_to), NO_TS))

    async def commits(self, *commit_tss: int) -> None:
        for commit_ts in commit_tss:
            start = Tso(commit_ts - 1)
            payloads = [
                prewrite_binlog(start, prewrite_key=b"k", prewrite_value=b"v"),
                commit_binlog(start, Tso(commit_ts)),
            ]
            assert await self.pump.write(payloads) == [None, None]


@dataclass
class Cluster7:
    """A registry, and a merge of what it names."""

    registry: NodeRegistry
    keyspace: KeyspaceStore
    pumps: RegisteredPumps
    hosts: AsyncExitStack
    observed: list[int]

    async def host(self, name: str, *, is_there: bool = True) -> Host:
        made = Host(name, self.registry)
        await made.listen()
        self.hosts.push_async_callback(made.fall_silent)
        if is_there:
            await made.says()
        return made

    async def read_up_to(self, stream: MergedStream, ts: int) -> list[int]:
        seen: list[int] = []
        async with asyncio.timeout(120):
            async for pulled in stream:
                seen += [binlog.commit_ts for binlog in pulled.binlogs]
                if pulled.resolved_ts >= ts:
                    break
        return seen


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster7]:
    keyspace = await KeyspaceStore.open(tmp_path / "upstream.db", Random(1))
    registry = NodeRegistry(keyspace)
    observed: list[int] = []

    async def cluster_id() -> int:
        return CLUSTER

    pumps = RegisteredPumps(
        [],
        registry,
        own_id="me",
        cluster_id=cluster_id,
        horizon=Horizon(observed.append, StillClock(), ahead_max_s=600),
    )
    async with AsyncExitStack() as hosts:
        yield Cluster7(registry, keyspace, pumps, hosts, observed)
    await keyspace.close()


def names(stream: MergedStream) -> dict[str, SourceState]:
    return {each.name: each.state for each in stream.statistics().sources}


def trouble(stream: MergedStream, name: str) -> str:
    return next((s.trouble for s in stream.statistics().sources if s.name == name), "")


@asynccontextmanager
async def merging(cluster: Cluster7) -> AsyncIterator[MergedStream]:
    async with merged(cluster.pumps, NO_TS, PATIENT) as stream:
        yield stream


async def test_every_registered_pump_is_pulled_and_what_they_hold_comes_in_one_order(
    cluster: Cluster7,
) -> None:
    first, second = await cluster.host("first"), await cluster.host("second")
    await first.commits(10, 40)
    await second.commits(20, 30, 50)
    async with merging(cluster) as stream:
        assert await cluster.read_up_to(stream, 40) == [10, 20, 30, 40]
        assert set(names(stream)) == {"first", "second"}
    assert {40, 50} <= set(cluster.observed)


async def test_a_pump_that_tells_of_itself_is_in_the_merge_when_it_hears_done(
    cluster: Cluster7,
) -> None:
    first = await cluster.host("first")
    await first.commits(10)
    server = Server([CisternService(cluster.pumps.refresh)])
    host, port = await server.start("127.0.0.1", 0)
    async with merging(cluster) as stream:
        assert await cluster.read_up_to(stream, 10) == [10]
        late = await cluster.host("late")
        await notify("drainer", host, port)
        assert names(stream)["late"] is SourceState.ONLINE
        await first.commits(30)
        await late.commits(20, 31)
        assert await cluster.read_up_to(stream, 30) == [20, 30]
    await server.close()


async def test_nobody_waits_for_a_merge_that_is_not_there(cluster: Cluster7) -> None:
    await cluster.host("first")
    await cluster.pumps.refresh()


async def test_a_pump_that_wants_to_be_known_hears_it_when_the_registry_is_gone(
    cluster: Cluster7,
) -> None:
    await cluster.host("first")
    async with merging(cluster) as stream:
        await eventually(lambda: "first" in names(stream))
        await cluster.keyspace.close()
        with pytest.raises((UpstreamUnavailable, ValueError)):
            await cluster.pumps.refresh()
        assert "first" in names(stream), "who is known stays"


async def test_a_paused_pump_is_waited_for(cluster: Cluster7) -> None:
    first, second = await cluster.host("first"), await cluster.host("second")
    await first.commits(10)
    await second.commits(11)
    async with merging(cluster) as stream:
        assert await cluster.read_up_to(stream, 10) == [10]
        await second.fall_silent()
        await second.says("paused", up_to=11)
        await first.commits(20)
        await eventually(lambda: names(stream)["second"] is SourceState.PAUSED)
        assert await cluster.read_up_to(stream, 11) == [11]
        await eventually(lambda: trouble(stream, "second") != "")
        await eventually(lambda: stream.statistics().blocking == "second")
        await second.listen()  # at another port
        await second.says("online")
        await second.commits(30)
        assert await cluster.read_up_to(stream, 20) == [20]


async def test_an_offline_pump_leaves_when_it_has_delivered_what_it_had(cluster: Cluster7) -> None:
    first, second = await cluster.host("first"), await cluster.host("second")
    await first.commits(10)
    await second.commits(20)
    async with merging(cluster) as stream:
        assert await cluster.read_up_to(stream, 10) == [10]
        await second.says("offline", up_to=20)
        await first.commits(30)
        assert await cluster.read_up_to(stream, 30) == [20, 30]
        await eventually(lambda: set(names(stream)) == {"first"})


async def test_an_offline_pump_that_is_gone_is_let_go_after_a_while(cluster: Cluster7) -> None:
    first, second = await cluster.host("first"), await cluster.host("second")
    await first.commits(10)
    await second.commits(11)
    async with merging(cluster) as stream:
        assert await cluster.read_up_to(stream, 10) == [10]
        await second.fall_silent()
        await second.says("offline", up_to=99)
        await first.commits(30)
        assert await cluster.read_up_to(stream, 30) == [11, 30]
        assert set(names(stream)) == {"first"}


async def test_one_that_vanishes_from_the_registry_is_still_waited_for(cluster: Cluster7) -> None:
    first, second = await cluster.host("first"), await cluster.host("second")
    await first.commits(10)
    await second.commits(11)
    async with merging(cluster) as stream:
        await eventually(lambda: set(names(stream)) == {"first", "second"})
        await cluster.keyspace.delete_range(DeleteRangeRequest(key=node_key(PUMP, "second")))
        await first.commits(20)
        assert await cluster.read_up_to(stream, 11) == [10, 11]
        assert "second" in names(stream)


async def test_an_entry_without_an_address_holds_everything_and_says_why(
    cluster: Cluster7,
) -> None:
    first = await cluster.host("first")
    await first.commits(10)
    odd = Host("odd", cluster.registry)
    await odd.says(address="nowhere")
    async with merging(cluster) as stream:
        await eventually(lambda: '"nowhere"' in trouble(stream, "odd"))
        await eventually(lambda: stream.statistics().blocking == "odd")
        cluster.hosts.push_async_callback(odd.fall_silent)
        await odd.listen()
        await odd.says()
        await odd.commits(11)
        assert await cluster.read_up_to(stream, 10) == [10]


async def test_this_process_does_not_pull_itself_over_the_network(cluster: Cluster7) -> None:
    first = await cluster.host("first")
    await cluster.registry.register(
        replace((await cluster.registry.nodes(PUMP))[0], node_id="me", host="nowhere:1")
    )
    await first.commits(10)
    async with merging(cluster) as stream:
        assert await cluster.read_up_to(stream, 10) == [10]


@pytest.mark.parametrize("text", ["", "host", ":8250", "host:", "host:x", "host:0", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|a port is"):
        host_and_port(text)


def test_an_address_is_read_as_it_is_shown() -> None:
    for text in ("pump-1.example:8250", "[::1]:8250", "10.0.0.1:65535"):
        assert shown_address(host_and_port(text)) == text


async def test_a_pump_with_a_timestamp_from_the_future_stops_the_merge_before_it_counts(
    cluster: Cluster7,
) -> None:
    """One of them would move the checkpoint past everything that comes for years."""
    first, second = await cluster.host("first"), await cluster.host("second")
    now, beyond = at(0), compose(StillClock().now_ms + 600_000)
    await first.commits(now, now + 50, beyond)
    await second.commits(now + 20, now + 60, beyond + 5)
    async with merging(cluster) as stream:
        with pytest.raises(PromiseAhead, match=rf"commit_ts {beyond}.* \(start_ts .* 0 s beyond"):
            await cluster.read_up_to(stream, beyond)
    assert max(cluster.observed, default=0) < beyond
    assert "clock" in PromiseAhead("first", 1, 2, 3).todo


async def test_a_clock_that_is_behind_does_not_stop_what_goes_on_from_a_checkpoint(
    cluster: Cluster7,
) -> None:
    host = await cluster.host("host")
    later = compose(StillClock().now_ms + 86_400_000)
    await host.commits(later + 10, later + 20)
    async with merged(cluster.pumps, later, PATIENT) as stream:
        assert await cluster.read_up_to(stream, later + 20) == [later + 10, later + 20]
