"""The Drainer's work as Structured Streaming: pull, order, schema, decode, and into a target.

    spark-submit --py-files binlogd.zip pipeline.py --source s3://lake/binlogs --into delta:/lake

Spark keeps the offsets: the range of commit_ts of a batch is written down before the batch begins,
and a batch that did not end is done again with the same range. The target knows what of a batch it
has: a lake by the `txn` of each commit, a database by the progress row in each transaction. So
nothing is lost or doubled, whenever the process is killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from binlogd.archive.store import Store
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.spark import lake
from binlogd.spark.database import DatabaseSink
from binlogd.spark.inputs import open_input
from binlogd.spark.plan import planned, schema_before
from binlogd.spark.request import Request, request
from binlogd.spark.source import BinlogdSource
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

_MERGED = "table_id BIGINT, rows_put BIGINT, rows_gone BIGINT"
_MERGED_ARROW = pa.schema(
    [("table_id", pa.int64()), ("rows_put", pa.int64()), ("rows_gone", pa.int64())]
)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """`interval_s` None ends the pipeline when it has done what is there now."""

    source: dict[str, str]
    checkpoint: str
    interval_s: float | None


class Target(Protocol):
    """Where batches go."""

    form: str
    """What it wants of the data source."""

    def apply(self, rows: DataFrame, start: Tso, end: Tso) -> None:
        """One batch, perhaps for the second time; it is all there on return."""
        ...


def start(spark: SparkSession, options: PipelineOptions, target: Target) -> StreamingQuery:
    """A query that runs until it is stopped or fails."""
    spark.dataSource.register(BinlogdSource)
    source = {**options.source, "form": target.form}
    asked = request(source)
    offsets = Offsets(options.checkpoint, asked)

    def each(rows: DataFrame, batch_id: int) -> None:
        begin, end = offsets.of(batch_id)
        if begin < end:
            target.apply(rows, begin, end)
            log.info("batch_done", batch=batch_id, commit_ts=end)

    writer = (
        spark.readStream.format("binlogd")
        .options(**source)
        .load()
        .writeStream.option("checkpointLocation", options.checkpoint)
        .foreachBatch(each)
    )
    if options.interval_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{options.interval_s} seconds").start()


class Offsets:
    """The ranges that Spark wrote down in its checkpoint."""

    def __init__(self, checkpoint: str, asked: Request) -> None:
        self._store, self._first = Store.open(checkpoint), asked.after

    def of(self, batch_id: int) -> tuple[Tso, Tso]:
        """Everything in (begin, end] belongs to the batch."""
        begin = self._end(batch_id - 1) if batch_id else self._first
        return begin, self._end(batch_id)

    def _end(self, batch_id: int) -> Tso:
        lines = self._store.read(f"offsets/{batch_id}").decode().splitlines()
        return Tso(json.loads(lines[-1])["commit_ts"])


@dataclass(slots=True)
class LakeTarget:
    """A Delta table for each table upstream."""

    root: str
    asked: Request
    form: str = "changes"

    def apply(self, rows: DataFrame, start: Tso, end: Tso) -> None:
        """See Target. Raises PipelineStopped and what Spark raises."""
        if lake.read_tables(self.root).commit_ts >= end:
            return
        rows = rows.persist()
        try:
            jobs = open_input(self.asked).jobs()
            ddl = _ddl(rows)
            tracker = lake.schema_at(self.root, start) or schema_before(jobs, end, ddl)
            batch = planned(jobs, ddl, tracker, self.asked, start=start, end=end)
            lake.check(self.root, batch, is_first=start == self.asked.after)
            lake.prepare(self.root, batch)
            merged = self._merge(rows, batch)
            lake.finish(self.root, batch)
        finally:
            rows.unpersist()
        put, gone = (sum(each[name] for each in merged) for name in ("rows_put", "rows_gone"))
        log.info("batch_merged", commit_ts=end, tables=len(merged), put=put, gone=gone)

    def _merge(self, rows: DataFrame, batch: lake.Batch) -> list[Any]:
        """One MERGE a table, side by side."""
        root = self.root

        def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            done = list(lake.merge(root, batch, batches))
            columns = zip(*done, strict=True) if done else ((), (), ())
            arrays = [pa.array(column, pa.int64()) for column in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=_MERGED_ARROW)

        return winners(rows, list(batch.after)).mapInArrow(merge, _MERGED).collect()


def winners(rows: DataFrame, table_ids: Sequence[int]) -> DataFrame:
    """The last change of each key of these tables; all of a table in one partition, together."""
    newest_first = Window.partitionBy("table_id", "key").orderBy(F.desc("commit_ts"), F.desc("seq"))
    return (
        rows.where("ddl_job_id = 0")
        .where(F.col("table_id").isin([*table_ids, -1]))
        .withColumn("newest", F.row_number().over(newest_first))
        .where("newest = 1")
        .select("table_id", "op", "schema_version", "key", "row", "commit_ts")
        .repartition("table_id")
        .sortWithinPartitions("table_id")
    )


def _ddl(rows: DataFrame) -> list[DdlBinlog]:
    found = rows.where("ddl_job_id > 0").orderBy("commit_ts").collect()
    return [
        DdlBinlog(Tso(row["commit_ts"]), row["ddl_job_id"], row["ddl_state"], row["ddl_query"])
        for row in found
    ]


@dataclass(slots=True)
class DatabaseTarget:
    """Whatever `[syncer]` of a configuration names, through the Drainer itself."""

    sink: DatabaseSink
    form: str = "binlog"

    def apply(self, rows: DataFrame, start: Tso, end: Tso) -> None:
        """See Target. Raises what the Drainer is stuck at."""
        ordered = rows.toLocalIterator(prefetchPartitions=True)  # parts are in commit order
        self.sink.apply(
            ((row["start_ts"], row["commit_ts"], bytes(row["payload"])) for row in ordered),
            start,
            end,
        )
