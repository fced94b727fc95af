"""The DDL history for many short walks over the log: made once in a process, not for each of them;
and which tables certainly never had a name: what has rows of these alone, no read of it needs.

Invariant. `tracker_at` gives a tracker that knows all jobs and has applied those over by then.
Why it holds. Two jobs that concern one table run one after the other. So what was over earlier may
be applied first, and the rest then: `apply_finished_by` orders by schema version, which differs
only among jobs that do not concern each other.

Invariant. A table that has the name at any moment of the history is not among `ids_elsewhere`.
Why it holds. It gets its name by a job that has it, in what the job left or in its text, and that
names the table's id. An id goes on in another one (TRUNCATE, EXCHANGE PARTITION) by a job that has
both; so ids that a job has together are told apart by nobody here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

from binlogd.tidb.known_tables import recovered_tables
from binlogd.tidb.model import Job
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

KEPT_MAX = 4
"""Trackers, each of another moment: tasks of a job take their parts in order, nearly."""


class KnownHistory:
    """All jobs as they are known at one time. Nothing of it changes."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = {job.id: job for job in jobs}
        self._finished = sorted(job.finished_ts for job in self.jobs.values() if job.finished_ts)
        self._kept: dict[int, SchemaTracker] = {}
        self._elsewhere: tuple[str, frozenset[int]] | None = None

    def tracker_at(self, moment: Tso, own: int = 0) -> SchemaTracker:
        """The schema that the transaction which commits at this moment finds; if that is a DDL,
        `own` is its job, which comes then. The caller's, to move on."""
        if own in self.jobs:
            tracker = SchemaTracker()
            tracker.load(job for job in self.jobs.values() if job.id != own)
            tracker.apply_finished_by(moment)
            tracker.load([self.jobs[own]])
            return tracker
        over = bisect_right(self._finished, moment)
        if over not in self._kept:
            made = self._made(over, moment)
            while len(self._kept) >= KEPT_MAX:
                del self._kept[min(self._kept)]
            self._kept[over] = made
        tracker = self._kept[over].copy()
        tracker.apply_finished_by(moment)  # nothing is left to apply; which jobs are open, is told
        return tracker

    def elsewhere(self, table: str) -> frozenset[int]:
        """`ids_elsewhere`; a job asks for one table."""
        if self._elsewhere is None or self._elsewhere[0] != table:
            self._elsewhere = table, ids_elsewhere(self.jobs.values(), table)
        return self._elsewhere[1]

    def _made(self, over: int, moment: Tso) -> SchemaTracker:
        earlier = max((each for each in self._kept if each < over), default=None)
        if earlier is not None:
            tracker = self._kept[earlier].copy()
        else:
            tracker = SchemaTracker()
            tracker.load(self.jobs.values())
        tracker.apply_finished_by(moment)
        return tracker


def ids_elsewhere(jobs: Iterable[Job], table: str) -> frozenset[int]:
    """Ids of tables and partitions that the history knows, and that never had to do with a table of
    this name, of whichever database."""
    word = re.compile(rf"(?<!\w){re.escape(table)}(?!\w)", re.IGNORECASE)
    together: dict[int, set[int]] = {}
    named: set[int] = set()
    for job in jobs:
        infos = [each for each in (job.table, *job.tables) if each is not None]
        infos += [each.table for each in recovered_tables(job)]
        ids = {job.table_id, *(each.id for each in infos)} - {0}
        ids.update(part for each in infos for part in each.partition_ids)
        for each in ids:
            together.setdefault(each, set()).update(ids)
        names = [job.table_name, *(each.name for each in infos)]
        if word.search(job.query) or table.lower() in (each.lower() for each in names):
            named |= ids
    reached: set[int] = set()
    while named:  # ends when every id that hangs together with them was reached
        reached |= named
        named = set().union(*(together[each] for each in named)) - reached
    return frozenset(together.keys() - reached)
