"""The schema is made once a job: what a task finds is what it would have made by itself."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.spark import history as history_module
from binlogd.spark import inputs
from binlogd.spark.history import KnownHistory
from binlogd.spark.source import BinlogdSource
from binlogd.tidb.model import Job, jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from tests.support.logged import Logged, read
from tests.workload.generator import Options, Workload


def alone(jobs: list[Job], moment: Tso, own: int) -> SchemaTracker:
    """As a task made it that has nothing of others."""
    tracker = SchemaTracker()
    tracker.load(job for job in jobs if job.id != own)
    tracker.apply_finished_by(moment)
    tracker.load(job for job in jobs if job.id == own)
    return tracker


def same(one: SchemaTracker, other: SchemaTracker, jobs: list[Job], moment: Tso) -> None:
    """Of every table id and version, and for each job that comes then."""
    ids = {each.id for job in jobs for each in (job.table, *job.tables) if each is not None}
    versions = sorted({job.schema_version for job in jobs})[::7]
    for table_id in ids:
        assert one.is_truncated(table_id) == other.is_truncated(table_id)
        for version in versions:
            assert one.table_at(table_id, version) == other.table_at(table_id, version)
    assert one.tables() == other.tables()
    assert one.databases() == other.databases()
    for job in jobs:
        if job.finished_ts > moment:
            assert one.apply(job, job.schema_state) == other.apply(job, job.schema_state)
    assert one.tables() == other.tables()


@pytest.mark.parametrize("order", ["as tasks come", "by chance"])
def test_a_tracker_of_the_history_is_that_of_a_task_alone(order: str) -> None:
    workload = Workload(Options(seed=51, transactions=240, ddl_every=4))
    for _ in workload.records():
        pass
    agrees_with_tasks_alone(jobs_from_json(workload.history()), order)


def agrees_with_tasks_alone(jobs: list[Job], order: str, count: int = 24) -> None:
    chosen = random.Random(5)
    moments = sorted({job.finished_ts + step for job in jobs for step in (-1, 0, 1)})
    moments = sorted(chosen.sample(moments, min(count, len(moments))))
    if order == "by chance":
        chosen.shuffle(moments)
    history = KnownHistory(jobs)
    for moment in map(Tso, moments):
        open_ = [job.id for job in jobs if job.finished_ts > moment]
        own = chosen.choice((0, 0, *open_[:2]))
        same(history.tracker_at(moment, own), alone(jobs, moment, own), jobs, moment)


def test_a_history_keeps_few_trackers_and_makes_few_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = Workload(Options(seed=52, transactions=120, ddl_every=4))
    for _ in workload.records():
        pass
    history = KnownHistory(jobs_from_json(workload.history()))
    applied: list[int] = []
    apply = SchemaTracker.apply

    def counted(tracker: SchemaTracker, job: Job, state: int) -> object:
        applied.append(job.id)
        return apply(tracker, job, state)

    monkeypatch.setattr(SchemaTracker, "apply", counted)
    for moment in sorted(job.finished_ts for job in history.jobs.values()):
        for _ in range(3):  # parts between two DDLs
            history.tracker_at(Tso(moment))
    assert len(applied) == len(set(applied)) <= len(history.jobs)
    assert len(history._kept) == history_module.KEPT_MAX


def test_tasks_of_a_process_read_and_parse_the_history_of_an_archive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = Logged.write(tmp_path, Options(seed=53, transactions=120, ddl_every=20))
    url = str(tmp_path / "archive")
    task = Task(data_dir=str(logged.data_dir), url=url, history=str(logged.history), with_open=True)
    archive(task)
    reads: list[str] = []
    really = ArchiveStore.read

    def noted(store: ArchiveStore, name: str) -> bytes:
        reads.append(name)
        return really(store, name)

    monkeypatch.setattr(ArchiveStore, "read", noted)
    inputs._archived_history.cache_clear()
    for options in ({}, {"table": "bank.accounts"}, {"form": "changes"}):
        asked = {"path": url, "partitionTransactions": "10", **options}
        source = BinlogdSource(asked)
        schema = source.schema()
        parts = source.reader(schema).partitions()
        assert len(parts) > 8
        rows = [batch for part in parts for batch in source.reader(schema).read(part)]
        of_log = read(logged.options(**options))
        assert sum(batch.num_rows for batch in rows) == of_log.num_rows
    assert reads.count("ddl_history.json") == 1
    more = tmp_path / "more.json"
    more.write_bytes(logged.history.read_bytes() + b"\n")
    archive(msgspec.structs.replace(task, history=str(more)))
    misses = inputs._archived_history.cache_info().misses
    for _ in range(2):
        read({"path": url})
        assert inputs._archived_history.cache_info().misses == misses + 1
