"""Which table a row belongs to, and what it looked like at that moment.

Invariant. After the DDL binlogs up to some commit_ts have been applied, the tracker knows every
table as rows committed next see it. Why it holds: a DDL takes effect at the commit_ts of its binlog
and is applied in that order; neither the order of the history, nor schema versions (concurrent DDL
commits out of their order), nor finished_ts (later than the binlog) positions it.

What runs ahead of its binlog. Rows may be written under a schema whose DDL binlog still comes. New
columns are not public then, and unknown ids can be passed over. A multi-schema change differs: its
rows may lack a dropped column, or hold a rewritten column under its new id only. So the next job of
each table, when the history has it already, is looked at: `TableAt.aliases` maps its new ids to
the columns of the same name (or the name a CHANGE COLUMN gave), `may_lack_columns` allows what it
drops to be missing. A value of a column that only the coming schema has cannot be kept: the
downstream does not have that column yet.

Tolerance. Only what is needed is required: a job for a table or schema that is not known (the
history was cut) makes it known. Nothing here raises for an odd job; a row of a table that is not
known is the caller's to refuse.

Source: tidb-binlog drainer/schema.go (one queue ordered by schema version, which stops at rows of a
coming multi-schema change); pingcap/tidb ddl/table.go, ddl/partition.go, infoschema/builder.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from binlogd.tidb.ddl_text import changed_columns, renamed_tables
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
    table_to_json,
)
from binlogd.tso import Tso

_MYSQL = Database(1, "mysql")
_RESERVED_IDS_BEGIN = (1 << 48) - 1 - 1000
_OLDER_KEPT = 2
_GONE_KEPT_MAX = 100_000
_NO_ALIASES: Mapping[int, int] = MappingProxyType({})

_DROPS_COLUMNS = frozenset({ActionType.DROP_COLUMN, ActionType.DROP_COLUMNS})
_SCHEMA_CHANGES = frozenset(
    {
        ActionType.CREATE_SCHEMA,
        ActionType.MODIFY_SCHEMA_CHARSET,
        ActionType.MODIFY_SCHEMA_PLACEMENT,
    }
)
_CREATES = frozenset(
    {
        ActionType.CREATE_TABLE,
        ActionType.CREATE_VIEW,
        ActionType.CREATE_SEQUENCE,
        ActionType.RECOVER_TABLE,
    }
)
_DROPS = frozenset({ActionType.DROP_TABLE, ActionType.DROP_VIEW, ActionType.DROP_SEQUENCE})
_NEW_IDS = frozenset(
    {
        ActionType.TRUNCATE_TABLE,
        ActionType.ALTER_TABLE_PARTITIONING,
        ActionType.REMOVE_PARTITIONING,
    }
)
# Their ids count policies and groups, not schemas or tables; or nothing of a table changes.
_WITHOUT_EFFECT = frozenset(
    {
        ActionType.LOCK_TABLE,
        ActionType.UNLOCK_TABLE,
        ActionType.CREATE_PLACEMENT_POLICY,
        ActionType.ALTER_PLACEMENT_POLICY,
        ActionType.DROP_PLACEMENT_POLICY,
        ActionType.CREATE_RESOURCE_GROUP,
        ActionType.ALTER_RESOURCE_GROUP,
        ActionType.DROP_RESOURCE_GROUP,
        ActionType.FLASHBACK_CLUSTER,
    }
)


@dataclass(frozen=True, slots=True)
class Named:
    """A table, view or sequence by name; with `table` "" the database itself, all "" for nothing."""

    database: str
    table: str


@dataclass(frozen=True, slots=True)
class Effect:
    """What a job did. `name` is what it is about, as it is called afterwards (dropped: before).

    `is_in_force` is False for what changed no schema: an announcement, a job that was rolled back,
    one without a schema version. `renamed` holds (old, new) pairs in their order; `other` is the
    plain table of an EXCHANGE PARTITION.
    """

    is_in_force: bool
    name: Named
    created: tuple[Named, ...] = ()
    dropped: tuple[Named, ...] = ()
    renamed: tuple[tuple[Named, Named], ...] = ()
    other: Named | None = None


def is_reserved(table_id: int) -> bool:
    """Whether an id is of TiDB's own background tables, which are not replicated."""
    return table_id > _RESERVED_IDS_BEGIN


@dataclass(slots=True)
class _Tracked:
    schema_id: int
    info: Table
    version: int
    older: tuple[tuple[int, Table], ...] = ()  # newest first
    is_dropping_columns: bool = False
    seen: dict[tuple[int, bool], TableAt] = field(default_factory=dict)

    def replaced(self, info: Table, version: int) -> _Tracked:
        older = ((self.version, self.info), *self.older)[:_OLDER_KEPT]
        return _Tracked(self.schema_id, info, version, older)

    def at(self, schema_version: int) -> tuple[int, Table]:
        """What was current at a version: the newest not above it, or the oldest that is kept."""
        versions = ((self.version, self.info), *self.older)
        return next((each for each in versions if each[0] <= schema_version), versions[-1])


class SchemaTracker:
    """Databases and tables at one commit_ts, moved on by `apply`."""

    def __init__(self) -> None:
        self._databases: dict[int, Database] = {_MYSQL.id: _MYSQL}  # TiDB makes it without a job
        self._tables: dict[int, _Tracked] = {}
        self._ids: dict[tuple[int, str], int] = {}
        self._gone: dict[int, None] = {}
        self._coming: dict[int, list[Job]] = {}  # by table id, by version
        self._history: dict[int, Job] = {}  # not placed yet
        self.version = 0

    # --- the history ---------------------------------------------------------------------

    def load(self, jobs: Iterable[Job]) -> None:
        """Makes jobs known that were not yet applied, in any order; knowing one twice is fine."""
        for job in jobs:
            if not job.is_done or job.schema_version == 0 or job.type in _WITHOUT_EFFECT:
                continue
            self._history[job.id] = job
        self._coming.clear()
        for job in sorted(self._history.values(), key=lambda job: job.schema_version):
            if job.table is not None:
                self._coming.setdefault(job.table.id, []).append(job)
        for tracked in self._tables.values():
            tracked.seen.clear()

    def apply_up_to(self, schema_version: int) -> None:
        """Applies the known jobs that a checkpoint with this schema version has behind it."""
        self._apply_known(lambda job: job.schema_version <= schema_version)

    def apply_finished_by(self, commit_ts: Tso) -> None:
        """Applies the known jobs that were over at a commit_ts, when no schema version is known.

        One whose binlog lies before commit_ts and whose job was closed behind it stays unplaced;
        it is applied when a row or a later job of its table shows that it was in force.
        """
        self._apply_known(lambda job: 0 < job.finished_ts <= commit_ts)
        self._is_open_ended = True

    # --- moving on -----------------------------------------------------------------------

    def apply(self, job: Job, schema_state: int) -> Effect:
        """The turn of a DDL binlog with this `ddl_schema_state` has come.

        Applying a job again changes nothing but what it changed before.
        """
        if schema_state == SchemaState.DELETE_ONLY and job.type in _DROPS_COLUMNS and job.is_done:
            return self._announce(job)
        if not job.is_done or job.schema_version == 0:
            return self._forget(job)
        self._history.pop(job.id, None)
        effect = self._apply(job)
        self.version = max(self.version, job.schema_version)
        return effect

    # --- asking --------------------------------------------------------------------------

    def table_at(self, table_id: int, schema_version: int) -> TableAt | None:
        """The table that rows with this id and schema version see; None if no DDL made it.

        The same object for as long as nothing about the table changes.
        """
        tracked = self._tables.get(table_id)
        if tracked is None:
            return None
        at_version, at_info = tracked.at(schema_version)
        key = at_version, schema_version < tracked.version
        seen = tracked.seen.get(key)
        if seen is None:
            seen = self._seen(tracked, at_info, is_behind=key[1])
            tracked.seen[key] = seen
        return seen

    def is_truncated(self, table_id: int) -> bool:
        """The id was dropped or truncated before: late rows of it went with it."""
        return table_id in self._gone

    def named(self, table_id: int) -> Named | None:
        """What a table is called now."""
        tracked = self._tables.get(table_id)
        return tracked and Named(self._database_name(tracked.schema_id), tracked.info.name)

    def tables(self) -> list[tuple[Named, Table]]:
        """Every table, view and sequence, by id."""
        return [
            (Named(self._database_name(each.schema_id), each.info.name), each.info)
            for _, each in sorted(self._tables.items())
        ]

    # --- kept beside a relay log -----------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything that `from_snapshot` needs, as JSON: of the history the next job per table."""
        kept = _SnapshotJson(
            version=self.version,
            databases=[msgspec.Raw(database_to_json(each)) for each in self._databases.values()],
            tables=[_TrackedJson.of(each) for each in self._tables.values()],
            gone=list(self._gone),
            coming=[msgspec.Raw(job.raw) for job in self._next_jobs()],
        )
        return msgspec.json.encode(kept)

    @classmethod
    def from_snapshot(cls, data: bytes) -> SchemaTracker:
        """The tracker that `snapshot` was taken of. Raises Corrupt for anything else."""
        kept = _decode_snapshot(data)
        tracker = cls()
        databases = [database_from_json(bytes(raw)) for raw in kept.databases]
        tracker._databases = {each.id: each for each in databases}
        for each in kept.tables:
            tracker._put(each.tracked())
        tracker._gone = dict.fromkeys(kept.gone)
        tracker.version = kept.version
        tracker.load(job_from_json(bytes(raw)) for raw in kept.coming)
        return tracker
