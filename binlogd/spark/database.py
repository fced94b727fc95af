"""A batch of binlogs through the Drainer into the downstream of a configuration.

Exactly the Drainer of `binlogd serve`: its schema, filters, DDL and progress in the same
transaction as the rows. It is run for one batch, whose binlogs are its only source, and drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import islice
from random import Random

import structlog

from binlogd.archive.store import ArchiveStore
from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.drainer import Drainer, DrainerState
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.drainer.session import DdlHistory, DrainerOptions, DrainerPorts
from binlogd.errors import DownstreamUnavailable
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.node.assembly import dialect, make_sink, make_store, table_filter, trash
from binlogd.ports import BinlogSource
from binlogd.settings.setup import Setup
from binlogd.spark.base_binlogs import TOLD_TS_MAX, binlogs_of_base, jobs_of
from binlogd.spark.base_loader import LoadedBase
from binlogd.spark.inputs import POLL_S, awaited_until_ms, open_input
from binlogd.spark.lake.manifest import Claim, PipelineStopped, claim_place, is_new
from binlogd.spark.request import ReadRequest
from binlogd.tidb.job_index import JobIndex
from binlogd.tidb.model import Job
from binlogd.tidb.schema import entry_of
from binlogd.tso import NO_TS, Tso

TOGETHER = 512
DRAIN_S = 600.0
NOTE_MAX = 255
_POLL_S = 0.02

log = structlog.get_logger(__name__)

Joined = tuple[int, int, bytes]
"""start_ts, commit_ts, payload."""


class DatabaseSink:
    """What `[syncer]` names; one batch at a time."""

    def __init__(self, setup: Setup, asked: ReadRequest) -> None:
        self._setup, self._asked = setup, asked

    def apply(
        self, binlogs: Iterable[Joined], start: Tso, end: Tso, *, is_first: bool = False
    ) -> None:
        """Returns when everything in (start, end] is downstream. `is_first`: nothing was applied
        yet, unless the downstream says otherwise. Raises PipelineStopped."""
        asyncio.run(self._apply(binlogs, start, end, start if is_first else NO_TS))

    def claim(self, mine: Claim, *, takes_over: bool = False) -> None:
        """Makes the downstream this pipeline's, but for Kafka, which keeps no such note. Raises
        PipelineStopped where it is another's, ConfigError."""
        db_type = self._setup.config.syncer.db_type
        if db_type in ("mysql", "tidb"):
            asyncio.run(self._claim_database(mine, takes_over=takes_over))
        elif db_type != "kafka":
            where = self._setup.sink_dir
            claim_place(ArchiveStore.open(str(where)), str(where), mine, takes_over=takes_over)

    async def _claim_database(self, mine: Claim, *, takes_over: bool) -> None:
        to = self._setup.config.syncer.to
        where = f"the database at {to.host}:{to.port}"
        store, backoff, wanted = self._store(), Backoff(Random()), _noted(mine)

        def decide(note: str) -> str | None:
            found = _claim_in(note) if note else None
            needed = is_new(found, _claim_in(wanted), where, takes_over=takes_over)
            return wanted if needed else None

        try:
            while True:  # as long as the Drainer would wait for its downstream
                try:
                    await store.owner(decide)
                    return
                except DownstreamUnavailable as error:
                    wait_s = backoff.next_s()
                    log.warning("claim_retried", cause=str(error), wait_s=wait_s)
                await asyncio.sleep(wait_s)
        finally:
            store.close()

    def _store(self) -> MySqlStore:
        return make_store(self._setup, open_input(self._asked).cluster_id())

    def wants(self, database: str, table: str) -> bool:
        """Whether `[syncer]` lets a table through."""
        return table_filter(self._setup.config.syncer).replicates(database, table)

    def begin(self, base: LoadedBase) -> None:
        """Returns when the downstream holds a base, or is further than that. Raises
        PipelineStopped, Refused."""
        jobs = jobs_of(base)
        asyncio.run(self._run(_Retold(base, jobs), _Made(jobs), base.commit_ts, NO_TS))

    async def _apply(self, binlogs: Iterable[Joined], start: Tso, end: Tso, initial: Tso) -> None:
        source = open_input(self._asked)
        batch = _Batch(binlogs, start, end, source.gone_ts())
        await self._run(batch, _Jobs(self._asked, source.jobs(), end), end, initial)

    async def _run(self, binlogs: BinlogSource, jobs: DdlHistory, end: Tso, initial: Tso) -> None:
        cluster_id = open_input(self._asked).cluster_id()
        disk = PosixDisk(threads=2)
        ports = DrainerPorts(
            sources=[binlogs],
            history=jobs,
            make_sink=lambda: make_sink(self._setup, disk, cluster_id),
            relay=None,
            table_filter=table_filter(self._setup.config.syncer),
            on_saved=lambda _: None,
        )
        options = DrainerOptions(
            dialect=dialect(self._setup),
            trash=trash(self._setup),
            initial_commit_ts=initial,
            drain_timeout_s=DRAIN_S,
        )
        drainer = Drainer(ports, Backoff(Random()), options)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(drainer.run(), name="drainer")
                stuck = await _until(drainer, end)
                await drainer.drain()
        finally:
            disk.close()
        if stuck or drainer.statistics().checkpoint.commit_ts < end:
            raise PipelineStopped(stuck or drainer.statistics().last_error)


def _noted(claim: Claim) -> str:
    """A claim in a row: "-" for no id, a space, and of the checkpoint what there is room for."""
    return f"{claim.pipeline or '-'} {claim.checkpoint}"[:NOTE_MAX]


def _claim_in(note: str) -> Claim:
    """What `_noted` wrote down, its checkpoint as far as there was room for it."""
    return Claim(*note.removeprefix("-").split(" ", 1))


async def _until(drainer: Drainer, end: Tso) -> str:
    """Waits until everything is applied, or nothing goes on; why not, in that case."""
    while True:  # ends with the batch, or when the Drainer is stuck or gone
        now = drainer.statistics()
        if now.applied_ts >= end:
            return ""
        if now.state in (DrainerState.STUCK, DrainerState.STOPPED):
            return now.last_error or "the Drainer ended early"
        await asyncio.sleep(_POLL_S)


class _Batch:
    """A BinlogSource that has one batch. It can be pulled once: a Drainer that must begin again
    ends the batch, which Spark does again."""

    name = "spark"

    def __init__(self, binlogs: Iterable[Joined], start: Tso, end: Tso, gone_ts: Tso) -> None:
        self._binlogs, self._start, self._end = iter(binlogs), start, end
        self._gone_ts = gone_ts
        self._was_pulled = False

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """The binlogs behind `after`, then silence. Raises PipelineStopped."""
        if self._was_pulled:
            raise PipelineStopped("the downstream was lost in the middle of a batch; run it again")
        self._was_pulled = True
        if after < self._start:
            raise PipelineStopped(
                f"the downstream is at commit_ts {after}, and this batch begins at {self._start}:"
                " what lies between would be lost. It was restored, or is not the one that this"
                " checkpoint was made with: begin with another --checkpoint, which goes on where"
                " the downstream is"
            )
        if after < self._gone_ts:
            raise PipelineStopped(
                f"the downstream is at commit_ts {after}, and the log is complete behind"
                f" {self._gone_ts} only: begin with a snapshot or a dump of that moment or later"
                " (--base), into an empty downstream"
            )
        while part := list(islice(self._binlogs, TOGETHER)):  # ends with the batch
            found = [
                CommittedBinlog(Tso(start_ts), Tso(commit_ts), payload)
                for start_ts, commit_ts, payload in part
                if commit_ts > after
            ]
            if found:
                yield Pulled(found, found[-1].commit_ts)
            await asyncio.sleep(0)
        if self._end > after:
            yield Pulled([], self._end)
        await asyncio.Event().wait()  # until the Drainer is drained


class _Retold:
    """A BinlogSource that has a base."""

    name = "base"

    def __init__(self, base: LoadedBase, jobs: list[Job]) -> None:
        self._base, self._jobs = base, jobs

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """What is left of it, then silence. Raises PipelineStopped, and what a base raises."""
        if TOLD_TS_MAX < after < self._base.commit_ts:
            raise PipelineStopped(
                f"the downstream is at commit_ts {after}, before the base"
                f" ({self._base.commit_ts}): begin with an empty one"
            )
        if after <= TOLD_TS_MAX:
            told = binlogs_of_base(self._base, self._jobs, after)
            while part := list(islice(told, TOGETHER)):  # ends with the base
                found = [CommittedBinlog(Tso(start), Tso(end), raw) for start, end, raw in part]
                yield Pulled(found, found[-1].commit_ts)
                await asyncio.sleep(0)
            yield Pulled([], self._base.commit_ts)
        await asyncio.Event().wait()  # until the Drainer is drained


class _Made:
    """The DDL history of a base."""

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


class _Jobs(_Made):
    """The DDL history of the input, read anew when a job is not there; one of a batch that ends at
    a young moment is waited for, see `jobs_with`."""

    def __init__(self, asked: ReadRequest, jobs: Sequence[Job], end: Tso) -> None:
        super().__init__(jobs)
        self._asked, self._end = asked, end

    async def job(self, job_id: int) -> Job | None:
        """See DdlHistory."""
        clock, until_ms = WallClock(), awaited_until_ms(self._end)
        while job_id not in self._jobs:  # ends with the job, or when the batch is no longer young
            self._jobs = {job.id: job for job in open_input(self._asked).jobs()}
            if job_id not in self._jobs:
                if clock.wall_ms() > until_ms:
                    break
                await asyncio.sleep(POLL_S)
        return self._jobs.get(job_id)
