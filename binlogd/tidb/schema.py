"""Which table a row belongs to, and what it looked like at that moment.

Invariant. After the DDL binlogs up to some commit_ts have been applied, the tracker knows every
table as rows committed next see it. Why it holds: a DDL takes effect at the commit_ts of its binlog
and is applied in that order; neither the order of the history, nor schema versions (concurrent DDL
commits out of their order), nor finished_ts (later than the binlog) positions it.

What runs ahead of its binlog. Rows may be written under a schema whose DDL binlog still comes. New
columns are not public then, and unknown ids can be passed over. A multi-schema change differs: its
rows may lack a dropped column, or hold a rewritten column under its new id only. So the next job of
each table, when the history has it already, is looked at: `TableAt.aliases` maps its new ids to
the columns of the same name (or the name that a CHANGE COLUMN gave), `may_lack_columns` allows what
it drops to be missing. A value of a column that only the coming schema has waits for it
(drainer/early_columns).

Tolerance. Applying a job twice changes nothing more. A row of a table that is not known is the
caller's to refuse.

Source: tidb-binlog drainer/schema.go (one queue ordered by schema version, which stops at rows of a
coming multi-schema change).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import msgspec

from binlogd.errors import Corrupt
from binlogd.tidb.job_index import JobEntry, JobIndex, entry_of
from binlogd.tidb.kinds import DROPS_COLUMNS, WITHOUT_EFFECT
from binlogd.tidb.known_tables import Effect, KnownTables, Named
from binlogd.tidb.model import (
    Database,
    Job,
    SchemaState,
    Table,
    TableAt,
    database_from_json,
    database_to_json,
    job_from_json,
)
from binlogd.tidb.moved_rows import MovedJson, MovedRows
from binlogd.tidb.tracked import Coming, Tracked, TrackedJson
from binlogd.tso import Tso

_APPLIED_KEPT_MAX = 10_000


class SchemaTracker:
    """Databases and tables at one commit_ts, moved on by `apply`."""

    def __init__(self, tables: KnownTables | None = None, version: int = 0) -> None:
        self._tables = KnownTables() if tables is None else tables
        self._by_id = self._tables.by_id  # without a hop: every table of a transaction is asked for
        self.moved = self._tables.moved
        """Where rows are that come behind a DDL of partitions."""
        self._pending: dict[int, Job] = {}
        self._coming: dict[int, list[Coming]] = {}
        self._unplaced: dict[int, Job] = {}
        self._applied: OrderedDict[int, None] = OrderedDict()
        self._index = JobIndex()
        self.version = version
        self.changes = 0
        """Grows with everything that may change an answer of `table_at`."""

    # --- the history ---------------------------------------------------------------------

    def load(self, jobs: Iterable[Job]) -> None:
        """Makes jobs known that may still come, in any order; knowing one twice is fine."""
        jobs = list(jobs)
        self.changes += 1
        self.know(entry_of(job) for job in jobs)
        for job in jobs:
            is_in_force = job.is_done and job.schema_version > 0
            if is_in_force and job.type not in WITHOUT_EFFECT and job.id not in self._applied:
                self._pending[job.id] = job
        self._coming.clear()
        for job in sorted(self._pending.values(), key=lambda job: job.schema_version):
            if job.table is not None:
                coming = Coming(job, self._index.in_use(job.start_ts))
                self._coming.setdefault(job.table.id, []).append(coming)

    def know(self, entries: Iterable[JobEntry]) -> None:
        """Tells when jobs ran that need not be loaded: rows that come may be as new as they are."""
        self._index.add(entries)

    def knows(self, job_id: int) -> bool:
        """Whether `load` or `apply` was given the job."""
        return job_id in self._pending or job_id in self._applied

    def apply_finished_by(self, commit_ts: Tso) -> None:
        """Applies the known jobs that were over at a commit_ts.

        Of a job that was open at commit_ts, nobody can tell on which side its binlog lies. It stays
        unplaced until its binlog comes, or a row shows that it was in force before.
        """
        for job in sorted(self._pending.values(), key=lambda job: job.schema_version):
            if 0 < job.finished_ts <= commit_ts:
                self.apply(job, SchemaState.NONE)
        self.changes += 1
        self._unplaced = {job.id: job for job in self._pending.values() if job.start_ts < commit_ts}

    # --- moving on -----------------------------------------------------------------------

    def apply(self, job: Job, schema_state: int) -> Effect:
        """The turn of a DDL binlog with this `ddl_schema_state` has come."""
        self.changes += 1
        is_announcement = schema_state == SchemaState.DELETE_ONLY and job.type in DROPS_COLUMNS
        if is_announcement or not job.is_done or job.schema_version == 0:
            tracked = self._by_id.get(job.table_id)
            if tracked is not None and job.type in DROPS_COLUMNS:
                tracked.set_dropping(is_dropping_columns=is_announcement)
            return Effect(False, self._tables.name_in(job))
        self._applied[job.id] = None
        if len(self._applied) > _APPLIED_KEPT_MAX:
            self._applied.popitem(last=False)
        self._pending.pop(job.id, None)
        self._unplaced.pop(job.id, None)
        effect = self._tables.take(job)
        self.version = max(self.version, job.schema_version)
        return effect

    # --- asking --------------------------------------------------------------------------

    def table_at(self, table_id: int, schema_version: int) -> TableAt | None:
        """The table that rows with this id and schema version see; None if no DDL made it. The same
        object for as long as nothing about the table changes."""
        if self._unplaced:
            self._place(table_id, schema_version)
        tracked = self._by_id.get(table_id)
        if tracked is None:
            return None
        coming = self._next_job(tracked)
        job = coming.job if coming is not None and schema_version > coming.after_version else None
        seen = tracked.at(schema_version, job)
        if seen is None:
            seen = tracked.see(schema_version, self._tables.database_name(tracked.schema_id), job)
        return seen

    def is_truncated(self, table_id: int) -> bool:
        """The id was dropped or truncated before: late rows of it went with it."""
        return table_id in self._tables.gone

    def find(self, database: str, table: str) -> Named | None:
        """A table, or with `table` "" a database, by its name in any case: as it was created."""
        return self._tables.find(database, table)

    def tables(self) -> list[tuple[Named, Table]]:
        """Every table, view and sequence, by id."""
        return [(self._tables.named(each), each.info) for _, each in sorted(self._by_id.items())]

    # --- kept beside a relay log -----------------------------------------------------------

    def databases(self) -> list[Database]:
        """Every schema there is."""
        return list(self._tables.databases.values())

    def snapshot(self) -> bytes:
        """Everything that `from_snapshot` needs, as JSON; of the history the next job per table."""
        return b"".join(self.snapshot_pieces())

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The snapshot table by table; nothing may be applied in between."""
        coming = (self._next_job(tracked) for tracked in self._by_id.values())
        head = _SnapshotJson(
            version=self.version,
            databases=[msgspec.Raw(database_to_json(each)) for each in self.databases()],
            gone=list(self._tables.gone),
            coming=[msgspec.Raw(each.job.raw) for each in coming if each is not None],
            applied=list(self._applied),
            unplaced=[msgspec.Raw(each.raw) for each in self._unplaced.values()],
            moved=self.moved.kept(),
        )
        yield msgspec.json.encode(head).removesuffix(b"[]}")
        opening = b"["
        for each in self._by_id.values():
            yield opening + msgspec.json.encode(TrackedJson.of(each))
            opening = b","
        yield b"]}" if self._by_id else b"[]}"

    @classmethod
    def from_snapshot(cls, data: bytes) -> SchemaTracker:
        """The tracker that `snapshot` was taken of. Raises Corrupt for anything else."""
        try:
            kept = msgspec.json.decode(data, type=_SnapshotJson)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"a schema snapshot does not decode: {error}") from error
        tables = KnownTables(database_from_json(bytes(raw)) for raw in kept.databases)
        for each in kept.tables:
            tables.put(each.tracked())
        tables.gone, tables.moved = OrderedDict.fromkeys(kept.gone), MovedRows.of(kept.moved)
        tracker = cls(tables, kept.version)
        tracker._applied = OrderedDict.fromkeys(kept.applied)
        unplaced = [job_from_json(bytes(raw)) for raw in kept.unplaced]
        tracker.load([*(job_from_json(bytes(raw)) for raw in kept.coming), *unplaced])
        tracker._unplaced = {job.id: job for job in unplaced}
        return tracker

    @classmethod
    def of_tables(
        cls, version: int, databases: Iterable[Database], tables: Iterable[tuple[int, Table]]
    ) -> SchemaTracker:
        """A tracker of what there is at a moment, each table with the id of its database. A DDL may
        be in force there whose binlog still comes: applied again, it changes nothing."""
        known = KnownTables()
        known.databases |= {each.id: each for each in databases}
        for schema_id, info in tables:
            known.create(schema_id, info, version)
            if any(each.state == SchemaState.DELETE_ONLY for each in info.columns):
                known.by_id[info.id].set_dropping(is_dropping_columns=True)
        return cls(known, version)

    def copy(self) -> SchemaTracker:
        """One that goes its own way from here."""
        other = SchemaTracker(self._tables.copy(), self.version)
        other._pending, other._unplaced = self._pending.copy(), self._unplaced.copy()
        other._applied, other._index = self._applied.copy(), self._index.copy()
        other._coming = {table_id: jobs.copy() for table_id, jobs in self._coming.items()}
        other.changes = self.changes
        return other

    def _next_job(self, tracked: Tracked) -> Coming | None:
        jobs = self._coming.get(tracked.id)
        while jobs and jobs[0].job.schema_version <= tracked.version:
            del jobs[0]
        return jobs[0] if jobs else None

    def _place(self, table_id: int, schema_version: int) -> None:
        for job in sorted(self._unplaced.values(), key=lambda job: job.schema_version):
            ids = {info.id for info in (job.table, *job.tables) if info is not None}
            if schema_version >= job.schema_version and table_id in ids:
                self.apply(job, SchemaState.NONE)


class _SnapshotJson(msgspec.Struct, frozen=True):
    version: int
    databases: list[msgspec.Raw]
    gone: list[int]
    coming: list[msgspec.Raw]
    applied: list[int] = []
    unplaced: list[msgspec.Raw] = []
    moved: list[MovedJson] = []
    tables: list[TrackedJson] = []
