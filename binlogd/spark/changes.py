"""Row changes as bytes, key by key, with the DDL between them: what the pipeline works on.

Rows are decoded later, where they are written; so bytes go on. A change of a key is a DELETE of the
old and a PUT of the new one. The form `changes` is for who takes the last change of each row
handle, `changelog` for who keeps them all: there the primary key is a key too.

Through Spark they go thousands in a row of its own: what it does for a row costs more than all that
is done with a change here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.log.datums import arrow_stream, longs
from binlogd.snapshot.log.events import EVENTS
from binlogd.snapshot.log.rowkey import (
    Handle,
    HandleKind,
    Op,
    Put,
    both_images,
    handle_of,
    inserted,
    last_image,
    updated,
)
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.spark.net import primary_of
from binlogd.spark.request import ReadRequest
from binlogd.spark.rows import BATCH_BYTES, BATCH_ROWS, SEQ_STEP, numbered
from binlogd.spark.walk import SchemaChange, Step, WalkedRows
from binlogd.tidb.model import TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tso import Tso
from binlogd.wire.in_order import INSERT, UPDATE, rows_of

STEPS = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("ddl_job_id", pa.int64()),
        ("ddl_state", pa.int32()),
        ("ddl_query", pa.string()),
        ("changes", pa.binary()),
    ]
)
"""A DDL, or, with a `ddl_job_id` of 0, changes as an Arrow stream of `EVENTS` in commit order, the
last of which has this `commit_ts`.

Their `op` is that of rowkey, with UPDATE for a PUT of a row that was there: under whatever key, in
a changelog under the same one. `row` of a DELETE is the row that went. `seq` is that of typed rows.
"""

_Change = tuple[int, int, bytes, bytes]
"""seq, op, key, row."""
_Run = tuple[int, int, int, int]
"""commit_ts, table_id and schema_version of so many changes."""
_PUT, _UPDATE, _DELETE = Op.PUT.value, Op.UPDATE.value, Op.DELETE.value


def change_runs(
    request: ReadRequest, steps: Iterable[Step]
) -> Iterator[pa.RecordBatch | SchemaChange]:
    """Each DDL, and `EVENTS` between them in commit order. Raises UnreadableRow."""
    splits = PerTable(_primary_moves if request.form == "changelog" else _may_move)
    handles = PerTable(lambda table: handle_of(table.info))
    moved_op = Op.PUT if request.form == "changelog" else Op.UPDATE
    held, runs, size = list[_Change](), list[_Run](), 0
    for step, seq in numbered(steps):
        if isinstance(step, SchemaChange):
            if held:
                yield _events(runs, held)
                held, runs, size = [], [], 0
            yield step
            continue
        if not request.wants(step.table.database, step.table.info.name):
            continue
        of, begin = (step.commit_ts, step.table.info.id, step.schema_version), len(held)
        split = _Split(splits.of(step.table), moved_op.value)
        for change in _changes(step, handles.of(step.table), split, seq * SEQ_STEP):
            held.append(change)
            size += len(change[2]) + len(change[3])
            if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield _events([*runs, (*of, len(held) - begin)], held)
                held, runs, size, begin = [], [], 0, 0
        runs.append((*of, len(held) - begin))
    if held:
        yield _events(runs, held)


def packed_steps(runs: Iterable[pa.RecordBatch | SchemaChange]) -> Iterator[pa.RecordBatch]:
    """`STEPS`, one at a time."""
    for each in runs:
        row: tuple[object, ...]
        if isinstance(each, SchemaChange):
            row = each.commit_ts, each.job.id, each.schema_state, each.query, None
        else:
            row = each["commit_ts"][len(each) - 1].as_py(), 0, 0, None, arrow_stream(each)
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
            begin = int(np.searchsorted(longs(found, "commit_ts"), after, "right"))
            yield found.slice(begin)


def changes_behind(after: Tso, steps: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`EVENTS` of `STEPS` behind a commit_ts."""
    return (each for each in steps_behind(after, steps) if isinstance(each, pa.RecordBatch))


class _Split(NamedTuple):
    """Which updates are two changes, though their row handle stays, and what the second one is."""

    is_one: Callable[[bytes], bool]
    op: int


def _may_move(table: TableAt) -> Callable[[bytes], bool]:
    """It may go to another partition, and keep its number, which need not be the only one there."""
    is_placed = handle_of(table.info).kind is HandleKind.HIDDEN and bool(table.info.partition_ids)
    return lambda _: is_placed


def _primary_moves(table: TableAt) -> Callable[[bytes], bool]:
    """A primary key that is not the row handle may change."""
    primary = primary_of(table.info, table.version)

    def is_moved(row: bytes) -> bool:
        if primary is None:
            return False
        old, new = primary.updated(row)
        return old != new

    return is_moved


def _changes(rows: WalkedRows, handle: Handle, split: _Split, seq: int) -> Iterator[_Change]:
    try:
        for kind, row in rows_of(rows.mutation):
            gone: Put | None = None
            put: Put | None
            op = _PUT
            if kind == INSERT:
                put = inserted(handle, row)
            elif kind == UPDATE:
                left_key, put = updated(handle, row)
                op = _UPDATE
                if left_key is not None or split.is_one(row):
                    images, op = both_images(handle, row), split.op
                    gone = Put(images.old_key, images.old)
            else:
                gone, put = last_image(handle, row), None
            if gone is not None:
                yield seq, _DELETE, gone.key, gone.row
            if put is not None:
                yield seq + (gone is not None), op, put.key, put.row
            seq += SEQ_STEP
    except CorruptRow as error:
        label = f"{rows.table.database}.{rows.table.info.name}"
        raise UnreadableRow(label, rows.commit_ts, str(error)) from error


def _events(runs: Sequence[_Run], held: Sequence[_Change]) -> pa.RecordBatch:
    *of_runs, counts = (np.array(each, np.int64) for each in zip(*runs, strict=True))
    commit_ts, table_id, version = (np.repeat(each, counts) for each in of_runs)
    seq, op, key, row = zip(*held, strict=True)
    columns = table_id, key, commit_ts, seq, op, version, row
    arrays = [pa.array(column, field.type) for column, field in zip(columns, EVENTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)
