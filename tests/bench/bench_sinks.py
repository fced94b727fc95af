"""The SQLite and Kafka sinks: rows/s and CPU a row, from transactions in memory until durable.

CPU is of this process with all of its threads; Kafka is a broker of one node in a process of its
own, whose CPU is not counted.

    python tests/bench/bench_sinks.py [--share 0.1] [--rounds 2] [--kafka] [load ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import structlog
import uvloop

from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.kafka.broker import BrokerOptions
from binlogd.drainer.kafka.canal_json import CanalJson
from binlogd.drainer.kafka.debezium import Debezium
from binlogd.drainer.kafka.debezium_json import DebeziumJson
from binlogd.drainer.kafka.message import Notation
from binlogd.drainer.kafka.original import OriginalMessages
from binlogd.drainer.kafka.sink import KafkaSink
from binlogd.drainer.sink import Sink
from binlogd.drainer.sqlite.sink import SqliteSink
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Txn
from binlogd.host.disk import PosixDisk
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from tests.bench.bench_apply import LOADS
from tests.bench.load import Load
from tests.support.decoding import decoded
from tests.support.kafka import Kafka

BATCH = 256
NOTATIONS: dict[str, Callable[[], Notation]] = {
    "original": OriginalMessages,
    "canal": CanalJson,
    "debezium": lambda: Debezium("bench", DebeziumJson()),
}


def _translated(load: Load) -> tuple[list[Txn], list[Txn]]:
    """The setup and what is measured."""
    jobs = {job.id: job for job in jobs_from_json(load.history)}
    schema = SchemaTracker()
    schema.load(jobs.values())
    translator = Translator(schema, TableFilter(), Dialect.FILE)
    setup = [translator.translate(decoded(each, jobs)) for each in load.setup]
    return setup, [translator.translate(decoded(each)) for each in load.binlogs]


async def _submit(sink: Sink, txns: Sequence[Txn]) -> None:
    for begin in range(0, len(txns), BATCH):
        await sink.submit(txns[begin : begin + BATCH])
    await sink.flush()


async def _cost(sink: Sink, setup: Sequence[Txn], txns: Sequence[Txn]) -> tuple[float, float]:
    """Seconds of the clock, and of CPU."""
    await sink.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        await _submit(sink, setup)
        begun_s, cpu_s = perf_counter(), process_time()
        await _submit(sink, txns)
        cost = perf_counter() - begun_s, process_time() - cpu_s
        await sink.close()
    return cost


def _report(name: str, load: Load, make: Callable[[], Sink], rounds: int) -> None:
    setup, txns = _translated(load)
    costs = []
    for _ in range(rounds):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            costs.append(runner.run(_cost(make(), setup, txns)))
    took_s, cpu_s = (min(each) for each in zip(*costs, strict=True))
    figure = {
        "bench": f"{name}_{load.name}",
        "value": round(load.rows / took_s),
        "unit": "rows/s",
        "cpu_us_per_row": round(cpu_s / load.rows * 1e6, 1),
    }
    print(json.dumps(figure), flush=True)


def _sqlite(directory: Path, disk: PosixDisk, load: Load, rounds: int) -> None:
    files = iter(directory / f"{load.name}-{number}.db" for number in range(rounds))
    _report("sqlite", load, lambda: SqliteSink(next(files), disk), rounds)


def _kafka(broker: Kafka, load: Load, rounds: int) -> None:
    for name, notation in NOTATIONS.items():
        topics = iter(f"{name}-{load.name}-{number}" for number in range(rounds))
        _report(f"kafka_{name}", load, partial(_kafka_sink, broker, topics, notation), rounds)


def _kafka_sink(broker: Kafka, topics: Iterator[str], notation: Callable[[], Notation]) -> Sink:
    topic = next(topics)
    options = BrokerOptions(
        addresses=(broker.address,),
        topic=topic,
        progress_topic=f"{topic}-progress",
        client_id="bench",
        partitions=4,
        message_bytes_max=1 << 20,
    )
    return KafkaSink(options, notation())


def main() -> None:
    """Prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kafka", action="store_true", help="Kafka too; it takes a Java runtime.")
    parser.add_argument("loads", nargs="*", metavar="load")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("aiokafka").setLevel(logging.ERROR)  # that a new topic has no leader yet
    loads = [LOADS[name](options.share) for name in options.loads or ("inserts", "updates")]
    disk = PosixDisk(threads=2)
    with tempfile.TemporaryDirectory() as directory:
        for load in loads:
            _sqlite(Path(directory), disk, load, options.rounds)
        if options.kafka:
            (Path(directory) / "kafka").mkdir()
            broker = Kafka(Path(directory) / "kafka")
            broker.start()
            try:
                for load in loads:
                    _kafka(broker, load, options.rounds)
            finally:
                broker.stop()
    disk.close()


if __name__ == "__main__":
    main()
