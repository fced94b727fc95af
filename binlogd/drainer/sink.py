"""The downstream as the Drainer sees it; every sink keeps these promises (tests/contract).

Invariant. `applied_ts()` never passes a transaction that is not applied and durable downstream, and
never falls. Why: it is what checkpoints are made of, and a restart begins behind the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.trash_names import TrashStatistics
from binlogd.drainer.measures import FileStatistics
from binlogd.drainer.txn import Txn
from binlogd.status import DdlAtWork
from binlogd.telemetry.histogram import HistogramStatistics
from binlogd.tso import NO_TS, Tso


class RowNotFoundRule(Enum):
    """What becomes of an UPDATE or a DELETE whose row is not downstream."""

    STOP = "stop"
    """RowNotFound: an operator decides."""
    REPAIR = "repair"
    """The downstream gets what the upstream holds now; counted."""
    COUNT = "count"
    """Nothing is done, but what a key writes is written; counted."""

    def by_key(self, passed_over: Sized) -> RowNotFoundRule:
        """Of a row that its key finds; `passed_over` are transactions that an operator left out.

        It gets what the upstream has whoever is at fault, so it does not stop where it may be one
        of theirs.
        """
        return RowNotFoundRule.COUNT if self is RowNotFoundRule.STOP and passed_over else self


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """Counters since the sink was made, and how it stands now."""

    applied_ts: Tso = NO_TS
    txns_applied: int = 0
    rows_applied: int = 0
    ddls_applied: int = 0
    lane_ts: tuple[Tso, ...] = ()
    """Progress of each lane; empty for a sink without lanes."""
    txns_queued: int = 0
    rows_queued: int = 0
    bytes_written: int = 0
    retries: int = 0
    retries_by_kind: Mapping[str, int] = field(default_factory=dict)
    """`retries` by what was in the way: contention, connection, read-only, no-room."""
    query_seconds: Mapping[str, HistogramStatistics] = field(default_factory=dict)
    """Of the statements sent to a server, by what they were: exec, commit."""
    files: FileStatistics | None = None
    """Of the writes of a sink that writes files."""
    ddl: DdlAtWork | None = None
    """The DDL that is at work now."""
    rows_not_found: int = 0
    """Rows to be changed that were not there, where the rule is not to stop."""
    furthest_ts: Tso = NO_TS
    """Nothing beyond it is there, not even a part: where no lane is ahead, perhaps NO_TS."""
    values_in_doubt: int = 0
    """DDLs that cut values downstream."""
    trash: TrashStatistics | None = None
    """What was dropped upstream and is kept here; None where nothing is kept."""


class Sink(Protocol):
    """A downstream. Life: `open`, then `run` in a task beside `submit`..., then `close`. After any
    error it is closed and made anew; a sink is never opened twice."""

    async def open(self) -> Checkpoint | None:
        """Connects, creates what is missing and loads the checkpoint; None when there is none yet.

        Progress that is saved with the data counts: `applied_ts()` may be ahead of the checkpoint
        from here on. Raises DownstreamUnavailable, StatementRejected.
        """

    async def run(self) -> None:
        """Applies what is submitted; ends after `close`.

        Raises DownstreamUnavailable when the downstream went away, or a Stuck that waiting cannot
        heal. Everything not applied by then is forgotten; the caller submits it again after a
        restart.
        """

    async def submit(self, txns: Sequence[Txn]) -> None:
        """Hands over transactions in commit order; returns when there is room for more.

        Returning does not mean applied. A Ddl waits for all before it, all after it wait for the
        Ddl. Transactions at or below `applied_ts()` are passed over (they are applied already).
        """

    async def flush(self) -> None:
        """Returns when everything submitted is applied and durable."""

    def applied_ts(self) -> Tso:
        """Every transaction with a commit_ts up to here is applied and durable."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Stores the checkpoint durably, replacing the one before. Raises DownstreamUnavailable."""

    async def close(self) -> None:
        """Lets go of connections and files; what is queued is dropped. Safe to call twice."""

    def statistics(self) -> SinkStatistics:
        """How it stands; cheap."""
