"""PD's calls: each goes to the leader, and again to the next one while there is time.

Source: PD client/client.go; pingcap/kvproto proto/pdpb.proto.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, SupportsBytes, TypeVar

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.errors import UpstreamUnavailable
from binlogd.grpc.channel import unary
from binlogd.grpc.methods import Message, understood
from binlogd.host.tls import ClientTls
from binlogd.settings.quantities import shown_address
from binlogd.status import UpstreamPart
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.pd.leader import NO_ANSWER, Leader, PdLimits, Way, reason
from binlogd.upstream.pd.members import STANDS_IN, Address
from binlogd.upstream.tikv.regions import Region
from binlogd.wire.generated import metapb, pdpb
from binlogd.wire.generated.etcdserverpb import RangeRequest, RangeResponse

log = structlog.get_logger(__name__)

_NOTHING_THERE = frozenset({pdpb.ErrorType.REGION_NOT_FOUND, pdpb.ErrorType.STORE_TOMBSTONE})
_STORE_UNKNOWN = "invalid store ID"  # UNKNOWN, in the words of PD server/grpc_service.go

_NOBODY = "binlogd_look"
"""A service that holds nothing, so that letting go changes nothing; the answer is what is asked."""

T = TypeVar("T")


class _Request(Protocol):
    header: pdpb.RequestHeader

    def __bytes__(self) -> bytes: ...


class _Answer(Message, Protocol):
    header: pdpb.ResponseHeader


A = TypeVar("A", bound=_Answer)


class _NoTikvYet(UpstreamUnavailable):
    """PD is there, and has nothing to tell: asking again would change nothing."""


class PdClient:
    """One PD, of several members. Methods raise UpstreamUnavailable.

    While PD is known to be away, a question is tried once and not for `question_s`, so that what
    can do without is not held up by every question again.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        tls: ClientTls | None = None,
        limits: PdLimits | None = None,
    ) -> None:
        self.limits = limits or PdLimits()
        self._given = ", ".join(map(shown_address, addresses))
        self._leader = Leader(addresses, tls, self.limits)
        self._requests = self._errors = 0
        self._trouble = ""
        self._lost_at: float | None = None

    # --- the life ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the leader, until cancelled."""
        while True:  # until cancelled
            try:
                await self._leader.look_again()
            except UpstreamUnavailable as error:
                self._lose(str(error))
            else:
                self._find()
            is_lost = self._lost_at is not None
            await asyncio.sleep(self.limits.pause_s_max if is_lost else self.limits.look_again_s)

    async def close(self) -> None:
        """Lets go of all connections."""
        self._leader.close()

    def statistics(self) -> UpstreamPart:
        """How it stands."""
        return UpstreamPart(
            name="pd",
            address=self._leader.address,
            leader=self._leader.name,
            trouble=self._trouble,
            requests=self._requests,
            errors=self._errors,
            leader_changes=self._leader.changes,
        )

    # --- questions --------------------------------------------------------------------------

    async def cluster_id(self, patience_s: float | None = None) -> int:
        """Told by the first member that answers, after `question_s` at most if nothing else is
        said. Nobody may keep it who finds `has_no_cluster` then."""
        question_s = patience_s or self.limits.question_s
        await self.asked("GetMembers", lambda _: asyncio.sleep(0), question_s)
        if self._leader.has_no_cluster:
            await self._leader.look_again()
        assert self._leader.cluster_id is not None, "a way to the leader was found"
        return self._leader.cluster_id

    @property
    def has_no_cluster(self) -> bool:
        """A binlogd stands in for PD that no TiDB has written to: its cluster id binds nobody."""
        return self._leader.has_no_cluster

    def expect(self, cluster_id: int) -> None:
        """Accepts a PD of this cluster alone."""
        self._leader.cluster_id, self._leader.has_no_cluster = cluster_id, False

    def header(self) -> pdpb.RequestHeader:
        """Of every request but GetMembers."""
        return pdpb.RequestHeader(cluster_id=self._leader.cluster_id or 0)

    async def region(self, key: bytes) -> Region | None:
        """See RegionDirectory."""
        request = pdpb.GetRegionRequest(region_key=key)
        answer = await self._call("GetRegion", request, pdpb.GetRegionResponse)
        return Region.of(answer.region, answer.leader) if answer.region.id else None

    async def has_tikv(self) -> bool:
        """Whether there is a TiKV that keeps transactions: there is none behind a PD before its
        first one, and none behind a binlogd that stands in for PD."""
        request = pdpb.GetAllStoresRequest(exclude_tombstone_stores=True)
        try:
            answer = await self._call("GetAllStores", request, pdpb.GetAllStoresResponse)
        except _NoTikvYet:
            return False
        return any(STANDS_IN not in store.labels for store in answer.stores)

    async def store(self, store_id: int) -> metapb.Store | None:
        """A store of TiKV, also one that is gone for good; None: there never was one."""
        request = pdpb.GetStoreRequest(store_id=store_id)

        async def ask(way: Way) -> pdpb.GetStoreResponse:
            try:
                return await self._once_asked(way, "GetStore", request, pdpb.GetStoreResponse)
            except GRPCError as error:
                if not (error.message or "").startswith(_STORE_UNKNOWN):
                    raise
                return pdpb.GetStoreResponse()  # as PD says it up to 5.4

        answer = await self.asked("GetStore", ask, self.limits.question_s)
        return answer.store if answer.store.id else None

    async def gc_safe_point(self, ts: Tso) -> Tso:
        """What lies at or below it may have been collected, or is about to be, unless it is the
        newest of its key; to be held against `ts`.

        A round of garbage collection first says among the services how far it will go, then
        destroys the ranges of dropped tables, and tells PD's own safe point last: only the lowest
        of the services is ahead of what it does. As asking for that one writes to PD's etcd, it is
        asked for only where the own one says nothing against `ts`. Source: TiDB
        store/gcworker/gc_worker.go, checkPrepare and runGCJob.
        """
        request = pdpb.GetGcSafePointRequest()
        answer = await self._call("GetGCSafePoint", request, pdpb.GetGcSafePointResponse)
        if answer.safe_point > ts:
            return Tso(answer.safe_point)
        return max(Tso(answer.safe_point), await self.hold_gc(_NOBODY, NO_TS, 0))

    async def hold_gc(self, service: str, ts: Tso, ttl_s: int) -> Tso:
        """Asks that nothing above `ts` be collected for `ttl_s` seconds from now; 0 lets go.

        Returns the lowest timestamp that somebody holds: above `ts`, it came too late.
        """
        request = pdpb.UpdateServiceGcSafePointRequest(
            service_id=service.encode(), ttl=ttl_s, safe_point=ts
        )
        answer = await self._call(
            "UpdateServiceGCSafePoint", request, pdpb.UpdateServiceGcSafePointResponse
        )
        return Tso(answer.min_safe_point)

    # --- asking -----------------------------------------------------------------------------

    async def _call(self, method: str, request: _Request, kind: Callable[[], A]) -> A:
        def ask(way: Way) -> Awaitable[A]:
            return self._once_asked(way, method, request, kind)

        return await self.asked(method, ask, self.limits.question_s)

    async def _once_asked(
        self, way: Way, method: str, request: _Request, kind: Callable[[], A]
    ) -> A:
        request.header = self.header()  # as far as the cluster is known by now
        answer = understood(kind(), await self._raw(way, f"/pdpb.PD/{method}", request))
        if answer.header.error.type == pdpb.ErrorType.NOT_BOOTSTRAPPED:
            if await self._is_recorded(way):
                raise GRPCError(Status.UNAVAILABLE, "it leads no more, and does not say so yet")
            raise _NoTikvYet(
                f"PD {method}: NOT_BOOTSTRAPPED: no TiKV has joined this PD yet"
                f" (upstream.pd-urls: {self._given})"
            )
        self.check(method, answer.header)
        return answer

    async def _is_recorded(self, way: Way) -> bool:
        """Whether PD's etcd knows a cluster of TiKV.

        A leader on its way out says NOT_BOOTSTRAPPED as well: it has let go of the cluster, and not
        of the leadership yet. The record is written once, with the first store, and stays. Source:
        PD server/server.go, campaignLeader and bootstrapCluster.
        """
        key = f"/pd/{self._leader.cluster_id}/raft".encode()
        request = RangeRequest(key=key, count_only=True)
        raw = await self._raw(way, "/etcdserverpb.KV/Range", request)
        return understood(RangeResponse(), raw).count > 0

    async def _raw(self, way: Way, path: str, request: SupportsBytes) -> bytes:
        async with asyncio.timeout(self.limits.call_s):
            return await unary(way.channel, path, bytes(request), way.metadata)

    def check(self, method: str, header: pdpb.ResponseHeader) -> None:
        """Raises UpstreamUnavailable for an answer that is an error, or another cluster's."""
        if header.cluster_id != self._leader.cluster_id:
            raise UpstreamUnavailable(
                f"PD {method}: the answer is of cluster {header.cluster_id}, not of"
                f" {self._leader.cluster_id}"
            )
        error = header.error
        is_absent = error.type in _NOTHING_THERE or error.message.startswith(_STORE_UNKNOWN)
        if error.type != pdpb.ErrorType.OK and not is_absent:
            kind = pdpb.ErrorType.try_value(error.type).name or error.type
            raise UpstreamUnavailable(f"PD {method}: {kind}: {error.message}")

    async def asked(self, method: str, ask: Callable[[Way], Awaitable[T]], question_s: float) -> T:
        """What the leader answers, looked for anew after every failure until the time is over."""
        self._requests += 1
        trouble, pause_s = "no answer", self.limits.pause_s
        try:
            async with asyncio.timeout(question_s):
                while True:  # until an answer, or the time is over
                    try:
                        answer = await self._once(method, ask)
                    except _NoTikvYet:
                        self._find()
                        raise
                    except UpstreamUnavailable as error:
                        self._errors += 1
                        trouble = str(error)
                        if self._lost_at is not None:
                            raise
                    else:
                        self._find()
                        return answer
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, self.limits.pause_s_max)
        except TimeoutError:
            self._lose(trouble)
            raise UpstreamUnavailable(
                f"{trouble}; given up after {question_s:g} s (upstream.pd-urls: {self._given})"
            ) from None

    async def _once(self, method: str, ask: Callable[[Way], Awaitable[T]]) -> T:
        way = await self._leader.way()
        try:
            return await ask(way)
        except NO_ANSWER as error:
            self._leader.forget(way, error)
            raise UpstreamUnavailable(
                f"PD {method} at {shown_address(way.address)}: {reason(error)}"
            ) from error

    def _lose(self, trouble: str) -> None:
        self._trouble = trouble
        if self._lost_at is None:
            self._lost_at = asyncio.get_running_loop().time()
            log.warning("pd_lost", cause=trouble)

    def _find(self) -> None:
        self._trouble = ""
        if self._lost_at is not None:
            away_s = asyncio.get_running_loop().time() - self._lost_at
            log.info("pd_found", leader=self._leader.name, away_s=round(away_s, 1))
            self._lost_at = None
