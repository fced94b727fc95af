"""`binlogd pipeline`: killed and started again, into a lake and into a database; and by words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections import deque
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from pyiceberg.catalog import load_catalog

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.snapshot.publishing.lake.iceberg import version_of
from binlogd.spark.lake.manifest import MODES, LakeMode
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.submit import is_worker_late, kept_aside
from tests.support import recordings_reader
from tests.support.appliance import into_mariadb, run
from tests.support.changelogs import check_as_kept
from tests.support.data_directory import write_log
from tests.support.iceberg_catalogs import CATALOGS, NAME
from tests.support.logged import Logged, check_lake, lake_rows
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, compare
from tests.support.replay import SKIPPED
from tests.support.s3 import s3_server
from tests.support.tried import library
from tests.workload.generator import Options
from tests.workload.recording import payloads

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0
SEGMENT_BYTES = 20_000


def archived(directory: Path, options: Options) -> tuple[Logged, str]:
    logged = Logged.write(directory, options, segment_bytes=1 << 15)
    url = str(directory / "archive")
    task = Task(data_dir=str(logged.data_dir), url=url, history=str(logged.history), with_open=True)
    archive(task)
    return logged, url


def words(source: str, into: str, directory: Path, *more: str) -> list[str]:
    library("pyspark")  # the command starts it
    checkpoint = str(directory / "checkpoint")
    return ["pipeline", "--source", source, "--into", into, "--checkpoint", checkpoint, *more]


def started(command: list[str], directory: Path) -> subprocess.Popen[bytes]:
    with (directory / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "binlogd", *command],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=said,
            stderr=said,
        )


def killed_after_a_batch(command: list[str], directory: Path, lake: Lake, batches: int) -> None:
    """SIGKILL to the pipeline, when so many batches more are in the lake."""
    manifest = lake.manifest()
    before = manifest.read().commit_ts
    process = started(command, directory)
    until = time.monotonic() + PATIENCE_S
    try:
        while batches and process.poll() is None and time.monotonic() < until:
            now = manifest.read().commit_ts
            batches -= now > before
            before = now
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.soak  # in short: the page tutorial-data, and in one process test_base_loader
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "kills"), [(kind, kills) for kills in (0, 6) for kind in KINDS])
def test_a_lake_is_what_the_upstream_was_however_often_the_pipeline_was_killed(
    kind: str, kills: int, mode: LakeMode, tmp_path: Path
) -> None:
    options = Options(seed=31 + kills, transactions=80 + 60 * kills, ddl_every=20)
    logged, url = archived(tmp_path, options)
    into = f"{kind}:{tmp_path / 'lake'}"
    lake, end = Lake(place_of(into), mode), logged.workload.model.last_commit_ts
    command = words(url, into, tmp_path, "--mode", mode, "--batch", "60")
    for _ in range(kills):
        killed_after_a_batch(command, tmp_path, lake, 1)
    more = "--follow", "--interval", "0.1", "--metrics-addr", "127.0.0.1:0"
    following = started([*command, *more], tmp_path)
    until = time.monotonic() + PATIENCE_S
    while lake.manifest().read().commit_ts < end and time.monotonic() < until:
        assert following.poll() is None, "it ended before it was asked to"
        time.sleep(0.05)
    (served,) = (each["addr"] for each in events(tmp_path) if each["event"] == "metrics_served")
    at_end = f"\nbinlogd_pipeline_commit_ts {end >> 18}\n"
    while at_end not in scraped(served) and time.monotonic() < until:  # a little after the lake
        time.sleep(0.05)
    assert at_end in scraped(served)
    check_refused(url, into, tmp_path, "--mode", mode)
    following.send_signal(signal.SIGTERM)
    assert following.wait(PATIENCE_S) == 0
    check_as_kept(logged, lake, end)
    assert "batch_done" in {each["event"] for each in events(tmp_path)}, (
        "its own log, and no line of Spark's"
    )


def events(directory: Path) -> list[dict[str, Any]]:
    """What was logged there."""
    return [json.loads(line) for line in (directory / "said").read_text().splitlines()]


def scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        said: str = answer.read().decode()
    return said


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_names_in_a_catalog_are_those_of_the_lake_however_often_the_pipeline_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged, url = archived(tmp_path, Options(seed=37, transactions=200, ddl_every=12))
    into, named = f"iceberg:{tmp_path / 'lake'}", ("--batch", "25", "--catalog", NAME)
    lake = Lake(place_of(into))
    with CATALOGS["rest"](tmp_path, monkeypatch), closing(load_catalog(NAME)) as catalog:
        for kills in (3, 1, 2):
            killed_after_a_batch(words(url, into, tmp_path, *named), tmp_path, lake, kills)
        run(tmp_path, *words(url, into, tmp_path, *named)).check_returncode()
        check_lake(logged, lake, logged.workload.model.last_commit_ts)
        shown = {
            ".".join(name): catalog.load_table(name)
            for namespace in catalog.list_namespaces()
            for name in catalog.list_tables(namespace)
        }
        tables = lake.manifest().read().tables
        assert shown.keys() == tables.keys()
        for name, table in tables.items():
            assert version_of(shown[name]) == table.version
            assert shown[name].scan().to_arrow().num_rows == lake_rows(lake, table).num_rows


def check_refused(source: str, into: str, directory: Path, *more: str) -> None:
    """A second pipeline, while the first one is at work."""
    (directory / "second").mkdir()
    done = run(directory, *words(source, into, directory / "second", *more))
    assert done.returncode == 1, done.stderr
    told = " ".join(done.stderr.split())
    assert f"whose checkpoint is {directory / 'checkpoint'}" in told
    assert "--take-over" in told
    assert list((directory / "second").iterdir()) == []


_LIMIT = "maxTransactionsPerTrigger=5"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--into", "delta:lake"], "needs --source, --into and --checkpoint"),
        (
            ["--source", ".", "--into", "parquet:x", "--checkpoint", "c"],
            "expected delta:PLACE or iceberg:PLACE",
        ),
        (
            ["--source", ".", "--into", "delta:az://b/lake", "--checkpoint", "c"],
            "Azure is abfss://",
        ),
        (
            ["--source", ".", "--into", "delta:x", "--checkpoint", "c", "--option", "nothing"],
            "--option takes NAME=VALUE",
        ),
        (
            ["--source", ".", "--into", "syncer", "--checkpoint", "c", "--option", "Tables=shop.*"],
            "--option Tables: say it by --tables",
        ),
        (
            ["--source", ".", "--into", "delta:x", "--checkpoint", "c", "--option", _LIMIT],
            "--option maxTransactionsPerTrigger: say it by --batch",
        ),
        (
            ["--source", ".", "--into", "syncer", "--checkpoint", "c", "--mode", "changelog"],
            "--mode changelog goes with a lake",
        ),
    ],
)
def test_wrong_words_are_told(more: list[str], said: str, tmp_path: Path) -> None:
    done = run(tmp_path, "pipeline", *more)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_a_source_without_a_history_ends_in_one_sentence_before_spark_begins(
    tmp_path: Path,
) -> None:
    write_log(tmp_path / "data", [])
    done = run(tmp_path, *words("data", "delta:lake", tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("binlogd: ")
    assert "--option schemaHistory=FILE" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"], "nothing was claimed"


def test_rows_that_are_no_text_end_a_pipeline_in_one_sentence(tmp_path: Path) -> None:
    recording = RECORDINGS / "types"
    write_log(tmp_path / "data", [each for _, each in payloads(recording)])
    (tmp_path / "history.json").write_bytes(recordings_reader.history(recording))
    known = ("--tables", "types_tidb.bad_utf8", "--option", "schemaHistory=history.json")
    done = run(tmp_path, *words("data", "delta:lake", tmp_path, *known))
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(told) == 1, done.stderr  # beside the log's lines, one each
    assert told[0].startswith("binlogd: a row of types_tidb.bad_utf8 contradicts the schema")
    assert "--option types=invalid-text=replace" in told[0]


def test_what_spark_writes_is_kept_aside_but_for_its_last_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said: deque[str] = deque(maxlen=2)
    lines = ["one", "26/11/23 WARN NativeCodeLoader: no", "two", "\tat java.lang.Thread", "three"]
    with kept_aside(said):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=sys.stderr.fileno())
    sys.stderr.write("ours\n")
    child.communicate(("\n".join(lines) + "\n").encode())
    until = time.monotonic() + PATIENCE_S
    while list(said) != ["two", "three"] and time.monotonic() < until:
        time.sleep(0.01)
    assert list(said) == ["two", "three"]
    assert capfd.readouterr().err == "ours\n"


def test_a_query_whose_python_started_too_late_is_begun_again() -> None:
    late = "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to"
    assert is_worker_late(f"Caused by: {late} connect back")
    assert is_worker_late(
        "terminated with exception: Python worker failed to connect back. SQLSTATE"
    )
    assert not is_worker_late("binlogd.errors.UnreadableRow: shop.orders")


def test_a_package_holds_what_a_cluster_imports(tmp_path: Path) -> None:
    assert run(tmp_path, "pipeline", "--package", "job").returncode == 0
    names = set(zipfile.ZipFile(tmp_path / "job" / "binlogd.zip").namelist())
    assert {"pyspark_binlogd/__init__.py", "binlogd/spark/source.py", "binlogd/tso.py"} <= names
    assert 'submitted("pipeline"' in (tmp_path / "job" / "pipeline.py").read_text()


def recorded(mariadb: MariaDb, directory: Path, url: str) -> tuple[Task, Path]:
    """A recording as the archiver finds it, and the configuration of a pipeline into a database."""
    records = recordings_reader.records(RECORDINGS / "keys")
    write_log(
        directory / "data", [record.payload for record in records], segment_bytes=SEGMENT_BYTES
    )
    history = directory / "history.json"
    history.write_bytes(recordings_reader.history(RECORDINGS / "keys"))
    config = directory / "binlogd.toml"
    ignored = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql,keys_tidb,keys_wrong"
    config.write_text(into_mariadb(mariadb, extra=f'ignore-schemas = "{ignored}"\n'))
    return Task(data_dir=str(directory / "data"), url=url, history=str(history)), config


def check_recorded(mariadb: MariaDb) -> None:
    connection = mariadb.connect()
    try:
        assert compare(RECORDINGS / "keys", connection, SKIPPED["keys"]) == []
    finally:
        connection.close()


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_database_holds_what_was_recorded_however_often_the_pipeline_was_killed(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    with s3_server() as s3:
        task, config = recorded(mariadb, tmp_path, s3.url("binlogs"))
        archive(msgspec.structs.replace(task, with_open=True))
        command = words(task.url, "syncer", tmp_path, "--batch", "60", "--config", str(config))
        rng = Random(5)
        for _ in range(6):
            killed_in_a_batch(command, tmp_path, rng.random() * 2)
        done = run(tmp_path, *command, timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    check_recorded(mariadb)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_second_pipeline_into_one_database_is_refused_until_it_takes_over(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    task, config = recorded(mariadb, tmp_path, str(tmp_path / "archive"))
    archive(msgspec.structs.replace(task, segments_max=4))
    more = "--config", str(config)
    command = words(task.url, "syncer", tmp_path, *more, "--follow", "--interval", "0.1")
    following = started(command, tmp_path)
    until = time.monotonic() + PATIENCE_S
    while not (tmp_path / "checkpoint" / "commits" / "0").exists() and time.monotonic() < until:
        assert following.poll() is None, "it ended before it was asked to"
        time.sleep(0.05)
    check_refused(task.url, "syncer", tmp_path, *more)
    following.send_signal(signal.SIGSTOP)  # it thinks that it is alone
    archive(msgspec.structs.replace(task, with_open=True))
    taking_over = words(task.url, "syncer", tmp_path / "second", *more, "--take-over")
    done = run(tmp_path, *taking_over, timeout_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    following.send_signal(signal.SIGCONT)
    assert following.wait(PATIENCE_S) == 1, "the database is another pipeline's now"
    check_recorded(mariadb)


def killed_in_a_batch(command: list[str], directory: Path, after_s: float) -> None:
    """SIGKILL to the pipeline, so long after Spark has written a new batch down."""
    offsets = directory / "checkpoint" / "offsets"
    before = len(list(offsets.glob("[0-9]*")))
    process = started(command, directory)
    until = time.monotonic() + PATIENCE_S
    try:
        while process.poll() is None and time.monotonic() < until:
            if len(list(offsets.glob("[0-9]*"))) > before:
                time.sleep(after_s)
                break
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
