"""What happened between two moments: `build` of `binlogd export-changes`, from the same log.

Of each row the change that it came to, or every one of them. Tables are as they are at the end; a
DDL in between stands in the manifest, for it may have changed rows that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from binlogd.snapshot.log import state
from binlogd.snapshot.log.scan import ddl_of
from binlogd.snapshot.spec import ChangesEntry, ChangesOptions, DdlEntry
from binlogd.snapshot.tables.catalog import Catalog, DdlBinlog
from binlogd.snapshot.writing.change_writer import write_changes
from binlogd.snapshot.writing.files import RESULTS, Target, Written
from binlogd.tso import Tso


def stage(
    events: DataFrame,
    committed: DataFrame,
    known: Catalog,
    target: Target,
    options: ChangesOptions,
) -> list[Written]:
    """Writes the changes of all tables as files below the staging directory."""
    from_ts = Tso(options.from_ts)
    if options.all_versions:
        wanted = state.all_changes(events, committed, from_ts)
    else:
        wanted = state.net_changes(events, committed, from_ts)
    tables, tracker = dict(known.tables), known.tracker

    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        part = f"{context.partitionId():05d}.{context.attemptNumber()}" if context else "0"
        yield from write_changes(batches, tables, tracker, target, part, options)

    by_table = wanted.sortWithinPartitions("table_id", "commit_ts", "seq")
    rows = by_table.mapInArrow(write_part, ddl_of(RESULTS)).collect()
    return [Written(**row.asDict()) for row in rows]


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
