"""The data source in a real Spark: registered by itself, a stream gives what a batch does."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from tests.support.logged import Logged, expected, read
from tests.support.spark import WarmSpark
from tests.support.streams import folded
from tests.workload.generator import Options


@pytest.fixture(scope="module")
def spark(spark: WarmSpark) -> SparkSession:
    """That of the worker: a second one in its process would be the same, and end it."""
    return spark.spark


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    options = Options(seed=22, transactions=300, ddl_every=50)
    return Logged.write(tmp_path_factory.mktemp("log"), options, segment_bytes=1 << 15)


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.toArrow().to_pylist()))


@pytest.mark.parametrize(
    "more", [{}, {"table": "types.strings"}, {"table": "types.numbers", "net": "true"}]
)
def test_spark_reads_what_the_source_gives(
    more: dict[str, str], spark: SparkSession, logged: Logged
) -> None:
    options = logged.options(partitionTransactions="100", **more)
    frame = spark.read.format("binlogd").options(**options).load()
    expected = read(options)
    assert frame.columns == expected.column_names
    assert rows(frame) == sorted(map(repr, expected.to_pylist()))


def test_sql_reads_it_as_well(spark: SparkSession, logged: Logged) -> None:
    words = ", ".join(f"{key} '{value}'" for key, value in logged.options().items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING binlogd OPTIONS ({words})")
    found = spark.sql("SELECT count(*) AS n FROM log WHERE op = 'insert'").collect()
    assert found[0]["n"] > 300


def drained(spark: SparkSession, options: dict[str, str], into: Path) -> None:
    """Everything that is there, in micro-batches, from where the checkpoint is."""
    stream = spark.readStream.format("binlogd").options(**options).load()
    query = (
        stream.writeStream.option("checkpointLocation", str(into / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(into / "rows"), "parquet")
    )
    query.awaitTermination()


def test_a_stream_gives_what_a_batch_gives_and_goes_on_at_its_checkpoint(
    spark: SparkSession, logged: Logged, tmp_path: Path
) -> None:
    """Folded by the primary key, which is not the row handle here, it is what the table holds."""
    name = "bank", "limits"
    url = str(tmp_path / "archive")
    task = Task(data_dir=str(logged.data_dir), url=url, history=str(logged.history))
    archive(msgspec.structs.replace(task, segments_max=6))
    options = {"path": url, "table": ".".join(name), "maxTransactionsPerTrigger": "120"}
    drained(spark, options, tmp_path)
    first = offsets(tmp_path)
    archive(msgspec.structs.replace(task, with_open=True))
    drained(spark, options, tmp_path)
    assert len(offsets(tmp_path)) > len(first) >= 1
    assert offsets(tmp_path) == sorted(set(offsets(tmp_path)))
    batch = spark.read.format("binlogd").options(path=url, table=".".join(name)).load()
    streamed = spark.read.parquet(str(tmp_path / "rows")).toArrow()
    assert sorted(map(repr, streamed.to_pylist())) == rows(batch)
    in_order = streamed.sort_by([("_commit_ts", "ascending"), ("_seq", "ascending")])
    table = logged.workload.model.tables()[name]
    assert folded(table, [in_order]) == expected(logged.workload, name)


def offsets(directory: Path) -> list[int]:
    """The commit_ts of each micro-batch, as Spark wrote it down."""
    files = (directory / "checkpoint" / "offsets").glob("[0-9]*")
    ordered = sorted(files, key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1])["commit_ts"] for path in ordered]


def test_an_error_reaches_the_user_with_what_to_do(spark: SparkSession, logged: Logged) -> None:
    options = logged.options(table="bank.accounts", columns="nope")
    with pytest.raises(Exception, match="has no stored column nope"):
        spark.read.format("binlogd").options(**options).load()
