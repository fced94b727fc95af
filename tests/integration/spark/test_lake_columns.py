"""Columns that come, go, widen and change their names: where a format can say that without other
files, no file of the lake is touched; values are right before and after, killed at each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from binlogd.snapshot.formats.columns import arrow_column
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark.lake import content, delta
from binlogd.spark.lake.manifest import LakeTable
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.lake.rows import KEY_COLUMN, KEY_ID
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import FieldType
from tests.support import snapshot_reader
from tests.support.altered import Altered, Held
from tests.support.lakes import Killed, Pipeline
from tests.support.logged import lake_rows
from tests.workload.schema import ColumnDef, integer, real, temporal, varchar

Ddl = Callable[[Altered], None]


def added(name: str, kind: FieldType, **more: Any) -> Ddl:
    return lambda table: table.add(ColumnDef(name, kind), **more)


def two_and_a_name(table: Altered) -> None:
    table.add(ColumnDef("x", real("DOUBLE")))
    table.add(ColumnDef("y", integer()))
    table.rename("u")


def swapped(table: Altered) -> None:
    """A column with the name of one that went holds nothing of it."""
    table.drop("late")
    table.add(ColumnDef("late", temporal(Tp.DATETIME)))


BOTH, ICEBERG = frozenset(KINDS), frozenset({"iceberg"})
STEPS: list[tuple[str, Ddl, frozenset[str]]] = [
    ("ADD COLUMN", added("note", varchar(9)), BOTH),
    ("ADD COLUMN FIRST, a feature", added("late", temporal(Tp.DATETIME), is_first=True), BOTH),
    ("two ADD COLUMN, RENAME TABLE", two_and_a_name, BOTH),
    ("RENAME COLUMN", lambda table: table.change("v", name="w"), ICEBERG),
    ("DROP COLUMN", lambda table: table.drop("x"), ICEBERG),
    ("a wider type", lambda table: table.change("n", field_type=integer("BIGINT")), ICEBERG),
    ("DROP and ADD COLUMN of one name", swapped, ICEBERG),
    (
        "a default",
        lambda table: table.add(ColumnDef("seven", integer(), default="7")),
        frozenset(),
    ),
]
"""What is altered, and the formats that take it without another file."""


def altered() -> Altered:
    """A batch for each step, with a new row in it, and one that touches rows of each age."""
    table = Altered.of(ColumnDef("n", integer()), ColumnDef("v", varchar(9)), rows=4)
    for number, (_, ddl, _) in enumerate(STEPS, 10):
        ddl(table)
        table.insert(number)
        table.end_batch()
    table.touch(2, 10, 13)
    table.end_batch()
    return table


def files_of(lake: Lake, head: LakeTable) -> set[str]:
    """The data files of a version."""
    if lake.place.kind == "delta":
        return set(DeltaTable(lake.place.table(head.directory), head.version).file_uris())
    found = StaticTable.from_metadata(head.metadata).scan(snapshot_id=head.version)
    return {each.file.file_path for each in found.plan_files()}


def check(lake: Lake, head: LakeTable, held: Held) -> None:
    """A reader of this version finds the columns and rows of its moment."""
    data = lake_rows(lake, head)
    names = [each.name for each in held.columns]
    assert sorted(data.column_names) == sorted([*names, KEY_COLUMN])
    entries = [arrow_column(each, TypeOptions()).entry() for each in held.columns]
    assert snapshot_reader.rows_of(data.select(names), entries) == held.rows


def followed(lake: Lake, directory: Path, kills: Callable[[int], list[int]]) -> list[LakeTable]:
    """The table after each batch, each begun before as often as `kills` says, and killed there."""
    table = altered()
    pipeline, heads, start = Pipeline(table.logged(directory), lake), list[LakeTable](), 0
    ends = [each.commit_ts for each in table.moments]
    for number, held in enumerate(table.moments):
        for kill_at in kills(number):
            later = ends[min(number + kill_at % 2, len(ends) - 1)]
            with pytest.raises(Killed):
                pipeline.run(start, later, kill_at=kill_at)
            assert lake.manifest().read().commit_ts == start
        pipeline.run(start, held.commit_ts)
        start = held.commit_ts
        ((name, head),) = lake.manifest().read().tables.items()
        assert name == held.table
        heads.append(head)
    for head, held in zip(heads, table.moments, strict=True):
        check(lake, head, held)
    return heads


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(place_of(f"{request.param}:{tmp_path / 'lake'}"))


def test_columns_are_altered_without_touching_a_file_where_the_format_can_say_it(
    lake: Lake, tmp_path: Path
) -> None:
    """Each batch dies once: behind the new schema, or behind its rows; with another end there."""
    heads = followed(lake, tmp_path, lambda number: [1 + number % 2] if number else [])
    files = [files_of(lake, head) for head in heads]
    for (what, _, free), before, after in zip(STEPS, files[:-1], files[1:], strict=False):
        if lake.place.kind in free:
            assert before < after, what
            assert len(after - before) == 1, what
        else:
            assert not before & after, what


@pytest.mark.soak
def test_altered_columns_are_whole_however_often_a_batch_dies_and_files_are_put_together(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "TIDY_EVERY", 3)
    monkeypatch.setattr(content, "SMALL_MAX", 2)
    followed(lake, tmp_path, lambda _: [0, 1, 2, 1, 2])


def test_files_of_another_type_than_their_column_are_told(tmp_path: Path) -> None:
    """As of a lake that was begun with other `types`: its values are not turned in silence."""
    lake = Lake(place_of(f"iceberg:{tmp_path / 'lake'}"))
    key = pa.field(KEY_COLUMN, pa.binary(), metadata={"PARQUET:field_id": str(KEY_ID)})
    number, wide, text = (
        pa.schema([pa.field("v", kind, metadata={"PARQUET:field_id": "1"}), key])
        for kind in (pa.int32(), pa.int64(), pa.string())
    )
    tables = lake.content()
    kind = tables.kind
    head = kind.create(LakeTable(1, "table-1", 0), number, "d.t", 5)
    head = tables.append(head, number, pa.table([[7], [b"k"]], number).to_batches(), 5)
    assert kind.evolve(head, number, text, 6) is None
    with pytest.raises(ValueError, match=r"table-1.*\.parquet: v is int32, not string"):
        list(tables.read(head, text))
    grown = kind.evolve(head, number, wide, 6)
    assert grown is not None
    assert [each.schema for each in tables.read(grown, wide)] == [wide]
