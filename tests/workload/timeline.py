"""A simulated timestamp oracle, and the order in which binlogs leave the database.

Timestamps are handed out in the order of this program, so a moment that is later here has a larger
timestamp. Outcomes may leave later than they happened (TiDB writes the Commit binlog after the
transaction is over), or twice (a writer that got no answer asks again).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from binlogd.binlog import BinlogType
from binlogd.tso import NO_TS, Tso, compose, physical_ms
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog, rollback_binlog


@dataclass(slots=True)
class Fate:
    """What becomes of a transaction; commit_ts is 0 until it is handed out."""

    start_ts: Tso
    commit_ts: Tso = NO_TS


@dataclass(frozen=True, slots=True)
class Record:
    """One WriteBinlog request. `ts` is the largest timestamp in it; `rows` those of a Prewrite.

    `pump` is the number of the Pump that it went to, where there were several.
    """

    kind: BinlogType
    ts: Tso
    payload: bytes
    fate: Fate
    rows: int = 0
    is_repeat: bool = False
    pump: int = 0


@dataclass(frozen=True, slots=True)
class Habits:
    """How often binlogs leave late or twice; shares of transactions, delays in turns."""

    repeats: float = 0.02
    late: float = 0.25
    late_turns_max: int = 20
    lost: float = 0.004
    lost_turns_max: int = 400


@dataclass(frozen=True, slots=True)
class DdlMark:
    """The DDL of a transaction, as both of its binlogs carry it."""

    query: bytes
    job_id: int
    schema_state: int


class Timeline:
    """Hands out timestamps and collects what is sent."""

    def __init__(self, rng: random.Random, habits: Habits, *, begin_ms: int) -> None:
        self._rng = rng
        self._habits = habits
        self._now = compose(begin_ms)
        self._turn = 0
        self._leaving: deque[Record] = deque()
        self._delayed: list[tuple[int, int, Record]] = []
        self._serial = 0
        self.repeats = 0
        self.late = 0
        self.lost = 0

    def next_ts(self) -> Tso:
        """A timestamp larger than all before."""
        self._now = Tso(self._now + 1)
        return self._now

    def turn(self) -> None:
        """Time goes on by 0 to 2 ms; delayed binlogs that are due leave."""
        self._turn += 1
        step_ms = self._rng.randrange(3)
        if step_ms:
            self._now = max(self._now, compose(physical_ms(self._now) + step_ms))
        while self._delayed and self._delayed[0][0] <= self._turn:
            self._leaving.append(heapq.heappop(self._delayed)[2])

    def prewrite(
        self,
        fate: Fate,
        key: bytes,
        value: bytes | None = None,
        *,
        ddl: DdlMark | None = None,
        rows: int = 0,
    ) -> None:
        """A Prewrite leaves; now and then twice."""
        payload = prewrite_binlog(
            fate.start_ts,
            prewrite_key=key,
            prewrite_value=value,
            ddl_query=ddl.query if ddl else None,
            ddl_job_id=ddl.job_id if ddl else 0,
            ddl_schema_state=ddl.schema_state if ddl else 0,
        )
        record = Record(BinlogType.PREWRITE, fate.start_ts, payload, fate, rows)
        self._leaving.append(record)
        if self._rng.random() < self._habits.repeats:
            self._leaving.append(self._repeat(record))

    def commit(self, fate: Fate, key: bytes, *, ddl: DdlMark | None = None) -> None:
        """The Commit of a transaction whose commit_ts is known; at once, late or much later."""
        payload = commit_binlog(
            fate.start_ts,
            fate.commit_ts,
            prewrite_key=key,
            ddl_query=ddl.query if ddl else None,
            ddl_job_id=ddl.job_id if ddl else 0,
            ddl_schema_state=ddl.schema_state if ddl else 0,
        )
        self._outcome(Record(BinlogType.COMMIT, fate.commit_ts, payload, fate))

    def rollback(self, fate: Fate, key: bytes) -> None:
        """The Rollback of a transaction that was prewritten and refused."""
        payload = rollback_binlog(fate.start_ts, prewrite_key=key)
        self._outcome(Record(BinlogType.ROLLBACK, fate.start_ts, payload, fate))

    def leaving(self) -> Iterator[Record]:
        """What has left since the last call."""
        while self._leaving:
            yield self._leaving.popleft()

    def rest(self) -> Iterator[Record]:
        """Everything that has not left yet, in its order."""
        yield from self.leaving()
        while self._delayed:
            yield heapq.heappop(self._delayed)[2]

    def _outcome(self, record: Record) -> None:
        chance = self._rng.random()
        if chance < self._habits.lost:
            self.lost += 1
            self._delay(record, self._habits.lost_turns_max)
        elif chance < self._habits.lost + self._habits.late:
            self.late += 1
            self._delay(record, self._habits.late_turns_max)
        else:
            self._leaving.append(record)
        if self._rng.random() < self._habits.repeats:
            self._delay(self._repeat(record), self._habits.lost_turns_max)

    def _delay(self, record: Record, turns_max: int) -> None:
        self._serial += 1
        due = self._turn + self._rng.randint(1, turns_max)
        heapq.heappush(self._delayed, (due, self._serial, record))

    def _repeat(self, record: Record) -> Record:
        self.repeats += 1
        return Record(
            record.kind, record.ts, record.payload, record.fate, record.rows, is_repeat=True
        )
