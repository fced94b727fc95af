"""The databases and tables at one moment, by id and by name, and what a DDL job does to them.

Invariant. A name leads to one table, in any case, and a table is found by no name that it had
before. Why it holds: only `put` and `_remove` change what there is, and both keep the names. A job
for a table or schema that is not known (the history was cut) makes it known.

Source: pingcap/tidb ddl/table.go, ddl/partition.go, infoschema/builder.go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from binlogd.tidb.ddl_text import Rename, changed_columns, renamed_tables
from binlogd.tidb.kinds import TABLE_DROPS, WITHOUT_EFFECT
from binlogd.tidb.model import ActionType, Database, Job, Table, table_from_json
from binlogd.tidb.moved_rows import MovedRows
from binlogd.tidb.tracked import Tracked

_MYSQL = Database(1, "mysql")  # TiDB makes it without a job
_RESERVED_IDS_BEGIN = (1 << 48) - 1 - 1000
_GONE_KEPT_MAX = 100_000


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


def is_reserved(table_id: int) -> bool:
    """Whether an id is of TiDB's own background tables, which are not replicated."""
    return table_id > _RESERVED_IDS_BEGIN


class KnownTables:
    """What there is. `by_id` has the tables, and `gone` the ids that were dropped or truncated."""

    def __init__(self, databases: Iterable[Database] = (_MYSQL,)) -> None:
        self.databases = {each.id: each for each in databases}
        self.by_id: dict[int, Tracked] = {}
        self.gone: OrderedDict[int, None] = OrderedDict()
        self.moved = MovedRows()
        """Where rows are that come behind a DDL of partitions."""
        self._ids: dict[tuple[int, str], int] = {}
        self._acts: dict[int, Callable[[Job], Effect]] = {
            **dict.fromkeys(TABLE_DROPS, self._drop),
            ActionType.CREATE_SCHEMA: self._change_schema,
            ActionType.MODIFY_SCHEMA_CHARSET: self._change_schema,
            ActionType.MODIFY_SCHEMA_PLACEMENT: self._change_schema,
            ActionType.DROP_SCHEMA: self._drop_schema,
            ActionType.RECOVER_SCHEMA: self._recover_schema,
            ActionType.CREATE_TABLE: self._create_tables,
            ActionType.CREATE_TABLES: self._create_tables,
            ActionType.CREATE_VIEW: self._create_tables,
            ActionType.CREATE_SEQUENCE: self._create_tables,
            ActionType.RECOVER_TABLE: self._create_tables,
            ActionType.RENAME_TABLE: self._rename,
            ActionType.RENAME_TABLES: self._rename_tables,
            ActionType.EXCHANGE_TABLE_PARTITION: self._exchange,
        }

    def copy(self) -> KnownTables:
        """One that goes its own way from here."""
        other = KnownTables(self.databases.values())
        other.by_id = {each.id: each.copy() for each in self.by_id.values()}
        other.gone, other.moved = self.gone.copy(), self.moved.copy()
        other._ids = self._ids.copy()
        return other

    def take(self, job: Job) -> Effect:
        """Changes the tables as the job did. Raises Corrupt for a table that does not decode."""
        if job.type in WITHOUT_EFFECT:
            return Effect(False, self.name_in(job))
        if job.database is not None:
            self.databases[job.schema_id] = job.database
        elif job.schema_id not in self.databases:
            self.databases[job.schema_id] = Database(job.schema_id, job.schema_name)
        return self._acts.get(job.type, self._change)(job)

    def find(self, database: str, table: str) -> Named | None:
        """A table, or with `table` "" a database, by its name in any case: as it was created."""
        schema_id = self._schema_id(database, 0)
        if not table:
            return Named(self.databases[schema_id].name) if schema_id else None
        tracked = self.by_id.get(self._ids.get((schema_id, table.lower()), 0))
        return self.named(tracked) if tracked is not None else None

    def named(self, tracked: Tracked) -> Named:
        """The name of a table."""
        return Named(self.database_name(tracked.schema_id), tracked.name)

    def name_in(self, job: Job) -> Named:
        """What a job says it is about; "" for policies and groups, which live in no schema."""
        if job.type in WITHOUT_EFFECT:
            return Named("")
        tracked = self.by_id.get(job.table_id)
        if tracked is not None:
            return self.named(tracked)
        return Named(self.database_name(job.schema_id) or job.schema_name, job.table_name)

    # --- effects -------------------------------------------------------------------------

    def _change_schema(self, job: Job) -> Effect:
        named = Named(self.database_name(job.schema_id))
        return Effect(True, named, (named,) if job.type == ActionType.CREATE_SCHEMA else ())

    def _drop_schema(self, job: Job) -> Effect:
        named = Named(self.database_name(job.schema_id))
        gone = [each for each in self.by_id.values() if each.schema_id == job.schema_id]
        dropped = tuple((self.named(each), each.info) for each in gone)
        for each in gone:
            self._remove(each.id)
        self.databases.pop(job.schema_id, None)
        return Effect(True, named, dropped=dropped)

    def _recover_schema(self, job: Job) -> Effect:
        named = Named(self.database_name(job.schema_id))
        created = [
            self.create(job.schema_id, each.table, job.schema_version)
            for each in recovered_tables(job)
        ]
        return Effect(True, named, (named, *created))

    def _create_tables(self, job: Job) -> Effect:
        infos = job.tables if job.type == ActionType.CREATE_TABLES else (job.table,)
        created = tuple(
            self.create(job.schema_id, info, job.schema_version)
            for info in infos
            if info is not None
        )
        return Effect(bool(created), created[-1] if created else self.name_in(job), created)

    def _drop(self, job: Job) -> Effect:
        named, tracked = self.name_in(job), self.by_id.get(job.table_id)
        info = tracked.info if tracked is not None else job.table
        self._remove(job.table_id)
        return Effect(True, named, dropped=((named, info),) if info is not None else ())

    def _rename(self, job: Job) -> Effect:
        if job.table is None:
            return Effect(False, self.name_in(job))
        pair = self._renamed(job.table, job.schema_id, job, old_name=job.table_name)
        return Effect(True, pair[1], renamed=(pair,))

    def _rename_tables(self, job: Job) -> Effect:
        infos = job.tables or ((job.table,) if job.table else ())
        texts = renamed_tables(job.query)
        if len(texts) != len(infos):
            texts = []
        told = zip(texts, infos, strict=False)
        bare = (self.by_id.get(info.id) for text, info in told if not text.old_database)
        session_id = next((each.schema_id for each in bare if each is not None), job.schema_id)
        pairs, unsaid = [], [Rename("", "", "", "")] * len(infos)
        for text, info in zip(texts or unsaid, infos, strict=True):
            schema_id = self._schema_id(text.new_database, session_id)
            pairs.append(self._renamed(info, schema_id, job, old_name=text.old_table))
        return Effect(bool(pairs), self.name_in(job), renamed=tuple(pairs))

    def _renamed(
        self, info: Table, schema_id: int, job: Job, *, old_name: str
    ) -> tuple[Named, Named]:
        tracked = self.by_id.get(info.id)
        if tracked is None:
            old = Named(self.database_name(schema_id), old_name)
            return old, self.put(Tracked(schema_id, info, job.schema_version))
        old, moved = self.named(tracked), tracked.replaced(info, job.schema_version)
        moved.schema_id = schema_id
        return old, self.put(moved)

    def _exchange(self, job: Job) -> Effect:
        """The plain table goes on under the id of the partition, which gets the table's id."""
        after, plain = job.table, self.by_id.get(job.table_id)
        if after is None:
            return Effect(False, self.name_in(job))
        before = self.by_id.get(after.id)
        freed = set(before.info.partition_ids) - set(after.partition_ids) if before else set()
        other = self.named(plain) if plain else Named(job.schema_name, job.table_name)
        if plain is not None and len(freed) == 1:
            self._remove(job.table_id, is_gone=False)
            part = replace(plain.info, id=freed.pop())
            self.put(plain.replaced(part, job.schema_version))
        if before is not None:
            self.moved.note(job, before.info, plain.info if plain is not None else None)
        return replace(self._change(job), other=other)

    def _change(self, job: Job) -> Effect:
        """Whatever leaves a TableInfo: it replaces what was, under a new id if it has one."""
        if job.table is None:
            return Effect(False, self.name_in(job))
        info, version = job.table, job.schema_version
        old_id = info.id if job.type == ActionType.EXCHANGE_TABLE_PARTITION else job.table_id
        tracked = self.by_id.get(old_id)
        if tracked is None:
            return Effect(True, self.create(job.schema_id, info, version))
        if tracked.id != info.id:
            is_truncate = job.type == ActionType.TRUNCATE_TABLE
            dropped = ((self.named(tracked), tracked.info),) if is_truncate else ()
            self._remove(old_id)
            named = self.put(Tracked(tracked.schema_id, info, version))
            return Effect(True, named, dropped=dropped)
        if tracked.version >= version:
            return Effect(True, self.named(tracked))
        before = tracked.info
        if job.type != ActionType.EXCHANGE_TABLE_PARTITION:
            self.moved.note(job, before)
        named = self.put(tracked.replaced(info, version))
        if job.type != ActionType.MULTI_SCHEMA_CHANGE:
            return Effect(True, named, before=before)
        added = _added(before, info, job.query)
        known = {column.id for column in before.columns}
        rewrites = sum(each.id not in known for each in info.columns) > len(added)
        return Effect(True, named, added=added, rewrites=rewrites, before=before)

    # --- tables and their names ----------------------------------------------------------

    def create(self, schema_id: int, info: Table, version: int) -> Named:
        """A table that a job made; TiDB's own background tables are named only."""
        tracked = Tracked(schema_id, info, version)
        return self.named(tracked) if is_reserved(info.id) else self.put(tracked)

    def put(self, tracked: Tracked) -> Named:
        """A new table, or what one of this id is now; its name."""
        table_id = tracked.id
        before = self.by_id.get(table_id)
        if before is not None:
            self._unname(before)
        name = tracked.schema_id, tracked.name.lower()
        namesake = self._ids.get(name)
        if namesake is not None:  # CREATE OR REPLACE VIEW drops without saying so
            self._remove(namesake)
        self._ids[name] = table_id
        self.by_id[table_id] = tracked
        self.gone.pop(table_id, None)
        return self.named(tracked)

    def _remove(self, table_id: int, *, is_gone: bool = True) -> None:
        """A table goes, if it is there; without `is_gone` it goes on under another id."""
        tracked = self.by_id.pop(table_id, None)
        if tracked is not None:
            self._unname(tracked)
        if is_gone:
            self.gone[table_id] = None
            if len(self.gone) > _GONE_KEPT_MAX:
                self.gone.popitem(last=False)

    def _unname(self, tracked: Tracked) -> None:
        name = tracked.schema_id, tracked.name.lower()
        if self._ids.get(name) == tracked.id:
            del self._ids[name]

    def database_name(self, schema_id: int) -> str:
        """As it was created; "" for one that is not known."""
        database = self.databases.get(schema_id)
        return database.name if database else ""

    def _schema_id(self, database: str, default: int) -> int:
        """The id of a database by its name in any case; `default` without one."""
        if not database:
            return default
        names = {each.name.lower(): each.id for each in self.databases.values()}
        return names.get(database.lower(), default)


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
