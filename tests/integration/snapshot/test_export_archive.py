"""Snapshots out of the files of a file sink, which know names and no ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlogd.errors import ConfigError, Refused
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.tidb.model import jobs_from_json
from binlogd.tools.archive_log import write_archive_log
from binlogd.tso import NO_TS, Tso
from tests.support.archives import write_archive
from tests.support.model_check import check_against_model
from tests.support.spark import WarmSpark
from tests.workload.generator import Options, Workload


async def test_an_archive_gives_the_snapshots_that_the_log_gives(
    spark: WarmSpark, tmp_path: Path
) -> None:
    workload = Workload(Options(seed=51, transactions=700, ddl_every=25))
    await write_archive(workload, tmp_path / "files")
    last = workload.model.last_commit_ts
    jobs = jobs_from_json(workload.history())
    assert write_archive_log(tmp_path / "files", jobs, tmp_path / "log") > 700
    for as_of in (Tso((workload.model.moments()[0] + last) // 2), NO_TS):
        snapshot = spark.export(tmp_path / "log", workload.history(), as_of)
        wanted = as_of or Tso(read_manifest(snapshot).commit_ts)
        check_against_model(snapshot, workload, wanted)


async def test_a_history_of_another_cluster_is_refused(tmp_path: Path) -> None:
    workload = Workload(Options(seed=52, transactions=20, ddl_every=0))
    await write_archive(workload, tmp_path / "files")
    with pytest.raises(Refused, match="the history has no job for"):
        write_archive_log(tmp_path / "files", [], tmp_path / "log")
    with pytest.raises(ConfigError, match="no binlog-\\* files"):
        write_archive_log(tmp_path / "nowhere", [], tmp_path / "other")


async def test_a_row_that_never_came_ends_the_reading(tmp_path: Path) -> None:
    workload = Workload(Options(seed=53, transactions=400, ddl_every=0))
    await write_archive(workload, tmp_path / "files")
    files = sorted((tmp_path / "files").glob("binlog-*"))
    middle = files[len(files) // 2]
    content = middle.read_bytes()
    middle.write_bytes(content[:0])
    with pytest.raises(Refused, match="a row goes that never came"):
        write_archive_log(tmp_path / "files", jobs_from_json(workload.history()), tmp_path / "log")
