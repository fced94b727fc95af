"""A DDL history in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from binlogd.errors import UpstreamUnavailable
from binlogd.tidb.job_index import JobIndex, entry_of
from binlogd.tidb.model import Job


class MemoryHistory:
    """Jobs by id; more may be put into `known` at any time. `read_jobs` counts those asked for."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.known = {job.id: job for job in jobs}
        self.is_down = False
        self.jobs_read = 0

    async def job(self, job_id: int) -> Job | None:
        self._check()
        return self.known.get(job_id)

    async def index(self) -> JobIndex:
        self._check()
        return JobIndex(entry_of(job) for job in self.known.values())

    async def read(self, job_ids: Sequence[int]) -> list[Job]:
        self.jobs_read += len(job_ids)
        return [self.known[job_id] for job_id in job_ids]

    def _check(self) -> None:
        if self.is_down:
            raise UpstreamUnavailable("no history today")
