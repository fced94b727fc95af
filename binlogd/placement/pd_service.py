"""`pdpb.PD`, for a TiDB, a Pump, a Drainer and binlogctl that have no PD: who leads, whose cluster
this is, and the time.

There is no TiKV here. Every key is in one region, and its one store is this process, which knows
the history of DDL jobs and nothing else (`history_service.py`). Safe points of services are kept,
as PD keeps them, in the keyspace; nobody collects garbage by them.

Source: PD server/grpc_service.go (StoreGlobalConfig, LoadGlobalConfig among them),
server/storage/endpoint/gc_safe_point.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.errors import EtcdRefused
from binlogd.grpc.messages import BytesStream, begin_answer
from binlogd.grpc.methods import OpenStreams, bidirectional, requests, send
from binlogd.placement.calls import MESSAGE_BYTES_MAX, as_status, unary
from binlogd.ports import Clock, ClusterIdentity
from binlogd.tso import Tso, logical, physical_ms
from binlogd.upstream.entry import span
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import TAKE_MAX, ClockTso
from binlogd.upstream.pd.members import NO_CLUSTER_YET, STANDS_IN
from binlogd.wire.generated import etcdserverpb as etcd
from binlogd.wire.generated import metapb, pdpb

T = TypeVar("T")

_FOR_EVER = (1 << 63) - 1
_GC_WORKER = "gc_worker"
_REGION, _PEER, _STORE = 1, 2, 1
PD_VERSION = "5.1.0"
"""The oldest whose clients are expected; they ask an old store for less."""


class AdvertisedAddress(msgspec.Struct, frozen=True):
    """How others find this process."""

    name: str
    url: str
    """`http://host:port` at the advertised address."""


class _SafePoint(msgspec.Struct):
    service_id: str
    expired_at: int
    safe_point: int


class PdService:
    """`pdpb.PD`."""

    def __init__(  # noqa: PLR0913 - what PD knows, each from its own source
        self,
        place: AdvertisedAddress,
        cluster: ClusterIdentity,
        tso: ClockTso,
        keyspace: KeyspaceStore,
        clock: Clock,
        *,
        streams: OpenStreams,
        newest: Callable[[], Tso],
    ) -> None:
        """Timestamps lie above `newest()`."""
        self._place, self._cluster, self._tso = place, cluster, tso
        self._keyspace, self._clock, self._streams = keyspace, clock, streams
        self._newest = newest
        self.timestamps = self.members_asked = 0
        """How many were handed out, and how often somebody looked for PD, since the start."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`; those that keep settings are in
        `GlobalConfig`, those that are not here in `Refusals`."""
        return {
            "/pdpb.PD/GetMembers": unary(pdpb.GetMembersRequest, self._members),
            "/pdpb.PD/GetClusterInfo": unary(pdpb.GetClusterInfoRequest, self._info),
            "/pdpb.PD/IsBootstrapped": unary(pdpb.IsBootstrappedRequest, self._bootstrapped),
            "/pdpb.PD/Tso": bidirectional(self._serve_tso),
            "/pdpb.PD/GetRegion": unary(pdpb.GetRegionRequest, self._region),
            "/pdpb.PD/GetPrevRegion": unary(pdpb.GetRegionRequest, self._region),
            "/pdpb.PD/GetRegionByID": unary(pdpb.GetRegionByIdRequest, self._region),
            "/pdpb.PD/ScanRegions": unary(pdpb.ScanRegionsRequest, self._regions),
            "/pdpb.PD/GetStore": unary(pdpb.GetStoreRequest, self._store),
            "/pdpb.PD/GetAllStores": unary(pdpb.GetAllStoresRequest, self._stores),
            "/pdpb.PD/GetGCSafePoint": unary(pdpb.GetGcSafePointRequest, self._safe_point),
            "/pdpb.PD/UpdateGCSafePoint": unary(
                pdpb.UpdateGcSafePointRequest, self._advance_safe_point
            ),
            "/pdpb.PD/UpdateServiceGCSafePoint": unary(
                pdpb.UpdateServiceGcSafePointRequest, self._update_safe_point
            ),
        }

    @property
    def cluster_id(self) -> int:
        """That of the writers. While there were none it is a number of this data directory, which
        binds nobody: the id is the writers' to say, and a question makes none."""
        return self._cluster.cluster_id or self._keyspace.identity.cluster

    @property
    def _has_cluster(self) -> bool:
        """Until then whoever knows the id is answered by it."""
        return self._cluster.cluster_id is not None

    # --- members and time ------------------------------------------------------------------

    async def _members(self, _: pdpb.GetMembersRequest) -> pdpb.GetMembersResponse:
        """Whoever asks does not know the cluster's id yet, so it is not compared."""
        self.members_asked += 1
        cluster_id = self.cluster_id
        member = pdpb.Member(
            name=self._place.name,
            member_id=self._keyspace.identity.member,
            peer_urls=[self._place.url],
            client_urls=[self._place.url],
            binary_version="" if self._has_cluster else NO_CLUSTER_YET,
        )
        return pdpb.GetMembersResponse(
            header=pdpb.ResponseHeader(cluster_id=cluster_id),
            members=[member],
            leader=member,
            etcd_leader=member,
        )

    async def _info(self, _: pdpb.GetClusterInfoRequest) -> pdpb.GetClusterInfoResponse:
        """It is this process that hands out timestamps; without the cluster's id, as in PD."""
        mode = pdpb.ServiceMode(pdpb.ServiceMode.PD_SVC_MODE)
        return pdpb.GetClusterInfoResponse(
            header=pdpb.ResponseHeader(cluster_id=self.cluster_id), service_modes=[mode]
        )

    async def _bootstrapped(
        self, request: pdpb.IsBootstrappedRequest
    ) -> pdpb.IsBootstrappedResponse:
        return pdpb.IsBootstrappedResponse(header=self._header(request.header), bootstrapped=True)

    async def _serve_tso(self, stream: BytesStream) -> None:
        async with self._streams.until_closing():
            await begin_answer(stream)
            async for request in requests(stream, pdpb.TsoRequest, MESSAGE_BYTES_MAX):
                with as_status():
                    await send(stream, await self._timestamp(request))

    async def _timestamp(self, request: pdpb.TsoRequest) -> pdpb.TsoResponse:
        header = self._header(request.header)
        if not 0 < request.count <= TAKE_MAX:
            raise GRPCError(Status.UNKNOWN, "tso count should be positive, and at most 262144")
        self._tso.observe(self._newest())
        last = await self._tso.take(request.count)
        self.timestamps += request.count
        timestamp = pdpb.Timestamp(physical=physical_ms(last), logical=logical(last))
        return pdpb.TsoResponse(header=header, count=request.count, timestamp=timestamp)

    def _header(self, asked: pdpb.RequestHeader) -> pdpb.ResponseHeader:
        """Raises GRPCError for a request to another cluster."""
        own = self.cluster_id if self._has_cluster else asked.cluster_id
        if asked.cluster_id != own:
            raise GRPCError(
                Status.FAILED_PRECONDITION,
                f"mismatch cluster id, need {own} but got {asked.cluster_id}",
            )
        return pdpb.ResponseHeader(cluster_id=own)

    # --- one region, one store -------------------------------------------------------------

    async def _region(
        self, request: pdpb.GetRegionRequest | pdpb.GetRegionByIdRequest
    ) -> pdpb.GetRegionResponse:
        header = self._header(request.header)
        if isinstance(request, pdpb.GetRegionByIdRequest) and request.region_id != _REGION:
            return pdpb.GetRegionResponse(header=header)
        region, peer = _everything()
        return pdpb.GetRegionResponse(header=header, region=region, leader=peer)

    async def _regions(self, request: pdpb.ScanRegionsRequest) -> pdpb.ScanRegionsResponse:
        region, peer = _everything()
        return pdpb.ScanRegionsResponse(
            header=self._header(request.header),
            region_metas=[region],
            leaders=[peer],
            regions=[pdpb.RegionWithLeader(region=region, leader=peer)],
        )

    async def _store(self, request: pdpb.GetStoreRequest) -> pdpb.GetStoreResponse:
        header = self._header(request.header)
        if request.store_id != _STORE:
            raise GRPCError(Status.UNKNOWN, f"invalid store ID {request.store_id}, not found")
        return pdpb.GetStoreResponse(header=header, store=self._own_store())

    async def _stores(self, request: pdpb.GetAllStoresRequest) -> pdpb.GetAllStoresResponse:
        return pdpb.GetAllStoresResponse(
            header=self._header(request.header), stores=[self._own_store()]
        )

    def _own_store(self) -> metapb.Store:
        address = self._place.url.rpartition("/")[2]
        return metapb.Store(id=_STORE, address=address, version=PD_VERSION, labels=[STANDS_IN])

    # --- safe points -----------------------------------------------------------------------

    async def _safe_point(self, request: pdpb.GetGcSafePointRequest) -> pdpb.GetGcSafePointResponse:
        header = self._header(request.header)
        return pdpb.GetGcSafePointResponse(header=header, safe_point=await self._collected())

    async def _advance_safe_point(
        self, request: pdpb.UpdateGcSafePointRequest
    ) -> pdpb.UpdateGcSafePointResponse:
        """It never goes back."""
        header = self._header(request.header)
        safe_point = max(request.safe_point, await self._collected())
        value = f"{safe_point:x}".encode()
        await self._keyspace.put(etcd.PutRequest(key=self._safe_point_key(), value=value))
        return pdpb.UpdateGcSafePointResponse(header=header, new_safe_point=safe_point)

    async def _collected(self) -> int:
        """Up to where garbage collection said it had come; hexadecimal, as PD keeps it."""
        found = await self._keyspace.range(etcd.RangeRequest(key=self._safe_point_key()))
        return _read(found.kvs[0], partial(int, base=16)) if found.kvs else 0

    def _safe_point_key(self) -> bytes:
        return f"/pd/{self.cluster_id}/gc/safe_point".encode()

    async def _update_safe_point(
        self, request: pdpb.UpdateServiceGcSafePointRequest
    ) -> pdpb.UpdateServiceGcSafePointResponse:
        header = self._header(request.header)
        now_s = self._clock.wall_ms() // 1000
        service_id = request.service_id.decode(errors="replace")
        key = self._safe_points_prefix() + service_id.encode()
        if request.ttl <= 0:
            await self._keyspace.delete_range(etcd.DeleteRangeRequest(key=key))
        first = min(await self._safe_points(now_s), key=lambda each: each.safe_point)
        if request.ttl > 0 and request.safe_point >= first.safe_point:
            until_s = min(now_s + request.ttl, _FOR_EVER)
            kept = _SafePoint(service_id, until_s, request.safe_point)
            await self._keyspace.put(etcd.PutRequest(key=key, value=msgspec.json.encode(kept)))
            first = min(await self._safe_points(now_s), key=lambda each: each.safe_point)
        return pdpb.UpdateServiceGcSafePointResponse(
            header=header,
            service_id=first.service_id.encode(),
            ttl=first.expired_at - now_s,
            min_safe_point=first.safe_point,
        )

    async def _safe_points(self, now_s: int) -> Sequence[_SafePoint]:
        """Those that hold; garbage collection's own, which holds everything at first, is one."""
        start, end = span(self._safe_points_prefix())
        found = await self._keyspace.range(etcd.RangeRequest(key=start, range_end=end))
        kept = [_read(each, partial(msgspec.json.decode, type=_SafePoint)) for each in found.kvs]
        held = [each for each in kept if each.expired_at > now_s]
        if all(each.service_id != _GC_WORKER for each in held):
            held.append(_SafePoint(_GC_WORKER, _FOR_EVER, 0))
        return held

    def _safe_points_prefix(self) -> bytes:
        return f"/pd/{self.cluster_id}/gc/safe_point/service/".encode()


def _read(found: etcd.KeyValue, read: Callable[[bytes], T]) -> T:
    """What is kept under a key, where anybody may have put something else. Raises EtcdRefused."""
    try:
        return read(found.value)
    except (ValueError, msgspec.MsgspecError) as error:
        why = f"{found.key!r} holds no safe point: {error}; put it right, or delete the key"
        raise EtcdRefused("UNKNOWN", why) from error


def _everything() -> tuple[metapb.Region, metapb.Peer]:
    """The region of all keys, and who leads it."""
    peer = metapb.Peer(id=_PEER, store_id=_STORE)
    epoch = metapb.RegionEpoch(conf_ver=1, version=1)
    return metapb.Region(id=_REGION, region_epoch=epoch, peers=[peer]), peer


_ROOT = "/global/config"


class GlobalConfig:
    """The part of `pdpb.PD` that keeps TiDB's settings of the cluster: keys of the keyspace, so
    that whoever looks there sees the same."""

    def __init__(self, keyspace: KeyspaceStore) -> None:
        self._keyspace = keyspace

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/pdpb.PD/LoadGlobalConfig": unary(pdpb.LoadGlobalConfigRequest, self._load),
            "/pdpb.PD/StoreGlobalConfig": unary(pdpb.StoreGlobalConfigRequest, self._store),
        }

    async def _load(self, request: pdpb.LoadGlobalConfigRequest) -> pdpb.LoadGlobalConfigResponse:
        """Those that were named, or all of a path."""
        if request.names:
            root = _root(request.config_path)
            items = [await self._named(root, name) for name in request.names]
            return pdpb.LoadGlobalConfigResponse(items=items, revision=self._keyspace.revision)
        start, end = span(request.config_path.encode() or f"{_ROOT}/".encode())
        found = await self._keyspace.range(etcd.RangeRequest(key=start, range_end=end))
        assert found.header is not None, "the keyspace always says it"
        return pdpb.LoadGlobalConfigResponse(
            items=[_item(each.key, each.value) for each in found.kvs],
            revision=found.header.revision,
        )

    async def _named(self, root: str, name: str) -> pdpb.GlobalConfigItem:
        key = f"{root}/{name}".encode()
        found = (await self._keyspace.range(etcd.RangeRequest(key=key))).kvs
        if found:
            return _item(name.encode(), found[0].value)
        missing = pdpb.ErrorType(pdpb.ErrorType.GLOBAL_CONFIG_NOT_FOUND)
        return pdpb.GlobalConfigItem(
            name=name, error=pdpb.Error(type=missing, message=f"[{root}/{name}] not found")
        )

    async def _store(
        self, request: pdpb.StoreGlobalConfigRequest
    ) -> pdpb.StoreGlobalConfigResponse:
        """All of them, or none."""
        root = _root(request.config_path)
        ops = []
        for item in request.changes:
            key = f"{root}/{item.name}".encode()
            if item.kind == pdpb.EventType.DELETE:
                ops.append(etcd.RequestOp(request_delete_range=etcd.DeleteRangeRequest(key=key)))
            else:
                put = etcd.PutRequest(key=key, value=item.payload or item.value.encode())
                ops.append(etcd.RequestOp(request_put=put))
        try:
            await self._keyspace.txn(etcd.TxnRequest(success=ops))
        except EtcdRefused as error:
            unknown = pdpb.ErrorType(pdpb.ErrorType.UNKNOWN)
            return pdpb.StoreGlobalConfigResponse(
                error=pdpb.Error(type=unknown, message=str(error))
            )
        return pdpb.StoreGlobalConfigResponse()


def _root(path: str) -> str:
    """Without a path it is that of the clients before 6.6, which know none."""
    return path.rstrip("/") or _ROOT


def _item(key: bytes, value: bytes) -> pdpb.GlobalConfigItem:
    text = value.decode(errors="replace")
    return pdpb.GlobalConfigItem(name=key.decode(errors="replace"), value=text, payload=value)
