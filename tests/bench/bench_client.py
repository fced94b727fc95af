"""What choosing a Pump costs a client: PumpsClient over three Pumps against PumpClient at one.

64 transactions in flight, each a prewrite of some 100 bytes and its commit; client and Pumps (in
memory, behind real ports) share one process, so the figures are for comparing with each other.
Run: python -m tests.bench.bench_client
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from time import process_time

import uvloop

from binlogd.client.directory import FixedPumps
from binlogd.client.pump_client import PumpClient
from binlogd.client.pumps_client import PumpsClient
from binlogd.client.strategy import Strategy
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from binlogd.telemetry.logs import Lines, set_up_logging
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.support.memory_pump import Cluster, MemoryPump

IN_FLIGHT = 64
TRANSACTIONS = 640
ROUNDS = 2

Write = Callable[[bytes], Awaitable[None]]


def main() -> None:
    """Prints one line for each strategy, the ratio to one Pump without a choice beside it."""
    set_up_logging("error", Lines(sys.stderr))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure())


async def _measure() -> None:
    numbers = count(1)
    best: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(_pump()) for _ in range(3)]
        alone = await stack.enter_async_context(PumpClient(*addresses[0], cluster_id=1))
        ways: dict[str, Write] = {"alone": alone.write}
        for strategy in Strategy:
            several = PumpsClient(FixedPumps(*addresses), cluster_id=1, strategy=strategy)
            ways[strategy.value] = (await stack.enter_async_context(several)).write
        for _ in range(ROUNDS):
            for name, write in ways.items():
                took_us = await _us_a_write(write, numbers)
                best[name] = min(took_us, best.get(name, took_us))
    for name, value in best.items():
        line = {"bench": f"client_{name}_cpu", "value": round(value, 1), "unit": "us/write"}
        print(json.dumps({**line, "ratio": round(value / best["alone"], 2)}))


@asynccontextmanager
async def _pump() -> AsyncIterator[tuple[str, int]]:
    service = PumpService(MemoryPump(), Cluster(1))
    server = Server([service], sinks=service.sinks())
    yield await server.start("127.0.0.1", 0)
    await service.close()
    await server.close()


async def _us_a_write(write: Write, numbers: count[int]) -> float:
    async def some() -> None:
        for _ in range(TRANSACTIONS // IN_FLIGHT):
            start, commit = Tso(next(numbers)), Tso(next(numbers))
            await write(prewrite_binlog(start, prewrite_key=b"k", prewrite_value=bytes(64)))
            await write(commit_binlog(start, commit))

    begin_s = process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(some())
    return (process_time() - begin_s) / (2 * TRANSACTIONS) * 1e6


if __name__ == "__main__":
    main()
