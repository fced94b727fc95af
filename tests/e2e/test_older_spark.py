"""The oldest Spark that the data source accepts, in an environment of its own: it reads, streams
and keeps a lake as the newest does, and what it cannot is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from tests.support import another_spark
from tests.support.logged import Logged, check_lake, read
from tests.support.tried import tried
from tests.workload.generator import Options

OLDEST = "4.1.1"
PATIENCE_S = 600


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_oldest_spark_reads_what_the_newest_does_and_takes_what_is_there_now(
    tmp_path: Path,
) -> None:
    """A stream with Trigger.AvailableNow ends with what there is when it begins, and the next one
    goes on behind it."""
    spark = another_spark.installed(OLDEST)
    logged = Logged.write(
        tmp_path, Options(seed=22, transactions=300, ddl_every=50), segment_bytes=1 << 13
    )
    url = str(tmp_path / "archive")
    task = Task(data_dir=str(logged.data_dir), url=url, history=str(logged.history))
    archive(msgspec.structs.replace(task, segments_max=30))
    options = {"path": url, "table": "bank.limits"}
    first = another_spark.said(spark, options, tmp_path)
    archive(msgspec.structs.replace(task, with_open=True))
    told = another_spark.said(spark, options, tmp_path)
    assert told["version"] == OLDEST
    tried("Spark, the oldest that is accepted", OLDEST)
    expected = sorted(map(repr, read(options).to_pylist()))
    assert told["batch"] == told["streamed"] == expected
    assert 0 < len(first["streamed"]) < len(expected)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_oldest_spark_keeps_a_lake_and_refuses_a_limit_it_would_ignore(tmp_path: Path) -> None:
    spark = another_spark.installed(OLDEST)
    logged = Logged.write(tmp_path, Options(seed=28, transactions=120, ddl_every=20))
    into = f"delta:{tmp_path / 'lake'}"
    source = ["--source", str(logged.data_dir), "--option", f"schemaHistory={logged.history}"]
    where = ["--into", into, "--checkpoint", str(tmp_path / "checkpoint")]
    command = [sys.executable, "-m", "binlogd", "pipeline", *source, *where]
    environ = another_spark.environment(spark)
    refused = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert refused.returncode != 0
    assert "--batch 0" in refused.stderr
    done = subprocess.run(
        [*command, "--batch", "0"], env=environ, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    check_lake(logged, Lake(place_of(into)), logged.workload.model.last_commit_ts)
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert "batch_done" in events
