"""Joined binlogs to row changes and DDL, each under the schema of its moment.

Any stretch of the log can be walked by itself: it begins with the schema that the history tells for
its first transaction, as a Drainer without a checkpoint does, and DDL binlogs move it on. What was
done to which table is told by ids; names are those of the moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from binlogd.binlog import CommittedBinlog
from binlogd.errors import MalformedBinlog, MissingDdlJob, UnknownTable, UnreadableRow
from binlogd.spark.history import KnownHistory
from binlogd.tidb.kinds import ActionType, SchemaState
from binlogd.tidb.known_tables import Effect, is_reserved
from binlogd.tidb.model import Job, TableAt
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.wire import peek
from binlogd.wire.mutation import Mutation, mutations_of


@dataclass(frozen=True, slots=True)
class WalkedRows:
    """What one transaction did to one table."""

    start_ts: Tso
    commit_ts: Tso
    schema_version: int
    table: TableAt
    mutation: Mutation


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A DDL binlog; `effect` is None for one that was rolled back or only announces."""

    start_ts: Tso
    commit_ts: Tso
    schema_state: int
    job: Job
    query: str
    effect: Effect | None

    @property
    def truncates(self) -> bool:
        """Whether the table goes on empty, under another id."""
        return self.job.type == ActionType.TRUNCATE_TABLE


Step = WalkedRows | SchemaChange


class LogWalk:
    """One pass over a stretch of the log."""

    def __init__(self, known: KnownHistory, more_jobs: Callable[[int, Tso], Sequence[Job]]) -> None:
        """`more_jobs` reads the history anew, for a job that was not there yet, as of a binlog; the
        job is 0 where nobody knows which it would be."""
        self._known, self._more_jobs = known, more_jobs
        self._jobs: Mapping[int, Job] = known.jobs
        self._schema = SchemaTracker()

    def steps(self, binlogs: Iterable[CommittedBinlog]) -> Iterator[Step]:
        """What they say, in commit order. Raises MissingDdlJob, UnknownTable, UnreadableRow."""
        with self.reading():
            for binlog in self.begun(binlogs):
                ddl = peek.ddl(binlog.payload)
                yield from self.rows(binlog) if ddl is None else self.ddl(binlog, ddl)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What a payload is no binlog for is told as UnreadableRow."""
        try:
            yield
        except MalformedBinlog as error:
            raise UnreadableRow("an unreadable binlog", 0, str(error)) from error

    def begun(self, binlogs: Iterable[CommittedBinlog]) -> Iterator[CommittedBinlog]:
        """The same, with the schema that the first transaction finds. Its own job, if it is a DDL,
        comes then."""
        stream = iter(binlogs)
        for first in stream:
            own = peek.peek(bytes(first.payload)).ddl_job_id
            self._schema = self._known.tracker_at(first.commit_ts, own)
            yield first
            yield from stream

    def ddl(self, binlog: CommittedBinlog, body: peek.Body) -> Iterator[SchemaChange]:
        """What a DDL does, if it is one of tables. Raises MissingDdlJob."""
        if body.is_setval:
            return
        job = self._job(body.ddl_job_id, binlog.commit_ts)
        if job is None:
            raise MissingDdlJob(body.ddl_job_id, binlog.commit_ts, body.query)
        if is_reserved(job.table_id):
            return
        effect = self._schema.apply(job, body.ddl_schema_state)
        yield SchemaChange(
            binlog.start_ts,
            binlog.commit_ts,
            body.ddl_schema_state,
            job,
            job.query or body.query,
            effect if effect.is_in_force else None,
        )

    def _job(self, job_id: int, commit_ts: Tso) -> Job | None:
        if job_id not in self._jobs:
            self._learn(job_id, commit_ts)
        return self._jobs.get(job_id)

    def _learn(self, job_id: int, commit_ts: Tso) -> None:
        new = [job for job in self._more_jobs(job_id, commit_ts) if job.id not in self._jobs]
        self._jobs = {**self._jobs, **{job.id: job for job in new}}
        self._schema.load(new)

    def rows(self, binlog: CommittedBinlog) -> Iterator[WalkedRows]:
        """What a transaction did, table by table. Raises UnknownTable."""
        version, mutations = mutations_of(binlog.payload)
        for mutation in mutations:
            table = self.table(mutation.table_id, version, binlog.commit_ts)
            if table is not None and mutation.sequence:
                yield WalkedRows(binlog.start_ts, binlog.commit_ts, version, table, mutation)

    def table(self, table_id: int, version: int, commit_ts: Tso) -> TableAt | None:
        """The one that rows see; None for one whose rows do not count. Raises UnknownTable."""
        table = self._schema.table_at(table_id, version)
        if table is not None or self._schema.is_truncated(table_id) or is_reserved(table_id):
            return table
        self._learn(0, commit_ts)
        table = self._schema.table_at(table_id, version)
        if table is None:
            raise UnknownTable(table_id, commit_ts, version)
        return table


def schema_as_of(jobs: Iterable[Job], moment: Tso) -> SchemaTracker:
    """The schema that the history tells for a moment; NO_TS is the newest."""
    tracker = SchemaTracker()
    for job in sorted(jobs, key=lambda job: job.schema_version):
        is_over = job.is_done and job.schema_version > 0
        if is_over and (moment == NO_TS or 0 < job.finished_ts <= moment):
            tracker.apply(job, SchemaState.NONE)
    return tracker
