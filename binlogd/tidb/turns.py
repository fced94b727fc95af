"""From when on rows see what a DDL of partitions leaves: the one rule for all that follow rows.

A binlog tells of a row its table, the schema version that its transaction began with, and when it
was committed; never the partition. A DDL of partitions takes these steps, each a schema version:

    DROP         hides its partitions; takes a step that rows do not see; drops them with their rows
    TRUNCATE     puts an empty partition in the place of each, at once
    EXCHANGE     puts the partition and the plain table in each other's place, at once
    REORGANIZE   writes rows twice and copies the older ones; ends with the new partitions

Its binlog stands where the last step was made, which sessions learn of a little later. So rows that
have not seen that step come behind the binlog: what they wrote to a truncated partition is gone,
and what they wrote to an exchanged one is in the other table now. Rows that no longer see a
partition that is being dropped come before the binlog: they lie in the next one, and stay.

Why a version is not all. A transaction takes a table as it is when it first uses it, which may be
newer than the version that it began with. TiDB ends no step before every transaction that used the
table as it was is over: so a row that commits behind the next step has seen this one, whatever its
version says. In between nobody can know (`is_doubtful`), and the version is the best guess.
Source: pingcap/tidb ddl/partition.go, ddl/ddl_worker.go (writeBinlog, waitSchemaSynced),
planner/core/preprocess.go (tryLockMDLAndUpdateSchemaIfNecessary), table/tables/partition.go.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from binlogd.tidb.kinds import ActionType
from binlogd.tidb.model import Job

_STEPS_FROM_END: dict[int, int] = {ActionType.DROP_TABLE_PARTITION: 2}
"""Schema versions of its own that a job makes behind the one that rows see; else it is the last."""

ROWS_IN_DOUBT = "rows_of_a_partition_in_doubt"
UNKNOWN = "they were written while it was at work, and no binlog tells whether they saw it"
COMPARE = "compare the rows of the table that changed in this time with the upstream"
"""What everybody says of rows that are in doubt: the event, its cause, and what to do."""


class Turn(NamedTuple):
    """When rows begin to see a DDL: in `version` or, where other jobs ran beside it, in one up to
    `sure_version`; none that committed up to `published_ts`, all that did behind `settled_ts`."""

    version: int
    sure_version: int
    published_ts: int
    settled_ts: int

    def is_seen(self, version: int, commit_ts: int) -> bool:
        """Whether a row saw it, by all that is known."""
        return version >= self.version or commit_ts > self.settled_ts

    def is_doubtful(self, version: int, commit_ts: int) -> bool:
        """Whether nobody can know that."""
        is_between = self.published_ts < commit_ts <= self.settled_ts
        return is_between and version < self.sure_version

    def seen(self, version: int, commit_ts: int) -> int:
        """The schema version by which a row is looked at: as new as what it is known to have
        seen."""
        return max(version, self.version) if commit_ts > self.settled_ts else version


def step_version(job: Job, steps: int, others: Container[int]) -> int:
    """The version of a step of a job, so many of its own before its last, or a later one."""
    version = job.schema_version
    for _ in range(steps):
        version -= 1
        while version in others:
            version -= 1
    return version


def turn_of(job: Job, done_ts: int, others: Container[int], known_version: int = 0) -> Turn:
    """The turn of a job whose binlog has this commit_ts.

    `others` are the last versions of other jobs. `known_version` is the highest that rows had which
    began before the job did, 0 where nobody looked.
    """
    steps = _STEPS_FROM_END.get(job.type, 0)
    if not steps:
        settled_ts = max(done_ts, job.finished_ts)
        return Turn(job.schema_version, job.schema_version, done_ts, settled_ts)
    latest = step_version(job, steps, others)
    first = min(known_version + 1, latest) if known_version else latest
    while first in others:
        first += 1
    return Turn(first, latest, job.began_ts, done_ts)
