"""PD's client against members that move, die, hang and come back, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from binlogd.errors import ConfigError, UpstreamUnavailable
from binlogd.host.tls import ClientTls, ServerTls
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.cluster import open_cluster
from binlogd.upstream.pd.leader import PdLimits
from binlogd.upstream.pd.members import Address
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.tikv.regions import Region
from binlogd.wire.generated import metapb
from tests.support.certificates import Authority
from tests.support.pd_cluster import CLUSTER_ID, pd_cluster
from tests.support.ports import free_port
from tests.support.pump_world import eventually

QUICK = PdLimits(
    call_s=1.0,
    connect_s=1.0,
    question_s=60.0,
    pause_s=0.01,
    pause_s_max=0.05,
    look_again_s=0.05,
    tso_every_s=0.05,
)
"""Patient with the cluster, for it answers in the end; brief with a member that hangs."""
BRIEF = replace(QUICK, question_s=1.0)
"""For who shall give up."""


@asynccontextmanager
async def opened(
    addresses: Sequence[Address], tls: ClientTls | None = None, limits: PdLimits = QUICK
) -> AsyncIterator[PdClient]:
    client = PdClient(addresses, tls, limits)
    try:
        yield client
    finally:
        await client.close()


def nobody() -> Address:
    """An address at which nobody listens."""
    return "127.0.0.1", free_port()


# --- finding the leader ---------------------------------------------------------------------


async def test_the_first_member_that_answers_leads_to_the_leader() -> None:
    async with pd_cluster(3) as pd:
        pd.leader = pd.members[2]
        await pd.members[0].stop()
        pd.members[1].answers.clear()
        async with opened([nobody(), *pd.addresses]) as client:
            assert await client.cluster_id() == CLUSTER_ID
            told = client.statistics()
        assert (told.leader, told.trouble) == ("pd2", "")
        assert told.address == f"127.0.0.1:{pd.members[2].address[1]}"


async def test_an_answer_comes_from_the_new_leader_when_the_old_one_says_that_it_is_none() -> None:
    async with pd_cluster(3) as pd, opened(pd.addresses[:1]) as client:
        pd.gc_safe_point = 7
        await client.cluster_id()
        for leader in (1, 2, 0, 2):
            pd.leader = pd.members[leader]
            assert await client.gc_safe_point(NO_TS) == 7
        assert client.statistics().leader_changes == 4


async def test_a_leader_that_died_is_waited_for_until_another_one_is_elected() -> None:
    async with pd_cluster(3) as pd, opened(pd.addresses[:1]) as client:
        pd.gc_safe_point = 7
        await client.cluster_id()
        pd.leader = None
        await pd.members[0].stop()  # the only one that the configuration names
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(client.gc_safe_point(NO_TS))
            await asyncio.sleep(0.1)
            assert not asked.done()
            pd.leader = pd.members[1]
        assert asked.result() == 7
        assert client.statistics().leader == "pd1"


async def test_a_leader_that_hangs_is_left() -> None:
    async with pd_cluster(2) as pd, opened(pd.addresses) as client:
        pd.gc_safe_point = 7
        await client.cluster_id()
        pd.members[0].answers.clear()
        pd.leader = pd.members[1]
        assert await client.gc_safe_point(NO_TS) == 7


async def test_a_member_that_hangs_costs_its_time_once() -> None:
    limits = replace(QUICK, connect_s=2.0, question_s=1.5)
    async with pd_cluster(3) as pd, opened(pd.addresses, limits=limits) as client:
        pd.gc_safe_point, pd.leader = 7, pd.members[1]
        pd.members[0].answers.clear()
        await client.cluster_id(patience_s=60)
        for leader in (2, 1):
            pd.leader = pd.members[leader]
            assert await client.gc_safe_point(NO_TS) == 7


async def test_a_member_that_names_a_dead_leader_does_not_keep_others_from_being_asked() -> None:
    async with pd_cluster(2) as stale, pd_cluster(1) as pd:
        pd.gc_safe_point = 7
        stale.advertises = f"127.0.0.1:{nobody()[1]}"
        await stale.members[0].stop()
        async with opened([stale.members[1].address, *pd.addresses]) as client:
            assert await client.gc_safe_point(NO_TS) == 7


async def test_a_leader_that_moves_without_an_error_is_followed() -> None:
    async with pd_cluster(2) as pd, opened(pd.addresses) as client:
        await client.cluster_id()
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            following = group.create_task(client.run())
            pd.leader = pd.members[1]
            await eventually(lambda: client.statistics().leader == "pd1")
            following.cancel()


async def test_a_leader_out_of_reach_is_spoken_to_through_the_member_that_answers() -> None:
    async with pd_cluster(2) as pd, opened(pd.addresses[:1]) as client:
        pd.leader, pd.gc_safe_point = pd.members[1], 7
        pd.advertises = f"127.0.0.1:{nobody()[1]}"  # as a container's name is to who is outside
        assert await client.gc_safe_point(NO_TS) == 7
        assert pd.forwarded == 1


# --- away ----------------------------------------------------------------------------------


async def test_a_pd_that_is_away_is_said_with_its_addresses_and_found_again_by_itself() -> None:
    limits = replace(QUICK, question_s=1.5)
    async with pd_cluster(1) as pd, opened(pd.addresses, limits=limits) as client:
        pd.gc_safe_point = 7
        assert await client.gc_safe_point(NO_TS) == 7
        await pd.members[0].stop()
        with pytest.raises(UpstreamUnavailable, match=r"given up after 1\.5 s") as refused:
            await client.gc_safe_point(NO_TS)
        assert f"upstream.pd-urls: 127.0.0.1:{pd.members[0].address[1]}" in str(refused.value)
        assert "PD" in client.statistics().trouble
        await pd.members[0].start()
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            following = group.create_task(client.run())
            await eventually(lambda: not client.statistics().trouble)
            following.cancel()
        assert await client.gc_safe_point(NO_TS) == 7


async def test_a_pd_without_a_tikv_is_not_away_and_says_so_at_once(tmp_path: Path) -> None:
    keyspace = await KeyspaceStore.open(tmp_path / "etcd.db", Random(1))
    async with pd_cluster(1, keyspace=keyspace) as pd, opened(pd.addresses) as client:
        pd.has_cluster = False
        await client.cluster_id()
        with capture_logs() as logged:
            for question in (client.region(b"k"), client.store(1), client.gc_safe_point(NO_TS)):
                with pytest.raises(UpstreamUnavailable, match="no TiKV has joined this PD yet"):
                    await question
        assert "pd_lost" not in [each["event"] for each in logged]
        assert client.statistics().trouble == ""
        pd.has_cluster = True
        assert await client.gc_safe_point(NO_TS) == 0
    await keyspace.close()


async def test_while_pd_is_known_to_be_away_a_question_costs_one_try() -> None:
    async with opened([nobody()], limits=BRIEF) as client:
        for _ in range(2):
            with pytest.raises(UpstreamUnavailable):
                await client.gc_safe_point(NO_TS)
        first = client.statistics()
        for _ in range(3):
            with pytest.raises(UpstreamUnavailable):
                await client.gc_safe_point(NO_TS)
        assert client.statistics().errors == first.errors + 3


# --- regions, stores, safe points ----------------------------------------------------------


async def test_regions_and_stores_are_found_or_said_to_be_unknown() -> None:
    async with pd_cluster(1) as pd, opened(pd.addresses) as client:
        leader = metapb.Peer(id=5, store_id=1)
        region = metapb.Region(
            id=4,
            start_key=b"m\x00\x00\x00\x00\x00\x00\x00\xf8",
            end_key=b"n\x00\x00\x00\x00\x00\x00\x00\xf8",
            region_epoch=metapb.RegionEpoch(conf_ver=1, version=1),
            peers=[leader],
        )
        pd.regions = [(region, leader)]
        pd.stores = {1: metapb.Store(id=1, address="tikv0:20160")}
        await client.cluster_id()
        assert await client.region(b"mDDLJobHi\xff") == Region.of(region, leader)
        assert await client.region(b"x") is None
        store = await client.store(1)
        assert store is not None
        assert store.address == "tikv0:20160"
        for pd.is_old in (False, True):
            assert await client.store(9) is None
        assert client.statistics().errors == 0


async def test_a_gc_safe_point_that_is_held_is_told_and_let_go() -> None:
    async with pd_cluster(1) as pd, opened(pd.addresses) as client:
        pd.services = {b"gc_worker": 100}
        await client.cluster_id()
        assert await client.hold_gc("binlogd", Tso(150), 300) == 100
        assert pd.services == {b"gc_worker": 100, b"binlogd": 150}
        assert await client.hold_gc("late", Tso(50), 300) == 100  # above 50: it came too late
        await client.hold_gc("binlogd", Tso(0), 0)
        assert pd.services == {b"gc_worker": 100}


async def test_garbage_collection_that_has_begun_counts_although_pd_says_so_last() -> None:
    async with pd_cluster(1) as pd, opened(pd.addresses) as client:
        await client.cluster_id()
        pd.gc_safe_point, pd.services = 100, {b"gc_worker": 100, b"br": 120}
        assert await client.gc_safe_point(Tso(100)) == 100
        pd.services[b"gc_worker"] = 110  # ranges of dropped tables are being destroyed
        assert await client.gc_safe_point(Tso(100)) == 110
        asked = client.statistics().requests
        assert await client.gc_safe_point(Tso(99)) == 100
        assert client.statistics().requests == asked + 1, "PD itself says enough of that"
        assert pd.services == {b"gc_worker": 110, b"br": 120}


# --- whose PD it is ------------------------------------------------------------------------


async def test_a_pd_of_another_cluster_is_refused_at_the_start_and_later(tmp_path: Path) -> None:
    store = await UpstreamStore.open(tmp_path / "upstream.db")
    async with pd_cluster(1) as pd, opened(pd.addresses, limits=BRIEF) as client:
        assert (await open_cluster(store, client, 0)).cluster_id == CLUSTER_ID
        pd.cluster_id = 5  # somebody else's took its place
        with pytest.raises(UpstreamUnavailable, match="belongs to cluster 5"):
            await client.gc_safe_point(NO_TS)
        assert "belongs to cluster 5" in client.statistics().trouble
    async with pd_cluster(1) as other, opened(other.addresses) as client:
        other.cluster_id = 5
        with pytest.raises(
            ConfigError, match=f"of cluster 5, but this data directory.*{CLUSTER_ID}"
        ):
            await open_cluster(store, client, 0)
    await store.close()


async def test_a_configured_cluster_id_is_held_against_pd(tmp_path: Path) -> None:
    store = await UpstreamStore.open(tmp_path / "upstream.db")
    async with pd_cluster(1) as pd, opened(pd.addresses) as client:
        with pytest.raises(ConfigError, match=r"upstream\.cluster-id is 8"):
            await open_cluster(store, client, 8)
    await store.close()


async def test_a_data_directory_that_knows_its_cluster_opens_without_pd(tmp_path: Path) -> None:
    store = await UpstreamStore.open(tmp_path / "upstream.db")
    away = [nobody()]
    async with opened(away, limits=BRIEF) as client:
        with pytest.raises(UpstreamUnavailable):
            await open_cluster(store, client, 0)
    async with pd_cluster(1) as pd, opened(pd.addresses) as client:
        await open_cluster(store, client, 0)
    async with opened(away, limits=BRIEF) as client:
        assert (await open_cluster(store, client, 0)).cluster_id == CLUSTER_ID
    await store.close()


# --- TLS -----------------------------------------------------------------------------------


async def test_pd_is_spoken_to_by_tls_and_only_by_who_trusts_it(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    server = authority.issue("pd")
    client_pair = authority.issue("binlogd")
    async with pd_cluster(2, ServerTls(authority.files(server))) as pd:
        trusting = ClientTls(authority.files(client_pair), is_grpc=True)
        pd.leader = pd.members[1]
        async with opened(pd.addresses[:1], trusting) as client:
            assert await client.cluster_id() == CLUSTER_ID
            assert client.statistics().leader == "pd1"
        foreign = ClientTls(stranger.files(stranger.issue("binlogd")), is_grpc=True)
        async with opened(pd.addresses, foreign, BRIEF) as client:
            with pytest.raises(UpstreamUnavailable, match="certificate is not trusted"):
                await client.cluster_id()
        async with opened(pd.addresses, limits=BRIEF) as client:
            with pytest.raises(UpstreamUnavailable):
                await client.cluster_id()
