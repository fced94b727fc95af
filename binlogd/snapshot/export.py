"""`binlogd export`: every table as of one commit_ts, built by a child process and published whole.

The parent pins the input, starts the job, listens to it, and publishes what it staged. It imports
neither PySpark nor pyarrow. Killed at any moment, either side leaves the old snapshots or the new
one, never half of one; what it leaves of its own is swept by the next export into the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from binlogd import __version__
from binlogd.errors import ConfigError, Refused
from binlogd.host.clock import WallClock
from binlogd.moment import wall_clock
from binlogd.snapshot import bases, launcher, preflight
from binlogd.snapshot.jobdir import STAGING_PREFIX, Pinned, job_directory, pinned
from binlogd.snapshot.launcher import Progress
from binlogd.snapshot.publish import publish, published_path
from binlogd.snapshot.spec import (
    FORMATS,
    BaseEntry,
    ChangesOptions,
    ExportSpec,
    Layout,
    LeftOut,
    Manifest,
    Moment,
    Report,
    Segment,
    SegmentEntry,
    SessionSpec,
    TypeOptions,
    moment,
)
from binlogd.tso import NO_TS, Tso, compose, plus_ms

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to export and where to.

    `as_of` is `latest`, `latest-5m`, a TSO or an ISO 8601 time. `base` is `auto`, `none` or a
    directory. `schema_history` is a JSON array of DDL jobs as
    TiDB serves it at `/ddl/history`. `resolved_ts`, if a Pump told one, says up to where it vouches
    that every transaction is decided; it must have been asked before `export` is called.
    """

    data_dir: Path
    out: Path
    schema_history: bytes
    as_of: str = "latest"
    base: str = bases.AUTO
    changes: ChangesOptions | None = None
    format: str = "parquet"
    layout: Layout = "plain"
    cluster_id: int | None = None
    resolved_ts: Tso = NO_TS
    ignore_schemas: tuple[str, ...] = ("mysql", "information_schema", "performance_schema")
    types: TypeOptions = field(default_factory=TypeOptions)
    cores: int = 2
    memory_mb: int = 1024


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A published snapshot. `left_out` names tables that the log cannot tell, `base` what it was
    built on, and why that or nothing."""

    path: Path
    commit_ts: Tso
    tables: int
    rows: int
    size_bytes: int
    left_out: tuple[LeftOut, ...]
    base: bases.Chosen


async def export(
    options: ExportOptions, progress: Callable[[Progress], None] = lambda _: None
) -> ExportResult:
    """Exports and publishes `<out>/snapshot-<commit_ts>`.

    Raises ConfigError (no Java, no PySpark, no log, a wrong moment), Refused (a moment that is not
    decided yet, or is there already; no base where one is needed), ExportFailed (damaged bytes,
    rows that contradict the schema, a job that died). Cancelled, it ends the job and leaves
    nothing.
    """
    as_of = _checked(options)
    found = await preflight.machine()
    preflight.check_memory(options.memory_mb)
    progress(Progress("starting", 0, 0))
    with (
        job_directory(options.out, STAGING_PREFIX) as job,
        pinned(options.data_dir, job) as log_files,
    ):
        base = _base(options, as_of, log_files.gone_ts)
        spec = _spec(options, as_of, job, log_files, base)
        preflight.check_disk(options.out, sum(each.size_bytes for each in log_files.segments))
        session = _session(options, found, job)
        async with launcher.running(session, job / "job.log") as child:
            report = await child.export(spec, progress)
        progress(Progress("publishing", 0, 0))
        manifest = _manifest(options, report, log_files.segments, base)
        path = publish(Path(spec.staging), options.out, manifest)
    result = ExportResult(
        path=path,
        commit_ts=Tso(report.commit_ts),
        tables=len(report.tables),
        rows=sum(table.rows for table in report.tables),
        size_bytes=sum(file.size_bytes for table in report.tables for file in table.files),
        left_out=report.left_out,
        base=base,
    )
    log.info(
        "snapshot_published",
        path=str(path),
        commit_ts=result.commit_ts,
        tables=result.tables,
        rows=result.rows,
        size_bytes=result.size_bytes,
        left_out=len(result.left_out),
    )
    return result


def _checked(options: ExportOptions) -> Moment:
    """The moment; everything that can be told without the job."""
    as_of = moment(options.as_of)
    if options.format not in FORMATS or (options.format == "sql" and options.layout != "dumpling"):
        raise ConfigError(
            f"--format {options.format}: there is {', '.join(FORMATS)}; sql with --layout dumpling"
        )
    if options.changes is not None and options.format != "parquet":
        raise ConfigError(f"--format {options.format}: changes are written as parquet")
    if as_of.ts:
        from_ts = Tso(options.changes.from_ts if options.changes else NO_TS)
        published_path(options.out, as_of.ts, from_ts)
    return as_of


def _base(options: ExportOptions, as_of: Moment, gone_ts: Tso) -> bases.Chosen:
    latest = as_of.ts
    if as_of.before_latest_ms:
        now = options.resolved_ts or compose(WallClock().wall_ms())
        latest = plus_ms(now, -as_of.before_latest_ms)
    if options.changes is not None:
        return _no_base(options.changes, gone_ts)
    needs = bases.Needs(latest, gone_ts, options.cluster_id, options.types)
    chosen = bases.choose(options.base, options.out, needs)
    log.info(
        "export_base_chosen",
        base=str(chosen.directory) if chosen.directory else "none",
        why=chosen.why,
        log_complete_behind=gone_ts,
    )
    return chosen


def _no_base(changes: ChangesOptions, gone_ts: Tso) -> bases.Chosen:
    """Changes need no base, but all of the log behind their beginning."""
    if changes.from_ts < gone_ts:
        raise Refused(
            f"--from {changes.from_ts}: GC removed the beginning of the log, which is complete"
            f" behind {gone_ts} only; begin there, or export a snapshot"
        )
    return bases.Chosen(None, NO_TS, "changes need none")


def _spec(
    options: ExportOptions, as_of: Moment, job: Path, log_files: Pinned, base: bases.Chosen
) -> ExportSpec:
    staging, scratch, history = job / "snapshot", job / "scratch", job / "ddl_history.json"
    staging.mkdir()
    scratch.mkdir()
    history.write_bytes(options.schema_history)
    return ExportSpec(
        segments=log_files.segments,
        schema_history=str(history.absolute()),
        as_of=as_of.ts,
        before_latest_ms=as_of.before_latest_ms,
        base=str(base.directory or ""),
        base_ts=base.commit_ts,
        is_headless=log_files.gone_ts > NO_TS,
        changes=options.changes,
        out=str(options.out.absolute()),
        known_resolved_ts=options.resolved_ts,
        staging=str(staging.absolute()),
        scratch=str(scratch.absolute()),
        ignore_schemas=options.ignore_schemas,
        types=options.types,
        format=options.format,
        layout=options.layout,
    )


def _session(options: ExportOptions, found: preflight.Machine, job: Path) -> SessionSpec:
    """With the class archive, if there is one."""
    scratch, archive = job / "spark", found.class_archive()
    scratch.mkdir()
    return SessionSpec(
        scratch=str(scratch.absolute()),
        cores=options.cores,
        memory_mb=options.memory_mb,
        class_archive=str(archive) if archive.exists() else "",
    )


def _manifest(
    options: ExportOptions, report: Report, segments: Sequence[Segment], base: bases.Chosen
) -> Manifest:
    return Manifest(
        binlogd_version=__version__,
        spark_version=report.spark_version,
        cluster_id=options.cluster_id,
        commit_ts=report.commit_ts,
        time=wall_clock(Tso(report.commit_ts)),
        resolved_ts=report.resolved_ts,
        log=tuple(SegmentEntry(each.shard, each.fid, each.size_bytes) for each in segments),
        tables=report.tables,
        left_out=report.left_out,
        types=options.types,
        base=BaseEntry(str(base.directory), base.commit_ts) if base.directory else None,
        schema=report.schema,
        changes=report.changes,
        data_format=options.format,
        layout=options.layout,
        create_databases=report.create_databases,
    )
