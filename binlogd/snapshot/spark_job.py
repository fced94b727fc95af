"""The PySpark program that builds a snapshot; the only file that knows Spark.

    python -m binlogd.snapshot.spark_job      one ExportSpec per line on stdin, events on a pipe

One pass tells which transactions are committed and which DDL lies before the moment, a second one
reads row changes. Of all changes of a key the last one wins, and only winners are decoded: raw
bytes go through the shuffle, one scan and one Spark job serve all tables.

Runs in a process of its own, started by `export`: a JVM must not share the memory or the fate of
whoever asks. It stages and syncs; publishing is left to its parent. When the parent dies, it dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark import StorageLevel, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from binlogd.errors import BinlogdError, ConfigError, Corrupt, Refused
from binlogd.snapshot import reader, writer
from binlogd.snapshot.catalog import Catalog, DdlBinlog, TablePlan, catalog
from binlogd.snapshot.columns import arrow_column, spark_type
from binlogd.snapshot.publish import snapshot_path
from binlogd.snapshot.rowkey import Op
from binlogd.snapshot.spec import (
    EXIT_DATA,
    EXIT_DONE,
    EXIT_ENVIRONMENT,
    EXIT_SPEC,
    SPEC_VERSION,
    Advanced,
    Event,
    ExportSpec,
    Failed,
    FileEntry,
    LeftOut,
    Planned,
    Report,
    Staged,
    TableEntry,
)
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import Tso

EVENTS_FD = "BINLOGD_EVENTS_FD"
"""Environment variable: the descriptor that events are written to, one JSON object per line."""

NICENESS = 10
PROGRESS_INTERVAL_S = 0.25
_PR_SET_PDEATHSIG = 1

Say = Callable[[Event], None]
Task = tuple[reader.Slice, ...]


def main() -> int:
    """Serves specs until stdin ends; the exit code is that of the last one."""
    _die_with_parent()
    os.nice(NICENESS)
    say = _speaker(int(os.environ[EVENTS_FD]))
    code = EXIT_DONE
    spark: SparkSession | None = None
    for line in sys.stdin.buffer:
        spec = msgspec.json.decode(line, type=ExportSpec)
        try:
            spark = spark or session(spec)
            code = run(spark, spec, say)
        except (PySparkException, Py4JError, OSError) as error:
            say(Failed(type(error).__name__, f"Spark did not start: {error}"))
            code = EXIT_ENVIRONMENT
    if spark is not None:
        spark.stop()
    return code


def run(spark: SparkSession, spec: ExportSpec, say: Say) -> int:
    """One export, as far as the staging directory. Says what happens, gives the exit code."""
    try:
        say(Staged(build(spark, spec, say)))
    except BinlogdError as error:
        say(Failed(type(error).__name__, str(error)))
        return EXIT_SPEC if isinstance(error, ConfigError) else EXIT_DATA
    except (PySparkException, Py4JError) as error:
        say(_failed_in_spark(error))
        return EXIT_DATA
    return EXIT_DONE


def build(spark: SparkSession, spec: ExportSpec, say: Say) -> Report:
    """Stages every table as of the moment. Raises what `run` turns into events."""
    if spec.version != SPEC_VERSION:
        raise ConfigError(f"an export spec of version {spec.version}, this is {SPEC_VERSION}")
    jobs = jobs_from_json(Path(spec.schema_history).read_bytes())
    parts = reader.tasks(reader.slices(spec.segments, spec.slice_bytes), spec.slice_bytes)
    with _progress(spark, "transactions", say):
        heads = _heads(spark, parts).persist(StorageLevel.MEMORY_AND_DISK)
        log_begins, commit_ts, resolved_ts = _moment(heads, spec)
        snapshot_path(Path(spec.out), commit_ts)
        _check_pairs(heads, commit_ts)
        known = catalog(
            jobs,
            _ddl(heads, commit_ts),
            log_begins=log_begins,
            ignore_schemas=spec.ignore_schemas,
        )
    say(Planned(commit_ts, resolved_ts, len(known.tables), len(parts)))
    target = writer.Target(spec.staging, spec.invalid_text, spec.rows_per_file_max)
    with _progress(spark, "rows", say):
        written = _write(_winners(spark, heads, parts, known, commit_ts), known, target)
    heads.unpersist()
    tables, left_out = _entries(known, written, target)
    return Report(
        commit_ts=commit_ts,
        resolved_ts=resolved_ts,
        spark_version=spark.version,
        tables=tables,
        left_out=(*known.left_out, *left_out),
    )


# --- which moment ------------------------------------------------------------------------


def _heads(spark: SparkSession, parts: Sequence[Task]) -> DataFrame:
    """One row per binlog of the log."""
    if not parts:
        raise Refused("the log holds no binlogs: there is nothing to export")
    return _per_slice(spark, parts, reader.heads, reader.HEADS)


def _per_slice(
    spark: SparkSession,
    parts: Sequence[Task],
    read: Callable[[reader.Slice], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in parts[number]:
                    yield from read(part)

    count = len(parts)
    return spark.range(0, count, 1, count).mapInArrow(read_all, _ddl_of(schema))


def _ddl_of(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)


def _moment(heads: DataFrame, spec: ExportSpec) -> tuple[Tso, Tso, Tso]:
    """Where the log begins, the commit_ts of the snapshot, and up to where the log is complete.

    Whatever commits at or below a commit_ts that lay in the log before its files were pinned had
    its prewrite acknowledged by then, so it is in the pinned files. A prewrite without an outcome
    commits above its start_ts, and above every commit_ts that lies before it in its own shard.
    """
    is_fake = (F.col("tp") == 2) & (F.col("start_ts") == F.col("commit_ts"))
    outcomes = heads.where((F.col("tp") != 0) & ~is_fake).select("start_ts").distinct()
    prewrites = (
        heads.where("tp = 0").groupBy("start_ts", "shard").agg(F.min("position").alias("at"))
    )
    opened = prewrites.join(outcomes, "start_ts", "left_anti")
    commits = heads.select(F.col("shard").alias("of"), "position", F.col("commit_ts").alias("ts"))
    start = opened.select(F.col("shard").alias("of"), F.lit(-1), F.lit(0)).distinct()
    is_ahead = (F.col("of") == F.col("shard")) & (F.col("position") < F.col("at"))
    floors = (
        F.broadcast(opened)
        .join(commits.union(start), is_ahead)
        .groupBy("start_ts")
        .agg(F.greatest("start_ts", F.max("ts")).alias("floor"))
    )
    seen = heads.agg(
        F.min(F.nullif("start_ts", F.lit(0))).alias("first"),
        F.max(F.when(F.col("is_seen"), F.col("commit_ts"))).alias("last"),
    ).collect()[0]
    cap = seen["last"] or 0
    floor = floors.agg(F.min("floor").alias("floor")).collect()[0]["floor"]
    resolved = cap if floor is None else min(cap, floor)
    resolved = Tso(max(resolved, min(spec.known_resolved_ts, cap)))
    if resolved == 0:
        raise Refused("the log holds no committed transaction: there is nothing to export")
    if spec.as_of > resolved:
        raise Refused(
            f"--as-of {spec.as_of} is above {resolved}, up to where every transaction of the log"
            " is decided; export `latest`, or wait until the writers have come so far"
        )
    return Tso(seen["first"]), Tso(spec.as_of or resolved), resolved


def _check_pairs(heads: DataFrame, commit_ts: Tso) -> None:
    """Every commit has its prewrite, and a transaction one commit_ts. Raises Corrupt."""
    commits = heads.where(f"tp = 1 and commit_ts <= {commit_ts}")
    twice = commits.groupBy("start_ts").agg(
        F.min("commit_ts").alias("commit_ts"), F.max("commit_ts").alias("other")
    )
    prewrites = heads.where("tp = 0").select("start_ts", F.lit(1).alias("has_prewrite")).distinct()
    odd = twice.join(prewrites, "start_ts", "left").where(
        "has_prewrite is null or commit_ts <> other"
    )
    for row in odd.limit(1).collect():
        reason = (
            "the log does not hold its Prewrite"
            if row["has_prewrite"] is None
            else f"another Commit of it says {row['other']}"
        )
        raise Corrupt(f"transaction {row['start_ts']} committed at {row['commit_ts']}: {reason}")


def _ddl(heads: DataFrame, commit_ts: Tso) -> list[DdlBinlog]:
    rows = heads.where(f"ddl_job_id <> 0 and commit_ts <= {commit_ts}")
    found = {
        (row["commit_ts"], row["start_ts"]): DdlBinlog(
            Tso(row["commit_ts"]),
            row["ddl_job_id"],
            row["ddl_state"],
            bytes(row["ddl_query"] or b"").decode(errors="replace"),
        )
        for row in rows.collect()
    }
    return [found[key] for key in sorted(found)]


# --- what the tables hold ----------------------------------------------------------------


def _winners(
    spark: SparkSession,
    heads: DataFrame,
    parts: Sequence[Task],
    known: Catalog,
    commit_ts: Tso,
) -> DataFrame:
    """The last change of each key up to the moment, unless it is a delete."""
    handles = {table_id: plan.handle for table_id, plan in known.tables.items()}
    wanted = reader.Wanted(handles, known.passed_over, commit_ts)
    events = _per_slice(spark, parts, lambda part: reader.events(part, wanted), reader.EVENTS)
    commits = (
        heads.where(f"tp = 1 and ddl_job_id = 0 and commit_ts <= {commit_ts}")
        .groupBy("start_ts")
        .agg(F.min("commit_ts").alias("commit_ts"))
    )
    newest_first = Window.partitionBy("table_id", "key").orderBy(
        F.desc("commit_ts"), F.desc("seq"), F.desc("start_ts")
    )
    return (
        events.join(commits, "start_ts")
        .withColumn("newest", F.row_number().over(newest_first))
        .where(f"newest = 1 and op <> {Op.DELETE.value}")
        .select("table_id", "key", "schema_version", "commit_ts", "row")
    )


def _write(winners: DataFrame, known: Catalog, target: writer.Target) -> list[writer.Written]:
    tables, tracker = dict(known.tables), known.tracker

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = f"{context.partitionId():05d}.{context.attemptNumber()}" if context else "0"
        yield from writer.write(batches, tables, tracker, target, part)

    by_table = winners.sortWithinPartitions("table_id", "key")
    rows = by_table.mapInArrow(write, _ddl_of(writer.RESULTS)).collect()
    return [writer.Written(**row.asDict()) for row in rows]


def _entries(
    known: Catalog, written: Sequence[writer.Written], target: writer.Target
) -> tuple[tuple[TableEntry, ...], list[LeftOut]]:
    """What was staged, table by table; tables with a problem are removed again."""
    of_table: dict[int, list[writer.Written]] = {}
    for each in written:
        of_table.setdefault(each.table_id, []).append(each)
    tables, left_out = [], []
    for table_id, plan in sorted(known.tables.items()):
        files = of_table.get(table_id) or writer.write_empty(plan, target)
        directory = Path(target.staging, writer.directory_name(plan))
        problem = next((each.problem for each in files if each.problem), "")
        if problem:
            shutil.rmtree(directory, ignore_errors=True)
            left_out.append(LeftOut(plan.database, plan.info.name, problem))
            continue
        _keep_only(directory, {Path(each.name).name for each in files})
        tables.append(_entry(plan, files))
    _sync(Path(target.staging))
    return tuple(tables), left_out


def _entry(plan: TablePlan, files: Sequence[writer.Written]) -> TableEntry:
    losses: dict[str, Counter[str]] = {}
    for each in files:
        for column, lost in json.loads(each.losses).items():
            losses.setdefault(column, Counter()).update(lost)
    return TableEntry(
        database=plan.database,
        table=plan.info.name,
        table_id=plan.info.id,
        rows=sum(each.rows for each in files),
        columns=tuple(arrow_column(each, "error").entry() for each in plan.columns),
        left_out_columns=plan.left_out_columns,
        losses={column: dict(lost) for column, lost in losses.items()},
        files=tuple(
            FileEntry(each.name, each.rows, each.size_bytes, each.sha256)
            for each in sorted(files, key=lambda each: each.name)
        ),
    )


def _keep_only(directory: Path, names: set[str]) -> None:
    """Removes what failed attempts left, and syncs the directory."""
    for path in directory.iterdir():
        if path.name not in names:
            path.unlink()
    _sync(directory)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the session ---------------------------------------------------------------------------


def session(spec: ExportSpec) -> SparkSession:
    """A local session on loopback, without UI, with everything it writes under `scratch`."""
    java = f"-Xss1m -XX:+ExitOnOutOfMemoryError -Djava.io.tmpdir={spec.scratch}"
    java += " -XX:+UseSerialGC -XX:TieredStopAtLevel=1" if spec.is_short else " -XX:+UseParallelGC"
    settings = {
        "spark.driver.memory": f"{spec.memory_mb}m",
        "spark.driver.extraJavaOptions": java,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": spec.scratch,
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.warehouse.dir": spec.scratch,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": str(max(8, 2 * spec.cores)),
        # rows may have megabytes each
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(reader.BATCH_BYTES_MAX),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    }
    builder: Any = SparkSession.builder.appName("binlogd-export").master(f"local[{spec.cores}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


@contextmanager
def _progress(spark: SparkSession, stage: str, say: Say) -> Iterator[None]:
    """Tells how many tasks are done while the block runs.

    From a thread: the block waits inside the JVM, and this process has no event loop.
    """
    is_over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        said: tuple[int, int] | None = None
        while not is_over.wait(PROGRESS_INTERVAL_S):
            infos = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            counts = [(each.numCompletedTasks, each.numTasks) for each in infos if each]
            now = sum(done for done, _ in counts), sum(total for _, total in counts)
            if now[1] and now != said:
                said = now
                say(Advanced(stage, *now))

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


_OURS = re.compile(r"binlogd\.(?:errors|snapshot\.\w+)\.(\w+): (.+)")


def _failed_in_spark(error: PySparkException | Py4JError) -> Failed:
    """An error of ours that a worker raised, found again in Spark's text; or Spark's own."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return Failed(*ours[-1])
    sys.stderr.write(text + "\n")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Failed(type(error).__name__, " ... ".join(lines[:1] + lines[-1:]))


def _speaker(descriptor: int) -> Say:
    os.set_inheritable(descriptor, False)

    def say(event: Event) -> None:
        os.write(descriptor, msgspec.json.encode(event) + b"\n")

    return say


def _die_with_parent() -> None:
    """A job whose parent was killed has nobody to publish it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    # Under its own name, so that workers import functions instead of unpickling them.
    from binlogd.snapshot import spark_job

    sys.exit(spark_job.main())
