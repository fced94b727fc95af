"""What an operator sees and does: `/status`, `/metrics`, readiness, pause, close and resume.

The document of `/status` has the keys of both originals and binlogd's own beside them; `binlogd
status` shows it. The two halves have a node id each, so that a request says which of them it means.
Source: tidb-binlog pump/server.go, drainer/server.go.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from binlogd import __version__, native
from binlogd.client.registered_pumps import RegisteredPumps
from binlogd.drainer.metrics import drainer_status, say_drainer
from binlogd.errors import BinlogdError, RecordTooLarge, Refused, UpstreamUnavailable
from binlogd.host.certificates import Expiry
from binlogd.node.bulkhead import Bulkhead
from binlogd.node.membership import Identity, Membership
from binlogd.node.receiving import Receiving
from binlogd.node.replication import Replication
from binlogd.node.samples import Counts
from binlogd.node.tracing import Tracing
from binlogd.placement.stand_in import StandIn
from binlogd.ports import Clock, ClusterIdentity, NodeStatus, Registry, TsoSource
from binlogd.pump.shard.statistics import ShardStatistics
from binlogd.pump.state import Action, NodeState
from binlogd.serving.answers import DONE_CODE, LookUp, Question, Reply
from binlogd.serving.finder import Finder
from binlogd.status import (
    ArchiveStatus,
    CommonStatus,
    DownstreamStatus,
    DrainerStatus,
    NodeEntry,
    OwnStatus,
    SavedCheckpoint,
    Status,
)
from binlogd.telemetry.exposition import Exposition, process_metrics
from binlogd.telemetry.logs import Lines
from binlogd.tso import NO_TS, Tso, behind_s, compose
from binlogd.upstream.entry import DRAINER, PUMP, entry
from binlogd.upstream.metrics import say_upstream, upstream_status
from binlogd.upstream.store import AGAIN, SkipEntry, SkipList
from binlogd.upstream.upstream import UpstreamStatistics
from binlogd.wire.text import binlog_text

if TYPE_CHECKING:
    from binlogd.snapshot.export_queue import ExportQueue

log = structlog.get_logger(__name__)

TEXT_CHARS_MAX = 1 << 20
TEXT_OF_BYTES_MAX = 64 << 20
"""Of a binlog that is shown; a larger one would not fit beside what is being received."""
_NO_DRAINER = "replication is turned off: this node has not the role of a drainer"
_NO_PUMP = "this node receives nothing: it has not the role of a pump"


class Archiving(Protocol):
    """An archiver that works beside both halves, and says how it stands."""

    def status(self) -> ArchiveStatus:
        """For `/status`; cheap."""

    def say(self, out: Exposition) -> None:
        """For `/metrics`."""


@dataclass(slots=True)
class Node:
    """One running binlogd; `stopping` is set when it should end."""

    identity: Identity
    receiving: Receiving | None
    """None where the node only replicates."""
    cluster: ClusterIdentity
    registry: Registry
    tso: TsoSource
    clock: Clock
    drainer: Replication | None
    skips: SkipList
    reload_now: Callable[[Callable[[], None]], Reply]
    finder: Finder
    membership: Membership | None = None
    pumps: RegisteredPumps | None = None
    """None where the Pumps that are pulled stand in the configuration."""
    upstream: Callable[[], UpstreamStatistics] = lambda: UpstreamStatistics("standalone")
    downstream: Callable[[], DownstreamStatus] = DownstreamStatus
    known_jobs: Callable[[], Awaitable[Sequence[bytes]]] | None = None
    """The DDL history, read anew."""
    archiver: Archiving | None = None
    tracing: Tracing | None = None
    """None where nobody collects traces."""
    certificates: Expiry = field(default_factory=lambda: Expiry(()))
    """Of the port and of the downstream."""
    open_addr: str = ""
    """Where others reach it with neither TLS nor a token that somebody set; "": nowhere."""
    exports: ExportQueue | None = None
    """None where this service makes no exports."""
    stand_in: StandIn | None = None
    """None where there is a PD."""
    bulkhead: Bulkhead = field(default_factory=lambda: Bulkhead(Random()))
    """Of what works beside the Pump."""
    log_lines: Lines = field(default_factory=lambda: Lines(sys.stdout))
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _started_ms: int = field(init=False)

    def __post_init__(self) -> None:
        """Whoever asks is told for how long it runs."""
        self._started_ms = self.clock.wall_ms()

    # --- looking ---------------------------------------------------------------------------

    async def status(self) -> Status:
        """All of `/status`, for which others are asked: all Pumps, and a timestamp of now."""
        nodes: dict[str, NodeEntry] | None = None
        now, trouble = NO_TS, ""
        try:
            pumps = {node.node_id: node for node in await self.registry.nodes(PUMP)}
            if self.receiving is not None:  # fresher than its last heartbeat
                pumps[self.identity.pump] = replace(self.entry(PUMP), is_alive=True)
            nodes = {name: entry(pumps[name]) for name in sorted(pumps)}
            now = max(await self.tso.next(), self._newest_commit_ts())
        except UpstreamUnavailable as error:  # who writes needs the Pumps all the same
            trouble = str(error)
        positions, own = self._positions(), self.own_status()
        return Status(
            **msgspec.structs.asdict(own),
            pump_positions=positions or None,
            synced=bool(positions) and own.lag_s == 0,
            last_ts=own.checkpoint.commit_ts,
            status=nodes,
            commit_ts=now,
            error=trouble,
        )

    def _positions(self) -> Mapping[str, Tso]:
        """How far each source has come; our own shards are one."""
        own = {shard.name for shard in self._shards()}
        merge = self.drainer.statistics().merge if self.drainer is not None else None
        positions: dict[str, Tso] = {}
        for source in merge.sources if merge is not None else ():
            name = self.identity.pump if source.name in own else source.name
            positions[name] = min(positions.get(name, source.resolved_ts), source.resolved_ts)
        return positions

    def own_status(self) -> OwnStatus:
        """Of `/status` what this process knows without asking anybody; cheap."""
        asking = (self.membership, self.pumps)
        common = CommonStatus(
            state=self.state.value,
            node_id=self.identity.pump if self.receiving is not None else self.identity.drainer,
            roles=[each.kind.removesuffix("s") for each in self.entries()],
            cluster_id=self.cluster.cluster_id,
            version=__version__,
            form=native.form(),
            uptime_s=max(0, self.clock.wall_ms() - self._started_ms) / 1000,
            max_commit_ts=self._max_commit_ts(),
            newest_commit_ts=self._newest_commit_ts(),
            checkpoint=self._checkpoint(),
            lag_s=self.lag_s(),
            drainer=self._drainer(),
            upstream=upstream_status(self.upstream()),
            open_addr=self.open_addr,
            archive=self.archiver.status() if self.archiver is not None else None,
            exports=self.exports.status() if self.exports is not None else None,
            stuck_parts=self.bulkhead.stuck(),
            log_error=self.log_lines.trouble,
            registry_error=next((each.trouble for each in asking if each and each.trouble), ""),
        )
        if self.receiving is None:
            return OwnStatus(**msgspec.structs.asdict(common))
        return self.receiving.status(common)

    @property
    def state(self) -> NodeState:
        """That of the Pump; of the Drainer where there is no Pump."""
        if self.receiving is not None:
            return self.receiving.pump.state
        assert self.drainer is not None, "a node has a role"
        return self.drainer.state

    def _shards(self) -> Sequence[ShardStatistics]:
        return self.receiving.pump.statistics().shards if self.receiving is not None else ()

    def _max_commit_ts(self) -> Tso:
        """Up to where everything that arrived here is known; without a Pump, what is merged."""
        if self.receiving is not None:
            return self.receiving.pump.max_commit_ts
        return self.drainer.statistics().resolved_ts if self.drainer is not None else NO_TS

    def lag_s(self) -> float | None:
        """Upstream seconds between the newest commit that arrived and what is applied; 0 only when
        everything that was acknowledged is applied; from the first transaction that waits where
        nothing is applied yet; None where none is known of, and when nothing is replicated."""
        if self.drainer is None:
            return None
        return behind_s(self.drainer.statistics().reached_ts, self._newest_commit_ts())

    def _newest_commit_ts(self) -> Tso:
        """That arrived at this Pump or at one that is merged with it."""
        merge = self.drainer.statistics().merge if self.drainer is not None else None
        newest = self.receiving.pump.newest_commit_ts if self.receiving is not None else NO_TS
        return max(newest, merge.newest_commit_ts) if merge is not None else newest

    def metrics(self) -> bytes:
        """Prometheus text."""
        out = Exposition()
        if self.receiving is not None:
            self.receiving.say(out)
        if self.archiver is not None:
            self.archiver.say(out)
        if self.exports is not None:
            self.exports.say(out)
        if self.drainer is not None:
            say_drainer(out, self.drainer.statistics())
            out.gauge(
                "binlogd_lag_seconds",
                "From arrived to applied; absent while not known.",
                self.lag_s(),
            )
        out.counter(
            "binlogd_unforeseen_errors",
            "Exceptions that nobody foresaw; each has its traceback in the log.",
            [({"part": part}, count) for part, count in self._faults().items()],
        )
        out.gauge(
            "binlogd_certificate_expires_seconds",
            "When the first certificate of a file ends, in seconds since 1970.",
            [({"file": file}, end_s) for file, end_s in self.certificates.expires_s().items()],
        )
        if self.tracing is not None:
            self.tracing.traces.say(out)
        say_upstream(out, self.upstream())
        if self.stand_in is not None:
            self.stand_in.say(out)
        return out.text() + process_metrics()

    def route_failed(self, route: str, error: Exception) -> BinlogdError:
        """Takes note of a fault that nobody foresaw; what to say of it."""
        return self.bulkhead.route_failed(route, error)

    def _faults(self) -> Mapping[str, int]:
        of_replication = self.drainer.statistics().unforeseen_errors if self.drainer else 0
        return {"replication": of_replication, **self.bulkhead.counts()}

    def counts(self) -> Counts:
        """Binlogs that were taken, rows that were applied; the latter by this session."""
        sink = self.drainer.statistics().sink if self.drainer is not None else None
        taken = self.receiving.pump.statistics().accepted if self.receiving is not None else 0
        return Counts(taken, sink.rows_applied if sink else 0)

    async def ddl_history(self) -> Sequence[bytes]:
        """The JSON of every DDL job that is known."""
        return await self.known_jobs() if self.known_jobs is not None else []

    async def find(self, question: Question) -> LookUp:
        """Looks for transactions in the log. Raises Refused, Unavailable."""
        if not self.finder.paths:
            raise Refused(
                "this node keeps no binlogs: ask a Pump, or give it a relay log"
                " (syncer.relay.log-dir)"
            )
        return await self.finder.find(question, up_to=self._newest_commit_ts())

    def figures(self) -> Mapping[str, Any]:
        """How it stands, in one line of the log."""
        own = self.receiving.figures() if self.receiving is not None else {}
        return {
            "state": self.state.value,
            "max_commit_ts": self._max_commit_ts(),
            "lag_s": self.lag_s(),
            **own,
        }

    def unready(self) -> str:
        """Why no prewrite is taken now; empty when all is well, or none is to be taken here."""
        if self.receiving is None:
            return ""
        return self.receiving.pump.statistics().refuses_because

    async def nodes(self, kind: str) -> Sequence[NodeEntry]:
        """The registered nodes of a kind. Raises UpstreamUnavailable."""
        return [entry(node) for node in await self.registry.nodes(kind)]

    def applied_ts(self) -> Reply:
        """Up to where the downstream has everything."""
        if self.drainer is None:
            return Reply.refused(_NO_DRAINER)
        ts = self.drainer.statistics().applied_ts
        return Reply("get drainer's latest ts success!", DONE_CODE, {"ts": ts})

    async def binlog_text(self, ts: int) -> str:
        """The binlog that is filed under a timestamp. Raises Corrupt or Unavailable."""
        if self.receiving is None:
            raise Refused(f"{_NO_PUMP}; ask the Pump that received it")
        try:
            payload = await self.receiving.pump.read_binlog(Tso(ts), bytes_max=TEXT_OF_BYTES_MAX)
        except RecordTooLarge as error:
            raise Refused(f"{error}; `binlogd txn {ts}` reads the files themselves") from error
        if payload is None:
            raise Refused("not found")
        return binlog_text(payload, chars_max=TEXT_CHARS_MAX)

    # --- acting ----------------------------------------------------------------------------

    def reload(self) -> Reply:
        """Reads the configuration again, and takes what can change while it runs."""
        return self.reload_now(self.drainer.renew if self.drainer is not None else lambda: None)

    def trigger_gc(self) -> bool:
        """Begins to collect garbage; False if that is going on already."""
        return self.receiving is not None and self.receiving.pump.caretaker.trigger()

    async def change_state(self, node_id: str, action: str) -> Reply:
        """Pauses or closes a half, or resumes the Drainer; the end comes after the answer."""
        if self.drainer is not None and node_id == self.identity.drainer:
            return _replication_changed(self.drainer, action)
        if self.receiving is None:
            return Reply.refused(
                f"invalid nodeID {node_id}, this drainer's nodeID is {self.identity.drainer}"
            )
        if node_id != self.identity.pump:
            return Reply.refused(
                f"invalide nodeID {node_id}, this pump's nodeID is {self.identity.pump}"
            )
        pump = self.receiving.pump
        state = pump.state
        if state is not NodeState.ONLINE:
            return Reply.refused(f"this pump's state is {state.value}, apply {action} failed!")
        try:
            pump.request(Action(action))
        except (ValueError, Refused):
            return Reply.refused(f"invalide action {action}")
        self.stopping.set()
        return Reply(f"apply action {action} success!", DONE_CODE)

    async def skip(self, commit_ts: int, reason: str) -> Reply:
        """Passes over a transaction from now on, for good; one that came late is dealt with so.

        Raises UpstreamUnavailable or IndexUnavailable.
        """
        late = self.receiving.pump.late if self.receiving is not None else None
        came_late = late is not None and commit_ts in {each.commit_ts for each in late.unresolved()}
        if self.drainer is None and not came_late:
            return Reply.refused(_NO_DRAINER)
        applied_ts = self.drainer.statistics().applied_ts if self.drainer is not None else NO_TS
        if commit_ts <= applied_ts and not came_late:
            return Reply.refused(
                f"commit_ts {commit_ts} is applied already: everything up to {applied_ts} is"
            )
        is_new = await self.skips.add(Tso(commit_ts), reason)
        log.warning("transaction_skipped", commit_ts=commit_ts, reason=reason, is_new=is_new)
        if late is not None and came_late:
            await late.resolve({Tso(commit_ts)})
        if self.drainer is not None:
            self.drainer.retry()
        again = "" if is_new else AGAIN
        return Reply(f"commit_ts {commit_ts} is passed over{again}", DONE_CODE)

    def decided_skips(self) -> Sequence[SkipEntry]:
        """What was skipped so far, by commit_ts."""
        return self.skips.decided()

    # --- in the registry -------------------------------------------------------------------

    def entries(self) -> Sequence[NodeStatus]:
        """This process as the registry keeps it, the Pump first."""
        kinds = [PUMP] if self.receiving is not None else []
        if self.drainer is not None:
            kinds.append(DRAINER)
        return [self.entry(kind) for kind in kinds]

    def consumers(self) -> Sequence[NodeStatus]:
        """The Drainer of this process, at what it has applied; none before the first writer."""
        if self.drainer is None or self.cluster.cluster_id is None:
            return []
        applied_ts = self.drainer.statistics().applied_ts
        return [replace(self.entry(DRAINER), max_commit_ts=applied_ts)]

    async def look_at_pumps(self) -> None:
        """Another Pump says that it is there. Returns when it is in the merge, or will be in the
        next one; where the Pumps stand in the configuration, names those in the log that do not,
        because what they receive would be missed.

        Raises UpstreamUnavailable.
        """
        if self.pumps is not None:
            await self.pumps.refresh()
            return
        merge = self.drainer.statistics().merge if self.drainer else None
        merged = {self.identity.host, *(source.name for source in (merge.sources if merge else ()))}
        for pump in await self.registry.nodes(PUMP):
            if pump.state != NodeState.OFFLINE.value and pump.host not in merged:
                log.warning("pump_not_merged", pump=pump.node_id, host=pump.host, state=pump.state)

    async def look_at_drainers(self) -> None:
        """Warns of Drainers that are behind what is deleted here. Raises UpstreamUnavailable."""
        if self.receiving is not None:
            self.receiving.look_at(await self.registry.nodes(DRAINER))

    def entry(self, kind: str) -> NodeStatus:
        """One half as the registry keeps it."""
        points = 0
        if kind == DRAINER:
            assert self.drainer is not None
            node_id, state = self.identity.drainer, self.drainer.state
            position = self.drainer.statistics().checkpoint.commit_ts
        else:
            assert self.receiving is not None
            node_id, state = self.identity.pump, self.receiving.pump.state
            position = self.receiving.pump.max_commit_ts
            points = self.receiving.score()
        return NodeStatus(
            kind=kind,
            node_id=node_id,
            host=self.identity.host,
            state=state.value,
            max_commit_ts=position,
            update_ts=compose(self.clock.wall_ms()),
            score=points,
        )

    def _checkpoint(self) -> SavedCheckpoint:
        if self.drainer is None:
            return SavedCheckpoint()
        now = self.drainer.statistics()
        saved = now.checkpoint
        return SavedCheckpoint(saved.commit_ts, saved.consistent, now.not_saved)

    def _drainer(self) -> DrainerStatus:
        if self.drainer is None:
            return DrainerStatus()
        return drainer_status(
            self.drainer.statistics(),
            self._newest_commit_ts(),
            self.downstream(),
            node_id=self.identity.drainer,
            node_state=self.drainer.state.value,
        )


def _replication_changed(drainer: Replication, action: str) -> Reply:
    """The originals' words, "pump" included; `resume` is binlogd's own."""
    state = drainer.state
    try:
        if action == "resume":
            drainer.resume()
        elif state is not NodeState.ONLINE:
            raise Refused(f"this pump's state is {state.value}, apply {action} failed!")
        else:
            drainer.request(Action(action))
    except ValueError:
        return Reply.refused(f"invalid action {action}")
    except Refused as error:
        return Reply.refused(error)
    return Reply(f"apply action {action} success!", DONE_CODE)
