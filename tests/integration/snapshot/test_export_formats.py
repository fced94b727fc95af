"""Formats and layouts by a real Spark session: read back by Spark, imported by MariaDB, resumed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.host import loop
from binlogd.snapshot import job as job_module
from binlogd.snapshot.formats.file_kinds import FileKind, quoted
from binlogd.snapshot.formats.read_files import decoded
from binlogd.snapshot.log import reader, scan
from binlogd.snapshot.publishing import marks
from binlogd.snapshot.publishing.publish import read_manifest
from binlogd.snapshot.spec import Manifest
from binlogd.tools.against import Verdict, compare
from binlogd.tso import NO_TS
from tests.support import recordings_reader
from tests.support.data_directory import write_log
from tests.support.limits import COLUMNS
from tests.support.mariadb import MariaDb
from tests.support.snapshots import snapshot
from tests.support.spark import WarmSpark

RECORDINGS = Path(__file__).parents[2] / "recordings"
OPTIONS: dict[str, dict[str, str]] = {
    "csv": {
        "header": "true",
        "quote": '"',
        "escape": '"',
        "nullValue": "\\N",
        "emptyValue": "",
        "multiLine": "true",
    },
    "json": {},
    "orc": {},
    "parquet": {},
}
"""What Spark has to be told to read each format; the documentation shows the same."""


def data_directory(tmp_path: Path, name: str) -> Path:
    data_dir = tmp_path / "data"
    write_log(data_dir, (record.payload for record in recordings_reader.records(RECORDINGS / name)))
    return data_dir


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_spark_reads_values_at_the_limits_of_their_types(
    name: str, spark: WarmSpark, tmp_path: Path
) -> None:
    columns = [(at, each.name, each.values) for at, each in enumerate(COLUMNS, 1)]
    types = [each.mysql for each in COLUMNS]
    path, described = snapshot(tmp_path, 100, columns, kind=FileKind(name), mysql_types=types)
    (entry,) = described.tables
    schema = ", ".join(f"{quoted(each.name)} {each.spark_type}" for each in entry.columns)
    reader: Any = spark.spark.read.schema(schema).format(name).options(**OPTIONS[name])
    found: pa.Table = reader.load(str(path / "shop.t")).toArrow().combine_chunks()
    for described_column, column in zip(entry.columns, COLUMNS, strict=True):
        held = decoded(found.column(column.name).combine_chunks(), described_column)
        values = column.values.to_pylist()
        if held.type != column.values.type:  # dates in ORC; Spark's zone is a name
            held = held.cast(column.values.type)
        if name == "csv" and column.values.type == pa.string():
            values = [None if value == "\\N" else value for value in values]  # it knows no quotes
        assert held.to_pylist() == values, column.name


IMPORTED = "types"


def verdicts(server: MariaDb, path: Path, manifest: Manifest) -> list[Verdict]:
    async def all_of_them() -> list[Verdict]:
        address = MySqlServer(host=server.host, port=server.port, user=server.user, password="")
        return [each async for each in compare(address, NO_TS, path, manifest)]

    return loop.run(all_of_them())


def test_mariadb_imports_the_layout_of_dumpling(
    spark: WarmSpark, tmp_path: Path, mariadb: MariaDb
) -> None:
    history = recordings_reader.history(RECORDINGS / IMPORTED)
    data_dir = data_directory(tmp_path, IMPORTED)
    dump = spark.export(data_dir, history, kind=FileKind("sql", "dumpling"))
    plain = spark.export(data_dir, history)
    described = read_manifest(dump)
    assert f"\tPos: {described.commit_ts}\n" in (dump / "metadata").read_text()
    imported = []
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SET sql_mode = 'ALLOW_INVALID_DATES', foreign_key_checks = 0, time_zone = '+00:00',"
            " check_constraint_checks = 0"  # its JSON has not as many levels as TiDB's
        )
        for file in sorted(dump.glob("*-schema-create.sql")):
            run_script(cursor, file)
        for table in described.tables:
            cursor.execute(f"USE {quoted(table.database)}")
            stem = f"{table.database}.{table.table}"
            try:
                run_script(cursor, dump / f"{stem}-schema.sql")
            except Exception as error:
                if "SQL syntax" in str(error):  # an index on an expression, which MariaDB lacks
                    continue
                raise
            for entry in table.files:
                run_script(cursor, dump / entry.name)
            imported.append((table.database, table.table))
    assert len(imported) > 20
    compared = [
        each
        for each in verdicts(mariadb, plain, read_manifest(plain))
        if (each.database, each.table) in imported
    ]
    assert [each for each in compared if each.reason] == []


def run_script(cursor: Any, file: Path) -> None:
    for statement in file.read_text().split(";\n"):
        if statement.strip():
            cursor.execute(statement)


def test_whatever_a_killed_export_left_is_gone_on_from(spark: WarmSpark, tmp_path: Path) -> None:
    history = recordings_reader.history(RECORDINGS / "few")
    spec = spark.stage(data_directory(tmp_path, "few"), history)
    state, staging = Path(spec.state), Path(spec.staging)
    whole = marks.read_report(state)
    assert whole is not None
    tasks = reader.tasks(reader.slices(spec.segments, spec.slice_bytes), spec.slice_bytes)
    log = Path(spec.segments[0].path).parents[1]
    gone = log.rename(log.with_name("gone"))  # its first pass is not made again
    assert scan.log(spark.spark, tasks, state / job_module.HEADS_FILE).parts
    gone.rename(log)
    rng = random.Random(7)
    parts = sorted((state / marks.PARTS).glob("*.json"))
    for kept in (len(parts), len(parts) // 3):
        (state / marks.REPORT_FILE).unlink()
        for path in rng.sample(parts, len(parts) - kept):
            path.unlink(missing_ok=True)
        files = sorted(staging.rglob("part-*"))
        damaged = rng.choice(files)
        damaged.write_bytes(damaged.read_bytes()[:-3])
        (files[0].parent / "part-00009.0-000.zstd.parquet").write_bytes(b"PAR1 torn")
        before = {path: path.stat().st_mtime_ns for path in files}
        report = job_module.build(spark.spark, spec, lambda _: None)
        assert [each.checksum for each in report.tables] == [each.checksum for each in whole.tables]
        assert {str(path.relative_to(staging)) for path in staging.rglob("part-*")} == {
            file.name for table in report.tables for file in table.files
        }
        if kept == len(parts):
            left = [path for path in files if path.exists()]  # what is done again has another name
            unchanged = [path for path in left if path.stat().st_mtime_ns == before[path]]
            assert len(unchanged) >= len(files) - 1
