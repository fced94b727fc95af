"""A lake through partitions that are dropped, truncated, reorganized and exchanged, in batches that
end anywhere, held to a model that keeps rows where TiDB does."""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.snapshot.log.moves import Home, Moves, PartitionsEnded
from binlogd.snapshot.log.rowkey import handle_of
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.lake import preparing
from binlogd.spark.lake.content import SHARE_BYTES
from binlogd.spark.lake.homes import ExistingRows
from binlogd.spark.lake.manifest import PipelineStopped
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.tidb.kinds import PartitionKind, Tp
from binlogd.tidb.model import Column, FieldType, Table
from binlogd.tidb.partitioning import Partition, Partitioning
from binlogd.wire.peek import peek
from tests.support.data_directory import write_log
from tests.support.lakes import Killed, Pipeline
from tests.support.logged import Logged, lake_rows
from tests.support.partitioned import Partitioned

KILLED = 0.4
"""The share of batches that are killed once, when the tables are prepared or merged."""


def made(rng: Random, *, is_list: bool, steps: int) -> Partitioned:
    history = Partitioned(rng, is_list)
    for _ in range(steps):
        history.step()
    return history


def written(history: Partitioned, directory: Path) -> Logged:
    write_log(directory / "data", history.payloads)
    (directory / "history.json").write_bytes(history.history)
    return Logged(directory / "data", directory / "history.json", None)  # type: ignore[arg-type]  # no workload


def check(history: Partitioned, lake: Lake, at: int) -> None:
    now = lake.manifest().read()
    assert now.commit_ts == at
    for name, rows in history.states[at].items():
        data = lake_rows(lake, now.tables[f"s.{name}"]).select(["a", "c", "note"])
        held = sorted(zip(*(column.to_pylist() for column in data), strict=True))
        assert held == sorted(rows.values()), (name, at)


def follow(history: Partitioned, rng: Random, directory: Path, kind: str, batches: int) -> None:
    pipeline_lake = Lake(place_of(f"{kind}:{directory / 'lake'}"))
    pipeline = Pipeline(written(history, directory), pipeline_lake)
    pipeline.cores = 2
    every = [head.commit_ts for head in map(peek, history.payloads) if head.commit_ts]
    ends, start = sorted({*rng.sample(every, min(batches, len(every))), every[-1]}), 0
    for end in ends:
        if rng.random() < KILLED:
            with suppress(Killed):
                pipeline.run(start, end, kill_at=rng.randrange(1, 4))
        pipeline.run(start, end)
        if end in history.states and len(history.states[end]) and end > every[2]:
            check(history, pipeline_lake, end)
        start = end


@pytest.mark.parametrize(("seed", "is_list", "kind"), [(1, True, "delta"), (2, False, "iceberg")])
def test_a_lake_holds_what_partition_ddl_left_wherever_batches_end(
    seed: int, *, is_list: bool, kind: str, tmp_path: Path
) -> None:
    rng = Random(seed)
    history = made(rng, is_list=is_list, steps=25)
    follow(history, rng, tmp_path, kind, 3)


def with_a_drop_at_work(directory: Path) -> tuple[Partitioned, Logged, list[int]]:
    """A history whose last DDL is a DROP PARTITION, and the moments at which rows came to it."""
    for seed in range(100):
        history = Partitioned(Random(seed), is_list=False)
        for _ in range(5):
            history.transact()
        before = len(history.payloads)
        history.drop()
        late = [peek(each).commit_ts for each in history.payloads[before:]]
        if len([each for each in late if each]) == 2:  # rows, and the DDL
            return history, written(history, directory), [each for each in late if each]
    raise AssertionError("no seed has rows that came meanwhile")


def test_a_drop_whose_begin_is_gone_from_the_log_stops_the_pipeline(tmp_path: Path) -> None:
    history, logged, (late, end) = with_a_drop_at_work(tmp_path)
    pipeline = Pipeline(logged, Lake(place_of(f"delta:{tmp_path / 'lake'}")))
    pipeline.run(0, late)
    gone = logged.data_dir / "pump" / "shard-0" / "value.gone"
    gone.write_text(f"{late} 0\n")
    with pytest.raises(PipelineStopped, match=r"which rows went with it is not told.*--base"):
        pipeline.run(late, end)
    gone.unlink()
    pipeline.run(late, end)
    check(history, Lake(place_of(f"delta:{tmp_path / 'lake'}")), end)


def test_rows_that_come_from_a_table_that_is_left_out_stop_the_pipeline(tmp_path: Path) -> None:
    history = Partitioned(Random(3), is_list=False)
    history.exchange()
    end = peek(history.payloads[-1]).commit_ts
    pipeline = Pipeline(
        written(history, tmp_path), Lake(place_of(f"delta:{tmp_path / 'lake'}")), tables="s.parts"
    )
    with pytest.raises(PipelineStopped, match=r"a table that is left out, s\.plain"):
        pipeline.run(0, end)


@pytest.mark.parametrize("then", ["exchange", "reorganize", "repartition"])
def test_a_table_that_comes_back_and_takes_part_in_such_ddl_stops_the_pipeline(
    then: str, tmp_path: Path
) -> None:
    history = Partitioned(Random(3), is_list=False)
    name = "plain" if then == "exchange" else "parts"
    history.lose(name)
    start = peek(history.payloads[-1]).commit_ts
    history.recover(name)
    getattr(history, then)()
    end = peek(history.payloads[-1]).commit_ts
    pipeline = Pipeline(written(history, tmp_path), Lake(place_of(f"delta:{tmp_path / 'lake'}")))
    pipeline.run(0, start)
    with pytest.raises(PipelineStopped, match="it came back"):
        pipeline.run(start, end)


def test_rows_whose_partition_the_lake_has_lost_stop_the_pipeline() -> None:
    day = Column(1, "day", 0, FieldType(Tp.DATE, 0))
    parts = Partition(8, ("738000",)), Partition(9, ("MAXVALUE",))
    told = Partitioning(PartitionKind.RANGE, "to_days(`day`)", (), parts)
    info = Table(7, "t", (day,), partition_ids=(8, 9), partitioning=told)
    ended = PartitionsEnded(5, 7, frozenset({8}))
    moves = Moves((ended,), {7: ((0, info),)}, {7: handle_of(info)})
    plan = TablePlan("s", info, handle_of(info), (day,), (), ())
    existing = ExistingRows(plan, moves, 1, TypeOptions())

    def rows(*days: date | None) -> pa.RecordBatch:
        keys = pa.array([b""] * len(days), pa.binary())
        return pa.RecordBatch.from_arrays(
            [pa.array(days, pa.date32()), keys], schema=existing.schema
        )

    assert existing.homes(rows(date(2000, 1, 1), date(2026, 1, 1))) == [None, Home(7, 9)]
    with pytest.raises(PipelineStopped, match=r"s\.t: .* values of day, of which the lake lacks"):
        existing.homes(rows(date(2026, 1, 1), None))


@pytest.mark.soak
@pytest.mark.timeout(3000)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000_000),
    is_list=st.booleans(),
    kind=st.sampled_from(KINDS),
    steps=st.integers(5, 80),
    batches=st.integers(1, 12),
    is_large=st.booleans(),
)
def test_a_lake_holds_what_partition_ddl_left_in_many_histories(
    seed: int,
    *,
    is_list: bool,
    kind: str,
    steps: int,
    batches: int,
    is_large: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rng = Random(seed)
    history = made(rng, is_list=is_list, steps=steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "GONE_MAX", 0 if is_large else 1000)
        patch.setattr(preparing, "SHARE_BYTES", 0 if is_large else SHARE_BYTES)
        follow(history, rng, tmp_path_factory.mktemp("lake"), kind, batches)
