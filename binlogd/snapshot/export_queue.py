"""Exports that are asked of a running service: one at a time, a few waiting, the child kept warm.

Invariant. What is asked is done in its order; whatever becomes of an export, the service goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from binlogd.errors import BinlogdError, ConfigError, Refused
from binlogd.host.threads import Threads, over, stacked
from binlogd.snapshot.export import ExportResult
from binlogd.snapshot.process.jobdir import job_directory
from binlogd.snapshot.process.launcher import Borrow, Notice, WarmJob
from binlogd.snapshot.spec import Progress, moment
from binlogd.status import ExportsStatus
from binlogd.telemetry.exposition import Exposition
from binlogd.telemetry.faults import unforeseen
from binlogd.telemetry.histogram import Histogram, doubling

WAITING_MAX = 8
REMEMBERED_MAX = 50
"""Exports that are over and still listed."""
HOME_PREFIX = ".spark-"
OUTCOMES = ("done", "failed", "cancelled")

log = structlog.get_logger(__name__)


class AskedExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An export that somebody asks for, in the words of `binlogd export`."""

    as_of: str = "latest"
    format: str = "parquet"
    base: str = "auto"


class ExportJob(msgspec.Struct):
    """How an asked export stands; `done` and `total` are tasks of its stage, `written` the rows of
    each table that are in files. `exit_code` is what `binlogd export` would end with."""

    id: int
    request: AskedExport = msgspec.field(name="wish")
    state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
    stage: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    message: str = ""
    path: str = ""
    commit_ts: int = 0
    tables: int = 0
    rows: int = 0
    size_bytes: int = 0
    written: dict[str, int] = {}
    is_new: bool = True
    built_on: str = ""
    left_out: tuple[str, ...] = ()
    exit_code: int = 0


SECONDS_BOUNDS = doubling(1, 14)
FAILED_EXIT, WRONG_EXIT = 1, 2

Export = Callable[[AskedExport, Notice, Borrow], Awaitable[ExportResult]]


class ExportQueue:
    """Takes requests; `run` fulfils them. The child leaves after `idle_ttl_s` without work."""

    def __init__(self, data_dir: Path, export: Export, idle_ttl_s: float) -> None:
        self._data_dir, self._export, self._idle_ttl_s = data_dir, export, idle_ttl_s
        self._waiting: asyncio.Queue[ExportJob] = asyncio.Queue(WAITING_MAX)
        self._jobs: deque[ExportJob] = deque()
        self._running: tuple[ExportJob, asyncio.Task[None]] | None = None
        self._last_id = 0
        self._finished: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._seconds = Histogram(SECONDS_BOUNDS)
        self._refused = self._rows = self._size_bytes = 0
        self.is_warm = False

    def ask(self, request: AskedExport) -> ExportJob:
        """A place in the queue. Raises ConfigError for a moment that is none, Refused when as many
        wait as may."""
        moment(request.as_of)
        job = ExportJob(self._last_id + 1, request)
        try:
            self._waiting.put_nowait(job)
        except asyncio.QueueFull:
            self._refused += 1
            raise Refused(f"{WAITING_MAX} exports wait already: ask again later") from None
        self._last_id += 1
        self._jobs.append(job)
        return job

    def jobs(self) -> list[ExportJob]:
        """Those that wait and run, and the last that are over; oldest first."""
        return list(self._jobs)

    def cancel(self, number: int) -> ExportJob | None:
        """Ends an export that waits or runs; None if there is none of that number."""
        job = next((each for each in self._jobs if each.id == number), None)
        if job is not None and job.state == "waiting":
            job.state = "cancelled"
            self._finished["cancelled"] += 1
        elif self._running is not None and self._running[0] is job:
            self._running[1].cancel()
        return job

    def status(self) -> ExportsStatus:
        """Its part of `/status`."""
        job = self._running[0] if self._running is not None else None
        return ExportsStatus(
            waiting=self._waiting_jobs(),
            running=job.id if job is not None else None,
            stage=job.stage if job is not None else "",
            done=job.done if job is not None else 0,
            total=job.total if job is not None else 0,
            finished=dict(self._finished),
            is_warm=self.is_warm,
        )

    def say(self, out: Exposition) -> None:
        """Its metrics."""
        out.gauge("binlogd_exports_running", "One at a time.", int(self._running is not None))
        out.gauge("binlogd_exports_waiting", "Behind the one that runs.", self._waiting_jobs())
        out.gauge("binlogd_exports_warm", "1 while a Spark process is kept.", int(self.is_warm))
        outcomes = [({"outcome": state}, count) for state, count in sorted(self._finished.items())]
        out.counter("binlogd_exports_finished", "By outcome.", outcomes)
        out.counter("binlogd_exports_refused", "As many waited as may.", self._refused)
        now_s = self._seconds.statistics()
        out.histogram("binlogd_exports_seconds", "Of those that were done.", [({}, now_s)])
        out.counter("binlogd_exports_rows", "In snapshots that were made.", self._rows)
        out.counter("binlogd_exports_bytes", "In snapshots that were made.", self._size_bytes)

    def _waiting_jobs(self) -> int:
        return sum(each.state == "waiting" for each in self._jobs)

    async def run(self) -> None:
        """Fulfils requests until it is cancelled; then nothing of its own is left."""
        with closing(Threads(1, name="exports")) as files:
            async with stacked(files) as stack:
                home = job_directory(self._data_dir, HOME_PREFIX)
                warm = WarmJob(await over(files.run(partial(stack.enter_context, home))))
                try:
                    while True:  # until it is cancelled
                        await self._next(warm)
                        self.is_warm = warm.is_warm
                finally:
                    await warm.end()

    async def _next(self, warm: WarmJob) -> None:
        try:
            async with asyncio.timeout(self._idle_ttl_s if warm.is_warm else None):
                job = await self._waiting.get()
        except TimeoutError:
            log.info("export_job_let_go", idle_s=self._idle_ttl_s)
            await warm.end()
            return
        if job.state == "waiting":
            async with asyncio.TaskGroup() as group:
                self._running = job, group.create_task(self._fulfil(job, warm), name="export")
            self._running = None
        while len(self._jobs) > REMEMBERED_MAX + WAITING_MAX:
            self._jobs.popleft()

    async def _fulfil(self, job: ExportJob, warm: WarmJob) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()

        def notice(progress: Progress) -> None:
            if progress.table:
                job.written[progress.table] = progress.done
            else:
                job.stage, job.done = progress.stage, progress.done
                job.total = progress.total

        job.state = "running"
        try:
            result = await self._export(job.request, notice, warm.borrow)
        except (BinlogdError, OSError) as error:
            job.state, job.message = "failed", str(error)
            job.exit_code = WRONG_EXIT if isinstance(error, ConfigError) else FAILED_EXIT
            log.warning("asked_export_failed", id=job.id, reason=str(error))
        except Exception as error:  # noqa: BLE001 - the next one may go well
            job.state, job.message = "failed", str(unforeseen("the export", error))
            job.exit_code = FAILED_EXIT
        except asyncio.CancelledError:
            job.state, job.exit_code = "cancelled", FAILED_EXIT
            raise
        else:
            self._is_done(job, result, loop.time() - began)
        finally:
            self._finished[job.state] += 1
            job.seconds = round(loop.time() - began, 3)

    def _is_done(self, job: ExportJob, result: ExportResult, seconds: float) -> None:
        job.path, job.commit_ts = str(result.path), result.commit_ts
        job.tables, job.rows = result.tables, result.rows
        job.size_bytes, job.is_new = result.size_bytes, result.is_new
        job.built_on = str(result.base.directory or "")
        job.left_out = tuple(map(str, result.left_out))
        job.state = "done"
        self._seconds.observe(seconds)
        if result.is_new:
            self._rows += result.rows
            self._size_bytes += result.size_bytes
