"""Pulling eight shards into one order: from memory, and from index and log after a restart. And how
long an idle commit takes to arrive."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop

from binlogd.merge.stream import merged
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.tso import NO_TS, Tso
from tests.bench.pump_load import (
    batches,
    commits,
    cpu_s,
    last_commit,
    prewrites,
    report,
    running_pump,
)

SHARDS = 8


async def drained(pump: Pump, transactions: int) -> int:
    """Binlogs that the merge gives, up to the last commit."""
    found = 0
    async with merged(pump.sources(), NO_TS) as stream:
        async for batch in stream:
            found += len(batch.binlogs)
            if batch.resolved_ts >= last_commit(transactions):
                return found
    return found


async def timed(name: str, pump: Pump, transactions: int) -> None:
    """One figure."""
    begin_s, begin_cpu_s = time.perf_counter(), cpu_s()
    found = await drained(pump, transactions)
    took_s, took_cpu_s = time.perf_counter() - begin_s, cpu_s() - begin_cpu_s
    assert found == transactions, f"{found} binlogs, not {transactions}"
    cpu_us = round(took_cpu_s / found * 1e6, 2)
    report(name, found / took_s, "binlogs/s", shards=SHARDS, cpu_us=cpu_us)


async def idle_latency(pump: Pump, transactions: int, count: int = 300) -> None:
    """From the acknowledgement of a commit to its arrival, with nothing else going on."""
    arrived: list[tuple[Tso, float]] = []
    acknowledged: dict[Tso, float] = {}
    first = transactions

    async def pull() -> None:
        async with merged(pump.sources(), last_commit(transactions)) as stream:
            async for batch in stream:
                arrived.extend((binlog.commit_ts, time.perf_counter()) for binlog in batch.binlogs)
                if len(arrived) >= count:
                    return

    async with asyncio.TaskGroup() as group:
        puller = group.create_task(pull())
        for number in range(first, first + count):
            assert not any(await pump.write(prewrites(number, 1, payload_bytes=200)))
            assert not any(await pump.write(commits(number, 1)))
            acknowledged[last_commit(number + 1)] = time.perf_counter()
            await asyncio.sleep(0.002)
        await puller
    lags = sorted(max(0.0, at_s - acknowledged[ts]) for ts, at_s in arrived)
    report("pull_idle_lag_p50", statistics.median(lags) * 1000, "ms")
    report("pull_idle_lag_p99", lags[int(len(lags) * 0.99)] * 1000, "ms")


async def main(transactions: int) -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    options = PumpOptions(free_bytes_min=1, window_bytes_max=1 << 30)
    with TemporaryDirectory() as home:
        directory = Path(home)
        async with running_pump(directory, shards=SHARDS, options=options) as pump:
            for batch in batches(transactions, 500, payload_bytes=200):
                assert not any(await pump.write(batch))
            await timed("pull_merge_from_memory", pump, transactions)
        async with running_pump(directory, shards=SHARDS, options=options) as pump:
            await timed("pull_merge_from_log", pump, transactions)
            await idle_latency(pump, transactions)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
