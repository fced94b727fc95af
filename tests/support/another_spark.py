"""A Spark of another version than the one that is installed, in a directory of its own.

As a program it runs under that Spark: it reads what the options in its first word name, as a batch
and as a stream in the directory of its second word, and says what came.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.mysql_tree import cache

ROOT = Path(__file__).parents[2]


def installed(version: str) -> Path:
    """Where it is; got by pip, once, without what it shares with the one that is installed."""
    where = cache() / f"pyspark-{version}"
    if not where.exists():
        beside = where.with_name(f"{where.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(beside), f"pyspark=={version}"], check=True)
        beside.rename(where)
    return where


def environment(spark: Path) -> dict[str, str]:
    """Of a process that finds that Spark, and the data source."""
    places = (spark, ROOT, ROOT / "binlogd" / "spark")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "PYSPARK_PYTHON": sys.executable,
    }


def said(spark: Path, options: Mapping[str, str], directory: Path) -> dict[str, Any]:
    """What the program says. Raises CalledProcessError."""
    words = [sys.executable, "-m", "tests.support.another_spark", json.dumps(options)]
    done = subprocess.run(
        [*words, str(directory)], env=environment(spark), cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


def main() -> None:
    import pyspark
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    from binlogd.spark.submit import ATTEMPTS_MAX, is_worker_late

    options, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    batch = spark.read.format("binlogd").options(**options).load()
    stream = spark.readStream.format("binlogd").options(**options).load()
    for attempt in range(1, ATTEMPTS_MAX + 1):  # as the pipeline does it
        query = (
            stream.writeStream.option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(directory / "rows"), "parquet")
        )
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as error:
            if not is_worker_late(str(error)) or attempt == ATTEMPTS_MAX:
                raise
    streamed = spark.read.parquet(str(directory / "rows"))
    told = {
        "version": pyspark.__version__,
        "batch": sorted(map(repr, batch.toArrow().to_pylist())),
        "streamed": sorted(map(repr, streamed.toArrow().to_pylist())),
    }
    spark.stop()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
