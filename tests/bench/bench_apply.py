"""Rows from a Pump into a private MariaDB with default durability, on the whole path.

Pull, merge, translate, relay fsync, lanes, progress in the rows' own transaction. Each figure
stands beside that of a Go Drainer with the same load on a machine like this (its default, and its
merge option), and beside MariaDB alone in the same run: plain 128-row REPLACE statements of such
rows, on as many connections. CPU is of this process and of mariadbd. Absolute rates are of one
machine and moment; CPU a row repeats better.

    python tests/bench/bench_apply.py [--share 0.25] [--lanes 2] [--sink] [load ...]

`--sink` leaves out Pump and relay: joined binlogs from memory into the sink.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import structlog
import uvloop

from binlogd.binlog import CommittedBinlog
from binlogd.cli import let_young_objects_gather
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Txn
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from tests.bench.load import (
    Load,
    deletes,
    hot_key,
    inserts,
    many_tables,
    mixed,
    updates,
    wide_rows,
)
from tests.bench.whole_path import Cost, Meter, server_of, through_everything
from tests.support.decoding import decoded
from tests.support.mariadb import MariaDb

BATCH = 256
LIMIT_ROWS = 128
LIMIT_STATEMENTS = 200


@dataclass(frozen=True)
class Peer:
    """The Go Drainer: rows/s by default and with its merge option, CPU seconds of both processes
    for 100 k rows by default."""

    default: float
    merging: float
    cpu_s: float


PEERS = {
    "inserts": Peer(21_900, 36_100, 7.5),
    "updates": Peer(14_500, 28_000, 9.7),
    "mixed": Peer(12_700, 28_000, 12.6),
}
"""Its updates with the merge option were not measured: those of the mixed load stand in."""

LOADS: dict[str, Callable[[float], Load]] = {
    "inserts": lambda share: inserts(int(300_000 * share)),
    "updates": lambda share: updates(int(200_000 * share), int(300_000 * share)),
    "mixed": lambda share: mixed(int(400_000 * share), 10, int(20_000 * share)),
    "deletes": lambda share: deletes(int(200_000 * share)),
    "hot_key": lambda share: hot_key(int(200_000 * share)),
    "wide_rows": lambda share: wide_rows(int(8_000 * share)),
    "many_tables": lambda share: many_tables(int(100_000 * share)),
}


def _txns(load: Load, binlogs: Sequence[CommittedBinlog], translator: Translator) -> Iterator[Txn]:
    jobs = {job.id: job for job in jobs_from_json(load.history)}
    for binlog in binlogs:
        yield translator.translate(decoded(binlog, jobs))


async def _submit(sink: MySqlSink, txns: Iterator[Txn]) -> None:
    batch: list[Txn] = []
    for txn in txns:
        batch.append(txn)
        if len(batch) == BATCH:
            await sink.submit(batch)
            batch = []
    await sink.submit(batch)
    await sink.flush()


async def through_the_sink(
    mariadb: MariaDb, load: Load, lanes: int, *, is_transactional: bool = False
) -> Cost:
    """Rows from joined binlogs in memory."""
    mariadb.reset()
    schema = SchemaTracker()
    schema.load(jobs_from_json(load.history))
    translator = Translator(schema, TableFilter(), Dialect.MYSQL)
    options = MySqlSinkOptions(lanes=lanes, is_transactional=is_transactional)
    sink = MySqlSink(server_of(mariadb), 1, options, Random(1))
    await sink.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        await _submit(sink, _txns(load, load.setup, translator))
        meter = Meter(mariadb)
        await _submit(sink, _txns(load, load.binlogs, translator))
        cost = meter.read()
        await sink.close()
    return cost


async def limit(mariadb: MariaDb, connections: int) -> Cost:
    """MariaDB given plain REPLACE statements of such rows, each a transaction."""
    mariadb.execute(
        "CREATE DATABASE IF NOT EXISTS bench_limit",
        "DROP TABLE IF EXISTS bench_limit.t",
        "CREATE TABLE bench_limit.t (id BIGINT PRIMARY KEY, k INT NOT NULL, c CHAR(120),"
        " pad CHAR(60), dt DATETIME NOT NULL, KEY (k))",
    )
    row = "(%d,%d,'" + "c" * 105 + "','" + "p" * 60 + "','2024-02-02 12:02:30')"
    head = "REPLACE INTO bench_limit.t VALUES "

    async def play(first: int) -> None:
        session = await SqlSession.connect(server_of(mariadb))
        for number in range(first, LIMIT_STATEMENTS, connections):
            ids = range(number * LIMIT_ROWS, (number + 1) * LIMIT_ROWS)
            await session.run((head + ",".join(row % (each, each * 7919) for each in ids)).encode())
        session.close()

    meter = Meter(mariadb)
    async with asyncio.TaskGroup() as group:
        for first in range(connections):
            group.create_task(play(first))
    cost = meter.read()
    mariadb.execute("DROP DATABASE bench_limit")
    return cost


def report(name: str, load: Load, lanes: int, cost: Cost, alone: Cost) -> None:
    """One line of JSON."""
    rate = load.rows / cost.took_s
    rate_alone = LIMIT_ROWS * LIMIT_STATEMENTS / alone.took_s
    own_us, server_us = (s / load.rows * 1e6 for s in (cost.own_s, cost.server_s))
    figure: dict[str, object] = {
        "bench": f"{name}_{load.name}",
        "value": round(rate),
        "unit": "rows/s",
        "ratio": round(rate / rate_alone, 2),
        "lanes": lanes,
        "cpu_us_per_row": round(own_us, 1),
        "mariadbd_us_per_row": round(server_us, 1),
        "plain_replace_rows_per_s": round(rate_alone),
    }
    if peer := PEERS.get(load.name):
        figure["of_go_default"] = round(rate / peer.default, 2)
        figure["of_go_merging"] = round(rate / peer.merging, 2)
        figure["cpu_of_go_default"] = round((own_us + server_us) / (peer.cpu_s * 10), 2)
    print(json.dumps(figure), flush=True)


def _measured(options: argparse.Namespace, mariadb: MariaDb, load: Load, place: Path) -> None:
    gc.collect()
    gc.freeze()
    let_young_objects_gather()  # as binlogd serve does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.sink:
            cost = runner.run(through_the_sink(mariadb, load, options.lanes))
        else:
            cost = runner.run(through_everything(mariadb, load, place, options.lanes))
        alone = runner.run(limit(mariadb, options.lanes))
    report("sink" if options.sink else "apply", load, options.lanes, cost, alone)


def main() -> None:
    """Prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--sink", action="store_true")
    parser.add_argument("loads", nargs="*", metavar="load")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as directory:
        mariadb = MariaDb(Path(directory) / "mariadb", is_durable=True, pool_mb=1024)
        mariadb.directory.mkdir()
        mariadb.start()
        try:
            for number, name in enumerate(options.loads or LOADS):
                place = Path(directory) / str(number)
                _measured(options, mariadb, LOADS[name](options.share), place)
        finally:
            mariadb.stop()


if __name__ == "__main__":
    main()
