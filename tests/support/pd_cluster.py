"""A scripted PD of several members on real sockets: it speaks what was recorded of a real one, and
does on command what real ones do now and then: leaders move, members die or hang, clocks step.

What a member that is not the leader answers is PD's own (server/grpc_service.go, server/tso).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.events import RecvRequest, listen
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from binlogd.grpc.methods import OpenStreams
from binlogd.host.tls import ServerTls
from binlogd.placement.etcd_services import EtcdServices
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.pd.members import Address
from binlogd.wire.generated import metapb, pdpb
from tests.support.ending_server import EndingServer
from tests.support.ports import free_port

CLUSTER_ID = 7710478698719943560
UNKNOWN = pdpb.ErrorType(pdpb.ErrorType.UNKNOWN)
NOT_BOOTSTRAPPED = pdpb.Error(
    type=pdpb.ErrorType(pdpb.ErrorType.NOT_BOOTSTRAPPED), message="cluster is not bootstrapped"
)
_FORWARDED: ContextVar[str] = ContextVar("forwarded", default="")
_CALL: ContextVar[Stream[Any, Any]] = ContextVar("call")


@dataclass
class PdCluster:
    """What the members agree on; `now_ms` is their clock."""

    cluster_id: int = CLUSTER_ID
    now_ms: int = 1_795_235_790_872
    leader: PdMember | None = None
    members: list[PdMember] = field(default_factory=list)
    stores: dict[int, metapb.Store] = field(default_factory=dict)
    regions: list[tuple[metapb.Region, metapb.Peer]] = field(default_factory=list)
    gc_safe_point: int = 0
    services: dict[bytes, int] = field(default_factory=lambda: {b"gc_worker": 0})
    tso_requests: int = 0
    tso_delay_s: float = 0.0
    forwarded: int = 0
    has_cluster: bool = True
    """Not before the first TiKV, and for a moment not either where a leader lets go."""
    is_campaigning: bool = False
    """The leader of before is still on record, and does not lead yet: all have started anew."""
    is_old: bool = False
    """Speaks as PD did up to 5.4."""
    keyspace: KeyspaceStore | None = None
    """The etcd inside of PD; without it there is none."""
    advertises: str = ""
    """The leader's address as it is told, where it is not the one that it listens on."""
    _physical: int = 0
    _logical: int = 0

    @property
    def addresses(self) -> list[Address]:
        """Of all members."""
        return [member.address for member in self.members]

    def step_clock(self, ms: int) -> None:
        """Back in time, the record of what was told is lost as well."""
        self.now_ms += ms
        self._physical = self._logical = 0

    def timestamps(self, count: int) -> pdpb.Timestamp:
        """The last of `count`."""
        if self._physical < self.now_ms:
            self._physical, self._logical = self.now_ms, 0
        self._logical += count
        return pdpb.Timestamp(physical=self._physical, logical=self._logical)


class _Codec(CodecBase):
    """Messages of betterproto, and bytes where a service takes those."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data if message_type is bytes else message_type().parse(data)


class PdMember(pdpb.PdBase):
    """One server. It can be stopped and started again at the same port."""

    def __init__(self, name: str, cluster: PdCluster, tls: ServerTls | None = None) -> None:
        self.name, self.cluster = name, cluster
        self.address: Address = ("127.0.0.1", free_port())
        self.answers = asyncio.Event()
        """Not set while it hangs."""
        self.answers.set()
        self._tls = tls
        self._server: EndingServer | None = None
        self._streams = OpenStreams()

    async def start(self) -> None:
        keyspace = self.cluster.keyspace
        etcd: list[Any] = []
        if keyspace is not None:
            self._streams = OpenStreams()
            etcd = [EtcdServices(keyspace, self._streams, name=self.name, url="")]
        self._server = EndingServer([self, *etcd], codec=_Codec())
        listen(self._server, RecvRequest, _note_call)
        context = self._tls.fresh() if self._tls is not None else None
        listening = socket.create_server(self.address)
        await self._server.start(sock=listening, ssl=context)

    @property
    def is_stopped(self) -> bool:
        return self._server is None

    async def stop(self) -> None:
        if self._server is not None:
            self._streams.close()
            await self._server.end()
            self._server = None

    # --- the protocol -----------------------------------------------------------------------

    async def get_members(
        self, get_members_request: pdpb.GetMembersRequest
    ) -> pdpb.GetMembersResponse:
        await self.answers.wait()
        cluster = self.cluster
        leader = cluster.leader
        return pdpb.GetMembersResponse(
            header=self._header(),
            members=[each.described() for each in cluster.members],
            leader=leader.described() if leader is not None else pdpb.Member(),
            etcd_leader=leader.described() if leader is not None else pdpb.Member(),
        )

    async def tso(
        self, tso_request_iterator: AsyncIterator[pdpb.TsoRequest]
    ) -> AsyncIterator[pdpb.TsoResponse]:
        async for request in tso_request_iterator:
            await self.answers.wait()
            self._check(request.header)
            if not self._leads:
                _reset(
                    "[PD:tso:ErrGenerateTimestamp]generate timestamp failed, requested pd is not"
                    " leader of cluster"
                )
                return
            self.cluster.tso_requests += 1
            await asyncio.sleep(self.cluster.tso_delay_s)
            yield pdpb.TsoResponse(
                header=self._header(),
                count=request.count,
                timestamp=self.cluster.timestamps(request.count),
            )

    async def get_region(self, get_region_request: pdpb.GetRegionRequest) -> pdpb.GetRegionResponse:
        await self._lead(get_region_request.header)
        if not self.cluster.has_cluster:
            return pdpb.GetRegionResponse(header=self._header(NOT_BOOTSTRAPPED))
        key = get_region_request.region_key
        for region, leader in self.cluster.regions:
            if region.start_key <= key and (not region.end_key or key < region.end_key):
                return pdpb.GetRegionResponse(header=self._header(), region=region, leader=leader)
        return pdpb.GetRegionResponse(header=self._header())

    async def get_all_stores(
        self, get_all_stores_request: pdpb.GetAllStoresRequest
    ) -> pdpb.GetAllStoresResponse:
        await self._lead(get_all_stores_request.header)
        if not self.cluster.has_cluster:
            return pdpb.GetAllStoresResponse(header=self._header(NOT_BOOTSTRAPPED))
        stores = list(self.cluster.stores.values())
        return pdpb.GetAllStoresResponse(header=self._header(), stores=stores)

    async def get_store(self, get_store_request: pdpb.GetStoreRequest) -> pdpb.GetStoreResponse:
        await self._lead(get_store_request.header)
        if not self.cluster.has_cluster:
            return pdpb.GetStoreResponse(header=self._header(NOT_BOOTSTRAPPED))
        store = self.cluster.stores.get(get_store_request.store_id)
        if store is None:
            text = f"invalid store ID {get_store_request.store_id}, not found"
            if self.cluster.is_old:
                raise GRPCError(Status.UNKNOWN, text)
            error = pdpb.Error(type=UNKNOWN, message=text)
            return pdpb.GetStoreResponse(header=self._header(error))
        return pdpb.GetStoreResponse(header=self._header(), store=store)

    async def get_gc_safe_point(
        self, get_gc_safe_point_request: pdpb.GetGcSafePointRequest
    ) -> pdpb.GetGcSafePointResponse:
        await self._lead(get_gc_safe_point_request.header)
        if not self.cluster.has_cluster:
            return pdpb.GetGcSafePointResponse(header=self._header(NOT_BOOTSTRAPPED))
        return pdpb.GetGcSafePointResponse(
            header=self._header(), safe_point=self.cluster.gc_safe_point
        )

    async def update_service_gc_safe_point(
        self, update_service_gc_safe_point_request: pdpb.UpdateServiceGcSafePointRequest
    ) -> pdpb.UpdateServiceGcSafePointResponse:
        request = update_service_gc_safe_point_request
        await self._lead(request.header)
        if not self.cluster.has_cluster:
            return pdpb.UpdateServiceGcSafePointResponse(header=self._header(NOT_BOOTSTRAPPED))
        services = self.cluster.services
        if request.ttl <= 0:
            services.pop(request.service_id, None)
        elif request.safe_point >= min(services.values(), default=0):
            services[request.service_id] = request.safe_point
        return pdpb.UpdateServiceGcSafePointResponse(
            header=self._header(),
            service_id=request.service_id,
            ttl=request.ttl,
            min_safe_point=min(services.values(), default=0),
        )

    # --- who leads --------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        if self.cluster.is_campaigning:
            return False
        if self.cluster.leader is self:
            return True
        leader = self.cluster.leader
        if not _FORWARDED.get() or leader is None or leader.is_stopped:
            return False
        self.cluster.forwarded += 1
        return True

    async def _lead(self, header: pdpb.RequestHeader) -> None:
        await self.answers.wait()
        self._check(header)
        if not self._leads:
            raise GRPCError(Status.UNAVAILABLE, "not leader")

    def _check(self, header: pdpb.RequestHeader) -> None:
        if header.cluster_id != self.cluster.cluster_id:
            raise GRPCError(
                Status.FAILED_PRECONDITION,
                f"mismatch cluster id, need {self.cluster.cluster_id} but got {header.cluster_id}",
            )

    def _header(self, error: pdpb.Error | None = None) -> pdpb.ResponseHeader:
        header = pdpb.ResponseHeader(cluster_id=self.cluster.cluster_id)
        if error is not None:
            header.error = error
        return header

    def described(self) -> pdpb.Member:
        host, port = self.address
        told = f"{host}:{port}"
        if self.cluster.advertises and self is self.cluster.leader:
            told = self.cluster.advertises
        scheme = "https" if self._tls is not None else "http"
        return pdpb.Member(
            name=self.name,
            member_id=1 + self.cluster.members.index(self),
            peer_urls=[f"{scheme}://{host}:{port + 1}"],
            client_urls=[f"{scheme}://{told}"],
        )


async def _note_call(event: RecvRequest) -> None:
    _FORWARDED.set(str(event.metadata.get("pd-forwarded-host", "")))
    handle = event.method_func

    async def noted(stream: Stream[Any, Any]) -> None:
        _CALL.set(stream)
        await handle(stream)

    event.method_func = noted


def _reset(message: str) -> None:
    """Ends a call as a server in Go does whose client has not ended its side: the status, and with
    it a reset without an error."""
    call = _CALL.get()
    stream = call._stream
    assert stream.id is not None
    status = ("grpc-status", "2"), ("grpc-message", message)
    headers = [(":status", "200"), ("content-type", "application/grpc"), *status]
    stream._h2_connection.send_headers(stream.id, headers, end_stream=True)
    stream._h2_connection.reset_stream(stream.id)
    stream.connection.flush()
    call._send_trailing_metadata_done = True


@asynccontextmanager
async def pd_cluster(
    count: int = 1, tls: ServerTls | None = None, keyspace: KeyspaceStore | None = None
) -> AsyncIterator[PdCluster]:
    """A PD of `count` members, led by the first."""
    cluster = PdCluster(keyspace=keyspace)
    cluster.members = [PdMember(f"pd{number}", cluster, tls) for number in range(count)]
    cluster.leader = cluster.members[0]
    try:
        for member in cluster.members:
            await member.start()
        yield cluster
    finally:
        for member in cluster.members:
            member.answers.set()
            await member.stop()
