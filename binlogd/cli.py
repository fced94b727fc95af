"""The command line: words in, exit codes out.

Exit codes: 0 done, 1 something differs or failed, 2 the configuration or the command is wrong.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from binlogd import __version__
from binlogd.commands.adopt import adopt
from binlogd.commands.bench import bench
from binlogd.commands.check import check
from binlogd.commands.check_config import check_config
from binlogd.commands.checkpoint import checkpoint
from binlogd.commands.ctl import ctl
from binlogd.commands.dump import dump
from binlogd.commands.export import export
from binlogd.commands.export_base import base
from binlogd.commands.health import health
from binlogd.commands.nodes import nodes
from binlogd.commands.replay import replay
from binlogd.commands.restore import restore
from binlogd.commands.serve import serve
from binlogd.commands.skip import skip
from binlogd.commands.state import state
from binlogd.commands.status import status
from binlogd.commands.txn import txn
from binlogd.commands.undo import undo
from binlogd.commands.verify import verify
from binlogd.errors import BinlogdError, ConfigError

cli = typer.Typer(
    rich_markup_mode="markdown",
    name="binlogd",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A TiDB cluster's changes, somewhere else: receives binlogs, replicates them into MySQL,"
    " MariaDB, TiDB or files, and exports snapshots. Start with `binlogd serve`.",
    epilog="Exit codes: 0 done, 1 something failed or differs, 2 configuration.",
)

_RUN = "Run and watch"
_DATA = "Data out and back"
_LOOK = "Look into binlogs"
_DISK = "Look after the data directory"

cli.command(rich_help_panel=_RUN)(serve)
cli.command(rich_help_panel=_RUN)(status)
cli.command(rich_help_panel=_RUN)(health)
cli.command(rich_help_panel=_RUN)(state)
cli.command(rich_help_panel=_RUN)(ctl)
cli.command(rich_help_panel=_RUN)(nodes)
cli.command(rich_help_panel=_RUN)(skip)
cli.command("check-config", rich_help_panel=_RUN)(check_config)
cli.command(rich_help_panel=_DATA)(export)
cli.command(rich_help_panel=_DATA)(base)
cli.command(rich_help_panel=_DATA)(restore)
cli.command(rich_help_panel=_DATA)(checkpoint)
cli.command(rich_help_panel=_DATA)(replay)
cli.command(rich_help_panel=_DATA)(undo)
cli.command(rich_help_panel=_LOOK)(dump)
cli.command(rich_help_panel=_LOOK)(txn)
cli.command(rich_help_panel=_LOOK)(verify)
cli.command(rich_help_panel=_DISK)(check)
cli.command(rich_help_panel=_DISK)(adopt)
cli.command(rich_help_panel=_DISK)(bench)


def main() -> None:
    """Runs the command line; turns every error of ours into one sentence and an exit code."""
    try:
        cli(standalone_mode=True)
    except ConfigError as error:
        _fail(error, code=2)
    except BinlogdError as error:
        _fail(error, code=1)
    except OSError as error:  # of files that a command reads or writes
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}", code=1)


def _fail(error: BinlogdError | str, *, code: int) -> NoReturn:
    Console(stderr=True).print(
        f"[bold red]binlogd:[/] {escape(str(error))}", highlight=False, soft_wrap=True, markup=True
    )
    sys.exit(code)


@cli.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        Console().print(f"binlogd {__version__}", highlight=False)
        raise typer.Exit
