"""A workload in a data directory, as Spark's data source reads it, and what it must say."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from binlogd.snapshot.formats.columns import arrow_column
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.spark.lake.manifest import LakeTable
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.rows import KEY_COLUMN
from binlogd.spark.source import BinlogdSource, arrow_schema
from binlogd.spark.steps import steps_behind
from binlogd.tso import MAX_TS, NO_TS, Tso
from tests.support import snapshot_reader
from tests.support.data_directory import write_log
from tests.support.recordings_reader import Row
from tests.support.tried import library
from tests.workload.generator import Options, Workload


@dataclass
class Logged:
    """The log of a workload, without an index, beside the DDL history."""

    data_dir: Path
    history: Path
    workload: Workload

    @classmethod
    def write(cls, directory: Path, options: Options, *, segment_bytes: int = 1 << 17) -> Logged:
        """Plays the workload to its end."""
        workload = Workload(options)
        data_dir, history = directory / "data", directory / "history.json"
        payloads = [record.payload for record in workload.records()]
        write_log(data_dir, payloads, segment_bytes=segment_bytes)
        history.write_bytes(workload.history())
        return cls(data_dir, history, workload)

    def options(self, **more: str) -> dict[str, str]:
        """Of a read."""
        return {"path": str(self.data_dir), "schemaHistory": str(self.history), **more}


def read(options: dict[str, str]) -> pa.Table:
    """What the data source gives, without a Spark around it."""
    source = BinlogdSource(options)
    schema = source.schema()
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches, arrow_schema(schema))


def changes(options: dict[str, str]) -> list[dict[str, Any]]:
    """What the pipeline reads for a lake."""
    return changes_of(read({"form": "change-steps", **options}))


def changes_of(steps: pa.Table) -> list[dict[str, Any]]:
    """Each change and each DDL of `STEPS`, in their order."""
    found = list[dict[str, Any]]()
    for each in steps_behind(NO_TS, steps.to_batches()):
        if isinstance(each, DdlBinlog):
            found.append(asdict(each))
        else:
            found += ({**row, "job_id": 0} for row in each.to_pylist())
    return sorted(found, key=lambda each: (each["commit_ts"], each.get("seq", 0)))


def renamed(logged: Logged) -> set[tuple[str, str]]:
    """Tables that got their name by RENAME: rows from before have the old one."""
    raw = read(logged.options()).to_pylist()
    return {
        (row["database"], row["table"])
        for row in raw
        if row["op"] == "ddl" and "RENAME TABLE" in row["query"]
    }


def expected(workload: Workload, name: tuple[str, str], at: Tso = MAX_TS) -> Counter[Row]:
    """What the model says that a table holds, canonical."""
    table, held = workload.model.tables(at)[name], workload.model.contents(at)[name]
    columns = [column for column in table.columns if column.is_public]
    return Counter(tuple(map(snapshot_reader.as_held, columns, row)) for row in held.rows)


def held(
    workload: Workload, name: tuple[str, str], net: pa.Table, at: Tso = MAX_TS
) -> Counter[Row]:
    """What is left of a net read, canonical."""
    columns = [each for each in workload.model.tables(at)[name].columns if each.is_public]
    entries = [arrow_column(each, TypeOptions()).entry() for each in columns]
    left = net.filter(pa.compute.equal(net["_op"], "upsert"))
    return snapshot_reader.rows_of(left.select([each.name for each in columns]), entries)


def lake_rows(lake: Lake, table: LakeTable) -> pa.Table:
    """What a reader of `tables.json` finds."""
    library("deltalake" if lake.place.kind == "delta" else "pyiceberg")
    where = lake.place.table(table.directory)
    if lake.place.kind == "delta":
        options = lake.place.delta_options()
        return DeltaTable(where, table.version, options).to_pyarrow_table()
    found = StaticTable.from_metadata(table.metadata, lake.place.iceberg_properties())
    return found.scan(snapshot_id=table.version or None).to_arrow()


def _of_lake(logged: Logged, lake: Lake, name: str, table: LakeTable, at: int) -> Counter[Row]:
    info = logged.workload.model.tables(Tso(at))[tuple(name.split("."))]  # type: ignore[index]  # two names
    columns = [each for each in info.columns if each.is_public]
    entries = [arrow_column(each, TypeOptions()).entry() for each in columns]
    data = lake_rows(lake, table)
    assert set(data.column_names) == {each.name for each in columns} | {KEY_COLUMN}
    assert len(set(data[KEY_COLUMN].to_pylist())) == data.num_rows == table.rows
    return snapshot_reader.rows_of(data.select([each.name for each in columns]), entries)


def check_lake(logged: Logged, lake: Lake, at: int, only: str = "*") -> None:
    """The lake is at this moment, and holds what the model says of tables called like `only`."""
    found = lake.manifest().read()
    assert found.commit_ts == at
    model = logged.workload.model.tables(Tso(at))
    assert found.tables.keys() == {name for name in map(".".join, model) if fnmatch(name, only)}
    for name, table in found.tables.items():
        database, _, of = name.partition(".")
        wanted = expected(logged.workload, (database, of), Tso(at))
        assert _of_lake(logged, lake, name, table, at) == wanted, name
