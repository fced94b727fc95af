"""What is known of every DDL job without its JSON: when it ran, and what version it made.

A history holds tens of thousands of jobs, of which only those in flight matter to the rows of a
moment. This tells which they are, so that the others need not be held in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from binlogd.tidb.model import Job

_NEVER = (1 << 63) - 1


class JobEntry(NamedTuple):
    """Of one job. `finished_ts` 0: nobody knows; it lies behind the commit_ts of its binlog."""

    finished_ts: int
    start_ts: int
    schema_version: int
    id: int


def entry_of(job: Job) -> JobEntry:
    """A job as an index knows it."""
    return JobEntry(job.finished_ts, job.start_ts, job.schema_version, job.id)


class JobIndex:
    """Jobs by the time when they were over; grows, mostly at its end."""

    def __init__(self, entries: Iterable[JobEntry] = ()) -> None:
        self._entries: list[JobEntry] = []
        self._ids: set[int] = set()
        self._highest: list[int] = []
        """The highest schema version up to each entry."""
        self._earliest: list[int] = []
        """The earliest start from each entry on."""
        self.add(entries)

    def __contains__(self, job_id: int) -> bool:
        """Whether the job is known."""
        return job_id in self._ids

    def __len__(self) -> int:
        """How many jobs are known."""
        return len(self._ids)

    def add(self, entries: Iterable[JobEntry]) -> None:
        """Knowing one twice is fine."""
        new = sorted(
            {
                entry.id: entry if entry.finished_ts else entry._replace(finished_ts=_NEVER)
                for entry in entries
                if entry.id not in self._ids
            }.values()
        )
        if not new:
            return
        self._ids.update(entry.id for entry in new)
        if len(new) > 1 or (self._entries and new[0] < self._entries[-1]):
            self._entries = sorted([*self._entries, *new])
            self._highest = list(accumulate((e.schema_version for e in self._entries), max))
            starts = (entry.start_ts for entry in reversed(self._entries))
            self._earliest = list(accumulate(starts, min))[::-1]
            return
        entry = new[0]
        self._entries.append(entry)
        self._highest.append(max(entry.schema_version, self._highest[-1] if self._highest else 0))
        self._earliest.append(entry.start_ts)
        for at in range(len(self._earliest) - 2, -1, -1):
            if self._earliest[at] <= entry.start_ts:
                break
            self._earliest[at] = entry.start_ts

    def copy(self) -> JobIndex:
        """Another one with the same entries."""
        other = JobIndex()
        other._entries, other._ids = self._entries.copy(), self._ids.copy()
        other._highest, other._earliest = self._highest.copy(), self._earliest.copy()
        return other

    def in_version_order(self) -> list[JobEntry]:
        """All of them, as the original applies a history."""
        return sorted(self._entries, key=lambda entry: (entry.schema_version, entry.id))

    def in_flight(self, after: int, up_to: int) -> list[int]:
        """The ids of jobs that rows in `after < commit_ts <= up_to` may meet, begun and not over.
        Only of those that make a schema version."""
        found = []
        at = bisect_right(self._entries, after, key=_finished)
        while at < len(self._entries) and self._earliest[at] <= up_to:
            entry = self._entries[at]
            if entry.start_ts <= up_to and entry.schema_version > 0:
                found.append(entry.id)
            at += 1
        return found

    def in_use(self, ts: int) -> int:
        """The highest schema version of the jobs that were over before `ts`."""
        before = bisect_left(self._entries, ts, key=_finished)
        return self._highest[before - 1] if before else 0


def _finished(entry: JobEntry) -> int:
    return entry.finished_ts
