"""End-to-end lag: from the acknowledgement of a Commit to its transaction in the sink's file.

A child process `binlogd serve` on its defaults, fed over gRPC at a fixed rate; the file is looked
at every millisecond, from the process that feeds. Rates are transactions a second; "idle" is one
transaction each 50 ms. A line of JSON a figure.

A transaction can only come out when all whose Prewrites were logged before it have ended: with n
sessions, transactions of which n are under way at a time, that wait is part of the lag.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from binlogd.binlog import BinlogType
from binlogd.client.pump_client import PumpClient
from tests.support.machine import Appliance
from tests.workload.feed import Feeder
from tests.workload.generator import Options, Workload
from tests.workload.sink_tail import SinkTail
from tests.workload.status_port import write_history
from tests.workload.timeline import Habits, Record

RUNS = (("idle", 20, 200, 1), ("load_300", 300, 2400, 4), ("load_1000", 1000, 6000, 8))
"""Name, transactions a second, transactions, sessions."""
LOOK_EVERY_S = 0.001
CATCH_UP_S = 120.0


class Lag:
    """One run: when each Commit was acknowledged, and when it was seen."""

    def __init__(self, workload: Workload, history: Path, rate: int) -> None:
        self._workload = workload
        self._history = history
        self._rate = rate
        self._acknowledged_at: dict[int, float] = {}
        self._seen_at: dict[int, float] = {}
        self._with_rows: set[int] = set()
        self._is_fed = False

    async def run(self, appliance: Appliance) -> list[float]:
        """Lags in seconds, ascending; the DDL at the start is left out."""
        async with PumpClient(appliance.host, appliance.port, cluster_id=1) as client:
            feeder = Feeder([client], acknowledged=self._acknowledged)
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                group.create_task(self._look(appliance.data_dir / "drainer"))
                await feeder.feed(self._paced())
                self._is_fed = True
                limit.reschedule(asyncio.get_running_loop().time() + CATCH_UP_S)
        return sorted(max(0.0, self._seen_at[ts] - at) for ts, at in self._acknowledged_at.items())

    async def _paced(self) -> AsyncIterator[Record]:
        loop = asyncio.get_running_loop()
        begin_s, transactions, published = loop.time(), 0, 0
        for record in self._workload.records():
            if self._workload.job_count != published:
                published = self._workload.job_count
                write_history(self._history, self._workload.history())
            if record.kind == BinlogType.PREWRITE and record.rows:
                transactions += 1
                self._with_rows.add(record.fate.start_ts)
                due_s = begin_s + transactions / self._rate
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
            elif not record.rows:
                begin_s = max(begin_s, loop.time() - transactions / self._rate)
            yield record

    def _acknowledged(self, record: Record) -> None:
        if record.kind == BinlogType.COMMIT and record.fate.start_ts in self._with_rows:
            self._acknowledged_at.setdefault(record.ts, asyncio.get_running_loop().time())

    async def _look(self, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        tail = SinkTail(directory)
        while not (self._is_fed and self._workload.model.last_commit_ts in self._seen_at):
            for commit_ts in tail.poll():
                self._seen_at.setdefault(commit_ts, loop.time())
            await asyncio.sleep(LOOK_EVERY_S)


async def measure(name: str, rate: int, transactions: int, sessions: int) -> None:
    """One rate, on a fresh appliance."""
    workload = Workload(
        Options(
            transactions=transactions,
            sessions=sessions,
            ddl_every=0,
            large=0,
            habits=Habits(repeats=0, late=0, lost=0),
        )
    )
    with tempfile.TemporaryDirectory(prefix="binlogd-lag-") as directory:
        history = Path(directory) / "ddl_history.json"
        write_history(history, b"[]")
        appliance = Appliance(Path(directory) / "binlogd", history=history)
        try:
            await appliance.start()
            lags = await Lag(workload, history, rate).run(appliance)
        finally:
            await appliance.close()
    for share in (50, 99):
        value = lags[len(lags) * share // 100] * 1000
        print(json.dumps({"bench": f"lag_{name}_p{share}", "value": round(value, 2), "unit": "ms"}))


def main() -> None:
    """All rates, one after the other."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for run in RUNS:
        asyncio.run(measure(*run))


if __name__ == "__main__":
    main()
