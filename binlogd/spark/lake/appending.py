"""A batch into a changelog: a task for each part of the log writes, one for each table commits.

    batch = batch_of(...)                  what DDL did to which tables; by the driver (`changelog`)
    ... write(lake, batch, changes)        new files, and their names; by workers, part by part
    ... commit(lake, batch, heads, files)  a version of a table with these files; by workers
    finish(lake, batch, heads)             one write makes it hold

Nothing that is there is read or written anew. A file is nothing to a table before it is committed,
so a task that is run again writes other ones, and what counts are the names that Spark accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.errors import UnknownTable
from binlogd.snapshot.log.packets import PIECE_BYTES
from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.tables.catalog import DdlBinlog, TablePlan
from binlogd.snapshot.writing.table_arrays import CHUNK_BYTES, CHUNK_ROWS, TableArrays
from binlogd.snapshot.writing.writer import arrow_columns
from binlogd.spark.counts import RowCounts, total
from binlogd.spark.lake.changelog import (
    MARK_NAMES,
    ChangelogBatch,
    DdlMark,
    columns_to_bytes,
    places,
    plan_of,
)
from binlogd.spark.lake.content import failing_as
from binlogd.spark.lake.files import FileWriter, LakeFiles
from binlogd.spark.lake.manifest import LakeTable, LakeTables, PipelineStopped
from binlogd.spark.lake.moving import Lake, show
from binlogd.spark.lake.place import LakeLocation
from binlogd.spark.rows import DELETE, INSERT, UPDATE
from binlogd.spark.steps import steps_behind
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

WRITTEN = pa.schema([("directory", pa.string()), ("name", pa.string())])
"""Files, by the directory of their table and their name in it."""
_OPS = pa.array(
    [{Op.PUT: INSERT, Op.DELETE: DELETE, Op.UPDATE: UPDATE}.get(each) for each in sorted(Op)]
)

Heads = Mapping[str, LakeTable]
"""Versions by directory."""


class Appended(msgspec.Struct, frozen=True):
    """What a batch did to a table."""

    head: LakeTable
    files: int
    rows: int


# --- files, part by part -----------------------------------------------------------------------


def write(
    lake: Lake, batch: ChangelogBatch, after: Tso, steps: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Files of the changes of one part of the log behind a commit_ts, in its order. Yields
    `WRITTEN`. Raises UnreadableRow, UnknownTable, PipelineStopped, OSError."""
    part = _Part(lake.place, batch)
    for each in steps_behind(after, steps):
        part.take(each)
    for directory, names in part.close():
        rows = [[directory] * len(names), names]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, rows, WRITTEN.types)), schema=WRITTEN)


class _Layout(NamedTuple):
    """How rows of a table at a moment become columns of a changelog."""

    plan: TablePlan
    arrays: TableArrays
    places: Sequence[str]


class _Part:
    """Takes the changes of a part of the log; a `PIECE_BYTES` of them at most is in memory."""

    def __init__(self, place: LakeLocation, batch: ChangelogBatch) -> None:
        self._place, self._batch = place, batch
        self._schemas: SchemaTracker | None = None
        self._directories = dict(batch.directories)
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._layouts: dict[int, _Layout] = {}
        self._writers: dict[str, FileWriter] = {}

    def take(self, step: DdlBinlog | pa.RecordBatch) -> None:
        """Raises UnreadableRow, UnknownTable."""
        if isinstance(step, DdlBinlog):
            self._schemas = self._schemas or self._schema_before(step.commit_ts)
            self._ddl(self._schemas, step)
        else:
            self._schemas = self._schemas or self._schema_before(pc.min(step["commit_ts"]).as_py())
            self._hold(self._schemas, step)

    def close(self) -> Iterator[tuple[str, list[str]]]:
        """The names of all files, by directory."""
        if self._schemas is not None:
            self._flush(self._schemas)
        for directory, writer in self._writers.items():
            yield directory, writer.close()

    def _schema_before(self, commit_ts: int) -> SchemaTracker:
        """The schema that the first change of the part finds, or its DDL."""
        batch = self._batch
        schemas = SchemaTracker.from_snapshot(batch.begins)
        schemas.load(batch.jobs.values())
        for each in batch.ddl:
            if each.commit_ts < commit_ts:
                self._apply(schemas, each)
        return schemas

    def _apply(self, schemas: SchemaTracker, ddl: DdlBinlog) -> DdlMark | None:
        schemas.apply(self._batch.jobs[ddl.job_id], ddl.schema_state)
        mark = self._batch.marks.get((ddl.commit_ts, ddl.job_id))
        if mark is not None:
            self._directories |= mark.directories
        return mark

    def _hold(self, schemas: SchemaTracker, changes: pa.RecordBatch) -> None:
        for table_id in pc.unique(changes["table_id"]).to_pylist():
            held = self._held.setdefault(table_id, [])
            held.append(changes.filter(pc.equal(changes["table_id"], table_id)))
            if _bytes(held) >= CHUNK_BYTES or sum(map(len, held)) >= CHUNK_ROWS:
                self._write(schemas, table_id)
        if sum(map(_bytes, self._held.values())) >= PIECE_BYTES:
            self._flush(schemas)

    def _ddl(self, schemas: SchemaTracker, ddl: DdlBinlog) -> None:
        """What came before it is decoded as it was then; it is a row of its own."""
        self._flush(schemas)
        mark = self._apply(schemas, ddl)
        self._layouts.clear()
        if mark is not None:
            for directory, op in mark.ops.items():
                values = [ddl.commit_ts, 0, op, None, mark.query]
                self._add(directory, [pa.array([each]) for each in values], MARK_NAMES)

    def _flush(self, schemas: SchemaTracker) -> None:
        for table_id in list(self._held):
            self._write(schemas, table_id)

    def _write(self, schemas: SchemaTracker, table_id: int) -> None:
        changes = pa.Table.from_batches(self._held.pop(table_id)).combine_chunks().to_batches()[0]
        newest = pc.max(changes["schema_version"]).as_py()
        layout = self._layout(schemas, table_id, changes["commit_ts"][-1].as_py(), newest)
        if layout is None:
            return
        arrays = layout.arrays.arrays(changes, {})
        nothing = pa.nulls(len(changes), pa.string())
        marks = [changes[name] for name in ("commit_ts", "seq")]
        marks += [_OPS.take(changes["op"]), changes["key"], nothing]
        self._add(self._directories[table_id], [*marks, *arrays], [*MARK_NAMES, *layout.places])

    def _layout(
        self, schemas: SchemaTracker, table_id: int, commit_ts: int, version: int
    ) -> _Layout | None:
        """None for rows that came late to a table that is no more. Raises UnknownTable."""
        table = schemas.table_at(table_id, version)
        if table is None and schemas.is_truncated(table_id):
            return None
        if table is None or table_id not in self._directories:
            raise UnknownTable(table_id, commit_ts, version)
        kept = self._layouts.get(table_id)
        if kept is None or kept.plan.info is not table.info:
            plan = plan_of(table.database, table.info)
            columns = arrow_columns(plan, self._batch.types)
            arrays = TableArrays(plan, schemas, columns)
            schema = self._batch.columns[self._directories[table_id]]
            kept = self._layouts[table_id] = _Layout(plan, arrays, places(schema, columns))
        return kept

    def _add(self, directory: str, arrays: Sequence[pa.Array], names: Sequence[str]) -> None:
        schema, size = self._batch.columns[directory], len(arrays[0])
        found = dict(zip(names, arrays, strict=True))
        whole = [
            found[each.name].cast(each.type) if each.name in found else pa.nulls(size, each.type)
            for each in schema
        ]
        writer = self._writers.get(directory)
        if writer is None:
            files = LakeFiles(self._place, self._batch.table(directory))
            writer = self._writers[directory] = FileWriter(files, schema)
        try:
            writer.add(pa.RecordBatch.from_arrays(whole, schema=schema))
        except ValueError as error:
            raise PipelineStopped(f"{self._batch.names[directory]}: {error}") from error


def _bytes(held: Iterable[pa.RecordBatch]) -> int:
    return sum(each.nbytes for each in held)


# --- versions, table by table ------------------------------------------------------------------


def commit(
    lake: Lake, batch: ChangelogBatch, heads: Heads, files: tuple[str, Sequence[str]]
) -> Appended:
    """A version of a table (its directory) with all of its new files. Raises PipelineStopped."""
    directory, names = files
    kind, head, rows_before = lake.kind(), heads.get(directory), 0
    schema, name, end = batch.columns[directory], batch.names[directory], batch.end
    with failing_as(name):
        if head is None:
            now = kind.create(batch.table(directory), schema, name, end)
        else:
            evolved = kind.evolve(head, batch.held[directory], schema, end)
            assert evolved is not None, "columns only come, or get wider where that is readable"
            now, rows_before = evolved, head.rows or 0
        now = kind.replace(now, schema, [], names, end)
    return Appended(now, len(names), (now.rows or 0) - rows_before)


def finish(
    lake: Lake, batch: ChangelogBatch, last: LakeTables, appended: Sequence[Appended]
) -> LakeTables:
    """Says which versions belong together from now on, and how many rows the batch has put into
    them. A table is there from its first row on."""
    put = {each.head.directory: RowCounts(put=each.rows) for each in appended}
    heads = {each.directory: each for each in last.tables.values()}
    counts = {last.tables[name].directory: each for name, each in last.counted.items()}
    heads |= {each.head.directory: each.head for each in appended}
    tables = {
        name: msgspec.structs.replace(heads[directory], table_id=batch.ids[directory])
        for directory, name in batch.names.items()
        if directory in heads
    }
    now = LakeTables(
        batch.end,
        tables,
        lake.place.kind,
        counted={
            name: total(of[each.directory] for of in (counts, put) if each.directory in of)
            for name, each in tables.items()
        },
        counted_from=last.counts_begin(),
        mode=lake.mode,
    )
    lake.manifest().turn(now, batch.tracker, columns_to_bytes(batch.columns))
    show(lake, now)
    return now
