"""`binlogd export` by the Spark that spark-submit made: from an archive, on its executors.

    spark-submit --py-files job/binlogd.zip job/export.py --archive s3://… --out s3://…

The driver plans by the catalog of the archive, publishes, and removes what did not count. Executors
read the segments, order changes by key and put the files of the snapshot where they stay. How rows
are ordered, decoded and written is `snapshot.job`'s, as on one machine. Files are named by the
attempt of a task, and those of the attempt that Spark counts are in the manifest. So neither a
killed executor nor a second attempt beside the first one is seen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

from msgspec import msgpack, structs
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from binlogd.errors import ConfigError, Refused
from binlogd.host.clock import WallClock
from binlogd.log.segment_index import SegmentIndex
from binlogd.settings.quantities import wall_clock
from binlogd.snapshot import job
from binlogd.snapshot.bases import choice
from binlogd.snapshot.check import listed
from binlogd.snapshot.export import (
    PARTITION_BYTES,
    ExportOptions,
    ExportResult,
    check_form,
    checked,
    manifest_of,
    result_of,
    say_published,
    there_already,
    wanted_spec,
)
from binlogd.snapshot.log.prewrites import DdlCommit
from binlogd.snapshot.log.scan import RowScan, per_task
from binlogd.snapshot.process.launcher import Notice, take
from binlogd.snapshot.process.session import Say, progress, settle
from binlogd.snapshot.spec import LAKES, ExportSpec, Progress, Report, SegmentEntry
from binlogd.snapshot.tables import transactions
from binlogd.snapshot.tables.catalog import catalog
from binlogd.snapshot.tables.doubts import waits
from binlogd.snapshot.writing.files import Send
from binlogd.spark.archived_rows import LOOKED, looked, looks, parts, rows_of, slim
from binlogd.spark.export_places import Place, PublishedSnapshot, Sending, remove_unnamed
from binlogd.spark.inputs import ArchiveInput
from binlogd.spark.late import doubts_of, newest_version
from binlogd.spark.request import request
from binlogd.tso import MAX_TS, NO_TS, Tso

NO_BASE = choice.Chosen(None, NO_TS, "an export on a cluster reads all of the log")


def check_fit(options: ExportOptions) -> None:
    """Refuses, by ConfigError, what goes on one machine alone."""
    elsewhere = "; export it on one machine: binlogd export --archive"
    if options.base not in (choice.AUTO, choice.NONE):
        raise ConfigError(f"--base {options.base_shown or options.base}: {NO_BASE.why}{elsewhere}")
    if options.layout != "plain":
        raise ConfigError(
            f"--layout {options.layout}: its files are numbered one after the other, by one"
            f" process{elsewhere}"
        )
    if options.format in LAKES:
        raise ConfigError(
            f"--format {options.format}: a cluster writes files alone; `binlogd pipeline --into"
            f" {options.format}:…` keeps tables, or --format parquet makes files for them"
        )
    if options.is_resumed:
        raise ConfigError(
            "--resume: of an export on a cluster nothing is left to go on from; run it without"
        )


@contextmanager
def submitted_session() -> Iterator[SparkSession]:
    """The session that spark-submit sets up, which is ended then."""
    with SparkSession.builder.appName("binlogd-export").getOrCreate() as spark:
        yield spark


def export_in(
    session: AbstractContextManager[SparkSession],
    options: ExportOptions,
    archive: str,
    place: Place,
    notice: Notice,
) -> ExportResult:
    """Publishes a snapshot; one that is there is left as it is. The session is begun when there is
    something to do for it.

    Raises ConfigError, Refused, ExportFailed, Corrupt, ArchiveUnavailable, StoreFailed.
    """
    as_of = checked(options)
    check_fit(options)
    source, spec = complete(archive), wanted_spec(options, as_of)
    options = replace(options, cluster_id=source.cluster_id())
    commit_ts = transactions.chosen(spec, source.resolved_ts())
    spec = structs.replace(spec, as_of=commit_ts, before_latest_ms=0)
    there = None if options.is_again else place.there(commit_ts)
    if there is not None:
        check_form(options, there.manifest, there.stored or str(there.path))
        result = there_already(there.path, there.manifest)
    else:
        with session as spark:
            there = _made(spark, options, spec, source, place, notice)
        result = result_of(there.path, there.manifest, NO_BASE)
        say_published(replace(result, stored=there.stored))
    removed = place.remove_surplus(options.keep) if options.keep else []
    return replace(result, stored=there.stored, removed=tuple(removed))


def _made(
    spark: SparkSession,
    options: ExportOptions,
    spec: ExportSpec,
    source: ArchiveInput,
    place: Place,
    notice: Notice,
) -> PublishedSnapshot:
    clock = WallClock()
    began_ms = clock.wall_ms()
    settle(spark)
    with place.begun(Tso(spec.as_of)) as url:
        report = _staged(spark, spec, source, url, notice)
        notice(Progress("publishing", 0, 0))
        of_log = (SegmentEntry(e.shard, e.fid, e.size_bytes) for e in source.segments())
        seconds = (clock.wall_ms() - began_ms) / 1000
        manifest = manifest_of(options, report, tuple(of_log), NO_BASE, seconds)
        remove_unnamed(url, listed(manifest))
        return place.publish(url, manifest, is_again=options.is_again)


def complete(archive: str) -> ArchiveInput:
    """The archive, whose log is there from its beginning. Raises Refused."""
    source = ArchiveInput(request({"path": archive, "form": "changes"}))
    gone_ts = source.gone_ts()
    if gone_ts:
        raise Refused(
            f"the archive is complete behind {gone_ts} ({wall_clock(gone_ts)}) only, so a snapshot"
            " needs a base, and an export on a cluster builds on none; export it on one machine:"
            " binlogd export --archive"
        )
    return source


def _staged(
    spark: SparkSession, spec: ExportSpec, source: ArchiveInput, url: str, notice: Notice
) -> Report:
    """Puts the files of all tables below a URL. Raises what the job fails with."""
    say = partial(take, notice=notice)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            spec = structs.replace(spec, staging=scratch, scratch=scratch)
            return _built(spark, spec, source, Sending(url), say)
    except (PySparkException, Py4JError) as error:
        say(job.failed_in_spark(error, spec.out))
        raise AssertionError("a failure raises") from error


def _built(
    spark: SparkSession, spec: ExportSpec, source: ArchiveInput, send: Send, say: Say
) -> Report:
    archive, commit_ts = source.url, Tso(spec.as_of)
    segments, opened = list[SegmentIndex](), list[int]()
    for each in source.segments():
        opened += [prewrite.start_ts for prewrite in each.open]
        segments.append(slim(each))
    with progress(spark, "transactions", say):
        first_ts, ddl = _looked(spark, archive, segments)
    begins = Tso(min([first_ts, *opened]))
    transactions.check_begin(spec, begins, commit_ts)
    binlogs = transactions.ddl_binlogs(ddl, commit_ts)
    known = catalog(
        source.jobs(),
        binlogs,
        log_begins=begins,
        ignore_schemas=spec.ignore_schemas,
        seen=partial(newest_version, source, commit_ts),
    )
    cores = spark.sparkContext.defaultParallelism
    work = parts(segments, commit_ts, cores)
    log_bytes = sum(part.size_bytes for task in work for part in task)
    asked = waits(known.tables, known.moves, lambda step: step.turn.published_ts)
    in_doubt = doubts_of(source, asked, commit_ts)
    plan = job.JobPlan(commit_ts, source.resolved_ts(), known, binlogs, in_doubt, log_bytes)
    partitions = min(max(8, 2 * cores), 1 + log_bytes // PARTITION_BYTES)
    spec = structs.replace(spec, partitions=partitions)
    rows = RowScan(spark, len(work), rows_of(archive, work, commit_ts, job.wanted(spec, known)))
    return job.stage(spec, plan, rows, say, send)


def _looked(
    spark: SparkSession, archive: str, segments: list[SegmentIndex]
) -> tuple[int, list[DdlCommit]]:
    """The first start_ts of what committed, and the Commits of DDL."""
    work = looks(segments)
    found = per_task(spark, len(work), looked(archive, work), LOOKED).collect() if work else []
    commits = (msgpack.decode(bytes(row["ddl"]), type=list[DdlCommit]) for row in found)
    first_ts = min((row["first_ts"] for row in found), default=MAX_TS)
    return first_ts, [each for some in commits for each in some]
