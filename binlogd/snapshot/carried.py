"""Takes the rows of a base over that nobody changed since: the anti-join, and what DDL did to them.

Runs in Spark's Python workers, a file of the base at a time, in Arrow from end to end: rows of a
base go through no shuffle and no row decoder. A file that has no changed row, of a table that is
what it was, is linked into the new snapshot.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from binlogd.errors import Corrupt, CorruptRow, RowMismatch
from binlogd.snapshot.built_on import Source
from binlogd.snapshot.catalog import TablePlan
from binlogd.snapshot.changed import changed_keys, is_kept, keys_of
from binlogd.snapshot.columns import ArrowColumn
from binlogd.snapshot.files import Target, Written, keys_name
from binlogd.snapshot.read_back import values_of
from binlogd.snapshot.rewrite import Unconvertible, converter
from binlogd.snapshot.spec import FileEntry
from binlogd.snapshot.writer import arrow_columns, directory_name, table_files
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.row import Value


class CarryTask(NamedTuple):
    """One file of a table of the base."""

    table_id: int
    file: FileEntry


def tasks(plans: dict[int, TablePlan]) -> list[CarryTask]:
    """Every file of the base that holds rows of these tables."""
    return [
        CarryTask(table_id, file)
        for table_id, plan in plans.items()
        if plan.carry is not None
        for file in plan.carry.files
        if file.rows
    ]


def take_over(task: CarryTask, plan: TablePlan, target: Target, part: str) -> list[Written]:
    """Writes what is left of one file. Raises RowMismatch, Corrupt for a base that is damaged."""
    done = target.finished(task.table_id, part)
    if done is not None:
        return done
    try:
        done = _TakeOver(task, plan, target, part).run()
        target.finish(task.table_id, part, done)
        return done
    except Unconvertible as error:
        return [Written(task.table_id, problem=str(error))]
    except CorruptRow as error:
        raise RowMismatch(f"{plan.database}.{plan.info.name}", 0, str(error)) from error
    except (OSError, pa.ArrowException) as error:
        assert plan.carry is not None
        raise Corrupt(
            f"{plan.carry.directory}/{task.file.name}: the base cannot be read: {error};"
            " export with --base none, or name another one"
        ) from error


@dataclass(slots=True)
class _TakeOver:
    task: CarryTask
    plan: TablePlan
    target: Target
    part: str
    columns: list[ArrowColumn] = field(init=False)
    directory: Path = field(init=False)

    def __post_init__(self) -> None:
        assert self.plan.carry is not None
        self.columns = arrow_columns(self.plan, self.target.types)
        self.directory = Path(self.plan.carry.directory)

    def run(self) -> list[Written]:
        kept = [
            is_kept(keys, changed_keys(self.target.keys, self.task.table_id))
            for keys in self._keys()
        ]
        rows = sum(mask.true_count for mask in kept)
        assert self.plan.carry is not None
        if rows == self.task.file.rows and self.plan.carry.is_same and self.target.kind.is_base:
            linked = self._linked()
            if linked is not None:
                return [linked]
        return self._rewritten(kept) if rows else []

    def _keys(self) -> Iterator[pa.Array]:
        """The keys of each row group."""
        told = self.task.file.keys
        if told is not None:
            file = pq.ParquetFile(self.directory / told.name)
            for group in range(file.num_row_groups):
                yield file.read_row_group(group).column(0).combine_chunks()
            return
        name = self._handle_name()
        file = pq.ParquetFile(self.directory / self.task.file.name)
        for group in range(file.num_row_groups):
            yield keys_of(file.read_row_group(group, [name]).column(0).combine_chunks())

    def _handle_name(self) -> str:
        assert self.plan.carry is not None
        handle = self.plan.handle.column_ids[0]
        pairs = zip(self.plan.columns, self.plan.carry.sources, strict=True)
        return next(source.name for column, source in pairs if column.id == handle and source)

    def _linked(self) -> Written | None:
        """The file as it is, under the name of this task; None where links do not reach."""
        file = self.task.file
        name = f"{directory_name(self.plan)}/part-{self.part}-000.zstd.parquet"
        Path(self.target.staging, name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.directory / file.name, Path(self.target.staging, name))
            if file.keys is not None:
                os.link(self.directory / file.keys.name, Path(self.target.staging, keys_name(name)))
        except OSError:
            return None
        return Written(
            self.task.table_id,
            name,
            file.rows,
            file.size_bytes,
            file.sha256,
            file.checksum,
            keys_size_bytes=file.keys.size_bytes if file.keys else 0,
            keys_sha256=file.keys.sha256 if file.keys else "",
        )

    def _rewritten(self, kept: list[pa.Array]) -> list[Written]:
        files = table_files(self.plan, self.columns, self.target, self.part)
        assert self.plan.carry is not None
        names = [source.name for source in self.plan.carry.sources if source]
        file = pq.ParquetFile(self.directory / self.task.file.name)
        groups = self._keys() if files.key_type is not None else None
        adapters = [
            _adapter(column, source)
            for column, source in zip(self.columns, self.plan.carry.sources, strict=True)
        ]
        for group, mask in enumerate(kept):
            table = file.read_row_group(group, names).filter(mask)
            keys = next(groups).filter(mask) if groups is not None else None
            arrays = [adapt(table, files.losses) for adapt in adapters]
            batch = pa.RecordBatch.from_arrays(arrays, schema=files.schema)
            files.add(batch, keys, table.nbytes)
        return files.close()


_Adapt = Callable[[pa.Table, dict[str, Counter[str]]], pa.Array]


def _adapter(column: ArrowColumn, source: Source | None) -> _Adapt:
    """What makes a column of the snapshot out of the rows of a base."""
    if source is None:
        value = missing_value(column.column)
        return lambda table, losses: _repeated(column, value, table.num_rows, losses)
    if not source.conversions:
        return lambda table, _: _cast(table.column(source.name).combine_chunks(), column.type)
    converts = [converter(step.old, step.new) for step in source.conversions]
    old = source.conversions[0].old

    def convert(table: pa.Table, losses: dict[str, Counter[str]]) -> pa.Array:
        values = values_of(old, table.column(source.name))
        for each in converts:
            values = [each(value) for value in values]
        return column.build(values, losses.setdefault(column.column.name, Counter()))

    return convert


def _repeated(
    column: ArrowColumn, value: Value, rows: int, losses: dict[str, Counter[str]]
) -> pa.Array:
    one: Counter[str] = Counter()
    array = column.build([value], one)
    lost = losses.setdefault(column.column.name, Counter())
    lost.update({reason: count * rows for reason, count in one.items()})
    return array.take(pa.array(np.zeros(rows, np.int64)))


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int64())
    return array.cast(type_)
