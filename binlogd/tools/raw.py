"""Joined binlogs to transactions with names, by a schema that moves along with them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from binlogd.drainer.messages.named import NamedColumn, NamedDdl, NamedRow, RowKind
from binlogd.drainer.messages.pb_write import mysql_type
from binlogd.drainer.txn import TableChange
from binlogd.errors import Corrupt, MalformedBinlog
from binlogd.tidb.kinds import SchemaState
from binlogd.tidb.model import ActionType, Job, Table
from binlogd.tidb.per_table import PerTable
from binlogd.tidb.row import RowDecoder
from binlogd.tidb.schema import SchemaTracker
from binlogd.tools.transaction import FilePosition, Raw, Transaction
from binlogd.tso import Tso
from binlogd.wire import peek
from binlogd.wire.in_order import DELETE, INSERT, UPDATE, changes_of
from binlogd.wire.mutation import mutations

_KINDS = {INSERT: RowKind.INSERT, UPDATE: RowKind.UPDATE, DELETE: RowKind.DELETE}
_WITHOUT_DATABASE = frozenset({ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA})


class RawReader:
    """Given every binlog in commit order, DDL included; owns how the schema moves."""

    def __init__(self, schema: SchemaTracker) -> None:
        self._schema = schema
        self._decoders = PerTable(RowDecoder)

    def pass_over(self, payload: bytes, job: Job | None) -> None:
        """A binlog that nobody wants to see; a DDL moves the schema all the same."""
        if job is not None:
            self._schema.apply(job, peek.body(payload).ddl_schema_state)

    def read(
        self,
        start_ts: Tso,
        commit_ts: Tso,
        payload: bytes,
        job: Job | None,
        *,
        place: FilePosition,
        prewrite_place: FilePosition | None = None,
    ) -> Transaction:
        """The next transaction. Raises Corrupt for a payload that is no binlog."""
        try:
            body = peek.body(payload)
            if body.ddl_job_id > 0:
                ddl, note = self._ddl(body, job)
                raw = Raw(payload, job=job, prewrite_place=prewrite_place)
            else:
                ddl, note = None, ""
                raw = self._dml(payload, body.prewrite_value, prewrite_place)
        except MalformedBinlog as error:
            raise Corrupt(f"{place}: the payload is no binlog: {error}") from error
        return Transaction(
            commit_ts,
            start_ts,
            place,
            len(payload),
            ddl,
            partial(self._rows, raw.tables),
            note or _note_of(raw),
            raw,
        )

    def _ddl(self, body: peek.Body, job: Job | None) -> tuple[NamedDdl, str]:
        query = body.query
        if body.is_setval:
            return NamedDdl("", query), "a sequence's next batch, no DDL"
        if job is None:
            return NamedDdl("", query), f"its job {body.ddl_job_id} is not in the schema history"
        effect = self._schema.apply(job, body.ddl_schema_state)
        database = "" if job.type in _WITHOUT_DATABASE else effect.name.database
        note = ""
        if not job.is_done:
            note = "rolled back: it changed nothing"
        elif not effect.is_in_force:
            note = "it changes nothing, or announces what a later binlog does"
        return NamedDdl(database, query), note

    def _dml(
        self, payload: bytes, prewrite_value: bytes, prewrite_place: FilePosition | None
    ) -> Raw:
        version, changed = mutations(prewrite_value) if prewrite_value else (0, [])
        tables: list[TableChange] = []
        unexplained = []
        for mutation in changed:
            table = self._schema.table_at(mutation.table_id, version)
            if table is None:
                unexplained.append(mutation)
            else:
                tables.append(TableChange(table, mutation))
        return Raw(payload, version, None, tuple(tables), tuple(unexplained), prewrite_place)

    def _rows(self, tables: tuple[TableChange, ...]) -> Iterator[NamedRow]:
        for change in tables:
            yield from rows_of(change, self._decoders.of(change.table))


def _note_of(raw: Raw) -> str:
    if not raw.unexplained:
        return ""
    ids = ", ".join(str(mutation.table_id) for mutation in raw.unexplained)
    return f"the schema history does not tell the tables with id {ids}"


def rows_of(change: TableChange, decoder: RowDecoder) -> Iterator[NamedRow]:
    """The rows of one table, in the order in which they changed. Raises CorruptRow."""
    info, keys = change.table.info, keys_of(change.table.info)
    for kind, old, new in changes_of(change.mutation, decoder):
        columns = tuple(
            NamedColumn(
                column.name,
                mysql_type(column),
                old.get(column.id),
                new.get(column.id),
                column.is_generated,
            )
            for column in info.columns
            if column.id in old or column.id in new
        )
        yield NamedRow(change.table.database, info.name, _KINDS[kind], columns, keys)


def keys_of(info: Table) -> tuple[tuple[str, ...], ...]:
    """The unique keys of a table by their columns, PRIMARY first; those of prefixes left out."""
    found: list[tuple[str, ...]] = []
    handle = info.handle_column()
    if handle is not None:
        found.append((handle.name,))
    for index in sorted(info.indexes, key=lambda index: not index.is_primary):
        is_whole = all(part.length < 0 for part in index.columns)
        if (index.is_primary or index.is_unique) and is_whole and index.state == SchemaState.PUBLIC:
            names = tuple(part.name for part in index.columns)
            if names not in found:
                found.append(names)
    return tuple(found)
