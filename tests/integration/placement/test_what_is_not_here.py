"""What newer clients ask a PD, an etcd or a TiKV beyond the registry: answered, or refused with the
reason, and at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol, Self, TypeVar

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from binlogd.grpc.channel import PlainChannel
from binlogd.placement.refusals import Refusals
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


async def test_no_id_is_given_out_twice(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(2):  # also after another start
        async with standing_in(tmp_path) as port, PlainChannel("127.0.0.1", port) as channel:

            async def one(channel: Channel = channel) -> None:
                request = pdpb.AllocIdRequest(header=HEADER)
                answer = await ask(channel, "/pdpb.PD/AllocID", request, pdpb.AllocIdResponse)
                given.append(answer.id)

            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(one())
    assert len(set(given)) == 10
    assert min(given) > 2, "those of the region and its store"


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


async def test_settings_of_the_cluster_are_kept_and_told(channel: Channel) -> None:
    load, store = "/pdpb.PD/LoadGlobalConfig", "/pdpb.PD/StoreGlobalConfig"
    path = "/global/config/tests/"
    before = await ask(
        channel,
        load,
        pdpb.LoadGlobalConfigRequest(config_path=path),
        pdpb.LoadGlobalConfigResponse,
    )
    assert before.items == []
    async with channel.request(
        "/pdpb.PD/WatchGlobalConfig", Cardinality.UNARY_STREAM, bytes, bytes
    ) as watch:
        since = pdpb.WatchGlobalConfigRequest(config_path=path, revision=before.revision + 1)
        await watch.send_message(bytes(since), end=True)

        async def put(**changes: bytes) -> None:
            items = [
                pdpb.GlobalConfigItem(name=name, payload=value) for name, value in changes.items()
            ]
            request = pdpb.StoreGlobalConfigRequest(config_path=path, changes=items)
            await ask(channel, store, request, pdpb.StoreGlobalConfigResponse)

        async def next_told() -> list[tuple[str, int, bytes]]:
            told = pdpb.WatchGlobalConfigResponse().parse(await watch.recv_message() or b"")
            return [(each.name, each.kind, each.payload) for each in told.changes]

        async with asyncio.timeout(120):
            await put(a=b"1", b=b"\xff")
            assert await next_told() == [(path + "a", 0, b"1"), (path + "b", 0, b"\xff")]
            gone = pdpb.GlobalConfigItem(name="a", kind=pdpb.EventType(pdpb.EventType.DELETE))
            deletes = pdpb.StoreGlobalConfigRequest(config_path=path, changes=[gone])
            await ask(channel, store, deletes, pdpb.StoreGlobalConfigResponse)
            assert await next_told() == [(path + "a", 1, b"")]
        await watch.cancel()
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
    methods = list(Refusals().__mapping__())
    assert "/pdpb.PD/ScatterRegion" in methods
    for method in methods:
        with pytest.raises(GRPCError) as refused:
            await ask(channel, method, pdpb.GetMembersRequest(), pdpb.GetMembersResponse)
        assert refused.value.status is Status.UNIMPLEMENTED, method
        assert (refused.value.message or "").startswith("binlogd stands in for PD: "), method


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
    async with channel.request(
        "/grpc.health.v1.Health/Watch", Cardinality.UNARY_STREAM, bytes, bytes
    ) as watch:
        await watch.send_message(bytes(asked), end=True)
        assert await watch.recv_message() == bytes(check)
        await watch.cancel()


async def test_a_client_with_a_password_hears_that_none_is_needed(channel: Channel) -> None:
    status = await ask(
        channel,
        "/etcdserverpb.Auth/AuthStatus",
        etcd.AuthStatusRequest(),
        etcd.AuthStatusResponse,
    )
    assert not status.enabled
    with pytest.raises(GRPCError, match="etcdserver: authentication is not enabled") as refused:
        await ask(
            channel,
            "/etcdserverpb.Auth/Authenticate",
            etcd.AuthStatusRequest(),
            etcd.AuthStatusResponse,
        )
    assert refused.value.status is Status.FAILED_PRECONDITION
