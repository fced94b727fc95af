"""The TiKV of the tests answers recorded requests as the recorded one did, and our client learns
from it what the original learnt."""

from __future__ import annotations

from grpclib.client import Channel, UnaryUnaryMethod

from binlogd.grpc.channel import BytesCodec
from binlogd.tidb import meta_keys
from binlogd.tidb.model import job_from_json
from binlogd.tso import Tso, plus_ms
from binlogd.wire.generated.kvrpcpb import (
    GetRequest,
    GetResponse,
    MvccGetByKeyRequest,
    MvccGetByKeyResponse,
    ScanRequest,
)
from tests.support.tikv import FakeTikv, asking, tikv
from tests.support.tikv_recordings import Asked, asked

DRAINER = [each for each in asked("drainer") if each.method in ("KvGet", "KvScan")]
GETS = [each for each in DRAINER if each.method == "KvGet"]
(LOOK_UP,) = [each for each in asked("pump") if each.method == "MvccGetByKey"]


def as_recorded(cluster: FakeTikv) -> None:
    """The regions that the recorded requests name, and the keys that they found."""
    for region, number in zip(cluster.regions, (4, 8), strict=True):
        region.id = number
    for each in GETS:
        request, value = GetRequest().parse(each.request), GetResponse().parse(each.answer).value
        if request.key not in cluster.records.writes:
            start_ts = plus_ms(Tso(request.version), -60_000)
            cluster.records.put(request.key, value, start_ts, Tso(start_ts + 1))
    found = MvccGetByKeyResponse().parse(LOOK_UP.answer).info
    assert found is not None
    (write,) = found.writes
    key = MvccGetByKeyRequest().parse(LOOK_UP.request).key
    cluster.records.put(key, write.short_value, Tso(write.start_ts), Tso(write.commit_ts))


async def replayed(cluster: FakeTikv, said: Asked) -> bytes:
    channel = Channel("127.0.0.1", cluster.stores[1].port, codec=BytesCodec())
    try:
        call: UnaryUnaryMethod[bytes, bytes] = UnaryUnaryMethod(
            channel, f"/tikvpb.Tikv/{said.method}", bytes, bytes
        )
        return await call(said.request)
    finally:
        channel.close()


async def test_recorded_requests_are_answered_as_they_were() -> None:
    async with tikv(stores=1) as cluster:
        as_recorded(cluster)
        assert len(GETS) > 40
        for said in [*GETS, LOOK_UP]:
            assert (await replayed(cluster, said)).hex() == said.answer.hex()


async def test_a_recorded_scan_downwards_is_answered_as_it_was() -> None:
    scans = [each for each in DRAINER if each.method == "KvScan"]
    assert scans
    async with tikv(stores=1) as cluster:
        as_recorded(cluster)
        for said in scans:
            request = ScanRequest().parse(said.request)
            assert request.reverse
            assert request.start_key == meta_keys.hash_range(meta_keys.HISTORY).end
            begin = said.answer[:60_000]  # the recording has no more of it
            assert (await replayed(cluster, said))[: len(begin)].hex() == begin.hex()


async def test_the_client_learns_what_the_original_learnt() -> None:
    async with tikv(stores=1) as cluster, asking(cluster) as client:
        as_recorded(cluster)
        for said in GETS:
            request = GetRequest().parse(said.request)
            job_id = meta_keys.job_id_of(meta_keys.field_of(request.key)[1])
            found = await client.get(meta_keys.job_key(job_id), Tso(request.version))
            assert found == GetResponse().parse(said.answer).value
            assert job_from_json(found).id == job_id
        key = MvccGetByKeyRequest().parse(LOOK_UP.request).key
        recorded = MvccGetByKeyResponse().parse(LOOK_UP.answer).info
        assert await client.records(key) == recorded
