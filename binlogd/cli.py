"""The command line: words in, exit codes out.

Exit codes: 0 done, 1 something differs or failed, 2 the configuration or the command is wrong, 130
Ctrl-C.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from binlogd import __version__, native
from binlogd.commands.manner import INTERRUPTED_EXIT, LOGS_NOTHING, SUBMITTED, with_manners
from binlogd.errors import BinlogdError, Cancelled, ConfigError
from binlogd.host.privacy import keep_files_from_others
from binlogd.host.words import harmless, is_utf8

GC_YOUNG_OBJECTS = 20_000
_RUN = "Run and watch"
_DATA = "Data out and back"
_LOOK = "Look into binlogs"
_DISK = "Look after the data directory"
COMMANDS = {
    "serve": _RUN,
    "status": _RUN,
    "health": _RUN,
    "state": _RUN,
    "page": _RUN,
    "ctl": _RUN,
    "nodes": _RUN,
    "skip": _RUN,
    "check-config": _RUN,
    "export": _DATA,
    "export-changes": _DATA,
    "exports": _DATA,
    "spark": _DATA,
    "pipeline": _DATA,
    "archive": _DATA,
    "base": _DATA,
    "restore": _DATA,
    "checkpoint": _DATA,
    "replay": _DATA,
    "undo": _DATA,
    "dump": _LOOK,
    "txn": _LOOK,
    "verify": _LOOK,
    "check": _DISK,
    "adopt": _DISK,
    "bench": _DISK,
}
"""By name: the part of the help that a command is shown in. It is the function of its name in the
module of its name, in `binlogd.commands`."""
_MODULES = {"base": "export_base"}
"""Where the module is called otherwise."""


def command_line(words: Sequence[str] | None = None) -> typer.Typer:
    """The program for these words: the command that the first one names; where it names none, every
    command with its summary alone, which is enough for the overview. None: every command.

    A health check every few seconds would otherwise import a Drainer each time.
    """
    cli = typer.Typer(
        rich_markup_mode="markdown",
        name="binlogd",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        help="Receives the changes of a TiDB cluster as binlogs, replicates them into MySQL,"
        " MariaDB, TiDB, SQLite, Kafka or files, and exports snapshots. Start with"
        " `binlogd serve`.",
        epilog="Exit codes: 0 done, 1 something failed or differs, 2 configuration, 130 Ctrl-C.",
    )
    cli.callback(invoke_without_command=True)(_version)
    named = [word for word in list(words or ())[:1] if word in COMMANDS or word == "--version"]
    is_whole = words is None or bool(named)
    for name in COMMANDS.keys() & named if named else COMMANDS:
        command = _imported(name) if is_whole else _summary(name)
        cli.command(name, rich_help_panel=COMMANDS[name])(command)
    return cli


def _imported(name: str) -> Callable[..., None]:
    if name not in LOGS_NOTHING:
        import_module("binlogd.telemetry.logs")  # first: it has structlog come without rich
    function = name.replace("-", "_")
    module = import_module(f"binlogd.commands.{_MODULES.get(name, function)}")
    return with_manners(name, getattr(module, function))


def _summary(name: str) -> Callable[..., None]:
    """What begins the docstring of a command, read without importing what the command needs."""
    function = name.replace("-", "_")
    path = Path(__file__).with_name("commands") / f"{_MODULES.get(name, function)}.py"
    text = re.search(rf'^def {function}\(.*?^    """(.*?)\n\n', path.read_text(), re.M | re.S)
    assert text is not None, f"{name} has no summary"

    def shown() -> None:
        """Never run: a line that begins with its name imports the command."""

    shown.__doc__ = text[1]
    return shown


def main() -> None:
    """Runs the command line; turns every error of ours into one sentence and an exit code."""
    let_young_objects_gather()
    _stand_in_for_closed_files()
    words = as_go_reads_flags(sys.argv[1:])
    keep_files_from_others()
    is_completing = "_BINLOGD_COMPLETE" in os.environ  # its words are elsewhere
    _answered(None if is_completing else words, words)


def let_young_objects_gather() -> None:
    """For longer than in a program that makes cycles: a binlog makes none, and what a start imports
    stays."""
    gc.set_threshold(GC_YOUNG_OBJECTS, 20, 50)


def _stand_in_for_closed_files() -> None:
    """Opens nothing where standard input, output or error are closed (`>&-`): a file or a socket
    would get their number, with which uvloop ends the process."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def submitted(command: str, words: Sequence[str]) -> None:
    """The same for a command with these words, as the program that spark-submit runs."""
    _answered([command], [command, *words], obj=SUBMITTED)


def _answered(named: Sequence[str] | None, words: Sequence[str], **more: object) -> None:
    try:
        if wrong := next((each for each in words if not is_utf8(each)), ""):
            raise ConfigError(
                f"{wrong}: is not UTF-8 text; name a file or directory by a link whose name is"
            )
        command_line(named)(words, standalone_mode=True, **more)
    except SystemExit as ended:  # of those who show help and tables, where nobody reads them
        sys.exit(0 if isinstance(ended.__context__, BrokenPipeError) else ended.code)
    except ConfigError as error:
        _fail(error, code=2)
    except Cancelled as error:
        _fail(error, code=INTERRUPTED_EXIT)
    except BinlogdError as error:
        _fail(error, code=1)
    except KeyboardInterrupt:  # while it was being imported
        _fail("cancelled: nothing was begun", code=INTERRUPTED_EXIT)
    except OSError as error:  # of files that a command reads or writes
        from binlogd.host.disk import is_no_space

        place = f"{error.filename}: " if error.filename else ""
        cut = "; what was written is not whole: free some, and run it again" * is_no_space(error)
        _fail(f"{place}{error.strerror or error}{cut}", code=1)


def as_go_reads_flags(words: Sequence[str]) -> list[str]:
    """The words of `ctl`, which scripts give as Go takes them: a flag may say that it is true."""
    if list(words[:1]) != ["ctl"]:
        return list(words)
    plain = [re.sub(r"^(--?show-offline-nodes|-V)=(true|1)$", r"\1", word) for word in words]
    return [word for word in plain if not re.match(r"(--?show-offline-nodes|-V)=(false|0)$", word)]


def _fail(error: BinlogdError | str, *, code: int) -> NoReturn:
    from rich.console import Console  # most commands end well, and do without
    from rich.markup import escape

    said = f"[bold red]binlogd:[/] {escape(harmless(str(error)))}"
    Console(stderr=True, emoji=False).print(said, highlight=False, soft_wrap=True)
    sys.exit(code)


def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        sys.stdout.write(f"binlogd {__version__}, {native.form()}\n")
        raise typer.Exit
