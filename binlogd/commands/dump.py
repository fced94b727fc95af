"""`binlogd dump`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from binlogd.commands.console import ReadingProgress, is_coloured
from binlogd.commands.options import ConfigOption, DataDirOption, load_setup
from binlogd.commands.reading import (
    FromOption,
    HistoryOption,
    JsonLinesOption,
    LimitOption,
    PathsArgument,
    TableOption,
    ToOption,
    quiet_on_broken_pipe,
    window_of,
)
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.errors import CorruptPayload, CorruptRow
from binlogd.tools.chosen import Met, chosen, table_patterns
from binlogd.tools.jobs import known_jobs
from binlogd.tools.reading import Source, find_sources, transactions
from binlogd.tools.records import RecordLine, records
from binlogd.tools.shown import VALUE_CHARS_MAX, JsonWriter, TextWriter
from binlogd.tools.transaction import CommitWindow, Meter


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
    full: Annotated[bool, typer.Option("--full", help="Long values whole.")] = False,
    schema_history: HistoryOption = None,
    config_file: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Print what stands in binlog files: transactions with their rows, in commit order.

    PATH is a data directory (ours, or `value` of a Go Pump), a relay log (ours, or the Go
    Drainer's), a directory of a file sink, or files of these; without one it is the data directory
    of the configuration. Files are read one record at a time, also while binlogd writes them.
    Damaged bytes end the dump with path and offset, after everything before them. Exit code 1 when
    there is nothing of a table, or in a time, that was asked for.

        binlogd dump --table shop.orders --from 2026-01-01T03:00:00Z
        binlogd dump --heads --limit 20
    """
    wanted = (
        TableFilter(do_tables=table_patterns(table, "--table"), ignored_databases=())
        if table
        else None
    )
    window = window_of(start, stop)
    sources = find_sources(paths or [load_setup(config_file, data_dir).data_dir])
    with quiet_on_broken_pipe(), ReadingProgress(Console(stderr=True)) as shown:
        if raw_records:
            _dump_records(sources, window, limit, as_json=as_json, progress=shown)
            return
        found = transactions(
            sources, window, jobs=known_jobs(sources, schema_history), meter=shown.meter
        )
        writer = (
            JsonWriter(sys.stdout.write)
            if as_json
            else TextWriter(
                sys.stdout.write,
                is_coloured=is_coloured(),
                value_chars_max=None if full else VALUE_CHARS_MAX,
            )
        )
        unreadable, met = 0, Met()
        for transaction, rows in islice(chosen(found, wanted, met), limit):
            try:
                writer.transaction(transaction, None if heads else rows)
            except (CorruptRow, CorruptPayload) as error:
                writer.failure(transaction, str(error))
                unreadable += 1
            shown.advance()
        sys.stdout.flush()
    if unreadable:
        raise typer.Exit(1)
    if limit != 0:
        met.expect_some(table or (), window)


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
            document = line._asdict() | {"path": str(line.place.path), "offset": line.place.offset}
            del document["place"]
            sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
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
