"""What a PD is held to by those who ask it: one that is scripted after recordings, the one that
binlogd serves where there is none, and a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from binlogd.errors import UpstreamUnavailable
from binlogd.host.clock import WallClock
from binlogd.placement.pd_service import AdvertisedAddress
from binlogd.placement.stand_in import StandIn
from binlogd.serving.server import Server
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.history import SchemaHistory
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import ClockTso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.leader import PdLimits
from binlogd.upstream.pd.members import Address
from binlogd.upstream.pd.tso import PdTso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.upstream import OwnPd
from tests.support.joined_tikv import joined_tikv
from tests.support.pd_cluster import pd_cluster
from tests.support.ports import free_port
from tests.support.real_pd import real_pd

PATIENT = PdLimits(question_s=60.0, pause_s=0.01, tso_s=60.0)
BRIEF = PdLimits(question_s=0.5, pause_s=0.01, tso_s=1.5)


@asynccontextmanager
async def own_pd(directory: Path) -> AsyncIterator[Address]:
    store = await UpstreamStore.open(directory / "upstream.db")
    keyspace = await KeyspaceStore.open(store.path, Random(1))
    clock = WallClock()
    port = free_port()
    served = StandIn(
        AdvertisedAddress("binlogd", f"http://127.0.0.1:{port}"),
        OwnPd(keyspace, await ClockTso.open(store, clock), SchemaHistory(None, store), store),
        await StoredClusterIdentity.open(store, 4712),
        clock,
        lambda: NO_TS,
    )
    server = Server(served.services)
    try:
        await server.start("127.0.0.1", port)
        yield "127.0.0.1", port
    finally:
        served.close()
        await server.close()
        await keyspace.close()
        await store.close()


@pytest.fixture(params=["scripted", "own", pytest.param("real", marks=pytest.mark.soak)])
async def pd(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Address]:
    if request.param == "own":
        async with own_pd(tmp_path) as address:
            yield address
    elif request.param == "real":
        program = request.getfixturevalue("pd_program")
        with real_pd(program, tmp_path) as members, joined_tikv(members):
            yield members.addresses[0]
    else:
        async with pd_cluster() as cluster:
            yield cluster.addresses[0]


@pytest.fixture
async def client(pd: Address) -> AsyncIterator[PdClient]:
    made = PdClient([pd], limits=PATIENT)
    yield made
    await made.close()


async def test_it_leads_and_tells_every_client_the_same_cluster(
    pd: Address, client: PdClient
) -> None:
    told = await client.cluster_id()
    assert told
    assert client.statistics().address == f"{pd[0]}:{pd[1]}"
    other = PdClient([pd], limits=PATIENT)
    assert await other.cluster_id() == told
    await other.close()


async def test_timestamps_are_unique_and_go_up_for_all_streams_together(
    pd: Address, client: PdClient
) -> None:
    other = PdClient([pd], limits=PATIENT)
    await client.cluster_id()
    await other.cluster_id()
    sources = [PdTso(client), PdTso(other)]
    told: list[list[Tso]] = [[], []]

    async def ask(number: int) -> None:
        for _ in range(20):
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(sources[number].next()) for _ in range(7)]
            told[number] += [each.result() for each in asked]

    async with asyncio.TaskGroup() as group:
        group.create_task(ask(0))
        group.create_task(ask(1))
    for one in told:
        assert one == sorted(one)
    everything = [ts for one in told for ts in one]
    assert len(set(everything)) == len(everything) == 280
    for source in sources:
        await source.close()
    await other.close()


async def test_a_client_of_another_cluster_gets_nothing(pd: Address) -> None:
    client = PdClient([pd], limits=BRIEF)
    client.expect(5)
    with pytest.raises(UpstreamUnavailable, match="not to 5"):
        await PdTso(client).next()
    await client.close()


async def test_what_a_service_needs_is_held_until_it_lets_go(client: PdClient) -> None:
    await client.cluster_id()
    assert await client.hold_gc("binlogd", Tso(150), 300) <= 150
    assert await client.hold_gc("other", Tso(100), 300) <= 100
    await client.hold_gc("other", Tso(0), 0)
    await client.hold_gc("binlogd", Tso(0), 0)
    assert await client.gc_safe_point(NO_TS) == 0
