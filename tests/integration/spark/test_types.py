"""Values at the limits of their types, by the data source: what the recorded cluster held."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.snapshot.formats.columns import arrow_column
from binlogd.snapshot.spec import TableEntry, TypeOptions
from binlogd.spark.request import request
from binlogd.spark.rows import wanted_table
from binlogd.spark.walk import schema_as_of
from binlogd.tidb.model import Job, jobs_from_json
from binlogd.tso import NO_TS
from tests.support import recordings_reader, snapshot_reader
from tests.support.data_directory import write_log
from tests.support.logged import read
from tests.support.recordings_reader import RECORDINGS, Table

RECORDING = RECORDINGS / "types"
CHOSEN = (
    "added",
    "bits",
    "dates",
    "decimals",
    "enums",
    "ints",
    "json_docs",
    "mixed_sets",
    "reals",
    "stamps",
    "str_gbk_bin",
    "times",
    "zero_dates",
)


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("types")
    write_log(directory / "data", (each.payload for each in recordings_reader.records(RECORDING)))
    history = directory / "history.json"
    history.write_bytes(recordings_reader.history(RECORDING))
    url = str(directory / "archive")
    archive(Task(data_dir=str(directory / "data"), url=url, history=str(history), with_open=True))
    return url


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return {each.label: each for each in recordings_reader.expected(RECORDING)}


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    return jobs_from_json(recordings_reader.history(RECORDING))


@pytest.mark.parametrize("name", CHOSEN)
def test_a_net_read_holds_what_was_recorded(
    name: str, archived: str, tables: dict[str, Table], jobs: list[Job]
) -> None:
    options = {"path": archived, "table": f"types.{name}", "net": "true"}
    asked = request(options)
    columns = wanted_table(schema_as_of(jobs, NO_TS), asked).columns
    entries = tuple(arrow_column(each, TypeOptions()).entry() for each in columns)
    net = read(options)
    left = net.filter(pc.equal(net["_op"], "upsert")).select([each.name for each in columns])
    entry = TableEntry(
        database="types",
        table=name,
        table_id=0,
        rows=left.num_rows,
        columns=entries,
        left_out_columns=(),
        losses={},
        files=(),
    )
    wanted = snapshot_reader.expected_rows(tables[f"types.{name}"], entry)
    assert snapshot_reader.rows_of(left, entries) == wanted
