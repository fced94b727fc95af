"""Where slow transactions spent their time between their commit and the downstream.

A part (some hundred transactions that are translated together) notes when it passes a stage. Only
when it is applied, and was slow, is a transaction looked at by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from binlogd.binlog import Pulled
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.host.clock import is_set_within
from binlogd.ports import Clock
from binlogd.telemetry.traces import SlowTransaction, Traces, TraceSpan
from binlogd.tso import Tso, physical_ms

EVERY_S = 0.05
"""Between two looks at what has been applied: how exact the end of a trace is."""
PARTS_MAX = 1_024
PULLS_MAX = 1_024
_TABLES_MAX = 20


class Stages(msgspec.Struct):
    """When a part passed them, in milliseconds since 1970."""

    txns: Sequence[Txn]
    merged_ms: int
    relayed_from_ms: int = 0
    relayed_ms: int = 0
    given_ms: int = 0
    taken_ms: int = 0


class SlowTransactions:
    """Of one Drainer, over its sessions."""

    def __init__(self, traces: Traces, clock: Clock) -> None:
        self._traces, self.now_ms = traces, clock.wall_ms
        self._pulls: deque[tuple[Tso, Tso, int]] = deque(maxlen=PULLS_MAX)
        self._queued: deque[Stages] = deque(maxlen=PARTS_MAX)
        self._given: deque[Stages] = deque(maxlen=PARTS_MAX)

    async def watch(self, applied_ts: Callable[[], Tso], is_over: asyncio.Event) -> None:
        """For one session: what another one was at is told by this one anew."""
        self._pulls.clear()
        self._queued.clear()
        self._given.clear()
        while not is_over.is_set():
            self.applied(applied_ts())
            await is_set_within(is_over, EVERY_S)

    def pulled(self, pulled: Pulled, wall_ms: int) -> None:
        """A source gave binlogs: what they waited for before that was their own Pump."""
        if pulled.binlogs:
            first, last = pulled.binlogs[0].commit_ts, pulled.binlogs[-1].commit_ts
            self._pulls.append((first, last, wall_ms))

    def queued(self, stages: Stages) -> None:
        """Translated, in the relay log, and about to be given to the sink."""
        self._queued.append(stages)

    def given(self, txns: Sequence[Txn], took_s: float) -> None:
        """The sink has it now, and had no room for so long."""
        while self._queued:
            stages = self._queued.popleft()
            if stages.txns is txns:
                stages.taken_ms = self.now_ms()
                # rounded down: it was not given before it was in the relay log
                stages.given_ms = stages.taken_ms - int(took_s * 1000)
                self._given.append(stages)
                return

    def applied(self, applied_ts: Tso) -> None:
        """Everything up to here is downstream, durably."""
        now_ms = self.now_ms()
        while self._given and self._given[0].txns[-1].commit_ts <= applied_ts:
            stages = self._given.popleft()
            for txn in stages.txns:
                began_ms = physical_ms(txn.commit_ts)
                if now_ms - began_ms <= self._traces.slow_ms:
                    break  # the others of the part are younger
                if isinstance(txn, Dml | Ddl):
                    spans = [TraceSpan("transaction", began_ms, now_ms), *self._parts(txn, stages)]
                    spans.append(TraceSpan("commit", stages.taken_ms, now_ms))
                    writes = self._traces.remembered(txn.start_ts, txn.commit_ts)
                    whole = SlowTransaction(txn.start_ts, spans, _attributes(txn))
                    self._traces.add(*writes, whole)

    def _parts(self, txn: Dml | Ddl, stages: Stages) -> Iterator[TraceSpan]:
        commit_ts, commit_ms = txn.commit_ts, physical_ms(txn.commit_ts)
        pulls = (at_ms for first, last, at_ms in self._pulls if first <= commit_ts <= last)
        pulled_ms = min(pulls, default=stages.merged_ms)
        yield TraceSpan("wait", commit_ms, pulled_ms)
        yield TraceSpan("merge", pulled_ms, stages.merged_ms)
        if stages.relayed_ms:
            yield TraceSpan("relay", stages.relayed_from_ms, stages.relayed_ms)
        yield TraceSpan("lane", stages.given_ms, stages.taken_ms)


def _attributes(txn: Dml | Ddl) -> dict[str, str | int | Sequence[str]]:
    if isinstance(txn, Ddl):
        tables, rows = [f"{txn.database}.{txn.table}"], 0
    else:
        tables = [each.table.label for each in txn.changes[:_TABLES_MAX]]
        rows = txn.row_count
    return {
        "binlogd.start_ts": txn.start_ts,
        "binlogd.commit_ts": txn.commit_ts,
        "binlogd.tables": tables,
        "binlogd.rows": rows,
    }
