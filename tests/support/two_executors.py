"""Spark on two executors of one core, each a process: reads an archive, and keeps a lake from it.

    python -m tests.support.two_executors ARCHIVE OUT KILLS [CONFIG]

Writes OUT/rows.parquet, what a read of `binlog` gives, and the lake OUT/lake by the pipeline, while
an executor is killed at the begin of so many stages. With a configuration it keeps the database of
that instead, and Spark speculates. Prints what happened, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.spark.database import DatabaseSink
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from binlogd.spark.pipeline import (
    DatabaseTarget,
    LakeTarget,
    PipelineOptions,
    PipelineTarget,
    start,
)
from binlogd.spark.request import request
from binlogd.spark.source import BinlogdSource

READY_S = 120.0
STAGES_BETWEEN = 3
"""Between two kills, so that all phases of batches meet one."""
_BACKEND = b"CoarseGrainedExecutorBackend"


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "1ms",
}
"""Of two tasks that of the slower one is run twice, whenever an executor is free."""


def made(more: Mapping[str, str]) -> SparkSession:
    """A session whose two executors are there."""
    settings = {
        **more,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "600m",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{READY_S:g}s",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("two")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def executors() -> list[int]:
    """Processes of executors below this one."""
    parents, backends = {}, []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if _BACKEND in (path / "cmdline").read_bytes():
                backends.append(int(path.name))
        except OSError:
            continue  # ended meanwhile
    return sorted(each for each in backends if _is_below(each, parents))


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:  # ends at init
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


class Killer(threading.Thread):
    """Kills an executor as stages begin, one and then the other, so many times."""

    def __init__(self, spark: SparkSession, kills: int) -> None:
        super().__init__(daemon=True)
        self._tracker, self._kills = spark.sparkContext.statusTracker(), kills
        self._is_over = threading.Event()
        self.killed: list[int] = []

    def run(self) -> None:
        seen: set[int] = set()
        awaited = 1
        while len(self.killed) < self._kills and not self._is_over.wait(0.01):
            seen.update(self._tracker.getActiveStageIds())
            if len(seen) >= awaited and (found := executors()):
                victim = found[len(self.killed) % len(found)]
                os.kill(victim, signal.SIGKILL)
                self.killed.append(victim)
                awaited = len(seen) + STAGES_BETWEEN

    def stop(self) -> None:
        """And wait for its end."""
        self._is_over.set()
        self.join()


def workers(spark: SparkSession, options: dict[str, str]) -> int:
    """How many executors read: each has a process of its own above its Python workers."""

    def who(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_arrays([pa.array([os.getppid()], pa.int64())], ["who"])

    frame = spark.read.format("binlogd").options(**options).load()
    return len({row["who"] for row in frame.mapInArrow(who, "who BIGINT").collect()})


def main(url: str, into: str, kills: int, config_file: str = "") -> None:
    """See the module."""
    spark = made(SPECULATION if config_file else {})
    spark.dataSource.register(BinlogdSource)
    source = {"path": url, "maxTransactionsPerTrigger": "50", "partitionTransactions": "10"}
    if config_file:
        asked = request({**source, "form": "binlog"})
        setup = Setup(config.parse(Path(config_file).read_text(), config_file))
        target: PipelineTarget = DatabaseTarget(DatabaseSink(setup, asked), f"{into}/checkpoint")
        read_by = 2
    else:
        options = {"path": url, "form": "binlog", "partitionTransactions": "10"}
        rows = spark.read.format("binlogd").options(**options).load().toArrow()
        pq.write_table(rows, f"{into}/rows.parquet")
        read_by = workers(spark, options)
        asked = request({**source, "form": "changes"})
        target = LakeTarget(Lake(place_of(f"delta:{into}/lake")), asked, f"{into}/checkpoint")
    killer = Killer(spark, kills)
    killer.start()
    start(spark, PipelineOptions(source, f"{into}/checkpoint", None), target).awaitTermination()
    killer.stop()
    spark.stop()
    sys.stdout.write(json.dumps({"executors": read_by, "killed": len(killer.killed)}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
