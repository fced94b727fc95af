"""Each change is a row of a changelog, once and as it was then: cut anywhere, done again at any
point. One suite for every kind of lake."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from binlogd.errors import ConfigError, Corrupt
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.spark.lake.changelog import HeldChangelog, batch_of, columns_to_bytes, grown, places
from binlogd.spark.lake.manifest import LakeTables, mode_of
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.request import request
from binlogd.tidb.kinds import ActionType
from binlogd.tidb.model import FieldType, job_from_json, table_to_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from tests.integration.spark.test_lake_columns import altered, files_of
from tests.integration.spark.test_lake_partitions import made, written
from tests.integration.spark.test_lake_recordings import recorded
from tests.support.changelogs import OF_TABLES, check_changelog, check_changes, histories
from tests.support.lakes import GATED, Killed, Pipeline, moments
from tests.support.logged import Logged, read
from tests.support.submitted import arguments_of
from tests.workload.generator import Options
from tests.workload.schema import (
    ColumnDef,
    TableDef,
    build_column,
    build_table,
    integer,
    varchar,
)

COLUMNS = pa.schema([("_commit_ts", pa.int64()), ("note", pa.string())])
MARKS = ["_commit_ts", "_seq", "_op", "_binlogd_key", "_query"]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=23, transactions=90, ddl_every=8)
    return Logged.write(tmp_path_factory.mktemp("log"), options)


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(place_of(f"{request.param}:{tmp_path / 'lake'}"), "changelog")


@pytest.mark.parametrize("lake", KINDS[:1], indirect=True)
def test_a_small_file_of_the_lake_that_is_damaged_is_named(lake: Lake) -> None:
    manifest = lake.manifest()
    manifest.turn(LakeTables(7, {}), b"{}", columns_to_bytes({"t": COLUMNS}))
    assert manifest.columns_at(7) == {"t": COLUMNS}
    for look, name in ((manifest.schema_at, "7"), (manifest.columns_at, "7.columns")):
        path = Path(lake.place.shown) / "_schema" / name
        whole = path.read_bytes()
        for damaged in (b"", whole[:-1], b'{"t": "AAAA"', whole.replace(b'"t":"', b'"t":"AAAA')):
            if damaged == whole:
                continue
            path.write_bytes(damaged)
            with pytest.raises(Corrupt, match=f"^{path}: "):
                look(7)


@pytest.mark.parametrize("lake", GATED, indirect=True)
def test_a_batch_that_was_killed_is_done_again_from_any_step_and_in_other_parts(
    logged: Logged, lake: Lake
) -> None:
    pipeline = Pipeline(logged, lake, partitionTransactions="40")
    first, early, second, later = moments(logged, 4)
    pipeline.run(0, first)
    for kill_at, end in ((6, later), (1, early), (4, second)):
        with pytest.raises(Killed):
            pipeline.run(first, end, kill_at)
        assert lake.manifest().read().commit_ts == first
    before = lake.manifest().read()
    pipeline.run(first, second)
    check_changelog(logged, lake, second)
    now = lake.manifest().read()
    files = {each.directory: files_of(lake, each) for each in now.tables.values()}
    assert all(files_of(lake, each) <= files[each.directory] for each in before.tables.values())
    assert pipeline.run(first, second) == 0
    assert lake.manifest().read() == now


@pytest.mark.parametrize("lake", GATED, indirect=True)
def test_a_changelog_may_begin_anywhere(logged: Logged, lake: Lake) -> None:
    begin, end = moments(logged, 2)
    Pipeline(logged, lake, tables="bank.*").run(begin, end, is_first=True)
    check_changelog(logged, lake, end, since=begin, tables="bank.*")


def test_columns_only_come_and_rows_are_the_same_wherever_batches_are_cut(
    lake: Lake, tmp_path: Path
) -> None:
    table = altered()
    logged, start = table.logged(tmp_path), 0
    for held in table.moments:
        Pipeline(logged, lake).run(start, held.commit_ts)
        start = held.commit_ts
    at_once = Lake(place_of(f"{lake.place.kind}:{tmp_path / 'at-once'}"), "changelog")
    Pipeline(logged, at_once).run(0, start)
    (rows,) = histories(lake).values()
    assert [rows] == list(histories(at_once).values())
    check_changes(logged, {"s.u": rows}, {})
    wide = [] if lake.place.kind == "iceberg" else ["n__bigint"]
    columns = ["id", "n", "v", "note", "late", "x", "y", "w", *wide, "seven"]
    assert list(rows[0]) == [*MARKS, *columns]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_a_long_log_is_in_a_changelog_change_by_change(
    seed: int, lake: Lake, tmp_path: Path
) -> None:
    logged = Logged.write(tmp_path, Options(seed=seed, transactions=600, ddl_every=6))
    pipeline, start = Pipeline(logged, lake, partitionTransactions="50"), 0
    for number, end in enumerate(moments(logged, 4)):
        with pytest.raises(Killed):
            pipeline.run(start, end, 2 + 3 * number)
        pipeline.run(start, end)
        check_changelog(logged, lake, end)
        start = end


@pytest.mark.soak
@pytest.mark.parametrize("name", ["ddl", "keys", "types", "mixed", "race", "windows"])
def test_what_a_cluster_wrote_is_in_a_changelog_change_by_change(
    name: str, lake: Lake, tmp_path: Path
) -> None:
    """Types that no column takes, partitions that are exchanged, tables that are made again."""
    logged, start = recorded(name, tmp_path), 0
    more = {"types": "invalid-text=replace"}
    pipeline = Pipeline(logged, lake, **more)
    found = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    for end in (found[len(found) // 3], found[-1]):
        pipeline.run(start, end)
        start = end
    check_changes(logged, histories(lake), more)


@pytest.mark.parametrize("lake", GATED, indirect=True)
def test_a_lake_stays_in_the_mode_that_it_began_with(logged: Logged, lake: Lake) -> None:
    Pipeline(logged, lake, tables="bank.accounts").run(0, moments(logged, 2)[0])
    with pytest.raises(ConfigError, match=r"a lake of the mode changelog: --mode changelog, or"):
        Lake(lake.place).manifest().read()
    words = ["--source", "s", "--into", "delta:x", "--checkpoint", "c", "--mode"]
    assert mode_of(arguments_of(*words, "changelog").mode) == lake.mode
    with pytest.raises(ConfigError, match="--mode append: expected upsert or changelog"):
        mode_of("append")


def columns(**kinds: FieldType) -> list[ArrowColumn]:
    return [
        arrow_column(
            build_column(ColumnDef(name, kind), column_id=number, offset=number), TypeOptions()
        )
        for number, (name, kind) in enumerate(kinds.items(), 1)
    ]


@pytest.mark.parametrize("widens", [False, True])
def test_values_find_the_column_that_holds_them_and_no_two_columns_one(*, widens: bool) -> None:
    begin = grown(pa.schema([]), columns(_op=varchar(9), qty=integer()), widens=widens)
    assert begin.names == ["_op__string", "qty"], "the names of marks are not to be had"
    wide = columns(QTY=integer("BIGINT"), qty__bigint=integer("BIGINT"))
    schema = grown(begin, wide, widens=widens)
    found = ["qty", "qty__bigint"] if widens else ["QTY__bigint_2", "qty__bigint"]
    assert places(schema, wide) == found
    assert schema.field("qty").type == (pa.int64() if widens else pa.int32())
    narrow = columns(qty=integer("SMALLINT"))
    assert grown(schema, narrow, widens=widens) == schema
    assert places(schema, narrow) == ["qty"]
    text = columns(qty=varchar(9))
    assert places(grown(schema, text, widens=widens), text) == ["qty__string"]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_tables_that_exchange_partitions_stay_what_they_are(seed: int, tmp_path: Path) -> None:
    """Their ids go to and fro; who has which name is told by `raw`."""
    rng = Random(seed)
    logged = written(made(rng, is_list=False, steps=30), tmp_path)
    lake = Lake(place_of(f"delta:{tmp_path / 'lake'}"), "changelog")
    rows = read(logged.options()).to_pylist()
    ends = sorted({row["commit_ts"] for row in rows})
    pipeline, start = Pipeline(logged, lake, partitionTransactions="20"), 0
    for end in (*ends[9:-9:9], ends[-1]):
        pipeline.run(start, end)
        start = end
    wanted: dict[str, list[tuple[int, int]]] = {"s.parts": [], "s.plain": []}
    for row in rows:
        if row["op"] != "ddl":
            wanted[f"{row['database']}.{row['table']}"].append((row["commit_ts"], row["seq"]))
    assert wanted == {
        name: [(row["_commit_ts"], row["_seq"] // 2) for row in held if row["_op"] not in OF_TABLES]
        for name, held in histories(lake).items()
    }


def test_no_history_takes_the_name_of_another(logged: Logged) -> None:
    """Two tables have one name, one after the other, within a batch; both end."""
    steps = [
        (ActionType.CREATE_TABLE, 5, "b"),
        (ActionType.DROP_TABLE, 5, "b"),
        (ActionType.CREATE_TABLE, 6, "c"),
        (ActionType.RENAME_TABLE, 6, "b"),
        (ActionType.DROP_TABLE, 6, "b"),
    ]
    jobs = [
        job_from_json(
            json.dumps(
                {
                    "id": at,
                    "type": int(kind),
                    "schema_id": 2,
                    "schema_name": "s",
                    "table_id": table_id,
                    "state": 6,
                    "binlog": {
                        "SchemaVersion": at,
                        "TableInfo": json.loads(
                            table_to_json(build_table(TableDef("s", name, (), ()), table_id))
                        ),
                    },
                }
            ).encode()
        )
        for at, (kind, table_id, name) in enumerate(steps, 10)
    ]
    held = HeldChangelog(SchemaTracker().snapshot(), LakeTables(1, {}, mode="changelog"), {})
    asked = request(logged.options(form="changelog"))
    for ends in (4, 5):
        ddl = [DdlBinlog(Tso(job.id), job.id, 5, "") for job in jobs[:ends]]
        found = batch_of(jobs, ddl, held, asked, 99).names
        assert found == {"table-5": "s.b@5", "table-6": "s.b"}
