"""What a real TiDB wrote, through a lake: tables swap names, come and go within a batch, change
their keys and their columns, and have no key at all; cut into batches anywhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from binlogd.snapshot.formats.columns import arrow_column
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from binlogd.tidb.schema import SchemaTracker
from tests.support import recordings_reader, snapshot_reader
from tests.support.data_directory import write_log
from tests.support.lakes import Pipeline
from tests.support.logged import Logged, lake_rows, read
from tests.support.recordings_reader import RECORDINGS

UNTOLD = {
    "keys": "keys_wrong.*",
    "ddl": "ddl_a.conv",
}
"""UPDATE IGNORE writes deletes that did not happen; conversions that take a session's time zone;
rows that move with partitions."""


def recorded(name: str, directory: Path) -> Logged:
    records = recordings_reader.records(RECORDINGS / name)
    write_log(directory / "data", [record.payload for record in records])
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
    now = lake.book().read()
    tracker = SchemaTracker.from_snapshot(lake.book().schema_at(start) or b"")
    infos = {info.id: info for _, info in tracker.tables()}
    wrong, compared = [], 0
    for table in recordings_reader.expected(RECORDINGS / name):
        if table.kind != "table" or table.rows is None or table.label not in now.tables:
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
