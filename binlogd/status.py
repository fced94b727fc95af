"""How a node stands: the document of `/status`, made and read as these classes and no other way.

Who makes a part of it makes its class; problems, the terminal and commands read its fields; the
description of the API is generated from it, and a test holds the page's scripts to it. The order of
the fields is the order on the wire. `OwnStatus` is what `/events` sends, `Status` is all.
Source: tidb-binlog pump/server.go, drainer/server.go, pkg/node/node.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from binlogd.tso import MAX_TS, NO_TS, Tso

OFF = "off"
"""The state of a Drainer that is none."""
Ts = Annotated[
    Tso,
    Meta(
        description="A TSO: milliseconds since 1970 << 18 | counter. It exceeds 2^53.",
        extra_json_schema={"minimum": NO_TS, "maximum": MAX_TS},
    ),
]
State = Annotated[
    str,
    Meta(extra_json_schema={"enum": ["online", "pausing", "paused", "closing", "offline"]}),
]


class Label(Struct, frozen=True):
    """Of an entry; nobody gives one."""

    labels: Mapping[str, str] | None = None


class NodeEntry(Struct, frozen=True, kw_only=True):
    """A node as the registry keeps it, in the original's JSON."""

    node_id: str = msgspec.field(name="nodeId", default="")
    host: str = ""
    state: State = ""
    is_alive: bool = msgspec.field(name="isAlive", default=False)
    score: int = 0
    label: Label | None = None
    max_commit_ts: Ts = msgspec.field(name="maxCommitTS", default=NO_TS)
    update_ts: Ts = msgspec.field(name="updateTS", default=NO_TS)


class SavedCheckpoint(Struct, frozen=True):
    """The last one of the Drainer."""

    commit_ts: Ts = NO_TS
    consistent: bool = False
    error: str = ""


class FailureStatus(Struct, frozen=True):
    """What replication is stuck at or tries again; `skip_ts` is 0 where no skip gets past it."""

    kind: str
    told: str
    todo: str
    skip_ts: Ts


class SourceStatus(Struct, frozen=True, kw_only=True):
    """A Pump, or a shard of this node's, that is pulled."""

    name: str
    state: Annotated[str, Meta(extra_json_schema={"enum": ["online", "paused", "offline"]})]
    resolved_ts: Ts
    lag_s: float | None
    binlogs_waiting: int
    silent_s: float
    trouble: str


class DdlAtWork(Struct, frozen=True):
    """A statement that is at work. `stage` is what the server calls it; "" before the first look.

    `percent` is of the stage, where the server tells it (MariaDB).
    """

    commit_ts: Ts
    statement: str
    elapsed_s: float
    stage: str = ""
    percent: float = 0.0


class SubmittedDdl(Struct, frozen=True):
    """A DDL that was handed to the sink, or passed over; `reason` says why, "" where a filter or
    nothing at all is the reason."""

    commit_ts: Ts
    database: str
    table: str
    statement: str
    is_skipped: bool
    reason: str


class BusyTable(Struct, frozen=True):
    """`schema.table` as upstream calls it, and its rows that were handed to the sink."""

    table: str
    rows: int


class TrashStatus(Struct, frozen=True):
    """What was dropped upstream and is kept downstream; nothing where there is no trash."""

    tables: int | UnsetType = UNSET
    oldest_ts: Ts | UnsetType = UNSET
    dropped: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


class DownstreamStatus(Struct, frozen=True):
    """Where it goes: `syncer.db-type`, and a server's address, brokers or a path; no user."""

    db_type: str = ""
    address: str = ""


class DrainerStatus(Struct, frozen=True, kw_only=True):
    """The replicating half. What stands behind `failure` is there where something is replicated."""

    state: str = OFF
    node_id: str = ""
    node_state: str = ""
    error: str = ""
    failure: FailureStatus | None = None
    applied_ts: Ts = NO_TS
    resolved_ts: Ts = NO_TS
    blocking: str = ""
    blocked_s: float = 0.0
    sources: Sequence[SourceStatus] = ()
    sessions: int = 0
    failed_in_a_row: int = 0
    retry_in_s: float = 0.0
    skipped: int = 0
    values_in_doubt: int = 0
    expiring: Sequence[str] = ()
    transactions: int = 0
    rows: int = 0
    ddls: int = 0
    retries: int = 0
    retries_by_kind: Mapping[str, int] = {}
    ddl: DdlAtWork | None = None
    lanes: Sequence[Ts] = ()
    last_ddls: Sequence[SubmittedDdl] = ()
    busy_tables: Sequence[BusyTable] = ()
    trash: TrashStatus = TrashStatus()
    downstream: DownstreamStatus = DownstreamStatus()


PARTLY: Mapping[str, Sequence[str]] = {
    "DrainerStatus": ("state", "node_id", "node_state", "error", "failure"),
    "TrashStatus": (),
}
"""Of the classes whose fields are not always sent, those that are."""


class UpstreamPart(Struct, frozen=True, kw_only=True):
    """How it stands with one of those that an upstream asks. `address` is who answers now, `leader`
    its name, `version` what it says of itself; `trouble` is why nobody does. Counts are since the
    start."""

    name: str
    address: str = ""
    version: str = ""
    leader: str = ""
    trouble: str = ""
    requests: int = 0
    errors: int = 0
    leader_changes: int = 0


class TsoStatus(Struct, frozen=True, kw_only=True):
    """Timestamps from a cluster; `age_s` is since the last one was told, None before the first.

    `requests` are each for all who waited, `went_back` answers that were refused, as they lay
    before earlier ones; since the start."""

    last_ts: Ts
    age_s: float | None
    trouble: str
    requests: int
    slow: int
    errors: int
    went_back: int


class UpstreamStatus(Struct, frozen=True, kw_only=True):
    """Who tells what this node does not know by itself."""

    kind: Annotated[str, Meta(extra_json_schema={"enum": ["standalone", "tidb", "pd"]})]
    parts: Sequence[UpstreamPart] = ()
    tso: TsoStatus | None = None
    tikv: Mapping[str, Any] | None = None


class ArchiveStatus(Struct, frozen=True, kw_only=True):
    """`waiting` segments are sealed and not archived; `failed` is why, "" while all goes well. It
    can be read behind `gone_ts`; retention deleted `removed` files. It had all that was durable
    `behind_s` ago; None: sealed segments alone are copied."""

    url: str
    segments: int
    size_bytes: int
    waiting: int
    failures: int
    resolved_ts: Ts
    gone_ts: Ts
    removed: int
    failed: str
    behind_s: float | None = None


class ExportsStatus(Struct, frozen=True, kw_only=True):
    """`running` is the number of the export whose `stage` has come to `done` of `total` tasks."""

    waiting: int
    running: int | None
    stage: str
    done: int
    total: int
    finished: Mapping[str, int]
    is_warm: bool


class StuckPart(Struct, frozen=True):
    """A part beside replication that failed lately, and is begun again by itself."""

    part: str
    error: str
    count: int


class LateCommitStatus(Struct, frozen=True):
    """A commit that came below the watermark, and that nobody has dealt with."""

    shard: str
    start_ts: Ts
    commit_ts: Ts


class ChaserCounts(Struct, frozen=True, kw_only=True):
    """What was read of the log for the index, since the start."""

    turned_on: int
    catch_ups: int
    recoveries: int
    records_read: int


class ShardStatus(Struct, frozen=True, kw_only=True):
    """One shard of this node's Pump."""

    name: str
    max_commit_ts: Ts
    open_prewrites: int
    queued: int
    chaser: Annotated[str, Meta(extra_json_schema={"enum": ["on", "off"]})]
    chaser_counts: ChaserCounts
    index_rebuilds: int
    index_damage: str
    written: int
    log_bytes: int


class GcStatus(Struct, frozen=True, kw_only=True):
    """Who keeps binlogs, and up to where they may have been deleted (`gc_ts`)."""

    holds: Mapping[str, Ts] = {}
    held_by: Sequence[str] = ()
    gc_ts: Ts = NO_TS
    failed: str = ""


class CommonStatus(Struct, frozen=True, kw_only=True):
    """What every node says of itself."""

    state: State
    node_id: str
    roles: Sequence[Annotated[str, Meta(extra_json_schema={"enum": ["pump", "drainer"]})]]
    cluster_id: int | None
    version: str
    form: str
    uptime_s: float
    max_commit_ts: Ts
    newest_commit_ts: Ts
    checkpoint: SavedCheckpoint
    lag_s: float | None
    drainer: DrainerStatus
    upstream: UpstreamStatus
    open_addr: str
    archive: ArchiveStatus | None
    exports: ExportsStatus | None
    stuck_parts: Sequence[StuckPart]
    registry_error: str
    log_error: str


class OwnStatus(CommonStatus, frozen=True, kw_only=True):
    """With the receiving half; the defaults are those of a node that receives nothing."""

    blocked_by: str = ""
    blocked_s: float = 0.0
    refuses_because: str = ""
    late_commits: int = 0
    first_late: Sequence[LateCommitStatus] = ()
    refused_from_the_future: int = 0
    shards: Sequence[ShardStatus] = ()
    gc: GcStatus = GcStatus()
    free_bytes: int = 0
    capacity_bytes: int = 0
    score: int = 0
    close_waits_for: str = ""


class Status(OwnStatus, frozen=True, kw_only=True):
    """With the keys of the original Drainer and of the original Pump, which ask others."""

    pump_positions: Mapping[str, Ts] | None = msgspec.field(name="PumpPos", default=None)
    synced: bool = msgspec.field(name="Synced", default=False)
    last_ts: Ts = msgspec.field(name="LastTS", default=NO_TS)
    ts_map: str = msgspec.field(name="TsMap", default="")
    status: Mapping[str, NodeEntry] | None = None
    commit_ts: Ts = msgspec.field(name="CommitTS", default=NO_TS)
    checkpoints: Mapping[str, Any] = msgspec.field(name="Checkpoint", default={})
    error: str = msgspec.field(name="ErrMsg", default="")


def document(status: OwnStatus) -> dict[str, Any]:
    """As it goes out: a Drainer that is off has no figures."""
    found: dict[str, Any] = msgspec.to_builtins(status)
    if status.drainer.state == OFF:
        found["drainer"] = {key: found["drainer"][key] for key in PARTLY["DrainerStatus"]}
    return found
