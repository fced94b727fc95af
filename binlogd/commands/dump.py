"""`binlogd dump`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from binlogd.commands.console import ReadingProgress
from binlogd.commands.options import ConfigOption, DataDirOption, load_setup
from binlogd.commands.output import say, say_json
from binlogd.commands.reading import (
    FromOption,
    HistoryOption,
    JsonLinesOption,
    LimitOption,
    PathsArgument,
    TableOption,
    ToOption,
    history_of,
    window_of,
    writer_of,
)
from binlogd.commands.running import get_status
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.errors import CorruptPayload, CorruptRow, Unavailable
from binlogd.host import loop
from binlogd.settings.setup import Setup
from binlogd.tools.chosen import Met, chosen, table_patterns
from binlogd.tools.reading import Source, find_sources, known_jobs, transactions
from binlogd.tools.records import RecordLine, records
from binlogd.tools.shown import JsonWriter, TextWriter
from binlogd.tools.transaction import CommitWindow, Meter
from binlogd.tso import MAX_TS, NO_TS, Tso

FOLLOW_S = 0.3
"""Between two looks for what has committed."""


def dump(  # noqa: PLR0913 - typer makes each parameter an option
    paths: PathsArgument = None,
    start: FromOption = None,
    stop: ToOption = None,
    table: TableOption = None,
    limit: LimitOption = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="One line a transaction, no rows.")
    ] = False,
    raw_records: Annotated[
        bool, typer.Option("--records", help="Every record as it stands in the files, undecoded.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show long values whole.")] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Show what commits from now on, or from --from on, until Ctrl-C."
        ),
    ] = False,
    schema_history: HistoryOption = None,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Print the transactions in binlog files with their rows, in commit order.

    PATH is a data directory (ours, or `value` of a Go Pump), a relay log (ours, or the Go
    Drainer's), a directory of a file sink, or files of these; without one it is the data directory
    of the configuration. binlogd may write the files at the same time. At damaged bytes, the dump
    ends and names path and offset. The exit code is 1 if it finds nothing of the requested tables
    or times. --follow prints transactions as they commit, and needs a running node.

        binlogd dump --table shop.orders --from 2026-01-01T03:00:00Z
        binlogd dump --heads --limit 20
        binlogd dump --follow --table shop.orders --json
    """
    wanted = (
        TableFilter(do_tables=table_patterns(table, "--table"), ignored_databases=())
        if table
        else None
    )
    window = window_of(start, stop)
    setup = load_setup(config_file, data_dir)
    history = history_of(setup, schema_history)
    asked = _Asked(paths or [setup.data_dir], history, wanted, limit, heads=heads)
    writer = writer_of(full=full, as_json=as_json)
    if follow:
        with suppress(KeyboardInterrupt):
            loop.run(_followed(asked, writer, window.start, setup))
        return
    sources = find_sources(asked.paths)
    with ReadingProgress(Console(stderr=True)) as shown:
        if raw_records:
            _dump_records(sources, window, limit, as_json=as_json, progress=shown)
            return
        met = Met()
        unreadable = _printed(asked, writer, sources, window, met, shown)
    if unreadable:
        raise typer.Exit(1)
    if limit != 0:
        met.expect_some(table or (), window)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be printed, out of which files."""

    paths: list[Path]
    schema_history: Path | None
    wanted: TableFilter | None
    limit: int | None
    heads: bool


def _printed(
    asked: _Asked,
    writer: JsonWriter | TextWriter,
    sources: list[Source],
    window: CommitWindow,
    met: Met,
    shown: ReadingProgress,
) -> int:
    """How many transactions could not be read whole."""
    jobs, unreadable = known_jobs(sources, asked.schema_history), 0
    found = transactions(sources, window, jobs=jobs, meter=shown.meter)
    for transaction, rows in islice(chosen(found, asked.wanted, met), asked.limit):
        try:
            writer.transaction(transaction, None if asked.heads else rows)
        except (CorruptRow, CorruptPayload) as error:
            writer.failure(transaction, str(error))
            unreadable += 1
        shown.advance()
    sys.stdout.flush()
    return unreadable


async def _followed(
    asked: _Asked, writer: JsonWriter | TextWriter, start: Tso, setup: Setup
) -> None:
    """What commits from `start` on, or from now on, until Ctrl-C or so many transactions.

    The log of a Pump is read up to where its node vouches for the order, other files to their end.
    """
    said = Console(stderr=True)
    after, was_away = (Tso(start - 1) if start else None), False
    while True:  # until Ctrl-C, or `limit`
        sources = find_sources(asked.paths)
        is_pump = any(source.shards for source in sources)
        upto = _vouched(setup) if is_pump else MAX_TS
        if upto is None and not was_away:
            say("no binlogd answers; what commits is shown when it does", console=said)
        was_away = upto is None
        if after is None and upto is not None:
            after = upto if is_pump else _newest(sources)
        if after is not None and upto is not None and upto > after:
            met, quiet = Met(), ReadingProgress(said, is_shown=False)
            window = CommitWindow(Tso(after + 1), upto)
            _printed(asked, writer, sources, window, met, quiet)
            after = upto if is_pump else met.last_ts or after
            if asked.limit is not None:
                asked = replace(asked, limit=asked.limit - met.found)
                if asked.limit == 0:
                    return
        await asyncio.sleep(FOLLOW_S)


def _vouched(setup: Setup) -> Tso | None:
    """Up to where a running node knows everything; None while none answers."""
    try:
        return get_status(setup).max_commit_ts
    except Unavailable:
        return None


def _newest(sources: list[Source]) -> Tso:
    found = transactions(sources, CommitWindow(), meter=Meter())
    return max((each.commit_ts for each in found), default=NO_TS)


def _dump_records(
    sources: list[Source],
    window: CommitWindow,
    limit: int | None,
    *,
    as_json: bool,
    progress: ReadingProgress,
) -> None:
    for line in islice(_records(sources, window, progress.meter), limit):
        if as_json:
            say_json(line.document())
        else:
            sys.stdout.write(
                f"{line.place.path}:{line.place.offset} {line.size_bytes} bytes {line.kind}"
                f" start_ts {line.start_ts} commit_ts {line.commit_ts} {line.detail}\n"
            )
        progress.advance()
    sys.stdout.flush()


def _records(sources: list[Source], window: CommitWindow, meter: Meter) -> Iterator[RecordLine]:
    for source in sources:
        for line in records(source, meter):
            if window.start <= (line.commit_ts or line.start_ts) <= window.stop:
                yield line
