"""Stages what the tables hold: Python workers decode rows and write files, the driver tidies up."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from msgspec import structs
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from binlogd.host.disk import sync_directory
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column, spark_type
from binlogd.snapshot.formats.create_table import create_database, create_table
from binlogd.snapshot.formats.file_kinds import FileKind
from binlogd.snapshot.formats.texts import checksum_text
from binlogd.snapshot.log import state
from binlogd.snapshot.log.packets import unpacked
from binlogd.snapshot.log.scan import ddl_of
from binlogd.snapshot.spec import ColumnEntry, FileEntry, LeftOut, TableEntry
from binlogd.snapshot.tables.catalog import Catalog, TablePlan, name_in
from binlogd.snapshot.writing import carried, writer
from binlogd.snapshot.writing.files import (
    RESULTS,
    FileTarget,
    Written,
    results,
    synced,
    told,
)
from binlogd.tidb.model import Column
from binlogd.tidb.schema import SchemaTracker

SCHEMA_FILE = "_schema.json"
CARRY_TASKS_MAX = 256
"""Tasks that files of a base are spread over; many small files share one."""


def write(packets: DataFrame, known: Catalog, target: FileTarget) -> list[Written]:
    """Writes the rows of all tables as files below the staging directory, synced and hashed.

    `packets` as `scan.spread` gives them.
    """
    tables, tracker = dict(known.tables), known.tracker
    carried_on = [table_id for table_id, plan in tables.items() if plan.since_ts]

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = attempt_name(context.partitionId()) if context else "0"
        winners = state.winners(unpacked(batches, partial(name_in, tables)), carried_on)
        with target.of_task() as here:
            yield from writer.write(winners, tables, tracker, here, part)

    return told(packets.mapInArrow(write_part, ddl_of(RESULTS)).collect())


def attempt_name(number: int) -> str:
    """The part that a task writes, `marks.part_of`, and which attempt of it this is. No other one
    of the application has the same: that of a stage that is done again counts from 0 anew, and may
    write while an executor that was taken for lost does."""
    context = TaskContext.get()
    return f"{number:05d}.{context.taskAttemptId() if context else 0}"


def carry(spark: SparkSession, known: Catalog, target: FileTarget) -> list[Written]:
    """Takes over what the base holds and nobody changed; `write` has put down what was."""
    tables, todo = dict(known.tables), carried.tasks(dict(known.tables))
    if not todo:
        return []

    def take_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                task = todo[number]
                part = f"base-{attempt_name(number)}"
                done = carried.take_over(task, tables[task.table_id], target, part)
                yield results(done)

    count = len(todo)
    parts = min(count, CARRY_TASKS_MAX)
    return told(spark.range(0, count, 1, parts).mapInArrow(take_over, ddl_of(RESULTS)).collect())


def keep_schema(known: Catalog, target: FileTarget) -> FileEntry:
    """Puts the schema at the moment beside the tables, for who builds on this snapshot."""
    path = Path(target.staging, SCHEMA_FILE)
    path.write_bytes(known.tracker)
    entry = FileEntry(SCHEMA_FILE, 0, *synced(path))
    target.sent(SCHEMA_FILE)
    return entry


def create_databases(known: Catalog) -> dict[str, str]:
    """CREATE DATABASE of each schema that has a table in the snapshot."""
    wanted = {plan.database for plan in known.tables.values()}
    databases = SchemaTracker.from_snapshot(known.tracker).databases()
    return {each.name: create_database(each) for each in databases if each.name in wanted}


def entries(
    known: Catalog, written: Sequence[Written], target: FileTarget, *, has_empty: bool = True
) -> tuple[tuple[TableEntry, ...], list[LeftOut]]:
    """What was staged, table by table; tables with a problem are removed again.

    `has_empty`: a table without rows has a file that says so.
    """
    of_table: dict[int, list[Written]] = {}
    for each in written:
        of_table.setdefault(each.table_id, []).append(each)
    tables, left_out = [], []
    for table_id, plan in sorted(known.tables.items()):
        files = of_table.get(table_id, [])
        if has_empty and not files:
            files = writer.write_empty(plan, target)
        directory = Path(target.staging, writer.directory_name(plan))
        problem = next((each.problem for each in files if each.problem), "")
        if problem:
            shutil.rmtree(directory, ignore_errors=True)
            left_out.append(LeftOut(plan.database, plan.info.name, problem))
            continue
        entries = [entry for each in files for entry in (each.file, each.file.keys) if entry]
        names = {Path(each.name).name for each in entries}
        if files and target.send is None:
            _keep_only(directory, names)
        tables.append(_entry(plan, files, target))
    sync_directory(Path(target.staging))
    return tuple(tables), left_out


def _entry(plan: TablePlan, files: Sequence[Written], target: FileTarget) -> TableEntry:
    losses: dict[str, Counter[str]] = {}
    for each in files:
        for column, lost in each.losses.items():
            losses.setdefault(column, Counter()).update(lost)
    return TableEntry(
        database=plan.database,
        table=plan.info.name,
        table_id=plan.info.id,
        rows=sum(each.file.rows for each in files),
        columns=tuple(
            _column(arrow_column(each, target.types), target.kind) for each in plan.columns
        ),
        left_out_columns=plan.left_out_columns,
        losses={column: dict(lost) for column, lost in losses.items()},
        files=tuple(sorted((each.file for each in files), key=lambda file: file.name)),
        handle=plan.handle.kind.name.lower(),
        handle_columns=plan.handle.column_ids,
        primary_key=tuple(each.name for each in plan.info.primary_key()),
        create_table=create_table(plan.info, shown_columns(plan)),
        checksum=checksum_text(sum(int(each.file.checksum, 16) for each in files)),
    )


def _column(column: ArrowColumn, kind: FileKind) -> ColumnEntry:
    entry = column.entry()
    kept = kind.kept(column.type, entry.mysql_type)
    return structs.replace(
        entry,
        arrow_type=str(kept.type),
        spark_type=spark_type(kept.type),
        encoding=kept.encoding,
    )


def shown_columns(plan: TablePlan) -> list[Column]:
    """Every column that users see, those too that the files lack."""
    ids = {column.id for column in plan.columns}
    return [
        column
        for column in plan.info.columns
        if column.id in ids or column.name in plan.left_out_columns
    ]


def _keep_only(directory: Path, names: set[str]) -> None:
    """Removes what failed attempts left, and syncs the directory."""
    for path in directory.iterdir():
        if path.name not in names:
            path.unlink()
    sync_directory(directory)
