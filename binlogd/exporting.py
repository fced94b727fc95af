"""What `binlogd export` asks for, put together: the history, the log or an archive, the export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from binlogd.archive.task import CATALOG_NAME, check_installed
from binlogd.setup import Setup
from binlogd.snapshot.export import ExportOptions, ExportResult
from binlogd.snapshot.export import export as export_snapshot
from binlogd.snapshot.jobdir import job_directory
from binlogd.snapshot.launcher import Progress
from binlogd.snapshot.spec import ChangesOptions, TypeOptions
from binlogd.tidb.model import job_from_json
from binlogd.tools.archive_log import write_archive_log
from binlogd.tso import Tso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstreams import open_upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A snapshot that somebody wants; `resolved_ts` is what a running Pump vouched for, or 0.

    `archive` is read in place of the log: an archive of segments (directory or URL), or the
    directory of a file sink.
    """

    out: Path
    as_of: str
    format: str
    resolved_ts: Tso
    base: str
    base_time_zone: str = ""
    types: TypeOptions
    changes: ChangesOptions | None = None
    archive: str = ""


async def export_for(
    setup: Setup, request: ExportRequest, progress: Callable[[Progress], None]
) -> ExportResult:
    """Publishes a snapshot, or changes. Raises what `snapshot.export.export` does."""
    if request.archive and _holds_segments(request.archive):
        return await _of_segments(request, progress)
    store = await UpstreamStore.open(setup.data_dir / "upstream.db")
    try:
        upstream = await open_upstream(setup, store)
        try:
            jobs = await upstream.history.known_jobs()
            cluster_id = upstream.cluster.cluster_id
        finally:
            await upstream.close()
    finally:
        await store.close()
    history = b"[" + b",".join(jobs) + b"]"
    options = replace(_options(request, setup.data_dir, history), cluster_id=cluster_id)
    if not request.archive:
        return await export_snapshot(options, progress)
    with job_directory(request.out, ".archive-log-") as directory:
        write_archive_log(
            Path(request.archive), [job_from_json(job) for job in jobs], directory / "log"
        )
        return await export_snapshot(replace(options, data_dir=directory / "log"), progress)


def _options(request: ExportRequest, data_dir: Path, history: bytes) -> ExportOptions:
    return ExportOptions(
        data_dir=data_dir,
        out=request.out,
        schema_history=history,
        as_of=request.as_of,
        format=request.format,
        resolved_ts=request.resolved_ts,
        base=request.base,
        base_time_zone=request.base_time_zone,
        types=request.types,
        changes=request.changes,
    )


def _holds_segments(archive: str) -> bool:
    return "://" in archive or Path(archive, CATALOG_NAME).exists()


async def _of_segments(
    request: ExportRequest, progress: Callable[[Progress], None]
) -> ExportResult:
    """An archive brings its own DDL history, so no appliance is asked."""
    check_installed(request.archive)
    from binlogd.archive.view import local_view  # needs pyarrow, which is an extra

    with local_view(request.archive, request.out) as view:
        options = replace(
            _options(request, view.data_dir, view.schema_history),
            cluster_id=view.cluster_id,
            resolved_ts=view.resolved_ts,
        )
        return await export_snapshot(options, progress)
