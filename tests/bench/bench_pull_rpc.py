"""A Pump behind its port, one client: stored transactions pulled from the log, and binlogs written
one after the other.

CPU is that of the whole process, threads and the client included: that one reads frame heads only,
and costs some 1 µs a transaction pulled. It repeats; rates depend on who else uses the machine.
Run: python -m tests.bench.bench_pull_rpc [transactions]
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
import uvloop

from binlogd import native
from binlogd.app import GIL_SWITCH_S
from binlogd.cli import let_young_objects_gather
from binlogd.pump.pump import Pump
from binlogd.tso import NO_TS
from tests.bench.port_load import Wire, behind_port, pulled_bytes
from tests.bench.pump_load import (
    batches,
    commits,
    cpu_s,
    last_commit,
    prewrites,
    report,
    running_pump,
)

SHARDS, ROUNDS, SINGLE = 4, 3, 3_000


async def pulled(name: str, pump: Pump, port: int, transactions: int) -> None:
    """The first pull from an index, which looks whether it lacks something, and the best of some
    that follow."""
    wire = await Wire.to(port)
    found: list[tuple[float, float]] = []
    data_bytes = 0
    for _ in range(ROUNDS):
        if not data_bytes:
            begin = time.perf_counter(), cpu_s()
            data_bytes = await pulled_bytes(pump, last_commit(transactions))
            report(f"{name}_first", (cpu_s() - begin[1]) / transactions * 1e6, "us/transaction")
        begin = time.perf_counter(), cpu_s()
        await wire.pull(NO_TS, data_bytes)
        found.append((cpu_s() - begin[1], time.perf_counter() - begin[0]))
    wire.close()
    best_s, took_s = min(found)
    form, rate = native.form(), round(transactions / took_s)
    report(name, best_s / transactions * 1e6, "us/transaction", form=form, per_s=rate)


async def written(port: int, first: int) -> None:
    """One call in flight."""
    wire = await Wire.to(port)
    took: list[float] = []
    begin_s = cpu_s()
    for number in range(first, first + SINGLE):
        for payloads in (prewrites(number, 1, payload_bytes=200), commits(number, 1)):
            sent_s = time.perf_counter()
            await wire.write(payloads)
            took.append(time.perf_counter() - sent_s)
    each_us = (cpu_s() - begin_s) / len(took) * 1e6
    wire.close()
    took.sort()
    p50_ms, p99_ms = statistics.median(took) * 1e3, took[len(took) * 99 // 100] * 1e3
    report("write_single", each_us, "us/binlog", form=native.form(), p50_ms=p50_ms, p99_ms=p99_ms)


async def main(transactions: int) -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    sys.setswitchinterval(GIL_SWITCH_S)  # as the appliance does
    gc.freeze()
    let_young_objects_gather()
    with TemporaryDirectory() as home:
        directory = Path(home)
        async with running_pump(directory, shards=SHARDS) as pump:
            for batch in batches(transactions, 500, payload_bytes=200):
                assert not any(await pump.write(batch))
        async with running_pump(directory, shards=SHARDS) as pump, behind_port(pump) as port:
            await pulled("pull_rpc_from_log", pump, port, transactions)
            await written(port, transactions)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
