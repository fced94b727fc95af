"""Options and manners of the commands that read binlog files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from binlogd.commands.console import ReadingProgress, is_coloured
from binlogd.commands.options import COUNT_MAX
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.errors import ConfigError
from binlogd.settings.quantities import first_ts, last_ts
from binlogd.settings.setup import Setup
from binlogd.tools.chosen import chosen
from binlogd.tools.shown import VALUE_CHARS_MAX, JsonWriter, TextWriter
from binlogd.tools.transaction import CommitWindow, Transaction
from binlogd.tso import MAX_TS, NO_TS

PathsArgument = Annotated[
    list[Path] | None, typer.Argument(help="Directories or files of binlogs.", show_default=False)
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", help="First commit_ts: a TSO, or a time in ISO 8601 (UTC without zone)."
    ),
]
ToOption = Annotated[
    str | None, typer.Option("--to", help="Last commit_ts, included: a TSO or a time.")
]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", help="DB or DB.TABLE, names or ~expressions; may be repeated."),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=1, max=COUNT_MAX, help="Stop after so many transactions."),
]
HistoryOption = Annotated[
    Path | None,
    typer.Option("--schema-history", help="File with TiDB's answer at /ddl/history."),
]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="For machines: a line of JSON per row or DDL.")
]


def window_of(start: str | None, stop: str | None) -> CommitWindow:
    """The window that two options name, both ends included. Raises ConfigError."""
    window = CommitWindow(
        first_ts(start, "--from") if start else NO_TS, last_ts(stop, "--to") if stop else MAX_TS
    )
    if window.start > window.stop:
        raise ConfigError(f"--from {start} lies behind --to {stop}")
    return window


def history_of(setup: Setup, given: Path | None) -> Path | None:
    """The file with the DDL history that is `given`, or that the configuration names, if it is
    there: the tables of a running node are known from what it keeps."""
    named = setup.history_file
    return given or (named if named is not None and named.is_file() else None)


def writer_of(*, as_json: bool, full: bool = False) -> JsonWriter | TextWriter:
    """What shows transactions on the standard output; `full`: long values whole."""
    if as_json:
        return JsonWriter(sys.stdout.write)
    chars_max = None if full else VALUE_CHARS_MAX
    return TextWriter(sys.stdout.write, is_coloured=is_coloured(), value_chars_max=chars_max)


def show_chosen(
    found: Iterable[Transaction], wanted: TableFilter, shown: ReadingProgress, *, as_json: bool
) -> None:
    """The transactions that a filter wants, with their rows."""
    writer = writer_of(as_json=as_json)
    for transaction, rows in chosen(found, wanted):
        writer.transaction(transaction, rows)
        shown.advance()
