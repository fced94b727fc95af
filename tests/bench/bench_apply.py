"""Joined binlogs into a private MariaDB with default durability: translate, decode, apply.

The limit is measured in the same run: MariaDB alone, given the very statements that the sink makes,
built before, on as many connections. CPU is of this process and of mariadbd.

    python tests/bench/bench_apply.py [share of the full loads, default 0.25] [lanes, default 4]
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import structlog
import uvloop

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.ddl_edits import Dialect
from binlogd.drainer.filter import TableFilter
from binlogd.drainer.mysql import Server, SqlSession
from binlogd.drainer.mysql_sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.parts import Gatherer, Limits, Part
from binlogd.drainer.progress import LanePosition, ProgressTable
from binlogd.drainer.shape import DownstreamColumn, DownstreamKey, DownstreamTable, shape_of
from binlogd.drainer.target import Reader, Target
from binlogd.drainer.translate import Translator, ddl_job_id
from binlogd.drainer.txn import Dml, Txn
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS
from tests.bench.load import Load, inserts, mixed, updates
from tests.mariadb import MariaDb

BATCH = 256
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds of the clock, of this process and of mariadbd."""

    took_s: float
    own_s: float
    server_s: float


class Meter:
    """Measures from its making to `read`."""

    def __init__(self, mariadb: MariaDb) -> None:
        self._pid = mariadb.pid
        self._begin = time.perf_counter(), time.process_time(), self._server_s()

    def read(self) -> Cost:
        now = time.perf_counter(), time.process_time(), self._server_s()
        return Cost(*(end - begin for begin, end in zip(self._begin, now, strict=True)))

    def _server_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Translation:
    """One pass over a load."""

    def __init__(self, load: Load) -> None:
        self._jobs = {job.id: job for job in jobs_from_json(load.history)}
        schema = SchemaTracker()
        schema.load(self._jobs.values())
        self._translator = Translator(schema, TableFilter(), Dialect.MYSQL)

    def txns(self, binlogs: Sequence[CommittedBinlog]) -> Iterator[Txn]:
        for binlog in binlogs:
            yield self._translator.translate(binlog, self._jobs.get(ddl_job_id(binlog)))


def server_of(mariadb: MariaDb) -> Server:
    return Server(mariadb.host, mariadb.port, mariadb.user, mariadb.password)


async def _submit(sink: MySqlSink, txns: Iterator[Txn]) -> None:
    batch: list[Txn] = []
    for txn in txns:
        batch.append(txn)
        if len(batch) == BATCH:
            await sink.submit(batch)
            batch = []
    await sink.submit(batch)
    await sink.flush()


async def through_the_sink(mariadb: MariaDb, load: Load, lanes: int) -> Cost:
    """Rows as the Drainer applies them."""
    mariadb.reset()
    translation = Translation(load)
    sink = MySqlSink(server_of(mariadb), 1, MySqlSinkOptions(lanes=lanes), Random(1))
    await sink.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        await _submit(sink, translation.txns(load.setup))
        meter = Meter(mariadb)
        await _submit(sink, translation.txns(load.binlogs))
        cost = meter.read()
        await sink.close()
    return cost


def prebuilt(load: Load, lanes: int) -> list[list[Part]]:
    """The parts of each lane, full to the limits, as under a load that never pauses."""
    translation = Translation(load)
    gatherer = Gatherer([LanePosition(NO_TS)] * lanes, Limits())
    targets: dict[int, Target] = {}
    parts: list[list[Part]] = [[] for _ in range(lanes)]
    for _ in translation.txns(load.setup):
        pass
    for txn in translation.txns(load.binlogs):
        assert isinstance(txn, Dml)
        readers = []
        for change in txn.changes:
            info = change.table.info
            if info.id not in targets:
                columns = tuple(
                    DownstreamColumn(c.name, "x", "", is_nullable=False, is_generated=False)
                    for c in info.columns
                )
                key = DownstreamKey("PRIMARY", ("id",), has_prefix=False)
                shape = shape_of(info, DownstreamTable(columns, (key,)))
                targets[info.id] = Target(change.table.database, info, shape)
            readers.append(Reader(change.table, targets[info.id]))
        list(gatherer.add(txn, readers))
        if gatherer.is_full():
            _take_all(gatherer, parts)
    _take_all(gatherer, parts)
    return parts


def _take_all(gatherer: Gatherer, parts: list[list[Part]]) -> None:
    for lane, taken in enumerate(parts):
        if (part := gatherer.take(lane)) is not None:
            taken.append(part)


async def statements_alone(mariadb: MariaDb, load: Load, parts: list[list[Part]]) -> Cost:
    """The same statements and progress rows, made before."""
    mariadb.reset()
    sink = MySqlSink(server_of(mariadb), 1, MySqlSinkOptions(lanes=len(parts)), Random(1))
    await sink.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(sink.run())
        await _submit(sink, Translation(load).txns(load.setup))
        await sink.close()
    progress = ProgressTable("tidb_binlog", 1)
    texts: list[list[bytes]] = []
    for lane, taken in enumerate(parts):
        texts.append([])
        for part in taken:
            texts[-1] += [statement.text for statement in part.statements(4 << 20)]
            texts[-1] += [progress.move(lane, part.end, part.end), b"COMMIT"]
    sessions = [await SqlSession.connect(server_of(mariadb), for_rows=True) for _ in parts]

    async def play(session: SqlSession, statements: list[bytes]) -> None:
        for statement in statements:
            await session.run(statement)

    meter = Meter(mariadb)
    async with asyncio.TaskGroup() as group:
        for session, statements in zip(sessions, texts, strict=True):
            group.create_task(play(session, statements))
    cost = meter.read()
    for session in sessions:
        session.close()
    return cost


def report(load: Load, lanes: int, cost: Cost, alone: Cost) -> None:
    figure = {
        "bench": f"apply_{load.name}",
        "value": round(load.rows / cost.took_s),
        "unit": "rows/s",
        "lanes": lanes,
        "cpu_us_per_row": round(cost.own_s / load.rows * 1e6, 1),
        "mariadbd_us_per_row": round(cost.server_s / load.rows * 1e6, 1),
        "alone_rows_per_s": round(load.rows / alone.took_s),
        "alone_mariadbd_us_per_row": round(alone.server_s / load.rows * 1e6, 1),
        "ratio": round(alone.took_s / cost.took_s, 2),
    }
    print(json.dumps(figure), flush=True)


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    share = float(sys.argv[1]) if len(sys.argv) > 1 else 0.25
    lanes = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    loads = (
        inserts(int(300_000 * share)),
        updates(int(200_000 * share), int(300_000 * share)),
        mixed(int(400_000 * share), 10, int(20_000 * share)),
    )
    with tempfile.TemporaryDirectory() as directory:
        mariadb = MariaDb(Path(directory), is_durable=True, pool_mb=1024)
        mariadb.start()
        try:
            for load in loads:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    cost = runner.run(through_the_sink(mariadb, load, lanes))
                    parts = prebuilt(load, lanes)
                    alone = runner.run(statements_alone(mariadb, load, parts))
                report(load, lanes, cost, alone)
        finally:
            mariadb.stop()


if __name__ == "__main__":
    main()
