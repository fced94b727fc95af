"""`pdpb.PD`, for a TiDB, a Pump, a Drainer and binlogctl that have no PD: who leads, whose cluster
this is, and the time.

Regions and stores are TiKV's. There is none here, and that is what such questions are told, in the
way of a PD whose cluster was never bootstrapped. Safe points of services are kept, as PD keeps
them, in the keyspace; nobody collects garbage by them.

Source: PD server/grpc_service.go, server/storage/endpoint/gc_safe_point.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.placement.calls import OpenStreams, requests, said, send, streamed, unary
from binlogd.ports import Clock, ClusterIdentity
from binlogd.pump.messages import BytesStream, begin_answer
from binlogd.tso import Tso, logical, physical_ms
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import TAKE_MAX, ClockTso
from binlogd.wire.generated.etcdserverpb import DeleteRangeRequest, PutRequest, RangeRequest
from binlogd.wire.generated.pdpb import (
    Error,
    ErrorType,
    GetAllStoresRequest,
    GetAllStoresResponse,
    GetGcSafePointRequest,
    GetGcSafePointResponse,
    GetMembersRequest,
    GetMembersResponse,
    GetRegionByIdRequest,
    GetRegionRequest,
    GetRegionResponse,
    GetStoreRequest,
    GetStoreResponse,
    GlobalConfigItem,
    LoadGlobalConfigRequest,
    LoadGlobalConfigResponse,
    Member,
    RequestHeader,
    ResponseHeader,
    ScanRegionsRequest,
    ScanRegionsResponse,
    Timestamp,
    TsoRequest,
    TsoResponse,
    UpdateServiceGcSafePointRequest,
    UpdateServiceGcSafePointResponse,
)

_FOR_EVER = (1 << 63) - 1
_GC_WORKER = "gc_worker"
_NO_TIKV = "cluster is not bootstrapped: binlogd stands in for PD here, and knows of no TiKV"


@dataclass(frozen=True, slots=True)
class Place:
    """How others find this process."""

    name: str
    url: str
    """`http://host:port` at the advertised address."""


@dataclass(frozen=True, slots=True)
class PdStatistics:
    """Counters since the start."""

    timestamps: int
    members_asked: int


class _SafePoint(msgspec.Struct):
    service_id: str
    expired_at: int
    safe_point: int


class PdService:
    """`pdpb.PD`."""

    def __init__(  # noqa: PLR0913 - what PD knows, each from its own source
        self,
        place: Place,
        cluster: ClusterIdentity,
        tso: ClockTso,
        keyspace: KeyspaceStore,
        clock: Clock,
        *,
        streams: OpenStreams,
        newest: Callable[[], Tso],
        make_cluster_id: Callable[[], int],
    ) -> None:
        """Timestamps lie above `newest()`. `make_cluster_id` is asked when somebody wants to know
        the cluster's id before anybody has said it."""
        self._place, self._cluster, self._tso = place, cluster, tso
        self._keyspace, self._clock, self._streams = keyspace, clock, streams
        self._newest, self._make_cluster_id = newest, make_cluster_id
        self._timestamps = self._members_asked = 0

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`. Others are UNIMPLEMENTED, from
        which clients conclude that this PD is an old one."""
        return {
            "/pdpb.PD/GetMembers": unary(GetMembersRequest, self._members),
            "/pdpb.PD/Tso": streamed(self._serve_tso),
            "/pdpb.PD/GetRegion": unary(GetRegionRequest, self._region),
            "/pdpb.PD/GetPrevRegion": unary(GetRegionRequest, self._region),
            "/pdpb.PD/GetRegionByID": unary(GetRegionByIdRequest, self._region),
            "/pdpb.PD/ScanRegions": unary(ScanRegionsRequest, self._regions),
            "/pdpb.PD/GetStore": unary(GetStoreRequest, self._store),
            "/pdpb.PD/GetAllStores": unary(GetAllStoresRequest, self._stores),
            "/pdpb.PD/GetGCSafePoint": unary(GetGcSafePointRequest, self._safe_point),
            "/pdpb.PD/UpdateServiceGCSafePoint": unary(
                UpdateServiceGcSafePointRequest, self._update_safe_point
            ),
            "/pdpb.PD/LoadGlobalConfig": unary(LoadGlobalConfigRequest, self._global_config),
        }

    def statistics(self) -> PdStatistics:
        """Counters; cheap."""
        return PdStatistics(self._timestamps, self._members_asked)

    # --- members and time ------------------------------------------------------------------

    async def _members(self, _: GetMembersRequest) -> GetMembersResponse:
        """Whoever asks does not know the cluster's id yet, so it is not compared."""
        self._members_asked += 1
        cluster_id = self._cluster.cluster_id
        if cluster_id is None:
            cluster_id = await self._cluster.adopt(self._make_cluster_id())
        member = Member(
            name=self._place.name,
            member_id=self._keyspace.identity.member,
            peer_urls=[self._place.url],
            client_urls=[self._place.url],
        )
        return GetMembersResponse(
            header=ResponseHeader(cluster_id=cluster_id),
            members=[member],
            leader=member,
            etcd_leader=member,
        )

    async def _serve_tso(self, stream: BytesStream) -> None:
        async def answer() -> None:
            await begin_answer(stream)
            async for request in requests(stream, TsoRequest):
                with said():
                    await send(stream, await self._timestamp(request))

        await self._streams.until_closing(answer())

    async def _timestamp(self, request: TsoRequest) -> TsoResponse:
        header = self._header(request.header)
        if not 0 < request.count <= TAKE_MAX:
            raise GRPCError(Status.UNKNOWN, "tso count should be positive, and at most 262144")
        self._tso.observe(self._newest())
        last = await self._tso.take(request.count)
        self._timestamps += request.count
        timestamp = Timestamp(physical=physical_ms(last), logical=logical(last))
        return TsoResponse(header=header, count=request.count, timestamp=timestamp)

    def _header(self, asked: RequestHeader, error: Error | None = None) -> ResponseHeader:
        """Raises GRPCError for a request to another cluster."""
        own = self._cluster.cluster_id or 0
        if asked.cluster_id != own:
            raise GRPCError(
                Status.FAILED_PRECONDITION,
                f"mismatch cluster id, need {own} but got {asked.cluster_id}",
            )
        header = ResponseHeader(cluster_id=own)
        if error is not None:
            header.error = error
        return header

    # --- what there is no TiKV for ---------------------------------------------------------

    def _no_tikv(self, asked: RequestHeader) -> ResponseHeader:
        kind = ErrorType(ErrorType.NOT_BOOTSTRAPPED)
        return self._header(asked, Error(type=kind, message=_NO_TIKV))

    async def _region(self, request: GetRegionRequest | GetRegionByIdRequest) -> GetRegionResponse:
        return GetRegionResponse(header=self._no_tikv(request.header))

    async def _regions(self, request: ScanRegionsRequest) -> ScanRegionsResponse:
        return ScanRegionsResponse(header=self._no_tikv(request.header))

    async def _store(self, request: GetStoreRequest) -> GetStoreResponse:
        return GetStoreResponse(header=self._no_tikv(request.header))

    async def _stores(self, request: GetAllStoresRequest) -> GetAllStoresResponse:
        return GetAllStoresResponse(header=self._no_tikv(request.header))

    # --- safe points -----------------------------------------------------------------------

    async def _safe_point(self, request: GetGcSafePointRequest) -> GetGcSafePointResponse:
        return GetGcSafePointResponse(header=self._header(request.header))

    async def _update_safe_point(
        self, request: UpdateServiceGcSafePointRequest
    ) -> UpdateServiceGcSafePointResponse:
        header = self._header(request.header)
        now_s = self._clock.wall_ms() // 1000
        service_id = request.service_id.decode(errors="replace")
        key = self._safe_points_prefix() + service_id.encode()
        if request.ttl <= 0:
            await self._keyspace.delete_range(DeleteRangeRequest(key=key))
        first = min(await self._safe_points(now_s), key=lambda each: each.safe_point)
        if request.ttl > 0 and request.safe_point >= first.safe_point:
            until_s = min(now_s + request.ttl, _FOR_EVER)
            kept = _SafePoint(service_id, until_s, request.safe_point)
            await self._keyspace.put(PutRequest(key=key, value=msgspec.json.encode(kept)))
            first = min(await self._safe_points(now_s), key=lambda each: each.safe_point)
        return UpdateServiceGcSafePointResponse(
            header=header,
            service_id=first.service_id.encode(),
            ttl=first.expired_at - now_s,
            min_safe_point=first.safe_point,
        )

    async def _safe_points(self, now_s: int) -> Sequence[_SafePoint]:
        """Those that hold; garbage collection's own, which holds everything at first, is one."""
        prefix = self._safe_points_prefix()
        found = await self._keyspace.range(
            RangeRequest(key=prefix, range_end=prefix[:-1] + bytes([prefix[-1] + 1]))
        )
        kept = [msgspec.json.decode(each.value, type=_SafePoint) for each in found.kvs]
        if all(each.service_id != _GC_WORKER for each in kept):
            kept.append(_SafePoint(_GC_WORKER, _FOR_EVER, 0))
        return [each for each in kept if each.expired_at > now_s]

    def _safe_points_prefix(self) -> bytes:
        return f"/pd/{self._cluster.cluster_id}/gc/safe_point/service/".encode()

    # --- settings of the cluster -----------------------------------------------------------

    async def _global_config(self, request: LoadGlobalConfigRequest) -> LoadGlobalConfigResponse:
        """What clients have put under a path of the keyspace themselves."""
        answer = LoadGlobalConfigResponse(revision=self._keyspace.revision)
        if request.config_path:
            prefix = request.config_path.encode()
            end = prefix + b"\xff"
            found = await self._keyspace.range(RangeRequest(key=prefix, range_end=end))
            answer.items = [
                GlobalConfigItem(
                    name=each.key.decode(errors="replace"),
                    value=each.value.decode(errors="replace"),
                )
                for each in found.kvs
            ]
        return answer
