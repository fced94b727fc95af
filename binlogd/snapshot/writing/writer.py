"""Decodes the rows that a table holds, into Arrow and from there into its files.

Runs in Spark's Python workers, one call for each partition, and knows nothing of Spark. Rows come
sorted by table, so one file is open at a time; a table has at least as many files as partitions
have rows of it. Rows are decoded here, into Arrow, and go from there to the file: sending them back
to the JVM only to have them written would cost as much as the decoding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from binlogd.errors import Corrupt
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column, mysql_type
from binlogd.snapshot.log.rowkey import HandleKind, Op
from binlogd.snapshot.spec import MANIFEST_NAME, TypeOptions
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.changed import ChangedKeys, GoneRows, keys_of_changes, type_of_keys
from binlogd.snapshot.writing.files import FileTarget, TableFiles, Written, results
from binlogd.snapshot.writing.table_arrays import TableArrays, of_tables
from binlogd.tidb.rewrite import Unconvertible
from binlogd.tidb.schema import SchemaTracker


def write(
    batches: Iterable[pa.RecordBatch],
    tables: dict[int, TablePlan],
    tracker: bytes,
    target: FileTarget,
    part: str,
) -> Iterator[pa.RecordBatch]:
    """Writes the rows of one partition; `part` makes its file names its own. Yields `RESULTS`.

    Raises UnreadableRow, UnknownTable.
    """
    schemas = SchemaTracker.from_snapshot(tracker)
    done: list[Written] = []
    for plan, changes in of_tables(batches, tables):
        writer = TableWriter(plan, schemas, target, part)
        for each in changes:
            writer.add(each)
        done += writer.close()
    yield results(done)


def directory_name(plan: TablePlan) -> str:
    """The directory of a table inside a snapshot; the manifest tells which is whose.

    None begins with `_`: that is how files of our own do, and what readers pass over.
    """
    parts = (_quoted(plan.database), _quoted(plan.info.name))
    name = re.sub("^_", "%5F", ".".join(parts))
    is_free = len(name.encode()) <= _NAME_BYTES_MAX and name not in _TAKEN
    return name if is_free else f"table-{plan.info.id}"


_NAME_BYTES_MAX = 200
_TAKEN = (MANIFEST_NAME, "catalog.db")  # the other one is that of an Iceberg lake
_ODD = re.compile(r"[^\w-]")


def _quoted(name: str) -> str:
    return _ODD.sub(lambda odd: "".join(f"%{byte:02X}" for byte in odd[0].encode()), name)


class TableWriter:
    """The rows of one table in one partition, on their way into files.

    Of a table that has rows in a base, the keys that changed are put down as well. What an export
    that was killed had finished is taken as it is; its rows are only counted.
    """

    def __init__(
        self, plan: TablePlan, schemas: SchemaTracker, target: FileTarget, part: str
    ) -> None:
        self.table_id = plan.info.id
        self._plan = plan
        self._columns = arrow_columns(plan, target.types)
        self._arrays = TableArrays(plan, schemas, self._columns)
        self._schema = schema_of(self._columns)
        self._files = table_files(plan, self._columns, target, part)
        self._key_type = self._files.key_type
        self._done = target.finished(self.table_id, part)
        self._changed: ChangedKeys | None = None
        self._gone: GoneRows | None = None
        if plan.carry is not None and self._done is None:
            if plan.carry.is_loose:
                self._gone = GoneRows(target.keys, plan.info.id, part)
            else:
                self._changed = ChangedKeys(target.keys, plan, part)
        self._target, self._part, self._passed = target, part, 0
        self._problem = ""

    def add(self, winners: pa.RecordBatch) -> None:
        """Takes rows, no more than are decoded together. Raises UnreadableRow."""
        if self._problem:
            return
        if self._changed is not None:
            self._changed.add(winners.column("key"))
        is_put = winners.column("op").to_numpy() != Op.DELETE
        if self._done is not None:
            self._passed += int(np.count_nonzero(is_put))
            return
        try:
            if self._gone is not None:  # the rows that keys held before they changed
                arrays, was_there = self._arrays.befores(winners)
                rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
                self._gone.add(winners["key"], rows, was_there=was_there)
            self._take(winners.filter(pa.array(is_put)))
        except Unconvertible as error:
            self._problem = str(error)

    def _take(self, puts: pa.RecordBatch) -> None:
        arrays = self._arrays.arrays(puts, self._files.losses)
        type_ = self._key_type
        keys = keys_of_changes(puts.column("key"), type_) if type_ is not None else None
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._files.add(batch, keys, puts.column("row").nbytes)

    def close_empty(self) -> list[Written]:
        """A file without rows."""
        arrays = [each.build([], Counter()) for each in self._columns]
        keys = None if self._key_type is None else pa.array([], self._key_type)
        self._files.add(pa.RecordBatch.from_arrays(arrays, schema=self._schema), keys, 0)
        return self.close()

    def close(self) -> list[Written]:
        """Finishes the last file. What was written, or the problem."""
        if self._done is not None:
            if (rows := sum(each.file.rows for each in self._done)) != self._passed:
                raise Corrupt(
                    f"{self._plan.label}: the export that is resumed had {rows} rows where the log"
                    f" has {self._passed}; export without --resume"
                )
            return self._done
        done = self._files.close()
        for each in (self._changed, self._gone):
            if each is not None:
                each.close()
        if self._problem:
            return [Written(self.table_id, problem=self._problem)]
        self._target.finish(self.table_id, self._part, done)
        return done


def table_files(
    plan: TablePlan,
    columns: Sequence[ArrowColumn],
    target: FileTarget,
    part: str,
    *,
    has_keys: bool = True,
) -> TableFiles:
    """What rows of a table are written to; without `has_keys` nobody knows their row handles."""
    return TableFiles(
        plan.info.id,
        directory_name(plan),
        schema_of(columns),
        target,
        part,
        key_type(plan, columns) if has_keys and target.kind.is_base else None,
        mysql_types=tuple(mysql_type(each.column) for each in columns),
        table=plan.info.name,
    )


def arrow_columns(plan: TablePlan, types: TypeOptions) -> list[ArrowColumn]:
    """The way out of each column of a table."""
    return [arrow_column(each, types) for each in plan.columns]


def schema_of(columns: Iterable[ArrowColumn]) -> pa.Schema:
    """Parquet keeps TiDB's column id as the field id, which stays when a column is renamed."""
    return pa.schema(
        pa.field(each.column.name, each.type, metadata={"PARQUET:field_id": str(each.column.id)})
        for each in columns
    )


def key_type(plan: TablePlan, columns: Iterable[ArrowColumn]) -> pa.DataType | None:
    """How the row handles of a table are kept; None where a column of it is the handle."""
    is_a_column = plan.handle.kind is HandleKind.INTEGER and any(
        each.column.id == plan.handle.column_ids[0] and each.type != pa.bool_() for each in columns
    )
    return None if is_a_column else type_of_keys(plan)
