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

Tolerance. A job for a table or schema that is not known (the history was cut) makes it known, and
applying a job twice changes nothing more. A row of a table that is not known is the caller's to
refuse.

Source: tidb-binlog drainer/schema.go (one queue ordered by schema version, which stops at rows of a
coming multi-schema change); pingcap/tidb ddl/table.go, ddl/partition.go, infoschema/builder.go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from binlogd.errors import Corrupt
from binlogd.tidb.ddl_text import changed_columns, renamed_tables
from binlogd.tidb.job_index import JobEntry, JobIndex
from binlogd.tidb.kinds import DROPS_COLUMNS, OF_POLICIES_AND_GROUPS, TABLE_DROPS
from binlogd.tidb.model import (
    ActionType,
    Database,
    Job,
    SchemaState,
    Table,
    TableAt,
    database_from_json,
    database_to_json,
    job_from_json,
    table_from_json,
)
from binlogd.tidb.moved_rows import MovedJson, MovedRows
from binlogd.tidb.tracked import Coming, Tracked, TrackedJson
from binlogd.tso import Tso

_MYSQL = Database(1, "mysql")
_RESERVED_IDS_BEGIN = (1 << 48) - 1 - 1000
_GONE_KEPT_MAX = 100_000
_APPLIED_KEPT_MAX = 10_000

_SCHEMA_CHANGES = frozenset(
    {ActionType.CREATE_SCHEMA, ActionType.MODIFY_SCHEMA_CHARSET, ActionType.MODIFY_SCHEMA_PLACEMENT}
)
_CREATES = frozenset(
    {
        ActionType.CREATE_TABLE,
        ActionType.CREATE_VIEW,
        ActionType.CREATE_SEQUENCE,
        ActionType.RECOVER_TABLE,
    }
)
# Their schema_id counts policies and groups from 1, or nothing of a table changes.
_WITHOUT_EFFECT = OF_POLICIES_AND_GROUPS | {
    ActionType.LOCK_TABLE,
    ActionType.UNLOCK_TABLE,
    ActionType.FLASHBACK_CLUSTER,
}


class Named(msgspec.Struct, frozen=True):
    """A table, view or sequence; with `table` "" the database itself, with both "" nothing."""

    database: str
    table: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a job did. `name` is what it is about, as it is called afterwards (dropped: before).

    `is_in_force` is False for what changed no schema: an announcement, a job that was rolled back,
    one without a schema version. `renamed` holds (old, new) in their order. `other` is the plain
    table of an EXCHANGE PARTITION.
    """

    is_in_force: bool
    name: Named
    created: tuple[Named, ...] = ()
    renamed: tuple[tuple[Named, Named], ...] = ()
    other: Named | None = None
    dropped: tuple[tuple[Named, Table], ...] = ()
    """Tables, views and sequences that went, with their rows; of a TRUNCATE the one before."""
    added: tuple[str, ...] = ()
    """Columns that several changes in one ALTER added: rows may have had them before."""
    rewrites: bool = False
    """Whether another column of these changes has a new id now."""
    before: Table | None = None
    """What the table was that changed."""


def entry_of(job: Job) -> JobEntry:
    """A job as an index knows it."""
    return JobEntry(job.finished_ts, job.start_ts, job.schema_version, job.id)


def is_reserved(table_id: int) -> bool:
    """Whether an id is of TiDB's own background tables, which are not replicated."""
    return table_id > _RESERVED_IDS_BEGIN


class SchemaTracker:
    """Databases and tables at one commit_ts, moved on by `apply`."""

    def __init__(self) -> None:
        self._databases: dict[int, Database] = {_MYSQL.id: _MYSQL}  # TiDB makes it without a job
        self._tables: dict[int, Tracked] = {}
        self._ids: dict[tuple[int, str], int] = {}
        self._gone: OrderedDict[int, None] = OrderedDict()
        self._pending: dict[int, Job] = {}
        self._coming: dict[int, list[Coming]] = {}
        self._unplaced: dict[int, Job] = {}
        self._applied: OrderedDict[int, None] = OrderedDict()
        self._index = JobIndex()
        self._acts: dict[int, Callable[[Job], Effect]] = {
            **dict.fromkeys(_SCHEMA_CHANGES, self._change_schema),
            **dict.fromkeys(_CREATES, self._create_tables),
            **dict.fromkeys(TABLE_DROPS, self._drop),
            ActionType.CREATE_TABLES: self._create_tables,
            ActionType.DROP_SCHEMA: self._drop_schema,
            ActionType.RECOVER_SCHEMA: self._recover_schema,
            ActionType.RENAME_TABLE: self._rename,
            ActionType.RENAME_TABLES: self._rename_tables,
            ActionType.EXCHANGE_TABLE_PARTITION: self._exchange,
        }
        self.version = 0
        self.moved = MovedRows()
        """Where rows are that come behind a DDL of partitions."""
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
            if is_in_force and job.type not in _WITHOUT_EFFECT and job.id not in self._applied:
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
            tracked = self._tables.get(job.table_id)
            if tracked is not None and job.type in DROPS_COLUMNS:
                tracked.set_dropping(is_dropping_columns=is_announcement)
            return Effect(False, self._name_in(job))
        self._applied[job.id] = None
        if len(self._applied) > _APPLIED_KEPT_MAX:
            self._applied.popitem(last=False)
        self._pending.pop(job.id, None)
        self._unplaced.pop(job.id, None)
        effect = self._take_effect(job)
        self.version = max(self.version, job.schema_version)
        return effect

    # --- asking --------------------------------------------------------------------------

    def table_at(self, table_id: int, schema_version: int) -> TableAt | None:
        """The table that rows with this id and schema version see; None if no DDL made it. The same
        object for as long as nothing about the table changes."""
        if self._unplaced:
            self._place(table_id, schema_version)
        tracked = self._tables.get(table_id)
        if tracked is None:
            return None
        coming = self._next_job(tracked)
        job = coming.job if coming is not None and schema_version > coming.after_version else None
        seen = tracked.at(schema_version, job)
        if seen is None:
            seen = tracked.see(schema_version, self._database_name(tracked.schema_id), job)
        return seen

    def is_truncated(self, table_id: int) -> bool:
        """The id was dropped or truncated before: late rows of it went with it."""
        return table_id in self._gone

    def find(self, database: str, table: str) -> Named | None:
        """A table, or with `table` "" a database, by its name in any case: as it was created."""
        schema_id = self._schema_id(database, 0)
        if not table:
            return Named(self._databases[schema_id].name) if schema_id else None
        tracked = self._tables.get(self._ids.get((schema_id, table.lower()), 0))
        return self._named(tracked) if tracked is not None else None

    def tables(self) -> list[tuple[Named, Table]]:
        """Every table, view and sequence, by id."""
        return [(self._named(each), each.info) for _, each in sorted(self._tables.items())]

    # --- kept beside a relay log -----------------------------------------------------------

    def databases(self) -> list[Database]:
        """Every schema there is."""
        return list(self._databases.values())

    def snapshot(self) -> bytes:
        """Everything that `from_snapshot` needs, as JSON; of the history the next job per table."""
        return b"".join(self.snapshot_pieces())

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The snapshot table by table; nothing may be applied in between."""
        coming = (self._next_job(tracked) for tracked in self._tables.values())
        head = _SnapshotJson(
            version=self.version,
            databases=[msgspec.Raw(database_to_json(each)) for each in self._databases.values()],
            tables=[],
            gone=list(self._gone),
            coming=[msgspec.Raw(each.job.raw) for each in coming if each is not None],
            applied=list(self._applied),
            unplaced=[msgspec.Raw(each.raw) for each in self._unplaced.values()],
            moved=self.moved.kept(),
        )
        yield msgspec.json.encode(head).removesuffix(b"[]}")
        opening = b"["
        for each in self._tables.values():
            yield opening + msgspec.json.encode(TrackedJson.of(each))
            opening = b","
        yield b"]}" if self._tables else b"[]}"

    @classmethod
    def from_snapshot(cls, data: bytes) -> SchemaTracker:
        """The tracker that `snapshot` was taken of. Raises Corrupt for anything else."""
        try:
            kept = msgspec.json.decode(data, type=_SnapshotJson)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"a schema snapshot does not decode: {error}") from error
        databases = [database_from_json(bytes(raw)) for raw in kept.databases]
        tracker = cls()
        tracker._databases = {each.id: each for each in databases}
        for each in kept.tables:
            tracker._put(each.tracked())
        tracker._gone = OrderedDict.fromkeys(kept.gone)
        tracker.version = kept.version
        tracker._applied = OrderedDict.fromkeys(kept.applied)
        tracker.moved = MovedRows.of(kept.moved)
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
        tracker = cls()
        tracker._databases |= {each.id: each for each in databases}
        tracker.version = version
        for schema_id, info in tables:
            tracker._create(schema_id, info, version)
            if any(each.state == SchemaState.DELETE_ONLY for each in info.columns):
                tracker._tables[info.id].set_dropping(is_dropping_columns=True)
        return tracker

    def copy(self) -> SchemaTracker:
        """One that goes its own way from here."""
        other = SchemaTracker()
        other._databases, other._ids = self._databases.copy(), self._ids.copy()
        other._gone, other._applied = self._gone.copy(), self._applied.copy()
        other._pending, other._unplaced = self._pending.copy(), self._unplaced.copy()
        other._tables = {each.id: each.copy() for each in self._tables.values()}
        other._coming = {table_id: jobs.copy() for table_id, jobs in self._coming.items()}
        other._index, other.moved = self._index.copy(), self.moved.copy()
        other.version, other.changes = self.version, self.changes
        return other

    # --- effects -------------------------------------------------------------------------

    def _take_effect(self, job: Job) -> Effect:
        if job.type in _WITHOUT_EFFECT:
            return Effect(False, self._name_in(job))
        self._know_database(job)
        return self._acts.get(job.type, self._change)(job)

    def _change_schema(self, job: Job) -> Effect:
        named = Named(self._database_name(job.schema_id))
        return Effect(True, named, (named,) if job.type == ActionType.CREATE_SCHEMA else ())

    def _drop_schema(self, job: Job) -> Effect:
        named = Named(self._database_name(job.schema_id))
        gone = [each for each in self._tables.values() if each.schema_id == job.schema_id]
        dropped = tuple((self._named(each), each.info) for each in gone)
        for each in gone:
            self._remove(each.id)
        self._databases.pop(job.schema_id, None)
        return Effect(True, named, dropped=dropped)

    def _recover_schema(self, job: Job) -> Effect:
        named = Named(self._database_name(job.schema_id))
        created = [
            self._create(job.schema_id, each.table, job.schema_version)
            for each in recovered_tables(job)
        ]
        return Effect(True, named, (named, *created))

    def _create_tables(self, job: Job) -> Effect:
        infos = job.tables if job.type == ActionType.CREATE_TABLES else (job.table,)
        created = tuple(
            self._create(job.schema_id, info, job.schema_version)
            for info in infos
            if info is not None
        )
        return Effect(bool(created), created[-1] if created else self._name_in(job), created)

    def _drop(self, job: Job) -> Effect:
        named, tracked = self._name_in(job), self._tables.get(job.table_id)
        info = tracked.info if tracked is not None else job.table
        self._remove(job.table_id)
        return Effect(True, named, dropped=((named, info),) if info is not None else ())

    def _rename(self, job: Job) -> Effect:
        if job.table is None:
            return Effect(False, self._name_in(job))
        pair = self._renamed(job.table, job.schema_id, job, old_name=job.table_name)
        return Effect(True, pair[1], renamed=(pair,))

    def _rename_tables(self, job: Job) -> Effect:
        infos = job.tables or ((job.table,) if job.table else ())
        texts = renamed_tables(job.query)
        if len(texts) != len(infos):
            texts = []
        session_id = job.schema_id
        for text, info in zip(texts, infos, strict=False):
            tracked = self._tables.get(info.id)
            if not text.old_database and tracked is not None:
                session_id = tracked.schema_id
                break
        pairs = []
        for number, info in enumerate(infos):
            explicit = texts[number].new_database if texts else ""
            schema_id = self._schema_id(explicit, session_id) if texts else job.schema_id
            old_name = texts[number].old_table if texts else ""
            pairs.append(self._renamed(info, schema_id, job, old_name=old_name))
        return Effect(bool(pairs), self._name_in(job), renamed=tuple(pairs))

    def _exchange(self, job: Job) -> Effect:
        """The plain table goes on under the id of the partition, which gets the table's id."""
        after, plain = job.table, self._tables.get(job.table_id)
        if after is None:
            return Effect(False, self._name_in(job))
        before = self._tables.get(after.id)
        freed = set(before.info.partition_ids) - set(after.partition_ids) if before else set()
        other = self._named(plain) if plain else Named(job.schema_name, job.table_name)
        if plain is not None and len(freed) == 1:
            self._remove(job.table_id, is_gone=False)
            self._put(plain.replaced(replace(plain.info, id=freed.pop()), job.schema_version))
        if before is not None:
            self.moved.note(job, before.info, plain.info if plain is not None else None)
        return replace(self._change(job), other=other)

    def _change(self, job: Job) -> Effect:
        """Whatever leaves a TableInfo: it replaces what was, under a new id if it has one."""
        if job.table is None:
            return Effect(False, self._name_in(job))
        info, version = job.table, job.schema_version
        old_id = info.id if job.type == ActionType.EXCHANGE_TABLE_PARTITION else job.table_id
        tracked = self._tables.get(old_id)
        if tracked is None:
            return Effect(True, self._create(job.schema_id, info, version))
        dropped: tuple[tuple[Named, Table], ...] = ()
        added: tuple[str, ...] = ()
        rewrites = False
        before: Table | None = None
        if tracked.id != info.id:
            if job.type == ActionType.TRUNCATE_TABLE:
                dropped = ((self._named(tracked), tracked.info),)
            self._remove(old_id)
            tracked = Tracked(tracked.schema_id, info, version)
        elif tracked.version < version:
            before = tracked.info
            if job.type != ActionType.EXCHANGE_TABLE_PARTITION:
                self.moved.note(job, before)
            if job.type == ActionType.MULTI_SCHEMA_CHANGE:
                added = _added(before, info, job.query)
                known = {column.id for column in before.columns}
                rewrites = sum(each.id not in known for each in info.columns) > len(added)
            tracked = tracked.replaced(info, version)
        self._put(tracked)
        return Effect(
            True,
            self._named(tracked),
            dropped=dropped,
            added=added,
            rewrites=rewrites,
            before=before,
        )

    # --- tables --------------------------------------------------------------------------

    def _create(self, schema_id: int, info: Table, version: int) -> Named:
        tracked = Tracked(schema_id, info, version)
        if not is_reserved(info.id):
            self._put(tracked)
        return self._named(tracked)

    def _renamed(
        self, info: Table, schema_id: int, job: Job, *, old_name: str
    ) -> tuple[Named, Named]:
        tracked = self._tables.get(info.id)
        old = self._named(tracked) if tracked else Named(self._database_name(schema_id), old_name)
        moved = tracked.replaced(info, job.schema_version) if tracked else None
        moved = moved or Tracked(schema_id, info, job.schema_version)
        moved.schema_id = schema_id
        self._put(moved)
        return old, self._named(moved)

    def _put(self, tracked: Tracked) -> None:
        table_id = tracked.id
        before = self._tables.get(table_id)
        if before is not None:
            self._unname(before)
        name = tracked.schema_id, tracked.name.lower()
        namesake = self._ids.get(name)
        if namesake is not None:  # CREATE OR REPLACE VIEW drops without saying so
            self._remove(namesake)
        self._ids[name] = table_id
        self._tables[table_id] = tracked
        self._gone.pop(table_id, None)

    def _remove(self, table_id: int, *, is_gone: bool = True) -> None:
        tracked = self._tables.pop(table_id, None)
        if tracked is not None:
            self._unname(tracked)
        if is_gone:
            self._gone[table_id] = None
            if len(self._gone) > _GONE_KEPT_MAX:
                self._gone.popitem(last=False)

    def _unname(self, tracked: Tracked) -> None:
        name = tracked.schema_id, tracked.name.lower()
        if self._ids.get(name) == tracked.id:
            del self._ids[name]

    def _next_job(self, tracked: Tracked) -> Coming | None:
        jobs = self._coming.get(tracked.id)
        while jobs and jobs[0].job.schema_version <= tracked.version:
            del jobs[0]
        return jobs[0] if jobs else None

    def _place(self, table_id: int, schema_version: int) -> None:
        for job in sorted(self._unplaced.values(), key=lambda job: job.schema_version):
            infos = (job.table, *job.tables)
            if schema_version >= job.schema_version and any(
                info is not None and info.id == table_id for info in infos
            ):
                self.apply(job, SchemaState.NONE)

    # --- names ---------------------------------------------------------------------------

    def _know_database(self, job: Job) -> None:
        if job.database is not None:
            self._databases[job.schema_id] = job.database
        elif job.schema_id not in self._databases:
            self._databases[job.schema_id] = Database(job.schema_id, job.schema_name)

    def _database_name(self, schema_id: int) -> str:
        database = self._databases.get(schema_id)
        return database.name if database else ""

    def _schema_id(self, database: str, default: int) -> int:
        if not database:
            return default
        names = {each.name.lower(): each.id for each in self._databases.values()}
        return names.get(database.lower(), default)

    def _named(self, tracked: Tracked) -> Named:
        return Named(self._database_name(tracked.schema_id), tracked.name)

    def _name_in(self, job: Job) -> Named:
        """What a job says it is about; "" for policies and groups, which live in no schema."""
        if job.type in _WITHOUT_EFFECT:
            return Named("")
        tracked = self._tables.get(job.table_id)
        if tracked is not None:
            return self._named(tracked)
        return Named(self._database_name(job.schema_id) or job.schema_name, job.table_name)


def _added(before: Table, after: Table, query: str) -> tuple[str, ...]:
    """Columns that are new, and not an old one under a new id or name."""
    names, renamed = {column.name.lower() for column in before.columns}, changed_columns(query)
    return tuple(
        column.name
        for column in after.columns
        if renamed.get(column.name.lower(), column.name.lower()) not in names
    )


class RecoveredTable(msgspec.Struct, frozen=True):
    """A table that comes back; `dropped_by_ts` is the start_ts of the job that dropped it."""

    table: Table
    dropped_by_ts: int
    raw: dict[str, Any]


def recovered_tables(job: Job) -> list[RecoveredTable]:
    """What RECOVER TABLE or FLASHBACK brings back: only the job's arguments tell.

    They are one object, a list that begins with it, or (before TiDB 6.3) a list that begins with
    the TableInfo and has the time in its fourth place. Empty where they are none of these.
    """
    arguments = job.raw_args if isinstance(job.raw_args, list) else [job.raw_args]
    first = arguments[0] if arguments and isinstance(arguments[0], dict) else {}
    if "RecoverTabsInfo" in first:
        infos = first["RecoverTabsInfo"] or []
    elif "recover_table_infos" in first:
        infos = first["recover_table_infos"] or []
    elif "TableInfo" in first:
        infos = [first]
    elif job.table is not None and len(arguments) > 3 and isinstance(arguments[3], int):
        infos = [{"TableInfo": first, "SnapshotTS": arguments[3]}]
    else:
        infos = []
    return [
        RecoveredTable(
            table_from_json(msgspec.json.encode(each["TableInfo"])),
            int(each.get("SnapshotTS") or 0),
            each["TableInfo"],
        )
        for each in infos
    ]


class _SnapshotJson(msgspec.Struct, frozen=True):
    version: int
    databases: list[msgspec.Raw]
    gone: list[int]
    coming: list[msgspec.Raw]
    applied: list[int] = []
    unplaced: list[msgspec.Raw] = []
    moved: list[MovedJson] = []
    tables: list[TrackedJson] = []
