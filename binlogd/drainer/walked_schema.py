"""The schema that a session walks by: where it begins, what is known ahead of it, and its log.

Invariant. `tracker` is as of the last transaction that was walked, and knows each job that a row of
the part at hand may run ahead of. Why it holds: a session begins with the schema of its checkpoint,
from what is kept beside that, all tables as of then, or the history; only the walk moves it; and
jobs are loaded before a part is walked.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ports import DrainerPorts
from binlogd.drainer.schema_log import SchemaEvent
from binlogd.tidb.job_index import JobIndex
from binlogd.tidb.model import Job, SchemaState
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso

_APPLIED_AT_ONCE = 100
"""Jobs of the history between two turns of the others."""
_NAMES_SHOWN_MAX = 20

log = structlog.get_logger(__name__)


class WalkedSchema:
    """Made for one session."""

    def __init__(self, ports: DrainerPorts) -> None:
        self._ports = ports
        self.tracker = SchemaTracker()
        self.expiring: tuple[str, ...] = ()
        """Tables with a TTL, as of what was walked."""
        self.unlogged: list[SchemaEvent] = []
        """What moved it and is not in its log."""
        self._jobs = JobIndex()

    async def begin(self, checkpoint: Checkpoint, first_ts: Tso) -> None:
        """Brings it to where the first transaction finds it.

        It is kept beside the checkpoint; without that, the history has it. There the schema version
        of the checkpoint says which jobs are behind it, or, without a checkpoint, those are behind
        that were over when the first transaction committed: their binlogs cannot come any more.
        """
        after, kept = checkpoint.commit_ts, self._ports.schema_log
        self._jobs = await self._ports.history.index()
        known = await kept.load(checkpoint) if kept is not None else None
        is_kept = known is not None
        if known is None and self._ports.schema_at is not None:
            known = await self._ports.schema_at(after if after > NO_TS else Tso(first_ts - 1))
        if known is not None:
            self.tracker = known
        else:
            await self._apply_history(checkpoint, first_ts)
        self.tracker.know(self._jobs.in_version_order())
        if kept is not None and not is_kept:
            await kept.begin(self.tracker, after)

    async def load_coming(self, part: Sequence[CommittedBinlog], jobs: list[Job]) -> None:
        """Jobs that rows of this part may run ahead of: its own, and those in flight meanwhile."""
        own = {job.id for job in jobs}
        in_flight = self._jobs.in_flight(Tso(part[0].commit_ts - 1), part[-1].commit_ts)
        others = [each for each in in_flight if each not in own and not self.tracker.knows(each)]
        if others:
            jobs = jobs + await self._ports.history.read(others)
        if jobs:
            self.tracker.load(jobs)

    def moved(self, commit_ts: Tso, schema_state: int, job: Job) -> None:
        """A DDL binlog has been walked."""
        self.unlogged.append(SchemaEvent.of(commit_ts, schema_state, job))
        if self.expiring or (job.table is not None and job.table.has_ttl):
            self.note_expiring()

    def note_expiring(self) -> None:
        """Tables whose rows TiDB deletes by age, in no binlog: downstream they stay."""
        found = tuple(
            f"{named.database}.{named.table}"
            for named, info in self.tracker.tables()
            if info.has_ttl and self._ports.table_filter.replicates(named.database, named.table)
        )
        if found and found != self.expiring:
            log.warning("tables_with_ttl", tables=found[:_NAMES_SHOWN_MAX], count=len(found))
        self.expiring = found

    async def log_events(self, last_ts: Tso | None) -> None:
        """`last_ts`: what the schema is as of; None where it is ahead of what was translated."""
        events, self.unlogged = self.unlogged, []
        kept = self._ports.schema_log
        if kept is not None and await kept.append(events) and last_ts is not None:
            await kept.begin(self.tracker, last_ts)

    async def _apply_history(self, checkpoint: Checkpoint, first_ts: Tso) -> None:
        """Applies what is behind the first transaction, some jobs at a time."""
        version = checkpoint.schema_version
        over_by = checkpoint.commit_ts if version else first_ts
        due = [
            entry.id
            for entry in self._jobs.in_version_order()
            if entry.finished_ts <= over_by or entry.schema_version <= version
        ]
        for begin in range(0, len(due), _APPLIED_AT_ONCE):
            for job in await self._ports.history.read(due[begin : begin + _APPLIED_AT_ONCE]):
                self.tracker.apply(job, SchemaState.NONE)
        if not version:
            open_jobs = self._jobs.in_flight(first_ts, first_ts)
            self.tracker.load(await self._ports.history.read(open_jobs))
            self.tracker.apply_finished_by(first_ts)
        log.info("schema_history_applied", ddls=len(due), schema_version=self.tracker.version)
