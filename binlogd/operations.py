"""What an operator sees and does: `/status`, `/metrics`, readiness, pause and close.

The document of `/status` has the original's keys (`status`, `CommitTS`, `Checkpoint`, `ErrMsg`) and
binlogd's own beside them; `binlogd status` shows it. Source: tidb-binlog pump/server.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from binlogd import __version__, telemetry
from binlogd.drainer.drainer import Drainer, DrainerState
from binlogd.drainer.metrics import say_drainer
from binlogd.errors import Refused
from binlogd.ports import Clock
from binlogd.pump.metrics import say_pump, say_service
from binlogd.pump.pump import Pump
from binlogd.pump.service import ClusterIdentity, PumpService
from binlogd.pump.state import Action, NodeState
from binlogd.routes.application import StateReply
from binlogd.telemetry import Exposition
from binlogd.tso import NO_TS, compose, physical_ms
from binlogd.upstream.registry import status_json
from binlogd.upstream.store import NodeStatus

REFUSED_CODE, DONE_CODE = 3, 200


@dataclass(frozen=True, slots=True)
class Node:
    """One running binlogd; `stopping` is set when it should end."""

    node_id: str
    host: str
    pump: Pump
    service: PumpService
    cluster: ClusterIdentity
    clock: Clock
    drainer: Drainer | None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def status(self) -> Mapping[str, Any]:
        """The document of `/status`."""
        pump = self.pump.statistics()
        return {
            "state": pump.state.value,
            "node_id": self.node_id,
            "cluster_id": self.cluster.cluster_id,
            "version": __version__,
            "max_commit_ts": pump.max_commit_ts,
            "newest_commit_ts": self.pump.newest_commit_ts,
            "checkpoint": self._checkpoint(),
            "lag_s": self.lag_s(),
            "blocked_by": pump.blocked_by,
            "late_commits": sum(shard.late_commits for shard in pump.shards),
            "drainer": self._drainer(),
            "shards": [
                {
                    "name": shard.name,
                    "max_commit_ts": shard.max_commit_ts,
                    "open_prewrites": shard.open_prewrites,
                    "queued": shard.write_queue_records + shard.index_queue_records,
                    "chaser": "on" if shard.chaser.is_on else "off",
                    "written": shard.written_records,
                    "log_bytes": shard.log_bytes,
                }
                for shard in pump.shards
            ],
            "gc": {
                "holds": {hold.name: hold.ts for hold in pump.holds},
                "held_by": [holder for holder in pump.gc_held_by if holder],
            },
            "free_bytes": pump.free_bytes,
            "status": {self.node_id: status_json(self.entry("pumps"))},
            "CommitTS": self.pump.newest_commit_ts,
            "Checkpoint": {},
            "ErrMsg": "",
        }

    def lag_s(self) -> float | None:
        """Upstream seconds between the newest commit that arrived and what is applied; 0 only when
        everything that was acknowledged is applied; None when nothing is replicated."""
        if self.drainer is None:
            return None
        now = self.drainer.statistics()
        newest, applied = self.pump.newest_commit_ts, now.applied_ts
        if now.merge is not None:
            newest = max(newest, now.merge.newest_commit_ts)
        if applied >= newest:
            return 0.0
        return max(0.001, (physical_ms(newest) - physical_ms(applied)) / 1000)

    def metrics(self) -> bytes:
        """Prometheus text."""
        out = Exposition()
        say_service(out, self.service.statistics())
        say_pump(out, self.pump.statistics())
        if self.drainer is not None:
            say_drainer(out, self.drainer.statistics())
            out.gauge("binlogd_lag_seconds", "From arrived to applied.", self.lag_s() or 0.0)
        return out.text() + telemetry.process_metrics()

    def unready(self) -> str:
        """Why no prewrite is taken now; empty when all is well."""
        pump = self.pump.statistics()
        if pump.state is not NodeState.ONLINE:
            return f"the node is {pump.state.value}"
        if pump.free_bytes <= pump.free_bytes_min:
            return f"only {pump.free_bytes} bytes are free; writes need {pump.free_bytes_min}"
        return ""

    async def change_state(self, node_id: str, action: str) -> StateReply:
        """Begins to pause or close; the process ends when that is done."""
        if node_id != self.node_id:
            return StateReply(
                f"invalide nodeID {node_id}, this pump's nodeID is {self.node_id}", REFUSED_CODE
            )
        state = self.pump.state
        if state is not NodeState.ONLINE:
            return StateReply(
                f"this pump's state is {state.value}, apply {action} failed!", REFUSED_CODE
            )
        try:
            self.pump.request(Action(action))
        except (ValueError, Refused):
            return StateReply(f"invalide action {action}", REFUSED_CODE)
        self.stopping.set()
        return StateReply(f"apply action {action} success!", DONE_CODE)

    def entry(self, kind: str) -> NodeStatus:
        """This node as the registry keeps it."""
        position = self.pump.max_commit_ts
        if kind == "drainers":
            position = self.drainer.statistics().checkpoint.commit_ts if self.drainer else NO_TS
        return NodeStatus(
            kind=kind,
            node_id=self.node_id,
            host=self.host,
            state=self.pump.state.value,
            max_commit_ts=position,
            update_ts=compose(self.clock.wall_ms()),
        )

    def _checkpoint(self) -> dict[str, Any]:
        if self.drainer is None:
            return {"commit_ts": 0, "consistent": False}
        checkpoint = self.drainer.statistics().checkpoint
        return {"commit_ts": checkpoint.commit_ts, "consistent": checkpoint.consistent}

    def _drainer(self) -> dict[str, Any]:
        if self.drainer is None:
            return {"state": "off", "error": ""}
        now = self.drainer.statistics()
        return {
            "state": now.state.value,
            "error": now.last_error if now.state is not DrainerState.RUNNING else "",
            "applied_ts": now.applied_ts,
            "resolved_ts": now.resolved_ts,
            "blocking": now.blocking,
            "blocked_s": round(now.merge.blocked_s, 3) if now.merge else 0.0,
            "sources": [
                {
                    "name": each.name,
                    "state": each.state.value,
                    "resolved_ts": each.resolved_ts,
                    "binlogs_waiting": each.binlogs_waiting,
                    "silent_s": round(each.silent_s, 3),
                    "trouble": each.trouble,
                }
                for each in (now.merge.sources if now.merge else ())
            ],
            "sessions": now.sessions_begun,
            "skipped": now.transactions_skipped,
            "transactions": now.sink.txns_applied if now.sink else 0,
            "rows": now.sink.rows_applied if now.sink else 0,
            "ddls": now.sink.ddls_applied if now.sink else 0,
            "retries": now.sink.retries if now.sink else 0,
            "lanes": list(now.sink.lane_ts) if now.sink else [],
        }
