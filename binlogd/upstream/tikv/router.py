"""Brings a request to the store that leads the region of its key, until that one answers.

What a store says of its regions is acted on as `reaction.py` has it. The caller has the deadline.

Source: tikv/client-go internal/locate.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.errors import Corrupt, Unavailable, UpstreamUnavailable
from binlogd.grpc.channel import NO_ANSWER, unary
from binlogd.grpc.methods import NO_MESSAGE
from binlogd.tidb.meta_keys import pd_key
from binlogd.upstream.tikv.reaction import (
    AT_ONCE,
    LEADERLESS,
    PLACES,
    SILENT,
    Hopeless,
    Patience,
    Wait,
    react,
)
from binlogd.upstream.tikv.regions import Region, RegionDirectory, RegionMap
from binlogd.upstream.tikv.stores import Connection, Stores
from binlogd.wire.generated import errorpb, kvrpcpb, metapb

_LOOK_UPS = 8  # at PD at once
_AROUND = 4  # so often stores are believed who send on to each other, then PD is asked


class RegionRequest(Protocol):
    """What goes to a region."""

    context: kvrpcpb.Context

    def __bytes__(self) -> bytes:
        """As protobuf."""


class Answer(Protocol):
    """What comes from one."""

    region_error: errorpb.Error | None

    def parse(self, data: bytes) -> object:
        """From protobuf."""


A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True)
class RouterStatistics:
    """Counts since the start, by kind."""

    calls: dict[str, int]
    region_errors: dict[str, int]
    waits: dict[str, int]
    waited_s: dict[str, float]
    look_ups: int
    regions: int
    stores: int


class _Silent(Exception):  # says what a store did, and goes no further than this file
    """A store gave no answer."""


class RegionRouter:
    """One for a process; requests may be made at the same time."""

    def __init__(self, places: RegionDirectory, stores: Stores, *, call_s: float) -> None:
        self._places, self._stores, self._call_s = places, stores, call_s
        self._regions = RegionMap()
        self._looking_up = asyncio.Semaphore(_LOOK_UPS)
        self._calls: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._waited_s: dict[str, float] = {}
        self._look_ups = 0

    async def ask(
        self, key: bytes, request: RegionRequest, answer: type[A], method: str, patience: Patience
    ) -> tuple[A, Region]:
        """The answer, without a region error, and the region that gave it; the request's context is
        filled in. Ends with the caller's deadline.

        Raises UpstreamUnavailable for a region error that no second question helps against.
        """
        while True:  # until an answer, or the caller's deadline
            region = await self.region(key, patience)
            peer = region.leader or region.voter(patience.attempts)
            if peer is None:
                self._regions.forget(region)
                await self.wait(patience, LEADERLESS, f"region {region.id} has nobody to lead it")
                continue
            request.context = kvrpcpb.Context(
                region_id=region.id,
                region_epoch=region.epoch,
                peer=peer,
                max_execution_duration_ms=int(self._call_s * 1000),
            )
            try:
                found = await self._call(peer.store_id, request, answer, method)
            except _Silent as error:
                self._regions.forget(region)
                await self.wait(patience, SILENT, str(error))
                continue
            if found.region_error is None:
                return found, region
            await self._react(found.region_error, region, peer, patience)

    def knows(self, key: bytes) -> bool:
        """Whether the region of a key is known."""
        return self._regions.find(key) is not None

    async def region(self, key: bytes, patience: Patience) -> Region:
        """Where a key is, as far as is known; PD is asked until it knows."""
        while True:  # until PD knows it, or the caller's deadline
            found = self._regions.find(key)
            if found is not None:
                return found
            try:
                async with self._looking_up:
                    found = self._regions.find(key)  # another question may have asked meanwhile
                    if found is not None:
                        return found
                    self._look_ups += 1
                    region = await self._places.region(pd_key(key))
            except (Unavailable, Corrupt) as error:
                await self.wait(patience, PLACES, str(error))
                continue
            if region is not None and region.holds(key):
                self._regions.put(region)
                return region
            await self.wait(patience, LEADERLESS, f"PD knows no region of key {key.hex()}")

    async def wait(self, patience: Patience, wait: Wait, reason: str) -> None:
        """Before the next attempt; `reason` is told if there is none."""
        for_s = patience.next_s(wait, reason)
        self._waits[wait.kind] += 1
        self._waited_s[wait.kind] = self._waited_s.get(wait.kind, 0.0) + for_s
        await asyncio.sleep(for_s)

    def statistics(self) -> RouterStatistics:
        """How it stands."""
        return RouterStatistics(
            calls=dict(self._calls),
            region_errors=dict(self._errors),
            waits=dict(self._waits),
            waited_s=dict(self._waited_s),
            look_ups=self._look_ups,
            regions=len(self._regions),
            stores=len(self._stores),
        )

    # --- parts of a request ----------------------------------------------------------------

    async def _call(self, store_id: int, request: RegionRequest, answer: type[A], method: str) -> A:
        """One call, with a region error or without. Raises _Silent, UpstreamUnavailable."""
        try:
            connection = await self._stores.connection(store_id)
        except Unavailable as error:
            raise _Silent(str(error)) from error
        if connection is None:
            raise _Silent(f"store {store_id} is gone")
        self._calls[method] += 1
        channel, path = connection.channel, f"/tikvpb.Tikv/{method}"
        clock = asyncio.get_running_loop().time
        found, begin_s = answer(), clock()
        try:
            async with asyncio.timeout(self._call_s):
                reply = await unary(channel, path, bytes(request))
            connection.heard_s = clock()
            found.parse(reply)
        except TimeoutError as error:
            self._errors["transport"] += 1
            if connection.heard_s < begin_s:  # what others wait for on it is not coming either
                self._stores.forget(store_id, connection)
            raise _Silent(f"store {store_id}: no answer within {self._call_s:g} s") from error
        except GRPCError as error:
            if error.status is Status.UNAVAILABLE:
                self._failed(store_id, connection)
            else:  # it is there, and others may wait for their answers on the same connection
                self._errors["transport"] += 1
            if error.status is Status.UNIMPLEMENTED:
                raise UpstreamUnavailable(
                    f"TiKV store {store_id} knows no {method}: {error.message}"
                ) from error
            raise _Silent(f"store {store_id}: {error.status.name}: {error.message}") from error
        except NO_ANSWER as error:
            self._failed(store_id, connection)
            raise _Silent(f"store {store_id}: {str(error) or type(error).__name__}") from error
        except NO_MESSAGE as error:
            self._failed(store_id, connection)
            raise UpstreamUnavailable(
                f"store {store_id} answers {method} in no way that TiKV does: {error}"
            ) from error
        return found

    def _failed(self, store_id: int, connection: Connection) -> None:
        self._errors["transport"] += 1
        self._stores.forget(store_id, connection)

    async def _react(
        self, error: errorpb.Error, region: Region, peer: metapb.Peer, patience: Patience
    ) -> None:
        reaction = react(error)
        self._errors[reaction.kind] += 1
        if isinstance(reaction, Hopeless):
            raise UpstreamUnavailable(
                f"TiKV region {region.id} does not answer: {reaction.kind}: {reaction.reason}"
            )
        is_sent_around = patience.count(AT_ONCE) % _AROUND == _AROUND - 1
        if reaction.forgets_region or is_sent_around:
            self._regions.forget(region)
        if reaction.forgets_store:
            self._stores.forget(peer.store_id)
        if error.not_leader is not None and error.not_leader.leader is not None:
            self._regions.lead(region, error.not_leader.leader)
        if error.epoch_not_match is not None:
            self._believe(error.epoch_not_match.current_regions, region)
        await self.wait(
            patience, reaction.wait, f"region {region.id}: {reaction.kind}: {error.message}"
        )

    def _believe(self, current: Sequence[metapb.Region], before: Region) -> None:
        """A store that is ahead of what was known says what its regions are now."""
        try:
            regions = [Region.of(each, None).led_by_store_of(before) for each in current]
        except Corrupt:
            return  # PD is asked
        if any(each.id == before.id and _is_behind(each, before) for each in regions):
            return  # it is the store that has not caught up
        for each in regions:
            self._regions.put(each)


def _is_behind(region: Region, other: Region) -> bool:
    return (
        region.epoch.version < other.epoch.version or region.epoch.conf_ver < other.epoch.conf_ver
    )
