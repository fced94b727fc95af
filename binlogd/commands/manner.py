"""What every command does towards people: no log unless asked for, and a word after Ctrl-C."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Annotated, Any, Literal

import typer

from binlogd.errors import ConfigError

KEEP_A_LOG = frozenset({"serve", "pipeline"})
"""They run for as long as somebody wants them: their log says what they do."""
LOGS_NOTHING = frozenset({"health", "status", "page"})
"""They ask a running node, some every few seconds, and import nothing that writes a log."""
INTERRUPTED_EXIT = 130
SUBMITTED = "submitted"
"""What the context of a command holds that spark-submit runs."""
_LEFT = {
    "adopt": "nothing was adopted; the Pumps' directories are as they were. Run it again",
    "archive": "what was copied or removed stays so, and the next run goes on from there",
    "bench": "nothing is left",
    "check": "without --repair nothing was changed; a repair goes on where it is run again",
    "checkpoint": "it is set whole or not at all; `binlogd checkpoint` shows which",
    "export": "nothing was published, and nothing is left of it",
    "export-changes": "nothing was published, and nothing is left of it",
    "pipeline": "what its batches wrote stays; the same command goes on behind it",
    "replay": "without --into nothing was changed; with it, what was applied stays, and can be"
    " applied once more with --safe-mode",
    "restore": "what was applied stays, so that the downstream may stand between two states of the"
    " upstream; the same command goes on from there (a dry run changes nothing)",
    "skip": "`binlogd skip` lists what is decided",
    "state": "no longer waiting; the node does what it was asked to, see `binlogd status`",
    "undo": "without --into nothing was changed; with it, what was taken back stays so",
    "verify": "nothing was changed, and nothing is known of the tables that were not shown",
}
"""By command: what an interruption leaves, and how to go on. What is not here only reads."""
_READS = "nothing was changed"
LogLevelOption = Annotated[
    Literal["debug", "info", "warn", "error"] | None,
    typer.Option("--log-level", help="Write log lines, from this level on."),
]
_LOG_LEVEL = inspect.Parameter(
    "log_level",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=LogLevelOption,
)


def check_given(context: typer.Context, odd: Collection[str], why: str) -> None:
    """Raises ConfigError where the command line has one of these options, by its parameter."""
    given = [
        each.opts[0]
        for each in context.command.params
        if each.name in odd
        and getattr(context.get_parameter_source(str(each.name)), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise ConfigError(f"{', '.join(given)}: {why}")


def with_manners(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """The command `name`, which takes --log-level as well and says what Ctrl-C leaves."""
    is_quiet = name not in KEEP_A_LOG

    @wraps(function)
    def command(*given: Any, **options: Any) -> None:
        log_level = options.pop("log_level", None) if is_quiet else None
        if log_level or (is_quiet and name not in LOGS_NOTHING):
            from binlogd.telemetry.logs import set_up_log_of_command

            set_up_log_of_command(log_level)
        try:
            function(*given, **options)
        except KeyboardInterrupt:
            from rich.console import Console

            from binlogd.commands.output import say

            say(f"cancelled: {_LEFT.get(name, _READS)}", console=Console(stderr=True))
            raise typer.Exit(INTERRUPTED_EXIT) from None

    signature = inspect.signature(function, eval_str=True)
    extra = [_LOG_LEVEL] if is_quiet else []
    parameters = [*signature.parameters.values(), *extra]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command
