"""Two executors, each a process: rows and lakes are what the log says, also when one is killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from tests.support.appliance import into_mariadb
from tests.support.logged import Logged, check_lake, read
from tests.support.mariadb import MariaDb
from tests.support.model_in_mysql import PREFIX, model_differences
from tests.support.spark import ROOT, forget_sessions
from tests.support.tried import library
from tests.workload.generator import Options
from tests.workload.tables import STANDARD

PATIENCE_S = 900.0


def lived(
    logged: Logged, directory: Path, monkeypatch: pytest.MonkeyPatch, kills: int, *more: str
) -> dict[str, object]:
    """What the child says."""
    library("pyspark")
    forget_sessions(monkeypatch)
    url = str(directory / "archive")
    archive(
        Task(data_dir=str(logged.data_dir), url=url, history=str(logged.history), with_open=True)
    )
    words = [url, str(directory), str(kills), *more]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.two_executors", *words],
        cwd=ROOT,
        env={
            **{key: value for key, value in os.environ.items() if key != "SPARK_HOME"},
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'binlogd' / 'spark'}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.soak
@pytest.mark.timeout(PATIENCE_S)
def test_a_lake_is_what_the_upstream_was_though_executors_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = Logged.write(tmp_path, Options(seed=61, transactions=100, ddl_every=40))
    assert lived(logged, tmp_path, monkeypatch, 2) == {"executors": 2, "killed": 2}
    rows = pq.read_table(tmp_path / "rows.parquet").sort_by("commit_ts")
    assert rows.equals(read(logged.options(form="binlog")))
    end = logged.workload.model.last_commit_ts
    check_lake(logged, Lake(place_of(f"delta:{tmp_path / 'lake'}")), end)


@pytest.mark.soak
@pytest.mark.timeout(PATIENCE_S)
async def test_a_database_is_what_the_upstream_was_though_executors_are_killed_and_tasks_run_twice(
    mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`audit` has no key: whatever is applied twice is there twice."""
    tables = tuple(each for each in STANDARD if each.name in ("accounts", "transfers", "audit"))
    made = Options(seed=62, transactions=150, ddl_every=60, prefix=PREFIX, tables=tables)
    logged = Logged.write(tmp_path, made)
    setup = tmp_path / "binlogd.toml"
    setup.write_text(into_mariadb(mariadb))
    said = await asyncio.to_thread(lived, logged, tmp_path, monkeypatch, 2, str(setup))
    assert said == {"executors": 2, "killed": 2}
    assert await model_differences(logged.workload, mariadb) == []
