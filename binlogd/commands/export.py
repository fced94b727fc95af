"""`binlogd export`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from binlogd import exporting
from binlogd.commands import export_options as options
from binlogd.commands.console import BytesProgress, ExportProgress
from binlogd.commands.export_via import check_words, export_via, setup_for
from binlogd.commands.manner import SUBMITTED
from binlogd.commands.options import AddrOption, ConfigOption, DataDirOption, JsonOption, load_setup
from binlogd.commands.output import say, say_facts, say_json, say_verdicts
from binlogd.commands.replay import server_of
from binlogd.commands.running import get_status
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.errors import ConfigError, NotRunning, Refused
from binlogd.exporting import ExportRequest
from binlogd.extras import importing
from binlogd.host import loop
from binlogd.settings.quantities import wait_s, wall_clock
from binlogd.settings.setup import Setup
from binlogd.snapshot.estimate import Estimate
from binlogd.snapshot.export import ExportOptions, ExportResult
from binlogd.snapshot.export_queue import AskedExport
from binlogd.snapshot.spec import Manifest, moment, type_options
from binlogd.tso import NO_TS, Tso

WAIT_POLL_S = 0.2
_AT_SNAPSHOT = "snapshot"
_OUT_WANTED = "say where to: --out DIR; or what to look at: --check SNAPSHOT"


def export(  # noqa: PLR0913 - typer makes each parameter an option
    context: typer.Context,
    out: options.Out = None,
    as_of: options.AsOf = "latest",
    wait: options.Wait = "",
    base: options.Base = "auto",
    base_time_zone: options.BaseTimeZone = "",
    file_format: options.Format = "parquet",
    archive: options.Archive = "",
    layout: options.LayoutName = "plain",
    catalog: options.Catalog = None,
    resume: options.Resume = False,
    force: options.Force = False,
    keep: options.Keep = 0,
    dry_run: options.DryRun = False,
    check: options.Check = None,
    against: options.Against = None,
    via: options.Via = "",
    package: options.Package = None,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    schema_history: options.SchemaHistory = None,
    types: options.Types = [],  # noqa: B006 - typer copies it
    as_json: JsonOption = False,
) -> None:
    """Export every table as it was at one commit_ts, built from the log by a local PySpark session.

    Writes OUT/snapshot-COMMIT_TS, with a manifest of row counts and checksums, visible when it is
    complete. A snapshot of that point in time that exists stays as it is. You need a Java runtime
    and the extra spark. binlogd may run during the export.

        binlogd export --out snapshots --as-of latest-5m --keep 7
        binlogd export --check snapshots/LATEST --against mysql://reader@tidb:4000
        binlogd export --via http://127.0.0.1:8250 --as-of latest-5m
        binlogd export --package job/    # on a cluster: see docs/howto/spark-cluster.md
    """
    if package is not None:
        say_package(package)
        return
    check_words(context)
    if via:
        there = setup_for(via, config_file, data_dir)
        export_via(there, AskedExport(as_of, file_format, base), as_json=as_json)
        return
    if check is not None:
        check_snapshot(check, against, as_of, as_json=as_json)
        return
    if out is None:
        raise ConfigError(_OUT_WANTED)
    _check_history(archive, schema_history)
    setup = load_setup(config_file, data_dir, addr, schema_history)
    chosen = ExportOptions(
        as_of=as_of,
        format=file_format,
        resolved_ts=NO_TS if archive else resolved_ts(setup),
        base=base,
        base_time_zone=base_time_zone,
        types=type_options(types),
        layout=layout,
        is_resumed=resume,
        is_again=force,
        keep=keep,
    )
    request = ExportRequest(out=out, options=chosen, catalog=catalog, archive=archive)
    if dry_run:
        say_plan(exporting.plan_export(setup, request), as_json=as_json)
    else:
        made(setup, _waited(setup, request, wait), "rows", as_json=as_json, context=context)


def _check_history(archive: str, given: str | None) -> None:
    if given and archive and exporting.holds_segments(archive):
        raise ConfigError(
            "--schema-history: an archive of segments has its own; `binlogd archive"
            " --schema-history` gives it one"
        )


def _waited(setup: Setup, request: ExportRequest, wait: str) -> ExportRequest:
    if not wait:
        return request
    wanted_ts = moment(request.options.as_of).ts
    known_ts = asyncio.run(waited(setup, wanted_ts, wait_s("--wait", wait)))
    return replace(request, options=replace(request.options, resolved_ts=known_ts))


def made(
    setup: Setup,
    request: ExportRequest,
    what: str,
    *,
    as_json: bool,
    context: typer.Context | None = None,
) -> None:
    """Makes it, shows how it goes and what was published."""
    is_submitted = context is not None and context.obj is SUBMITTED
    make = exporting.submitted if is_submitted else exporting.export
    with ExportProgress(Console(stderr=True)) as shown:
        result = make(setup, request, shown.advance)
    if as_json:
        say_json(result)
    else:
        _say_published(result, f"{result.rows} {what}")


def _say_published(result: ExportResult, rows: str) -> None:
    there = "" if result.is_new else " (it was there already)"
    say(
        f"{result.stored or result.path}: {result.tables} tables, {rows},"
        f" {result.size_bytes / 1e6:.1f} MB as of commit_ts {result.commit_ts}{there}"
    )
    built_on = f"built on {result.base.directory}" if result.base.directory else "built on no base"
    if result.is_new:
        say(f"{built_on}: {result.base.why}")
    if result.registered:
        fresh = sum(each.is_new for each in result.registered)
        say(f"{len(result.registered)} tables of the lake, {fresh} of them with a new version")
    for path in result.removed:
        say(f"removed {path}")
    for table in result.left_out:
        say(str(table), "left out")
    for doubt in result.in_doubt:
        say(str(doubt), "in doubt")


async def waited(setup: Setup, wanted_ts: Tso, limit_s: float) -> Tso:
    """What a running binlogd vouches for, once that is as far as what is wanted.

    Raises Refused when it does not come so far in time, or nobody is there to go on.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + limit_s
    while (known_ts := resolved_ts(setup)) < wanted_ts:
        if known_ts == NO_TS:
            raise Refused(
                f"--wait: no binlogd runs that could come to {wanted_ts}; start it, or leave"
                " --wait out to export what the log has"
            )
        if loop.time() >= ends_s:
            raise Refused(
                f"--wait: after {limit_s:g} s everything is decided up to {known_ts} only"
                f" ({wall_clock(known_ts)}), and {wanted_ts} ({wall_clock(wanted_ts)}) is"
                " wanted; `binlogd status` shows what holds it back"
            )
        await asyncio.sleep(WAIT_POLL_S)
    return known_ts


def resolved_ts(setup: Setup) -> Tso:
    """What a running binlogd vouches for; without one the log itself is read to its end."""
    try:
        return get_status(setup).max_commit_ts
    except NotRunning:
        return NO_TS


def say_package(directory: Path) -> None:
    """`--package`."""
    with importing("spark"):
        from binlogd.spark.submit import write_package
    for path in write_package(directory):
        typer.echo(path)


def check_snapshot(snapshot: Path, against: str | None, as_of: str, *, as_json: bool) -> None:
    """`--check`, and `--against`. Exit code 1 where something is not as it should be."""
    with importing("spark"):
        from binlogd.snapshot.check import check, opened
    if as_of not in ("latest", _AT_SNAPSHOT) or (as_of == _AT_SNAPSHOT and against is None):
        raise ConfigError(
            f"--as-of {as_of}: with --check there is `--as-of {_AT_SNAPSHOT}` only, for the TiDB of"
            " --against; without it, that is compared as it is now"
        )
    server = server_of(against, "+00:00", "--against") if against is not None else None
    manifest = opened(snapshot)
    with BytesProgress(Console(stderr=True)) as shown:
        found = list(check(snapshot, manifest, shown.report))
    wrong = sum(1 for each in found if each.reason)
    if as_json:
        for each in found:
            say_json(each)
    else:
        rows = ((f"{each.database}.{each.table}", each.rows, each.reason, ()) for each in found)
        say_verdicts(rows, "good")
        unread = "" if all(each.is_read for each in found) else "; rows were not read back"
        say(f"{len(found) - wrong} of {len(found)} tables are whole{unread}")
    if not wrong and server is not None:
        wrong = _compare(snapshot, manifest, server, as_of, as_json=as_json)
    if wrong:
        raise typer.Exit(1)


def _compare(
    snapshot: Path, manifest: Manifest, server: MySqlServer, as_of: str, *, as_json: bool
) -> int:
    """How many tables differ. `--as-of snapshot` reads a TiDB at the snapshot's moment."""
    from binlogd.tools.against import Verdict, compare

    at_ts = Tso(manifest.commit_ts) if as_of == _AT_SNAPSHOT else NO_TS

    async def all_of_them() -> list[Verdict]:
        return [each async for each in compare(server, at_ts, snapshot, manifest)]

    found = loop.run(all_of_them())
    if as_json:
        for each in found:
            say_json(each)
    else:
        rows = (
            (f"{each.database}.{each.table}", each.rows, each.reason, each.left_out)
            for each in found
        )
        say_verdicts(rows, "good")
        for verdict in found:
            for said in verdict.differences:
                say(f"{verdict.database}.{verdict.table}: {said}")
        when = f"as of commit_ts {at_ts}" if at_ts else "as it is now"
        equal = sum(1 for each in found if not each.reason)
        say(f"{equal} of {len(found)} tables are equal to those of {server}, {when}")
    return sum(1 for each in found if each.reason)


def say_plan(estimate: Estimate, *, as_json: bool) -> None:
    """`--dry-run`."""
    if as_json:
        say_json(estimate)
        return
    facts = (
        ("as of", f"{estimate.as_of} ({estimate.time})" if estimate.as_of else estimate.time),
        ("tables", f"about {len(estimate.tables)}"),
        ("log", f"{estimate.segments} files, {estimate.log_bytes / 1e6:.1f} MB"),
        ("row changes", f"about {estimate.changes:,}"),
        ("base", estimate.base),
        ("time", f"about {estimate.seconds:.0f} s {estimate.basis}"),
        ("free disk", f"{estimate.free_bytes / 1e9:.1f} GB"),
    )
    say_facts(facts)
    say("nothing was exported: this was a dry run")
