"""`binlogd export` as a whole: a child process, and what is left when it is stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from binlogd.errors import ConfigError, Refused
from binlogd.settings.quantities import wall_clock
from binlogd.snapshot.export import FAILURE_LOG, ExportOptions, export
from binlogd.snapshot.process import launcher, preflight
from binlogd.snapshot.process.launcher import ExportFailed
from binlogd.snapshot.process.preflight import note_launch
from binlogd.snapshot.publishing.marks import Written
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import Failed, Progress
from tests.support import recordings_reader, snapshot_reader
from tests.support.data_directory import write_log
from tests.support.processes import children_of
from tests.support.spark import forget_sessions

RECORDING = Path(__file__).parents[2] / "recordings" / "keys"

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="no Java"
)


@pytest.fixture
def options(tmp_path: Path) -> ExportOptions:
    data_dir = tmp_path / "data"
    write_log(data_dir, (record.payload for record in recordings_reader.records(RECORDING)))
    return ExportOptions(
        data_dir=data_dir,
        out=tmp_path / "out",
        schema_history=recordings_reader.history(RECORDING),
    )


async def test_a_report_of_many_wide_tables_is_taken(tmp_path: Path) -> None:
    """5,000 tables of 300 columns are 130 MB of names and types in one line."""
    events = asyncio.StreamReader(limit=launcher.EVENT_BYTES_MAX)
    job = launcher.JobProcess(Mock(), events, Mock(), tmp_path / "log")
    told = Failed("Refused", "x" * (130 << 20))
    events.feed_data(msgspec.json.encode(told) + b"\n")
    assert await job._hear() == told
    events.feed_data(b"no event\n")
    with pytest.raises(ExportFailed, match="what the export job tells cannot be read"):
        await job._hear()
    events.feed_data(b'{"half of what one told that was killed')
    events.feed_eof()
    assert await job._hear() is None


def left_in(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


async def launched_by_itself(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a job starts its JVM without Spark's scripts, as after a `spark warmup`."""
    forget_sessions(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    machine = await preflight.machine()
    assert machine.launch() == ()
    machine.launch_file().parent.mkdir()
    await note_launch(machine)
    assert machine.launch()[0] == machine.java


@pytest.mark.soak  # in short: test_export_command, and without a child test_export_input
async def test_an_export_is_published_with_a_manifest_that_is_true(
    options: ExportOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await launched_by_itself(tmp_path, monkeypatch)
    seen: list[Progress] = []
    gateways: list[int] = []
    daemons: list[bytes] = []

    def collect_garbage_meanwhile(progress: Progress) -> None:
        seen.append(progress)
        for pid in children_of(gateways, b"binlogd.snapshot.workers"):
            daemons.append(Path(f"/proc/{pid}/environ").read_bytes())
        if progress.stage == "transactions":
            gateways[:] = children_of(_jobs_of_this_process(), b"PythonGatewayServer")
            for path in options.data_dir.rglob("*.vlog"):
                path.rename(path.with_suffix(".gone"))

    result = await export(options, collect_garbage_meanwhile)
    assert len(gateways) == 1  # the job started its JVM itself
    assert daemons
    assert not any(b"pyspark.zip" in each for each in daemons)
    gone = list(options.data_dir.rglob("*.gone"))
    assert gone
    for path in gone:
        path.rename(path.with_suffix(".vlog"))
    assert left_in(options.out) == ["LATEST", result.path.name]
    assert (options.out / "LATEST").resolve() == result.path
    manifest = snapshot_reader.whole_manifest(result.path)
    assert manifest.commit_ts == result.commit_ts == manifest.resolved_ts
    assert manifest.time == wall_clock(result.commit_ts)
    assert sum(table.rows for table in manifest.tables) == result.rows > 0
    assert seen[0].stage == "starting"
    assert seen[-1].stage == "publishing"
    again = await export(replace(options, as_of=str(result.commit_ts)))
    assert (again.path, again.commit_ts, again.is_new) == (result.path, result.commit_ts, False)
    with pytest.raises(Refused, match="is there already, as parquet"):
        await export(replace(options, as_of=str(result.commit_ts), format="csv"))


@pytest.mark.soak  # in short: test_export_formats, what a killed export left
async def test_a_killed_job_publishes_nothing_and_is_resumed(options: ExportOptions) -> None:
    async def kill_when_a_part_is_finished() -> list[Path]:
        while not (  # noqa: ASYNC110 - what is waited for is a file of another process
            found := sorted(options.out.glob(".staging-*/state/parts/*.json"))
        ):
            await asyncio.sleep(0.005)
        os.kill(_job_of_this_process(), signal.SIGKILL)
        return found

    killing = asyncio.create_task(kill_when_a_part_is_finished())
    with pytest.raises(ExportFailed, match=r"ended by signal 9(?s:.*)--resume goes on"):
        await export(options)
    (mark, *_) = await killing
    staging = mark.parents[2]
    assert left_in(options.out) == [staging.name, FAILURE_LOG]
    (finished, *_) = msgspec.json.decode(mark.read_bytes(), type=list[Written])
    written = (staging / "snapshot" / finished.file.name).stat()

    result = await export(replace(options, is_resumed=True))

    assert left_in(options.out) == ["LATEST", FAILURE_LOG, result.path.name]
    taken = (result.path / finished.file.name).stat()
    assert (taken.st_ino, taken.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    for table in recordings_reader.expected(RECORDING):
        if table.kind == "table" and table.rows is not None and table.db != "keys_wrong":
            entry = snapshot_reader.tables(result.path)[table.label]
            wanted = snapshot_reader.expected_rows(table, entry)
            assert snapshot_reader.rows(result.path, entry) == wanted


PHASES = ("starting", "transactions", "rows", "publishing")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        *((phase, "command") for phase in PHASES),
        # before and after these there is no child yet, or nothing left for it to do
        *((phase, "job") for phase in ("transactions", "rows")),
    ],
)
def test_an_export_that_is_killed_at_any_phase_is_gone_on_with(
    phase: str, victim: str, options: ExportOptions, tmp_path: Path
) -> None:
    """kill -9 of the child, or of the command; then the same with --resume."""
    at_phase = _killed(options, phase, victim)
    assert at_phase != 0
    assert not list(options.out.glob("snapshot-*"))
    assert not (options.out / "LATEST").exists()
    result = asyncio.run(export(replace(options, is_resumed=True)))
    whole = asyncio.run(export(replace(options, out=tmp_path / "whole")))
    sums, wanted = (
        {each.table: each.checksum for each in read_manifest(path).tables}
        for path in (result.path, whole.path)
    )
    assert sums == wanted
    assert set(left_in(options.out)) - {FAILURE_LOG} == {"LATEST", result.path.name}


def _killed(options: ExportOptions, phase: str, victim: str) -> int:
    """The exit code of an export in a process of its own, in which somebody is killed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def kill(progress: Progress) -> None:
        if progress.stage == phase:
            target = os.getpid() if victim == "command" else _job_of_this_process()
            os.kill(target, signal.SIGKILL)

    code = 0
    try:
        asyncio.run(export(options, kill))
    except ExportFailed:
        code = 1
    finally:
        os._exit(code)


async def test_a_cancelled_export_ends_its_processes_and_leaves_nothing(
    options: ExportOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await launched_by_itself(tmp_path, monkeypatch)
    monkeypatch.setenv("BINLOGD_ADMIN_TOKEN", "hunter2")
    monkeypatch.setenv("MYSQL_PSWD", "hunter2")
    (options.out / ".staging-orphan").mkdir(parents=True)
    exporting = asyncio.create_task(export(options))
    while not _javas_of(_jobs_of_this_process()):
        assert not exporting.done(), exporting
        await asyncio.sleep(0.005)
    (job,) = _jobs_of_this_process()
    assert os.getsid(job) == job
    assert children_of([job], b"PythonGatewayServer")  # the job started its JVM itself
    for process in (job, *_javas_of([job])):
        assert b"hunter2" not in _environment_of(process)
    assert os.getpriority(os.PRIO_PROCESS, job) >= 10
    assert _io_class_of(job) in ("best-effort: prio 7", "")
    exporting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exporting
    assert left_in(options.out) == []
    assert _jobs_of_this_process() == []


def _environment_of(process: int) -> bytes:
    return Path(f"/proc/{process}/environ").read_bytes()


def _io_class_of(process: int) -> str:
    """ "" where nobody can tell."""
    if shutil.which("ionice") is None:
        return ""
    command = ["ionice", "--pid", str(process)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


async def test_a_directory_without_a_log_is_named(tmp_path: Path) -> None:
    options = ExportOptions(data_dir=tmp_path, out=tmp_path / "out", schema_history=b"[]")
    with pytest.raises(ConfigError, match="no data directory"):
        await export(options)


async def test_what_is_missing_is_named_before_anything_starts(
    options: ExportOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match="no Java found"):
        await export(options)
    assert not options.out.exists()


def _job_of_this_process() -> int:
    return _jobs_of_this_process()[0]


def _jobs_of_this_process() -> list[int]:
    return children_of([os.getpid()], b"binlogd.snapshot.child")


def _javas_of(jobs: list[int]) -> list[int]:
    return children_of(jobs, b"org.apache.spark")
