"""`binlogd export`: every table as of one commit_ts, built by a child process and published whole.

The parent pins the input, starts the job, listens to it, and publishes what it staged. It imports
neither PySpark nor pyarrow. Killed at any moment, either side leaves the old snapshots or the new
one, never half of one; what it leaves of its own is swept by the next export into the directory.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from binlogd import __version__
from binlogd.errors import ConfigError
from binlogd.moment import wall_clock
from binlogd.snapshot import launcher
from binlogd.snapshot.jobdir import STAGING_PREFIX, job_directory, pinned
from binlogd.snapshot.launcher import Progress
from binlogd.snapshot.publish import publish, snapshot_path
from binlogd.snapshot.spec import (
    ExportSpec,
    LeftOut,
    Manifest,
    Report,
    Segment,
    SegmentEntry,
    moment,
)
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to export and where to.

    `as_of` is `latest`, a TSO or an ISO 8601 time. `schema_history` is a JSON array of DDL jobs as
    TiDB serves it at `/ddl/history`. `resolved_ts`, if a Pump told one, says up to where it vouches
    that every transaction is decided; it must have been asked before `export` is called.
    """

    data_dir: Path
    out: Path
    schema_history: bytes
    as_of: str = "latest"
    format: str = "parquet"
    cluster_id: int | None = None
    resolved_ts: Tso = NO_TS
    ignore_schemas: tuple[str, ...] = ("mysql", "information_schema", "performance_schema")
    invalid_text: Literal["error", "replace"] = "error"
    cores: int = 2
    memory_mb: int = 1024
    is_short: bool = False


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A published snapshot. `left_out` names tables that the log cannot tell."""

    path: Path
    commit_ts: Tso
    tables: int
    rows: int
    size_bytes: int
    left_out: tuple[LeftOut, ...]


async def export(
    options: ExportOptions, progress: Callable[[Progress], None] = lambda _: None
) -> ExportResult:
    """Exports and publishes `<out>/snapshot-<commit_ts>`.

    Raises ConfigError (no Java, no PySpark, no log, a wrong moment), Refused (a moment that is not
    decided yet, or is there already; a log without its beginning), ExportFailed (damaged bytes,
    rows that contradict the schema, a job that died). Cancelled, it ends the job and leaves
    nothing.
    """
    as_of = _checked(options)
    progress(Progress("starting", 0, 0))
    with (
        job_directory(options.out, STAGING_PREFIX) as job,
        pinned(options.data_dir, job) as segments,
    ):
        spec = _spec(options, as_of, job, segments)
        report = await launcher.run(spec, job, progress)
        progress(Progress("publishing", 0, 0))
        manifest = _manifest(options, report, segments)
        path = publish(Path(spec.staging), options.out, manifest)
    result = ExportResult(
        path=path,
        commit_ts=Tso(report.commit_ts),
        tables=len(report.tables),
        rows=sum(table.rows for table in report.tables),
        size_bytes=sum(file.size_bytes for table in report.tables for file in table.files),
        left_out=report.left_out,
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


def _checked(options: ExportOptions) -> Tso:
    """The moment, NO_TS for the latest; everything that can be told without the job."""
    as_of = moment(options.as_of)
    if options.format != "parquet":
        raise ConfigError(f"--format {options.format} is not supported; parquet is")
    if as_of is not None:
        snapshot_path(options.out, as_of)
    for module in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{module} is not installed; install binlogd[spark]")
    if _java() is None:
        raise ConfigError(
            "no Java found: install a JRE 17 or 21 and put `java` on the PATH, or set JAVA_HOME"
        )
    return as_of or NO_TS


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java")


def _spec(
    options: ExportOptions, as_of: Tso, job: Path, segments: tuple[Segment, ...]
) -> ExportSpec:
    staging, scratch, history = job / "snapshot", job / "scratch", job / "ddl_history.json"
    staging.mkdir()
    scratch.mkdir()
    history.write_bytes(options.schema_history)
    return ExportSpec(
        segments=segments,
        schema_history=str(history.absolute()),
        as_of=as_of,
        out=str(options.out.absolute()),
        known_resolved_ts=options.resolved_ts,
        staging=str(staging.absolute()),
        scratch=str(scratch.absolute()),
        ignore_schemas=options.ignore_schemas,
        invalid_text=options.invalid_text,
        cores=options.cores,
        memory_mb=options.memory_mb,
        is_short=options.is_short,
    )


def _manifest(options: ExportOptions, report: Report, segments: Sequence[Segment]) -> Manifest:
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
    )
