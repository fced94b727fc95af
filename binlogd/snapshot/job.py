"""How a snapshot is built on a Spark session, from the log to a staging directory.

One job reads the heads of all binlogs, which tell what is committed and which DDL lies before the
moment; a second one reads the rows of those transactions. Of all changes of a key the last one
wins, and only winners are decoded: raw bytes go through the shuffle, one scan serves all tables.

It stages and syncs; publishing is left to the parent of its process (`child`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from binlogd.errors import BinlogdError, ConfigError, Refused
from binlogd.snapshot import dumpling
from binlogd.snapshot.formats.file_kinds import FileKind
from binlogd.snapshot.log import reader, scan
from binlogd.snapshot.log.events import WantedTables
from binlogd.snapshot.log.packets import Spread
from binlogd.snapshot.log.prewrites import LogHeads
from binlogd.snapshot.process.session import Say, progress
from binlogd.snapshot.publishing import marks
from binlogd.snapshot.publishing.publish import check_free
from binlogd.snapshot.spec import (
    EXIT_DONE,
    EXIT_FAILED,
    SPEC_VERSION,
    DoubtfulRows,
    Event,
    ExportSpec,
    Failed,
    Planned,
    Progress,
    Report,
    Staged,
)
from binlogd.snapshot.tables import transactions
from binlogd.snapshot.tables.built_on import Base, open_base
from binlogd.snapshot.tables.catalog import Catalog, DdlBinlog, Origin, catalog
from binlogd.snapshot.tables.doubts import in_doubt
from binlogd.snapshot.writing import changes, write
from binlogd.snapshot.writing.files import FileTarget, Send, Written
from binlogd.tidb.model import jobs_from_json
from binlogd.tso import NO_TS, Tso

HEADS_FILE = "heads.parquet"
"""Below the state of an export: what its first pass over the log found."""

_NO_SPACE = "No space left on device"


def run(spark: SparkSession, spec: ExportSpec, say: Say) -> int:
    """One export, as far as the staging directory. Says what happens, gives the exit code."""
    try:
        say(Staged(build(spark, spec, say)))
    except BinlogdError as error:
        say(Failed(type(error).__name__, str(error)))
    except (PySparkException, Py4JError, OSError) as error:
        say(failed_in_spark(error, spec.out))
    else:
        return EXIT_DONE
    return EXIT_FAILED


class JobPlan(NamedTuple):
    """What is to be staged, of so many bytes of log."""

    commit_ts: Tso
    resolved_ts: Tso
    known: Catalog
    ddl: list[DdlBinlog]
    in_doubt: tuple[DoubtfulRows, ...]
    log_bytes: int


def build(spark: SparkSession, spec: ExportSpec, say: Say) -> Report:
    """Stages every table as of the moment. Raises what `run` turns into events."""
    if spec.version != SPEC_VERSION:
        raise ConfigError(f"an export spec of version {spec.version}, this is {SPEC_VERSION}")
    tasks = reader.tasks(reader.slices(spec.segments, spec.slice_bytes), spec.slice_bytes)
    with progress(spark, "transactions", say):
        log = scan.log(spark, tasks, Path(spec.state, HEADS_FILE) if spec.state else None)
        plan, reads = _planned(spec, log)
    del log
    rows = scan.RowScan(spark, len(tasks), scan.of_slices(tasks, reads, wanted(spec, plan.known)))
    return stage(spec, plan, rows, say)


def wanted(spec: ExportSpec, known: Catalog) -> WantedTables:
    """Which rows the job reads."""
    since = {table_id: plan.since_ts for table_id, plan in known.tables.items() if plan.since_ts}
    has_before = spec.changes is not None or any(
        plan.carry is not None and plan.carry.is_loose for plan in known.tables.values()
    )
    handles = {table_id: plan.handle for table_id, plan in known.tables.items()}
    return WantedTables(handles, known.passed_over, since, has_before, known.moves)


def stage(
    spec: ExportSpec, plan: JobPlan, rows: scan.RowScan, say: Say, send: Send | None = None
) -> Report:
    """Writes the rows as the files of the snapshot; `send` is that of `FileTarget`."""
    spark, known = rows.spark, plan.known
    say(Planned(plan.commit_ts, plan.resolved_ts, len(known.tables), rows.tasks))
    keys = f"{spec.state or spec.scratch}/keys"
    kind = FileKind(spec.format, spec.layout)
    target = FileTarget(
        spec.staging, spec.types, spec.rows_per_file_max, keys, kind, spec.state, send
    )
    if spec.state:
        schema = hashlib.sha256(known.tracker).hexdigest()
        begun = marks.Plan(plan.commit_ts, plan.resolved_ts, spec.partitions, schema)
        marks.begin(Path(spec.state), begun)
    to = Spread.of(spec.partitions, plan.log_bytes)
    with progress(spark, "rows", say, _news(spec, known)):
        if spec.changes is None:
            written = write.write(rows.spread(to), known, target)
            written += write.carry(spark, known, target)
        elif spec.changes.all_versions:
            written = changes.every(rows, known, target, spec.changes)
        else:
            written = changes.net(rows.spread(to), known, target, spec.changes)
    report = _reported(spec, plan, written, target, spark.version)
    if spec.state:
        marks.keep_report(Path(spec.state), report)
    shutil.rmtree(keys, ignore_errors=True)  # until then whoever goes on needs them
    return report


def _planned(spec: ExportSpec, log: LogHeads) -> tuple[JobPlan, list[bytes]]:
    """The plan, and what is read of each slice."""
    log_begins, commit_ts, resolved_ts = transactions.moment(log, spec)
    changes_from = Tso(spec.changes.from_ts if spec.changes else NO_TS)
    if changes_from > commit_ts:
        raise Refused(
            f"--from {changes_from} lies behind {commit_ts}, up to where changes are wanted"
        )
    if not spec.is_again:
        check_free(Path(spec.out), commit_ts, changes_from)
    since_ts = max(changes_from, Tso(spec.base_ts if spec.is_headless else NO_TS))
    transactions.check_pairs(log, commit_ts, since_ts)
    ddl = transactions.ddl_binlogs(log.ddl, commit_ts)
    known = catalog(
        jobs_from_json(Path(spec.schema_history).read_bytes()),
        ddl,
        log_begins=log_begins,
        ignore_schemas=spec.ignore_schemas,
        origin=Origin(_base(spec, changes_from), spec.is_headless, changes_from),
        seen=partial(transactions.newest_version, log),
    )
    if spec.layout == "dumpling":
        plans = {table_id: dumpling.dumped(plan) for table_id, plan in known.tables.items()}
        known = dataclasses.replace(known, tables=plans)
    reads = transactions.reads(log, commit_ts, _read_behind(spec, known))
    doubts = in_doubt(log, known, reads)
    log_bytes = sum(part.size_bytes for part in log.parts)
    plan = JobPlan(commit_ts, resolved_ts, known, ddl, doubts, log_bytes)
    return plan, [each.packed() for each in reads]


def _reported(
    spec: ExportSpec, plan: JobPlan, written: list[Written], target: FileTarget, spark_version: str
) -> Report:
    schema = write.keep_schema(plan.known, target)
    tables, left_out = write.entries(plan.known, written, target, has_empty=spec.changes is None)
    databases, beside = write.create_databases(plan.known), tuple[str, ...]()
    if spec.layout == "dumpling":
        to = Path(spec.staging), target.kind.suffix
        tables, beside = dumpling.lay_out(*to, plan.commit_ts, tables, databases)
    return Report(
        commit_ts=plan.commit_ts,
        resolved_ts=plan.resolved_ts,
        spark_version=spark_version,
        tables=tables,
        left_out=(*plan.known.left_out, *left_out),
        schema=schema,
        changes=changes.entry(spec.changes, plan.ddl) if spec.changes else None,
        create_databases=databases,
        extra_files=beside,
        in_doubt=plan.in_doubt,
    )


def _news(spec: ExportSpec, known: Catalog) -> Callable[[], Iterable[Event]]:
    """Tells of the tables that got rows since it was asked last."""
    if not spec.state:
        return tuple
    watcher = marks.Watcher(Path(spec.state))

    def news() -> Iterator[Event]:
        for table_id, rows in watcher.news().items():
            yield Progress("rows", rows, 0, known.tables[table_id].label)

    return news


def _read_behind(spec: ExportSpec, known: Catalog) -> Tso:
    """Up to where nothing of the log is needed: the base has it, or nobody asked."""
    if spec.changes is not None:
        return Tso(spec.changes.from_ts)
    return min((plan.since_ts for plan in known.tables.values()), default=NO_TS)


def _base(spec: ExportSpec, changes_from: Tso) -> Base | None:
    """Changes begin like a snapshot that has a base without tables."""
    if changes_from:
        return Base("", changes_from, spec.types, {})
    return open_base(Path(spec.base), spec.types, spec.base_time_zone) if spec.base else None


_OURS = re.compile(r"binlogd\.(?:errors|(?:snapshot|tidb|archive)[.\w]*)\.(\w+): (.+)")


def failed_in_spark(error: PySparkException | Py4JError | OSError, out: str) -> Failed:
    """An error of ours that a worker raised, found again in Spark's text; or Spark's own, or what
    the driver met at its files."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return Failed(*ours[-1])
    with suppress(OSError):  # its log may be on the disk that is full
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    if _NO_SPACE in text:
        return Failed("OSError", f"{out}: {_NO_SPACE} while the rows were written: free some")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Failed(type(error).__name__, " ... ".join(lines[:1] + lines[-1:]))
