"""From joined binlogs to what a sink is given, on one core: scan, schema, filter. CPU time, best
round. `whole walk` is a Drainer without relay log in front of a sink that takes everything at once;
`idle walk` is the wall time of one transaction through an idle Drainer with a relay log on disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import structlog
import uvloop

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.sink import SinkStatistics
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Txn
from binlogd.host.disk import PosixDisk
from binlogd.relay.log import RelayWriter
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.wire import peek
from binlogd.wire.mutation import mutations
from tests.bench.load import Load, inserts, mixed, updates
from tests.support.decoding import decoded
from tests.support.job_history import MemoryHistory

ROUNDS = 5
BATCH = 256
IDLE_TXNS = 500


def report(bench: str, load: Load, cpu_s: float) -> None:
    rows_per_s = load.rows / cpu_s
    cpu_us = round(cpu_s / load.rows * 1e6, 2)
    txns_per_s = round(len(load.binlogs) / cpu_s)
    figure = {"bench": bench, "value": round(rows_per_s), "unit": "rows/s"}
    print(json.dumps({**figure, "cpu_us_per_row": cpu_us, "txns_per_s": txns_per_s}))


def prepared(load: Load) -> Translator:
    """A translator that has seen the setup of a load."""
    jobs = {job.id: job for job in jobs_from_json(load.history)}
    schema = SchemaTracker()
    schema.load(jobs.values())
    translator = Translator(schema, TableFilter(), Dialect.MYSQL)
    for binlog in load.setup:
        translator.translate(decoded(binlog, jobs))
    return translator


def bench_scan(load: Load) -> None:
    best_s = 1e9
    for _ in range(ROUNDS):
        begin_s = process_time()
        for binlog in load.binlogs:
            mutations(peek.body(binlog.payload).prewrite_value)
        best_s = min(best_s, process_time() - begin_s)
    report(f"scan_{load.name}", load, best_s)


def bench_translate(load: Load) -> None:
    translator = prepared(load)
    best_s = 1e9
    for _ in range(ROUNDS):
        begin_s = process_time()
        for binlog in load.binlogs:
            translator.translate(decoded(binlog))
        best_s = min(best_s, process_time() - begin_s)
    report(f"translate_{load.name}", load, best_s)


class Source:
    """Everything that is there, in batches."""

    name = "shard-0"

    def __init__(self, binlogs: Sequence[CommittedBinlog]) -> None:
        self._binlogs = binlogs

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        for begin in range(0, len(self._binlogs), BATCH):
            batch = self._binlogs[begin : begin + BATCH]
            yield Pulled(batch, batch[-1].commit_ts)
        await asyncio.Event().wait()


class TakesAll:
    """A sink that has applied whatever it is given."""

    def __init__(self) -> None:
        self.ts = NO_TS
        self.at_end = asyncio.Event()
        self.end_ts = self.setup_ts = NO_TS
        self.begin_s = 0.0
        self._closed = asyncio.Event()

    async def open(self) -> Checkpoint | None:
        return None

    async def run(self) -> None:
        await self._closed.wait()

    async def submit(self, txns: Sequence[Txn]) -> None:
        if self.ts < self.setup_ts <= txns[-1].commit_ts:
            self.begin_s = process_time()
        self.ts = txns[-1].commit_ts
        if self.ts >= self.end_ts:
            self.at_end.set()

    async def flush(self) -> None:
        return

    def applied_ts(self) -> Tso:
        return self.ts

    async def save(self, checkpoint: Checkpoint) -> None:
        return

    async def close(self) -> None:
        self._closed.set()

    def statistics(self) -> SinkStatistics:
        return SinkStatistics(self.ts)


def drainer_for(load: Load, source: Source, sink: TakesAll, relay: RelayWriter | None) -> Drainer:
    ports = DrainerPorts(
        sources=[source],
        history=MemoryHistory(jobs_from_json(load.history)),
        make_sink=lambda: sink,
        relay=relay,
        table_filter=TableFilter(),
        on_saved=lambda _: None,
    )
    return Drainer(ports, Backoff(Random(1)), DrainerOptions(dialect=Dialect.MYSQL))


async def walk_s(load: Load) -> float:
    sink = TakesAll()
    sink.end_ts = load.binlogs[-1].commit_ts
    drainer = drainer_for(load, Source([*load.setup, *load.binlogs]), sink, None)
    sink.setup_ts = load.setup[-1].commit_ts
    async with asyncio.TaskGroup() as group:
        group.create_task(drainer.run())
        await sink.at_end.wait()
        took_s = process_time() - sink.begin_s
        await drainer.drain()
    return took_s


def bench_walk(load: Load) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        best_s = min(runner.run(walk_s(load)) for _ in range(ROUNDS))
    report(f"whole_walk_{load.name}", load, best_s)


class Drip(Source):
    """Gives the setup at once, then a transaction each time it is asked."""

    def __init__(self, load: Load) -> None:
        super().__init__(load.setup)
        self.drops: asyncio.Queue[CommittedBinlog] = asyncio.Queue()

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        yield Pulled(self._binlogs, self._binlogs[-1].commit_ts)
        while True:  # for as long as it is pulled
            binlog = await self.drops.get()
            yield Pulled([binlog], binlog.commit_ts)


async def idle_lags_ms(load: Load, directory: Path) -> list[float]:
    sink, source, disk = TakesAll(), Drip(load), PosixDisk(threads=2)
    relay = RelayWriter(directory, disk, max_file_bytes=10 << 20)
    drainer = drainer_for(load, source, sink, relay)
    sink.end_ts = load.setup[-1].commit_ts
    lags = []
    async with asyncio.TaskGroup() as group:
        group.create_task(drainer.run())
        await sink.at_end.wait()
        for binlog in load.binlogs[:IDLE_TXNS]:
            await asyncio.sleep(0.005)
            sink.at_end.clear()
            sink.end_ts = binlog.commit_ts
            begin_s = perf_counter()
            source.drops.put_nowait(binlog)
            await sink.at_end.wait()
            lags.append((perf_counter() - begin_s) * 1000)
        await drainer.drain()
    disk.close()
    return sorted(lags)


def bench_idle(load: Load) -> None:
    with (
        TemporaryDirectory() as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        lags = runner.run(idle_lags_ms(load, Path(directory) / "relay"))
    for name, at in (("p50", 0.5), ("p99", 0.99)):
        value = round(lags[int(len(lags) * at)], 2)
        print(json.dumps({"bench": f"idle_walk_{name}", "value": value, "unit": "ms"}))


def main() -> None:
    """Prints its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for load in (inserts(100_000), updates(60_000, 20_000), mixed(60_000, 10, 2_000)):
        bench_scan(load)
        bench_translate(load)
        bench_walk(load)
    bench_idle(inserts(20_000))


if __name__ == "__main__":
    main()
