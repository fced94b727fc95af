"""How changes and DDL go through Spark: thousands of changes in a row of its own, as what it does
for a row costs more than all that is done with a change here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.snapshot.log.datums import arrow_stream
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.spark.walk import SchemaChange
from binlogd.tso import Tso

CHANGES = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("seq", pa.int32()),
        ("table_id", pa.int64()),
        ("op", pa.int32()),
        ("schema_version", pa.int64()),
        ("key", pa.binary()),
        ("row", pa.binary()),
        ("ddl_job_id", pa.int64()),
        ("ddl_state", pa.int32()),
        ("ddl_query", pa.string()),
    ]
)
"""A change a row, for who reads them by themselves; a DDL has a `ddl_job_id` above 0 and no key."""
STEPS = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("ddl_job_id", pa.int64()),
        ("ddl_state", pa.int32()),
        ("ddl_query", pa.string()),
        ("changes", pa.binary()),
    ]
)
"""A DDL, or, with a `ddl_job_id` of 0, changes between two DDL as an Arrow stream of `EVENTS`, by
table and time, the last of which has this `commit_ts`."""


def change_rows(runs: Iterable[pa.RecordBatch | SchemaChange]) -> Iterator[pa.RecordBatch]:
    """`CHANGES`, in each batch in commit order."""
    for each in runs:
        if isinstance(each, SchemaChange):
            of = each.commit_ts, 0, 0, 0, each.job.schema_version, b"", b""
            row = *of, each.job.id, each.schema_state, each.query
            columns = [pa.array([value]) for value in row]
        else:
            nothing = pa.array(np.zeros(len(each), np.int64))
            found = each.sort_by([("commit_ts", "ascending"), ("seq", "ascending")])
            columns = [found[name] for name in CHANGES.names[:7]]
            columns += [nothing, nothing, pa.nulls(len(each))]
        arrays = [column.cast(of) for column, of in zip(columns, CHANGES.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=CHANGES)


def packed_steps(runs: Iterable[pa.RecordBatch | SchemaChange]) -> Iterator[pa.RecordBatch]:
    """`STEPS`, one at a time."""
    for each in runs:
        row: tuple[object, ...]
        if isinstance(each, SchemaChange):
            row = each.commit_ts, each.job.id, each.schema_state, each.query, None
        else:
            row = pc.max(each["commit_ts"]).as_py(), 0, 0, None, arrow_stream(each)
        columns = [pa.array([value], of) for value, of in zip(row, STEPS.types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=STEPS)


def steps_behind(
    after: Tso, steps: Iterable[pa.RecordBatch]
) -> Iterator[DdlBinlog | pa.RecordBatch]:
    """Each DDL of `STEPS` behind a commit_ts, and `EVENTS` between them."""
    for batch in steps:
        for commit_ts, job_id, state, query, changes in zip(*batch, strict=True):
            if commit_ts.as_py() <= after:
                continue
            if job_id.as_py():
                job = job_id.as_py(), state.as_py(), query.as_py()
                yield DdlBinlog(Tso(commit_ts.as_py()), *job)
                continue
            with pa.ipc.open_stream(changes.as_buffer()) as stream:
                found = stream.read_next_batch()
            is_news = pc.greater(found["commit_ts"], after)
            yield found if pc.all(is_news).as_py() else found.filter(is_news)


def changes_behind(after: Tso, steps: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`EVENTS` of `STEPS` behind a commit_ts."""
    return (each for each in steps_behind(after, steps) if isinstance(each, pa.RecordBatch))
