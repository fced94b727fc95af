"""The parent's side of the job: starts the child, hands over specs, listens, and ends it.

Invariant. When `end` is over, or `running` is left, no process of the child's session is there any
more, however the child fared.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from binlogd.errors import BinlogdError, ConfigError, GaveUp, Refused
from binlogd.host.child import tell
from binlogd.host.privacy import environment_of_children
from binlogd.host.threads import Threads, over
from binlogd.snapshot.publishing.publish import AlreadyThere
from binlogd.snapshot.spec import (
    EVENTS_FD,
    Event,
    ExportSpec,
    Failed,
    Planned,
    Progress,
    Report,
    SessionSpec,
    Staged,
    Started,
)

JOB_MODULE = "binlogd.snapshot.child"
JOB_LOG = "job.log"
"""Below the directory of a job: what it prints."""
EVENT_BYTES_MAX = 1 << 30
"""The report of all tables is one line."""
TERMINATION_GRACE_S = 10.0
LOG_TAIL_LINES = 15
_LOG_HEAD_BYTES = 1 << 16
_POLL_S = 0.1
_POLITE = ("ionice", "--class", "best-effort", "--classdata", "7", "--ignore")
"""Whoever serves a database reads and writes first."""

log = structlog.get_logger(__name__)


class ExportFailed(GaveUp):
    """The job ended without a snapshot, for a reason that is its own; nothing was published."""


Notice = Callable[[Progress], None]
Borrow = Callable[[SessionSpec, Path], AbstractAsyncContextManager["JobProcess"]]
"""Where a job process comes from: `running`, or one that is kept warm."""


@asynccontextmanager
async def running(session: SessionSpec, log_path: Path) -> AsyncIterator[JobProcess]:
    """A job process that ends with the block."""
    process = await JobProcess.start(session, log_path)
    try:
        yield process
    finally:
        await process.end()


class JobProcess:
    """A child with a Spark session of its own; does one export after another."""

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        events: asyncio.StreamReader,
        transport: asyncio.ReadTransport,
        log_path: Path,
    ) -> None:
        self._child, self._events, self._transport = child, events, transport
        self.log_path = log_path
        """What it and Spark print."""
        self._began = asyncio.get_running_loop().time()

    @classmethod
    async def start(cls, session: SessionSpec, log_path: Path) -> JobProcess:
        """Starts a child in a session of its own; what it and Spark print goes to `log_path`."""
        reading, writing = os.pipe()
        events = asyncio.StreamReader(limit=EVENT_BYTES_MAX)
        try:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(events), os.fdopen(reading, "rb")
            )
            try:
                child = await _started_in_a_session(writing, log_path)
            except BaseException:
                transport.close()
                raise
        finally:
            os.close(writing)
        process = cls(child, events, transport, log_path)
        process._tell(session)
        return process

    @property
    def is_alive(self) -> bool:
        """Whether it could take another spec."""
        return self._child.returncode is None and not self._events.at_eof()

    @property
    def pid(self) -> int:
        """Of the child, and of the session that all its processes are in."""
        return self._child.pid

    async def export(self, spec: ExportSpec, notice: Notice) -> Report:
        """What the job staged; one export at a time. Raises what the job failed with.

        After a cancellation or an ExportFailed the process is of no more use.
        """
        self._tell(spec)
        while (event := await self._hear()) is not None:
            if isinstance(event, Staged):
                return event.report
            if isinstance(event, Started):
                self._take_start(event)
            else:
                take(event, notice)
        raise ExportFailed(await self._obituary())

    async def finish(self, grace_s: float) -> None:
        """Lets the child come to its end by itself, all of its session within `grace_s`. Raises
        ExportFailed with what it said, where it failed."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        while (event := await self._hear()) is not None:
            if isinstance(event, Failed):
                raise ExportFailed(event.text)
        code = await self._child.wait()
        await _wait_for_end(self._child.pid, grace_s)
        if code:
            raise ExportFailed(await self._obituary())

    async def end(self) -> None:
        """Ends every process of the child's session, with force after a while."""
        self._transport.close()
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.terminate()
        pid = self._child.pid
        if not (
            await _wait_for_end(pid, TERMINATION_GRACE_S)
            or await _wait_for_end(pid, TERMINATION_GRACE_S, signal.SIGKILL)
        ):
            log.error("export_job_would_not_end", pid=pid)
            return
        await self._child.wait()

    def _tell(self, spec: SessionSpec | ExportSpec) -> None:
        assert self._child.stdin is not None
        tell(self._child.stdin, msgspec.json.encode(spec) + b"\n")

    async def _hear(self) -> Event | None:
        try:
            line = await self._events.readline()
            return msgspec.json.decode(line, type=Event) if line.endswith(b"\n") else None
        except ValueError as error:  # also for a line that is longer than the most
            raise ExportFailed(f"what the export job tells cannot be read: {error}") from error

    def _take_start(self, event: Started) -> None:
        seconds = asyncio.get_running_loop().time() - self._began
        log.info("spark_started", seconds=round(seconds, 2), version=event.spark_version)
        with self.log_path.open("rb") as said:
            head = said.read(_LOG_HEAD_BYTES).decode(errors="replace")
        warned = next((line for line in head.splitlines() if "[cds" in line), "")
        if warned:
            log.warning(
                "class_archive_ignored", reason=warned, hint="run `binlogd spark warmup` anew"
            )

    async def _obituary(self) -> str:
        code = await self._child.wait()
        tail = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the export job {how}; nothing was published. Its last words:\n" + "\n".join(tail)


class WarmJob:
    """A job process that outlives its export, so that the next one need not wait for a JVM.

    There is at most one, it does one export at a time, and after `end` there is none. `borrow`
    takes the place of `running`; the process keeps to a directory `home`.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._child: JobProcess | None = None
        self._session: SessionSpec | None = None

    @property
    def is_warm(self) -> bool:
        """Whether a process waits for work."""
        return self._child is not None

    @asynccontextmanager
    async def borrow(self, wanted: SessionSpec, _log_path: Path) -> AsyncIterator[JobProcess]:
        """The process that waits, or a new one; not for two at a time.

        It stays, unless its export was cancelled or failed in a way that is not the caller's.
        """
        child = await self._ready(wanted)
        is_fit = False
        try:
            yield child
            is_fit = True
        except (ConfigError, Refused):
            is_fit = True
            raise
        finally:
            if not is_fit:
                await self.end()

    async def end(self) -> None:
        """Ends the process, if there is one; who was cancelled meanwhile calls it again."""
        if self._child is not None:
            await self._child.end()
            self._child = None

    async def _ready(self, wanted: SessionSpec) -> JobProcess:
        scratch = self._home / "spark"
        session = msgspec.structs.replace(wanted, scratch=str(scratch.absolute()))
        if self._child is not None and not (self._child.is_alive and session == self._session):
            await self.end()
        if self._child is None:
            scratch.mkdir(exist_ok=True)
            self._child = await JobProcess.start(session, self._home / JOB_LOG)
            self._session = session
        return self._child


def take(event: Event, notice: Notice) -> None:
    """Tells of what a job says. Raises what a Failed says."""
    match event:
        case Planned():
            log.info("export_planned", **msgspec.structs.asdict(event))
        case Progress():
            notice(event)
        case Failed():
            raise _FAMILIES.get(event.kind, ExportFailed)(event.text)


_FAMILIES: dict[str, type[BinlogdError]] = {
    "ConfigError": ConfigError,
    "Refused": Refused,
    "AlreadyThere": AlreadyThere,
}
"""Errors that are the caller's to correct; everything else is a failure of the export."""


async def _started_in_a_session(events: int, log_path: Path) -> asyncio.subprocess.Process:
    """The child, whose session is its own; there is none if the caller is cancelled meanwhile."""
    with log_path.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            *(_POLITE if shutil.which(_POLITE[0]) else ()),
            *(sys.executable, "-m", JOB_MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(events,),
            env=_environment(events),
            start_new_session=True,
        )


def _environment(events: int) -> dict[str, str]:
    environment = environment_of_children(os.environ)
    environment.pop("SPARK_HOME", None)
    package_root = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH")
    return {
        **environment,
        EVENTS_FD: str(events),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (package_root, inherited))),
    }


# --- the processes of a session ----------------------------------------------------------------


async def _wait_for_end(session: int, grace_s: float, signal_number: int = 0) -> bool:
    """Whether every process of the session is gone within so many seconds; whoever is still there
    gets the signal at each look. A thread looks: a machine may have thousands of processes."""
    loop = asyncio.get_running_loop()
    until = loop.time() + grace_s
    with closing(Threads(1, name="processes")) as looking:
        while pids := await over(looking.run(partial(_session_members, session))):
            for pid in pids if signal_number else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            if loop.time() >= until:
                return False
            await asyncio.sleep(_POLL_S)
        return True


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
