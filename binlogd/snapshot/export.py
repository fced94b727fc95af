"""`binlogd export`: every table as of one commit_ts, built by a child process and published whole.

The parent pins the input, starts the job, listens to it, and publishes what it staged. It imports
neither PySpark nor pyarrow. Killed at any moment, either side leaves the old snapshots or the new
one, never half of one; what it leaves of its own is swept by the next export into the directory.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
import structlog

from binlogd import __version__
from binlogd.errors import ConfigError, Refused
from binlogd.host.clock import WallClock
from binlogd.host.disk import is_no_space
from binlogd.host.threads import Threads, over, stacked
from binlogd.settings.quantities import wall_clock
from binlogd.snapshot.bases import choice
from binlogd.snapshot.process import launcher, preflight
from binlogd.snapshot.process.jobdir import STAGING_PREFIX, Pinned, job_directory, pinned
from binlogd.snapshot.process.launcher import JOB_LOG, Borrow, ExportFailed
from binlogd.snapshot.publishing import marks
from binlogd.snapshot.publishing.lake.version import Registered
from binlogd.snapshot.publishing.publish import (
    AlreadyThere,
    check_free,
    manifest_there,
    point_to_latest,
    publish,
    remove_surplus,
)
from binlogd.snapshot.spec import (
    FORMATS,
    LAKES,
    PARQUET_KINDS,
    BaseEntry,
    ChangesOptions,
    DoubtfulRows,
    ExportSpec,
    Layout,
    LeftOut,
    Manifest,
    Moment,
    Progress,
    Report,
    SegmentEntry,
    SessionSpec,
    TypeOptions,
    moment,
)
from binlogd.tidb.turns import COMPARE, ROWS_IN_DOUBT
from binlogd.tso import NO_TS, Tso, compose, plus_ms

_NO_SPACE = ": free some, choose another --out, or build on a base, whose files are linked"
FAILURE_LOG = "failed-export.log"
PARTITION_BYTES = 16 << 20
"""Of the log, for one partition of the rows; there are few, as each makes files of its own."""
DUMPLING_FORMATS = ("sql", "csv", "parquet")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to export and where to.

    `as_of` is `latest`, `latest-5m`, a TSO or an ISO 8601 time. `base` is `auto`, `none` or a
    directory, which people know as `base_shown`; `base_time_zone` that of the TIMESTAMPs in a dump.
    `schema_history` is a JSON array of DDL jobs as TiDB serves it at `/ddl/history`. `resolved_ts`,
    if a Pump told one, says up to where it vouches that every transaction is decided; it must have
    been asked before `export` is called. `is_resumed` goes on with one that was killed, `is_again`
    makes another snapshot of a moment that has one, `keep` is how many snapshots stay, 0 all.
    """

    data_dir: Path = Path()
    out: Path = Path()
    schema_history: bytes = b""
    as_of: str = "latest"
    base: str = choice.AUTO
    base_shown: str = ""
    base_time_zone: str = ""
    changes: ChangesOptions | None = None
    format: str = "parquet"
    layout: Layout = "plain"
    is_resumed: bool = False
    is_again: bool = False
    keep: int = 0
    cluster_id: int | None = None
    resolved_ts: Tso = NO_TS
    ignore_schemas: tuple[str, ...] = ("mysql", "information_schema", "performance_schema")
    types: TypeOptions = field(default_factory=TypeOptions)
    cores: int = 2
    memory_mb: int = 1024


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A published snapshot. `left_out` names tables that the log cannot tell, `in_doubt` rows of
    which nobody knows whether a DDL took them, `base` what it was built on, and why that or
    nothing; `is_new` is False for one that was there already, `removed` names those that went for
    it, `registered` are its tables in a lake, `stored` is where it is in an object store."""

    path: Path
    commit_ts: Tso
    tables: int
    rows: int
    size_bytes: int
    left_out: tuple[LeftOut, ...]
    base: choice.Chosen
    is_new: bool = True
    removed: tuple[Path, ...] = ()
    registered: tuple[Registered, ...] = ()
    stored: str = ""
    in_doubt: tuple[DoubtfulRows, ...] = ()


async def export(
    options: ExportOptions,
    progress: Callable[[Progress], None] = lambda _: None,
    borrow: Borrow = launcher.running,
) -> ExportResult:
    """Exports and publishes `<out>/snapshot-<commit_ts>`; one that is there is left as it is.

    Raises ConfigError (no Java, no PySpark, no log, a wrong moment), Refused (a moment that is not
    decided yet, or is there in another form; no base where one is needed), ExportFailed (damaged
    bytes, rows that contradict the schema, a job that died; what is finished then stays for who
    resumes). Cancelled, it ends the job and leaves nothing.
    """
    as_of = checked(options)
    files = Threads(1, name="export")
    try:
        return await _export(options, as_of, files, progress, borrow)
    except OSError as error:
        raise ExportFailed(
            f"{error.filename or options.out}: {error.strerror or error}; nothing was published"
            + (_NO_SPACE if is_no_space(error) else "")
        ) from error
    finally:
        files.close()


async def _export(
    options: ExportOptions,
    as_of: Moment,
    files: Threads,
    progress: Callable[[Progress], None],
    borrow: Borrow,
) -> ExportResult:
    """Whatever touches files does so in the thread `files`, as a service has others to answer."""
    try:
        from_ts = Tso(options.changes.from_ts if options.changes else NO_TS)
        if as_of.ts and not options.is_again:
            await over(files.run(partial(check_free, options.out, as_of.ts, from_ts)))
        machine = await preflight.machine()
        await preflight.know_launch(machine)
        preflight.check_memory(options.memory_mb)
        progress(Progress("starting", 0, 0))
        result = await _made(options, as_of, machine, files, progress, borrow)
    except AlreadyThere as error:
        result = await over(files.run(partial(_as_it_is, options, Path(str(error)))))
    if options.keep:
        removed = await over(files.run(partial(remove_surplus, options.out, options.keep)))
        result = replace(result, removed=tuple(removed))
    return result


async def _made(
    options: ExportOptions,
    as_of: Moment,
    machine: preflight.Machine,
    files: Threads,
    progress: Callable[[Progress], None],
    borrow: Borrow,
) -> ExportResult:
    began = asyncio.get_running_loop().time()
    async with stacked(files) as stack:
        begun = await over(files.run(partial(_begun, stack, options, as_of, machine)))
        spec, base, report = begun.spec, begun.base, begun.report
        if report is None:
            report = await _staged(options, begun, files, progress, borrow)
        progress(Progress("publishing", 0, 0))
        seconds = asyncio.get_running_loop().time() - began
        pinned_log = (SegmentEntry(each.shard, each.fid, each.size_bytes) for each in spec.segments)
        manifest = manifest_of(options, report, tuple(pinned_log), base, seconds)
        staged = Path(spec.staging)
        publishing = partial(publish, staged, options.out, manifest, is_again=options.is_again)
        path = await over(files.run(publishing))
    result = result_of(path, manifest, base)
    say_published(result)
    return result


def say_published(result: ExportResult) -> None:
    """To the log."""
    log.info(
        "snapshot_published",
        path=result.stored or str(result.path),
        commit_ts=result.commit_ts,
        tables=result.tables,
        rows=result.rows,
        size_bytes=result.size_bytes,
        left_out=len(result.left_out),
    )
    for each in result.in_doubt:
        fields = msgspec.structs.asdict(each)
        log.warning(ROWS_IN_DOUBT, **fields, what_to_do=COMPARE)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A directory with all that the job needs; `report` is there if it has staged all before."""

    job: Path
    spec: ExportSpec
    base: choice.Chosen
    report: Report | None
    session: SessionSpec


def _begun(
    stack: ExitStack, options: ExportOptions, as_of: Moment, machine: preflight.Machine
) -> _Begun:
    """The log is pinned and the directory held until the stack is left."""
    wanted = wanted_spec(options, as_of)

    def is_wanted(job: Path) -> bool:
        return options.is_resumed and marks.resumable(job, wanted, as_of) is not None

    job = stack.enter_context(
        job_directory(options.out, STAGING_PREFIX, is_wanted=is_wanted, is_kept=_is_kept)
    )
    spec = marks.resumable(job, wanted, as_of)
    if spec is None:
        log_files = stack.enter_context(pinned(options.data_dir, job))
        base = _base(options, as_of, log_files.gone_ts)
        if as_of.ts:
            has_base, now_ms = base.directory is not None, WallClock().wall_ms()
            preflight.check_moment(as_of.ts, log_files.segments, now_ms=now_ms, has_base=has_base)
        spec = _spec(wanted, options, job, log_files, base)
        preflight.check_disk(options.out, sum(each.size_bytes for each in spec.segments))
        marks.save_spec(job, spec)
    else:
        base = choice.Chosen(
            Path(spec.base) if spec.base else None, Tso(spec.base_ts), "as when it was begun"
        )
        log.info("export_resumed", commit_ts=spec.as_of, directory=str(job))
    report = marks.read_report(Path(spec.state))
    scratch = job / "spark"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    session = machine.session(scratch, cores=options.cores, memory_mb=options.memory_mb)
    return _Begun(job, spec, base, report, session)


async def _staged(
    options: ExportOptions,
    begun: _Begun,
    files: Threads,
    progress: Callable[[Progress], None],
    borrow: Borrow,
) -> Report:
    """What a job process stages. Raises what it failed with; its log is kept then."""
    log_path = begun.job / JOB_LOG
    try:
        async with borrow(begun.session, log_path) as child:
            log_path = child.log_path
            return await child.export(begun.spec, progress)
    except ExportFailed as error:
        kept = options.out / FAILURE_LOG
        with suppress(OSError):  # the disk may be full
            await over(files.run(partial(shutil.copyfile, log_path, kept)))
        hint = "; what is finished is kept: --resume goes on from there"
        hint = hint if marks.has_any(begun.job / marks.STATE) else ""
        raise ExportFailed(f"{error}\nAll that Spark said: {kept}{hint}") from error


def _is_kept(job: Path, error: BaseException) -> bool:
    """After a failure, if there is anything to go on from; not after a cancellation."""
    return isinstance(error, ExportFailed) and marks.has_any(job / marks.STATE)


def _as_it_is(options: ExportOptions, path: Path) -> ExportResult:
    """A snapshot that is there already. Raises Refused if it is of another form."""
    manifest = manifest_there(path)
    check_form(options, manifest, str(path))
    point_to_latest(options.out)
    return there_already(path, manifest)


def check_form(options: ExportOptions, manifest: Manifest, path: str) -> None:
    """Raises Refused where a snapshot that is there is of another form than is asked for."""
    there = _form(manifest.data_format, manifest.layout)
    if there != _form(options.format, options.layout) or manifest.types != options.types:
        raise Refused(
            f"{path} is there already, as {manifest.data_format} in the {manifest.layout} layout;"
            " --force makes another, or choose another --out or --as-of"
        )


def there_already(path: Path, manifest: Manifest) -> ExportResult:
    """What is told of it."""
    base = choice.Chosen(None, NO_TS, "it was there already")
    return replace(result_of(path, manifest, base), is_new=False)


def result_of(path: Path, manifest: Manifest, base: choice.Chosen) -> ExportResult:
    """What is told of a snapshot that was published."""
    return ExportResult(
        path=path,
        commit_ts=Tso(manifest.commit_ts),
        tables=len(manifest.tables),
        rows=sum(table.rows for table in manifest.tables),
        size_bytes=sum(file.size_bytes for table in manifest.tables for file in table.files),
        left_out=manifest.left_out,
        in_doubt=manifest.in_doubt,
        base=base,
    )


def _form(data_format: str, layout: Layout) -> tuple[str, Layout]:
    """What decides whether two snapshots of a moment are the same: lakes keep plain Parquet."""
    return "parquet" if data_format in PARQUET_KINDS else data_format, layout


def checked(options: ExportOptions) -> Moment:
    """The moment, when everything is well that can be told without looking anywhere.

    Raises ConfigError.
    """
    as_of = moment(options.as_of)
    if options.format not in FORMATS or (options.format == "sql" and options.layout != "dumpling"):
        raise ConfigError(
            f"--format {options.format}: there is {', '.join(FORMATS)}; sql with --layout dumpling"
        )
    if options.layout == "dumpling" and options.format not in DUMPLING_FORMATS:
        raise ConfigError(
            f"--layout dumpling with --format {options.format}: there is"
            f" {', '.join(DUMPLING_FORMATS)}"
        )
    _check_types(options)
    if options.changes is not None and options.format != "parquet":
        raise ConfigError(f"--format {options.format}: changes are written as parquet")
    if options.changes is not None and 0 < as_of.ts < options.changes.from_ts:
        raise ConfigError(f"--from {options.changes.from_ts} lies behind --to {as_of.ts}")
    return as_of


def _check_types(options: ExportOptions) -> None:
    """Types that not every format has."""
    plain = options.format == "parquet" and options.layout == "plain"
    if options.types.json == "variant" and not plain:
        raise ConfigError(
            f"--type json=variant with --format {options.format} and --layout {options.layout}:"
            " only plain Parquet has variants"
        )
    if options.types.time in ("interval", "time") and options.format in LAKES:
        raise ConfigError(
            f"--type time={options.types.time} with --format {options.format}: its tables have no"
            " such type; leave TIME as microseconds, or say time=string"
        )


def _base(options: ExportOptions, as_of: Moment, gone_ts: Tso) -> choice.Chosen:
    latest = as_of.ts
    if as_of.before_latest_ms:
        now = options.resolved_ts or compose(WallClock().wall_ms())
        latest = plus_ms(now, -as_of.before_latest_ms)
    if options.changes is not None:
        return _no_base(options.changes, gone_ts)
    needs = choice.Needs(latest, gone_ts, options.cluster_id, options.types, options.base_time_zone)
    chosen = choice.choose(options.base, options.out, needs)
    log.info(
        "export_base_chosen",
        base=str(chosen.directory) if chosen.directory else "none",
        why=chosen.why,
        log_complete_behind=gone_ts,
    )
    return chosen


def _no_base(changes: ChangesOptions, gone_ts: Tso) -> choice.Chosen:
    """Changes need no base, but all of the log behind their beginning."""
    if changes.from_ts < gone_ts:
        raise Refused(
            f"--from {changes.from_ts} is below {gone_ts} ({wall_clock(gone_ts)}), up to where GC"
            " removed binlogs; begin there, or export a snapshot"
        )
    return choice.Chosen(None, NO_TS, "changes need none")


def wanted_spec(options: ExportOptions, as_of: Moment) -> ExportSpec:
    """The spec as far as it does not depend on the directory that it is worked in."""
    return ExportSpec(
        segments=(),
        schema_history="",
        as_of=as_of.ts,
        before_latest_ms=as_of.before_latest_ms,
        changes=options.changes,
        data_dir=str(options.data_dir.absolute()),
        base_asked=options.base,
        base_time_zone=options.base_time_zone,
        out=str(options.out.absolute()),
        known_resolved_ts=options.resolved_ts,
        staging="",
        scratch="",
        ignore_schemas=options.ignore_schemas,
        types=options.types,
        format=options.format,
        layout=options.layout,
        is_again=options.is_again,
    )


def _spec(
    wanted: ExportSpec, options: ExportOptions, job: Path, log_files: Pinned, base: choice.Chosen
) -> ExportSpec:
    staging, scratch, history = job / "snapshot", job / "scratch", job / "ddl_history.json"
    staging.mkdir()
    scratch.mkdir()
    history.write_bytes(options.schema_history)
    log_bytes = sum(each.size_bytes for each in log_files.segments)
    return msgspec.structs.replace(
        wanted,
        segments=log_files.segments,
        schema_history=str(history.absolute()),
        base=str(base.directory or ""),
        base_ts=base.commit_ts,
        is_headless=log_files.gone_ts > NO_TS,
        gone_ts=log_files.gone_ts,
        staging=str(staging.absolute()),
        scratch=str(scratch.absolute()),
        state=str((job / marks.STATE).absolute()),
        partitions=min(max(8, 2 * options.cores), 1 + log_bytes // PARTITION_BYTES),
    )


def manifest_of(
    options: ExportOptions,
    report: Report,
    segments: tuple[SegmentEntry, ...],
    base: choice.Chosen,
    seconds: float,
) -> Manifest:
    """What describes a snapshot of these segments."""
    built_on = None
    if base.directory is not None:
        built_on = BaseEntry(options.base_shown or str(base.directory), base.commit_ts)
    return Manifest(
        **msgspec.structs.asdict(report),  # each field of it is one of the manifest
        binlogd_version=__version__,
        cluster_id=options.cluster_id,
        time=wall_clock(Tso(report.commit_ts)),
        log=segments,
        types=options.types,
        base=built_on,
        data_format=options.format,
        layout=options.layout,
        seconds=round(seconds, 3),
    )
