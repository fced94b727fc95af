"""What more shards cost: the same load on 1 to 64, in batches and one binlog at a time."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop

from tests.bench.pump_load import batches, cpu_s, report, running_pump

COUNTS = (1, 4, 16, 64)
FEW = 4


async def written(shards: int, transactions: int, *, batch: int, in_flight: int) -> float:
    """CPU microseconds for each binlog."""
    with TemporaryDirectory() as home:
        async with running_pump(Path(home), shards=shards) as pump:
            left = batches(transactions, batch, payload_bytes=200)
            begin_s, begin_cpu_s = time.perf_counter(), cpu_s()

            async def write() -> None:
                for payloads in left:
                    assert not any(await pump.write(payloads))

            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(write())
            took_s, cpu_us = time.perf_counter() - begin_s, (cpu_s() - begin_cpu_s) * 1e6
    binlogs = 2 * transactions
    report(
        f"shards_batch_{batch}",
        binlogs / took_s,
        "binlogs/s",
        shards=shards,
        in_flight=in_flight,
        cpu_us=round(cpu_us / binlogs, 1),
    )
    return cpu_us / binlogs


async def main(transactions: int) -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    for batch, in_flight in ((256, 4), (32, 4), (1, 64)):
        cost = {
            shards: await written(shards, transactions, batch=batch, in_flight=in_flight)
            for shards in COUNTS
        }
        report(f"shards_64_to_4_batch_{batch}", cost[64] / cost[FEW], "times the CPU")


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
