"""Spark on two executors of one core, each a process, of which some are killed while it works.

The driver is the process of the tests, so that what a batch has made is held against the model as
soon as it is published.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from binlogd.spark import pipeline
from binlogd.spark.counts import RowCounts
from binlogd.spark.database import DatabaseSink
from binlogd.spark.lake import appending, moving
from binlogd.spark.lake.changelog import batch_of
from binlogd.spark.lake.manifest import LakeTables
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.preparing import prepare
from binlogd.spark.pipeline import LakeTarget, SparkTasks
from binlogd.tso import Tso
from tests.support.changelogs import check_as_kept
from tests.support.logged import Logged
from tests.support.mariadb import MariaDb
from tests.support.model_in_mysql import model_differences

FAULT = "kill -9 of one of two executors"
PATIENCE_S = 120.0
"""Until executors are there: each starts a JVM."""
_BACKEND = b"CoarseGrainedExecutorBackend"
_LOOK_S = 0.005

SETTINGS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "20",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE_S:g}s",
    "spark.sql.shuffle.partitions": "4",
    "spark.log.level": "ERROR",
    "spark.ui.liveUpdate.period": "0",  # what the tracker says is true now, not 100 ms ago
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "1ms",
}
"""Of two tasks that of the slower one is run twice, whenever an executor is free."""


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


def with_tasks(spark: SparkSession) -> int:
    """How many executors, the dead ones too, were given tasks."""
    store = spark.sparkContext._jsc.sc().statusStore()  # Python has no word for it
    found = store.executorList(False)
    every = [found.apply(at) for at in range(found.size())]
    return sum(each.id() != "driver" and each.totalTasks() > 0 for each in every)


class Killer:
    """Kills executors in all phases of batches, in each as often as in the others."""

    def __init__(
        self, spark: SparkSession, phases: Sequence[str], kills: int, *, within_s: float = 0.5
    ) -> None:
        """A task is interrupted at any moment of its first `within_s`; 0: when it has begun, so
        that also the shortest one meets it."""
        self._tracker = spark.sparkContext.statusTracker()
        self._of_each = math.ceil(kills / len(phases))
        self._rng, self._within_s = Random(kills), within_s
        self.killed = Counter(dict.fromkeys(phases, 0))

    def now(self, phase: str) -> None:
        """The driver is in that phase, and no task runs."""
        if self._is_wanted(phase):
            self._kill(phase)

    @contextmanager
    def at_work(
        self, phase: str, half: str = "", is_half: Callable[[], bool] = bool
    ) -> Iterator[None]:
        """Tasks run while the body does: one of them is interrupted wherever it is, and one in the
        phase `half`, which has begun when a part of the work is there for good."""
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(is_over, phase, half, is_half))
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    def _watch(
        self, is_over: threading.Event, phase: str, half: str, is_half: Callable[[], bool]
    ) -> None:
        wanted = {each for each in (phase, half) if self._is_wanted(each)}
        while phase in wanted and not is_over.wait(_LOOK_S):
            if self._is_busy():
                is_over.wait(self._rng.random() * self._rng.random() * self._within_s)
                if self._is_busy():
                    self._kill(phase)
                    break
        while half in wanted and not is_over.wait(_LOOK_S):
            if is_half() and self._is_busy():
                self._kill(half)
                break

    def _is_wanted(self, phase: str) -> bool:
        return self.killed.get(phase, self._of_each) < self._of_each

    def _is_busy(self) -> bool:
        stages = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
        return any(each is not None and each.numActiveTasks for each in stages)

    def _kill(self, phase: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not (found := executors()):  # another one is on its way
            assert time.monotonic() < until, "no executor came back"
            time.sleep(_LOOK_S)
        os.kill(self._rng.choice(found), signal.SIGKILL)
        self.killed[phase] += 1


@contextmanager
def kept_lake(killer: Killer, logged: Logged, root: Path) -> Iterator[list[int]]:
    """The commit_ts that a lake there publishes; held against the model, each at once."""
    read_ddl, merge, finish = pipeline._ddl, LakeTarget._merge, moving.finish
    append, turned = LakeTarget._append, appending.finish
    published = list[int]()

    def reading(*words: Any) -> Any:
        with killer.at_work("reading"):
            return read_ddl(*words)

    def between(begin: Callable[..., Any]) -> Any:
        def begun(*words: Any) -> Any:
            killer.now("between stages")
            return begin(*words)

        return begun

    def versions() -> int:
        return sum(1 for _ in root.rglob("*.json"))

    def merging(put: Callable[..., Any]) -> Any:
        def putting(*words: Any) -> Any:
            before = versions()
            with killer.at_work("merging", "committing", lambda: versions() > before):
                return put(*words)

        return putting

    def publishing(finish: Callable[..., LakeTables]) -> Any:
        def published_at_once(lake: Lake, *words: Any) -> LakeTables:
            killer.now("publishing")
            now = finish(lake, *words)
            check_as_kept(logged, lake, now.commit_ts)
            published.append(now.commit_ts)
            return now

        return published_at_once

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_ddl", reading)
        patch.setattr(pipeline, "prepare", between(prepare))
        patch.setattr(pipeline, "batch_of", between(batch_of))
        patch.setattr(LakeTarget, "_merge", merging(merge))
        patch.setattr(LakeTarget, "_append", merging(append))
        patch.setattr(moving, "finish", publishing(finish))
        patch.setattr(appending, "finish", publishing(turned))
        yield published


@contextmanager
def kept_database(killer: Killer, logged: Logged, server: MariaDb) -> Iterator[list[int]]:
    """The commit_ts that a database comes to by batches; held against the model, each at once."""
    begun, spread, end, apply = (
        DatabaseSink._begun,
        SparkTasks.map,
        DatabaseSink._end,
        DatabaseSink.apply,
    )
    published = list[int]()

    async def between(*words: Any) -> Any:
        killer.now("between stages")
        return await begun(*words)

    def positions() -> Any:
        return server.execute("SELECT * FROM tidb_binlog.progress WHERE lane >= 0 ORDER BY lane")

    def applying(tasks: SparkTasks, *words: Any) -> Any:
        before = positions()
        with killer.at_work("applying", "committing", lambda: positions() != before):
            return spread(tasks, *words)

    async def publishing(*words: Any) -> None:
        killer.now("publishing")
        await end(*words)

    def applied(
        sink: DatabaseSink, tasks: SparkTasks, start: Tso, upto: Tso, **more: Any
    ) -> RowCounts:
        counts = apply(sink, tasks, start, upto, **more)
        assert asyncio.run(model_differences(logged.workload, server, upto)) == []
        published.append(upto)
        return counts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseSink, "_begun", between)
        patch.setattr(SparkTasks, "map", applying)
        patch.setattr(DatabaseSink, "_end", publishing)
        patch.setattr(DatabaseSink, "apply", applied)
        yield published
