"""`binlogd export`."""

from __future__ import annotations

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
from binlogd.errors import ConfigError, NotRunning
from binlogd.setup import Setup
from binlogd.tso import NO_TS, Tso


def export(  # noqa: PLR0913 - typer makes each parameter an option
    out: Annotated[Path, typer.Option("--out", help="Directory that holds the snapshots.")],
    as_of: Annotated[
        str, typer.Option("--as-of", help="latest, a TSO, or an ISO 8601 time.")
    ] = "latest",
    file_format: Annotated[str, typer.Option("--format", help="parquet.")] = "parquet",
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    addr: AddrOption = None,
    schema_history: Annotated[
        str | None, typer.Option("--schema-history", help="File or URL; overrides the configured.")
    ] = None,
    invalid_text: Annotated[
        str, typer.Option("--invalid-text", help="Text that is no UTF-8: error, or replace.")
    ] = "error",
    as_json: JsonOption = False,
) -> None:
    """Export every table as it was at one commit_ts, built from the log by a local PySpark session.

    Publishes OUT/snapshot-COMMIT_TS with a manifest of row counts and checksums by one rename; OUT
    holds it whole or not at all. Needs a Java runtime and the extra `spark`. A running binlogd may
    go on meanwhile.
    """
    setup = load_setup(config_file, data_dir, addr, schema_history)
    if invalid_text not in ("error", "replace"):
        raise ConfigError(f'--invalid-text {invalid_text}: expected "error" or "replace"')
    request = app.ExportRequest(
        out=out,
        as_of=as_of,
        format=file_format,
        resolved_ts=_resolved_ts(setup),
        replaces_invalid_text=invalid_text == "replace",
    )
    with ExportProgress(Console(stderr=True)) as shown:
        result = app.export(setup, request, shown.advance)
    if as_json:
        sys.stdout.write(msgspec.json.encode(result, enc_hook=str).decode() + "\n")
        return
    console = Console()
    console.print(
        f"{result.path}: {result.tables} tables, {result.rows} rows,"
        f" {result.size_bytes / 1e6:.1f} MB as of commit_ts {result.commit_ts}",
        highlight=False,
        soft_wrap=True,
    )
    for table in result.left_out:
        console.print(f"[yellow]left out[/] {table}", highlight=False, soft_wrap=True)


def _resolved_ts(setup: Setup) -> Tso:
    """What a running binlogd vouches for; without one the log itself is read to its end."""
    try:
        return Tso(get_json(setup, "/status")["max_commit_ts"])
    except NotRunning:
        return NO_TS
