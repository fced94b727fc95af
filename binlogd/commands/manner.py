"""What every command does towards people: no log unless asked for, a word after Ctrl-C, and none
where nobody reads."""

from __future__ import annotations

import inspect
import os
import select
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal

import typer

from binlogd.commands.beside import refuse_idle
from binlogd.errors import Unavailable

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
_CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def with_manners(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """The command `name`, which takes --log-level as well, refuses options that mean nothing beside
    others, says what Ctrl-C leaves, and ends well when who reads its output goes (`| head`)."""
    is_quiet = name not in KEEP_A_LOG
    signature = inspect.signature(function, eval_str=True)
    asks_context = _CONTEXT.name in signature.parameters

    @wraps(function)
    def command(*given: Any, **options: Any) -> None:
        context = options[_CONTEXT.name] if asks_context else options.pop(_CONTEXT.name)
        refuse_idle(name, context)
        log_level = options.pop("log_level", None) if is_quiet else None
        if log_level or (is_quiet and name not in LOGS_NOTHING):
            from binlogd.telemetry.logs import set_up_log_of_command

            set_up_log_of_command(log_level)
        try:
            function(*given, **options)
            sys.stdout.flush()
        except BrokenPipeError as error:
            if not _is_unread():  # but a database or a node, and that is no good end
                raise Unavailable("a peer ended the connection") from error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            raise typer.Exit from None
        except KeyboardInterrupt:
            from rich.console import Console

            from binlogd.commands.output import say

            say(f"cancelled: {_LEFT.get(name, _READS)}", console=Console(stderr=True))
            raise typer.Exit(INTERRUPTED_EXIT) from None

    extra = [*([_LOG_LEVEL] if is_quiet else []), *([] if asks_context else [_CONTEXT])]
    parameters = [*signature.parameters.values(), *extra]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _is_unread() -> bool:
    """Whether who read the standard output has gone."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # for errors alone
    return bool(output.poll(0))
