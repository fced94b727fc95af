"""What commands write: sentences for people, documents of JSON for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from binlogd.host.words import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column

_UNBROKEN_CHARS = 100_000


def say(
    text: str, label: str = "", style: str = "yellow", *, console: Console | None = None
) -> None:
    """A line, on the standard output if no `console` is named. It is never broken, so that it can
    be copied, and shown as it is: brackets are no markup. `label` stands before it in its style."""
    from rich.console import Console  # who says one line of JSON, or a word, needs no rich
    from rich.text import Text

    line = Text.assemble((harmless(label), style), " " if label and text else "", harmless(text))
    (console or Console()).print(line, soft_wrap=True)


def standard_output() -> Console:
    """As wide as its terminal; where there is none, nothing is broken that a script reads."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _UNBROKEN_CHARS, emoji=False)


def warn(text: str) -> None:
    """A line on the standard error that whoever runs the command should not overlook."""
    from rich.console import Console

    say("", text, console=Console(stderr=True))


def say_table(
    names: Sequence[str | Column], rows: Iterable[Sequence[str]], *, console: Console | None = None
) -> None:
    """Rows under the names of their columns. What stands in them is markup."""
    from rich.table import Table

    shown = Table(*names, box=None)
    for row in rows:
        shown.add_row(*map(harmless, row))
    (console or standard_output()).print(shown, highlight=False)


def say_facts(facts: Iterable[tuple[str, str]], *, console: Console | None = None) -> None:
    """Texts, each behind its name."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table(show_header=False, box=None, pad_edge=False)
    for name, text in facts:
        shown.add_row(f"[dim]{name}[/]", escape(harmless(text)))
    (console or standard_output()).print(shown, highlight=False)


def say_verdicts(verdicts: Iterable[tuple[str, int, str, Sequence[str]]], good: str) -> None:
    """Tables that were compared or checked: name, rows, what is wrong or "", which columns nobody
    looked at. `good` is what is said of one with which nothing is wrong."""
    from rich.markup import escape
    from rich.table import Column

    def row(name: str, rows: int, reason: str, left_out: Sequence[str]) -> tuple[str, ...]:
        said = f"[bold red]{escape(reason)}[/]" if reason else f"[green]{good}[/]"
        if left_out:
            said += f" [dim]without {escape(', '.join(left_out))}[/]"
        return escape(name.strip(".")), str(rows), said

    say_table(["table", Column("rows", justify="right"), ""], (row(*each) for each in verdicts))


def say_reply(reply: Mapping[str, Any], *, as_json: bool) -> None:
    """What a node said to what it was asked to do. Raises Exit, code 1, where it refuses."""
    if as_json:
        say_json(reply)
    else:
        say(str(reply["message"]))
    if reply["code"] != HTTPStatus.OK:
        raise typer.Exit(1)


def say_json(document: object) -> None:
    """One line; what JSON has no form for, such as a path, is its text."""
    sys.stdout.write(msgspec.json.encode(document, enc_hook=str).decode() + "\n")
