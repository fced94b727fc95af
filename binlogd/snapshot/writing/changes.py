"""What happened between two moments: `build` of `binlogd export-changes`, from the same log.

Of each row the change that it came to, or every one of them. Tables are as they are at the end; a
DDL in between stands in the manifest, for it may have changed rows that nobody wrote.

The columns are `_op` (I, U or D), `_commit_ts`, of all versions `_seq` too (their order within a
transaction and table), and then those of the table as it is at the end: the row after the change,
of a D the row that went. `_before`, where it is wanted, is the row as it was: NULL in an I.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

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
from binlogd.snapshot.writing.table_arrays import TableArrays, of_tables
from binlogd.snapshot.writing.write import attempt_name
from binlogd.snapshot.writing.writer import arrow_columns, directory_name, schema_of
from binlogd.tidb.rewrite import Unconvertible
from binlogd.tidb.schema import SchemaTracker

OP, COMMIT_TS, SEQ, BEFORE = "_op", "_commit_ts", "_seq", "_before"
_LETTERS = pa.array(
    [{Op.PUT: "I", Op.UPDATE: "U", Op.DELETE: "D"}.get(each) for each in sorted(Op)]
)


def write_changes(
    batches: Iterable[pa.RecordBatch],
    tables: dict[int, TablePlan],
    tracker: bytes,
    target: FileTarget,
    part: str,
    options: ChangesOptions,
) -> Iterator[pa.RecordBatch]:
    """Writes the changes of one partition, which come by table: `events.CHANGES` with
    `before_version`, the schema version of `before`. Yields `RESULTS`.

    Raises UnreadableRow, UnknownTable.
    """
    schemas = SchemaTracker.from_snapshot(tracker)
    done: list[Written] = []
    for plan, changes in of_tables(batches, tables):
        writer = _ChangeWriter(plan, schemas, target, part, options)
        for each in changes:
            writer.add(each)
        done += writer.close()
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
        columns = arrow_columns(plan, target.types)
        self._table_id, self._options = plan.info.id, options
        self._arrays = TableArrays(plan, schemas, columns)
        self._schema = _schema(columns, options)
        self._files = TableFiles(self._table_id, directory_name(plan), self._schema, target, part)
        self._problem = _taken(columns, options)

    def add(self, changes: pa.RecordBatch) -> None:
        """Takes changes, no more than are decoded together. Raises UnreadableRow."""
        if self._problem:
            return
        try:
            batch = pa.RecordBatch.from_arrays(self._columns(changes), schema=self._schema)
        except Unconvertible as error:
            self._problem = str(error)
            return
        self._files.add(batch, None, changes["row"].nbytes + changes["before"].nbytes)

    def close(self) -> list[Written]:
        """Finishes the last file. What was written, or the problem."""
        done = self._files.close()
        return [Written(self._table_id, problem=self._problem)] if self._problem else done

    def _columns(self, changes: pa.RecordBatch) -> list[pa.Array]:
        arrays = [_LETTERS.take(changes["op"]), changes["commit_ts"]]
        if self._options.all_versions:
            arrays.append(changes["seq"])
        arrays += self._arrays.arrays(_images(changes), self._files.losses)
        if self._options.has_before:
            rows, was_there = self._arrays.befores(changes)
            fields, absent = list(self._schema.field(BEFORE).type), pc.invert(was_there)
            arrays.append(pa.StructArray.from_arrays(rows, fields=fields, mask=absent))
        return arrays


def _images(changes: pa.RecordBatch) -> pa.RecordBatch:
    """The rows after changes, and those that went."""
    is_gone = pc.equal(changes["op"], Op.DELETE)
    row = pc.if_else(is_gone, changes["before"], changes["row"])
    version = pc.if_else(is_gone, changes["before_version"], changes["schema_version"])
    names = ["row", "schema_version", "commit_ts"]
    return pa.RecordBatch.from_arrays([row, version, changes["commit_ts"]], names)


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
        wanted = map(net_changes, unpacked(batches, partial(name_in, tables)))
        yield from write_changes(wanted, tables, tracker, target, attempt_name(), options)

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
