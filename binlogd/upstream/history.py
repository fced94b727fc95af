"""The history of DDL jobs: a file with TiDB's answer at /ddl/history, or the URL of that route.

Every job that was seen is kept, so that a job is asked for once, and a history that the upstream
cuts off is not lost. Source: TiDB docs/tidb_http_api.md; pkg/server/handler/tikvhandler.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.tidb.job_index import JobEntry, JobIndex
from binlogd.tidb.model import Job, job_from_json
from binlogd.tls import ClientTls
from binlogd.upstream.store import StoredJob, UpstreamStore

log = structlog.get_logger(__name__)

_PAGE_JOBS = 2048  # what TiDB 8.4 and newer answer at most
_PAGES_MAX = 10_000


_SLICE_BYTES = 4 << 20
"""What is parsed in one go: some milliseconds, in which nothing else is done."""
_READ_JOBS = 200
_NEXT_JOB = re.compile(rb',\s*(?=\{\s*"id"\s*:\s*\d+\s*,\s*"type"\s*:\s*\d+\s*,\s*"schema_id")')


class _BinlogJson(msgspec.Struct):
    schema_version: int = msgspec.field(name="SchemaVersion", default=0)
    finished_ts: int = msgspec.field(name="FinishedTS", default=0)


class _EntryJson(msgspec.Struct):
    id: int
    start_ts: int = 0
    binlog: _BinlogJson | None = None


_ANSWER = msgspec.json.Decoder(list[msgspec.Raw] | None)
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


class SchemaHistory:
    """Jobs by id; `source` "" knows only what is kept."""

    def __init__(
        self,
        source: str,
        store: UpstreamStore,
        limits: HistoryLimits | None = None,
        disk: PosixDisk | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """`tls` is for a URL with https; without it, what this machine trusts is trusted."""
        self._tls = tls
        self._source = source
        self._store = store
        self._limits = limits or HistoryLimits()
        self._disk = disk or PosixDisk(threads=1)
        self._file_seen: tuple[int, int] | None = None
        self._reading = asyncio.Lock()
        self._index: JobIndex | None = None

    async def job(self, job_id: int) -> Job | None:
        """A job, read anew until it is there or the wait is over; None after that.

        Raises UpstreamUnavailable when the history cannot be read, Corrupt when the job cannot.
        """
        clock = asyncio.get_running_loop().time
        limits = self._limits
        wait_s = limits.missing_at_url_s if self._is_url else limits.missing_in_file_s
        deadline_s = clock() + wait_s
        raw = await self._store.job(job_id)
        while raw is None:  # until it is there, or the deadline
            await self._refresh()
            raw = await self._store.job(job_id)
            if raw is None and (not self._source or clock() >= deadline_s):
                return None
            if raw is None:
                log.info("ddl_job_awaited", job_id=job_id, source=self._source)
                await asyncio.sleep(self._limits.retry_interval_s)
        return job_from_json(raw)

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

    @property
    def _is_url(self) -> bool:
        return self._source.startswith(("http://", "https://"))

    async def _refresh(self) -> None:
        async with self._reading:
            if self._is_url:
                await self._read_url()
            elif self._source:
                await self._read_file(Path(self._source))

    async def _read_file(self, path: Path) -> None:
        try:
            state = _size_and_time(path)
            if state == self._file_seen:
                return
            answer = await self._disk.content(path)
        except (OSError, EOFError, zlib.error) as error:
            raise UpstreamUnavailable(f"upstream.schema-history {path}: {error}") from error
        await self._keep_all(answer)
        self._file_seen = state

    async def _read_url(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self._limits.request_timeout_s)
        known = {entry.id for entry in (await self._known()).in_version_order()}
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                jobs = await self._keep_all(await self._page(session, {}))
                for _ in range(_PAGES_MAX):  # back in time, as long as nothing of a page is known
                    oldest = min(jobs, default=0)
                    if len(jobs) < _PAGE_JOBS or oldest <= 1 or oldest in known:
                        return
                    below = {"start_job_id": str(oldest - 1), "limit": str(_PAGE_JOBS)}
                    jobs = await self._keep_all(await self._page(session, below))
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise UpstreamUnavailable(
                f"upstream.schema-history {self._source}: {reason}"
            ) from error

    def _certificates(self) -> ssl.SSLContext | bool:
        """As aiohttp takes them; they may have changed since the last request."""
        return self._tls.fresh() if self._tls is not None else True

    async def _page(self, session: aiohttp.ClientSession, query: dict[str, str]) -> bytes:
        async with session.get(self._source, params=query, ssl=self._certificates()) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(1 << 20):
                body += chunk
                if len(body) > self._limits.answer_bytes_max:
                    raise UpstreamUnavailable(
                        f"upstream.schema-history {self._source}: the answer is larger than"
                        f" {self._limits.answer_bytes_max} bytes"
                    )
            if response.status != 200:
                raise UpstreamUnavailable(
                    f"upstream.schema-history {self._source}: HTTP {response.status}:"
                    f" {bytes(body[:200]).decode('utf-8', 'replace').strip()}"
                )
        return bytes(body)

    async def _keep_all(self, answer: bytes) -> list[int]:
        """Keeps every job of an answer; their ids. Others have their turn in between."""
        found: list[int] = []
        for part in _slices(answer):
            jobs = self._parsed(part)
            found += [entry.id for entry, _ in jobs]
            await self._keep(jobs)
            await asyncio.sleep(0)
        return found

    def _parsed(self, answer: bytes) -> list[StoredJob]:
        try:
            raws = [bytes(raw) for raw in _ANSWER.decode(answer) or []]
            return [(_entry(raw), raw) for raw in raws]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamUnavailable(
                f"upstream.schema-history {self._source}: is not the JSON that TiDB serves at"
                f" /ddl/history (or not all of it yet): {error}"
            ) from error

    async def _keep(self, jobs: Sequence[StoredJob]) -> None:
        known = await self._known()
        new = [(entry, raw) for entry, raw in jobs if entry.id not in known]
        if new:
            await self._store.put_jobs(new)
            known.add(entry for entry, _ in new)
            log.info("ddl_jobs_read", jobs=len(new), source=self._source)

    async def _known(self) -> JobIndex:
        if self._index is None:
            self._index = JobIndex(await self._store.job_entries())
        return self._index


def _entry(raw: bytes) -> JobEntry:
    job = _ENTRY.decode(raw)
    binlog = job.binlog or _NO_BINLOG
    return JobEntry(binlog.finished_ts, job.start_ts, binlog.schema_version, job.id)


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


def _size_and_time(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
