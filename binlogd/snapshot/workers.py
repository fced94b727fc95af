"""PySpark's daemon of Python workers, with what the workers of an export need imported already.

    python -m binlogd.snapshot.workers      as Spark starts it (`spark.python.daemon.module`)

Workers are forked from it: each begins with the modules that it would spend most of a second on,
shares their memory, and does not look through them again whenever garbage is collected, which a
worker does after each task. The only threads that begin with these modules are of jemalloc and of
OpenBLAS, which look after forks; Arrow's begin where they are first used, in the worker.
"""

from __future__ import annotations

import gc

import pandas as pd  # type: ignore[import-untyped]  # ships no types
from pyspark import daemon, worker

from binlogd.snapshot.log import scan
from binlogd.snapshot.writing import changes, write

PRELOADED = (scan, write, changes, worker, pd)
"""What tasks are made of; the rest comes with them. PySpark loads pandas to look at its version."""


def main() -> None:
    """Forks workers until Spark ends it."""
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
