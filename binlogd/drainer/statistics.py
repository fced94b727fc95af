"""How a Drainer stands, for whoever looks from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.measures import DrainerMeasuresStatistics
from binlogd.drainer.sink import SinkStatistics
from binlogd.errors import Failure
from binlogd.merge.merge import MergeStatistics
from binlogd.relay.log import RelayStatistics
from binlogd.tso import NO_TS, Tso, behind_s

Seen = TypeVar("Seen")


class DrainerState(StrEnum):
    """What the Drainer is doing."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    STUCK = "stuck"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class DrainerStatistics:
    """How the Drainer stands, as its sessions left it, or as the present one has it."""

    checkpoint: Checkpoint
    applied_ts: Tso
    measures: DrainerMeasuresStatistics
    state: DrainerState = DrainerState.STARTING
    failure: Failure | None = None
    """Stays until a session makes progress."""
    not_saved: str = ""
    """Why what is behind the checkpoint could not be saved; "" where it could."""
    first_ts: Tso = NO_TS
    """Of the first transaction that was pulled."""
    sessions_begun: int = 0
    transactions_skipped: int = 0
    """For a reason that was logged; not those that filters leave out."""
    values_in_doubt: int = 0
    """DDLs before which rows may have had values of the columns that they add; each was logged."""
    unforeseen_errors: int = 0
    """Sessions that ended with an exception that nobody foresaw."""
    expiring: tuple[str, ...] = ()
    """Tables whose rows the upstream deletes by age, in no binlog."""
    failed_in_a_row: int = 0
    """Sessions that ended with an error since the last one that made progress."""
    retry_in_s: float = 0.0
    """Until the next attempt; 0 while none is waited for."""
    merge: MergeStatistics | None = None
    sink: SinkStatistics | None = None
    relay: RelayStatistics | None = None

    @property
    def last_error(self) -> str:
        """The failure as a sentence; "" when there is none."""
        return self.failure.sentence if self.failure is not None else ""

    @property
    def resolved_ts(self) -> Tso:
        """Up to where all sources have promised."""
        return self.merge.resolved_ts if self.merge else self.applied_ts

    @property
    def reached_ts(self) -> Tso:
        """What a lag is counted from: `applied_ts`; where nothing is applied yet, just before the
        first transaction that was pulled."""
        return self.applied_ts or Tso(max(NO_TS, self.first_ts - 1))

    @property
    def newest_ts(self) -> Tso:
        """The newest promise of any source."""
        promised = (each.resolved_ts for each in self.merge.sources) if self.merge else ()
        return max(promised, default=self.applied_ts)

    @property
    def lag_s(self) -> float | None:
        """In upstream time, from `reached_ts` to `newest_ts`; None before the first promise, and
        where `behind_s` knows none."""
        return behind_s(self.reached_ts, self.newest_ts) if self.merge else None

    @property
    def blocking(self) -> str:
        """What it waits for: a source, "downstream", a DDL or the error; "" for nothing."""
        if self.sink is not None and (ddl := self.sink.ddl) is not None:
            stage = f" ({ddl.stage})" if ddl.stage else ""
            return f"the DDL of commit_ts {ddl.commit_ts}, at work for {ddl.elapsed_s:.0f} s{stage}"
        if self.state in (DrainerState.STUCK, DrainerState.RETRYING):
            return self.last_error
        if self.merge is None or self.applied_ts >= self.newest_ts:
            return ""
        return "downstream" if self.applied_ts < self.merge.resolved_ts else self.merge.blocking


class Looks:
    """Who looks at parts of a session sees them as they were before, where looking fails: the fault
    is for the session, which owns them and ends by it."""

    def __init__(self) -> None:
        self.fault: Exception | None = None

    def at(self, look: Callable[[], Seen], otherwise: Seen) -> Seen:
        """What `look` tells, or what was seen before."""
        try:
            return look()
        except Exception as error:  # noqa: BLE001 - the session raises it
            self.fault = self.fault or error
            return otherwise
