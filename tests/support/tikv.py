"""A TiKV and its PD for tests: real gRPC ports that speak the recorded protocol, of one cluster
whose regions split, move, lose their leader, and whose stores hang, are busy, die or move.

Source: TiKV src/server/service/kv.rs; components/raftstore/src/store/util.rs, for the errors.
"""

from __future__ import annotations

import asyncio
import socket
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.errors import UpstreamUnavailable
from binlogd.host.tls import ClientTls, ServerTls
from binlogd.tidb.datum import comparable_int
from binlogd.tidb.meta_keys import key_of_pd, pd_key
from binlogd.tso import NO_TS, Tso, compose, plus_ms
from binlogd.upstream.tikv.client import TikvClient, TikvLimits
from binlogd.upstream.tikv.regions import Region
from binlogd.upstream.tikv.stores import Stores
from binlogd.wire.generated import errorpb, kvrpcpb, metapb
from binlogd.wire.generated.kvrpcpb import (
    CheckTxnStatusRequest,
    CheckTxnStatusResponse,
    Context,
    GetRequest,
    GetResponse,
    KvPair,
    MvccGetByKeyRequest,
    MvccGetByKeyResponse,
    ResolveLockRequest,
    ResolveLockResponse,
    ScanRequest,
    ScanResponse,
)
from binlogd.wire.generated.tikvpb import TikvBase
from tests.support.ending_server import EndingServer
from tests.support.tikv_store import Records

BEGIN_MS = 1_795_235_844_000


def record_key(table_id: int, handle: int) -> bytes:
    """Where a row is."""
    return b"t" + comparable_int(table_id) + b"_r" + comparable_int(handle)


class ScriptedTso:
    """Timestamps of a clock that a test moves."""

    def __init__(self, begin: Tso | None = None) -> None:
        self.now = begin if begin is not None else compose(BEGIN_MS)

    async def next(self) -> Tso:
        """See TsoSource."""
        self.now = Tso(self.now + 1)
        return self.now

    def observe(self, ts: Tso) -> None:
        """See TsoSource."""
        self.now = max(self.now, ts)

    def pass_s(self, seconds: float) -> Tso:
        """Time goes by."""
        self.now = plus_ms(self.now, int(seconds * 1000))
        return self.now


@dataclass
class FakeRegion:
    """A region; `start` and `end` as TiKV has them."""

    id: int
    start: bytes
    end: bytes
    stores: list[int]
    leader: int | None
    """The store that leads it."""
    conf_ver: int = 1
    version: int = 1

    def peer(self, store_id: int) -> metapb.Peer:
        """Its peer in a store."""
        return metapb.Peer(id=self.id * 100 + store_id, store_id=store_id)

    def meta(self) -> metapb.Region:
        """As the protocol has it."""
        return metapb.Region(
            id=self.id,
            start_key=pd_key(self.start),
            end_key=pd_key(self.end),
            region_epoch=metapb.RegionEpoch(conf_ver=self.conf_ver, version=self.version),
            peers=[self.peer(each) for each in self.stores],
        )

    def holds(self, key: bytes) -> bool:
        """Whether a key is in it."""
        return self.start <= key and (not self.end or key < self.end)


@dataclass
class FakeTikv:
    """The cluster; it is its own PD (`Places`)."""

    records: Records = field(default_factory=Records)
    tso: ScriptedTso = field(default_factory=ScriptedTso)
    regions: list[FakeRegion] = field(default_factory=list)
    stores: dict[int, FakeStore] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    safe_point: Tso = NO_TS
    held: dict[str, Tso] = field(default_factory=dict)
    pd_is_down: bool = False
    pd_refuses_to_let_go: bool = False
    """Of what holds off garbage collection."""
    pd_has_just_started: bool = False
    """It knows the regions, and of none who leads it: no heartbeat has come yet."""
    errors: deque[errorpb.Error] = field(default_factory=deque)
    """What the next calls are answered with."""
    before_call: Callable[[str, bytes], None] = lambda _, __: None
    """Told of each call and its key before it is looked at."""

    # --- what a test does to it ------------------------------------------------------------

    def split(self, key: bytes) -> FakeRegion:
        """Cuts the region of a key before it; the right half is new."""
        left = self.region_of(key)
        assert left.start < key
        right = FakeRegion(
            max(each.id for each in self.regions) + 1,
            key,
            left.end,
            list(left.stores),
            left.leader,
            left.conf_ver,
            left.version + 1,
        )
        left.end, left.version = key, left.version + 1
        self.regions.insert(self.regions.index(left) + 1, right)
        return right

    def move(self, key: bytes, *store_ids: int) -> None:
        """The region of a key is in other stores from now on; the first leads."""
        region = self.region_of(key)
        region.stores, region.leader = list(store_ids), store_ids[0]
        region.conf_ver += 1

    def region_of(self, key: bytes) -> FakeRegion:
        """The region of a key."""
        return self.regions[bisect_right([each.start for each in self.regions], key) - 1]

    # --- as PD -----------------------------------------------------------------------------

    async def region(self, key: bytes) -> Region | None:
        """See Places."""
        self._ask("GetRegion")
        found = self.region_of(key_of_pd(key))
        is_led = found.leader is not None and not self.pd_has_just_started
        return Region.of(found.meta(), found.peer(found.leader or 0) if is_led else None)

    async def store(self, store_id: int) -> metapb.Store | None:
        """See Places."""
        self._ask("GetStore")
        store = self.stores.get(store_id)
        return None if store is None else store.meta()

    async def gc_safe_point(self, ts: Tso) -> Tso:
        """See Places."""
        del ts
        self._ask("GetGCSafePoint")
        return self.safe_point

    async def hold_gc(self, service: str, ts: Tso, ttl_s: int) -> Tso:
        """See Places."""
        self._ask("UpdateServiceGCSafePoint")
        lowest = min([self.safe_point or ts, *self.held.values()], default=ts)
        if ttl_s <= 0 and self.pd_refuses_to_let_go:
            raise UpstreamUnavailable("PD: connection refused")
        if ttl_s <= 0:
            self.held.pop(service, None)
        elif ts >= lowest or not self.safe_point:
            self.held[service] = ts
            return min(self.held.values())
        return lowest

    def _ask(self, name: str) -> None:
        self.calls[name] += 1
        if self.pd_is_down:
            raise UpstreamUnavailable("PD: connection refused")


class FakeStore(TikvBase):
    """One store: a port, until it dies."""

    def __init__(self, cluster: FakeTikv, store_id: int) -> None:
        self.cluster, self.id = cluster, store_id
        self.state = metapb.StoreState(metapb.StoreState.Up)
        self.hangs = False
        self.port = 0
        self.calls: Counter[str] = Counter()
        self._server: EndingServer | None = None

    def meta(self) -> metapb.Store:
        """As the protocol has it."""
        address = f"127.0.0.1:{self.port}"
        return metapb.Store(id=self.id, address=address, state=self.state, version="7.1.5")

    async def start(self, tls: ServerTls | None = None) -> None:
        """Listens, at another port each time."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self._server = EndingServer([self])
        await self._server.start(sock=listening, ssl=tls.fresh() if tls is not None else None)

    async def stop(self) -> None:
        """Ends all its connections."""
        server, self._server = self._server, None
        if server is not None:
            await server.end()

    # --- calls -----------------------------------------------------------------------------

    async def kv_get(self, request: GetRequest) -> GetResponse:
        """See TiKV."""
        wrong = await self._wrong("KvGet", request.context, request.key)
        if wrong is not None:
            return GetResponse(region_error=wrong)
        found = self.cluster.records.get(request.key, request.version)
        if isinstance(found, kvrpcpb.KeyError):
            return GetResponse(error=found)
        return GetResponse(value=found or b"", not_found=found is None)

    async def kv_scan(self, request: ScanRequest) -> ScanResponse:
        """See TiKV: downwards the start is the upper end, and exclusive."""
        key = request.start_key
        wrong = await self._wrong(
            "KvScan", request.context, key, is_upper_end=request.reverse and bool(key)
        )
        if wrong is not None:
            return ScanResponse(region_error=wrong)
        region = next(each for each in self.cluster.regions if each.id == request.context.region_id)
        begin, end = request.start_key, request.end_key
        if request.reverse:
            begin, end = end, begin
        begin = max(begin, region.start)
        end = min(end or region.end, region.end or end)
        pairs: list[KvPair] = []
        for pair in self.cluster.records.scan(begin, end, request.version, reverse=request.reverse):
            if len(pairs) >= request.limit:
                break
            pairs.append(KvPair(key=pair.key) if request.key_only and not pair.error else pair)
        return ScanResponse(pairs=pairs)

    async def mvcc_get_by_key(self, request: MvccGetByKeyRequest) -> MvccGetByKeyResponse:
        """See TiKV."""
        wrong = await self._wrong("MvccGetByKey", request.context, request.key)
        if wrong is not None:
            return MvccGetByKeyResponse(region_error=wrong)
        return MvccGetByKeyResponse(info=self.cluster.records.info(request.key))

    async def kv_check_txn_status(self, request: CheckTxnStatusRequest) -> CheckTxnStatusResponse:
        """See TiKV."""
        wrong = await self._wrong("KvCheckTxnStatus", request.context, request.primary_key)
        if wrong is not None:
            return CheckTxnStatusResponse(region_error=wrong)
        return self.cluster.records.check(
            request.primary_key,
            request.lock_ts,
            request.current_ts,
            makes_rollback=request.rollback_if_not_exist,
        )

    async def kv_resolve_lock(self, request: ResolveLockRequest) -> ResolveLockResponse:
        """See TiKV."""
        wrong = await self._wrong("KvResolveLock", request.context, request.keys[0])
        if wrong is not None:
            return ResolveLockResponse(region_error=wrong)
        self.cluster.records.resolve(request.keys, request.start_version, request.commit_version)
        return ResolveLockResponse()

    async def _wrong(
        self, name: str, context: Context, key: bytes, *, is_upper_end: bool = False
    ) -> errorpb.Error | None:
        cluster = self.cluster
        cluster.calls[name] += 1
        self.calls[name] += 1
        cluster.before_call(name, key)
        if self.hangs:
            await asyncio.Event().wait()
        if self._server is None:
            raise GRPCError(Status.UNAVAILABLE, "shutting down")
        if cluster.errors:
            return cluster.errors.popleft()
        return self._region_error(context, key, is_upper_end=is_upper_end)

    def _region_error(
        self, context: Context, key: bytes, *, is_upper_end: bool
    ) -> errorpb.Error | None:
        if context.peer.store_id != self.id:
            wrong_store = errorpb.StoreNotMatch(context.peer.store_id, self.id)
            return errorpb.Error(message="wrong store", store_not_match=wrong_store)
        regions = [each for each in self.cluster.regions if self.id in each.stores]
        region = next((each for each in regions if each.id == context.region_id), None)
        if region is None:
            absent = errorpb.RegionNotFound(region_id=context.region_id)
            return errorpb.Error(message="region not found", region_not_found=absent)
        if region.leader != self.id:
            leader = region.peer(region.leader) if region.leader is not None else None
            not_leader = errorpb.NotLeader(region_id=region.id, leader=leader)
            return errorpb.Error(message="not leader", not_leader=not_leader)
        epoch = context.region_epoch
        if (epoch.conf_ver, epoch.version) != (region.conf_ver, region.version):
            at = self.cluster.regions.index(region)
            current = [each.meta() for each in self.cluster.regions[at : at + 2]]
            stale = errorpb.EpochNotMatch(current_regions=current)
            return errorpb.Error(message="epoch not match", epoch_not_match=stale)
        if not region.holds(key) and not (is_upper_end and key == region.end):
            outside = errorpb.KeyNotInRegion(key=key, region_id=region.id)
            return errorpb.Error(message="key not in region", key_not_in_region=outside)
        return None


@asynccontextmanager
async def tikv(*, stores: int = 2, cuts: tuple[bytes, ...] = (b"t",)) -> AsyncIterator[FakeTikv]:
    """A cluster with one region before each cut and one behind, led by the stores in turn."""
    cluster = FakeTikv()
    for store_id in range(1, stores + 1):
        cluster.stores[store_id] = FakeStore(cluster, store_id)
        await cluster.stores[store_id].start()
    bounds = (b"", *cuts, b"")
    for number, (start, end) in enumerate(pairwise(bounds)):
        everywhere = list(cluster.stores)
        leader = everywhere[number % stores]
        cluster.regions.append(FakeRegion(number + 1, start, end, everywhere, leader))
    try:
        yield cluster
    finally:
        for store in cluster.stores.values():
            await store.stop()


@asynccontextmanager
async def asking(
    cluster: FakeTikv,
    *,
    question_s: float = 60.0,
    call_s: float = 5.0,
    tls: ClientTls | None = None,
) -> AsyncIterator[TikvClient]:
    """A client of a cluster."""
    stores, limits = Stores(cluster, tls), TikvLimits(question_s, call_s)
    try:
        yield TikvClient(cluster, cluster.tso, stores, Random(1), limits)
    finally:
        stores.close()
