"""A lake through partitions that are dropped, truncated, reorganized and exchanged, in batches that
end anywhere, held to a model that keeps rows where TiDB does."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.spark.lake import preparing
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from binlogd.wire.peek import peek
from tests.data_directory import write_log
from tests.lakes import Pipeline
from tests.logged import Logged, lake_rows
from tests.partitioned import Partitioned

MIDDLE_OF_A_DDL = 3


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
    now = lake.book().read()
    assert now.commit_ts == at
    for name, rows in history.states[at].items():
        data = lake_rows(lake, now.tables[f"s.{name}"]).select(["a", "c", "note"])
        held = sorted(zip(*(column.to_pylist() for column in data), strict=True))
        assert held == sorted(rows.values()), (name, at)


def follow(history: Partitioned, rng: Random, directory: Path, kind: str, batches: int) -> None:
    pipeline_lake = Lake(place_of(f"{kind}:{directory / 'lake'}"))
    pipeline = Pipeline(written(history, directory), pipeline_lake)
    every = [head.commit_ts for head in map(peek, history.payloads) if head.commit_ts]
    ends, start = sorted({*rng.sample(every, min(batches, len(every))), every[-1]}), 0
    for end in ends:
        pipeline.run(start, end)
        if end in history.states and len(history.states[end]) and end > every[2]:
            check(history, pipeline_lake, end)
        start = end


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 1_000_000), is_list=st.booleans(), kind=st.sampled_from(KINDS))
def test_a_lake_holds_what_partition_ddl_left_wherever_batches_end(
    seed: int, *, is_list: bool, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = Random(seed)
    history = made(rng, is_list=is_list, steps=30)
    follow(history, rng, tmp_path_factory.mktemp("lake"), kind, 4)


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
        follow(history, rng, tmp_path_factory.mktemp("lake"), kind, batches)
