"""What a Drainer works with, and its numbers: given by whoever puts a node or a task together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.ddl.trash_names import Trash
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.late_commits import UndecidedLateCommits
from binlogd.drainer.measures import DrainerMeasures
from binlogd.drainer.schema_log import SchemaLog
from binlogd.drainer.sink import Sink
from binlogd.merge.stream import MergeLimits, OnPulled
from binlogd.ports import BinlogSource, Sources
from binlogd.relay.log import RelayWriter
from binlogd.tidb.job_index import JobIndex
from binlogd.tidb.model import Job
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import MAX_TS, NO_TS, Tso


class DdlHistory(Protocol):
    """The upstream's history of DDL jobs."""

    async def job(self, job_id: int) -> Job | None:
        """A job, waited for with a limit; None after that. Raises UpstreamUnavailable."""

    async def index(self) -> JobIndex:
        """What there is, read anew; it grows as jobs are read. Raises UpstreamUnavailable."""

    async def read(self, job_ids: Sequence[int]) -> list[Job]:
        """Jobs that the index knows, in the order of the ids."""


class DrainerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers and choices; defaults are those of the configuration."""

    dialect: Dialect
    trash: Trash | None = None
    """Where dropped tables are put aside; None: they are dropped."""
    initial_commit_ts: Tso = NO_TS
    """Where to begin when the sink has no checkpoint; exclusive."""
    checkpoint_interval_s: float = 1.0
    drain_timeout_s: float = 8.0
    part_txns_max: int = 512
    part_bytes_max: int = 8 << 20
    parts_ahead_max: int = 2
    merge: MergeLimits = msgspec.field(default_factory=lambda: MergeLimits(retry_after_s=1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainerPorts:
    """What a Drainer works with. A sink is made for each session and used for that one only."""

    sources: Sources | Sequence[BinlogSource]
    history: DdlHistory
    make_sink: Callable[[], Sink]
    relay: RelayWriter | None
    table_filter: TableFilter
    on_saved: Callable[[Checkpoint], None]
    """Called after each save: nobody needs what lies at or below its commit_ts any more."""
    on_pulled: OnPulled | None = None
    """Told what each source gave, by its name."""
    measures: DrainerMeasures = field(default_factory=DrainerMeasures)
    late: UndecidedLateCommits | None = None
    """Of the Pump in this process; a remote one tells by MissedCommit."""
    schema_log: SchemaLog | None = None
    """Where the schema is kept beside the checkpoint; without it every start reads the history."""
    newest_ts: Callable[[], Tso] = lambda: MAX_TS
    """Above it nothing can have committed by now."""
    table_name: Callable[[int], Awaitable[str]] | None = None
    """What the upstream calls a table now, for an error; "" when it does not say."""
    schema_at: Callable[[Tso], Awaitable[SchemaTracker | None]] | None = None
    """All tables as of a timestamp, to begin with them instead of the history; None where they
    cannot be told any more."""
