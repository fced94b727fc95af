"""Which DDL is replicated, and how its statement reads downstream.

The statement of a binlog is TiDB's own print of what the user typed: names as typed, TiDB's options
in comments of the form `/*T![feature] ... */`, which MySQL and MariaDB step over. It is sent as it
stands wherever that is right, and edited word by word where it is not; it is never printed anew
from a grammar, so nothing of it can be lost that nobody thought of.

What becomes of each kind: docs/DDL.md. What changes rows in no binlog is UnsupportedDdl.
Source: tidb-binlog drainer/syncer.go, drainer/collector.go (which drops rolled-back jobs and
setval), pkg/loader/executor.go and pkg/util/ddl.go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import structlog

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.ddl.added import with_old_values
from binlogd.drainer.ddl.calls import Calls
from binlogd.drainer.ddl.comments import TwoReadings, check_printed
from binlogd.drainer.ddl.edits import Dialect, begins, edited, quoted, split
from binlogd.drainer.ddl.explicit import (
    explicit_database,
    explicit_table,
    explicit_view,
    with_escapes,
    with_timestamps_in_utc,
)
from binlogd.drainer.ddl.session_clock import ADDS_COLUMNS, has_zone
from binlogd.drainer.ddl.trash_names import Replay, Trash
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.txn import BY_DECISION, NO_DDL, Ddl, Skip
from binlogd.errors import Corrupt, CorruptRow, MissingDdlJob, UnsupportedDdl
from binlogd.tidb.ddl_text import words
from binlogd.tidb.kinds import OF_POLICIES_AND_GROUPS, RECOVERIES, PartitionKind
from binlogd.tidb.known_tables import Effect, Named, is_reserved
from binlogd.tidb.model import ActionType, Database, Job, Table
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire import peek

log = structlog.get_logger(__name__)


class Omit(msgspec.Struct, frozen=True):
    """Nothing to execute, and why."""

    reason: str


_NO_TABLE_CHANGES = "it changes nothing of tables"
_TIDB_ONLY = "only TiDB has this, and it does not change what tables hold"

_OMITTED: dict[int, str] = {
    ActionType.LOCK_TABLE: _NO_TABLE_CHANGES,
    ActionType.UNLOCK_TABLE: _NO_TABLE_CHANGES,
    ActionType.UPDATE_TIFLASH_REPLICA_STATUS: _NO_TABLE_CHANGES,
    ActionType.ALTER_CACHE_TABLE: _TIDB_ONLY,
    ActionType.ALTER_NO_CACHE_TABLE: _TIDB_ONLY,
    ActionType.ALTER_TABLE_ATTRIBUTES: _TIDB_ONLY,
    ActionType.ALTER_PARTITION_ATTRIBUTES: _TIDB_ONLY,
    **dict.fromkeys(OF_POLICIES_AND_GROUPS, _TIDB_ONLY),
    ActionType.ALTER_PARTITION_PLACEMENT: _TIDB_ONLY,
    ActionType.MODIFY_SCHEMA_PLACEMENT: _TIDB_ONLY,
    ActionType.ALTER_TABLE_PLACEMENT: _TIDB_ONLY,
}
_OMITTED_BY_DATABASES: dict[int, str] = {
    ActionType.SET_TIFLASH_REPLICA: "the downstream may have no TiFlash",
    ActionType.REPAIR_TABLE: "it repairs the upstream's own metadata",
}
_OMITTED_BY_MYSQL: dict[int, str] = {
    ActionType.SHARD_ROW_ID: _TIDB_ONLY,
    ActionType.CREATE_SEQUENCE: "sequences are not replicated; rows hold the values drawn",
    ActionType.ALTER_SEQUENCE: "sequences are not replicated; rows hold the values drawn",
    ActionType.DROP_SEQUENCE: "sequences are not replicated; rows hold the values drawn",
    ActionType.MODIFY_AUTO_ID_CACHE: _TIDB_ONLY,
    ActionType.REBASE_AUTO_RANDOM: _TIDB_ONLY,
    ActionType.ALTER_INDEX_VISIBILITY: "it only advises the upstream's optimizer",
    ActionType.ALTER_TABLE_STATS_OPTIONS: _TIDB_ONLY,
    ActionType.ALTER_TTL_INFO: _TIDB_ONLY,
    ActionType.ALTER_TTL_REMOVE: _TIDB_ONLY,
}
_OF_PARTITIONS = frozenset(
    {ActionType.TRUNCATE_TABLE_PARTITION, ActionType.EXCHANGE_TABLE_PARTITION}
)
_CREATES = frozenset({ActionType.CREATE_TABLE, ActionType.CREATE_VIEW})
_DROPS: dict[int, str] = {
    ActionType.DROP_TABLE: "TABLE",
    ActionType.DROP_VIEW: "VIEW",
    ActionType.DROP_SEQUENCE: "SEQUENCE",
}


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """A DDL binlog whose turn has come: its job, its text, and what it did to the schema."""

    commit_ts: Tso
    job: Job
    query: str
    effect: Effect


class DdlReplay:
    """Decides what a DDL means downstream, given what is replicated and how tables are called."""

    def __init__(
        self,
        dialect: Dialect,
        schema: SchemaTracker,
        table_filter: TableFilter,
        trash: Trash | None = None,
    ) -> None:
        self._dialect, self._schema, self._filter = dialect, schema, table_filter
        self._trash = trash if dialect is Dialect.MYSQL else None
        self._router = table_filter.routes
        self._calls = Calls(schema, self._router)

    def translated(self, binlog: CommittedBinlog, body: peek.Body, job: Job | None) -> Ddl | Skip:
        """What a sink gets of a DDL binlog. The schema moves, whatever becomes of its statement.
        Raises MissingDdlJob, UnsupportedDdl, and ConfigError for two tables of one name."""
        commit_ts, query = binlog.commit_ts, body.query
        if body.is_setval:
            return Skip(commit_ts, "sequences are not replicated")
        if job is None and self._filter.ignores_transaction(commit_ts):
            return Skip(commit_ts, "ignore-txn-commit-ts, and its job is not in the history")
        if job is None:
            raise MissingDdlJob(body.ddl_job_id, commit_ts, query)
        if is_reserved(job.table_id):
            return Skip(commit_ts)
        effect = self._schema.apply(job, body.ddl_schema_state)
        decision = self._decision(DdlEvent(commit_ts, job, query, effect))
        reason = decision.reason if isinstance(decision, Omit) else ""
        replay = Replay(()) if isinstance(decision, Omit) else decision
        if reason and not effect.is_in_force:
            return Skip(commit_ts, reason)
        name = self._router.name(effect.name)
        return Ddl(
            start_ts=binlog.start_ts,
            commit_ts=commit_ts,
            schema_version=job.schema_version,
            job=job,
            statement=replay.statements[0] if replay.statements else query,
            database=name.database,
            table=name.table,
            is_skipped=bool(reason),
            further=replay.statements[1:],
            targets=replay.targets,
            effect=effect,
            reason=reason,
            created=tuple(map(self._router.name, effect.created)),
            renamed=tuple(
                (self._router.name(old), self._router.name(new)) for old, new in effect.renamed
            ),
            is_qualified=self._router.has_rules,
        )

    def exists(self, name: Named) -> bool:
        """Whether the upstream has it now."""
        return self._schema.find(name.database, name.table) == name

    def of(self, event: DdlEvent) -> Replay | Omit:
        """Raises UnsupportedDdl for what cannot be replayed and must not be passed over."""
        job, query = event.job, event.query
        reason = _reason_to_omit(job, event.effect, self._dialect)
        if not reason and not any(self._is_wanted(name) for name in _judged_by(event.effect)):
            reason = "filtered"
        if reason:
            return Omit(reason)
        if self._dialect is Dialect.FILE:
            return Replay(tuple(self._texts(event)) if self._router.has_rules else (query,))
        self._refuse_unsupported(event)
        try:
            return self._replay(event)
        except (TwoReadings, CorruptRow) as error:
            raise UnsupportedDdl(event.commit_ts, query, str(error)) from error

    def _decision(self, event: DdlEvent) -> Replay | Omit:
        """Whether and how it is executed. Raises UnsupportedDdl."""
        if self._filter.ignores_transaction(event.commit_ts):
            return Omit(BY_DECISION)
        if event.job.type == ActionType.FLASHBACK_CLUSTER and event.job.is_done:
            raise UnsupportedDdl(  # wherever they go
                event.commit_ts,
                event.query,
                "no binlog holds the rows that it changed",
                todo="begin anew from a full copy of the data as they are after it",
            )
        if not self._filter.executes_ddl:
            return Omit(NO_DDL)
        loop = self._filter.loop
        if loop is not None and loop.is_own_ddl(event.job, event.query):
            return Omit(f"came through channel {loop.channel_id}")
        name = event.effect.name
        text = event.job.query or event.query
        if self._filter.events.ignores_ddl(name.database, name.table, text):
            return Omit("binlog-filter-rule")
        if self._router.has_rules:
            self._claim(event.effect)
        try:
            return self.of(event)
        except Corrupt as error:  # of the job, whose other parts have been read by now
            raise UnsupportedDdl(event.commit_ts, event.query, str(error)) from error

    def _claim(self, effect: Effect) -> None:
        """Raises ConfigError for a table that would be another one downstream."""
        for name in (*effect.created, *(new for _, new in effect.renamed), effect.name):
            is_there = name.table and self.exists(name)
            if is_there and self._filter.replicates(name.database, name.table):
                self._router.reserve(name, self.exists)

    def _replay(self, event: DdlEvent) -> Replay | Omit:
        """Raises UnsupportedDdl, TwoReadings, CorruptRow."""
        job = event.job
        moves = self._moves(event)
        if moves is not None:
            return moves
        check_printed(event.query, job.query)
        event = replace(event, query=with_escapes(event.query, job.query))
        left_out: list[str] = []
        texts = [edited(text, self._dialect, left_out) for text in self._texts(event)]
        for part in left_out:
            log.warning(
                "ddl_changed",
                commit_ts=event.commit_ts,
                left_out=part,
                reason="a name in it holds a sign of comments, and servers differ in what reads it",
            )
        if not any(texts):
            return Omit("all of it is options that only TiDB has")
        return Replay(tuple(text for text in texts if text))

    def _is_wanted(self, name: Named) -> bool:
        return self._filter.replicates(name.database, name.table)

    def _refuse_unsupported(self, event: DdlEvent) -> None:
        job, query, effect = event.job, event.query, event.effect
        reason = ""
        before = effect.before.partitioning if effect.before is not None else None
        is_by_key = before is not None and before.kind == PartitionKind.KEY
        is_without_trash = self._dialect is Dialect.MYSQL and self._trash is None
        if is_without_trash and job.type in RECOVERIES:
            reason = (
                "it brings back rows that no binlog holds (tables that are dropped while"
                " drainer.trash-schema is set can be brought back)"
            )
        elif self._trash is None and job.type == ActionType.RECOVER_TABLE and _names_a_job(query):
            reason = "its job number means nothing downstream"
        elif effect.other and self._is_wanted(effect.other) != self._is_wanted(effect.name):
            reason = "it exchanges rows with a table that is not replicated"
        elif self._dialect is Dialect.MYSQL and job.type in _OF_PARTITIONS and is_by_key:
            reason = (
                "TiDB spreads rows over partitions BY KEY in another way than MySQL and MariaDB do,"
                " so other rows would go: do it downstream by the rows that TiDB has"
            )
        for old, new in effect.renamed:
            if self._is_wanted(new) and not self._is_wanted(old):
                reason = f"{quoted(new)} was not replicated under its name before"
        if reason:
            raise UnsupportedDdl(event.commit_ts, query, reason)

    def _moves(self, event: DdlEvent) -> Replay | None:
        """What is done by the trash; None for everything else."""
        job, effect = event.job, event.effect
        if self._trash is None:
            return None
        if job.type in RECOVERIES:
            wanted = [name for name in effect.created if self._is_wanted(name)]
            moves = self._trash.taken_back(job, effect, wanted, self._router.name)
            if isinstance(moves, str):
                raise UnsupportedDdl(event.commit_ts, event.query, moves)
            return moves
        tables = [
            (self._router.name(name), table)
            for name, table in effect.dropped
            if self._is_wanted(name)
            and not (table.is_view or table.is_sequence or table.references)
            and not self._is_referred_to(name)
        ]
        then = self._schema_drops(effect) if job.type == ActionType.DROP_SCHEMA else ()
        return self._trash.put_aside(job, tables, then)

    def _is_referred_to(self, name: Named) -> bool:
        key = name.database.lower(), name.table.lower()
        return any(
            ((database or owner.database).lower(), table.lower()) == key
            for owner, info in self._schema.tables()
            for database, table in info.references
        )

    def _texts(self, event: DdlEvent) -> list[str]:
        job, effect = event.job, event.effect
        if job.type == ActionType.DROP_SCHEMA:
            return self._schema_drops(effect)
        if job.type in _DROPS:
            return [f"DROP {_DROPS[job.type]} {self._quoted(effect.name)}"]
        if effect.renamed:
            wanted = [(old, new) for old, new in effect.renamed if self._is_wanted(new)]
            pairs = [f"{self._quoted(old)} TO {self._quoted(new)}" for old, new in wanted]
            return [f"RENAME TABLE {', '.join(pairs)}"]
        if job.type != ActionType.CREATE_TABLES:
            text = event.query
            if job.type == ActionType.CREATE_VIEW:
                text = explicit_view(text, job)
            text = self._calls.exact(text, effect.name.database, job.table, effect.other)
            if job.table is not None and not has_zone(job):
                text = with_timestamps_in_utc(text, job.table)
            made_in = self._made_in(effect.name) if job.type in _CREATES else []
            texts = [self._explicit(text, job.table, job.database)]
            if self._dialect is Dialect.MYSQL and job.type in ADDS_COLUMNS:
                texts = with_old_values(texts[0], job)
            return [*made_in, *texts]
        creates = [text for text in split(event.query) if begins(text, "CREATE")]
        if len(creates) != len(effect.created):
            raise UnsupportedDdl(
                event.commit_ts,
                event.query,
                f"the job made {len(effect.created)} tables, its text makes {len(creates)}",
            )
        return [
            part
            for text, name, info in zip(creates, effect.created, job.tables, strict=True)
            if self._is_wanted(name)
            for part in (
                *self._made_in(name),
                self._explicit(self._calls.exact(text, name.database), info, None),
            )
        ]

    def _quoted(self, name: Named) -> str:
        return quoted(self._router.name(name))

    def _schema_drops(self, effect: Effect) -> list[str]:
        """Tables that are elsewhere downstream go one by one; and the database, unless another one
        of the upstream is there too."""
        routed = self._router.name(Named(effect.name.database))
        names = [self._router.name(name) for name, _ in effect.dropped if self._is_wanted(name)]
        is_shared = self._router.has_rules and any(
            self._router.name(Named(name.database)) == routed for name, _ in self._schema.tables()
        )
        drops = [
            f"DROP TABLE IF EXISTS {quoted(name)}"
            for name in names
            if is_shared or name.database.lower() != routed.database.lower()
        ]
        return drops if is_shared else [*drops, f"DROP DATABASE {quoted(routed.database)}"]

    def _made_in(self, name: Named) -> list[str]:
        """The database that a table is routed to, where no CREATE DATABASE of the upstream is."""
        routed = self._router.name(name).database
        if routed.lower() == self._router.name(Named(name.database)).database.lower():
            return []
        return [f"CREATE DATABASE IF NOT EXISTS {quoted(routed)}"]

    def _explicit(self, text: str, table: Table | None, database: Database | None) -> str:
        """With what the text leaves to the server; a TiDB downstream fills in the same."""
        if self._dialect is not Dialect.MYSQL:
            return text
        if table is not None:
            return explicit_table(text, table)
        return explicit_database(text, database) if database is not None else text


def _reason_to_omit(job: Job, effect: Effect, dialect: Dialect) -> str:
    reason = _OMITTED.get(job.type, "")
    if not reason and not effect.is_in_force:
        reason = "the job was rolled back, or it is only announced"
    if not reason and dialect is not Dialect.FILE:
        reason = _OMITTED_BY_DATABASES.get(job.type, "")
    if not reason and dialect is Dialect.MYSQL:
        reason = _OMITTED_BY_MYSQL.get(job.type, "")
    return reason


def _judged_by(effect: Effect) -> tuple[Named, ...]:
    """The names of which one must be replicated: a rename is judged by what it leads to."""
    if effect.renamed:
        return tuple(new for _, new in effect.renamed)
    if effect.other:
        return effect.name, effect.other
    return effect.created or (effect.name,)


def _names_a_job(query: str) -> bool:
    return any(a.says("BY") and b.says("JOB") for a, b in pairwise(words(query)))
