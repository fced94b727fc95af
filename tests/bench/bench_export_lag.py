"""What an export costs a running Pump: how late its event loop is while the export runs beside it.

    python -m tests.bench.bench_export_lag [row changes]

The Pump takes writes at a steady rate all the time. `ratio` is the 99th percentile of the loop's
lag while the export runs over that before it; the export is the child process of `binlogd export`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import uvloop

from binlogd.pump.pump import Pump
from binlogd.snapshot.export import ExportOptions, export
from tests.bench.bench_export import history, log
from tests.bench.pump_load import commits, prewrites, report, running_pump
from tests.support.data_directory import write_log

CHANGES = 100_000
ALONE_S = 5.0
BATCH, BATCH_EVERY_S = 50, 0.05
TICK_S = 0.002


class Lag:
    """How late the loop was, each time it was asked."""

    def __init__(self) -> None:
        self.late_s: list[float] = []

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:  # until it is cancelled
            due = time.perf_counter() + TICK_S  # the loop's own clock counts milliseconds
            await asyncio.sleep(TICK_S)
            self.late_s.append(time.perf_counter() - due)

    def percentile_ms(self, share: float) -> float:
        """Of all that was seen."""
        ordered = sorted(self.late_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


class Writer:
    """A thousand transactions a second."""

    def __init__(self, pump: Pump) -> None:
        self._pump, self.written = pump, 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:  # until it is cancelled
            for batch in (
                prewrites(self.written, BATCH, payload_bytes=250),
                commits(self.written, BATCH),
            ):
                assert not any(await self._pump.write(batch))
            self.written += BATCH
            await asyncio.sleep(BATCH_EVERY_S)


@asynccontextmanager
async def watched(writer: Writer) -> AsyncIterator[Lag]:
    """Writes and watches the loop while the block runs."""
    lag = Lag()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(writer.run()), group.create_task(lag.watch())]
        yield lag
        for task in tasks:
            task.cancel()


async def main(changes: int) -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_log(directory / "log", log(changes), segment_bytes=500 << 20)
        options = ExportOptions(
            data_dir=directory / "log",
            out=directory / "out",
            schema_history=history(1),
            cores=1,
        )
        async with running_pump(directory / "pump", shards=4) as pump:
            writer = Writer(pump)
            async with watched(writer) as alone:
                await asyncio.sleep(ALONE_S)
            before = writer.written
            began = asyncio.get_running_loop().time()
            async with watched(writer) as beside:
                result = await export(options)
            seconds = asyncio.get_running_loop().time() - began
    p99, p99_alone = beside.percentile_ms(0.99), alone.percentile_ms(0.99)
    report(
        "export_loop_lag_p99",
        p99,
        "ms",
        ratio=round(p99 / p99_alone, 2),
        alone=round(p99_alone, 2),
        largest=round(beside.percentile_ms(1), 2),
        transactions_per_s=round((writer.written - before) / seconds),
        rows=result.rows,
        seconds=round(seconds, 1),
    )


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES))
