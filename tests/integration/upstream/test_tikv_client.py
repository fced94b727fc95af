"""Questions to a TiKV whose regions and stores do what they do in a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.errors import UpstreamUnavailable
from binlogd.host.tls import ClientTls, ServerTls
from binlogd.tidb.meta_keys import KeyRange
from binlogd.tso import Tso, plus_ms
from binlogd.upstream.tikv.client import TikvClient
from binlogd.upstream.tikv.stores import Stores
from binlogd.wire.generated import errorpb, metapb
from tests.support.certificates import Authority
from tests.support.pump_world import eventually
from tests.support.tikv import FakeStore, FakeTikv, asking, tikv

KEY = b"t\x80key"


def fill(cluster: FakeTikv, count: int) -> list[tuple[bytes, bytes]]:
    pairs = [(b"t%05d" % number, b"value %d" % number) for number in range(count)]
    for key, value in pairs:
        ts = cluster.tso.pass_s(0.001)
        cluster.records.put(key, value, ts, Tso(ts + 1))
    cluster.tso.pass_s(1)
    return pairs


async def scanned(
    client: TikvClient, keys: KeyRange, ts: Tso, *, only_keys: bool = False
) -> list[tuple[bytes, bytes]]:
    return [pair async for pairs in client.scan(keys, ts, only_keys=only_keys) for pair in pairs]


async def test_a_value_is_that_of_its_timestamp() -> None:
    async with tikv() as cluster, asking(cluster) as client:
        first, second, third = (cluster.tso.pass_s(1) for _ in range(3))
        cluster.records.put(KEY, b"one", first, Tso(first + 1))
        cluster.records.put(KEY, None, second, Tso(second + 1))
        assert await client.get(KEY, first) is None
        assert await client.get(KEY, second) == b"one"
        assert await client.get(KEY, third) is None


async def test_the_version_of_tikv_is_known_from_the_first_store_that_is_asked() -> None:
    async with tikv() as cluster:
        stores = Stores(cluster)
        assert stores.version == ""
        await stores.connection(1)
        assert stores.version == "7.1.5"
        stores.close()


async def test_a_region_is_asked_for_once_and_then_known() -> None:
    async with tikv(cuts=(b"t", b"u")) as cluster, asking(cluster) as client:
        now = await cluster.tso.next()
        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(client.get(b"t%d" % number, now))
        assert cluster.calls["KvGet"] == 200
        assert cluster.calls["GetRegion"] <= 8
        before = cluster.calls["GetRegion"]
        await client.get(b"t5", now)
        assert cluster.calls["GetRegion"] == before


async def test_a_scan_crosses_the_borders_of_regions_and_answers() -> None:
    async with tikv(cuts=(b"t", b"t00003", b"t00100", b"t00101", b"u")) as cluster:
        pairs = fill(cluster, 300)
        async with asking(cluster) as client:
            now = await cluster.tso.next()
            keys = KeyRange(b"t", b"u")
            assert await scanned(client, keys, now) == pairs
            only = await scanned(client, keys, now, only_keys=True)
            assert only == [(key, b"") for key, _ in pairs]
            some = KeyRange(b"t00002", b"t00101\x00")
            assert await scanned(client, some, now) == pairs[2:102]
            assert await scanned(client, KeyRange(b"a", b""), now) == pairs
            assert await scanned(client, KeyRange(b"x", b"y"), now) == []


def splits(cluster: FakeTikv) -> None:
    cluster.split(b"t00150")


def moves(cluster: FakeTikv) -> None:
    cluster.move(KEY, 2, 3)


def leads_elsewhere(cluster: FakeTikv) -> None:
    region = cluster.region_of(KEY)
    region.leader = 3 if region.leader != 3 else 1


def is_restored_under_another_id(cluster: FakeTikv) -> None:
    cluster.region_of(KEY).id += 50


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (splits, {"epoch_not_match"}),
        (moves, {"not_leader", "epoch_not_match", "region_not_found"}),
        (leads_elsewhere, {"not_leader"}),
        (is_restored_under_another_id, {"region_not_found"}),
    ],
)
async def test_what_changes_between_two_questions_is_found_again(
    change: Callable[[FakeTikv], None], kinds: set[str]
) -> None:
    async with tikv(stores=3) as cluster, asking(cluster) as client:
        pairs = fill(cluster, 300)
        now = await cluster.tso.next()
        assert await scanned(client, KeyRange(b"t", b"u"), now) == pairs
        change(cluster)
        assert await scanned(client, KeyRange(b"t", b"u"), now) == pairs
        met = client.statistics().router.region_errors
        assert met
        assert set(met) <= kinds


async def test_a_scan_goes_on_while_regions_split_and_leaders_move() -> None:
    async with tikv(stores=3, cuts=(b"t",)) as cluster, asking(cluster) as client:
        pairs = fill(cluster, 400)
        cuts = iter(range(399, 0, -27))

        def shake(_: str, key: bytes) -> None:
            cut = next(cuts, None) if cluster.calls["KvScan"] % 3 == 0 else None
            if cut is not None:
                cluster.split(b"t%05d" % cut)
                region = cluster.region_of(key)
                region.leader = (region.leader or 1) % 3 + 1

        now = await cluster.tso.next()
        cluster.before_call = shake
        assert await scanned(client, KeyRange(b"t", b"u"), now) == pairs
        assert len(cluster.regions) > 6


async def test_pd_is_asked_when_stores_send_on_to_each_other() -> None:
    async with tikv(stores=2) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        region = cluster.region_of(b"t00000")
        for number in range(9):
            elsewhere = errorpb.NotLeader(region.id, region.peer(number % 2 + 1))
            cluster.errors.append(errorpb.Error(message="not I", not_leader=elsewhere))
        assert await client.get(b"t00000", await cluster.tso.next()) == b"value 0"
        assert cluster.calls["GetRegion"] >= 3
        assert cluster.calls["GetStore"] == 2


async def test_a_region_without_a_leader_is_waited_for() -> None:
    async with tikv(stores=3) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        region = cluster.region_of(b"t00000")
        region.leader = None
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(client.get(b"t00000", await cluster.tso.next()))
            await eventually(lambda: client.statistics().router.waits.get("leaderless", 0) > 1)
            region.leader = 2
        assert asked.result() == b"value 0"


async def test_a_pd_that_has_just_started_and_knows_no_leader_holds_nobody_up() -> None:
    async with tikv(stores=3) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        cluster.pd_has_just_started = True
        cluster.region_of(b"t00000").leader = 3
        assert await client.get(b"t00000", await cluster.tso.next()) == b"value 0"
        assert cluster.calls["KvGet"] == 2, "the first peer said who leads"
        assert cluster.calls["GetRegion"] == 1
        cluster.region_of(b"t00000").leader = 2
        await cluster.stores[1].stop()
        assert await client.get(b"t00000", await cluster.tso.next()) == b"value 0"


async def test_a_store_that_dies_hands_over_to_the_next_leader() -> None:
    async with tikv(stores=3) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        now = await cluster.tso.next()
        assert await client.get(b"t00000", now) == b"value 0"
        region = cluster.region_of(b"t00000")
        assert region.leader is not None
        await cluster.stores[region.leader].stop()
        region.leader = region.leader % 3 + 1
        assert await client.get(b"t00000", now) == b"value 0"
        assert client.statistics().router.region_errors == {"transport": 1}


async def test_a_store_that_comes_back_elsewhere_is_found_at_its_new_address() -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        now = await cluster.tso.next()
        assert await client.get(b"t00000", now) == b"value 0"
        await cluster.stores[1].stop()
        await cluster.stores[1].start()
        assert await client.get(b"t00000", now) == b"value 0"


async def test_the_address_of_another_store_is_noticed() -> None:
    async with tikv(stores=2) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        now = await cluster.tso.next()
        assert await client.get(b"t00000", now) == b"value 0"
        one, two = cluster.stores[1], cluster.stores[2]
        one.id, two.id = 2, 1  # they have swapped their disks
        cluster.stores = {1: two, 2: one}
        assert await client.get(b"t00000", now) == b"value 0"
        assert client.statistics().router.region_errors == {"store_not_match": 1}


async def test_a_store_that_is_gone_for_good_is_not_called() -> None:
    async with tikv(stores=2) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        region = cluster.region_of(b"t00000")
        assert region.leader is not None
        gone: FakeStore = cluster.stores[region.leader]
        gone.state = metapb.StoreState(metapb.StoreState.Tombstone)
        now = await cluster.tso.next()
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(client.get(b"t00000", now))
            await eventually(lambda: client.statistics().router.waits.get("silent", 0) > 0)
            region.leader = region.leader % 2 + 1
        assert asked.result() == b"value 0"
        assert not gone.calls


async def test_a_store_that_hangs_costs_one_call_and_the_question_its_deadline() -> None:
    async with tikv(stores=1) as cluster:
        fill(cluster, 1)
        now = await cluster.tso.next()
        async with asking(cluster, question_s=1.5, call_s=0.5) as client:
            cluster.stores[1].hangs = True
            with pytest.raises(UpstreamUnavailable, match=r"in 1\.5 s and \d+ attempts.*store 1"):
                await client.get(b"t00000", now)
            assert client.statistics().overdue == 1
            cluster.stores[1].hangs = False
            assert await client.get(b"t00000", now) == b"value 0"


async def test_an_answer_that_is_an_error_of_one_call_leaves_the_connection_to_the_others() -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        fails = iter([True])

        def answer_an_error(_: str, __: bytes) -> None:
            if next(fails, False):
                raise GRPCError(Status.UNKNOWN, "the store is confused")

        cluster.before_call = answer_an_error
        assert await client.get(b"t00000", await cluster.tso.next()) == b"value 0"
        assert cluster.calls["KvGet"] == 2
        assert cluster.calls["GetStore"] == 1


async def test_a_busy_store_is_left_alone_for_a_second_at_least() -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        cluster.errors.append(errorpb.Error(server_is_busy=errorpb.ServerIsBusy("scheduler")))
        assert await client.get(b"t00000", await cluster.tso.next()) == b"value 0"
        found = client.statistics().router
        assert found.region_errors == {"server_is_busy": 1}
        assert 1 <= found.waited_s["busy"] <= 2
        assert cluster.calls["GetRegion"] == 1


@pytest.mark.parametrize(
    "error",
    [
        errorpb.Error(stale_command=errorpb.StaleCommand()),
        errorpb.Error(region_not_initialized=errorpb.RegionNotInitialized(1)),
        errorpb.Error(max_timestamp_not_synced=errorpb.MaxTimestampNotSynced()),
        errorpb.Error(message="of a TiKV that is newer"),
    ],
)
async def test_what_is_not_ready_is_asked_again(error: errorpb.Error) -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        fill(cluster, 1)
        cluster.errors.extend([error, error])
        assert await client.get(b"t00000", await cluster.tso.next()) == b"value 0"
        assert cluster.calls["KvGet"] == 3


async def test_a_question_that_can_never_be_answered_fails_at_once() -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        fall_back = errorpb.FlashbackInProgress(region_id=2)
        cluster.errors.append(errorpb.Error(message="back", flashback_in_progress=fall_back))
        with pytest.raises(UpstreamUnavailable, match="flashback_in_progress: back"):
            await client.get(b"t00000", await cluster.tso.next())
        assert cluster.calls["KvGet"] == 1


async def test_without_pd_what_is_known_is_still_answered_and_the_rest_says_why_not() -> None:
    async with tikv(stores=1) as cluster, asking(cluster, question_s=1.5) as client:
        fill(cluster, 1)
        now = await cluster.tso.next()
        assert await client.get(b"t00000", now) == b"value 0"
        cluster.pd_is_down = True
        assert await client.get(b"t00000", now) == b"value 0"
        with pytest.raises(UpstreamUnavailable, match="PD: connection refused"):
            await client.get(b"a", now)


async def test_stores_are_spoken_to_by_tls_and_only_to_those_that_are_trusted(
    tmp_path: Path,
) -> None:
    ours, strangers = Authority(tmp_path / "ours"), Authority(tmp_path / "strangers")
    pair, own = ours.issue("tikv", "tikv"), ours.issue("binlogd")
    async with tikv(stores=1) as cluster:
        fill(cluster, 1)
        now = await cluster.tso.next()
        await cluster.stores[1].stop()
        await cluster.stores[1].start(ServerTls(ours.files(pair, "binlogd", "binlog")))
        trusting = ClientTls(ours.files(own, "tikv"), is_grpc=True)
        async with asking(cluster, tls=trusting) as client:
            assert await client.get(b"t00000", now) == b"value 0"
        for tls, said in (
            (ClientTls(strangers.files(own), is_grpc=True), "CERTIFICATE_VERIFY_FAILED"),
            (ClientTls(ours.files(own, "other"), is_grpc=True), "Common Name"),
            (None, "store 1"),
        ):
            async with asking(cluster, question_s=1.0, tls=tls) as client:
                with pytest.raises(UpstreamUnavailable, match=said):
                    await client.get(b"t00000", now)


# --- locks ---------------------------------------------------------------------------------


async def test_a_read_waits_for_a_lock_that_lives() -> None:
    async with tikv() as cluster, asking(cluster) as client:
        fill(cluster, 3)
        start_ts = await cluster.tso.next()
        cluster.records.prewrite({b"t00001": b"new"}, start_ts, ttl_ms=60_000)
        now = cluster.tso.pass_s(1)
        async with asyncio.TaskGroup() as group:
            before = group.create_task(client.get(b"t00001", Tso(start_ts - 1)))
            after = group.create_task(client.get(b"t00001", now))
            everything = group.create_task(scanned(client, KeyRange(b"t", b"u"), now))
            await eventually(lambda: client.statistics().locks_met > 1)
            cluster.records.commit([b"t00001"], start_ts, Tso(now - 1))
        assert before.result() == b"value 1"
        assert after.result() == b"new"
        assert everything.result()[1] == (b"t00001", b"new")
        assert client.statistics().locks_resolved == 0


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_lock_whose_time_is_over_is_resolved_as_its_primary_says(
    is_committed: bool,  # noqa: FBT001 # a parameter of the test
) -> None:
    primary, secondary = b"m primary", b"t00001"
    async with tikv() as cluster, asking(cluster) as client:
        fill(cluster, 3)
        start_ts = await cluster.tso.next()
        cluster.records.prewrite(
            {primary: b"p", secondary: b"new"}, start_ts, primary=primary, ttl_ms=3000
        )
        if is_committed:
            cluster.records.commit([primary], start_ts, plus_ms(start_ts, 10))
        now = cluster.tso.pass_s(4)
        assert await client.get(secondary, now) == (b"new" if is_committed else b"value 1")
        assert client.statistics().locks_resolved == 1
        assert not cluster.records.locks.keys() - {primary}
        assert (primary in cluster.records.locks) is False


async def test_the_lock_of_an_async_commit_is_not_touched() -> None:
    async with tikv() as cluster, asking(cluster, question_s=0.5) as client:
        fill(cluster, 3)
        start_ts = await cluster.tso.next()
        cluster.records.prewrite({b"t00001": b"new"}, start_ts, ttl_ms=10, is_async=True)
        now = cluster.tso.pass_s(60)
        with pytest.raises(UpstreamUnavailable, match=f"locked by transaction start_ts {start_ts}"):
            await client.get(b"t00001", now)
        assert b"t00001" in cluster.records.locks
        assert cluster.calls["KvCheckTxnStatus"] == 0
