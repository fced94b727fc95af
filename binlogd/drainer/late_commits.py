"""Commits that came below what their shard had promised, as a session meets them.

Invariant. No session replicates beyond a commit that is known to have been left out, and none is
held by a commit that it will get in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import structlog

from binlogd.binlog import Late
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.sink import Sink
from binlogd.errors import BinlogdError, LateCommit, OutOfOrder
from binlogd.tso import Tso

log = structlog.get_logger(__name__)


class UndecidedLateCommits(Protocol):
    """Those that nobody has dealt with."""

    def unresolved(self) -> Sequence[Late]:
        """Some of them, and none only when there is none; cheap."""
        ...

    async def resolve(self, commit_tss: Collection[Tso]) -> None:
        """These are dealt with, durably. Raises Unavailable."""
        ...


def reached(sink: Sink, applied_ts: Tso) -> Tso:
    """How far any part of the downstream may have come."""
    return max(applied_ts, sink.applied_ts(), *sink.statistics().lane_ts)


async def begin(late: UndecidedLateCommits, table_filter: TableFilter, reached_ts: Tso) -> None:
    """Before a session pulls: those that are passed over are dealt with, and so are those beyond
    `reached_ts`, which it gets in their place. Raises LateCommit for the first other one."""
    while found := late.unresolved():  # ends when each is dealt with, some thousands at a time
        dealt_with = {
            each.commit_ts
            for each in found
            if each.commit_ts > reached_ts or table_filter.ignores_transaction(each.commit_ts)
        }
        left = [each for each in found if each.commit_ts not in dealt_with]
        if dealt_with:
            log.info("late_commits_dealt_with", count=len(dealt_with), left=len(left))
            await late.resolve(dealt_with)
        if left:
            first = min(left, key=lambda each: each.commit_ts)
            raise LateCommit(*first, others=len(left) - 1)


def came(
    late: UndecidedLateCommits, table_filter: TableFilter, reached_ts: Tso
) -> BinlogdError | None:
    """Why a session that runs must end: a commit came late since it began."""
    found = late.unresolved()
    if not found:
        return None
    left = [
        each
        for each in found
        if each.commit_ts <= reached_ts and not table_filter.ignores_transaction(each.commit_ts)
    ]
    first = min(left or found, key=lambda each: each.commit_ts)
    return LateCommit(*first, others=len(left) - 1) if left else OutOfOrder(*first)
