"""The history of DDL jobs, wherever it is read from.

Every job that was seen is kept, so that a job is asked for once, and a history that the upstream
cuts off is not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.tidb.job_index import JobEntry, JobIndex
from binlogd.tidb.model import Job, job_from_json
from binlogd.upstream.store import StoredJob, UpstreamStore

log = structlog.get_logger(__name__)

_READ_JOBS = 200


class _BinlogJson(msgspec.Struct):
    schema_version: int = msgspec.field(name="SchemaVersion", default=0)
    finished_ts: int = msgspec.field(name="FinishedTS", default=0)


class _EntryJson(msgspec.Struct):
    id: int
    start_ts: int = 0
    binlog: _BinlogJson | None = None


_ENTRY = msgspec.json.Decoder(_EntryJson)
_NO_BINLOG = _BinlogJson()


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How long to look for a job, and how much to read."""

    missing_in_file_s: float = 10.0
    missing_at_url_s: float = 300.0  # TiDB files a job after every server has loaded its schema
    retry_interval_s: float = 0.5
    request_timeout_s: float = 30.0
    answer_bytes_max: int = 1 << 30


class JobSource(Protocol):
    """Somewhere that the jobs can be read."""

    name: str
    """For logs."""
    missing_s: float
    """How long a job that is not there may still come."""

    def jobs(
        self, known: JobIndex, wanted: int | None = None
    ) -> AsyncGenerator[Sequence[StoredJob], None]:
        """All that are not known, and maybe others, some at a time; with `wanted` it is enough to
        find that one. What was given is in `known` before the next is asked for.

        Raises UpstreamUnavailable.
        """
        ...


class SchemaHistory:
    """Jobs by id; without a source it knows only what is kept."""

    def __init__(
        self, source: JobSource | None, store: UpstreamStore, limits: HistoryLimits | None = None
    ) -> None:
        self._source = source
        self._store = store
        self._limits = limits or HistoryLimits()
        self._reading = asyncio.Lock()
        self._index: JobIndex | None = None

    async def job(self, job_id: int) -> Job | None:
        """A job, read anew until it is there or the wait is over; None after that.

        Raises UpstreamUnavailable when the history cannot be read, Corrupt when the job cannot.
        """
        clock = asyncio.get_running_loop().time
        source = self._source
        deadline_s = clock() + (source.missing_s if source is not None else 0.0)
        raw = await self._store.job(job_id)
        while raw is None and source is not None:  # until it is there, or the deadline
            await self._refresh(job_id)
            raw = await self._store.job(job_id)
            if raw is None and clock() >= deadline_s:
                break
            if raw is None:
                log.info("ddl_job_awaited", job_id=job_id, source=source.name)
                await asyncio.sleep(self._limits.retry_interval_s)
        return None if raw is None else job_from_json(raw)

    async def index(self) -> JobIndex:
        """What there is; it grows as jobs are read. Raises UpstreamUnavailable."""
        await self._refresh()
        return await self._known()

    async def read(self, job_ids: Sequence[int]) -> list[Job]:
        """Jobs that the index knows, in the order of the ids. Raises Corrupt."""
        jobs: list[Job] = []
        for begin in range(0, len(job_ids), _READ_JOBS):
            raws = await self._store.read_jobs(job_ids[begin : begin + _READ_JOBS])
            jobs += map(job_from_json, raws)
        return jobs

    async def known_jobs(self) -> list[bytes]:
        """The JSON of every job that can be told now, by id: without the source, what it told
        before."""
        try:
            await self._refresh()
        except UpstreamUnavailable as error:
            log.warning("schema_history_unreachable", cause=str(error))
        known = await self._known()
        return await self._store.read_jobs(sorted(entry.id for entry in known.in_version_order()))

    async def _refresh(self, wanted: int | None = None) -> None:
        if self._source is None:
            return
        async with self._reading:
            known = await self._known()
            before = len(known)
            async with aclosing(self._source.jobs(known, wanted)) as answers:
                async for jobs in answers:
                    await self._keep(known, jobs)
                    await asyncio.sleep(0)  # others have their turn in between
            if len(known) > before:
                log.info("ddl_jobs_read", jobs=len(known) - before, source=self._source.name)

    async def _keep(self, known: JobIndex, jobs: Sequence[StoredJob]) -> None:
        new = [(entry, raw) for entry, raw in jobs if entry.id not in known]
        if new:
            await self._store.put_jobs(new)
            known.add(entry for entry, _ in new)

    async def _known(self) -> JobIndex:
        if self._index is None:
            self._index = JobIndex(await self._store.job_entries())
        return self._index


def stored_job(raw: bytes) -> StoredJob:
    """A job with what is looked up of it. Raises msgspec.DecodeError."""
    job = _ENTRY.decode(raw)
    binlog = job.binlog or _NO_BINLOG
    return JobEntry(binlog.finished_ts, job.start_ts, binlog.schema_version, job.id), raw
