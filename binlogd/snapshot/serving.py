"""What a process that builds snapshots does: one spec after another, on one Spark session."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import ModuleType

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from binlogd.snapshot.process import gateway
from binlogd.snapshot.process.session import EXPORT_SETTINGS, rehearse, session
from binlogd.snapshot.spec import (
    EXIT_DONE,
    EXIT_FAILED,
    Event,
    ExportSpec,
    Failed,
    SessionSpec,
    Started,
)

_MEANWHILE = ("binlogd.snapshot.job", "pyspark.testing.utils")
"""The second one is what PySpark itself imports for its first call into the JVM, 0.3 s of it."""


def serve(
    first: SessionSpec, jvm: subprocess.Popen[bytes] | None, asked: Iterator[bytes], events: int
) -> int:
    """Serves the specs that are asked, and tells of them on the descriptor `events`.

    The exit code is that of the last one.
    """

    def say(event: Event) -> None:
        os.write(events, msgspec.json.encode(event) + b"\n")

    try:
        spark, job = _started(first, jvm)
    except (PySparkException, Py4JError, OSError) as error:
        say(Failed(type(error).__name__, f"Spark did not start: {error}"))
        return EXIT_FAILED
    say(Started(spark.version))
    code = EXIT_DONE
    if first.archive_to:
        rehearse(spark)
    for line in asked:
        code = job.run(spark, msgspec.json.decode(line, type=ExportSpec), say)
    spark.stop()
    return code


def _started(
    spec: SessionSpec, jvm: subprocess.Popen[bytes] | None
) -> tuple[SparkSession, ModuleType]:
    """The session, and the job that it is for."""
    with ThreadPoolExecutor(1) as beside:
        imported = beside.submit(lambda: [import_module(name) for name in _MEANWHILE])
        if jvm is not None:
            gateway.connect(jvm, spec)
        return session(spec, EXPORT_SETTINGS), imported.result()[0]
