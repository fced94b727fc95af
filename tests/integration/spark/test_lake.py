"""The lake that batches make is what the model says: cut anywhere, done again at any point.

One suite for every kind of lake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from binlogd.archive import store
from binlogd.archive.store import ArchiveUnavailable
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.errors import ConfigError
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.snapshot.writing import table_arrays
from binlogd.spark.lake import content, delta, iceberg, merging, preparing
from binlogd.spark.lake.manifest import Claim, LakeTables, PipelineStopped
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.plan import LakeState, planned, schema_before
from binlogd.spark.request import request
from binlogd.tidb.kinds import ActionType, SchemaState
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import MAX_TS, Tso
from tests.support.lakes import GATED, Killed, Pipeline, check_counted, moments
from tests.support.logged import Logged, changes, check_lake
from tests.support.s3 import S3, s3_server
from tests.workload.generator import Options


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=23, transactions=130, ddl_every=8)
    return Logged.write(tmp_path_factory.mktemp("log"), options)


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(place_of(f"{request.param}:{tmp_path / 'a lake=ü'}"))


@pytest.mark.parametrize("lake", GATED, indirect=True)
def test_a_batch_may_end_while_a_column_is_on_its_way_out(tmp_path: Path, lake: Lake) -> None:
    """DROP COLUMN hides it some time before it is gone: nobody sees it again in between."""
    logged = Logged.write(tmp_path, Options(seed=5, transactions=60, ddl_every=6))
    jobs = {job.id: job for job in jobs_from_json(logged.history.read_bytes())}
    found = changes(logged.options())
    every = sorted({each["commit_ts"] for each in found})
    (announced,) = (
        every.index(each["commit_ts"])
        for each in found
        if each.get("schema_state") == SchemaState.DELETE_ONLY
        and jobs[each["job_id"]].type == ActionType.DROP_COLUMN
    )
    pipeline, start = Pipeline(logged, lake), 0
    for end in (*every[announced : announced + 12 : 4], every[-1]):
        pipeline.run(start, end)
        check_lake(logged, lake, end)
        start = end


@pytest.mark.soak
def test_after_each_batch_the_lake_is_what_the_upstream_was(logged: Logged, lake: Lake) -> None:
    start = 0
    pipeline = Pipeline(logged, lake)
    for end in moments(logged, 3):
        pipeline.run(start, end)
        check_lake(logged, lake, end)
        start = end


@pytest.mark.parametrize("lake", GATED, indirect=True)
def test_a_batch_that_was_killed_is_done_again_from_any_step_and_in_other_parts(
    logged: Logged, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PART_BYTES", 200)
    pipeline = Pipeline(logged, lake)
    first, early, second, later = moments(logged, 4)
    pipeline.run(0, first)
    for kill_at, end, pipeline.cores in ((3, later, 3), (1, early, 1), (2, second, 3)):
        with pytest.raises(Killed):
            pipeline.run(first, end, kill_at)
        assert lake.manifest().read().commit_ts == first
    check_lake(logged, lake, first)
    pipeline.run(first, second)
    check_lake(logged, lake, second)
    versions = lake.manifest().read()
    assert pipeline.run(first, second) == 0
    assert lake.manifest().read() == versions


def test_a_pipeline_whose_checkpoint_was_lost_goes_on_where_the_lake_is(
    logged: Logged, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PIECE_BYTES", 2_000)  # as if a batch were larger than memory
    monkeypatch.setattr(table_arrays, "CHUNK_ROWS", 3)
    monkeypatch.setattr(delta, "TIDY_EVERY", 3)
    monkeypatch.setattr(content, "SMALL_MAX", 1)
    monkeypatch.setattr(iceberg, "TIDY_EVERY", 1)
    monkeypatch.setattr(iceberg, "SNAPSHOT_AGE", timedelta(0))
    monkeypatch.setattr(merging, "PART_BYTES", 10_000)  # as if one worker could not write a table
    monkeypatch.setattr(merging, "SHARE_BYTES", 500)
    monkeypatch.setattr(preparing, "SHARE_BYTES", 500)
    pipeline = Pipeline(logged, lake)
    pipeline.cores = 3
    first, second, third, end = moments(logged, 4)
    pipeline.run(0, second)
    pipeline.run(0, first)
    pipeline.run(first, third)
    pipeline.run(third, end)
    check_lake(logged, lake, end)
    check_counted(logged, lake)
    assert pipeline.forms.keys() == {"alone", "part", "share"}
    if lake.place.kind == "iceberg":
        for table in lake.manifest().read().tables.values():
            files = Path(lake.place.table(table.directory)).rglob("*.parquet")
            found = StaticTable.from_metadata(table.metadata)
            assert len({iceberg._end_of(each) for each in found.snapshots()}) <= 2
            kept = [found.scan(snapshot_id=each.snapshot_id) for each in found.snapshots()]
            named = {each.file.file_path for scan in kept for each in scan.plan_files()}
            assert {f"file://{path}" for path in files} == named


def test_two_pipelines_do_not_keep_one_lake(lake: Lake) -> None:
    manifest, mine, other = lake.manifest(), Claim("a", "here"), Claim("b", "there")
    manifest.claim(mine)
    with pytest.raises(PipelineStopped, match="whose checkpoint is here"):
        manifest.claim(other)
    manifest.claim(other, takes_over=True)
    with pytest.raises(PipelineStopped, match="whose checkpoint is there"):
        manifest.claim(mine)


def test_a_lake_of_one_kind_is_not_taken_for_one_of_the_other(tmp_path: Path) -> None:
    of_delta, of_iceberg = (Lake(place_of(f"{kind}:{tmp_path}")) for kind in KINDS)
    of_delta.manifest().turn(LakeTables(1, {}, "delta"), b"{}")
    with pytest.raises(ConfigError, match="is a lake of delta: --into delta:"):
        of_iceberg.manifest().read()


def test_a_table_that_comes_back_with_its_rows_is_told(logged: Logged) -> None:
    jobs = jobs_from_json(logged.history.read_bytes())
    made = next(each for each in jobs if each.type == ActionType.CREATE_TABLE)
    before = schema_before([each for each in jobs if each.id < made.id], Tso(0), MAX_TS, ())
    back = replace(made, id=1 << 40, type=ActionType.RECOVER_TABLE)
    asked = request(logged.options(form="changes"))
    for job, came_back in ((made, False), (back, True)):
        ddl = [DdlBinlog(Tso(made.finished_ts), job.id, int(SchemaState.PUBLIC), job.query)]
        words = ([*jobs, back], ddl, LakeState(before), asked)
        if not came_back:
            assert made.table_id in planned(*words, start=Tso(1), end=MAX_TS).after
            continue
        with pytest.raises(PipelineStopped, match="it came back"):
            planned(*words, start=Tso(1), end=MAX_TS)


def test_a_lake_that_lacks_what_was_before_a_batch_is_told(logged: Logged, lake: Lake) -> None:
    first, second, end = moments(logged, 3)
    Pipeline(logged, lake).run(0, first)
    for is_first in (True, False):
        with pytest.raises(PipelineStopped, match="what lies between would be lost"):
            Pipeline(logged, lake).run(second, end, is_first=is_first)


def test_tables_that_are_older_than_what_is_read_are_told(logged: Logged, lake: Lake) -> None:
    middle, end = moments(logged, 2)
    with pytest.raises(PipelineStopped, match="begin at the beginning of the log"):
        Pipeline(logged, lake).run(middle, end, is_first=True)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.mark.parametrize("kind", GATED)
def test_a_lake_in_an_object_store_is_fed_from_an_archive_in_one(
    kind: str, s3: S3, tmp_path: Path
) -> None:
    logged = Logged.write(tmp_path, Options(seed=29, transactions=60, ddl_every=10))
    url = s3.url("binlogs")
    data_dir, history = str(logged.data_dir), str(logged.history)
    archive(Task(data_dir=data_dir, url=url, history=history, with_open=True))
    lake = Lake(place_of(f"{kind}:{s3.url('lake')}"))
    pipeline = Pipeline(logged, lake, path=url, schemaHistory="", tables="bank.*")
    first, end = moments(logged, 2)
    pipeline.run(0, first)
    with pytest.raises(Killed):
        pipeline.run(first, end, 2)
    pipeline.run(first, end)
    check_lake(logged, lake, end, only="bank.*")
    shown = repr(lake.manifest().store.url) + lake.place.shown
    assert "testing" not in shown


def test_an_object_store_that_refuses_is_told_with_what_to_look_at(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.001)
    url = s3.url("lake").replace("bucket-", "nowhere-")
    with pytest.raises(ArchiveUnavailable, match=r"lake s3://nowhere-.*look at the store") as told:
        Lake(place_of(f"delta:{url}")).manifest().claim(Claim("a", "its checkpoint"))
    assert "testing" not in str(told.value)


def test_a_table_that_is_left_out_stays_out(logged: Logged, lake: Lake) -> None:
    (end,) = moments(logged, 1)
    Pipeline(logged, lake, **{"except": "bank.*, types.*, scratch*"}).run(0, end)
    assert {name.partition(".")[0] for name in lake.manifest().read().tables} == {"shop"}
