"""The history of DDL jobs: a file with TiDB's answer at /ddl/history, or the URL of that route.

Every job that was seen is kept, so that a job is asked for once, and a history that the upstream
cuts off is not lost. Source: TiDB docs/tidb_http_api.md; pkg/server/handler/tikvhandler.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.tidb.model import Job, job_from_json
from binlogd.upstream.store import UpstreamStore

log = structlog.get_logger(__name__)

_GZIP_MAGIC = b"\x1f\x8b"
_PAGE_JOBS = 2048  # what TiDB 8.4 and newer answer at most
_PAGES_MAX = 10_000


class _Id(msgspec.Struct):
    id: int


_ANSWER = msgspec.json.Decoder(list[msgspec.Raw] | None)
_JOB_ID = msgspec.json.Decoder(_Id)


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
        self, source: str, store: UpstreamStore, limits: HistoryLimits | None = None
    ) -> None:
        self._source = source
        self._store = store
        self._limits = limits or HistoryLimits()
        self._file_seen: tuple[int, int] | None = None
        self._reading = asyncio.Lock()

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

    async def jobs(self) -> list[Job]:
        """Every job, by id. Raises UpstreamUnavailable, Corrupt."""
        await self._refresh()
        return [job_from_json(raw) for raw in await self._store.jobs()]

    async def known_jobs(self) -> list[Job]:
        """Every job that can be told now, by id: without the source, what it told before."""
        try:
            return await self.jobs()
        except UpstreamUnavailable as error:
            log.warning("schema_history_unreachable", cause=str(error))
        return [job_from_json(raw) for raw in await self._store.jobs()]

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
            answer = _content(path)
        except (OSError, EOFError, zlib.error) as error:
            raise UpstreamUnavailable(f"upstream.schema-history {path}: {error}") from error
        await self._keep(self._parsed(answer))
        self._file_seen = state

    async def _read_url(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self._limits.request_timeout_s)
        known = await self._store.job_ids()
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                jobs = await self._page(session, {})
                await self._keep(jobs)
                for _ in range(_PAGES_MAX):  # back in time, as long as nothing of a page is known
                    oldest = min((job_id for job_id, _ in jobs), default=0)
                    if len(jobs) < _PAGE_JOBS or oldest <= 1 or oldest in known:
                        return
                    below = {"start_job_id": str(oldest - 1), "limit": str(_PAGE_JOBS)}
                    jobs = await self._page(session, below)
                    await self._keep(jobs)
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise UpstreamUnavailable(
                f"upstream.schema-history {self._source}: {reason}"
            ) from error

    async def _page(
        self, session: aiohttp.ClientSession, query: dict[str, str]
    ) -> list[tuple[int, bytes]]:
        async with session.get(self._source, params=query) as response:
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
        return self._parsed(bytes(body))

    def _parsed(self, answer: bytes) -> list[tuple[int, bytes]]:
        try:
            raws = [bytes(raw) for raw in _ANSWER.decode(answer) or []]
            return [(_JOB_ID.decode(raw).id, raw) for raw in raws]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamUnavailable(
                f"upstream.schema-history {self._source}: is not the JSON that TiDB serves at"
                f" /ddl/history (or not all of it yet): {error}"
            ) from error

    async def _keep(self, jobs: Sequence[tuple[int, bytes]]) -> None:
        known = await self._store.job_ids()
        new = [(job_id, raw) for job_id, raw in jobs if job_id not in known]
        if new:
            await self._store.put_jobs(new)
            log.info("ddl_jobs_read", jobs=len(new), source=self._source)


def _size_and_time(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content
