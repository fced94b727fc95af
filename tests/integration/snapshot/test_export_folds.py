"""Generated logs through Spark, held to a fold of the same changes in a dict."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binlogd.snapshot import job as job_module
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.writing.write import SCHEMA_FILE
from binlogd.tso import Tso
from tests.support import dumps
from tests.support.data_directory import collect_garbage, write_log
from tests.support.folds import (
    FATES,
    HISTORY,
    MOVES,
    TABLES,
    Fold,
    Operation,
    held_in,
    rows_of,
    shown,
)
from tests.support.partitioned import Partitioned
from tests.support.spark import WarmSpark

operations = st.lists(
    st.tuples(st.sampled_from(sorted(TABLES)), st.integers(-3, 3), st.integers(MOVES, 3)),
    min_size=1,
    max_size=6,
)
histories = st.lists(
    st.tuples(operations, st.sampled_from(FATES)),
    min_size=8,
    max_size=25,
)


Transactions = list[tuple[list[Operation], str]]


def check(history: Transactions, part: float, spark: WarmSpark, data_dir: Path) -> None:
    fold = Fold()
    fold.transact([(table_id, 9, 9) for table_id in TABLES], fate="commit")
    for operations_of, fate in history:
        fold.transact(operations_of, fate=fate)
    fold.transact([(table_id, 8, 8) for table_id in TABLES], fate="commit")
    write_log(data_dir, fold.payloads, segment_bytes=400)
    moments = sorted(fold.states)
    first, last = moments[int(len(moments) * part)], moments[-1]

    base = spark.export(data_dir, HISTORY, Tso(first))
    after = spark.export(data_dir, HISTORY, base=base)
    assert read_manifest(after).commit_ts == last
    changes = spark.changes(data_dir, HISTORY, Tso(first), Tso(last), has_before=True)
    for table_id in TABLES:
        assert rows_of(base, table_id) == fold.rows(first, table_id)
        assert rows_of(after, table_id) == fold.rows(last, table_id)
    _check_net(changes, fold, first, last)


@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories, part=st.floats(0.1, 0.9))
def test_snapshots_and_changes_are_what_a_fold_gives(
    history: Transactions,
    part: float,
    spark: WarmSpark,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    check(history, part, spark, tmp_path_factory.mktemp("fold"))


@pytest.mark.soak
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories, part=st.floats(0.1, 0.9))
def test_many_snapshots_and_changes_are_what_a_fold_gives(
    history: Transactions,
    part: float,
    spark: WarmSpark,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    check(history, part, spark, tmp_path_factory.mktemp("fold"))


def _check_net(directory: Path, fold: Fold, first: int, last: int) -> None:
    for entry in read_manifest(directory).tables:
        old, new = (fold.states[ts][entry.table_id] for ts in (first, last))
        found = [
            row for file in entry.files for row in pq.read_table(directory / file.name).to_pylist()
        ]
        came = Counter(shown(new[key]) for key in new.keys() - old.keys())
        went = Counter(shown(old[key]) for key in old.keys() - new.keys())
        assert Counter((row["a"], row["note"]) for row in found if row["_op"] == "I") == came
        assert Counter((row["a"], row["note"]) for row in found if row["_op"] == "D") == went
        stayed = [(old[key], new[key]) for key in old.keys() & new.keys() if old[key] != new[key]]
        updated = Counter(
            (tuple(row["_before"].values()), (row["a"], row["note"]))
            for row in found
            if row["_op"] == "U"
        )
        assert Counter((shown(a), shown(b)) for a, b in stayed) - updated == Counter()


def test_an_export_that_died_when_its_rows_were_written_still_knows_which_changed(
    spark: WarmSpark, tmp_path: Path
) -> None:
    """Of files of a base of which no row is left there is no mark: they are gone through again."""
    fold = Fold()
    fold.transact([(table_id, key, 1) for table_id in TABLES for key in range(6)], fate="commit")
    base_ts = max(fold.states)
    fold.transact([(100, key, 2) for key in range(6)], fate="commit")
    fold.transact([(101, key, -1) for key in range(6)], fate="commit")
    fold.transact([(102, key, 3) for key in range(0, 6, 2)], fate="commit")
    write_log(tmp_path / "data", fold.payloads)
    base = spark.export(tmp_path / "data", HISTORY, Tso(base_ts))
    spec = spark.spec(tmp_path / "data", HISTORY, base)
    in_the_way = Path(spec.staging, SCHEMA_FILE)
    in_the_way.mkdir()
    with pytest.raises(IsADirectoryError):
        job_module.build(spark.spark, spec, lambda _: None)
    in_the_way.rmdir()
    report = job_module.build(spark.spark, spec, lambda _: None)
    for entry in report.tables:
        rows = fold.rows(max(fold.states), entry.table_id)
        assert held_in(Path(spec.staging), entry) == rows, entry.table


def test_a_dump_that_lacks_a_row_of_a_table_without_key_is_told(
    spark: WarmSpark, tmp_path: Path
) -> None:
    fold, rng = Fold(), random.Random(3)
    fold.transact([(102, key, 1) for key in range(5)] + [(100, 1, 1)], fate="commit")
    dumped_at = max(fold.states)
    dump = tmp_path / "dump"
    dumps.write_metadata(dump, Tso(dumped_at))
    for table_id, table in TABLES.items():
        rows = [list(row.values()) for row in fold.states[dumped_at][table_id].values()]
        rng.shuffle(rows)
        if table_id == 102:
            rows = [row for row in rows if row[0] != 3]
        dumps.write_table(dump, ("s", table.name), table.columns, rows)
    fold.transact([(102, 3, -1), (102, 4, 2), (100, 1, 2)], fate="commit")
    write_log(tmp_path / "data", fold.payloads)
    snapshot = spark.export(tmp_path / "data", HISTORY, base=dump)
    (left_out,) = read_manifest(snapshot).left_out
    assert left_out.table == "loose"
    assert left_out.reason.startswith("the base lacks 1 rows that were changed behind it")
    assert rows_of(snapshot, 100) == fold.rows(max(fold.states), 100)


def of_model(history: Partitioned, as_of: int) -> dict[str, Counter[tuple[Any, ...]]]:
    return {name: Counter(rows.values()) for name, rows in history.states[as_of].items()}


def of_snapshot(snapshot: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    tables = read_manifest(snapshot).tables
    return {each.table: rows_of(snapshot, each.table_id) for each in tables}


def test_partitions_that_went_behind_a_base_take_its_rows_along(
    spark: WarmSpark, tmp_path: Path
) -> None:
    history = Partitioned(random.Random(8), is_list=False)
    for _ in range(20):
        history.transact()
    history.drop()
    history.exchange()
    base_ts = max(history.states)
    begun = len(history.payloads)
    for change in (history.truncate, history.reorganize, history.drop):
        history.transact()
        change()
    for _ in range(5):
        history.transact()
    write_log(tmp_path / "old", history.payloads[:begun], shards=1)
    base = spark.export(tmp_path / "old", history.history)
    assert read_manifest(base).commit_ts == base_ts
    assert of_snapshot(base) == of_model(history, base_ts)
    write_log(tmp_path / "data", history.payloads, shards=1, segment_bytes=2000)
    assert collect_garbage(tmp_path / "data", Tso(base_ts))
    snapshot = spark.export(tmp_path / "data", history.history, base=base)
    assert read_manifest(snapshot).left_out == ()
    assert of_snapshot(snapshot) == of_model(history, max(history.states))
