"""Which region a key is in, as far as it is known, and who leads it.

Keys here are as TiKV takes them, not as PD has them. What is known may be old: a store says so, and
then it is forgotten.

Source: tikv/client-go internal/locate/region_cache.go; pingcap/kvproto proto/pdpb.proto, GetRegion,
GetStore, GetGCSafePoint, UpdateServiceGCSafePoint.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace
from typing import Protocol

from binlogd.tidb.meta_keys import key_of_pd
from binlogd.tso import Tso
from binlogd.wire.generated import metapb


class RegionDirectory(Protocol):
    """PD, as a client of TiKV needs it. Every method raises UpstreamUnavailable."""

    async def region(self, key: bytes) -> Region | None:
        """The region of a key in PD's form (`pd_key`); None: PD knows none at this moment. Raises
        Corrupt, too."""

    async def store(self, store_id: int) -> metapb.Store | None:
        """A store, also one that is gone for good (Tombstone); None: there never was one."""

    async def gc_safe_point(self, ts: Tso) -> Tso:
        """What lies at or below it may have been collected, or is about to be, unless it is the
        newest of its key; to be held against `ts`."""

    async def hold_gc(self, service: str, ts: Tso, ttl_s: int) -> Tso:
        """Asks that nothing above `ts` be collected for `ttl_s` seconds from now; 0 lets go.

        Returns the lowest timestamp that somebody holds: above `ts`, it came too late.
        """


_LEADS = (metapb.PeerRole.Voter, metapb.PeerRole.IncomingVoter)
_REGIONS_MAX = 16_384
"""Some megabytes. A cluster has more, but those of one Pump's orphans and of the schema are few."""


@dataclass(frozen=True, slots=True)
class Region:
    """Keys in [start, end); an empty `end` has no bound."""

    id: int
    start: bytes
    end: bytes
    epoch: metapb.RegionEpoch
    peers: tuple[metapb.Peer, ...]
    leader: metapb.Peer | None

    @classmethod
    def of(cls, region: metapb.Region, leader: metapb.Peer | None) -> Region:
        """As PD and TiKV tell it. Raises Corrupt."""
        return cls(
            id=region.id,
            start=key_of_pd(region.start_key),
            end=key_of_pd(region.end_key),
            epoch=region.region_epoch,
            peers=tuple(region.peers),
            leader=leader if leader is not None and leader.store_id else None,
        )

    def holds(self, key: bytes) -> bool:
        """Whether a key is in it."""
        return self.start <= key and (not self.end or key < self.end)

    def voter(self, turn: int) -> metapb.Peer | None:
        """One of those that may lead it, another one with each turn: who leads is asked of them
        while PD does not know it, as it does not when it has just started."""
        voters = [each for each in self.peers if each.role in _LEADS and not each.is_witness]
        return voters[turn % len(voters)] if voters else None

    def led_by_store_of(self, other: Region) -> Region:
        """This region, led from the store that leads the other: it was split off there."""
        store_id = other.leader.store_id if other.leader else 0
        peer = next((each for each in self.peers if each.store_id == store_id), None)
        return replace(self, leader=peer)


class RegionMap:
    """Regions that do not overlap, by their start."""

    def __init__(self, most: int = _REGIONS_MAX) -> None:
        self._most = most
        self._starts: list[bytes] = []
        self._by_start: dict[bytes, Region] = {}

    def __len__(self) -> int:
        """How many are known."""
        return len(self._starts)

    def find(self, key: bytes) -> Region | None:
        """The region of a key; None: ask."""
        at = bisect_right(self._starts, key) - 1
        if at < 0:
            return None
        region = self._by_start[self._starts[at]]
        return region if region.holds(key) else None

    def put(self, region: Region) -> None:
        """Knows it instead of all that it overlaps. When it is too many, the others are asked for
        again."""
        if len(self._starts) >= self._most:
            self._starts.clear()
            self._by_start.clear()
        begin = bisect_left(self._starts, region.start)
        if begin and self._by_start[self._starts[begin - 1]].holds(region.start):
            begin -= 1
        end = bisect_left(self._starts, region.end) if region.end else len(self._starts)
        for start in self._starts[begin:end]:
            del self._by_start[start]
        del self._starts[begin:end]
        insort(self._starts, region.start)
        self._by_start[region.start] = region

    def lead(self, region: Region, leader: metapb.Peer) -> None:
        """A store says who leads it; believed while the same state of the region is known."""
        known = self._by_start.get(region.start)
        if known is not None and known.id == region.id and known.epoch == region.epoch:
            self._by_start[region.start] = replace(known, leader=leader)

    def forget(self, region: Region) -> None:
        """It is not so; unless something newer is known already."""
        known = self._by_start.get(region.start)
        if known is not None and known.id == region.id and known.epoch == region.epoch:
            del self._by_start[region.start]
            del self._starts[bisect_left(self._starts, region.start)]
