"""The lake that batches make is what the model says: cut anywhere, done again at any point."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.spark import lake
from binlogd.spark.inputs import open_input
from binlogd.spark.plan import planned, schema_before
from binlogd.spark.request import request
from binlogd.spark.source import BinlogdSource
from binlogd.tso import Tso
from binlogd.workload.generator import Options
from tests.logged import Logged, check_lake


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=23, transactions=250, ddl_every=12)
    return Logged.write(tmp_path_factory.mktemp("log"), options)


DDL_NAMES = ("commit_ts", "ddl_job_id", "ddl_state", "ddl_query")


class Killed(Exception):
    pass


class Pipeline:
    """What the Spark job does with a batch, by pyarrow alone; it can be killed at each step."""

    def __init__(self, logged: Logged, root: str, **more: str) -> None:
        self._options = logged.options(form="changes", **more)
        self._asked = request(self._options)
        self._input = open_input(self._asked)
        self._root = root

    def run(self, start: int, end: int, kill_at: int = 1 << 30) -> int:
        """How many steps there were."""
        steps = iter(range(1 << 30))

        def step() -> None:
            if next(steps) == kill_at:
                raise Killed

        rows = self._changes(start, end)
        jobs = self._input.jobs()
        is_ddl = pc.greater(rows["ddl_job_id"], 0)
        ddl = [
            DdlBinlog(Tso(ts), job_id, state, query)
            for ts, job_id, state, query in zip(
                *(rows.filter(is_ddl)[name].to_pylist() for name in DDL_NAMES), strict=True
            )
        ]
        tracker = lake.schema_at(self._root, start) or schema_before(jobs, Tso(end), ddl)
        batch = planned(jobs, ddl, tracker, self._asked, start=Tso(start), end=Tso(end))
        lake.check(self._root, batch, is_first=not start)
        for table_id in batch.after:
            step()
            one = lake.Batch(end, batch.before, only(batch.after, table_id), b"", batch.types)
            lake.prepare(self._root, one)
        winners = self._winners(rows.filter(pc.invert(is_ddl)), set(batch.after))
        for _ in lake.merge(self._root, batch, winners):
            step()
        step()
        lake.finish(self._root, batch)
        return next(steps)

    def _changes(self, start: int, end: int) -> pa.Table:
        source = BinlogdSource({**self._options, "from": str(start), "to": str(end)})
        reader = source.reader(source.schema())
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return pa.Table.from_batches(batches)

    @staticmethod
    def _winners(rows: pa.Table, table_ids: set[int]) -> Iterator[pa.RecordBatch]:
        last = {(each["table_id"], each["key"]): each for each in rows.to_pylist()}
        kept = [each for each in last.values() if each["table_id"] in table_ids]
        kept.sort(key=lambda each: each["table_id"])
        yield from pa.Table.from_pylist(kept, rows.schema).to_batches()


def only(plans: object, table_id: int) -> dict:  # type: ignore[type-arg]  # plans by table id
    return {table_id: plans[table_id]}  # type: ignore[index]  # see above


def moments(logged: Logged, parts: int) -> list[int]:
    found = logged.workload.model.moments()
    return [*(found[len(found) * part // parts] for part in range(1, parts)), found[-1]]


@pytest.mark.parametrize("parts", [1, 5])
def test_after_each_batch_the_lake_is_what_the_upstream_was(
    parts: int, logged: Logged, tmp_path: Path
) -> None:
    root, start = str(tmp_path / "lake"), 0
    pipeline = Pipeline(logged, root)
    for end in moments(logged, parts):
        pipeline.run(start, end)
        check_lake(logged, root, end)
        start = end


def test_a_batch_that_was_killed_is_done_again_from_any_step(
    logged: Logged, tmp_path: Path
) -> None:
    root = str(tmp_path / "lake")
    pipeline = Pipeline(logged, root)
    first, second = moments(logged, 2)
    pipeline.run(0, first)
    steps = Pipeline(logged, str(tmp_path / "other")).run(0, first)
    for kill_at in (2, steps // 2, steps - 2, steps - 1):
        with pytest.raises(Killed):
            pipeline.run(first, second, kill_at)
        assert lake.read_tables(root).commit_ts == first
        check_lake(logged, root, first)
    pipeline.run(first, second)
    check_lake(logged, root, second)
    versions = lake.read_tables(root)
    pipeline.run(first, second)
    assert lake.read_tables(root) == versions


def test_tables_that_are_older_than_what_is_read_are_told(logged: Logged, tmp_path: Path) -> None:
    middle, end = moments(logged, 2)
    with pytest.raises(lake.PipelineStopped, match="begin at the beginning of the log"):
        Pipeline(logged, str(tmp_path / "lake")).run(middle, end)


def test_a_table_that_is_left_out_stays_out(logged: Logged, tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    (end,) = moments(logged, 1)
    Pipeline(logged, root, **{"except": "bank.*, types.*, scratch*"}).run(0, end)
    assert {name.partition(".")[0] for name in lake.read_tables(root).tables} == {"shop"}
