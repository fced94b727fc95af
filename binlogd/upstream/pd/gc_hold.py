"""Keeps the cluster from collecting what a Drainer may read again: its schema as of the checkpoint.

Source: tidb-binlog drainer/server.go, updateGCSafePoint; drainer/pd.go: five minutes, renewed twice
in that time, and left to run out by itself when the Drainer ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.status import UpstreamPart
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)


class SafePoints(Protocol):
    """PD, as far as garbage collection goes."""

    async def hold_gc(self, service: str, ts: Tso, ttl_s: int) -> Tso:
        """Asks that nothing above `ts` be collected; the lowest timestamp that somebody holds.

        Raises UpstreamUnavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """In seconds."""

    ttl_s: int = 300
    renew_s: float = 150.0
    retry_s: float = 1.0


class GcHold:
    """A lease at PD, from the first `keep_from` on."""

    def __init__(self, pd: SafePoints, service: str, limits: HoldLimits | None = None) -> None:
        """`service` is the name at PD; one for each node."""
        self._pd, self._service, self._limits = pd, service, limits or HoldLimits()
        self._ts = NO_TS
        self._is_wanted = asyncio.Event()
        self._renewed = self._failed = 0
        self._trouble = ""

    def keep_from(self, ts: Tso) -> None:
        """What lies above `ts` is needed; told to PD with the next renewal, the first at once."""
        self._ts = max(self._ts, ts)
        if self._ts:
            self._is_wanted.set()

    async def run(self) -> None:
        """Renews the lease, until cancelled."""
        await self._is_wanted.wait()
        while True:  # until cancelled
            is_held = await self._renew()
            await asyncio.sleep(self._limits.renew_s if is_held else self._limits.retry_s)

    async def close(self) -> None:
        """Leaves the lease to run out: a restart within it finds everything."""

    def statistics(self) -> UpstreamPart:
        """How it stands."""
        return UpstreamPart(
            name="gc hold",
            trouble=self._trouble,
            requests=self._renewed + self._failed,
            errors=self._failed,
        )

    async def _renew(self) -> bool:
        ts = self._ts
        try:
            lowest = await self._pd.hold_gc(self._service, ts, self._limits.ttl_s)
        except UpstreamUnavailable as error:
            self._failed += 1
            self._trouble = str(error)
            log.warning("gc_hold_failed", ts=ts, cause=str(error))
            return False
        self._renewed += 1
        self._trouble = ""
        if lowest > ts:
            self._trouble = (
                f"PD collects up to {lowest} already, above the checkpoint {ts}: a start from there"
                " reads the DDL history instead of the tables"
            )
            log.warning("gc_hold_late", ts=ts, collected_up_to=lowest)
        return True
