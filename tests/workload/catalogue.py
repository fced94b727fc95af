"""The databases, tables and finished DDL jobs of the small TiDB, as its `/ddl/history` tells them.

Ids of databases, tables and jobs come from one counter, as in TiDB; the schema `mysql` has id 1 and
no job. Every step of a job makes a new schema version.
Source: pingcap/tidb ddl/ddl_worker.go, parser/model/ddl.go, docs/tidb_http_api.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from binlogd.tidb import datum
from binlogd.tidb.kinds import ActionType, JobState, SchemaState
from binlogd.tidb.model import Column, Table
from binlogd.tso import Tso
from tests.workload.model import TableName
from tests.workload.schema import Json, database_json, table_json
from tests.workload.timeline import DdlMark
from tests.workload.values import Value

_FIRST_ID = 2  # 1 is the schema mysql


@dataclass(frozen=True, slots=True)
class DdlJob:
    """A DDL that runs. `statement` is the canonical text without semicolon."""

    id: int
    action: ActionType
    schema_id: int
    table_id: int
    database: str
    table: str
    statement: str
    start_ts: Tso
    raw_args: object = None

    def mark(self, schema_state: int) -> DdlMark:
        """What the binlogs of this job carry."""
        return DdlMark(self.statement.encode() + b";", self.id, schema_state)

    def prewrite_key(self) -> bytes:
        """The meta key that the job's transaction writes first."""
        if self.table_id:
            return meta_key(f"DB:{self.schema_id}", f"Table:{self.table_id}")
        return meta_key("DBs", f"DB:{self.schema_id}")


def meta_key(hash_name: str, member: str) -> bytes:
    """A member of a hash in TiDB's meta keyspace."""
    return (
        b"m"
        + datum.memcomparable(hash_name.encode())
        + ord("h").to_bytes(8, "big")
        + datum.memcomparable(member.encode())
    )


class Catalogue:
    """What exists now, in any state, and the history of jobs."""

    def __init__(self) -> None:
        self.version = 0
        self.databases: dict[str, int] = {}
        self.tables: dict[TableName, Table] = {}
        self.missing: dict[int, dict[int, Value]] = {}
        self._jobs: list[bytes] = []
        self._next_id = _FIRST_ID
        self._column_ids: dict[int, int] = {}
        self._index_ids: dict[int, int] = {}

    @property
    def job_count(self) -> int:
        """How many jobs the history has."""
        return len(self._jobs)

    def history(self) -> bytes:
        """The answer of `/ddl/history`: all jobs, oldest first."""
        return b"[" + b",\n".join(self._jobs) + b"]"

    def next_id(self) -> int:
        """A new id for a database, table or job."""
        self._next_id += 1
        return self._next_id - 1

    def next_column_id(self, table_id: int) -> int:
        """A column id that the table never had."""
        self._column_ids[table_id] += 1
        return self._column_ids[table_id]

    def next_index_id(self, table_id: int) -> int:
        """An index id that the table never had."""
        self._index_ids[table_id] += 1
        return self._index_ids[table_id]

    def start(
        self,
        action: ActionType,
        target: TableName,
        statement: str,
        *,
        start_ts: Tso,
        ids: tuple[int, int],
        raw_args: object = None,
    ) -> DdlJob:
        """A job on its way; `ids` are those of schema and table, as this action means them."""
        return DdlJob(
            self.next_id(), action, *ids, target[0], target[1], statement, start_ts, raw_args
        )

    def add_database(self, name: str, database_id: int) -> None:
        """One step: the database is there."""
        self.databases[name] = database_id
        self.version += 1

    def drop_database(self, name: str) -> None:
        """One step: the database and its tables are gone."""
        del self.databases[name]
        self.tables = {key: table for key, table in self.tables.items() if key[0] != name}
        self.version += 1

    def add_table(self, name: TableName, table: Table) -> None:
        """One step: a table with an id of its own is there."""
        self.tables[name] = table
        self.missing.setdefault(table.id, {})
        self._column_ids.setdefault(table.id, max(column.id for column in table.columns))
        self._index_ids.setdefault(table.id, max((each.id for each in table.indexes), default=0))
        self.version += 1

    def truncate_table(self, name: TableName, new_id: int) -> Table:
        """One step: the table begins anew, under another id."""
        old = self.tables[name]
        self.missing[new_id] = dict(self.missing[old.id])
        self._column_ids[new_id] = self._column_ids[old.id]
        self._index_ids[new_id] = self._index_ids[old.id]
        self.tables[name] = replace(old, id=new_id)
        self.version += 1
        return self.tables[name]

    def change_table(self, name: TableName, table: Table) -> None:
        """One step: the table looks different."""
        self.tables[name] = table
        self.version += 1

    def rename_table(self, old: TableName, new: TableName) -> None:
        """One step: the table has another name."""
        self.tables[new] = replace(self.tables.pop(old), name=new[1])
        self.version += 1

    def drop_table(self, name: TableName) -> None:
        """One step: the table is gone."""
        del self.tables[name]
        self.version += 1

    def step(self) -> None:
        """A step that no user and no row can tell from the one before."""
        self.version += 1

    def finish(
        self,
        job: DdlJob,
        finished_ts: Tso,
        *,
        schema_state: int,
        state: JobState = JobState.SYNCED,
        table: Table | None = None,
        database: tuple[int, str] | None = None,
    ) -> None:
        """The job goes into the history, with the table or database as it is now."""
        dropped = schema_state == SchemaState.NONE and job.action in (
            ActionType.DROP_TABLE,
            ActionType.DROP_SCHEMA,
        )
        state_of_object = SchemaState.NONE if dropped else SchemaState.PUBLIC
        info: Json = {
            "SchemaVersion": self.version,
            "DBInfo": None,
            "TableInfo": None,
            "FinishedTS": finished_ts,
            "MultipleTableInfos": None,
        }
        if database is not None:
            info["DBInfo"] = {**database_json(*database), "state": int(state_of_object)}
        if table is not None:
            info["TableInfo"] = table_json(
                table,
                max_column_id=self._column_ids[table.id],
                max_index_id=self._index_ids[table.id],
                updated_ts=job.start_ts,
                state=int(state_of_object),
            )
        self._jobs.append(self._job_json(job, info, schema_state=schema_state, state=state))

    def _job_json(self, job: DdlJob, info: Json, *, schema_state: int, state: JobState) -> bytes:
        error = None
        if state == JobState.ROLLBACK_DONE:
            error = {"class": 8, "code": 1062, "message": "Duplicate entry", "rfccode": "kv:1062"}
        fields = {
            "id": job.id,
            "type": int(job.action),
            "schema_id": job.schema_id,
            "table_id": job.table_id,
            "schema_name": job.database,
            "table_name": job.table,
            "state": int(state),
            "warning": None,
            "err": error,
            "err_count": 0 if error is None else 1,
            "row_count": 0,
            "raw_args": job.raw_args,
            "schema_state": schema_state,
            "snapshot_ver": 0,
            "real_start_ts": job.start_ts,
            "start_ts": job.start_ts,
            "dependency_id": 0,
            "query": job.statement,
            "binlog": info,
            "version": 1,
            "reorg_meta": None,
            "multi_schema_info": None,
            "priority": 0,
            "seq_num": len(self._jobs) + 1,
        }
        return json.dumps(fields, ensure_ascii=False).encode()


def with_column_state(table: Table, column_id: int, state: SchemaState) -> Table:
    """The table with one column in another state; those not public stand at the end."""
    changed = [
        replace(column, state=state) if column.id == column_id else column
        for column in table.columns
    ]
    return with_columns(table, changed)


def with_columns(table: Table, columns: Iterable[Column]) -> Table:
    """The table with these columns, public ones first, offsets counted anew."""
    ordered = sorted(columns, key=lambda column: not column.is_public)
    placed = tuple(replace(column, offset=n) for n, column in enumerate(ordered))
    offsets = {column.name: column.offset for column in placed}
    indexes = tuple(
        replace(
            index,
            columns=tuple(replace(each, offset=offsets[each.name]) for each in index.columns),
        )
        for index in table.indexes
    )
    return replace(table, columns=placed, indexes=indexes)
