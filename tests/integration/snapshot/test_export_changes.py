"""What changed between two moments: put onto the one, it gives the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from binlogd.errors import Refused
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import TableEntry
from binlogd.tso import Tso
from tests.support.data_directory import collect_garbage, write_log
from tests.support.spark import WarmSpark
from tests.workload.generator import Options, Workload

Rows = dict[Any, dict[str, Any]]


def read(directory: Path, entry: TableEntry) -> list[dict[str, Any]]:
    return [row for file in entry.files for row in pq.read_table(directory / file.name).to_pylist()]


def multiset(rows: Iterator[dict[str, Any]], names: list[str]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in names) for row in rows)


def test_changes_put_onto_a_snapshot_give_the_next(spark: WarmSpark, tmp_path: Path) -> None:
    workload = Workload(Options(seed=41, transactions=300, ddl_every=90))
    data_dir = tmp_path / "data"
    write_log(data_dir, [record.payload for record in workload.records()], segment_bytes=15_000)
    history = workload.history()
    first, last = workload.model.moments()[0], workload.model.last_commit_ts
    from_ts = Tso((first + last) // 2)
    before = spark.export(data_dir, history, from_ts)
    after = spark.export(data_dir, history, base=before)
    collect_garbage(data_dir, from_ts)
    net = spark.changes(data_dir, history, from_ts, has_before=True)
    every = spark.changes(data_dir, history, from_ts, all_versions=True)

    told = read_manifest(net).changes
    assert told is not None
    assert told.from_ts == from_ts
    assert all(ddl.commit_ts > from_ts for ddl in told.ddl)
    olds = {entry.table_id: entry for entry in read_manifest(before).tables}
    news = {entry.table_id: entry for entry in read_manifest(after).tables}
    versions = {entry.table_id: entry for entry in read_manifest(every).tables}
    compared: Counter[str] = Counter()
    for entry in read_manifest(net).tables:
        old, new = olds.get(entry.table_id), news[entry.table_id]
        if old is not None and [each.id for each in old.columns] != [
            each.id for each in entry.columns
        ]:
            continue  # rows that nobody touched have the default of a new column
        names = [column.name for column in entry.columns]
        changes = read(net, entry)
        held = (
            multiset(iter(read(before, old)), [each.name for each in old.columns])
            if old
            else (Counter())
        )
        for change in changes:
            compared[change["_op"]] += 1
            assert from_ts < change["_commit_ts"] <= last
            if change["_op"] == "I":
                assert change["_before"] is None
            else:
                gone = tuple(change["_before"].values())
                assert held[gone] > 0, entry.table
                held[gone] -= 1
            if change["_op"] != "D":
                held[tuple(change[name] for name in names)] += 1
        assert +held == multiset(iter(read(after, new)), names), entry.table
        compared["versions"] += len(read(every, versions[entry.table_id])) - len(changes)
    assert min(compared.values()) > 0, compared
    assert compared.keys() == {"I", "U", "D", "versions"}


def test_changes_from_before_the_log_begins_or_behind_its_end_are_refused(
    spark: WarmSpark, tmp_path: Path
) -> None:
    workload = Workload(Options(seed=42, transactions=30, ddl_every=0))
    write_log(tmp_path / "data", [record.payload for record in workload.records()])
    last = workload.model.last_commit_ts
    with pytest.raises(Refused, match="lies behind"):
        spark.changes(tmp_path / "data", workload.history(), Tso(last + 1))
