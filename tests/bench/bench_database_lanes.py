"""The pipeline into a database by lanes: row changes per second of processes like executors.

    python -m tests.bench.bench_database_lanes [transactions]

Each lane is applied by `apply_lane` in a process of its own, as a task of Spark would, out of one
archive into one MariaDB. CPU seconds are of the busiest lane, and of the database; they say
what more executors give on a busy machine too.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.spark.database import DatabaseSink
from binlogd.spark.lane_task import LaneDone, LaneWork, apply_lane
from binlogd.spark.request import request
from binlogd.tso import Tso
from tests.bench.pump_process import cpu_s
from tests.support.appliance import into_mariadb
from tests.support.logged import Logged, read
from tests.support.mariadb import MariaDb
from tests.workload.generator import Options
from tests.workload.tables import STANDARD

TRANSACTIONS = 6000
LANES = (1, 2)


def timed(work: LaneWork) -> tuple[LaneDone, float]:
    """What a lane did, and its CPU seconds."""
    begin_s = time.process_time()
    done = apply_lane(work)
    return done, time.process_time() - begin_s


class Processes:
    """Lanes side by side, as many processes as there are."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.cpu_s: list[float] = []
        self.rows = 0

    def map(self, act: Callable[[Any], Any], work: Sequence[Any]) -> list[Any]:
        """See `Executors`; `act` is `apply_lane`."""
        context = multiprocessing.get_context("fork")  # has what this one imported
        with ProcessPoolExecutor(len(work), mp_context=context) as pool:
            found = list(pool.map(timed, work))
        self.cpu_s = [each for _, each in found]
        self.rows = sum(done.rows for done, _ in found)
        return [done for done, _ in found]


def measured(
    options: dict[str, str], mariadb: MariaDb, bounds: tuple[Tso, Tso], lanes: int
) -> None:
    """Prints the figures of so many lanes; the tables are made before."""
    made, end = bounds
    mariadb.reset()
    setup = Setup(config.parse(into_mariadb(mariadb), "of the benchmark"))
    into = DatabaseSink(setup, request(options))
    tasks = Processes(lanes)
    into.apply(tasks, Tso(0), made, is_first=True)
    begin_s, there_s = time.perf_counter(), cpu_s(mariadb.pid)
    into.apply(tasks, made, end)
    took_s = time.perf_counter() - begin_s
    figures = {
        "bench": "database_lanes",
        "lanes": lanes,
        "rows": tasks.rows,
        "rows_per_s": round(tasks.rows / took_s),
        "busiest_cpu_s": round(max(tasks.cpu_s), 2),
        "all_cpu_s": round(sum(tasks.cpu_s), 2),
        "database_cpu_s": round(cpu_s(mariadb.pid) - there_s, 2),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def main() -> None:
    """Prints one JSON line for each number of lanes."""
    transactions = int(sys.argv[1]) if len(sys.argv) > 1 else TRANSACTIONS
    structlog.configure(processors=[_dropped])
    by_key = tuple(each for each in STANDARD if each.name in ("accounts", "transfers", "days"))
    tables = tuple(replace(each, bounds=()) for each in by_key)
    made = Options(seed=5, transactions=transactions, ddl_every=0, prefix="w_", tables=tables)
    with tempfile.TemporaryDirectory() as name:
        logged = Logged.write(Path(name), made, segment_bytes=8 << 20)
        mariadb = MariaDb(Path(name) / "mariadb", is_durable=True, pool_mb=512)
        mariadb.directory.mkdir()
        mariadb.start()
        try:
            url, history = str(Path(name) / "archive"), str(logged.history)
            archive(Task(data_dir=str(logged.data_dir), url=url, history=history, with_open=True))
            options = {"path": url, "form": "binlog"}
            ends = read(options)["commit_ts"].to_pylist()
            for lanes in LANES:
                measured(options, mariadb, (Tso(ends[20]), Tso(ends[-1])), lanes)
        finally:
            mariadb.stop()


def _dropped(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


if __name__ == "__main__":
    main()
