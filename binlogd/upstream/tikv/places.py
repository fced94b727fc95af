"""Where keys are, as PD knows it.

Source: pingcap/kvproto proto/pdpb.proto, service PD: GetRegion, GetStore, GetGCSafePoint,
UpdateServiceGCSafePoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from binlogd.tso import Tso
from binlogd.wire.generated import metapb


@dataclass(frozen=True, slots=True)
class LocatedRegion:
    """A region and its leader as PD knows them; its bounds have PD's form."""

    region: metapb.Region
    leader: metapb.Peer | None


class RegionDirectory(Protocol):
    """PD, as a client of TiKV needs it. Every method raises UpstreamUnavailable."""

    async def region(self, key: bytes) -> LocatedRegion | None:
        """The region of a key in PD's form (`pd_key`); None: PD knows none at this moment."""
        ...

    async def store(self, store_id: int) -> metapb.Store | None:
        """A store, also one that is gone for good (Tombstone); None: there never was one."""
        ...

    async def gc_safe_point(self, ts: Tso) -> Tso:
        """What lies at or below it may have been collected, or is about to be, unless it is the
        newest of its key; to be held against `ts`."""
        ...

    async def hold_gc(self, service: str, ts: Tso, ttl_s: int) -> Tso:
        """Asks that nothing above `ts` be collected for `ttl_s` seconds from now; 0 lets go.

        Returns the lowest timestamp that somebody holds: above `ts`, it came too late.
        """
        ...
