"""What a real TiDB wrote, through a lake: tables swap names, come and go within a batch, change
their keys and their columns, and have no key at all, while partitions of theirs come and go; cut
into batches anywhere."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from binlogd.snapshot.formats.columns import arrow_column
from binlogd.snapshot.log.packets import Spread
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.moving import MOVING
from binlogd.spark.base_loader import load_base
from binlogd.spark.lake.manifest import PipelineStopped
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from binlogd.spark.lake.seed import finish_seed, seed_table
from binlogd.tidb.model import jobs_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from tests.support import recordings_reader, snapshot_reader
from tests.support.data_directory import collect_garbage, write_log
from tests.support.lakes import Killed, Pipeline
from tests.support.logged import Logged, changes, lake_rows, read
from tests.support.plain_export import PlainExport
from tests.support.recordings_reader import IN_DOUBT, RECORDINGS

UNTOLD = {
    "keys": "keys_wrong.*",
    "ddl": "ddl_a.conv",
}
"""UPDATE IGNORE writes deletes that did not happen; conversions that take a session's time zone;
rows that move with partitions."""


def recorded(name: str, directory: Path, segment_bytes: int = 1 << 20) -> Logged:
    payloads = [record.payload for record in recordings_reader.records(RECORDINGS / name)]
    write_log(directory / "data", payloads, segment_bytes=segment_bytes)
    (directory / "history.json").write_bytes(recordings_reader.history(RECORDINGS / name))
    return Logged(directory / "data", directory / "history.json", None)  # type: ignore[arg-type]  # no workload


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [
        ("ddl", "delta", 1),
        pytest.param("keys", "delta", 2, marks=pytest.mark.soak),
        pytest.param("keys", "iceberg", 2, marks=pytest.mark.soak),
        pytest.param("ddl", "iceberg", 23, marks=pytest.mark.soak),
        pytest.param("mixed", "delta", 4, marks=pytest.mark.soak),
        pytest.param("types", "iceberg", 3, marks=pytest.mark.soak),
        pytest.param("race", "delta", 2, marks=pytest.mark.soak),
    ],
)
def test_a_lake_holds_what_the_cluster_held(
    name: str, kind: str, parts: int, tmp_path: Path
) -> None:
    logged = recorded(name, tmp_path)
    lake = Lake(place_of(f"{kind}:{tmp_path / 'lake'}"))
    more = {"except": UNTOLD.get(name, ""), "types": "invalid-text=replace"}
    pipeline, start = Pipeline(logged, lake, **more), 0
    found = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    for end in [found[len(found) * part // parts - 1] for part in range(1, parts + 1)]:
        pipeline.run(start, end)
        start = end
    check_recorded(name, lake)


@pytest.mark.parametrize("parts", [1, 8])  # in one, its rows are decoded; in more, made anew, too
def test_a_table_whose_values_are_not_known_stops_with_the_way_past_it(
    parts: int, tmp_path: Path
) -> None:
    logged = recorded("ddl", tmp_path)
    lake = Lake(place_of(f"delta:{tmp_path / 'lake'}"))
    pipeline = Pipeline(logged, lake, tables="ddl_a.conv")
    found = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    ends = [0, *(found[len(found) * part // parts - 1] for part in range(1, parts + 1))]

    def run_all() -> None:
        for start, end in pairwise(ends):
            pipeline.run(start, end)

    told = r"ddl_a\.conv: column dt was rewritten .* counted\. Leave the table out \(--except\)"
    with pytest.raises(PipelineStopped, match=told):
        run_all()
    assert (lake.manifest().read().commit_ts > 0) == (parts > 1)


@pytest.mark.parametrize(
    ("name", "kind", "batches"),
    [
        pytest.param("windows", "delta", 3, marks=pytest.mark.soak),
        pytest.param("windows", "delta", 1000, marks=pytest.mark.soak),
        pytest.param("windows", "iceberg", 60, marks=pytest.mark.soak),
        pytest.param("race", "delta", 1000, marks=pytest.mark.soak),
        pytest.param("race", "iceberg", 20, marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(1800)
def test_a_lake_holds_every_table_wherever_batches_end_and_die_beside_ddl_of_partitions(
    name: str, kind: str, batches: int, tmp_path: Path
) -> None:
    logged = recorded(name, tmp_path)
    lake = Lake(place_of(f"{kind}:{tmp_path / 'lake'}"))
    pipeline, start, rng = Pipeline(logged, lake), 0, Random(3)
    every = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    edges = beside_partitions(logged, every)
    ends = sorted(rng.sample(edges, min(batches - 1, len(edges))))
    for number, end in enumerate([*ends, every[-1]]):
        if number % 2:
            with suppress(Killed):
                pipeline.run(start, end, kill_at=rng.randrange(1, 4))
        pipeline.run(start, end)
        start = end
    check_recorded(name, lake, is_whole=True)
    doubts: Counter[str] = Counter()
    for each in lake.manifest().read().in_doubt:
        doubts[f"{each.database}.{each.table}"] += each.rows
    assert doubts == IN_DOUBT[name], "wherever batches end, the same as in an export"


def beside_partitions(logged: Logged, every: list[int]) -> list[int]:
    """Moments of transactions while DDL of partitions is at work, and next to its binlog."""
    jobs = {job.id: job for job in jobs_from_json(logged.history.read_bytes())}
    found = set[int]()
    for row in changes(logged.options()):
        job = jobs.get(row["job_id"])
        if job is None or job.type not in MOVING:
            continue
        done = bisect_left(every, row["commit_ts"])
        found.update(every[done - 1 : done + 2])
        for since, upto in ((job.began_ts, row["commit_ts"]), (row["commit_ts"], job.finished_ts)):
            between = every[bisect_left(every, since) : bisect_left(every, upto)]
            found.update(between[:: max(1, len(between) - 1)])
    return sorted(found)


def check_recorded(name: str, lake: Lake, *, is_whole: bool = False) -> None:
    """Every table that is there, or every one that was recorded with its rows."""
    now = lake.manifest().read()
    tracker = SchemaTracker.from_snapshot(lake.manifest().schema_at(now.commit_ts) or b"")
    infos = {info.id: info for _, info in tracker.tables()}
    wrong, compared = [], 0
    for table in recordings_reader.expected(RECORDINGS / name):
        if table.kind != "table" or table.rows is None:
            continue
        if table.label not in now.tables and not is_whole:
            continue
        head = now.tables[table.label]
        shown = [each for each in infos[head.table_id].columns if each.is_public]
        data = lake_rows(lake, head)
        columns = [each for each in shown if each.name in data.column_names]
        options = TypeOptions(invalid_text="replace")
        entries = [arrow_column(each, options).entry() for each in columns]
        expected = snapshot_reader.expected_rows(table, SimpleNamespace(columns=entries))  # type: ignore[arg-type]  # its columns are all that is asked
        held = snapshot_reader.rows_of(data.select([each.name for each in columns]), entries)
        wrong += [table.label] if held != expected else []
        compared += 1
    assert wrong == []
    assert compared > 5


def test_a_snapshot_in_which_keys_have_a_partition_is_a_base_of_a_lake(
    tmp_path: Path,
) -> None:
    logged, work = recorded("windows", tmp_path, 1 << 15), tmp_path / "work"
    work.mkdir()
    history = logged.history.read_bytes()
    export = PlainExport(work, logged.data_dir, history, Spread(1, 1), 1 << 20)
    every = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    base = export.snapshot(Tso(every[len(every) * 8 // 9]))
    assert snapshot_reader.tables(base)["part.r_plain"].handle == "placed"
    assert collect_garbage(logged.data_dir, Tso(read_manifest(base).commit_ts)) > 0
    left_out = {each.table for each in read_manifest(export.snapshot(base=base)).left_out}
    assert "r_plain" in left_out  # partitions of it were reorganized since
    lake = Lake(place_of(f"delta:{tmp_path / 'lake'}"))
    pipeline = Pipeline(logged, lake)
    begin = load_base(str(base), "", pipeline.asked, tmp_path, lambda *_: True, needs_keys=True)
    for table_id in begin.tables:
        seed_table(lake, begin, table_id)
    finish_seed(lake, begin)
    pipeline.run(begin.commit_ts, every[-1], is_first=True)
    check_recorded("windows", lake, is_whole=True)
