"""The pipeline into a lake at its steady rate, without the start, on one executor and on two; and
where the processor time of a change goes.

    python -m tests.bench.bench_lake_rate [row changes] [transactions of a batch] [executors ...]

Eleven tables in an archive, five changes to a transaction. `lake_rate` is from the end of the first
batch to the end of the last one: changes per second by the clock, which means something on a quiet
machine alone, and the CPU of all processes for a change, which repeats on a busy one. `lake_cost`
is each step by itself in this process, without a Spark; what is left of the former is Spark's:
shuffles, rows through Arrow, planning.

10,000,000 changes take some hours and some 10 GB on two cores.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.snapshot.process.session import PIPELINE_SETTINGS, session
from binlogd.snapshot.spec import SessionSpec
from binlogd.spark.counts import RowCounts
from binlogd.spark.inputs import open_input
from binlogd.spark.lake import merging
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.spark.metrics import PipelineFigures
from binlogd.spark.pipeline import LakeTarget, PipelineOptions, start
from binlogd.spark.request import request
from binlogd.spark.submit import ATTEMPTS_MAX, is_worker_late
from binlogd.tso import NO_TS, Tso
from tests.bench.bench_export import ROWS_PER_TRANSACTION, history, log
from tests.support.data_directory import write_log
from tests.support.lakes import Pipeline
from tests.support.logged import read
from tests.support.two_executors import SETTINGS

CHANGES, BATCH, TABLES = 110_000, 4_000, 11
"""Rows are held in memory to make the log: one table's, which the others repeat."""
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints one JSON line per figure."""
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else BATCH
    structlog.configure(processors=[_dropped])
    root = str(Path(__file__).parents[2])
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": root}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        history_file = directory / "history.json"
        write_log(
            directory / "data",
            log(changes // TABLES, copies=TABLES),
            segment_bytes=64 << 20,
        )
        history_file.write_bytes(history(TABLES))
        url = str(directory / "archive")
        data = str(directory / "data")
        archive(Task(data_dir=data, url=url, history=str(history_file), with_open=True))
        for kind in KINDS:
            cost(directory, url, kind, batch)
        for executors in map(int, sys.argv[3:] or ("1", "2")):
            for kind in KINDS:
                rate(directory, url, kind, executors, batch)


# --- by themselves ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Archived:
    """Of a `Logged` what a pipeline asks."""

    url: str

    def options(self, **more: str) -> dict[str, str]:
        return {"path": self.url, **more}


def cost(directory: Path, url: str, kind: str, batch: int) -> None:
    """µs of CPU for a change by step: two batches, of which the second one meets rows."""
    archived: Any = _Archived(url)
    source = open_input(request(archived.options(form="changes")))
    ends = [source.reach(NO_TS, source.resolved_ts(), count * batch) for count in (1, 2)]
    spent: dict[str, float] = {}
    with pytest.MonkeyPatch.context() as patch:
        for step in ("spread", "merge"):
            patch.setattr(merging, step, noted(step, getattr(merging, step), spent))
        pipeline = Pipeline(archived, Lake(place_of(f"{kind}:{directory / f'alone-{kind}'}")))
        pipeline.run(0, ends[0])
        spent.clear()
        pipeline.run(ends[0], ends[1])
    words = archived.options(**{"from": str(ends[0]), "to": str(ends[1])})
    spent["scan, join"] = timed(lambda: sum(1 for _ in source.binlogs(ends[0], Tso(ends[1]))))
    walked = timed(lambda: read({**words, "form": "changes"}).num_rows)
    spent["walk, keys"] = walked - spent["scan, join"]
    count = batch * ROWS_PER_TRANSACTION
    steps = {step: round(each / count * 1e6, 2) for step, each in sorted(spent.items())}
    report("lake_cost", kind, unit="µs CPU/change", **steps)


def noted(
    step: str, act: Callable[..., Iterator[Any]], spent: dict[str, float]
) -> Callable[..., Iterator[Any]]:
    """The same, with its CPU seconds."""

    def run(*words: Any) -> Iterator[Any]:
        begin_s = time.process_time()
        found = list(act(*words))
        spent[step] = spent.get(step, 0.0) + time.process_time() - begin_s
        return iter(found)

    return run


def timed(act: Callable[[], int]) -> float:
    """CPU seconds of this process."""
    begin_s = time.process_time()
    assert act()
    return time.process_time() - begin_s


# --- on executors -------------------------------------------------------------------------------


@dataclass
class _Ends:
    """When each batch was done, and the CPU of all processes then."""

    at_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)


class _Noted(PipelineFigures):
    """Figures with the end of each batch."""

    ends: _Ends

    def done(self, end: Tso, counts: RowCounts, transactions: int | None) -> None:
        """See PipelineFigures."""
        super().done(end, counts, transactions)
        self.ends.at_s.append(time.perf_counter())
        self.ends.cpu_s.append(cpu_s())
        self.ends.changes.append(counts.inserts + counts.updates + counts.deletes)


def rate(directory: Path, url: str, kind: str, executors: int, batch: int) -> None:
    """The whole log through Spark, each executor a process with one core."""
    place = directory / f"{kind}-{executors}"
    place.mkdir()
    more = {**PIPELINE_SETTINGS, **SETTINGS, "spark.master": f"local-cluster[{executors},1,1024]"}
    spark = session(SessionSpec(scratch=str(place)), more)
    try:
        options = {"path": url, "maxTransactionsPerTrigger": str(batch)}
        asked = request({**options, "form": "changes"})
        figures = _Noted(asked)
        figures.ends = _Ends()
        target = LakeTarget(Lake(place_of(f"{kind}:{place / 'lake'}")), asked, "checkpoint")
        query = PipelineOptions(options, str(place / "checkpoint"), None)
        run(spark, query, target, figures)
    finally:
        spark.stop()
    ends = figures.ends
    steady = sum(ends.changes[1:])
    report(
        "lake_rate",
        kind,
        executors=executors,
        batches=len(ends.at_s),
        changes=steady,
        changes_per_s=round(steady / (ends.at_s[-1] - ends.at_s[0])),
        cpu_us_per_change=round((ends.cpu_s[-1] - ends.cpu_s[0]) / steady * 1e6, 1),
    )


def run(
    spark: SparkSession, query: PipelineOptions, target: LakeTarget, figures: PipelineFigures
) -> None:
    """To the end of the log, as `binlogd pipeline` does it."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            start(spark, query, target, figures).awaitTermination()
        except StreamingQueryException as error:
            if not is_worker_late(str(error)) or attempt == ATTEMPTS_MAX:
                raise
        else:
            return


def cpu_s() -> float:
    """Of this process and all below it, those that ended too."""
    parents, ticks = {}, {}
    for path in Path("/proc").iterdir():
        try:
            fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # no process, or no more
        parents[path.name] = fields[1]
        ticks[path.name] = sum(map(int, fields[11:15]))
    mine = str(os.getpid())

    def is_mine(pid: str) -> bool:
        while pid != mine and pid in parents:  # ends at init
            pid = parents[pid]
        return pid == mine

    return sum(ticks[pid] for pid in parents if is_mine(pid)) / _TICKS


def report(bench: str, kind: str, **figures: Any) -> None:
    """One line."""
    print(json.dumps({"bench": bench, "kind": kind, **figures}, ensure_ascii=False), flush=True)


def _dropped(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


if __name__ == "__main__":
    main()
