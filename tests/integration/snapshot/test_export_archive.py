"""Snapshots out of the files of a file sink, which know names and no ids."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from binlogd.archive.catalog import CATALOG_NAME
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.errors import ConfigError, Refused
from binlogd.exporting import holds_segments
from binlogd.snapshot.check import check
from binlogd.snapshot.export import ExportOptions, ExportResult
from binlogd.snapshot.log.packets import Spread
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.spark.cluster_export import export_in
from binlogd.spark.export_places import DirectoryPlace
from binlogd.tidb.model import jobs_from_json
from binlogd.tools.archive_log import write_archive_log
from binlogd.tso import NO_TS, Tso
from tests.support.archives import write_archive
from tests.support.logged import Logged
from tests.support.model_check import check_against_model
from tests.support.plain_export import PlainExport
from tests.support.spark import TYPES, WarmSpark
from tests.workload.generator import Options, Workload


async def test_an_archive_gives_the_snapshots_that_the_log_gives(tmp_path: Path) -> None:
    """Without a Spark, which has no part in it."""
    workload = Workload(Options(seed=51, transactions=700, ddl_every=25))
    await write_archive(workload, tmp_path / "files")
    last = workload.model.last_commit_ts
    jobs = jobs_from_json(workload.history())
    assert write_archive_log(tmp_path / "files", jobs, tmp_path / "log") > 700
    (tmp_path / "work").mkdir()
    history = workload.history()
    export = PlainExport(tmp_path / "work", tmp_path / "log", history, Spread(3, 1), 1 << 20)
    for as_of in (Tso((workload.model.moments()[0] + last) // 2), NO_TS):
        snapshot = export.snapshot(as_of)
        wanted = as_of or Tso(read_manifest(snapshot).commit_ts)
        check_against_model(snapshot, workload, wanted)


@pytest.mark.parametrize("before", ["", "file:", "file://"])
def test_each_spelling_of_a_path_tells_an_archive_of_segments_from_files(
    before: str, tmp_path: Path
) -> None:
    assert not holds_segments(f"{before}{tmp_path}")
    (tmp_path / CATALOG_NAME).touch()
    assert holds_segments(f"{before}{tmp_path}")


def test_executors_make_of_an_archive_the_snapshot_of_one_machine(
    spark: WarmSpark, tmp_path: Path
) -> None:
    """Here they are one process; two, of which some are killed, in e2e/test_cluster_export.py."""
    logged = Logged.write(tmp_path, Options(seed=61, transactions=250, ddl_every=30))
    data_dir, history = str(logged.data_dir), str(logged.history)
    url, out = str(tmp_path / "archive"), tmp_path / "out"
    archive(Task(data_dir=data_dir, url=url, history=history, with_open=True))
    options = ExportOptions(data_dir=tmp_path, out=out, schema_history=b"", types=TYPES)

    def made() -> ExportResult:
        here = nullcontext(spark.spark)
        return export_in(here, options, url, DirectoryPlace(out), lambda _: None)

    result = made()
    assert result.commit_ts == logged.workload.model.last_commit_ts
    check_against_model(result.path, logged.workload, result.commit_ts)
    manifest = read_manifest(out / "LATEST")
    assert [each.reason for each in check(result.path, manifest) if each.reason] == []
    assert made() == replace(result, is_new=False, base=ANY)
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


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
