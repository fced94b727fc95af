"""When a binlog may be sent, if several are in flight.

Invariant. A timestamp T reaches the Pump only when every Prewrite is acknowledged whose transaction
commits at or below T. In life nothing else can happen: a commit_ts is handed out after the Prewrite
was acknowledged, and T was handed out later still. A Pump takes T as a promise about all below it,
so a replay that breaks this would make it forget transactions.
"""

from __future__ import annotations

from binlogd.binlog import BinlogType
from tests.workload.timeline import Fate, Record


class HoldBack:
    """Watches what is in flight. Records are offered in their order, one at a time."""

    def __init__(self) -> None:
        self._open: dict[int, Fate] = {}

    def must_wait(self, record: Record) -> bool:
        """Whether the record has to wait for the acknowledgement of something sent before it."""
        if record.kind != BinlogType.PREWRITE and record.fate.start_ts in self._open:
            return True
        return any(0 < fate.commit_ts <= record.ts for fate in self._open.values())

    def sent(self, record: Record) -> None:
        """The record is on its way."""
        if record.kind == BinlogType.PREWRITE and not record.is_repeat:
            self._open[record.fate.start_ts] = record.fate

    def acknowledged(self, record: Record) -> None:
        """The Pump has it durably."""
        if record.kind == BinlogType.PREWRITE:
            self._open.pop(record.fate.start_ts, None)
