"""PD's protocol as it was recorded: what real programs asked is what is asked here, and what a real
PD answered is understood."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from binlogd.grpc.channel import BytesCodec
from binlogd.tidb.meta_keys import key_of_pd
from binlogd.tso import Tso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.leader import PdLimits
from binlogd.upstream.pd.tso import PdTso
from binlogd.wire.generated import pdpb
from tests.support.pd_cluster import CLUSTER_ID
from tests.support.wire_recordings import Call, calls

CLIENTS = ("pump", "drainer", "tidb", "binlogctl")
REQUESTS: Mapping[str, Callable[[], Any]] = {
    "/pdpb.PD/GetMembers": pdpb.GetMembersRequest,
    "/pdpb.PD/Tso": pdpb.TsoRequest,
    "/pdpb.PD/GetRegion": pdpb.GetRegionRequest,
    "/pdpb.PD/GetStore": pdpb.GetStoreRequest,
    "/pdpb.PD/GetAllStores": pdpb.GetAllStoresRequest,
    "/pdpb.PD/UpdateServiceGCSafePoint": pdpb.UpdateServiceGcSafePointRequest,
}
RESPONSES: Mapping[str, Callable[[], Any]] = {
    "/pdpb.PD/GetMembers": pdpb.GetMembersResponse,
    "/pdpb.PD/Tso": pdpb.TsoResponse,
    "/pdpb.PD/GetRegion": pdpb.GetRegionResponse,
    "/pdpb.PD/GetStore": pdpb.GetStoreResponse,
    "/pdpb.PD/GetAllStores": pdpb.GetAllStoresResponse,
    "/pdpb.PD/UpdateServiceGCSafePoint": pdpb.UpdateServiceGcSafePointResponse,
}
NOT_ASKED = {"/pdpb.PD/LoadGlobalConfig"}  # by TiDB alone


def recorded(method: str = "") -> list[Call]:
    found = [call for who in CLIENTS for call in calls(who, "pd", "pdpb.PD")]
    return [each for each in found if method in each.method and each.method not in NOT_ASKED]


class Replay:
    """Answers a request with what the real PD answered to the same bytes, and to no others."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._answers = {
            (call.method, request): response
            for call in recorded()
            for request, response in zip(call.requests, call.responses, strict=False)
        }
        self._members = b""

    def lead_to(self, port: int) -> None:
        """The addresses that were recorded are nobody's here: the leader is this server."""
        (real, *_) = recorded("GetMembers")
        answer = pdpb.GetMembersResponse().parse(real.responses[0])
        answer.leader.client_urls = [f"http://127.0.0.1:{port}"]
        self._members = bytes(answer)

    def __mapping__(self) -> Mapping[str, Handler]:
        def handler(method: str) -> Handler:
            async def answer(stream: Stream[bytes, bytes]) -> None:
                while (request := await stream.recv_message()) is not None:
                    await stream.send_message(self._answer(method, request))

            is_stream = method.endswith("/Tso")
            kind = Cardinality.STREAM_STREAM if is_stream else Cardinality.UNARY_UNARY
            return Handler(answer, kind, bytes, bytes)

        return {method: handler(method) for method in REQUESTS}

    def _answer(self, method: str, request: bytes) -> bytes:
        self.heard.append((method, request))
        if (method, request) not in self._answers:
            raise GRPCError(Status.INVALID_ARGUMENT, f"nobody asked {request.hex()}")
        return self._members if method.endswith("GetMembers") else self._answers[method, request]


@asynccontextmanager
async def replayed() -> AsyncIterator[tuple[Replay, PdClient]]:
    replay = Replay()
    server = Server([replay], codec=BytesCodec())
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    await server.start(sock=listening)
    replay.lead_to(port)
    client = PdClient([("127.0.0.1", port)], limits=PdLimits(question_s=60.0))
    try:
        yield replay, client
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("method", sorted(REQUESTS))
def test_every_recorded_request_has_only_what_the_messages_here_have(method: str) -> None:
    requests = [request for call in recorded(method) for request in call.requests]
    assert requests
    for raw in requests:
        assert bytes(REQUESTS[method]().parse(raw)) == raw


@pytest.mark.parametrize("method", sorted(RESPONSES))
def test_every_recorded_response_is_understood(method: str) -> None:
    responses = [response for call in recorded(method) for response in call.responses]
    assert responses
    for raw in responses:
        answer = RESPONSES[method]().parse(raw)
        assert answer.header.cluster_id == CLUSTER_ID
        assert answer.header.error.type == pdpb.ErrorType.OK


async def test_a_client_says_what_the_originals_said_and_reads_what_they_were_told() -> None:
    async with replayed() as (replay, client):
        assert await client.cluster_id() == CLUSTER_ID
        tso = PdTso(client)
        times = {
            (stamp.physical << 18) + stamp.logical
            for call in recorded("Tso")
            for stamp in (pdpb.TsoResponse().parse(raw).timestamp for raw in call.responses)
        }
        assert await tso.next() in times
        await tso.close()
        store = await client.store(1)
        assert store is not None
        assert (store.id, store.address) == (1, "127.0.0.1:42260")
        assert {method for method, _ in replay.heard} == {
            "/pdpb.PD/GetMembers",
            "/pdpb.PD/Tso",
            "/pdpb.PD/GetStore",
        }


async def test_a_region_is_asked_for_as_the_originals_do_but_without_buckets() -> None:
    async with replayed() as (replay, client):
        await client.cluster_id()
        (real, *_) = recorded("GetRegion")
        asked = pdpb.GetRegionRequest().parse(real.requests[0])
        asked.need_buckets = False  # statistics of the keys, which cost PD something
        replay._answers["/pdpb.PD/GetRegion", bytes(asked)] = real.responses[0]  # the test's own
        region = await client.region(asked.region_key)
        assert region is not None
        assert region.holds(key_of_pd(asked.region_key))
        assert region.leader is not None
        assert region.leader.store_id == 1


async def test_a_gc_safe_point_is_held_in_the_words_of_tidb() -> None:
    async with replayed() as (_, client):
        await client.cluster_id()
        (real,) = recorded("UpdateServiceGCSafePoint")
        asked = pdpb.UpdateServiceGcSafePointRequest().parse(real.requests[0])
        held = await client.hold_gc("gc_worker", Tso(asked.safe_point), asked.ttl)
        assert (
            held == pdpb.UpdateServiceGcSafePointResponse().parse(real.responses[0]).min_safe_point
        )
