"""`binlogd export`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from binlogd import app
from binlogd.commands.options import (
    AddrOption,
    ConfigOption,
    DataDirOption,
    JsonOption,
    load_setup,
)
from binlogd.commands.running import get_json
from binlogd.console import ExportProgress
from binlogd.errors import NotRunning, Refused
from binlogd.exporting import ExportRequest
from binlogd.moment import wall_clock
from binlogd.quantities import duration_s
from binlogd.setup import Setup
from binlogd.snapshot.export import ExportResult
from binlogd.snapshot.spec import moment, type_options
from binlogd.tso import NO_TS, Tso

WAIT_POLL_S = 0.2


def export(  # noqa: PLR0913 - typer makes each parameter an option
    out: Annotated[Path, typer.Option("--out", help="Directory that holds the snapshots.")],
    as_of: Annotated[
        str,
        typer.Option("--as-of", "--at", help="latest, latest-5m, a TSO, or an ISO 8601 time."),
    ] = "latest",
    wait: Annotated[
        str, typer.Option("--wait", help="Wait up to so long for the moment to be decided: 10m.")
    ] = "",
    base: Annotated[
        str,
        typer.Option("--base", help="Build on: auto, none, a snapshot, or a Dumpling dump."),
    ] = "auto",
    base_time_zone: Annotated[
        str,
        typer.Option("--base-time-zone", help="Of the TIMESTAMPs in a dump: UTC, +08:00."),
    ] = "",
    file_format: Annotated[str, typer.Option("--format", help="parquet.")] = "parquet",
    archive: Annotated[
        str,
        typer.Option("--archive", help="Read this archive (path or URL), or files of a file sink."),
    ] = "",
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    schema_history: Annotated[
        str | None, typer.Option("--schema-history", help="File or URL; overrides the configured.")
    ] = None,
    types: Annotated[
        list[str],
        typer.Option("--type", help="How a type comes out: tinyint1=boolean. May be repeated."),
    ] = [],  # noqa: B006 - typer copies it
    as_json: JsonOption = False,
) -> None:
    """Export every table as it was at one commit_ts, built from the log by a local PySpark session.

    Publishes OUT/snapshot-COMMIT_TS with a manifest of row counts and checksums by one rename; OUT
    holds it whole or not at all. Needs a Java runtime and the extra `spark`. A running binlogd may
    go on meanwhile.
    """
    setup = load_setup(config_file, data_dir, addr, schema_history)
    chosen = type_options(types)
    known_ts = NO_TS if archive else resolved_ts(setup)
    if wait:
        known_ts = asyncio.run(waited(setup, moment(as_of).ts, duration_s("--wait", wait)))
    request = ExportRequest(
        out=out,
        as_of=as_of,
        format=file_format,
        resolved_ts=known_ts,
        base=base,
        base_time_zone=base_time_zone,
        types=chosen,
        archive=archive,
    )
    with ExportProgress(Console(stderr=True)) as shown:
        result = app.export(setup, request, shown.advance)
    show(result, f"{result.rows} rows", as_json=as_json)


def show(result: ExportResult, rows: str, *, as_json: bool) -> None:
    """What was published, for people or scripts."""
    if as_json:
        sys.stdout.write(msgspec.json.encode(result, enc_hook=str).decode() + "\n")
        return
    console = Console(highlight=False, soft_wrap=True)
    size_mb = result.size_bytes / 1e6
    as_of = f"as of commit_ts {result.commit_ts}"
    console.print(f"{result.path}: {result.tables} tables, {rows}, {size_mb:.1f} MB {as_of}")
    built_on = f"built on {result.base.directory}" if result.base.directory else "built on no base"
    console.print(f"{built_on}: {result.base.why}")
    for table in result.left_out:
        console.print(f"[yellow]left out[/] {table}")


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
        return Tso(get_json(setup, "/status")["max_commit_ts"])
    except NotRunning:
        return NO_TS
