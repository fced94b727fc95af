"""What happened between two moments: `build` of `binlogd export-changes`, from the same log.

Of each row the change that it came to, or every one of them. Tables are as they are at the end; a
DDL in between stands in the manifest, for it may have changed rows that nobody wrote.

The columns are `_op` (I, U or D), `_commit_ts`, of all versions `_seq` too (their order within a
transaction and table), and then those of the table as it is at the end: the row after the change,
of a D the row that went. `_before`, where it is wanted, is the row as it was: NULL in an I.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from binlogd.errors import CorruptRow, UnknownTable, UnreadableRow
from binlogd.snapshot.formats.columns import ArrowColumn
from binlogd.snapshot.log.packets import all_of, net_changes, unpacked
from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.log.scan import RowScan, ddl_of
from binlogd.snapshot.spec import ChangesEntry, ChangesOptions, DdlEntry
from binlogd.snapshot.tables.catalog import Catalog, DdlBinlog, TablePlan, name_in
from binlogd.snapshot.writing.files import (
    RESULTS,
    FileTarget,
    TableFiles,
    Written,
    parse_results,
    results,
)
from binlogd.snapshot.writing.rows import RowsAsOf
from binlogd.snapshot.writing.table_arrays import CHUNK_BYTES, CHUNK_ROWS
from binlogd.snapshot.writing.write import attempt_name
from binlogd.snapshot.writing.writer import (
    arrow_columns,
    directory_name,
    schema_of,
)
from binlogd.tidb.rewrite import Unconvertible
from binlogd.tidb.row import Value
from binlogd.tidb.schema import SchemaTracker

OP, COMMIT_TS, SEQ, BEFORE = "_op", "_commit_ts", "_seq", "_before"
_LETTERS = {Op.PUT: "I", Op.UPDATE: "U", Op.DELETE: "D"}


class KeyChange(NamedTuple):
    """One change of a row; `row` is empty when it went, `before` when it came."""

    table_id: int
    op: int
    commit_ts: int
    seq: int
    schema_version: int
    row: bytes
    before_version: int
    before: bytes


def write_changes(
    batches: Iterable[pa.RecordBatch],
    tables: dict[int, TablePlan],
    tracker: bytes,
    target: FileTarget,
    part: str,
    options: ChangesOptions,
) -> Iterator[pa.RecordBatch]:
    """Writes the changes of one partition, which come by table. Yields `RESULTS`.

    Raises UnreadableRow, UnknownTable.
    """
    schemas = SchemaTracker.from_snapshot(tracker)
    current: _ChangeWriter | None = None
    done: list[Written] = []
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in KeyChange._fields)
        for change in map(KeyChange._make, zip(*columns, strict=True)):
            table_id = change.table_id
            if current is None or current.table_id != table_id:
                if table_id not in tables:
                    raise UnknownTable(table_id, change.commit_ts, change.schema_version)
                done += current.close() if current else []
                current = _ChangeWriter(tables[table_id], schemas, target, part, options)
            current.add(change)
    done += current.close() if current else []
    yield results(done)


class _ChangeWriter:
    """The changes of one table in one partition, on their way into files."""

    def __init__(
        self,
        plan: TablePlan,
        schemas: SchemaTracker,
        target: FileTarget,
        part: str,
        options: ChangesOptions,
    ) -> None:
        self.table_id = plan.info.id
        self._label = plan.label
        self._rows = RowsAsOf(plan, schemas)
        self._columns = arrow_columns(plan, target.types)
        self._ids = [each.id for each in plan.columns]
        self._options = options
        self._schema = _schema(self._columns, options)
        self._files = TableFiles(self.table_id, directory_name(plan), self._schema, target, part)
        self._changes: list[KeyChange] = []
        self._images: list[dict[int, Value]] = []
        self._befores: list[dict[int, Value] | None] = []
        self._bytes = 0
        self._problem = _taken(self._columns, options)

    def add(self, change: KeyChange) -> None:
        """Takes a change. Raises UnreadableRow."""
        if self._problem:
            return
        try:
            before: dict[int, Value] | None = None
            if change.before and (self._options.has_before or change.op == Op.DELETE):
                before = self._rows.decode(change.before_version, change.before)
            if change.op == Op.DELETE:
                assert before is not None, "a row that went was there"
                image = before
            else:
                image = self._rows.decode(change.schema_version, change.row)
        except CorruptRow as error:
            raise UnreadableRow(self._label, change.commit_ts, str(error)) from error
        except Unconvertible as error:
            self._problem = str(error)
            return
        self._changes.append(change)
        self._images.append(image)
        self._befores.append(before)
        self._bytes += len(change.row) + len(change.before)
        if len(self._changes) >= CHUNK_ROWS or self._bytes >= CHUNK_BYTES:
            self._flush()

    def close(self) -> list[Written]:
        """Finishes the last file. What was written, or the problem."""
        if self._changes and not self._problem:
            self._flush()
        done = self._files.close()
        return [Written(self.table_id, problem=self._problem)] if self._problem else done

    def _flush(self) -> None:
        changes = self._changes
        arrays = [
            pa.array([_LETTERS[Op(each.op)] for each in changes], pa.string()),
            pa.array([each.commit_ts for each in changes], pa.int64()),
        ]
        if self._options.all_versions:
            arrays.append(pa.array([each.seq for each in changes], pa.int32()))
        try:
            arrays += self._built(self._images)
            if self._options.has_before:
                absent = pa.array([each is None for each in self._befores])
                befores = self._built([each or {} for each in self._befores], is_counted=False)
                arrays.append(
                    pa.StructArray.from_arrays(
                        befores, fields=list(self._schema.field(BEFORE).type), mask=absent
                    )
                )
        except CorruptRow as error:
            raise UnreadableRow(self._label, changes[0].commit_ts, str(error)) from error
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._files.add(batch, None, self._bytes)
        for each in (self._changes, self._images, self._befores):
            each.clear()
        self._bytes = 0

    def _built(self, rows: list[dict[int, Value]], *, is_counted: bool = True) -> list[pa.Array]:
        arrays = []
        for column, column_id in zip(self._columns, self._ids, strict=True):
            lost: Counter[str] = Counter()
            arrays.append(column.build([row.get(column_id) for row in rows], lost))
            if is_counted:
                self._files.losses.setdefault(column.column.name, Counter()).update(lost)
        return arrays


def _schema(columns: list[ArrowColumn], options: ChangesOptions) -> pa.Schema:
    fields = [pa.field(OP, pa.string()), pa.field(COMMIT_TS, pa.int64())]
    if options.all_versions:
        fields.append(pa.field(SEQ, pa.int32()))
    fields += list(schema_of(columns))
    if options.has_before:
        row = pa.struct([pa.field(each.column.name, each.type) for each in columns])
        fields.append(pa.field(BEFORE, row))
    return pa.schema(fields)


def _taken(columns: list[ArrowColumn], options: ChangesOptions) -> str:
    """Why the columns cannot stand beside those of a change, if they cannot."""
    own = {field.name for field in _schema([], options)}
    for each in columns:
        if each.column.name.lower() in own:
            return f"its column {each.column.name} has the name of a column of changes"
    return ""


def net(
    packets: DataFrame, known: Catalog, target: FileTarget, options: ChangesOptions
) -> list[Written]:
    """Writes what each row of all tables came to, as files below the staging directory.

    `packets` as `scan.spread` gives them, of `events.CHANGES`.
    """
    tables, tracker = dict(known.tables), known.tracker

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = attempt_name(context.partitionId()) if context else "0"
        wanted = map(net_changes, unpacked(batches, partial(name_in, tables)))
        yield from write_changes(wanted, tables, tracker, target, part, options)

    return parse_results(packets.mapInArrow(write_part, ddl_of(RESULTS)).collect())


def every(
    rows: RowScan, known: Catalog, target: FileTarget, options: ChangesOptions
) -> list[Written]:
    """Writes all changes of all tables as files below the staging directory."""
    tables, tracker = dict(known.tables), known.tracker

    def write_part(changes: Iterator[pa.RecordBatch], number: int) -> Iterator[pa.RecordBatch]:
        part = attempt_name(number)
        yield from write_changes(all_of(changes), tables, tracker, target, part, options)

    return parse_results(rows.each(write_part, RESULTS).collect())


def entry(options: ChangesOptions, ddl: Sequence[DdlBinlog]) -> ChangesEntry:
    """How the manifest describes them."""
    return ChangesEntry(
        options.from_ts,
        options.all_versions,
        options.has_before,
        tuple(
            DdlEntry(each.commit_ts, each.query) for each in ddl if each.commit_ts > options.from_ts
        ),
    )
