"""A stretch of the log through the Drainer, and one lane of it as a task of Spark.

A task reads the stretch by itself, so that no row passes through the driver, and applies what
belongs to its lane (`drainer.mysql.lane_sink`). It may be run again, and beside another attempt at
it: who finds the lane further than it came goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, MutableMapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from typing import Any

import structlog

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.mysql.lane_sink import LaneSink, OneLane
from binlogd.drainer.ports import DdlHistory, DrainerOptions, DrainerPorts
from binlogd.drainer.rows.progress import LanePosition
from binlogd.drainer.sink import Sink
from binlogd.drainer.statistics import DrainerState, DrainerStatistics
from binlogd.drainer.txn import Ddl
from binlogd.host.clock import WallClock
from binlogd.node.assembly import dialect, trash
from binlogd.node.into_mysql import downstream_server, make_store, mysql_options
from binlogd.node.replicated import table_filter
from binlogd.ports import BinlogSource
from binlogd.settings.setup import Setup
from binlogd.spark.counts import RowCounts
from binlogd.spark.inputs import POLL_S, awaited_until_ms, open_input
from binlogd.spark.lake.manifest import PipelineStopped
from binlogd.spark.request import ReadRequest
from binlogd.tidb.job_index import JobIndex, entry_of
from binlogd.tidb.model import Job
from binlogd.tso import NO_TS, Tso

TOGETHER = 512
DRAIN_S = 600.0
ATTEMPTS_MAX = 30
"""Of a task at a lane whose downstream is gone, or at which somebody else is: some ten minutes."""
SAID_MAX = 100
"""Warnings of a task that are told."""
_POLL_S = 0.02


Said = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogRange:
    """The log in (start, end], read from `begin` on, with the files that are pinned there."""

    asked: ReadRequest
    start: Tso
    end: Tso
    begin: Tso = NO_TS
    pins: str = ""


@dataclass(frozen=True, slots=True)
class LaneWork:
    """What a task is given."""

    setup: Setup
    stretch: LogRange
    cluster_id: int
    lane: OneLane


@dataclass(frozen=True, slots=True)
class LaneDone:
    """What a task has done: up to the end of its stretch, or up to a DDL that is to be executed.
    `walked` are the changes of all lanes on that way, `rows` those that it applied; `said` is what
    it warned of."""

    position: LanePosition
    checkpoint: Checkpoint
    met: Ddl | None
    rows: int
    walked: RowCounts
    said: Sequence[Said] = field(default=())


def apply_lane(work: LaneWork) -> LaneDone:
    """Returns when the lane has its changes. Raises PipelineStopped, and what an input raises."""
    with _heard() as said:
        done = asyncio.run(_applied(work))
    return replace(done, said=said)


async def _applied(work: LaneWork) -> LaneDone:
    stretch, backoff = work.stretch, Backoff(Random())
    history = open_input(stretch.asked, stretch.pins).history()
    jobs = InputJobs(stretch, list(history.jobs.values()))
    rows = 0
    while True:  # until applied, or after so many attempts
        server, options = downstream_server(work.setup), mysql_options(work.setup)
        sink = LaneSink(server, work.cluster_id, options, work.lane)
        log_stretch = LogStretch(stretch)
        ended = await drained(
            work.setup,
            lambda sink=sink: sink,  # type: ignore[misc]  # of this turn
            log_stretch,
            jobs,
            stretch.end,
            lane=sink,
        )
        now = ended.statistics
        rows += applied(now)
        if not ended.error:
            inserts, updates, deletes = sink.walked
            counts = RowCounts(inserts, updates, deletes, log_stretch.bytes_read)
            return LaneDone(sink.position, now.checkpoint, sink.met, rows, counts)
        may_heal = ended.can_heal or await _has_moved(work, sink.position)
        if not may_heal or backoff.attempts >= ATTEMPTS_MAX:
            raise PipelineStopped(ended.error)
        await asyncio.sleep(backoff.next_s())


def applied(now: DrainerStatistics) -> int:
    """The changes that its sink has applied."""
    return now.sink.rows_applied if now.sink is not None else 0


async def _has_moved(work: LaneWork, position: LanePosition) -> bool:
    """Whether another attempt at the lane is further. Raises as `MySqlStore.if_left`."""
    with closing(make_store(work.setup, work.cluster_id)) as store:
        return (await store.if_left(work.lane.restart.lanes))[work.lane.number] != position


@contextmanager
def _heard() -> Iterator[list[Said]]:
    """What is logged inside as a warning or worse; nothing else of it is shown."""
    said: list[Said] = []

    def hear(_logger: object, level: str, event: Said) -> Said:
        if level not in ("debug", "info") and len(said) < SAID_MAX:
            said.append({**event, "level": level})
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[hear])
    try:
        yield said
    finally:
        structlog.configure(processors=before)


# --- the Drainer -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """`error` is "" where all was done, or the DDL met; `can_heal`: by waiting."""

    statistics: DrainerStatistics
    error: str
    can_heal: bool = False


async def drained(  # noqa: PLR0913 - what a Drainer is made of
    setup: Setup,
    make_sink: Callable[[], Sink],
    binlogs: BinlogSource,
    jobs: DdlHistory,
    end: Tso,
    *,
    initial: Tso = NO_TS,
    lane: LaneSink | None = None,
) -> Ended:
    """Runs a Drainer until all up to `end` is applied, or nothing goes on; where its sink is a
    `lane`, which is opened once, also until it met a DDL or lost its downstream."""
    ports = DrainerPorts(
        sources=[binlogs],
        history=jobs,
        make_sink=make_sink,
        relay=None,
        table_filter=table_filter(setup.config.syncer),
        on_saved=lambda _: None,
    )
    options = DrainerOptions(
        dialect=dialect(setup),
        trash=trash(setup),
        initial_commit_ts=initial,
        drain_timeout_s=DRAIN_S,
    )
    ends = {DrainerState.STUCK, DrainerState.STOPPED}
    if lane is not None:
        ends.add(DrainerState.RETRYING)
    drainer = Drainer(ports, Backoff(Random(), first_s=0.25 if lane is None else 30.0), options)
    async with asyncio.TaskGroup() as group:
        group.create_task(drainer.run(), name="drainer")
        while True:  # ends with the stretch, or when the Drainer does not go on
            now = drainer.statistics()
            if now.applied_ts >= end or now.state in ends or (lane is not None and lane.met):
                break
            await asyncio.sleep(_POLL_S)
        await drainer.drain()
    left = drainer.statistics()
    if left.checkpoint.commit_ts >= end or (lane is not None and lane.met):
        return Ended(left, "")
    error = now.last_error or left.last_error or "the Drainer ended early"
    return Ended(left, error, now.state is DrainerState.RETRYING)


class LogStretch:
    """A BinlogSource: a stretch of the input."""

    name = "spark"

    def __init__(self, stretch: LogRange) -> None:
        self._stretch = stretch
        self.bytes_read = 0

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """The binlogs behind `after`, then silence. Raises PipelineStopped, and what an input
        raises."""
        stretch = self._stretch
        source = open_input(stretch.asked, stretch.pins)
        check_begin(after, stretch.start, source.gone_ts())
        if stretch.end > after:
            binlogs = source.binlogs(max(after, stretch.begin), stretch.end)
            async for part in pulled(binlogs, stretch.end):
                self.bytes_read += sum(len(each.payload) for each in part.binlogs)
                yield part
        await asyncio.Event().wait()  # until the Drainer is drained


async def pulled(binlogs: Iterator[CommittedBinlog], end: Tso) -> AsyncGenerator[Pulled, None]:
    """All of them, some at a time, and that this is all up to `end`."""
    while found := list(islice(binlogs, TOGETHER)):
        yield Pulled(found, found[-1].commit_ts)
        await asyncio.sleep(0)
    yield Pulled([], end)


def check_begin(after: Tso, start: Tso, gone_ts: Tso) -> None:
    """Raises PipelineStopped where a downstream that is at `after` would lack something."""
    if after < start:
        raise PipelineStopped(
            f"the downstream is at commit_ts {after}, and this batch begins at {start}:"
            " what lies between would be lost. It was restored, or is not the one that this"
            " checkpoint was made with: begin with another --checkpoint, which goes on where"
            " the downstream is"
        )
    if after < gone_ts:
        raise PipelineStopped(
            f"the downstream is at commit_ts {after}, and the log is complete behind"
            f" {gone_ts} only: begin with a snapshot or a dump of that moment or later"
            " (--base), into an empty downstream"
        )


class KnownJobs:
    """A DDL history that is known whole."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.id: job for job in jobs}

    async def job(self, job_id: int) -> Job | None:
        """See DdlHistory."""
        return self._jobs.get(job_id)

    async def index(self) -> JobIndex:
        """See DdlHistory."""
        return JobIndex(entry_of(job) for job in self._jobs.values())

    async def read(self, job_ids: Sequence[int]) -> list[Job]:
        """See DdlHistory."""
        return [self._jobs[job_id] for job_id in job_ids]


class InputJobs(KnownJobs):
    """The DDL history of the input, read anew when a job is not there; one of a stretch that ends
    at a young moment is waited for, see `jobs_with`."""

    def __init__(self, stretch: LogRange, jobs: Sequence[Job]) -> None:
        super().__init__(jobs)
        self._stretch = stretch

    async def job(self, job_id: int) -> Job | None:
        """See DdlHistory."""
        clock, until_ms = WallClock(), awaited_until_ms(self._stretch.end)
        while job_id not in self._jobs:  # ends with the job, or when the stretch is not young
            self._jobs = {job.id: job for job in open_input(self._stretch.asked).jobs()}
            if job_id not in self._jobs:
                if clock.wall_ms() > until_ms:
                    break
                await asyncio.sleep(POLL_S)
        return self._jobs.get(job_id)
