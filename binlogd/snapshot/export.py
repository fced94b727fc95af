"""`binlogd export`: every table as of one commit_ts, built by a child process and published whole.

The parent pins the input, starts the job, listens to it, and publishes what it staged. It imports
neither PySpark nor pyarrow. Killed at any moment, either side leaves the old snapshots or the new
one, never half of one; what it leaves of its own is swept by the next export into the directory.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from binlogd import __version__
from binlogd.errors import BinlogdError, ConfigError, Refused
from binlogd.moment import wall_clock
from binlogd.snapshot.jobdir import STAGING_PREFIX, job_directory, pinned
from binlogd.snapshot.publish import publish, snapshot_path
from binlogd.snapshot.spec import (
    Advanced,
    Event,
    ExportSpec,
    Failed,
    LeftOut,
    Manifest,
    Planned,
    Report,
    Segment,
    SegmentEntry,
    Staged,
    moment,
)
from binlogd.tso import NO_TS, Tso

JOB_MODULE = "binlogd.snapshot.spark_job"
EVENTS_FD = "BINLOGD_EVENTS_FD"
EVENT_BYTES_MAX = 64 << 20
"""The report of all tables is one line."""
TERMINATION_GRACE_S = 10.0
LAST_EVENTS_GRACE_S = 1.0
LOG_TAIL_LINES = 15
_POLL_S = 0.1

log = structlog.get_logger(__name__)


class ExportFailed(BinlogdError):
    """The job ended without a snapshot, for a reason that is its own; nothing was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to export and where to.

    `as_of` is `latest`, a TSO or an ISO 8601 time. `schema_history` is a JSON array of DDL jobs as
    TiDB serves it at `/ddl/history`. `resolved_ts`, if a Pump told one, says up to where it vouches
    that every transaction is decided; it must have been asked before `export` is called.
    """

    data_dir: Path
    out: Path
    schema_history: bytes
    as_of: str = "latest"
    format: str = "parquet"
    cluster_id: int | None = None
    resolved_ts: Tso = NO_TS
    ignore_schemas: tuple[str, ...] = ("mysql", "information_schema", "performance_schema")
    invalid_text: Literal["error", "replace"] = "error"
    cores: int = 2
    memory_mb: int = 1024
    is_short: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an export is: tasks of a stage; `total` 0 while it is not known."""

    stage: Literal["starting", "transactions", "rows", "publishing"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A published snapshot. `left_out` names tables that the log cannot tell."""

    path: Path
    commit_ts: Tso
    tables: int
    rows: int
    size_bytes: int
    left_out: tuple[LeftOut, ...]


async def export(
    options: ExportOptions, progress: Callable[[Progress], None] = lambda _: None
) -> ExportResult:
    """Exports and publishes `<out>/snapshot-<commit_ts>`.

    Raises ConfigError (no Java, no PySpark, no log, a wrong moment), Refused (a moment that is not
    decided yet, or is there already; a log without its beginning), ExportFailed (damaged bytes,
    rows that contradict the schema, a job that died). Cancelled, it ends the job and leaves
    nothing.
    """
    as_of = _checked(options)
    progress(Progress("starting", 0, 0))
    with (
        job_directory(options.out, STAGING_PREFIX) as job,
        pinned(options.data_dir, job) as segments,
    ):
        spec = _spec(options, as_of, job, segments)
        report = await _run(spec, job, progress)
        progress(Progress("publishing", 0, 0))
        manifest = _manifest(options, report, segments)
        path = publish(Path(spec.staging), options.out, manifest)
    result = ExportResult(
        path=path,
        commit_ts=Tso(report.commit_ts),
        tables=len(report.tables),
        rows=sum(table.rows for table in report.tables),
        size_bytes=sum(file.size_bytes for table in report.tables for file in table.files),
        left_out=report.left_out,
    )
    log.info(
        "snapshot_published",
        path=str(path),
        commit_ts=result.commit_ts,
        tables=result.tables,
        rows=result.rows,
        size_bytes=result.size_bytes,
        left_out=len(result.left_out),
    )
    return result


def _checked(options: ExportOptions) -> Tso:
    """The moment, NO_TS for the latest; everything that can be told without the job."""
    as_of = moment(options.as_of)
    if options.format != "parquet":
        raise ConfigError(f"--format {options.format} is not supported; parquet is")
    if as_of is not None:
        snapshot_path(options.out, as_of)
    for module in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{module} is not installed; install binlogd[spark]")
    if _java() is None:
        raise ConfigError(
            "no Java found: install a JRE 17 or 21 and put `java` on the PATH, or set JAVA_HOME"
        )
    return as_of or NO_TS


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java")


def _spec(
    options: ExportOptions, as_of: Tso, job: Path, segments: tuple[Segment, ...]
) -> ExportSpec:
    staging, scratch, history = job / "snapshot", job / "scratch", job / "ddl_history.json"
    staging.mkdir()
    scratch.mkdir()
    history.write_bytes(options.schema_history)
    return ExportSpec(
        segments=segments,
        schema_history=str(history.absolute()),
        as_of=as_of,
        out=str(options.out.absolute()),
        known_resolved_ts=options.resolved_ts,
        staging=str(staging.absolute()),
        scratch=str(scratch.absolute()),
        ignore_schemas=options.ignore_schemas,
        invalid_text=options.invalid_text,
        cores=options.cores,
        memory_mb=options.memory_mb,
        is_short=options.is_short,
    )


def _manifest(options: ExportOptions, report: Report, segments: Sequence[Segment]) -> Manifest:
    return Manifest(
        binlogd_version=__version__,
        spark_version=report.spark_version,
        cluster_id=options.cluster_id,
        commit_ts=report.commit_ts,
        time=wall_clock(Tso(report.commit_ts)),
        resolved_ts=report.resolved_ts,
        log=tuple(SegmentEntry(each.shard, each.fid, each.size_bytes) for each in segments),
        tables=report.tables,
        left_out=report.left_out,
    )


# --- the child -------------------------------------------------------------------------------


async def _run(spec: ExportSpec, job: Path, progress: Callable[[Progress], None]) -> Report:
    """What the job staged. Raises what the job failed with."""
    listener = _Listener(progress)
    log_path = job / "job.log"
    reading, writing = os.pipe()
    with log_path.open("wb") as output:
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                JOB_MODULE,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(writing,),
                env=_environment(writing),
                start_new_session=True,
            )
        finally:
            os.close(writing)
    try:
        code = await _attend(child, spec, reading, listener)
    finally:
        await _end(child)
    if listener.report is None:
        raise listener.failure or ExportFailed(_obituary(code, log_path))
    return listener.report


def _environment(events: int) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    package_root = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return {
        **environment,
        EVENTS_FD: str(events),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, inherited))),
    }


async def _attend(
    child: asyncio.subprocess.Process, spec: ExportSpec, reading: int, listener: _Listener
) -> int:
    """Hands over the spec and listens until the child ends. Its exit code."""
    loop = asyncio.get_running_loop()
    events = asyncio.StreamReader(limit=EVENT_BYTES_MAX)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(events), os.fdopen(reading, "rb")
    )
    try:
        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(listener.hear(events), name="export-events")
            code = await _feed(child, spec)
            # The JVM may hold the pipe open beyond the child's end: do not wait for its end only.
            loop.call_later(LAST_EVENTS_GRACE_S, hearing.cancel)
    finally:
        transport.close()
    return code


async def _feed(child: asyncio.subprocess.Process, spec: ExportSpec) -> int:
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(spec) + b"\n")
    child.stdin.close()
    return await child.wait()


async def _end(child: asyncio.subprocess.Process) -> None:
    """Waits until every process of the child's session is gone, with force after a while."""
    if child.returncode is None:
        child.terminate()
    loop = asyncio.get_running_loop()
    kill_at = loop.time() + TERMINATION_GRACE_S
    while loop.time() < kill_at + TERMINATION_GRACE_S:
        alive = _session_members(child.pid)
        if not alive and child.returncode is not None:
            return
        if loop.time() >= kill_at:
            for pid in alive:
                _kill(pid)
        await asyncio.sleep(_POLL_S)
    log.error("export_job_would_not_end", pid=child.pid)


def _session_members(session: int) -> list[int]:
    """Processes of a session; Spark's Python workers leave the process group, not the session."""
    return [
        int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _is_alive_in(entry, session)
    ]


def _is_alive_in(process: Path, session: int) -> bool:
    try:
        fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return False  # it ended meanwhile
    return int(fields[3]) == session and fields[0] != "Z"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class _Listener:
    """Turns the job's events into progress, a report or an error."""

    def __init__(self, progress: Callable[[Progress], None]) -> None:
        self._progress = progress
        self.report: Report | None = None
        self.failure: BinlogdError | None = None

    async def hear(self, events: asyncio.StreamReader) -> None:
        """Reads events until the pipe ends."""
        while line := await events.readline():
            self._take(msgspec.json.decode(line, type=Event))

    def _take(self, event: Event) -> None:
        match event:
            case Planned():
                log.info(
                    "export_planned",
                    commit_ts=event.commit_ts,
                    resolved_ts=event.resolved_ts,
                    tables=event.tables,
                    slices=event.slices,
                )
            case Advanced(stage="transactions" | "rows" as stage):
                self._progress(Progress(stage, event.done, event.total))
            case Staged():
                self.report = event.report
            case Failed():
                self.failure = _FAMILIES.get(event.kind, ExportFailed)(event.text)


_FAMILIES: dict[str, type[BinlogdError]] = {"ConfigError": ConfigError, "Refused": Refused}
"""Errors that are the caller's to correct; everything else is a failure of the export."""


def _obituary(code: int, log_path: Path) -> str:
    tail = log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"the export job {how}; nothing was published. Its last words:\n" + "\n".join(tail)
