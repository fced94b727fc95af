"""The Drainer's work as Structured Streaming: pull, order, schema, decode, and into a target.

    spark-submit --py-files binlogd.zip pipeline.py --source s3://lake/binlogs --into delta:/lake

Spark keeps the offsets: the range of commit_ts of a batch is written down before the batch begins,
and a batch that did not end is done again with the same range. The target knows how far it is: a
lake by `tables.json`, a database by the progress row in each transaction; what it has of a batch is
passed over, and what it lacks before a batch stops the pipeline. So nothing is lost or doubled,
whenever the process is killed, and also when the checkpoint is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from binlogd.archive.store import ArchiveStore
from binlogd.snapshot.log.packets import PACKETS, PIECE_BYTES
from binlogd.snapshot.log.scan import ddl_of
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.spark.base_loader import LoadedBase
from binlogd.spark.counts import READ, RowCounts, by_table, counted, total
from binlogd.spark.database import DatabaseSink
from binlogd.spark.inputs import Input, open_input
from binlogd.spark.lake import appending, merging, moving
from binlogd.spark.lake.changelog import ChangelogBatch, HeldChangelog, batch_of
from binlogd.spark.lake.manifest import Claim, LakeBatch, LakeTable, LakeTables
from binlogd.spark.lake.moving import Lake, begin
from binlogd.spark.lake.preparing import prepare
from binlogd.spark.lake.seed import finish_seed, seed_table, todo
from binlogd.spark.late import in_doubt, late_rows, newest_version
from binlogd.spark.metrics import PipelineFigures
from binlogd.spark.plan import LakeState, planned, schema_before
from binlogd.spark.request import ReadRequest, request
from binlogd.spark.source import BinlogdSource
from binlogd.spark.steps import STEPS, changes_behind
from binlogd.tidb.model import Job
from binlogd.tidb.turns import COMPARE, ROWS_IN_DOUBT
from binlogd.tso import Tso

log = structlog.get_logger(__name__)
T = TypeVar("T")
R = TypeVar("R")
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """`interval_s` None ends the pipeline when it has done what is there now."""

    source: dict[str, str]
    checkpoint: str
    interval_s: float | None


@dataclass(frozen=True, slots=True)
class Range:
    """What a batch is about: commit_ts in (start, end]. `is_first`: of this checkpoint, which is
    that of `pipeline`."""

    start: Tso
    end: Tso
    is_first: bool
    pipeline: str


def start(
    spark: SparkSession,
    options: PipelineOptions,
    target: PipelineTarget,
    figures: PipelineFigures | None = None,
) -> StreamingQuery:
    """A query that runs until it is stopped or fails, and notes what it does."""
    spark.dataSource.register(BinlogdSource)
    source = {**options.source, "form": target.form}
    asked = request(source)
    offsets, noted = Offsets(options.checkpoint, asked), figures or PipelineFigures(asked)

    def each(rows: DataFrame, batch_id: int) -> None:
        of = offsets.of(batch_id)
        if of.start < of.end:
            with noted.batch(of.start):
                counts = target.apply(rows, of, noted)
                found = open_input(asked).transactions(of.start, of.end)
            noted.done(of.end, counts, found)
            words = msgspec.structs.asdict(counts)
            log.info("batch_done", batch=batch_id, commit_ts=of.end, transactions=found, **words)

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

    def __init__(self, checkpoint: str, asked: ReadRequest) -> None:
        url = checkpoint.replace("s3a://", "s3://", 1)  # Hadoop's word for it
        self._store, self._first = ArchiveStore.open(url, what="checkpoint"), asked.after

    def of(self, batch_id: int) -> Range:
        """What belongs to the batch."""
        begin = self._end(batch_id - 1) if batch_id else self._first
        return Range(begin, self._end(batch_id), not batch_id, self.pipeline())

    def pipeline(self) -> str:
        """The id that Spark gave the checkpoint; "" before the first start."""
        found = self._store.found("metadata")
        return str(json.loads(found)["id"]) if found is not None else ""

    def _end(self, batch_id: int) -> Tso:
        lines = self._store.read(f"offsets/{batch_id}").decode().splitlines()
        return Tso(json.loads(lines[-1])["commit_ts"])


class _Found(NamedTuple):
    """What there is when a batch of a lake begins."""

    source: Input
    start: Tso
    claim: Claim
    now: LakeTables
    jobs: Sequence[Job]
    ddl: Sequence[DdlBinlog]
    tracker: bytes


@dataclass(slots=True)
class LakeTarget:
    """A table of a lake for each table upstream."""

    lake: Lake
    asked: ReadRequest
    checkpoint: str
    takes_over: bool = False

    @property
    def form(self) -> str:
        """What it wants of the data source."""
        return "change-steps" if self.lake.mode == "upsert" else "changelog-steps"

    def apply(self, rows: DataFrame, of: Range, figures: PipelineFigures) -> RowCounts:
        """One batch, perhaps for the second time; it is all there on return. What was read and
        written, this time; how long its phases took is noted in `figures`. Raises PipelineStopped
        and what Spark raises."""
        manifest = self.lake.manifest()
        claim = Claim(of.pipeline, self.checkpoint)
        manifest.claim(claim, takes_over=self.takes_over)
        self.takes_over = False
        now = manifest.read()
        source = open_input(self.asked)
        where, gone_ts = self.lake.place.shown, source.gone_ts()
        start = begin(now, of.start, gone_ts, where, is_first=of.is_first)
        if start >= of.end:
            moving.show(self.lake, now)
            return RowCounts()
        rows = rows.persist()
        try:
            with figures.phase("read"):
                ddl = _ddl(rows, start)
            jobs = source.jobs()  # which has those of all that was found: who read the rows waited
            tracker = manifest.schema_at(start) or schema_before(jobs, start, of.end, ddl)
            found = _Found(source, start, claim, now, jobs, ddl, tracker)
            keep = self._log if self.lake.mode == "changelog" else self._upsert
            return keep(rows, of, found, figures)
        finally:
            rows.unpersist()

    def _upsert(
        self, rows: DataFrame, of: Range, found: _Found, figures: PipelineFigures
    ) -> RowCounts:
        source, start, now = found.source, found.start, found.now
        seen = partial(newest_version, source, of.end)
        held = LakeState(found.tracker, frozenset(now.placed), now.leaving, seen)
        batch = planned(found.jobs, found.ddl, held, self.asked, start=start, end=of.end)
        moving.check(now, batch, is_first=of.is_first)
        with figures.phase("prepare"):
            late = late_rows(source, batch, self.asked, start)
            doubts = in_doubt(source, batch, start)
            heads = prepare(self.lake, now, batch, late, SparkTasks(rows.sparkSession))
        with figures.phase("count"):
            read = read_of_tables(rows, partial(merging.of_tables, batch, start))
        with figures.phase("merge"):
            merged = self._merge(rows, batch, start, heads, read)
        counts = merging.accounted(batch, read, merged)
        self.lake.manifest().claim(found.claim)
        heads |= {each.head.table_id: each.head for each in merged}
        with figures.phase("publish"):
            moving.finish(self.lake, batch, heads, doubts, counts)
        for each in doubts:
            log.warning(ROWS_IN_DOUBT, **msgspec.structs.asdict(each), what_to_do=COMPARE)
        of_tables = {batch.after[each].label: of for each, of in counts.items()}
        log.info("batch_merged", commit_ts=of.end, tables=msgspec.to_builtins(of_tables))
        return total(counts.values())

    def _log(
        self, rows: DataFrame, of: Range, found: _Found, figures: PipelineFigures
    ) -> RowCounts:
        manifest, now = self.lake.manifest(), found.now
        columns = manifest.columns_at(found.start)
        held = HeldChangelog(found.tracker, now, columns, self.lake.layouts)
        batch = batch_of(found.jobs, found.ddl, held, self.asked, of.end)
        heads = {each.directory: each for each in now.tables.values()}
        with figures.phase("append"):
            appended = self._append(rows, batch, found.start, heads)
        with figures.phase("count"):
            read = total(read_of_tables(rows, partial(changes_behind, found.start)).values())
        manifest.claim(found.claim)
        with figures.phase("publish"):
            appending.finish(self.lake, batch, now, appended)
        files, put = sum(each.files for each in appended), sum(each.rows for each in appended)
        log.info("batch_appended", commit_ts=of.end, tables=len(appended), files=files, rows=put)
        return msgspec.structs.replace(read, put=put)

    def _append(
        self, rows: DataFrame, batch: ChangelogBatch, start: Tso, heads: dict[str, LakeTable]
    ) -> list[appending.Appended]:
        """Parts are written wherever they are, and committed by one task a table, side by side.

        Names of files are new in each attempt. So they are collected and not shuffled: Spark would
        do all of a job again for a lost one of them, or give it up.
        """
        lake, names = self.lake, dict[str, list[str]]()
        written = partial(appending.write, lake, batch, start)
        for row in rows.mapInArrow(written, "directory STRING, name STRING").collect():
            names.setdefault(row["directory"], []).append(row["name"])
        commit = partial(appending.commit, lake, batch, heads)
        return SparkTasks(rows.sparkSession).map(commit, sorted(names.items()))

    def _merge(
        self,
        rows: DataFrame,
        batch: LakeBatch,
        start: Tso,
        heads: dict[int, LakeTable],
        read: Mapping[int, RowCounts],
    ) -> list[merging.Merged]:
        """Changes go where the others of their key are, and are merged there, side by side."""
        lake, tasks = self.lake, SparkTasks(rows.sparkSession)
        rows.sparkSession.conf.set(_BATCH_BYTES, str(PIECE_BYTES))
        parts = merging.parts_of(read, tasks.cores)

        def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = merging.merge(lake, heads, batch, parts, batches)
            done = [msgspec.json.encode(each) for each in found]
            yield pa.RecordBatch.from_arrays([pa.array(done, pa.binary())], ["done"])

        found = (
            rows.mapInArrow(partial(merging.spread, batch, parts, start), ddl_of(PACKETS))
            .repartitionById(parts.total, "partition")
            .sortWithinPartitions("table_id", "piece")
            .mapInArrow(merge, "done BINARY")
            .collect()
        )
        done = [msgspec.json.decode(row["done"], type=merging.Done) for row in found]
        merged = [each for each in done if isinstance(each, merging.Merged)]
        written = [each for each in done if isinstance(each, merging.WrittenPart)]
        if not written:
            return merged
        work = merging.shares(lake, heads, batch, written, tasks.cores)
        left = tasks.map(partial(merging.leave_share, lake, heads, batch), work)
        return [*merged, *merging.commit(lake, heads, batch, written, left)]


def seed(spark: SparkSession, lake: Lake, begin: LoadedBase) -> None:
    """Puts the tables of a base into a lake that is empty, side by side. Raises what Spark does."""
    left = todo(lake, begin)
    log.info("seeding", base=begin.directory, commit_ts=begin.commit_ts, tables=len(left))
    if left:
        found = SparkTasks(spark).map(partial(seed_table, lake, begin), left)
        log.info("seeded", tables=len(left), rows=sum(each.rows for each in found))
    finish_seed(lake, begin)


def read_of_tables(
    steps: DataFrame, changes: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> dict[int, RowCounts]:
    """By table, what a batch read of it: of those `changes` of its `STEPS`."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return counted(changes(batches))

    return by_table(steps.mapInArrow(count, ddl_of(READ)).collect())


def _ddl(rows: DataFrame, after: Tso) -> list[DdlBinlog]:
    found = rows.where((F.col("ddl_job_id") > 0) & (F.col("commit_ts") > after))
    columns = found.orderBy("commit_ts").select(*STEPS.names[:4]).collect()
    return [DdlBinlog(*row) for row in columns]


class SparkTasks:
    """Work as tasks of Spark; see `Executors`."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.cores = self._context.defaultParallelism

    def map(self, act: Callable[[T], R], work: Sequence[T]) -> list[R]:
        """See Executors. Raises what Spark does."""
        return self._context.parallelize(work, len(work)).map(act).collect() if work else []


@dataclass(slots=True)
class DatabaseTarget:
    """Whatever `[syncer]` of a configuration names, through the Drainer itself."""

    sink: DatabaseSink
    checkpoint: str
    takes_over: bool = False
    form: str = "binlog"

    def apply(self, rows: DataFrame, of: Range, figures: PipelineFigures) -> RowCounts:
        """As for a lake; who applies reads the log by itself. Raises what the Drainer is stuck
        at."""
        self.sink.claim(Claim(of.pipeline, self.checkpoint), takes_over=self.takes_over)
        self.takes_over = False
        tasks = SparkTasks(rows.sparkSession)
        with figures.phase("apply"):
            return self.sink.apply(tasks, of.start, of.end, is_first=of.is_first)


PipelineTarget = LakeTarget | DatabaseTarget
"""Where batches go."""
