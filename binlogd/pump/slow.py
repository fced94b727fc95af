"""Writes that were slow, told by the transactions in them."""

from __future__ import annotations

from collections.abc import Sequence

from binlogd.ports import Clock
from binlogd.pump.log.entry import WITNESS, Item
from binlogd.telemetry.traces import SlowTransaction, Traces, TraceSpan


class SlowWrites:
    """Of one Pump, all of its shards."""

    def __init__(self, traces: Traces, clock: Clock) -> None:
        self.slow_s = traces.slow_ms / 1000
        self._traces, self._clock = traces, clock

    def tell(self, items: Sequence[Item], *, came_s: float, begun_s: float) -> None:
        """They were answered now; came and began to be written (with the sync) so long ago."""
        now_ms = self._clock.wall_ms()
        spans = [
            TraceSpan("write", now_ms - came_s * 1000, now_ms),
            TraceSpan("sync", now_ms - begun_s * 1000, now_ms),
        ]
        for item in items:
            if item.tp != WITNESS:
                told = {"binlogd.start_ts": item.start_ts, "binlogd.commit_ts": item.commit_ts}
                self._traces.add(SlowTransaction(item.start_ts, spans, told))
