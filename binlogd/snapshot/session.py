"""The Spark session of an export and what only a session can tell.

Beside the job itself nothing else touches the SparkContext, so that the rest runs wherever there
are DataFrames.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from binlogd.snapshot import reader
from binlogd.snapshot.spec import Advanced, Event, ExportSpec

_POLL_S = 0.25

Say = Callable[[Event], None]


def session(spec: ExportSpec) -> SparkSession:
    """A local session on loopback, without UI, with everything it writes under `scratch`."""
    java = f"-Xss1m -XX:+ExitOnOutOfMemoryError -Djava.io.tmpdir={spec.scratch}"
    java += " -XX:+UseSerialGC -XX:TieredStopAtLevel=1" if spec.is_short else " -XX:+UseParallelGC"
    settings = {
        "spark.driver.memory": f"{spec.memory_mb}m",
        "spark.driver.extraJavaOptions": java,
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
        # rows may have megabytes each
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(reader.BATCH_BYTES_MAX),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    }
    builder: Any = SparkSession.builder.appName("binlogd-export").master(f"local[{spec.cores}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


@contextmanager
def progress(spark: SparkSession, stage: str, say: Say) -> Iterator[None]:
    """Tells how many tasks are done while the block runs.

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
                say(Advanced(stage, *now))

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
