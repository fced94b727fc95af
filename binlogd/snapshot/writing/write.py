"""Stages what the tables hold: Python workers decode rows and write files, the driver tidies up.

The rows of a base that nobody changed since are taken over (the anti-join) a file of the base at a
time, in Arrow: they go through no shuffle and no row decoder. A file that has no changed row, of a
table that is what it was, is linked into the new snapshot.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from binlogd.errors import Corrupt, CorruptRow, UnreadableRow
from binlogd.host.disk import sync_directory
from binlogd.snapshot.bases.dump import DumpFile
from binlogd.snapshot.bases.read_back import values_of
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column, spark_type
from binlogd.snapshot.formats.create_table import create_database, create_table
from binlogd.snapshot.formats.file_kinds import FileKind
from binlogd.snapshot.formats.texts import checksum_text
from binlogd.snapshot.log.packets import unpacked, winners_of
from binlogd.snapshot.log.scan import ddl_of, per_task
from binlogd.snapshot.spec import ColumnEntry, FileEntry, LeftOut, TableEntry
from binlogd.snapshot.tables.built_on import BaseReuse
from binlogd.snapshot.tables.catalog import Catalog, TablePlan, name_in
from binlogd.snapshot.writing import writer
from binlogd.snapshot.writing.adapt import Chunk, dump_chunks, keys_in, parquet_chunks
from binlogd.snapshot.writing.changed import LooseRows, changed_keys, is_kept
from binlogd.snapshot.writing.files import (
    RESULTS,
    FileTarget,
    TableFiles,
    Written,
    keys_name,
    parse_results,
    results,
    synced,
)
from binlogd.snapshot.writing.writer import arrow_columns, directory_name, table_files
from binlogd.tidb.rewrite import Unconvertible
from binlogd.tidb.schema import SchemaTracker


class CarryTask(NamedTuple):
    """Files of one table of the base: one, or all where rows are found by their values."""

    table_id: int
    files: tuple[FileEntry, ...] = ()
    dump_files: tuple[DumpFile, ...] = ()


def carry_tasks(plans: dict[int, TablePlan]) -> list[CarryTask]:
    """What is to be taken over of these tables."""
    found: list[CarryTask] = []
    for table_id, plan in plans.items():
        if plan.carry is None:
            continue
        files = tuple(file for file in plan.carry.files if file.rows)
        dump_files = plan.carry.dumped.files if plan.carry.dumped is not None else ()
        if plan.carry.is_loose:
            found.append(CarryTask(table_id, files, dump_files))
        else:
            found += [CarryTask(table_id, files=(each,)) for each in files]
            found += [CarryTask(table_id, dump_files=(each,)) for each in dump_files]
    return found


def take_over_table(
    task: CarryTask, plan: TablePlan, target: FileTarget, part: str
) -> list[Written]:
    """Writes what is left of some files. Raises UnreadableRow, ConfigError, Corrupt for a base that
    is damaged."""
    assert plan.carry is not None, "only tables that have a base are taken over"
    done = target.finished(task.table_id, part)
    if done is not None:
        return done
    try:
        columns = arrow_columns(plan, target.types)
        done = _TakeOver(task, plan, plan.carry, target, part, columns).run()
        if not any(each.problem for each in done):
            target.finish(task.table_id, part, done)
        return done
    except Unconvertible as error:
        return [Written(task.table_id, problem=str(error))]
    except CorruptRow as error:
        raise UnreadableRow(plan.label, 0, str(error)) from error
    except (OSError, pa.ArrowException) as error:
        files: tuple[FileEntry | DumpFile, ...] = (*task.files, *task.dump_files)
        names = ", ".join(each.name for each in files)
        raise Corrupt(
            f"{plan.carry.directory}: {names}: the base cannot be read: {error};"
            " export with --base none, or name another one"
        ) from error


@dataclass(slots=True)
class _TakeOver:
    task: CarryTask
    plan: TablePlan
    carry: BaseReuse
    target: FileTarget
    part: str
    columns: list[ArrowColumn]
    count: int = 0
    done: list[Written] = field(default_factory=list)

    def run(self) -> list[Written]:
        if self.carry.is_loose:
            return self._loose()
        for file in self.task.files:
            self._keyed(file)
        for dumped in self.task.dump_files:
            self._dumped(dumped)
        return self.done

    # --- rows with keys ----------------------------------------------------------------------

    def _keyed(self, file: FileEntry) -> None:
        kept = [
            is_kept(keys, changed_keys(self.target.keys, self.task.table_id))
            for keys in keys_in(self.plan, file)
        ]
        rows = sum(mask.true_count for mask in kept)
        is_same = self.carry.is_same and self.carry.moves is None
        is_linkable = is_same and self.target.kind.is_base
        if rows == file.rows and is_linkable and self._link(file):
            return
        if rows:
            self._keep(file, kept)

    def _dumped(self, file: DumpFile) -> None:
        files = self._files()
        for chunk in dump_chunks(self.plan, self.columns, file, files.losses):
            assert chunk.keys is not None, "its handle is in columns"
            mask = is_kept(chunk.keys, changed_keys(self.target.keys, self.task.table_id))
            _add(files, chunk, pc.and_(mask, self._living(chunk.rows)))
        self.done += files.close()

    def _living(self, rows: pa.RecordBatch) -> pa.Array:
        """Which rows lie in no partition that went meanwhile."""
        moves, table_id = self.carry.moves, self.plan.info.id
        if moves is None:
            return pa.array(np.ones(rows.num_rows, dtype=bool))
        followed, version = moves.followed(), self.carry.at_version
        ids = followed.deciding(table_id, version)
        columns = [
            values_of(each.column, pa.chunked_array([array]))
            for each, array in zip(self.columns, rows.columns, strict=True)
            if each.column.id in ids
        ]
        names = [each.column.id for each in self.columns if each.column.id in ids]
        homes = (
            followed.home_of(table_id, version, dict(zip(names, row, strict=True)))
            for row in zip(*columns, strict=True)
        )
        stay = [home is not None and home.table_id == table_id for home in homes]
        return pa.array(stay, pa.bool_())

    def _link(self, file: FileEntry) -> bool:
        """The file as it is, under a name of this task; False where links do not reach."""
        name = f"{directory_name(self.plan)}/part-{self._next_part()}-000.zstd.parquet"
        target = Path(self.target.staging, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(Path(self.carry.directory, file.name), target)
            if file.keys is not None:
                keys_path = Path(self.carry.directory, file.keys.name)
                os.link(keys_path, Path(self.target.staging, keys_name(name)))
        except OSError:
            return False
        keys = structs.replace(file.keys, name=keys_name(name)) if file.keys is not None else None
        linked = structs.replace(file, name=name, keys=keys)
        self.done.append(Written(self.task.table_id, linked))
        return True

    # --- rows without --------------------------------------------------------------------------

    def _loose(self) -> list[Written]:
        """All files of the table: those that tell keys first, then the others by values."""
        loose = LooseRows(self.target.keys, self.task.table_id)
        for file in self.task.files:
            if file.keys is not None:
                self._keep(file, [loose.keep_keys(each) for each in keys_in(self.plan, file)])
        files = self._files(has_keys=False)
        of = self.plan, self.columns
        keyless = (each for each in self.task.files if each.keys is None)
        for chunk in itertools.chain(
            *(parquet_chunks(*of, each, files.losses, has_keys=False) for each in keyless),
            *(dump_chunks(*of, each, files.losses) for each in self.task.dump_files),
        ):
            living = chunk._replace(rows=chunk.rows.filter(self._living(chunk.rows)))
            _add(files, living, loose.keep_rows(living.rows))
        self.done += files.close()
        missing = loose.missing()
        if missing:
            problem = (
                f"the base lacks {missing} rows that were changed behind it: it is not of the"
                " moment that it says, or not of this cluster"
            )
            return [Written(self.task.table_id, problem=problem)]
        return self.done

    def _keep(self, file: FileEntry, kept: list[pa.Array]) -> None:
        files = self._files()
        has_keys = file.keys is not None and self.target.kind.is_base
        of = self.plan, self.columns, file, files.losses
        for chunk in parquet_chunks(*of, has_keys=has_keys, kept=kept):
            _add(files, chunk, self._living(chunk.rows))
        self.done += files.close()

    def _files(self, *, has_keys: bool = True) -> TableFiles:
        part = self._next_part()
        return table_files(self.plan, self.columns, self.target, part, has_keys=has_keys)

    def _next_part(self) -> str:
        self.count += 1
        return f"{self.part}-{self.count}"


def _add(files: TableFiles, chunk: Chunk, mask: pa.Array) -> None:
    keys = chunk.keys if files.key_type is not None else None
    kept = keys.filter(mask) if keys is not None else None
    files.add(chunk.rows.filter(mask), kept, chunk.size_bytes)


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
        winners = winners_of(unpacked(batches, partial(name_in, tables)), carried_on)
        with target.of_task() as here:
            yield from writer.write(winners, tables, tracker, here, attempt_name())

    return parse_results(packets.mapInArrow(write_part, ddl_of(RESULTS)).collect())


def attempt_name(number: int | None = None) -> str:
    """The part that a task writes, `marks.part_of`, by its number or that of its partition, and
    which attempt of it this is. No other one of the application has the same: that of a stage that
    is done again counts from 0 anew, and may write while an executor that was taken for lost does.
    """
    context = TaskContext.get()
    part, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    return f"{part if number is None else number:05d}.{attempt}"


def carry(spark: SparkSession, known: Catalog, target: FileTarget) -> list[Written]:
    """Takes over what the base holds and nobody changed; `write` has put down what was."""
    tables, todo = dict(known.tables), carry_tasks(dict(known.tables))
    if not todo:
        return []

    def take_over(number: int) -> Iterator[pa.RecordBatch]:
        task, part = todo[number], f"base-{attempt_name(number)}"
        yield results(take_over_table(task, tables[task.table_id], target, part))

    return parse_results(
        per_task(spark, len(todo), take_over, RESULTS, parts_max=CARRY_TASKS_MAX).collect()
    )


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
            files = writer.TableWriter(plan, SchemaTracker(), target, "empty").close_empty()
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
        create_table=create_table(plan.info, plan.shown_columns()),
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


def _keep_only(directory: Path, names: set[str]) -> None:
    """Removes what failed attempts left, and syncs the directory."""
    for path in directory.iterdir():
        if path.name not in names:
            path.unlink()
    sync_directory(directory)
