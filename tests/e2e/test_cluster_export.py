"""spark-submit exports on two executors, from an object store into one, though they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from binlogd.archive.bases import fetched
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.snapshot.check import check
from binlogd.snapshot.publishing.publish import LATEST, read_manifest
from binlogd.snapshot.spec import Manifest
from tests.bench import bench_export
from tests.e2e.test_spark_cluster import SPARK, environment
from tests.support.appliance import run
from tests.support.data_directory import write_log
from tests.support.logged import Logged
from tests.support.model_check import check_against_model
from tests.support.s3 import S3, s3_server
from tests.support.two_executors import executors
from tests.workload.generator import Options

PATIENCE_S = 900.0
CHANGES, TABLES = 400_000, 4

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """What spark-submit is given."""
    assert run(tmp_path, "export", "--package", "job").returncode == 0
    return tmp_path / "job"


def submitted(job: Path, words: list[str], **more: str) -> subprocess.Popen[bytes]:
    """An export on two executors of one core, each a process with its own Python."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "8",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        **more,
    }
    command = [str(SPARK / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]"]
    command += ["--driver-memory", "600m", "--executor-memory", "600m"]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += ["--py-files", str(job / "binlogd.zip"), str(job / "export.py"), *words]
    with (job / "said").open("wb") as said:
        return subprocess.Popen(
            command, cwd=job, env=environment(), stdout=said, stderr=said, start_new_session=True
        )


def ended(child: subprocess.Popen[bytes], job: Path) -> str:
    """What it said, and that all was well."""
    try:
        code = child.wait(timeout=PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    said = (job / "said").read_text(errors="replace")
    assert code == 0, said[-6000:]
    return said


def told(manifest: Manifest) -> list[tuple[Any, ...]]:
    """What two exports of one moment have in common: everything but names of files."""
    return [
        (each.database, each.table, each.rows, each.checksum, each.columns, each.losses)
        for each in manifest.tables
    ]


def whole(url: str, into: Path) -> Manifest:
    """A snapshot of an object store, where nothing is wrong with it."""
    into.mkdir()
    fetched(url, into)
    manifest = read_manifest(into)
    assert [each.reason for each in check(into, manifest) if each.reason] == []
    return manifest


def test_an_export_by_spark_submit_is_what_the_upstream_was(
    s3: S3, job: Path, tmp_path: Path
) -> None:
    logged = Logged.write(tmp_path, Options(seed=62, transactions=900, ddl_every=40))
    url, out = s3.url("binlogs"), s3.url("snapshots")
    data_dir, history = str(logged.data_dir), str(logged.history)
    archive(Task(data_dir=data_dir, url=url, history=history, with_open=True))
    words = ["--archive", url, "--out", out, "--type", "invalid-text=replace"]
    said = ended(submitted(job, words), job)
    assert "s3://bucket" in said
    manifest = whole(out, tmp_path / "there")
    check_against_model(tmp_path / "there", logged.workload, logged.workload.model.last_commit_ts)
    assert manifest.commit_ts == logged.workload.model.last_commit_ts
    directory = str(tmp_path / "shared")
    words = ["--archive", url, "--out", directory, "--format", "json", *words[4:]]
    ended(submitted(job, words), job)
    done = run(tmp_path, "export", "--check", f"{directory}/LATEST")
    assert done.returncode == 0, done.stdout
    texts = read_manifest(tmp_path / "shared" / "LATEST")
    assert [each[:4] for each in told(texts)] == [each[:4] for each in told(manifest)]


def test_killed_executors_and_second_attempts_leave_no_trace(
    s3: S3, job: Path, tmp_path: Path
) -> None:
    url, out = s3.url("binlogs"), s3.url("snapshots")
    archive_to(url, tmp_path)
    child = submitted(
        job,
        ["--archive", url, "--out", out],
        **{
            "spark.speculation": "true",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.3",
            "spark.speculation.interval": "100ms",
        },
    )
    kill_one(child, lambda: len(executors()) == 2)
    kill_one(child, lambda: any(".parquet" in name for name in s3.objects(out)))
    ended(child, job)
    manifest = whole(out, tmp_path / "there")
    names = {file.name for table in manifest.tables for file in table.files}
    there = {name.partition("/")[2] for name in s3.objects(out) if "/" in name}
    assert there == names | {"manifest.json", "_schema.json"}
    words = ["--archive", url, "--out", "local", "--as-of", str(manifest.commit_ts)]
    done = run(tmp_path, "export", *words)
    assert done.returncode == 0, done.stderr
    assert told(read_manifest(tmp_path / "local" / "LATEST")) == told(manifest)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_ends_early_publishes_nothing_and_the_next_export_removes_the_rest(
    number: signal.Signals, job: Path, tmp_path: Path
) -> None:
    url, out = str(tmp_path / "archive"), tmp_path / "shared"
    archive_to(url, tmp_path)
    words = ["--archive", url, "--out", str(out)]
    child = submitted(job, words)
    until(child, lambda: any(out.rglob("*.parquet")))
    os.killpg(child.pid, number)
    assert child.wait(timeout=PATIENCE_S) != 0
    until_gone(child.pid)
    assert not (out / LATEST).exists()
    left = [each.name for each in out.iterdir()]
    assert number is not signal.SIGINT or left == [], (left, (job / "said").read_text()[-3000:])
    ended(submitted(job, words), job)
    manifest = read_manifest(out / LATEST)
    assert [each.reason for each in check(out / LATEST, manifest) if each.reason] == []
    assert {each.name for each in out.iterdir()} == {
        LATEST,
        f"snapshot-{manifest.commit_ts}",
    }


def archive_to(url: str, directory: Path) -> None:
    log = bench_export.log(CHANGES // TABLES, copies=TABLES)
    write_log(directory / "data", log, segment_bytes=8 << 20)
    history = directory / "history"
    history.write_bytes(bench_export.history(TABLES))
    data_dir = str(directory / "data")
    archive(Task(data_dir=data_dir, url=url, history=str(history), with_open=True))


def until(child: subprocess.Popen[bytes], condition: Any) -> None:
    """Waits for it while the export runs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert child.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def until_gone(group: int) -> None:
    """Waits until a group has no process any more."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("processes of the job are left")


def kill_one(child: subprocess.Popen[bytes], when: Any) -> None:
    """Kills an executor as soon as that is true."""
    until(child, lambda: when() and executors())
    os.kill(executors()[0], signal.SIGKILL)
