"""The receiving half as operators see it: a Pump, the service in front of it, and how it ends.

A node that only replicates has none; `NOTHING_RECEIVED` is what its status says in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from binlogd.node.closing import Closing
from binlogd.ports import NodeStatus
from binlogd.pump.metrics import say_pump, say_service
from binlogd.pump.pump import Pump
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.score import score
from binlogd.pump.state import NodeState
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import compose, physical_ms

log = structlog.get_logger(__name__)

PURGE_ALERT_MS = 20 * 3_600_000
"""How far ahead of the deletion a Drainer is warned of."""
NOTHING_RECEIVED: Mapping[str, Any] = {
    "blocked_by": "",
    "blocked_s": 0.0,
    "refuses_because": "",
    "late_commits": 0,
    "first_late": [],
    "shards": [],
    "gc": {"holds": {}, "held_by": [], "gc_ts": 0, "failed": ""},
    "free_bytes": 0,
    "capacity_bytes": 0,
    "score": 0,
    "close_waits_for": "",
}
"""What `Receiving.status` says, where nothing is received."""


@dataclass(slots=True)
class Receiving:
    """One Pump that runs."""

    pump: Pump
    service: PumpService
    closing: Closing | None = None
    purged: Counter[str] = field(default_factory=Counter)
    """How often each Drainer was found behind what garbage collection has deleted."""

    def status(self) -> Mapping[str, Any]:
        """Its part of the document of `/status`; cheap."""
        pump = self.pump.statistics()
        return {
            "blocked_by": pump.blocked_by,
            "blocked_s": round(pump.blocked_s, 3),
            "refuses_because": pump.refuses_because,
            "late_commits": sum(shard.late_open for shard in pump.shards),
            "first_late": [
                {"shard": shard.name, "start_ts": each.start_ts, "commit_ts": each.commit_ts}
                for shard in pump.shards
                for each in shard.first_late
            ],
            "shards": [
                {
                    "name": shard.name,
                    "max_commit_ts": shard.max_commit_ts,
                    "open_prewrites": shard.open_prewrites,
                    "queued": shard.write_queue_records + shard.index_queue_records,
                    "chaser": "on" if shard.chaser.is_on else "off",
                    "chaser_counts": {
                        "turned_on": shard.chaser.turned_on,
                        "catch_ups": shard.chaser.catch_ups,
                        "recoveries": shard.chaser.recoveries,
                        "records_read": shard.chaser.records_read,
                    },
                    "index_rebuilds": shard.index_rebuilds,
                    "index_damage": shard.index_damage,
                    "written": shard.written_records,
                    "log_bytes": shard.log_bytes,
                }
                for shard in pump.shards
            ],
            "gc": {
                "holds": {hold.name: hold.ts for hold in pump.gc.holds},
                "held_by": sorted({holder for holder in pump.gc.held_by if holder}),
                "gc_ts": max(shard.gc_ts for shard in pump.shards),
                "failed": pump.gc.failed,
            },
            "free_bytes": pump.free_bytes,
            "capacity_bytes": pump.gc.capacity_bytes,
            "score": self.score(),
            "close_waits_for": self.closing.reason if self.closing else "",
        }

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
