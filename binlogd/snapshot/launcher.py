"""The parent's side of the job: starts the child, hands over the spec, listens, and ends it.

Invariant. When `run` is over, however it ended, no process of the child's session is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from binlogd.errors import BinlogdError, ConfigError, Refused
from binlogd.snapshot.spec import Advanced, Event, ExportSpec, Failed, Planned, Report, Staged

JOB_MODULE = "binlogd.snapshot.job"
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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an export is: tasks of a stage; `total` 0 while it is not known."""

    stage: Literal["starting", "transactions", "rows", "publishing"]
    done: int
    total: int


async def run(spec: ExportSpec, job: Path, progress: Callable[[Progress], None]) -> Report:
    """What the job staged. `job` is its directory, for its log. Raises what the job failed with."""
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
