"""Which export that was killed is the one that somebody asks for again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from binlogd.snapshot.process.jobdir import job_directory
from binlogd.snapshot.publishing import marks
from binlogd.snapshot.spec import (
    ChangesOptions,
    ExportSpec,
    FileEntry,
    Moment,
    PinnedSegment,
    TypeOptions,
)
from binlogd.tso import NO_TS, Tso

MOMENT = Tso(100)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """One that had found its moment, of a log that is still there."""
    log = tmp_path / "000000.vlog"
    log.touch()
    marks.begin(tmp_path / marks.STATE, marks.Plan(MOMENT, 110, 8, "schema"))
    marks.save_spec(tmp_path, asked(segments=(PinnedSegment(0, 0, str(log), 5, 5),)))
    return tmp_path


def asked(**more: object) -> ExportSpec:
    spec = ExportSpec(
        segments=(),
        schema_history="",
        as_of=NO_TS,
        known_resolved_ts=105,
        data_dir="/data",
        base_asked="auto",
        out="/out",
        staging="",
        scratch="",
        ignore_schemas=("mysql",),
    )
    return msgspec.structs.replace(spec, **more)


@pytest.mark.parametrize("as_of", [NO_TS, MOMENT])
def test_the_same_export_goes_on_at_the_moment_that_it_had_found(as_of: Tso, job: Path) -> None:
    found = marks.resumable(job, asked(as_of=as_of), Moment(as_of))
    assert found is not None
    assert (found.as_of, found.known_resolved_ts) == (MOMENT, 110)


@pytest.mark.parametrize(
    "other",
    [
        {"data_dir": "/of/another/cluster"},
        {"base_asked": "none"},
        {"base_time_zone": "+08:00"},
        {"ignore_schemas": ()},
        {"format": "csv"},
        {"layout": "dumpling"},
        {"types": TypeOptions(set="array")},
        {"changes": ChangesOptions(50)},
        {"out": "/elsewhere"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_export_begins_anew(other: dict[str, object], job: Path) -> None:
    assert marks.resumable(job, asked(**other), Moment(NO_TS)) is None


@pytest.mark.parametrize("as_of", [Moment(Tso(99)), Moment(Tso(101)), Moment(NO_TS, 1000)])
def test_another_moment_begins_anew(as_of: Moment, job: Path) -> None:
    assert marks.resumable(job, asked(), as_of) is None


def _without_log(job: Path) -> None:
    (job / "000000.vlog").unlink()


def _without_plan(job: Path) -> None:
    (job / marks.STATE / marks.PLAN_FILE).unlink()


def _cut_spec(job: Path) -> None:
    path = job / marks.SPEC_FILE
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize("damage", [_without_log, _without_plan, _cut_spec])
def test_what_is_not_whole_begins_anew(damage: Callable[[Path], None], job: Path) -> None:
    damage(job)
    assert marks.resumable(job, asked(), Moment(NO_TS)) is None


def test_a_mark_that_is_damaged_is_news_when_it_is_written_again(tmp_path: Path) -> None:
    """Whoever tells of rows in files goes on beside it."""
    marks.begin(tmp_path, marks.Plan(MOMENT, 110, 8, "schema"))
    file = FileEntry("s.t/part-0", 5, 9, "")
    marks.mark(tmp_path, 7, "0.0", [marks.Written(7, file)])
    (damaged,) = (tmp_path / marks.PARTS).iterdir()
    damaged.write_bytes(damaged.read_bytes()[:-3])
    watcher = marks.Watcher(tmp_path)
    marks.mark(tmp_path, 8, "0.0", [marks.Written(8, file)])
    assert watcher.news() == {8: 5}
    marks.mark(tmp_path, 7, "0.1", [marks.Written(7, file)])
    assert watcher.news() == {7: 5}
    assert watcher.news() == {}


def test_a_leftover_that_goes_while_it_is_looked_at_is_none(tmp_path: Path) -> None:
    """As the directory of an export that ends just then; here it is never there."""
    (tmp_path / ".staging-going").symlink_to("nowhere")
    with job_directory(tmp_path, ".staging-") as job:
        assert job.is_dir()
