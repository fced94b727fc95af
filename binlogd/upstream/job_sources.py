"""Where TiDB's own list of DDL jobs is read: a file with its answer at /ddl/history, or that route.

Source: TiDB docs/tidb_http_api.md; pkg/server/handler/tikvhandler.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path

import msgspec

from binlogd.errors import UpstreamUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.host.http import HttpSession, NoAnswer, http_session
from binlogd.host.tls import ClientTls
from binlogd.tidb.job_index import JobIndex
from binlogd.upstream.history import HistoryLimits, JobSource, stored_job
from binlogd.upstream.store import StoredJob

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
            state = _size_and_time(self._path)
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


def _size_and_time(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
