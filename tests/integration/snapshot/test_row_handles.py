"""Row handles beside data files: each belongs to the row at its place, in every row group."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from binlogd.errors import Corrupt
from binlogd.snapshot.formats.file_kinds import ROW_GROUP_ROWS
from binlogd.snapshot.log.rowkey import handle_of
from binlogd.snapshot.spec import FileEntry, KeysEntry, TypeOptions
from binlogd.snapshot.tables.built_on import BaseReuse, ColumnSource
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.changed import ChangedKeys
from binlogd.snapshot.writing.files import FileTarget, TableFiles
from binlogd.snapshot.writing.write import CarryTask, take_over_table
from binlogd.spark.base_loader import rows_of
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType, Table
from binlogd.tso import Tso

SCHEMA = pa.schema([("a", pa.int64())])
INFO = Table(7, "loose", (Column(1, "a", 0, FieldType(Tp.LONGLONG)),))


def plan(base: Path, files: tuple[FileEntry, ...]) -> TablePlan:
    carry = BaseReuse(str(base), files, (ColumnSource("a"),), is_same=True, is_loose=False)
    return TablePlan("s", INFO, handle_of(INFO), INFO.columns, (), (), Tso(1), carry)


def pairs(directory: Path, name: str, keys: str) -> list[tuple[int, int]]:
    held = pq.read_table(directory / name)["a"], pq.read_table(directory / keys)["key"]
    return list(zip(*(column.to_pylist() for column in held), strict=True))


def group_sizes(path: Path) -> list[int]:
    told = pq.ParquetFile(path).metadata
    return [told.row_group(number).num_rows for number in range(told.num_row_groups)]


def test_row_groups_of_handles_are_those_of_the_rows(tmp_path: Path) -> None:
    target = FileTarget(str(tmp_path), TypeOptions(), 5_000_000)
    files = TableFiles(7, "s.loose", SCHEMA, target, "0", key_type=pa.int64())
    for count in (1, ROW_GROUP_ROWS, 5):
        numbers = pa.array(np.arange(count))
        files.add(pa.RecordBatch.from_arrays([numbers], schema=SCHEMA), numbers, 0)
    (written,) = files.close()
    assert written.file.keys is not None
    sizes = group_sizes(tmp_path / written.file.name)
    assert sizes == group_sizes(tmp_path / written.file.keys.name)
    assert sum(sizes) == ROW_GROUP_ROWS + 6


def base_of(directory: Path, rows: list[int], keys: list[int], group: int, of_keys: int) -> Path:
    """Row n has the handle 100 + n; both files in groups of so many."""
    (directory / "s.loose").mkdir(parents=True)
    pq.write_table(pa.table({"a": rows}), directory / "s.loose/f", row_group_size=group)
    held = pa.table({"key": pa.array(keys, pa.int64())})
    pq.write_table(held, directory / "s.loose/_keys-f", row_group_size=of_keys)
    return directory


def entry(rows: int) -> FileEntry:
    return FileEntry("s.loose/f", rows, 0, "", KeysEntry("s.loose/_keys-f", 0, ""))


@pytest.mark.parametrize(("group", "of_keys"), [(3, 10), (10, 3), (4, 3), (3, 4)])
def test_handles_in_other_row_groups_than_their_rows_are_found(
    group: int, of_keys: int, tmp_path: Path
) -> None:
    """As files of older snapshots have them."""
    rows = list(range(10))
    base = base_of(tmp_path / "base", rows, [100 + row for row in rows], group, of_keys)
    of_table = plan(base, (entry(10),))
    told = [
        (row, int.from_bytes(key, "big"))
        for batch, keys in rows_of(of_table, TypeOptions())
        if keys is not None
        for row, key in zip(batch.column(0).to_pylist(), keys.to_pylist(), strict=True)
    ]
    assert told == [(row, 100 + row) for row in rows]

    staging = tmp_path / "new"
    keys_of = ChangedKeys(str(tmp_path / "keys"), of_table, "0")
    keys_of.add(pa.array([(104).to_bytes(8, "big"), (109).to_bytes(8, "big")]))
    keys_of.close()
    target = FileTarget(str(staging), TypeOptions(), 5_000_000, keys=str(tmp_path / "keys"))
    (written,) = take_over_table(CarryTask(7, (entry(10),)), of_table, target, "base-0")
    assert written.file.keys is not None
    expected = [(row, 100 + row) for row in rows if row not in (4, 9)]
    assert pairs(staging, written.file.name, written.file.keys.name) == expected


@pytest.mark.parametrize("count", [9, 11])
def test_a_base_with_another_number_of_handles_than_rows_is_named(
    count: int, tmp_path: Path
) -> None:
    base = base_of(tmp_path / "base", list(range(10)), list(range(count)), 4, 4)
    target = FileTarget(
        str(tmp_path / "new"), TypeOptions(), 5_000_000, keys=str(tmp_path / "keys")
    )
    with pytest.raises(Corrupt, match=r"s\.loose/_keys-f: .*handles"):
        take_over_table(CarryTask(7, (entry(10),)), plan(base, (entry(10),)), target, "base-0")


def test_what_was_written_last_time_can_be_built_on_again(tmp_path: Path) -> None:
    """Rows that went make row groups of any size; the third generation still knows its rows."""
    base, count = tmp_path / "0", ROW_GROUP_ROWS + 10
    target = FileTarget(str(base), TypeOptions(), 5_000_000)
    files = TableFiles(7, "s.loose", SCHEMA, target, "0", key_type=pa.int64())
    numbers = pa.array(np.arange(count))
    files.add(pa.RecordBatch.from_arrays([numbers], schema=SCHEMA), numbers, 0)
    done = files.close()
    for generation in (1, 2):
        entries = tuple(each.file for each in done)
        of_table = plan(base, entries)
        keys = tmp_path / f"keys-{generation}"
        gone = ChangedKeys(str(keys), of_table, "0")
        gone.add(pa.array([generation.to_bytes(8, "big")]))
        gone.close()
        base = tmp_path / str(generation)
        target = FileTarget(str(base), TypeOptions(), 5_000_000, keys=str(keys))
        done = take_over_table(CarryTask(7, entries), of_table, target, "base-0")
    (written,) = done
    assert written.file.keys is not None
    expected = [(row, row) for row in range(count) if row not in (1, 2)]
    assert pairs(base, written.file.name, written.file.keys.name) == expected
