"""A pipeline whose log begins late: a snapshot or a dump is its first page."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from binlogd.archive.store import ArchiveStore
from binlogd.errors import Refused
from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.snapshot.bases.dump import is_dump
from binlogd.snapshot.log.packets import Spread
from binlogd.spark.base_loader import LoadedBase, load_base
from binlogd.spark.lake.manifest import PipelineStopped
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from binlogd.spark.lake.seed import finish_seed, seed_table, todo
from binlogd.spark.pipeline import LakeTarget, PipelineOptions, seed, start
from binlogd.spark.request import request
from binlogd.spark.submit import Arguments, claimed, run
from binlogd.tso import Tso
from tests.support import dumps
from tests.support.data_directory import collect_garbage
from tests.support.lakes import GATED, Pipeline, moments
from tests.support.logged import Logged, check_lake
from tests.support.plain_export import PlainExport
from tests.support.s3 import s3_server
from tests.support.spark import WarmSpark
from tests.support.submitted import arguments_of
from tests.workload.generator import Options

PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=37, transactions=120, ddl_every=12)
    return Logged.write(tmp_path_factory.mktemp("log"), options, segment_bytes=10_000)


def last(logged: Logged) -> int:
    return logged.workload.model.last_commit_ts


@pytest.fixture(scope="module")
def base_ts(logged: Logged) -> int:
    return (moments(logged, 2)[0] + last(logged)) // 2


@pytest.fixture(scope="module")
def snapshot(logged: Logged, base_ts: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is exported, before the log behind it goes."""
    work, history = tmp_path_factory.mktemp("export"), logged.history.read_bytes()
    export = PlainExport(work, logged.data_dir, history, Spread(3, 1), 1 << 20)
    path = export.snapshot(Tso(base_ts))
    assert collect_garbage(logged.data_dir, Tso(base_ts)) > 0
    return path


def begun(base: Path, pipeline: Pipeline, scratch: Path) -> LoadedBase:
    asked = pipeline.asked
    return load_base(
        str(base), "UTC" if is_dump(base) else "", asked, scratch, asked.wants, needs_keys=True
    )


@pytest.mark.parametrize("kind", GATED)
def test_a_lake_begins_with_a_snapshot_and_goes_on_from_there(
    kind: str, logged: Logged, base_ts: int, snapshot: Path, tmp_path: Path
) -> None:
    lake = Lake(place_of(f"{kind}:{tmp_path / 'lake'}"))
    pipeline = Pipeline(logged, lake)
    end = last(logged)
    with pytest.raises(PipelineStopped, match="with a snapshot or a dump"):
        pipeline.run(0, end)
    begin = begun(snapshot, pipeline, tmp_path)
    first, *others = todo(lake, begin)
    seed_table(lake, begin, first)
    assert todo(lake, begin) == others  # killed here, and begun anew
    assert lake.manifest().read().commit_ts == 0
    for table_id in others:
        seed_table(lake, begin, table_id)
    finish_seed(lake, begin)
    check_lake(logged, lake, base_ts)
    pipeline.run(base_ts, end, is_first=True)
    check_lake(logged, lake, end)


def test_a_lake_begins_with_a_dump_but_for_tables_whose_rows_nothing_tells_apart(
    logged: Logged, base_ts: int, snapshot: Path, tmp_path: Path
) -> None:
    del snapshot  # the log behind it is gone
    dump, contents = tmp_path / "dump", logged.workload.model.contents(Tso(base_ts))
    dumps.write_metadata(dump, Tso(base_ts))
    for name, table in logged.workload.model.tables(Tso(base_ts)).items():
        columns = [column for column in table.columns if column.is_public]
        dumps.write_table(dump, name, columns, contents[name].rows, kind="sql")
    lake = Lake(place_of(f"delta:{tmp_path / 'lake'}"))
    with pytest.raises(Refused, match=r"no column tells its rows apart.*--except"):
        begun(dump, Pipeline(logged, lake), tmp_path)
    pipeline = Pipeline(logged, lake, tables="bank.accounts")
    begin = begun(dump, pipeline, tmp_path)
    for table_id in todo(lake, begin):
        seed_table(lake, begin, table_id)
    finish_seed(lake, begin)
    end = last(logged)
    pipeline.run(base_ts, end, is_first=True)
    check_lake(logged, lake, end, only="bank.accounts")


@pytest.mark.soak
def test_a_pipeline_begins_with_its_base_and_a_second_one_is_refused(
    logged: Logged, snapshot: Path, spark: WarmSpark, tmp_path: Path
) -> None:
    setup = Setup(config.parse("", "nothing"))
    lake = tmp_path / "lake"

    def words(checkpoint: str, *more: str) -> Arguments:
        common = f"--source {logged.data_dir} --into delta:{lake} --base {snapshot}".split()
        history = f"schemaHistory={logged.history}"
        at = str(tmp_path / checkpoint)
        return arguments_of(*common, "--option", history, "--checkpoint", at, *more)

    def go(arguments: Arguments) -> None:
        run(spark.spark, arguments, claimed(arguments, setup))

    go(words("one"))
    check_lake(logged, Lake(place_of(f"delta:{lake}")), last(logged))
    with pytest.raises(PipelineStopped, match=f"whose checkpoint is {tmp_path}/one"):
        go(words("two"))
    go(words("two", "--take-over"))
    with pytest.raises(PipelineStopped, match=f"whose checkpoint is {tmp_path}/two"):
        go(words("one"))
    check_lake(logged, Lake(place_of(f"delta:{lake}")), last(logged))


def test_a_pipeline_that_follows_ends_when_it_is_asked_to(
    logged: Logged, snapshot: Path, spark: WarmSpark, tmp_path: Path
) -> None:
    """In short; with processes it is in tests/e2e/test_pipeline.py."""
    lake, end = Lake(place_of(f"delta:{tmp_path / 'lake'}")), last(logged)
    words = f"--source {logged.data_dir} --into delta:{tmp_path / 'lake'} --base {snapshot}"
    more = ["--option", f"schemaHistory={logged.history}", "--checkpoint", str(tmp_path / "at")]
    following = arguments_of(*words.split(), *more, "--follow", "--interval", "0.1")
    claimed(following, Setup(config.parse("", "nothing")))
    has_ended = threading.Event()

    def stop_at_the_end() -> None:
        until = time.monotonic() + PATIENCE_S
        while lake.manifest().read().commit_ts < end and time.monotonic() < until:
            if has_ended.wait(0.05):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_at_the_end)
    stopping.start()
    try:
        run(spark.spark, following, lake)
    finally:
        has_ended.set()
        stopping.join()
    check_lake(logged, lake, end)


@pytest.mark.soak
def test_spark_puts_a_snapshot_of_an_object_store_into_a_lake_in_one_and_goes_on(
    logged: Logged, base_ts: int, snapshot: Path, spark: WarmSpark, tmp_path: Path
) -> None:
    with s3_server() as s3:
        exports = s3.url("exports")
        store = ArchiveStore.open(exports)
        for path in snapshot.rglob("*"):
            if path.is_file():
                name = f"snapshot-1/{path.relative_to(snapshot)}"
                store.put_file(name, path, path.stat().st_size)
        store.put("LATEST", b"snapshot-1\n")
        lake = Lake(place_of(f"delta:{s3.url('lake')}"))
        source = logged.options(form="changes", maxTransactionsPerTrigger="40")
        asked = request(source)
        begin = load_base(exports, "", asked, tmp_path, asked.wants, needs_keys=True)
        seed(spark.spark, lake, begin)
        check_lake(logged, lake, base_ts)
        checkpoint = str(tmp_path / "checkpoint")
        options = PipelineOptions({**source, "from": str(base_ts)}, checkpoint, None)
        target = LakeTarget(lake, request(options.source), checkpoint)
        start(spark.spark, options, target).awaitTermination()
        check_lake(logged, lake, last(logged))


def test_a_base_behind_which_the_log_has_a_gap_is_refused(
    logged: Logged, base_ts: int, snapshot: Path, tmp_path: Path
) -> None:
    pipeline = Pipeline(logged, Lake(place_of(f"delta:{tmp_path / 'lake'}")))
    gone = logged.data_dir / "pump" / "shard-0" / "value.gone"
    told = gone.read_text()
    try:
        gone.write_text(f"{base_ts + 1} {told.split()[1]}\n")
        with pytest.raises(Refused, match="the log is complete behind"):
            begun(snapshot, pipeline, tmp_path)
    finally:
        gone.write_text(told)
