"""Traces of slow transactions, on their way to whoever collects them.

A fast transaction costs one comparison in each half. What a slow one spent where is kept here, in a
queue with a limit, until the next batch is sent; what does not fit is counted and gone.

The id of a trace is made of the start_ts: what a Pump tells of a transaction and what Drainers tell
of it is one trace, wherever they run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from binlogd.telemetry.exposition import Exposition
from binlogd.tso import NO_TS, Tso

QUEUED_MAX = 1_000
BATCH_MAX = 256
WRITES_MAX = 65_536
"""Twice as many binlogs at most are remembered, in some MiB: of a lag of seconds at full speed."""


class TraceSpan(NamedTuple):
    """A stretch of time, in milliseconds since 1970."""

    name: str
    begin_ms: float
    end_ms: float


class SlowTransaction(NamedTuple):
    """The whole of it first, then its parts."""

    start_ts: Tso
    spans: Sequence[TraceSpan]
    attributes: Mapping[str, str | int | Sequence[str]]


class WriteTimes(NamedTuple):
    """When a binlog came, when its group began to be written, and when both were answered for: in
    milliseconds since 1970."""

    came_ms: float
    begun_ms: float
    answered_ms: float

    def as_part(self, start_ts: Tso, commit_ts: Tso) -> SlowTransaction:
        """A part of the trace of its transaction; without a commit_ts it was the prewrite."""
        write = TraceSpan("write", self.came_ms, self.answered_ms)
        sync = TraceSpan("sync", self.begun_ms, self.answered_ms)
        attributes = {"binlogd.start_ts": start_ts, "binlogd.commit_ts": commit_ts}
        return SlowTransaction(start_ts, [write, sync], attributes)


class TracesRefused(Exception):
    """The collector did not take a batch; the text says why."""


Export = Callable[[Sequence[SlowTransaction]], None]
"""Blocks until a batch is taken, in a thread. Raises TracesRefused."""


class Traces:
    """Owned by the loop: `add` beside whoever takes and sends."""

    def __init__(self, slow_s: float) -> None:
        self.slow_ms = slow_s * 1000
        self.exported = self.dropped = 0
        self._queue: deque[SlowTransaction] = deque()
        self._writes: dict[Tso, WriteTimes] = {}
        self._older_writes: dict[Tso, WriteTimes] = {}

    def add(self, *parts: SlowTransaction) -> None:
        """Takes them, or counts them where too many wait: half of a trace misleads."""
        if len(self._queue) + len(parts) > QUEUED_MAX:
            self.dropped += len(parts)
        else:
            self._queue.extend(parts)

    def remember(self, writes: Mapping[Tso, WriteTimes]) -> None:
        """Quick ones, should their transaction be slow later: by commit_ts, a prewrite by its
        start_ts. The oldest are forgotten."""
        self._writes.update(writes)
        if len(self._writes) >= WRITES_MAX:
            self._writes, self._older_writes = {}, self._writes

    def remembered(self, start_ts: Tso, commit_ts: Tso) -> list[SlowTransaction]:
        """The writes of prewrite and commit, as far as they are known here."""
        return [
            write.as_part(start_ts, outcome_ts)
            for ts, outcome_ts in ((start_ts, NO_TS), (commit_ts, commit_ts))
            if (write := self._writes.get(ts) or self._older_writes.get(ts)) is not None
        ]

    def take(self) -> list[SlowTransaction]:
        """The next batch, which is not kept here any more."""
        return [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]

    def say(self, out: Exposition) -> None:
        """Its metrics."""
        out.counter("binlogd_traces_exported", "Of slow transactions.", self.exported)
        out.counter("binlogd_traces_dropped", "Refused, or too many at once.", self.dropped)
