"""The history of DDL jobs, and where TiDB's own list of them is read: a file with its answer at
/ddl/history, or that route.

Every job that was seen is kept, so that a job is asked for once, and a history that the upstream
cuts off is not lost. Source: TiDB docs/tidb_http_api.md; pkg/server/handler/tikvhandler.
"""

from __future__ import annotations

import asyncio
import os
import re
import zlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.host.http import HttpSession, NoAnswer, http_session
from binlogd.host.tls import ClientTls
from binlogd.tidb.job_index import JobEntry, JobIndex
from binlogd.tidb.model import Job, job_from_json
from binlogd.upstream.store import StoredJob, UpstreamStore

log = structlog.get_logger(__name__)


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
            if raw is not None or clock() >= deadline_s:
                break
            log.info("ddl_job_awaited", job_id=job_id, source=source.name)
            await asyncio.sleep(self._limits.retry_interval_s)
        return None if raw is None else job_from_json(raw)

    async def index(self) -> JobIndex:
        """What there is; it grows as jobs are read. Raises UpstreamUnavailable."""
        await self._refresh()
        return await self._known()

    async def read(self, job_ids: Sequence[int]) -> list[Job]:
        """Jobs that the index knows, in the order of the ids. Raises Corrupt."""
        return [job_from_json(raw) for raw in await self._store.read_jobs(job_ids)]

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


_PAGE_JOBS = 2048  # what TiDB 8.4 and newer answer at most
_PAGES_MAX = 10_000
_NEWEST_JOBS = 64
"""Where a single job is looked for first. Every TiDB knows `limit`; only since 6.5 does it know
`start_job_id`, and those before answer the newest again."""

_SLICE_BYTES = 4 << 20
"""What is parsed in one go: some milliseconds, in which nothing else is done."""
_NEXT_JOB = re.compile(rb',\s*(?=\{\s*"id"\s*:\s*\d+\s*,\s*"type"\s*:\s*\d+\s*,\s*"schema_id")')
_ANSWER = msgspec.json.Decoder(list[msgspec.Raw] | None)


def job_source(
    source: str, limits: HistoryLimits | None = None, tls: ClientTls | None = None
) -> JobSource | None:
    """That of the key `upstream.schema-history`: a URL, a file, or "" for none.

    `tls` is for a URL with https; without it, what this machine trusts is trusted.
    """
    limits = limits or HistoryLimits()
    if source.startswith(("http://", "https://")):
        return UrlJobs(source, limits, tls)
    return FileJobs(Path(source), limits) if source else None


class FileJobs:
    """A file, read anew when it has changed; also compressed by gzip."""

    def __init__(self, path: Path, limits: HistoryLimits) -> None:
        self.name, self.missing_s = str(path), limits.missing_in_file_s
        self._path = path
        self._disk = PosixDisk(threads=1)
        self._seen: tuple[int, int] | None = None

    async def jobs(
        self, known: JobIndex, wanted: int | None = None
    ) -> AsyncGenerator[Sequence[StoredJob], None]:
        """See JobSource."""
        del known, wanted  # a file is read whole
        try:
            status = os.stat(self._path)
            state = status.st_size, status.st_mtime_ns
            if state == self._seen:
                return
            answer = await self._disk.content(self._path)
        except (OSError, EOFError, zlib.error) as error:
            raise UpstreamUnavailable(f"upstream.schema-history {self.name}: {error}") from error
        for part in _slices(answer):
            yield _parsed(self.name, part)
        self._seen = state


class UrlJobs:
    """The route of a TiDB, back in time as long as nothing of a page is known."""

    def __init__(self, url: str, limits: HistoryLimits, tls: ClientTls | None = None) -> None:
        self.name, self.missing_s = url, limits.missing_at_url_s
        self._limits, self._tls = limits, tls

    async def jobs(
        self, known: JobIndex, wanted: int | None = None
    ) -> AsyncGenerator[Sequence[StoredJob], None]:
        """See JobSource."""
        before = {entry.id for entry in known.in_version_order()}
        query = {} if wanted is None else {"limit": str(_NEWEST_JOBS)}
        read_back_to = 0
        try:
            async with http_session(self._limits.request_timeout_s, self._tls) as asking:
                for _ in range(_PAGES_MAX):
                    ids: list[int] = []
                    for part in _slices(await self._page(asking, query)):
                        jobs = _parsed(self.name, part)
                        ids += [entry.id for entry, _ in jobs]
                        yield jobs
                    if wanted is not None:
                        if wanted in ids or wanted > max(ids, default=0):
                            return  # there it is, or it is not filed yet
                        wanted, query = None, {}
                        continue
                    oldest = min(ids, default=0)
                    is_no_further_back = read_back_to and oldest >= read_back_to
                    is_all = len(ids) < _PAGE_JOBS or oldest <= 1
                    if is_all or oldest in before or is_no_further_back:
                        return
                    read_back_to = oldest
                    query = {"start_job_id": str(oldest - 1), "limit": str(_PAGE_JOBS)}
        except NoAnswer as error:
            raise UpstreamUnavailable(f"upstream.schema-history {self.name}: {error}") from error

    async def _page(self, asking: HttpSession, query: dict[str, str]) -> bytes:
        most = self._limits.answer_bytes_max
        answer = await asking.ask("GET", self.name, bytes_max=most, params=query)
        if answer.status != 200:
            raise UpstreamUnavailable(f"upstream.schema-history {self.name}: {answer.refusal}")
        return answer.body


def _parsed(name: str, answer: bytes) -> list[StoredJob]:
    try:
        return [stored_job(bytes(raw)) for raw in _ANSWER.decode(answer) or []]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamUnavailable(
            f"upstream.schema-history {name}: is not the JSON that TiDB serves at"
            f" /ddl/history (or not all of it yet): {error}"
        ) from error


def _slices(answer: bytes) -> Iterator[bytes]:
    """A long answer as several, cut where TiDB begins a job."""
    begin, opening = 0, b""
    while len(answer) - begin > _SLICE_BYTES:
        cut = _NEXT_JOB.search(answer, begin + _SLICE_BYTES)
        if cut is None:
            break
        yield opening + answer[begin : cut.start()] + b"]"
        begin, opening = cut.end(), b"["
    yield opening + answer[begin:] if begin else answer
