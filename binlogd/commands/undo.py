"""`binlogd undo`."""

from __future__ import annotations

import sys
from itertools import chain
from typing import Annotated

import typer
from rich.console import Console

from binlogd.commands.console import ReadingProgress
from binlogd.commands.options import ConfigOption, DataDirOption, load_setup
from binlogd.commands.output import say, say_json
from binlogd.commands.reading import (
    FromOption,
    HistoryOption,
    PathsArgument,
    TableOption,
    ToOption,
    history_of,
    window_of,
)
from binlogd.commands.replay import end_of, server_of
from binlogd.drainer.filtering.filter import DEFAULT_IGNORED_SCHEMAS, TableFilter
from binlogd.errors import ConfigError
from binlogd.host import loop
from binlogd.tools.chosen import table_patterns
from binlogd.tools.reading import find_sources, known_jobs
from binlogd.tools.undo import UndoneLog, preamble, script, taken_back
from binlogd.tools.undo import undo as undo_on


def undo(  # noqa: PLR0913 - typer makes each parameter an option
    paths: PathsArgument = None,
    start: FromOption = None,
    stop: ToOption = None,
    table: TableOption = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            help="mysql://user:password@host:3306: take them back there. Without it the SQL is"
            " printed.",
        ),
    ] = None,
    schema_history: HistoryOption = None,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --into: the counts as one JSON document.")
    ] = False,
) -> None:
    """Print the SQL that undoes all transactions from --from to --to, the newest first.

    Reads what `binlogd dump` reads. Give --from, and --table to choose tables. If a DDL changed one
    of these tables in between, nothing is printed or done. The statements expect the tables as they
    were right after --to: later changes of the same rows are not checked.

        binlogd undo --from 2026-01-01T03:00:00Z --table shop.orders > undo.sql
    """
    if start is None:
        raise ConfigError("--from is missing: which transactions are to be taken back?")
    setup = load_setup(config_file, data_dir)
    sources = find_sources(paths or [setup.data_dir])
    wanted = TableFilter(
        do_tables=table_patterns(table or (), "--table"),
        ignored_databases=DEFAULT_IGNORED_SCHEMAS,
    )
    jobs = known_jobs(sources, history_of(setup, schema_history))
    log = UndoneLog(sources, window_of(start, stop), jobs, wanted, table or ())
    with ReadingProgress(Console(stderr=True)) as shown:
        found = taken_back(log, shown.meter)
        if into is not None:
            counters = loop.run(undo_on(found, server_of(into, "+00:00")))
        else:
            first = next(found, None)  # before anything is printed: it may be refused
            undone = found if first is None else chain((first,), found)
            for line in chain(preamble(), chain.from_iterable(map(script, undone))):
                sys.stdout.write(line + "\n")
                shown.advance()
            return
    if as_json:
        say_json(counters)
    else:
        say(
            f"took back {counters.transactions} transactions, {counters.rows} rows;"
            f" {counters.rows_missing} rows were not there any more"
        )
    end_of(counters)
