"""`binlogd txn`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from binlogd.commands.console import ReadingProgress
from binlogd.commands.options import ConfigOption, DataDirOption, load_setup
from binlogd.commands.output import say, say_json
from binlogd.commands.reading import (
    HistoryOption,
    JsonLinesOption,
    PathsArgument,
    history_of,
    writer_of,
)
from binlogd.settings.quantities import wall_clock
from binlogd.tools.reading import find_sources, known_jobs, transactions
from binlogd.tools.records import RecordLine, records_of_transaction
from binlogd.tools.transaction import CommitWindow
from binlogd.tso import MAX_TS, Tso


def txn(
    ts: Annotated[int, typer.Argument(min=1, max=MAX_TS, help="Its commit_ts or its start_ts.")],
    paths: PathsArgument = None,
    schema_history: HistoryOption = None,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Show one transaction: every row that it changed, or its DDL; or why it has no outcome.

    Reads what `binlogd dump` reads; without a PATH the data directory of the configuration. The
    exit code is 1 if no transaction in the files has this timestamp.

        binlogd txn 445644800000000001
    """
    setup = load_setup(config_file, data_dir)
    sources = find_sources(paths or [setup.data_dir])
    jobs = known_jobs(sources, history_of(setup, schema_history))
    with ReadingProgress(Console(stderr=True)) as shown:
        # a commit lies behind its start, so nothing before `ts` is read
        later = transactions(sources, CommitWindow(start=Tso(ts)), jobs=jobs, meter=shown.meter)
        found = next((each for each in later if ts in (each.commit_ts, each.start_ts)), None)
        lines = [] if found else list(records_of_transaction(sources, Tso(ts), shown.meter))
    if found is not None:
        writer_of(as_json=as_json, full=True).transaction(found, found.rows())
        return
    for line in lines:
        _say(line, as_json=as_json)
    if not lines:
        missing = f"nothing in these files carries {ts} ({wall_clock(Tso(ts))})"
        say(missing, console=Console(stderr=True))
        raise typer.Exit(1)


def _say(line: RecordLine, *, as_json: bool) -> None:
    if as_json:
        say_json(line.document())
        return
    sys.stdout.write(
        f"{line.kind} without a commit in these files: start_ts {line.start_ts}"
        f" {wall_clock(line.start_ts)} {line.place.path}:{line.place.offset}"
        f" ({line.size_bytes} bytes) {line.detail}\n"
    )
