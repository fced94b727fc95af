"""What newer clients ask a PD, an etcd or a TiKV beyond the registry: answered, or refused with the
reason, and at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from binlogd.grpc.channel import PlainChannel
from binlogd.placement.calls import REASONS
from binlogd.wire.generated import etcdserverpb as etcd
from binlogd.wire.generated import kvrpcpb, pdpb, tikvpb
from binlogd.wire.generated.grpc.health import v1 as health
from tests.support.stand_in import CLUSTER_ID, standing_in


class Message(Protocol):
    def parse(self, data: bytes) -> Self: ...

    def __bytes__(self) -> bytes: ...


M = TypeVar("M", bound=Message)
HEADER = pdpb.RequestHeader(cluster_id=CLUSTER_ID)


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[Channel]:
    async with standing_in(tmp_path) as port, PlainChannel("127.0.0.1", port) as channel:
        yield channel


async def ask(channel: Channel, method: str, request: Message, answer: type[M]) -> M:
    async with channel.request(method, Cardinality.UNARY_UNARY, bytes, bytes) as stream:
        await stream.send_message(bytes(request), end=True)
        return answer().parse(await stream.recv_message() or b"")


async def test_a_client_learns_that_the_time_is_told_here(channel: Channel) -> None:
    info = await ask(
        channel,
        "/pdpb.PD/GetClusterInfo",
        pdpb.GetClusterInfoRequest(),
        pdpb.GetClusterInfoResponse,
    )
    assert info.service_modes == [pdpb.ServiceMode.PD_SVC_MODE]
    assert info.header.cluster_id == CLUSTER_ID
    bootstrapped = await ask(
        channel,
        "/pdpb.PD/IsBootstrapped",
        pdpb.IsBootstrappedRequest(header=HEADER),
        pdpb.IsBootstrappedResponse,
    )
    assert bootstrapped.bootstrapped


async def test_what_garbage_collection_held_for_a_while_is_over_without_harm(
    channel: Channel,
) -> None:
    """A PD keeps its own for ever; whoever gave it an end left nobody anything to hold."""
    key = f"/pd/{CLUSTER_ID}/gc/safe_point/service/gc_worker".encode()
    over = b'{"service_id":"gc_worker","expired_at":1,"safe_point":5}'
    put = etcd.PutRequest(key=key, value=over)
    await ask(channel, "/etcdserverpb.KV/Put", put, etcd.PutResponse)
    for service_id, ttl, safe_point, held in (
        (b"br", 60, 9, 0),
        (b"gc_worker", (1 << 63) - 1, 7, 7),
        (b"gc_worker", (1 << 63) - 1, 11, 9),
        (b"br", 0, 9, 11),
    ):
        request = pdpb.UpdateServiceGcSafePointRequest(
            header=HEADER, service_id=service_id, ttl=ttl, safe_point=safe_point
        )
        answer = await ask(
            channel,
            "/pdpb.PD/UpdateServiceGCSafePoint",
            request,
            pdpb.UpdateServiceGcSafePointResponse,
        )
        assert answer.min_safe_point == held


async def test_the_safe_point_of_collection_never_goes_back(channel: Channel) -> None:
    async def update(safe_point: int) -> int:
        request = pdpb.UpdateGcSafePointRequest(header=HEADER, safe_point=safe_point)
        answer = await ask(
            channel, "/pdpb.PD/UpdateGCSafePoint", request, pdpb.UpdateGcSafePointResponse
        )
        return answer.new_safe_point

    assert [await update(5), await update(1 << 60), await update(7)] == [5, 1 << 60, 1 << 60]
    kept = await ask(
        channel,
        "/pdpb.PD/GetGCSafePoint",
        pdpb.GetGcSafePointRequest(header=HEADER),
        pdpb.GetGcSafePointResponse,
    )
    assert kept.safe_point == 1 << 60


@pytest.mark.parametrize(
    ("method", "request_type", "key"),
    [
        ("GetGCSafePoint", pdpb.GetGcSafePointRequest, ""),
        ("UpdateGCSafePoint", pdpb.UpdateGcSafePointRequest, ""),
        ("UpdateServiceGCSafePoint", pdpb.UpdateServiceGcSafePointRequest, "/service/x"),
    ],
)
async def test_what_is_no_safe_point_is_named(
    channel: Channel, method: str, request_type: Any, key: str
) -> None:
    path = f"/pd/{CLUSTER_ID}/gc/safe_point{key}"
    put = etcd.PutRequest(key=path.encode(), value=b"z")
    await ask(channel, "/etcdserverpb.KV/Put", put, etcd.PutResponse)
    with pytest.raises(GRPCError, match=f"{path}.* holds no safe point: .*delete the key") as said:
        await ask(channel, f"/pdpb.PD/{method}", request_type(header=HEADER), etcd.PutResponse)
    assert said.value.status is Status.UNKNOWN


async def test_settings_of_the_cluster_are_kept(channel: Channel) -> None:
    load, store = "/pdpb.PD/LoadGlobalConfig", "/pdpb.PD/StoreGlobalConfig"
    path = "/global/config/tests/"
    before = await ask(
        channel,
        load,
        pdpb.LoadGlobalConfigRequest(config_path=path),
        pdpb.LoadGlobalConfigResponse,
    )
    assert before.items == []

    async def change(*items: pdpb.GlobalConfigItem) -> None:
        request = pdpb.StoreGlobalConfigRequest(config_path=path, changes=list(items))
        await ask(channel, store, request, pdpb.StoreGlobalConfigResponse)

    put = [pdpb.GlobalConfigItem(name=n, payload=v) for n, v in (("a", b"1"), ("b", b"\xff"))]
    await change(*put)
    await change(pdpb.GlobalConfigItem(name="a", kind=pdpb.EventType(pdpb.EventType.DELETE)))
    named = await ask(
        channel,
        load,
        pdpb.LoadGlobalConfigRequest(config_path=path, names=["b", "a"]),
        pdpb.LoadGlobalConfigResponse,
    )
    found, missing = named.items
    assert (found.name, found.payload, found.error) == ("b", b"\xff", None)
    assert missing.error is not None
    assert missing.error.type == pdpb.ErrorType.GLOBAL_CONFIG_NOT_FOUND


async def test_everything_that_is_not_here_is_refused_with_the_reason(channel: Channel) -> None:
    """Every method of these services that is not answered, those to come as well."""
    methods = dict.fromkeys(REASONS, "AMethodToCome") | {
        "pdpb.PD": "ScatterRegion",
        "etcdserverpb.Lease": "LeaseTimeToLive",
        "etcdserverpb.KV": "Compact",
        "etcdserverpb.Auth": "Authenticate",
        "etcdserverpb.Maintenance": "Snapshot",
    }
    request = pdpb.GetMembersRequest()
    for service, method in methods.items():
        with pytest.raises(GRPCError) as refused:
            await ask(channel, f"/{service}/{method}", request, pdpb.GetMembersResponse)
        assert refused.value.status is Status.UNIMPLEMENTED, method
        assert refused.value.message == f"binlogd stands in for PD: {REASONS[service]}"


KEY = b"k"


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Range", etcd.RangeRequest(key=KEY, revision=1)),
        ("Range", etcd.RangeRequest(key=KEY, min_mod_revision=2)),
        ("Put", etcd.PutRequest(key=KEY, ignore_value=True)),
        ("Txn", etcd.TxnRequest(success=[etcd.RequestOp(request_txn=etcd.TxnRequest())])),
    ],
    ids=["the past", "a bound", "a value that stays", "a transaction within another"],
)
async def test_what_nobody_asks_of_the_keys_is_refused_whole(
    channel: Channel, method: str, request_: Message
) -> None:
    await ask(channel, "/etcdserverpb.KV/Put", etcd.PutRequest(key=KEY), etcd.PutResponse)
    with pytest.raises(GRPCError, match="binlogd stands in for PD: its etcd keeps") as refused:
        await ask(channel, f"/etcdserverpb.KV/{method}", request_, etcd.RangeResponse)
    assert refused.value.status is Status.UNIMPLEMENTED


async def test_the_fate_of_a_transaction_is_refused_and_never_a_rollback(channel: Channel) -> None:
    """By a call of its own, and among others as Go's client sends it."""
    check = kvrpcpb.CheckTxnStatusRequest(primary_key=b"k", lock_ts=1, rollback_if_not_exist=True)
    answer = await ask(
        channel, "/tikvpb.Tikv/KvCheckTxnStatus", check, kvrpcpb.CheckTxnStatusResponse
    )
    assert answer.error is not None
    assert "what became of a transaction cannot be told here" in answer.error.abort
    versions = await ask(
        channel,
        "/tikvpb.Tikv/MvccGetByKey",
        kvrpcpb.MvccGetByKeyRequest(key=b"k"),
        kvrpcpb.MvccGetByKeyResponse,
    )
    assert (versions.error, versions.info) == (answer.error.abort, None)
    async with channel.request(
        "/tikvpb.Tikv/BatchCommands", Cardinality.STREAM_STREAM, bytes, bytes
    ) as stream:
        among = tikvpb.BatchCommandsRequestRequest(check_txn_status=check)
        request = tikvpb.BatchCommandsRequest(requests=[among], request_ids=[3])
        await stream.send_message(bytes(request))
        batch = tikvpb.BatchCommandsResponse().parse(await stream.recv_message() or b"")
        told = batch.responses[0].check_txn_status
        assert told is not None
        assert told.error is not None
        assert told.error.abort == answer.error.abort
        await stream.cancel()


async def test_whoever_asks_for_health_hears_it(channel: Channel) -> None:
    asked = health.HealthCheckRequest()
    check = await ask(channel, "/grpc.health.v1.Health/Check", asked, health.HealthCheckResponse)
    assert check.status == health.HealthCheckResponseServingStatus.SERVING


async def test_a_watch_of_what_is_not_told_is_ended_with_the_reason(channel: Channel) -> None:
    async with channel.request(
        "/etcdserverpb.Watch/Watch", Cardinality.STREAM_STREAM, bytes, bytes
    ) as stream:
        create = etcd.WatchCreateRequest(key=KEY, prev_kv=True)
        await stream.send_message(bytes(etcd.WatchRequest(create_request=create)))
        told = etcd.WatchResponse().parse(await stream.recv_message() or b"")
        assert (told.created, told.canceled) == (True, True)
        assert told.cancel_reason.startswith("binlogd stands in for PD: watches have no")
        await stream.cancel()
