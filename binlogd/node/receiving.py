"""The receiving half as operators see it: a Pump, the service in front of it, who holds what it has
received, and how it ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.node.closing import Closing
from binlogd.ports import NodeStatus, Registry
from binlogd.pump.metrics import say_pump, say_service
from binlogd.pump.pump import Pump
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.score import score
from binlogd.pump.shard.statistics import ShardStatistics
from binlogd.pump.state import NodeState
from binlogd.status import (
    ChaserCounts,
    CommonStatus,
    GcStatus,
    LateCommitStatus,
    OwnStatus,
    ShardStatus,
)
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import NO_TS, compose, physical_ms
from binlogd.upstream.entry import DRAINER

log = structlog.get_logger(__name__)

PURGE_ALERT_MS = 20 * 3_600_000
"""How far ahead of the deletion a Drainer is warned of."""


class Receiving(msgspec.Struct):
    """One Pump that runs."""

    pump: Pump
    service: PumpService
    closing: Closing | None = None
    purged: Counter[str] = msgspec.field(default_factory=Counter)
    """How often each Drainer was found behind what garbage collection has deleted."""

    def status(self, common: CommonStatus) -> OwnStatus:
        """What is said of a node, and of what it receives; cheap."""
        pump = self.pump.statistics()
        return OwnStatus(
            **msgspec.structs.asdict(common),
            blocked_by=pump.blocked_by,
            blocked_s=round(pump.blocked_s, 3),
            refuses_because=pump.refuses_because,
            late_commits=sum(shard.late_open for shard in pump.shards),
            first_late=[
                LateCommitStatus(shard.name, each.start_ts, each.commit_ts)
                for shard in pump.shards
                for each in shard.first_late
            ],
            refused_from_the_future=pump.from_the_future,
            shards=[_shard(each) for each in pump.shards],
            gc=GcStatus(
                holds={hold.name: hold.ts for hold in pump.gc.holds},
                held_by=sorted({holder for holder in pump.gc.held_by if holder}),
                gc_ts=max(shard.gc_ts for shard in pump.shards),
                failed=pump.gc.failed,
            ),
            free_bytes=pump.free_bytes,
            capacity_bytes=pump.gc.capacity_bytes,
            score=self.score(),
            close_waits_for=self.closing.reason if self.closing else "",
        )

    def figures(self) -> Mapping[str, Any]:
        """How it stands, for a line of the log. Source: tidb-binlog pump/server.go, "server info
        tick"."""
        pump, service = self.pump.statistics(), self.service.statistics()
        return {
            "writes": service.writes,
            "pullers": service.pullers,
            "open_prewrites": sum(shard.open_prewrites for shard in pump.shards),
            "write_queue_bytes": pump.write_queue_bytes,
            "free_bytes": pump.free_bytes,
            "blocked_by": pump.blocked_by,
        }

    def say(self, out: Exposition) -> None:
        """Its metrics."""
        say_service(out, self.service.statistics())
        say_pump(out, self.pump.statistics())
        out.counter(
            "binlog_pump_detected_drainer_binlog_purge_count",
            "How often a Drainer was found behind what is deleted here.",
            [({"id": drainer}, count) for drainer, count in sorted(self.purged.items())],
        )

    def score(self) -> int:
        """How gladly it takes more binlogs, 0 to 100."""
        pump = self.pump.statistics()
        if not pump.state.takes_prewrites:
            return 0
        return score(
            free_bytes=pump.free_bytes,
            free_bytes_min=pump.free_bytes_min,
            log_bytes=sum(shard.log_bytes for shard in pump.shards),
            queue_bytes=pump.write_queue_bytes,
            queue_bytes_max=pump.write_queue_bytes_max,
        )

    def look_at(self, drainers: Sequence[NodeStatus]) -> None:
        """Names the Drainers that garbage collection has overtaken, or nearly so.

        Source: tidb-binlog pump/server.go, detectDrainerCheckpoint.
        """
        gc_ts = max(shard.gc_ts for shard in self.pump.statistics().shards)
        if not gc_ts:
            return
        alert_ts = compose(physical_ms(gc_ts) + PURGE_ALERT_MS)
        for drainer in drainers:
            if drainer.state != NodeState.OFFLINE.value and drainer.max_commit_ts < alert_ts:
                self.purged[drainer.node_id] += 1
                log.error(
                    "drainer_purged",
                    drainer=drainer.node_id,
                    max_commit_ts=drainer.max_commit_ts,
                    gc_ts=gc_ts,
                )


def _shard(now: ShardStatistics) -> ShardStatus:
    return ShardStatus(
        name=now.name,
        max_commit_ts=now.max_commit_ts,
        open_prewrites=now.open_prewrites,
        queued=now.write_queue_records + now.index_queue_records,
        chaser="on" if now.chaser.is_on else "off",
        chaser_counts=msgspec.convert(now.chaser, ChaserCounts, from_attributes=True),
        index_rebuilds=now.index_rebuilds,
        index_damage=now.index_damage,
        written=now.written_records,
        log_bytes=now.log_bytes,
    )


RETRY_S = 1.0
UNREAD = "the registry, which has not said yet who reads this Pump"


class RemoteDrainers:
    """Drainers elsewhere that read this Pump: what they still need is not deleted. `run` follows
    them.

    A Drainer's entry in the registry says up to where everything is durable downstream. That holds
    garbage collection as the Drainer of this process does; one that is offline holds nothing, one
    that vanishes from the registry holds as before. Until the registry has been read nothing is
    deleted, and while it cannot be read, what was known counts. The original deletes by age alone,
    and counts afterwards whom it has overtaken (tidb-binlog pump/server.go, gcBinlogFile).
    """

    def __init__(self, pump: Pump, registry: Registry, own_id: str) -> None:
        """`own_id` is the Drainer of this process, which speaks for itself."""
        self._caretaker, self._registry, self._own_id = pump.caretaker, registry, own_id
        self._is_reached = True
        self._caretaker.hold(UNREAD, NO_TS)

    async def run(self) -> None:
        """Until cancelled."""
        while True:  # until cancelled
            try:
                async with aclosing(self._registry.watch(DRAINER)) as lists:
                    async for drainers in lists:
                        self._take(drainers)
            except UpstreamUnavailable as error:
                if self._is_reached:
                    log.warning(
                        "drainers_unknown", cause=str(error), consequence="those known still hold"
                    )
                self._is_reached = False
            await asyncio.sleep(RETRY_S)

    def _take(self, drainers: Sequence[NodeStatus]) -> None:
        self._is_reached = True
        for each in drainers:
            if each.node_id == self._own_id:
                continue
            name = f"drainer {each.node_id}"
            if each.state == NodeState.OFFLINE.value:
                self._caretaker.release(name)
            else:
                self._caretaker.hold(name, each.max_commit_ts)
        self._caretaker.release(UNREAD)
