"""The command line: words in, exit codes out.

Exit codes: 0 done, 1 something differs or failed, 2 the configuration or the command is wrong.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console

from binlogd import __version__, app, config
from binlogd.assembly import Setup
from binlogd.console import ExportProgress, print_status
from binlogd.errors import BinlogdError, ConfigError, NotRunning
from binlogd.tso import NO_TS, Tso

cli = typer.Typer(
    name="binlogd",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A TiDB cluster's changes, somewhere else: receives binlogs, replicates them into MySQL,"
    " MariaDB, TiDB or files, and exports snapshots. Start with `binlogd serve`.",
    epilog="Exit codes: 0 done, 1 something failed or differs, 2 configuration.",
)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="TOML file; without it the built-in defaults hold."),
]
DataDirOption = Annotated[
    str | None, typer.Option("--data-dir", help="Overrides data-dir of the configuration.")
]
AddrOption = Annotated[
    str | None, typer.Option("--addr", help="host:port; overrides addr of the configuration.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines: one JSON document.")]


def main() -> None:
    """Runs the command line; turns every error of ours into one sentence and an exit code."""
    try:
        cli(standalone_mode=True)
    except ConfigError as error:
        _fail(error, code=2)
    except BinlogdError as error:
        _fail(error, code=1)


def _fail(error: BinlogdError, *, code: int) -> NoReturn:
    Console(stderr=True).print(
        f"[bold red]binlogd:[/] {error}", highlight=False, soft_wrap=True, markup=True
    )
    sys.exit(code)


def _load(
    path: Path | None,
    data_dir: str | None = None,
    addr: str | None = None,
    schema_history: str | None = None,
) -> Setup:
    loaded = config.Config() if path is None else config.load(path)
    if schema_history is not None:
        upstream = msgspec.structs.replace(loaded.upstream, schema_history=schema_history)
        loaded = msgspec.structs.replace(loaded, upstream=upstream)
    changes = {
        key: value for key, value in (("data_dir", data_dir), ("addr", addr)) if value is not None
    }
    loaded = msgspec.structs.replace(loaded, **changes)
    config.listen_address(loaded.addr)
    return Setup(loaded, Path.cwd() if path is None else path.resolve().parent)


@cli.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        Console().print(f"binlogd {__version__}", highlight=False)
        raise typer.Exit


@cli.command()
def serve(
    config_file: ConfigOption = None, data_dir: DataDirOption = None, addr: AddrOption = None
) -> None:
    """Run the appliance: receive binlogs and replicate them, until SIGTERM.

    SIGTERM and SIGINT finish what has been received, save a consistent checkpoint and end within
    ten seconds. Nothing that was acknowledged is lost by kill -9.
    """
    raise typer.Exit(app.serve(_load(config_file, data_dir, addr)))


@cli.command()
def restore(config_file: ConfigOption = None, data_dir: DataDirOption = None) -> None:
    """Bring the downstream to a consistent state from the relay log alone.

    Applies what the relay log holds after the checkpoint, then marks the checkpoint consistent. The
    same happens at the start of `serve` when the upstream cannot be reached.
    """
    done = app.restore(_load(config_file, data_dir))
    console = Console()
    if done.was_consistent:
        console.print(f"nothing to do: consistent at commit_ts {done.to_ts}", highlight=False)
        return
    console.print(
        f"restored from commit_ts {done.from_ts} to {done.to_ts}: {done.transactions}"
        f" transactions, {done.rows} rows; the checkpoint is consistent",
        highlight=False,
    )


@cli.command()
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
    setup = _load(config_file, data_dir, addr, schema_history)
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
        return Tso(_get_json(setup, "/status")["max_commit_ts"])
    except NotRunning:
        return NO_TS


@cli.command("check-config")
def check_config(config_file: ConfigOption = None) -> None:
    """Read the configuration and say whether it is right."""
    setup = _load(config_file)
    Console().print(
        f"{config_file or 'built-in defaults'}: right; data in {setup.config.data_dir},"
        f" {setup.config.pump.shards} shards, into {setup.config.syncer.db_type}",
        highlight=False,
    )


@cli.command()
def status(
    config_file: ConfigOption = None, addr: AddrOption = None, as_json: JsonOption = False
) -> None:
    """Show how a running binlogd stands: lag, watermarks, checkpoint, who blocks."""
    setup = _load(config_file, addr=addr)
    document = _get_json(setup, "/status")
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
        return
    print_status(document)


def _get_json(setup: Setup, route: str) -> dict[str, Any]:
    host, port = config.listen_address(setup.config.addr)
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    url = f"http://{host}:{port}{route}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
    except (urllib.error.URLError, OSError, json.JSONDecodeError) as error:
        reason = getattr(error, "reason", error)
        raise NotRunning(url, str(reason)) from error
    return document
