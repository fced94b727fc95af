"""What commands write: sentences for people, documents of JSON for scripts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console


def say(
    text: str, label: str = "", style: str = "yellow", *, console: Console | None = None
) -> None:
    """A line, on the standard output if no `console` is named. It is never broken, so that it can
    be copied, and shown as it is: brackets are no markup. `label` stands before it in its style."""
    from rich.console import Console  # who says one line of JSON, or a word, needs no rich
    from rich.text import Text

    line = Text.assemble((label, style), " " if label and text else "", text)
    (console or Console()).print(line, soft_wrap=True)


def warn(text: str) -> None:
    """A line on the standard error that whoever runs the command should not overlook."""
    from rich.console import Console

    say("", text, console=Console(stderr=True))


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
