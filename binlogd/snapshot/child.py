"""The process that builds snapshots: its start, and one spec after another.

    python -m binlogd.snapshot.child    a SessionSpec and then ExportSpecs, one line of stdin each;
                                        events on a pipe

A process of its own, started by `export`: a JVM must not share the memory or the fate of whoever
asks. When the parent dies, it dies. What the job is made of is imported while the JVM starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import ModuleType

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from binlogd.host.child import step_back
from binlogd.snapshot.process.session import EXPORT_SETTINGS, Say, rehearse, session
from binlogd.snapshot.spec import (
    EVENTS_FD,
    EXIT_DONE,
    EXIT_ENVIRONMENT,
    Event,
    ExportSpec,
    Failed,
    SessionSpec,
    Started,
)

_MEANWHILE = ("binlogd.snapshot.job", "pyspark.testing.utils")
"""The second one is what PySpark itself imports for its first call into the JVM, 0.3 s of it."""
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serves specs until stdin ends; the exit code is that of the last one."""
    _die_with_parent()
    step_back()
    say = _speaker(int(os.environ[EVENTS_FD]))
    asked = iter(sys.stdin.buffer)
    first = msgspec.json.decode(next(asked), type=SessionSpec)
    try:
        spark, job = _started(first)
    except (PySparkException, Py4JError, OSError) as error:
        say(Failed(type(error).__name__, f"Spark did not start: {error}"))
        return EXIT_ENVIRONMENT
    say(Started(spark.version))
    code = EXIT_DONE
    if first.archive_to:
        rehearse(spark)
    for line in asked:
        code = job.run(spark, msgspec.json.decode(line, type=ExportSpec), say)
    spark.stop()
    return code


def _started(spec: SessionSpec) -> tuple[SparkSession, ModuleType]:
    """The session, and the job that it is for."""
    with ThreadPoolExecutor(1) as beside:
        imported = beside.submit(lambda: [import_module(name) for name in _MEANWHILE])
        return session(spec, EXPORT_SETTINGS), imported.result()[0]


def _speaker(descriptor: int) -> Say:
    os.set_inheritable(descriptor, False)

    def say(event: Event) -> None:
        os.write(descriptor, msgspec.json.encode(event) + b"\n")

    return say


def _die_with_parent() -> None:
    """A job whose parent was killed has nobody to publish it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
