"""A TiDB that a test plays: it makes one statement after another, with rows in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Dml, TableChange, Txn
from binlogd.tidb.model import (
    ActionType,
    Scalar,
    Table,
    TableAt,
    job_from_json,
    table_to_json,
)
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join
from binlogd.wire.mutation import Mutation
from tests.support.decoding import decoded
from tests.support.mariadb import MariaDb
from tests.support.replay import apply_all, sink_for
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef, TableDef, build_table

Json = dict[str, object]
ID = ColumnDef("id", tidb.integer("BIGINT"), not_null=True)


class Upstream:
    """A TiDB that makes one statement after another; `txns` is what a sink is given."""

    def __init__(
        self, table_filter: TableFilter | None = None, dialect: Dialect = Dialect.MYSQL
    ) -> None:
        self.schema = SchemaTracker()
        self.txns: list[Txn] = []
        self._translator = Translator(self.schema, table_filter or TableFilter(), dialect)
        self._ts = 100

    def database(self, name: str, query: str, *, number: int = 2) -> None:
        self.ddl(
            ActionType.CREATE_SCHEMA,
            query,
            schema_id=number,
            DBInfo=tidb.database_json(number, name),
        )

    def ddl(
        self,
        kind: ActionType,
        query: str,
        table: Table | None = None,
        *,
        typed: str = "",
        schema_id: int = 2,
        view: Json | None = None,
        location: str = "",
        table_id: int = 0,
        start_ts: int = 0,
        **binlog: object,
    ) -> None:
        self._ts += 10
        if table is not None:
            info = json.loads(table_to_json(table))
            binlog["TableInfo"] = info | ({"view": view} if view else {})
        job: Json = {
            "id": self._ts,
            "type": int(kind),
            "schema_id": schema_id,
            "table_id": table_id or (table.id if table else 0),
            "state": 6,
            "query": typed or query,
            "start_ts": start_ts or self._ts - 5,
            "binlog": {"SchemaVersion": self._ts, "FinishedTS": self._ts + 1, **binlog},
        }
        if location:
            job["reorg_meta"] = {"location": {"name": location, "offset": 0}}
        payload = join(
            prewrite_binlog(
                start_ts=Tso(self._ts - 1),
                prewrite_key=b"k",
                ddl_query=query.encode(),
                ddl_job_id=self._ts,
                ddl_schema_state=5,
            ),
            commit_binlog(start_ts=Tso(self._ts - 1), commit_ts=Tso(self._ts)),
        )
        binlog_ = CommittedBinlog(Tso(self._ts - 1), Tso(self._ts), payload)
        self.txns.append(
            self._translator.translate(
                decoded(binlog_, {self._ts: job_from_json(json.dumps(job).encode())})
            )
        )

    def insert(self, table_id: int, *rows: Sequence[Value]) -> None:
        at = self._at(table_id)
        handles = [None if at.info.pk_is_handle else n for n in range(1, len(rows) + 1)]
        encoded = [
            encode_insert(at.info, _values(at, row), handle=handle)
            for row, handle in zip(rows, handles, strict=True)
        ]
        self._write(at, Mutation(table_id, encoded, [], [], bytes(len(rows))))

    def update(self, table_id: int, *rows: tuple[Sequence[Value], Sequence[Value]]) -> None:
        at = self._at(table_id)
        handle = None if at.info.pk_is_handle else 1
        encoded = [
            encode_update(at.info, _values(at, old), _values(at, new), handle=handle)
            for old, new in rows
        ]
        self._write(at, Mutation(table_id, [], encoded, [], b"\1" * len(rows)))

    def delete(self, table_id: int, *rows: Sequence[Value]) -> None:
        at = self._at(table_id)
        handle = None if at.info.pk_is_handle else 1
        encoded = [encode_delete(at.info, _values(at, row), handle=handle) for row in rows]
        self._write(at, Mutation(table_id, [], [], encoded, b"\4" * len(rows)))

    def _at(self, table_id: int) -> TableAt:
        self._ts += 10
        at = self.schema.table_at(table_id, self._ts)
        assert at is not None
        return at

    def _write(self, at: TableAt, mutation: Mutation) -> None:
        change = TableChange(at, mutation)
        self.txns.append(Dml(Tso(self._ts - 1), Tso(self._ts), self._ts, (change,)))

    async def replicate(self, mariadb: MariaDb) -> None:
        await apply_all(sink_for(mariadb), iter(self.txns))


def _values(at: TableAt, row: Sequence[Value]) -> dict[int, Value]:
    return {column.id: value for column, value in zip(at.info.columns, row, strict=True)}


def table(number: int, name: str, *columns: ColumnDef, primary: str = "id") -> Table:
    return build_table(TableDef("shop", name, columns, (primary,) if primary else ()), number)


def with_column(before: Table, definition: ColumnDef, origin: Scalar = None) -> Table:
    number = max(column.id for column in before.columns) + 1
    column = tidb.build_column(
        definition, column_id=number, offset=len(before.columns), origin_default=origin
    )
    return replace(before, columns=(*before.columns, replace(column, version=2)))
