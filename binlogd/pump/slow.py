"""When writes were: slow ones are told at once, others if their transaction is slow later."""

from __future__ import annotations

from collections.abc import Sequence

from binlogd.ports import Clock
from binlogd.pump.log.entry import WITNESS, Item
from binlogd.telemetry.traces import Traces, WriteTimes


class SlowWrites:
    """Of one Pump, all of its shards."""

    def __init__(self, traces: Traces, clock: Clock) -> None:
        self._traces, self._clock = traces, clock

    def answered(self, items: Sequence[Item], *, came_s: float, begun_s: float) -> None:
        """They are now; came and began to be written (with the sync) so long ago."""
        now_ms = self._clock.wall_ms()
        write = WriteTimes(now_ms - came_s * 1000, now_ms - begun_s * 1000, now_ms)
        binlogs = [item for item in items if item.tp != WITNESS]
        if came_s * 1000 <= self._traces.slow_ms:
            self._traces.remember({item.commit_ts or item.start_ts: write for item in binlogs})
            return
        for item in binlogs:
            self._traces.add(write.as_part(item.start_ts, item.commit_ts))
