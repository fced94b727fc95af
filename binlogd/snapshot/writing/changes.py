"""What happened between two moments: `build` of `binlogd export-changes`, from the same log.

Of each row the change that it came to, or every one of them. Tables are as they are at the end; a
DDL in between stands in the manifest, for it may have changed rows that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from binlogd.snapshot.log import state
from binlogd.snapshot.log.packets import unpacked
from binlogd.snapshot.log.scan import RowScan, ddl_of
from binlogd.snapshot.spec import ChangesEntry, ChangesOptions, DdlEntry
from binlogd.snapshot.tables.catalog import Catalog, DdlBinlog, name_in
from binlogd.snapshot.writing.change_writer import write_changes
from binlogd.snapshot.writing.files import RESULTS, FileTarget, Written, told
from binlogd.snapshot.writing.write import attempt_name


def net(
    packets: DataFrame, known: Catalog, target: FileTarget, options: ChangesOptions
) -> list[Written]:
    """Writes what each row of all tables came to, as files below the staging directory.

    `packets` as `scan.spread` gives them, of `events.CHANGES`.
    """
    tables, tracker = dict(known.tables), known.tracker

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = attempt_name(context.partitionId()) if context else "0"
        wanted = map(state.net, unpacked(batches, partial(name_in, tables)))
        yield from write_changes(wanted, tables, tracker, target, part, options)

    return told(packets.mapInArrow(write_part, ddl_of(RESULTS)).collect())


def every(
    rows: RowScan, known: Catalog, target: FileTarget, options: ChangesOptions
) -> list[Written]:
    """Writes all changes of all tables as files below the staging directory."""
    tables, tracker = dict(known.tables), known.tracker

    def write_part(changes: Iterator[pa.RecordBatch], number: int) -> Iterator[pa.RecordBatch]:
        part = attempt_name(number)
        yield from write_changes(state.all_of(changes), tables, tracker, target, part, options)

    return told(rows.each(write_part, RESULTS).collect())


def entry(options: ChangesOptions, ddl: Sequence[DdlBinlog]) -> ChangesEntry:
    """How the manifest describes them."""
    return ChangesEntry(
        options.from_ts,
        options.all_versions,
        options.has_before,
        tuple(
            DdlEntry(each.commit_ts, each.query) for each in ddl if each.commit_ts > options.from_ts
        ),
    )
