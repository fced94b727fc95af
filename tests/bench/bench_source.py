"""The data source `binlogd` and the pipeline: row changes per second, alone and in Spark.

    python -m tests.bench.bench_source [row changes]

Out of an archive with its index, as a cluster reads it. `source_*_alone` is one Python process on
one core, with the CPU seconds of its own; `ratio` of Spark's lines is the rate over that of the
same form alone, so 2 cores at best give 2.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.snapshot.process.session import session
from binlogd.snapshot.spec import SessionSpec
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.pipeline import LakeTarget, PipelineOptions, start
from binlogd.spark.request import request
from binlogd.spark.source import BinlogdSource
from tests.bench.bench_export import history, log
from tests.support.data_directory import write_log

CHANGES = 100_000
FORMS = {
    "rows": {"table": "shop.orders0"},
    "net": {"table": "shop.orders0", "net": "true", "partitions": "2"},
    "raw": {"form": "raw"},
    "changes": {"form": "changes"},
    "binlog": {"form": "binlog"},
}


def main() -> None:
    """Prints one JSON line per figure."""
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_log(directory / "data", log(changes), segment_bytes=8 << 20)
        (directory / "history.json").write_bytes(history(1))
        url = str(directory / "archive")
        task = Task(
            data_dir=str(directory / "data"),
            url=url,
            history=str(directory / "history.json"),
            with_open=True,
        )
        begin_s = time.process_time()
        done = archive(task)
        spent_s = time.process_time() - begin_s
        report(
            "archive", done.size_bytes / 1e6 / spent_s, "MB/CPU s", transactions=done.transactions
        )
        options = {"path": url, "partitionTransactions": "2000"}
        alone = {name: by_itself({**options, **more}, changes) for name, more in FORMS.items()}
        for form, rate in alone.items():
            report(f"source_{form}_alone", rate, "changes/CPU s")
        for cores in (1, 2):
            in_spark(directory, options, changes, cores, alone)


def by_itself(options: dict[str, str], changes: int) -> float:
    """One process; a part after the other."""
    source = BinlogdSource(options)
    reader = source.reader(source.schema())
    begin_s = time.process_time()
    rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    assert rows
    return changes / (time.process_time() - begin_s)


def in_spark(
    directory: Path, options: dict[str, str], changes: int, cores: int, alone: dict[str, float]
) -> None:
    """Batch, stream and pipeline on so many cores."""
    scratch = directory / f"spark-{cores}"
    scratch.mkdir()
    spark = session(SessionSpec(scratch=str(scratch), cores=cores))
    spark.dataSource.register(BinlogdSource)

    def batch(form: str) -> None:
        frame = spark.read.format("binlogd").options(**options, **FORMS[form]).load()
        frame.write.format("noop").mode("overwrite").save()

    def stream() -> None:
        frame = spark.readStream.format("binlogd").options(**options, **FORMS["rows"]).load()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(scratch / "stream")).start().awaitTermination()

    def pipeline(kind: str) -> None:
        asked = request({**options, "form": "changes"})
        lake = Lake(place_of(f"{kind}:{scratch / kind}"))
        target = LakeTarget(lake, asked, "checkpoint")
        query = PipelineOptions(options, str(scratch / f"checkpoint-{kind}"), None)
        start(spark, query, target).awaitTermination()

    batch("binlog")  # the first pays for the start of the workers
    for form in ("rows", "raw"):
        rate = changes / timed(lambda form=form: batch(form))  # type: ignore[misc]  # bound here
        report(f"source_{form}", rate, "changes/s", cores=cores, ratio=rate / alone[form])
    rate = changes / timed(stream)
    report("source_stream", rate, "changes/s", cores=cores, ratio=rate / alone["rows"])
    for kind in KINDS:
        rate = changes / timed(lambda kind=kind: pipeline(kind))  # type: ignore[misc]  # bound here
        report(f"pipeline_{kind}", rate, "changes/s", cores=cores, ratio=rate / alone["changes"])
    spark.stop()


def timed(act: Callable[[], None]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def report(bench: str, value: float, unit: str, **more: Any) -> None:
    """One figure."""
    rounded = {key: round(each, 2) for key, each in more.items()}
    print(json.dumps({"bench": bench, "value": round(value, 2), "unit": unit, **rounded}))


if __name__ == "__main__":
    main()
