"""Exports as a command asks for them: what the upstream tells, where they go, what follows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from binlogd.archive.task import CATALOG_NAME
from binlogd.errors import ConfigError
from binlogd.extras import require
from binlogd.host.loop import ended_by_term, run
from binlogd.host.words import local_path, split_url
from binlogd.log.directory import STORE_FILE
from binlogd.node.upstreams import open_upstream
from binlogd.settings.setup import Setup
from binlogd.snapshot.estimate import Estimate, estimate
from binlogd.snapshot.export import ExportOptions, ExportResult, checked
from binlogd.snapshot.export_queue import AskedExport, ExportQueue
from binlogd.snapshot.process.jobdir import job_directory, log_files
from binlogd.snapshot.process.launcher import Borrow, Notice
from binlogd.snapshot.publication import Destination, published
from binlogd.snapshot.publishing.file_systems import without_secrets
from binlogd.snapshot.spec import Progress
from binlogd.tidb.model import jobs_from_json
from binlogd.tools.archive_log import write_archive_log
from binlogd.tso import Tso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.upstream import Upstream

STAGED = "exports"
"""Below the data directory: what is on its way to an object store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A snapshot that somebody wants: `options` as far as they are said, without where the log and
    its history are; `resolved_ts` in it is what a running Pump vouched for, or 0.

    `out` is a directory or the URI of an object store. `catalog` names an Iceberg catalog.
    `archive` is read in place of the log: an archive of segments (directory or URL), or the
    directory of a file sink.
    """

    out: str
    options: ExportOptions
    catalog: str | None = None
    archive: str = ""


def export(
    setup: Setup, request: ExportRequest, progress: Callable[[Progress], None]
) -> ExportResult:
    """Publishes a snapshot, or changes. Raises what `publication.published` does."""
    return run(ended_by_term(_exported(setup, request, progress)))


def plan_export(setup: Setup, request: ExportRequest) -> Estimate:
    """What `export` would do, and how long it would take. Raises ConfigError."""

    async def planned() -> Estimate:
        async with _options(setup, request) as options:
            return estimate(options)

    return run(planned())


async def _exported(
    setup: Setup, request: ExportRequest, progress: Callable[[Progress], None]
) -> ExportResult:
    where, out = _where(setup, request.out)
    async with _options(setup, request) as options:
        with _based(options, out) as based:
            result = await published(based, where, request.catalog, progress)
    if based.base_shown and result.is_new:
        base = replace(result.base, why=f"fetched from {based.base_shown}")
        return replace(result, base=base)
    return result


def submitted(
    setup: Setup, request: ExportRequest, progress: Callable[[Progress], None]
) -> ExportResult:
    """The same by the Spark that spark-submit made, out of an archive of segments. Raises what
    `cluster_export.export_in` does."""
    if not (request.archive and holds_segments(request.archive)):
        raise ConfigError(
            "--archive is wanted: an export on a cluster reads an archive of segments, as `binlogd"
            " archive` and [archive] of the configuration make one"
        )
    require("spark", "pyspark", "pyarrow")
    from binlogd.spark.cluster_export import export_in, submitted_session
    from binlogd.spark.export_places import DirectoryPlace, StorePlace

    where, out = _where(setup, request.out)
    options = _plain_options(request, out, Path(), b"")
    place = DirectoryPlace(out) if where is None else StorePlace(where)
    return export_in(submitted_session(), options, request.archive, place, progress)


@contextmanager
def _based(options: ExportOptions, out: Path) -> Iterator[ExportOptions]:
    """A base in an object store is fetched, beside what is made: its files may be linked."""
    if "://" not in options.base:
        yield options
        return
    require("archive", "pyarrow")
    from binlogd.archive.bases import fetched  # needs pyarrow, which is an extra

    with job_directory(out, ".base-") as directory:
        path = fetched(options.base, directory)
        yield replace(options, base=str(path))


@asynccontextmanager
async def _options(setup: Setup, request: ExportRequest) -> AsyncIterator[ExportOptions]:
    """The options with the log that is read, which is there as long as the block."""
    _, out = _where(setup, request.out)
    checked(_plain_options(request, out, setup.data_dir, b""))
    if request.archive and holds_segments(request.archive):
        # An archive brings its own DDL history, so no appliance is asked.
        require("archive", "pyarrow")
        from binlogd.archive.view import local_view  # needs pyarrow, which is an extra

        with local_view(request.archive, out) as view:
            yield replace(
                _plain_options(request, out, view.data_dir, view.schema_history),
                cluster_id=view.cluster_id,
                resolved_ts=view.resolved_ts,
            )
        return
    _check_data_dir(setup.data_dir, has_log=not request.archive)
    jobs, cluster_id = await _history(setup)
    history = b"[" + b",".join(jobs) + b"]"
    plain = _plain_options(request, out, setup.data_dir, history)
    options = replace(plain, cluster_id=cluster_id)
    if not request.archive:
        yield options
        return
    with job_directory(out, ".archive-log-") as directory:
        files, log = local_path(request.archive) or Path(), directory / "log"
        write_archive_log(files, jobs_from_json(history), log)
        yield replace(options, data_dir=log)


def _check_data_dir(data_dir: Path, *, has_log: bool) -> None:
    """A wrong directory is said, and nothing is made in it. Raises ConfigError."""
    try:
        if has_log:
            log_files(data_dir.absolute())
        elif not data_dir.is_dir():
            raise ConfigError(f"data-dir {data_dir}: there is no such directory")
    except ConfigError as error:
        raise ConfigError(
            f"{error}; name the directory of the binlogd that is meant, by --data-dir or the"
            " --config that it is started with"
        ) from None


def export_queue_for(
    setup: Setup, upstream: Upstream, vouched_ts: Callable[[], Tso]
) -> ExportQueue:
    """Who exports when the service is asked.

    `vouched_ts` is up to where the Pump of this process says that everything is decided.
    """
    wanted = setup.config.export

    async def fulfil(request: AskedExport, notice: Notice, borrow: Borrow) -> ExportResult:
        """One export with the DDL history of now. Raises ConfigError, and what exports raise."""
        if "://" in request.base:
            raise ConfigError(
                "--base of an object store goes with an export of this machine alone (--out); a"
                " running binlogd builds on snapshots in its own directory"
            )
        jobs = await upstream.history.known_jobs()
        options = ExportOptions(
            data_dir=setup.data_dir,
            out=Path(wanted.dir),
            schema_history=b"[" + b",".join(jobs) + b"]",
            as_of=request.as_of,
            format=request.format,
            base=request.base,
            cluster_id=upstream.cluster.cluster_id,
            resolved_ts=vouched_ts(),
            cores=max(1, (os.cpu_count() or 1) - 1),
            memory_mb=wanted.memory >> 20,
        )
        return await published(options, progress=notice, borrow=borrow)

    return ExportQueue(setup.data_dir, fulfil, wanted.idle_ttl)


async def _history(setup: Setup) -> tuple[list[bytes], int | None]:
    """The DDL jobs that the upstream tells, and its id."""
    async with (
        await UpstreamStore.open(setup.data_dir / STORE_FILE) as store,
        await open_upstream(setup, store) as upstream,
    ):
        return list(await upstream.history.known_jobs()), upstream.cluster.cluster_id


def holds_segments(archive: str) -> bool:
    """Whether it is an archive of segments, and not the files of a file sink."""
    return (path := local_path(archive)) is None or (path / CATALOG_NAME).exists()


def _where(setup: Setup, out: str) -> tuple[Destination, Path]:
    """Where to, and the directory that it is staged or published in."""
    if (path := local_path(out)) is not None:
        return None, path
    parts = split_url(out)
    name = hashlib.sha256(f"{parts.netloc.rpartition('@')[2]}{parts.path}".encode()).hexdigest()
    return out, setup.data_dir / STAGED / name[:16]


def _plain_options(
    request: ExportRequest, out: Path, data_dir: Path, history: bytes
) -> ExportOptions:
    base = request.options.base
    return replace(
        request.options,
        data_dir=data_dir,
        out=out,
        schema_history=history,
        base_shown=without_secrets(base) if "://" in base else "",
    )
