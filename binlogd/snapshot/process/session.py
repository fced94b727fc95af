"""The Spark session of an export and what only a session can tell.

Beside the job itself nothing else touches the SparkContext, so that the rest runs wherever there
are DataFrames.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from binlogd.snapshot.log.events import BATCH_BYTES_MAX
from binlogd.snapshot.process.gateway import java_options
from binlogd.snapshot.spec import Event, Progress, SessionSpec, Stage

_POLL_S = 0.25

Say = Callable[[Event], None]


_PACKET_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Plans move a few packets: what is made for many rows would cost more than it saves."""
_BATCHES = {
    # rows may have megabytes each
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES_MAX),
}
_DAEMON = "spark.python.daemon.module"
EXPORT_SETTINGS = {_DAEMON: "binlogd.snapshot.workers", **_PACKET_SETTINGS}
PIPELINE_SETTINGS = {_DAEMON: "binlogd.spark.workers", **_PACKET_SETTINGS}
"""What suits exports, or pipelines, and only those."""


def session(spec: SessionSpec, more: Mapping[str, str] | None = None) -> SparkSession:
    """A local session on loopback, without UI, with everything it writes under `scratch`; with some
    settings more."""
    settings = {
        "spark.driver.memory": f"{spec.memory_mb}m",
        "spark.driver.extraJavaOptions": " ".join(java_options(spec)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": spec.scratch,
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.warehouse.dir": spec.scratch,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": str(max(8, 2 * spec.cores)),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        **_BATCHES,
    }
    # a Python worker that dies is tried once more
    builder: Any = SparkSession.builder.appName("binlogd-export").master(f"local[{spec.cores},2]")
    for key, value in (settings | dict(more or {})).items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def settle(spark: SparkSession) -> None:
    """Has a session that is there take those of the settings that it can."""
    for name, value in (_PACKET_SETTINGS | _BATCHES).items():
        spark.conf.set(name, value)


def rehearse(spark: SparkSession) -> None:
    """Does what an export does with a few rows, so that every class that it needs is loaded."""

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0)
            texts = pa.array([b"x" * 100] * len(numbers), pa.binary())
            columns = [numbers.cast(pa.int32()), numbers, numbers.cast(pa.int32()), texts]
            yield pa.RecordBatch.from_arrays(columns, names=["a", "b", "c", "d"])

    shape = "a INT, b BIGINT, c INT, d BINARY"
    packets = spark.range(0, 100, 1, 4).mapInArrow(made, shape)
    packets.collect()
    ordered = packets.repartitionById(4, "a").sortWithinPartitions("b", "c")
    ordered.mapInArrow(lambda batches: batches, shape).collect()


@contextmanager
def progress(
    spark: SparkSession, stage: Stage, say: Say, news: Callable[[], Iterable[Event]] = tuple
) -> Iterator[None]:
    """Tells how many tasks are done while the block runs, and what else there is news of.

    From a thread: the block waits inside the JVM, and this process has no event loop.
    """
    is_over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        said: tuple[int, int] | None = None
        while not is_over.wait(_POLL_S):
            infos = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            counts = [(each.numCompletedTasks, each.numTasks) for each in infos if each]
            now = sum(done for done, _ in counts), sum(total for _, total in counts)
            if now[1] and now != said:
                said = now
                say(Progress(stage, *now))
            for event in news():
                say(event)

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
