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
from binlogd.tso import Tso

QUEUED_MAX = 1_000
BATCH_MAX = 256


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

    def add(self, slow: SlowTransaction) -> None:
        """Takes it, or counts it where too many wait."""
        if len(self._queue) >= QUEUED_MAX:
            self.dropped += 1
        else:
            self._queue.append(slow)

    def take(self) -> list[SlowTransaction]:
        """The next batch, which is not kept here any more."""
        return [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]

    def say(self, out: Exposition) -> None:
        """Its metrics."""
        out.counter("binlogd_traces_exported", "Of slow transactions.", self.exported)
        out.counter("binlogd_traces_dropped", "Refused, or too many at once.", self.dropped)
