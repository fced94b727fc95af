"""The data source in a real Spark of two executors: registered by itself, a stream gives what a
batch does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import StructType

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.drainer.measures import KINDS
from binlogd.errors import ConfigError
from binlogd.settings import config
from binlogd.settings.setup import Setup
from binlogd.spark.database import DatabaseSink
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from binlogd.spark.metrics import PipelineFigures
from binlogd.spark.pipeline import DatabaseTarget, LakeTarget, PipelineOptions, start
from binlogd.spark.request import request
from binlogd.spark.source import StreamReader, check_limit
from binlogd.wire import peek
from binlogd.wire.mutation import mutations_of
from tests.support.appliance import into_mariadb
from tests.support.faults import RecordProperty, counted
from tests.support.logged import Logged, expected, read
from tests.support.mariadb import MariaDb
from tests.support.model_in_mysql import PREFIX
from tests.support.spark import WarmSpark
from tests.support.streams import folded
from tests.support.two_executors import (
    FAULT,
    SPECULATION,
    Killer,
    kept_database,
    kept_lake,
    with_tasks,
)
from tests.workload.generator import Options
from tests.workload.tables import STANDARD

TABLES = tuple(each for each in STANDARD if each.name in ("accounts", "audit"))
"""`audit` has no key: whatever is applied twice is there twice."""


@pytest.fixture(scope="module")
def spark(spark: WarmSpark) -> Iterator[SparkSession]:
    """Two executors, each a process, and tasks that are run twice."""
    with spark.on_two_executors(SPECULATION) as session:
        yield session


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


def drained(spark: SparkSession, options: dict[str, str], into: Path) -> list[int]:
    """Everything that is there, in micro-batches, from where the checkpoint is; up to where there
    was something, as the progress of each batch says."""
    stream = spark.readStream.format("binlogd").options(**options).load()
    query = (
        stream.writeStream.option("checkpointLocation", str(into / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(into / "rows"), "parquet")
    )
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress]
    told = [each["sources"][0]["latestOffset"] for each in progress if each["numInputRows"]]
    return [
        json.loads(each)["commit_ts"] if isinstance(each, str) else each["commit_ts"]
        for each in told
    ]


def test_a_stream_gives_what_a_batch_gives_and_goes_on_at_its_checkpoint(
    spark: SparkSession, logged: Logged, tmp_path: Path
) -> None:
    """Folded by the primary key, which is not the row handle here, it is what the table holds."""
    name = "bank", "limits"
    url = str(tmp_path / "archive")
    task = Task(data_dir=str(logged.data_dir), url=url, history=str(logged.history))
    archived = archive(msgspec.structs.replace(task, segments_max=6))
    options = {"path": url, "table": ".".join(name), "maxTransactionsPerTrigger": "120"}
    drained(spark, options, tmp_path)
    first = offsets(tmp_path)
    reader = StreamReader(request(options), StructType())
    reader.prepareForTriggerAvailableNow()
    done = archive(msgspec.structs.replace(task, with_open=True))
    assert set(drained(spark, options, tmp_path)) == {
        done.resolved_ts
    }  # the backlog is up to there
    taken = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["commit_ts"]
    assert taken == archived.resolved_ts < done.resolved_ts, "what came later is for the next query"
    assert len(offsets(tmp_path)) > len(first) >= 1
    assert offsets(tmp_path) == sorted(set(offsets(tmp_path)))
    batch = spark.read.format("binlogd").options(path=url, table=".".join(name)).load()
    streamed = spark.read.parquet(str(tmp_path / "rows")).toArrow()
    assert sorted(map(repr, streamed.to_pylist())) == rows(batch)
    in_order = streamed.sort_by([("_commit_ts", "ascending"), ("_seq", "ascending")])
    table = logged.workload.model.tables()[name]
    assert folded(table, [in_order]) == expected(logged.workload, name)


def test_a_source_keeps_to_the_limit_that_spark_gives(logged: Logged) -> None:
    options = logged.options(maxTransactionsPerTrigger="30")
    reader = StreamReader(request(options), StructType())
    end = reader.reportLatestOffset()
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ReadAllAvailable()) == end
    ends = [reader.latestOffset(begin, ReadMaxRows(count)) for count in (1, 30, 60)]
    in_order = read(logged.options(form="binlog"))["commit_ts"].to_pylist()
    assert [each["commit_ts"] for each in ends] == [in_order[count - 1] for count in (1, 30, 60)]
    for limit in (ReadMaxFiles(1), ReadMaxBytes(1), ReadMinRows(1)):
        with pytest.raises(ConfigError, match=f"limited by {type(limit).__name__}"):
            reader.latestOffset(begin, limit)
    unlimited = StreamReader(request(logged.options()), StructType())
    assert unlimited.getDefaultReadLimit() == ReadAllAvailable()
    unlimited.prepareForTriggerAvailableNow()
    assert unlimited.latestOffset(begin, unlimited.getDefaultReadLimit()) == end
    assert unlimited.latestOffset(end, ReadAllAvailable()) == end


def test_a_limit_that_this_spark_would_ignore_is_refused(logged: Logged) -> None:
    asked = request(logged.options(maxTransactionsPerTrigger="30"))
    with pytest.raises(ConfigError, match=r"--batch 0.*Spark 4\.2 or newer"):
        check_limit(asked, has_limits=False)
    check_limit(asked, has_limits=True)
    check_limit(request(logged.options(maxTransactionsPerTrigger="0")), has_limits=False)


def offsets(directory: Path) -> list[int]:
    """The commit_ts of each micro-batch, as Spark wrote it down."""
    files = (directory / "checkpoint" / "offsets").glob("[0-9]*")
    ordered = sorted(files, key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1])["commit_ts"] for path in ordered]


def test_an_error_reaches_the_user_with_what_to_do(spark: SparkSession, logged: Logged) -> None:
    options = logged.options(table="bank.accounts", columns="nope")
    with pytest.raises(Exception, match="has no stored column nope"):
        spark.read.format("binlogd").options(**options).load()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_tasks_keep_a_changelog_that_has_each_change_once_though_an_executor_is_killed(
    spark: SparkSession, tmp_path: Path, record_property: RecordProperty
) -> None:
    """Each part of a batch is written where it is read, and every task may be run twice."""
    made = Options(seed=74, transactions=60, ddl_every=40, tables=TABLES)
    logged = Logged.write(tmp_path, made)
    checkpoint, root = str(tmp_path / "checkpoint"), tmp_path / "lake"
    source = logged.options(maxTransactionsPerTrigger="40", partitionTransactions="20")
    lake = Lake(place_of(f"delta:{root}"), "changelog")
    killer = Killer(spark, ["merging"], 1, within_s=0)
    with (
        counted(record_property, fault=FAULT, target="pipeline into Delta, a changelog") as cases,
        kept_lake(killer, logged, root) as published,
    ):
        target = LakeTarget(lake, request({**source, "form": "changes"}), checkpoint)
        start(spark, PipelineOptions(source, checkpoint, None), target).awaitTermination()
        assert len(published) > 1
        assert published[-1] == logged.workload.model.last_commit_ts
        assert killer.killed.total() == 1
        cases.one()


def check_counted(said: str, log: pa.Table, batches: int) -> None:
    """What Prometheus is told of a run from the begin of the log to its end."""
    lines = re.findall(r"^(binlogd_pipeline_\w+)(?:\{\w+=\"(\w+)\"\})? (\S+)$", said, re.MULTILINE)
    found = {name + label: float(number) for name, label, number in lines}
    name = "binlogd_pipeline_"
    assert found[f"{name}batches"] == found[f"{name}batch_seconds_countapply"] == batches
    assert found[f"{name}behind_seconds"] == found[f"{name}behind_transactions"] == 0
    assert found[f"{name}transactions"] >= log.num_rows  # what was sent twice counts so
    rows = [each for each in log["payload"].to_pylist() if peek.ddl(each) is None]
    sequences = [of.sequence for each in rows for of in mutations_of(each)[1]]
    for kind, byte in zip(("insert", "update", "delete"), KINDS.values(), strict=True):
        assert found[f"{name}changes{kind}"] == sum(each.count(byte) for each in sequences) > 0
    assert found[f"{name}bytes_read"] > 0
    assert found[f"{name}rows_put"] > 0


@pytest.mark.soak  # in short: test_database, whose lanes die, and a task that is begun again
def test_tasks_keep_a_database_that_holds_what_the_upstream_did_though_an_executor_is_killed(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path, record_property: RecordProperty
) -> None:
    """Lanes of two executors, batch by batch, with DDL between."""
    made = Options(seed=73, transactions=60, ddl_every=40, prefix=PREFIX, tables=TABLES)
    logged, checkpoint = Logged.write(tmp_path, made), str(tmp_path / "checkpoint")
    source = logged.options(maxTransactionsPerTrigger="40")
    setup = Setup(config.parse(into_mariadb(mariadb), "the test's"))
    asked = request({**source, "form": "binlog"})
    sink = DatabaseSink(setup, asked)
    killer = Killer(spark, ["applying"], 1, within_s=0)
    with (
        counted(record_property, fault=FAULT, target="pipeline into MariaDB") as cases,
        kept_database(killer, logged, mariadb) as published,
    ):
        target, figures = DatabaseTarget(sink, checkpoint), PipelineFigures(asked)
        options = PipelineOptions(source, checkpoint, None)
        start(spark, options, target, figures).awaitTermination()
        assert len(published) > 1
        assert published[-1] == logged.workload.model.last_commit_ts
        assert killer.killed.total() == 1
        cases.one()
    check_counted(figures.text().decode(), read(logged.options(form="binlog")), len(published))
    lanes = mariadb.execute("SELECT lane, lanes FROM tidb_binlog.progress WHERE lane >= 0")
    assert lanes == [(b"0", b"2"), (b"1", b"2")]
    assert with_tasks(spark) > 1
