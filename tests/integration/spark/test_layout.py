"""Rows of a lake that lie apart by columns of the user's, and in an order of theirs: every version
has the rows of its moment, each file those of one partition, and readers pass the others over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from binlogd.errors import ConfigError
from binlogd.snapshot.formats.columns import arrow_column
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark.lake import content, files
from binlogd.spark.lake.kinds import LakeFailed
from binlogd.spark.lake.layout import TEXT_BYTES_MAX, LakeLayout, layouts_of
from binlogd.spark.lake.manifest import LakeMode, LakeTable, PipelineStopped
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, Kind, place_of
from binlogd.spark.lake.rows import KEY_COLUMN, KeyChanges
from binlogd.tidb.kinds import Tp
from tests.integration.spark.test_lake_files import schema_of
from tests.support import snapshot_reader
from tests.support.altered import Altered, Held
from tests.support.lakes import GATED, Killed, Pipeline
from tests.support.logged import lake_rows
from tests.support.submitted import arguments_of
from tests.workload.schema import ColumnDef, integer, temporal, varchar


def lake_of(kind: Kind, root: Path, *words: str, mode: LakeMode = "upsert") -> Lake:
    """A lake with the layouts that these options ask for."""
    arguments = arguments_of(*(f"--{name}=x" for name in ("source", "into", "checkpoint")), *words)
    layouts = layouts_of(arguments.partition_by, arguments.cluster_by)
    return Lake(place_of(f"{kind}:{root}"), mode, "", layouts)


def table() -> Altered:
    columns = ("n", integer()), ("v", varchar(9)), ("late", temporal(Tp.DATETIME))
    return Altered.of(*(ColumnDef(*each) for each in columns), rows=6)


def data_files(lake: Lake, head: LakeTable) -> list[pa.Table]:
    """What each file of a version holds."""
    if lake.place.kind == "delta":
        found = pa.table(
            DeltaTable(lake.place.table(head.directory), head.version).get_add_actions()
        )
        names = [unquote(each) for each in found["path"].to_pylist()]
        paths = [f"{lake.place.table(head.directory)}/{each}" for each in names]
    else:
        scan = StaticTable.from_metadata(head.metadata).scan(snapshot_id=head.version)
        paths = [each.file.file_path.removeprefix("file://") for each in scan.plan_files()]
    return [pq.ParquetFile(each).read() for each in paths]


def check(lake: Lake, held: Held) -> LakeTable:
    """The lake has the rows of this moment."""
    ((name, head),) = lake.manifest().read().tables.items()
    assert name == held.table
    rows = lake_rows(lake, head)
    entries = [arrow_column(each, TypeOptions()).entry() for each in held.columns]
    assert sorted(rows.column_names) == sorted([*(each.name for each in held.columns), KEY_COLUMN])
    names = [each.name for each in held.columns]
    assert snapshot_reader.rows_of(rows.select(names), entries) == held.rows
    assert head.rows == rows.num_rows
    return head


def run(lake: Lake, made: Altered, directory: Path, *, kills: bool = True) -> Iterator[LakeTable]:
    """The table behind each batch, which is killed in all of its steps before."""
    pipeline, start = Pipeline(made.logged(directory), lake), lake.manifest().read().commit_ts
    for held in made.moments:
        if held.commit_ts <= start:
            continue
        for kill_at in range(3) if kills else ():
            with pytest.raises(Killed):
                pipeline.run(start, held.commit_ts, kill_at=kill_at)
        pipeline.run(start, held.commit_ts)
        start = held.commit_ts
        yield check(lake, held)


def test_rows_lie_apart_by_a_column_and_go_where_an_update_takes_them(
    kind: Kind, tmp_path: Path
) -> None:
    made = table()
    made.touch(2, 3)
    made.insert(30, 31)
    made.end_batch()
    lake = lake_of(kind, tmp_path / "lake", "--partition-by=s.t:V", "--cluster-by=s.t:n")
    for head in run(lake, made, tmp_path):
        held = data_files(lake, head)
        assert all(len(set(each["v"].to_pylist())) == 1 for each in held)
        assert len(held) == head.rows  # each row has a `v` of its own
    if kind == "delta":
        delta = DeltaTable(lake.place.table(head.directory))
        assert delta.metadata().partition_columns == ["v"]
        assert delta.to_pyarrow_table(filters=[("v", "=", "v52")])["id"].to_pylist() == [2]
        assert len(delta.file_uris(file_pruning_predicate="v = 'v52'")) == 1
    else:
        scan = StaticTable.from_metadata(head.metadata).scan("v = 'v52'", snapshot_id=head.version)
        assert scan.to_arrow()["id"].to_pylist() == [2]
        assert [each.file.partition[0] for each in scan.plan_files()] == ["v52"]


def test_iceberg_takes_days_of_times_and_numbers_and_nothing_of_them_that_is_null(
    tmp_path: Path,
) -> None:
    schema = schema_of(n=pa.int64(), at=pa.timestamp("us"), day=pa.date32())
    columns = [[1, 2, 3, None], [0, 86_399_999_999, 86_400_000_000, None], [0, 30, 31, None]]
    arrays = [pa.array(each, of) for each, of in zip(columns, schema.types, strict=False)]
    rows = pa.table([*arrays, pa.array([b"a", b"b", b"c", b"d"])], schema)
    by = layouts_of(["s.t:day(at),month(day)"], [])["s.t"].of(schema, "iceberg")
    tables = Lake(place_of(f"iceberg:{tmp_path}")).content()
    made = LakeTable(1, "table-1", 0, layout=by)
    head = tables.kind.create(made, schema, "s.t", 5)
    head = tables.append(head, schema, rows.to_batches(), 5)
    found = StaticTable.from_metadata(head.metadata)
    held = [each.file for each in found.scan().plan_files()]
    parts = {(each.partition[0], each.partition[1]): each.record_count for each in held}
    assert parts == {(0, 0): 2, (1, 1): 1, (None, None): 1}
    assert [each.name for each in found.spec().fields] == ["at_day", "day_month"]
    assert found.scan("at >= '1970-01-02T00:00:00'").to_arrow()["n"].to_pylist() == [3]


@pytest.mark.parametrize("kind", GATED)
def test_ddl_of_a_column_that_rows_lie_apart_by_makes_the_table_anew(
    kind: Kind, tmp_path: Path
) -> None:
    """Renamed it stays a partition column; of another type, too; when it goes, so do partitions."""
    made = table()
    alters: list[Callable[[], None]] = [
        lambda: made.change("n", name="m"),
        lambda: made.change("m", field_type=integer("BIGINT")),
        lambda: made.drop("m"),
        lambda: made.add(ColumnDef("n", integer())),
    ]
    for number, alter in enumerate(alters, 20):
        alter()
        made.insert(number)
        made.touch(number % 4 + 1)
        made.end_batch()
    root = tmp_path / "lake"
    before = Altered(
        made.info,
        moments=made.moments[:1],
        **{name: getattr(made, name) for name in ("_jobs", "_payloads", "_rows", "_ts")},
    )
    asked = lake_of(kind, root, "--partition-by=s.t:n")
    (head,) = run(asked, before, tmp_path / "first")
    assert head.layout.partition_by[0].column == "n"
    found, many = [], []
    for each in run(lake_of(kind, root), made, tmp_path / "all"):
        found.append(each)
        many.append(len(data_files(asked, each)) == each.rows)
    assert many == [True, True, False, False]
    by = [[str(each) for each in head.layout.partition_by] for head in found]
    assert by == [["m"], ["m"], [], []]
    assert len({each.directory for each in (head, *found)}) == 4
    assert sorted(each.name for each in root.glob("table-*")) == sorted(
        {found[-1].directory, found[-2].directory}
    )
    made.rename("u")
    made.insert(40)
    made.end_batch()
    by_another = run(lake_of(kind, root, "--partition-by=s.u:q"), made, tmp_path / "q", kills=False)
    with pytest.raises(PipelineStopped, match=r"s\.u: has no column q, by which it is to be laid"):
        list(by_another)


def test_a_table_that_is_there_is_made_anew_with_a_layout_that_is_asked_for(
    kind: Kind, tmp_path: Path
) -> None:
    made = table()
    (first,) = run(lake_of(kind, tmp_path / "lake"), made, tmp_path / "a")
    made.touch(1)
    made.end_batch()
    laid = lake_of(kind, tmp_path / "lake", "--partition-by=s.t:n", "--cluster-by=s.t:v")
    (second,) = run(laid, made, tmp_path / "b")
    assert len(data_files(laid, first)) == 1
    assert len(data_files(laid, second)) == second.rows == 6
    made.insert(70)
    made.end_batch()
    sorted_only = lake_of(kind, tmp_path / "lake", "--partition-by=s.t:n", "--cluster-by=s.t:late")
    (third,) = run(sorted_only, made, tmp_path / "c")
    assert third.directory == second.directory  # an order is that of new files
    assert str(third.layout) == "partitioned by n and clustered by late"


@pytest.mark.parametrize("end", [1, 2])
@pytest.mark.parametrize(("left", "asked"), [("a", "b"), ("a", ""), ("", "a")])
def test_what_a_killed_batch_left_of_another_layout_is_nothing_to_the_next_one(
    kind: Kind, left: str, asked: str, end: int, tmp_path: Path
) -> None:
    schema = schema_of(a=pa.int64(), b=pa.string())

    def made(by: str) -> LakeTable:
        layouts = layouts_of([f"s.t:{by}"] if by else [], [])
        layout = layouts.get("s.t", LakeLayout()).of(schema, kind)
        return LakeTable(1, "table-1", 0, layout=layout)

    lake = Lake(place_of(f"{kind}:{tmp_path}"))
    tables = lake.content()
    head = tables.kind.create(made(left), schema, "s.t", 1)
    tables.append(head, schema, pa.table([[1], ["x"], [b"1"]], schema).to_batches(), 1)
    tables = lake.content()
    head = tables.kind.create(made(asked), schema, "s.t", end)
    rows = pa.table([[3], ["z"], [b"3"]], schema)
    head = tables.append(head, schema, rows.to_batches(), end)
    assert lake_rows(lake, head).to_pylist() == rows.to_pylist()


def test_a_delta_table_that_lies_otherwise_than_its_page_says_gets_no_rows(tmp_path: Path) -> None:
    """Its log would say NULL of them."""
    schema = schema_of(a=pa.int64())
    by = layouts_of(["s.t:a"], [])["s.t"].of(schema, "delta")
    tables = Lake(place_of(f"delta:{tmp_path}")).content()
    head = tables.kind.create(LakeTable(1, "table-1", 0, layout=by), schema, "s.t", 1)
    rows = pa.table([[3], [b"3"]], schema).to_batches()
    with pytest.raises(LakeFailed, match="table-1: is not laid out as"):
        tables.append(msgspec.structs.replace(head, layout=LakeLayout()), schema, rows, 2)


@pytest.mark.parametrize("kind", GATED)
def test_a_file_is_in_the_order_of_its_cluster_columns(kind: Kind, tmp_path: Path) -> None:
    """Also where it was put together of others, and where rows went out of it."""
    schema = schema_of(a=pa.int64(), b=pa.string())
    layout = layouts_of([], ["s.t:b,a"])["s.t"].of(schema, kind)

    def batch(of: range) -> KeyChanges:
        keys = [b"%06d" % each for each in of]
        texts = [f"b{each * 7919 % 5}" for each in of]
        columns = [[each * 104_729 % 1000 for each in of], texts, keys]
        arrays = [pa.array(each, type_) for each, type_ in zip(columns, schema.types, strict=True)]
        return KeyChanges(pa.table(arrays, schema), pa.array([], pa.binary()))

    lake = Lake(place_of(f"{kind}:{tmp_path}"))
    tables = lake.content()
    head = tables.kind.create(LakeTable(1, "table-1", 0, layout=layout), schema, "s.t", 1)
    for end in range(content.SMALL_MAX + 4):
        changes = batch(range(end * 500, end * 500 + 500))
        head = tables.merge(head, schema, [changes], end + 2)
    before = data_files(lake, head)
    head = tables.merge(head, schema, [batch(range(900, 1100))], 100)
    after = data_files(lake, head)
    assert 1 < len(after) <= len(before) < content.SMALL_MAX
    assert all(sum(map(len, of)) == (content.SMALL_MAX + 4) * 500 for of in (before, after))
    for each in (*before, *after):
        order = list(zip(each["b"].to_pylist(), each["a"].to_pylist(), strict=True))
        assert order == sorted(order)


@pytest.mark.parametrize("kind", GATED)
def test_small_files_are_put_together_within_their_partition(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many partitions are no reason to write them anew; and few files are open at a time."""
    monkeypatch.setattr(files, "OPEN_MAX", 3)
    schema = schema_of(part=pa.int64())
    layout = layouts_of(["s.t:part"], [])["s.t"].of(schema, kind)
    lake = Lake(place_of(f"{kind}:{tmp_path}"))

    def put(head: LakeTable, parts: list[int], end: int) -> LakeTable:
        keys = [b"%d %d" % (end, each) for each in parts]
        rows = pa.table([pa.array(parts), pa.array(keys, pa.binary())], schema)
        tables = lake.content()
        change = KeyChanges(rows, pa.array([], pa.binary()))
        return tables.merge(head, schema, [change], end)

    tables = lake.content()
    head = tables.kind.create(LakeTable(1, "table-1", 0, layout=layout), schema, "s.t", 1)
    head = put(head, list(range(40)), 2)
    assert head.files == 40
    for end in range(3, 3 + content.SMALL_MAX):
        head = put(head, [7], end)
    assert head.files == 40 + content.SMALL_MAX
    head = put(head, [7], 100)
    assert head.files == 40  # all of the one are one, with the new row
    assert head.rows == 40 + content.SMALL_MAX + 1


def test_a_changelog_lies_apart_too_and_keeps_how_it_does(kind: Kind, tmp_path: Path) -> None:
    made = table()
    made.touch(1, 2)
    made.add(ColumnDef("more", integer()))
    made.end_batch()
    words = "--partition-by=s.t:_op", "--cluster-by=s.t:id"
    lake = lake_of(kind, tmp_path / "lake", *words, mode="changelog")
    pipeline, last = Pipeline(made.logged(tmp_path), lake), made.moments[-1].commit_ts
    for kill_at in range(3):
        with pytest.raises(Killed):
            pipeline.run(0, last, kill_at=kill_at)
    pipeline.run(0, last)
    (head,) = lake.manifest().read().tables.values()
    held = data_files(lake, head)
    assert sorted({*each["_op"].to_pylist()} for each in held) == [{"ddl"}, {"insert"}, {"update"}]
    made.insert(50)
    made.end_batch()
    other = lake_of(kind, tmp_path / "lake", "--partition-by=s.t:n", mode="changelog")
    with pytest.raises(PipelineStopped, match="partitioned by n, and is partitioned by _op and"):
        Pipeline(made.logged(tmp_path / "b"), other).run(last, made.moments[-1].commit_ts)


def test_what_cannot_be_a_partition_is_refused_with_what_can(tmp_path: Path) -> None:
    schema = schema_of(price=pa.decimal128(9, 2), at=pa.timestamp("us"), name=pa.string())

    def refused(words: str, kind: Kind) -> str:
        with pytest.raises(ValueError, match=r"lie apart by|has no column") as error:
            layouts_of([f"s.t:{words}"], [])["s.t"].of(schema, kind)
        return str(error.value)

    assert "only integers, texts and DATE can be taken" in refused("price", "iceberg")
    assert "times by day(at) in Iceberg" in refused("at", "iceberg")
    assert "units are those of times" in refused("day(name)", "iceberg")
    assert "Take a DATE column, or --cluster-by" in refused("day(at)", "delta")
    assert "has no column x" in refused("x", "delta")
    long = pa.record_batch([["x" * (TEXT_BYTES_MAX + 1)]], pa.schema([schema.field("name")]))
    by_name = layouts_of(["s.t:name"], [])["s.t"].of(schema, "iceberg")
    with pytest.raises(ValueError, match="a row has 257 bytes in name"):
        list(by_name.apart(long))
    lake = Lake(place_of(f"delta:{tmp_path}"))
    tables = lake.content()
    made = LakeTable(1, "table-1", 0, layout=by_name)
    head = tables.kind.create(made, schema, "s.t", 1)
    rows = pa.table([[None], [None], [""], [b"k"]], schema)
    with pytest.raises(Exception, match="a row has '' in name, which Delta reads as NULL"):
        tables.append(head, schema, rows.to_batches(), 2)


@pytest.mark.parametrize(
    ("partition_by", "cluster_by", "says"),
    [
        (["orders:x"], [], "expected DATABASE.TABLE:COLUMN"),
        (["s.t:"], [], "expected DATABASE.TABLE:COLUMN"),
        (["s.t:a", "s.t:b"], [], "twice the same table"),
        ([], ["s.t:day(a)"], "rows are sorted by columns as they are"),
    ],
)
def test_options_that_say_no_layout_are_refused(
    partition_by: list[str], cluster_by: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        layouts_of(partition_by, cluster_by)


def test_no_layout_is_no_work() -> None:
    rows = pa.record_batch([[1]], ["a"])
    (((where, same),), whole) = list(LakeLayout().apart(rows)), pa.Table.from_batches([rows])
    assert (where, same) == (b"", rows)
    assert LakeLayout().in_order(whole) is whole


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found
