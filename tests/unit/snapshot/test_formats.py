"""Every format holds every value at the limits of its type, and gives it back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.snapshot.formats import file_kinds, read_files
from binlogd.snapshot.formats.file_kinds import FileKind
from binlogd.snapshot.formats.texts import checksum
from tests.support.limits import COLUMNS, Held, entry, rows
from tests.support.snapshots import manifest

FORMATS = ["parquet", "orc", "csv", "json"]


def written(path: Path, kind: FileKind, table: pa.Table, mysql_types: list[str]) -> None:
    file = file_kinds.create(path, kind, table.schema, mysql_types, "t")
    file.write(table.slice(0, 2))
    file.write(table.slice(2))
    file.close()


def read_back(path: Path, kind: FileKind, columns: list[Any]) -> pa.Table:
    described = entry(columns, kind)
    batches = list(read_files.batches(path, manifest(1, described, kind=kind), described))
    return pa.Table.from_batches(
        [
            pa.RecordBatch.from_arrays(
                [
                    read_files.decoded(array, each)
                    for array, each in zip(batch.columns, described.columns, strict=True)
                ],
                names=batch.schema.names,
            )
            for batch in batches
        ]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_values_at_the_limits_of_their_types_come_back(name: str, tmp_path: Path) -> None:
    kind, table = FileKind(name), rows(COLUMNS)
    path = tmp_path / f"t.{kind.suffix}"
    written(path, kind, table, [each.mysql for each in COLUMNS])
    found = read_back(path, kind, COLUMNS)
    for column in COLUMNS:
        held = found.column(column.name)
        if held.type != column.values.type and held.type == pa.string():  # dates in ORC
            held = held.cast(column.values.type)
        assert held.to_pylist() == column.values.to_pylist(), column.name


@pytest.mark.parametrize("name", FORMATS)
def test_rows_sum_up_to_the_same_in_every_format_and_order(name: str, tmp_path: Path) -> None:
    kind, table = FileKind(name), rows(COLUMNS)
    path = tmp_path / "t"
    backwards = table.take(list(reversed(range(table.num_rows))))
    written(path, kind, backwards, [each.mysql for each in COLUMNS])
    described = entry(COLUMNS, kind)
    found = read_files.file_rows(
        tmp_path, described.files[0], manifest(1, described, kind=kind), described
    )
    expected = sum(checksum(batch.columns) for batch in table.to_batches())
    assert found.rows == table.num_rows
    assert found.total % (1 << 64) == expected % (1 << 64) != 0


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.binary()), max_size=8))
def test_text_and_bytes_of_any_kind_come_back(
    values: list[tuple[str | None, bytes | None]],
) -> None:
    texts = pa.array([text for text, _ in values], pa.string())
    blobs = pa.array([blob for _, blob in values], pa.binary())
    table = pa.table({'a "b", c': texts, "b": blobs})
    columns = [
        Held('a "b", c', "text", texts),
        Held("b", "blob", blobs),
    ]
    for name in FORMATS:
        with TemporaryDirectory() as directory:
            path = Path(directory, "t")
            written(path, FileKind(name), table, ["text", "blob"])
            if not values:
                continue
            assert read_back(path, FileKind(name), columns).to_pylist() == table.to_pylist(), name


def test_a_changed_value_changes_the_sum_and_equal_rows_do_not_cancel_out() -> None:
    def of(*values: str | None) -> int:
        return checksum([pa.array(values, pa.string())])

    sums = Counter([of("a"), of("b"), of("a", "a"), of(None), of("\\N"), of("a", "b"), of("")])
    assert set(sums.values()) == {1}
    assert of("a", "b") == of("b", "a")
    assert checksum([pa.array(["a\tb"]), pa.array(["c"])]) != checksum(
        [pa.array(["a"]), pa.array(["b\tc"])]
    )
