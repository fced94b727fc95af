"""Row changes as bytes, key by key, with the DDL between them: what the pipeline works on.

Rows are decoded later, where they are written; so bytes go on. A change of a key is a DELETE of the
old and a PUT of the new one. The form `changes` is for who takes the last change of each row
handle, `changelog` for who keeps them all: there the primary key is a key too.

Through Spark they go thousands in a row of its own: what it does for a row costs more than all that
is done with a change here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.log.datums import RowSpans, arrow_stream, longs
from binlogd.snapshot.log.events import (
    BATCH_BYTES_MAX,
    EVENTS,
    TOGETHER_ROWS_MIN,
)
from binlogd.snapshot.log.row_changes import Changed, TableRows, changed
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
from binlogd.spark.rows import SEQ_STEP, numbered
from binlogd.spark.walk import SchemaChange, Step, WalkedRows
from binlogd.tidb.model import TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tso import Tso
from binlogd.wire.in_order import DELETE, INSERT, UPDATE, rows_of

RUN_ROWS = 65_536
"""Of changes that are made together, at most `BATCH_BYTES_MAX`."""
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
table and time, the last of which has this `commit_ts`.

Their `op` is that of rowkey, with UPDATE for a PUT of a row that was there: under whatever key, in
a changelog under the same one. `row` of a DELETE is the row that went. `seq` is that of typed rows.
"""

_Change = tuple[int, int, bytes, bytes]
"""seq, op, key, row."""
_Splits = Callable[[bytes], bool]
"""Which updates are two changes, though their row handle stays."""
_Held = list[tuple[WalkedRows, int]]
"""With the `seq` of the first change."""
_PUT, _UPDATE, _DELETE = Op.PUT.value, Op.UPDATE.value, Op.DELETE.value
_OPS = np.zeros(max(INSERT, UPDATE, DELETE) + 1, np.int8)
"""By the kind of a row."""
_OPS[[INSERT, UPDATE, DELETE]] = _PUT, _UPDATE, _DELETE


def change_runs(
    request: ReadRequest, steps: Iterable[Step]
) -> Iterator[pa.RecordBatch | SchemaChange]:
    """Each DDL, and between them `EVENTS`, by table and time. Raises UnreadableRow."""
    run = _Run(is_log=request.form == "changelog")
    wants = PerTable(lambda table: request.wants(table.database, table.info.name))
    for step, seq in numbered(steps):
        if isinstance(step, SchemaChange):
            yield from run.take()
            yield step
        elif wants.of(step.table):
            run.add(step, seq * SEQ_STEP)
            if run.is_full:
                yield from run.take()
    yield from run.take()


class _Run:
    """Changes between two DDL, those of a table together."""

    def __init__(self, *, is_log: bool) -> None:
        self._moved_op = _PUT if is_log else _UPDATE
        self._splits = PerTable(_primary_moves if is_log else _may_move)
        self._handles = PerTable(lambda table: handle_of(table.info))
        self._held: dict[int, _Held] = {}
        self._rows = self._bytes = 0

    def add(self, rows: WalkedRows, seq: int) -> None:
        """What a transaction did to a table."""
        self._held.setdefault(id(rows.table), []).append((rows, seq))
        of = rows.mutation
        self._rows += len(of.sequence)
        self._bytes += sum(sum(map(len, each)) for each in (of.inserted, of.updated, of.deleted))

    @property
    def is_full(self) -> bool:
        """Whether it is as much as should be in memory."""
        return self._rows >= RUN_ROWS or self._bytes >= BATCH_BYTES_MAX

    def take(self) -> Iterator[pa.RecordBatch]:
        """All of them, if there are some. Raises UnreadableRow."""
        if self._held:
            found = pa.concat_batches([self._batch(held) for held in self._held.values()])
            columns = [longs(found, name) for name in ("seq", "commit_ts", "table_id")]
            self._held.clear()
            self._rows = self._bytes = 0
            yield found.take(pa.array(np.lexsort(columns)))

    def _batch(self, held: _Held) -> pa.RecordBatch:
        table = held[0][0].table
        handle, splits = self._handles.of(table), self._splits.of(table)
        rows = sum(len(each.mutation.sequence) for each, _ in held)
        if splits is None and handle.kind is not HandleKind.COMMON and rows >= TOGETHER_ROWS_MIN:
            with suppress(CorruptRow):  # one by one it is told with its transaction
                found = changed(handle, _table_rows(held), keeps_gone=True)
                if self._moved_op == _UPDATE or len(found.keys) == rows:
                    return _of_changed(held, found)
        return _of_rows(held, handle, splits, self._moved_op)


def _table_rows(held: _Held) -> TableRows:
    """In place of a commit_ts each has the number of its transaction."""
    of = [rows.mutation for rows, _ in held]
    inserts = RowSpans.joined(list(chain.from_iterable(each.inserted for each in of)))
    updates = RowSpans.joined(list(chain.from_iterable(each.updated for each in of)))
    deletes = RowSpans.joined(list(chain.from_iterable(each.deleted for each in of)))
    sequence = np.frombuffer(b"".join(each.sequence for each in of), np.uint8)
    number = np.arange(len(held))
    of_step = number.repeat([len(each.sequence) for each in of])
    version = np.array([rows.schema_version for rows, _ in held], np.int64)
    return TableRows(inserts, updates, deletes, sequence, of_step, number, version)


def _of_changed(held: _Held, found: Changed) -> pa.RecordBatch:
    number = found.commit_ts
    commit_ts = np.array([rows.commit_ts for rows, _ in held], np.int64)
    begins = np.array([seq for _, seq in held], np.int32)
    columns = {
        "table_id": np.full(len(number), held[0][0].table.info.id, np.int64),
        "key": found.key_bytes(),
        "commit_ts": commit_ts[number],
        "seq": begins[number] + found.seq,
        "op": _OPS[found.kinds],
        "schema_version": found.schema_version,
        "row": found.rows,
    }
    return pa.RecordBatch.from_pydict(columns, schema=EVENTS)


def _of_rows(held: _Held, handle: Handle, splits: _Splits | None, moved_op: int) -> pa.RecordBatch:
    found = [
        (rows.table.info.id, key, rows.commit_ts, seq, op, rows.schema_version, row)
        for rows, begin in held
        for seq, op, key, row in _changes(rows, handle, splits, moved_op, begin)
    ]
    columns = zip(*found, strict=True)
    arrays = [pa.array(column, of) for column, of in zip(columns, EVENTS.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


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


def _may_move(table: TableAt) -> _Splits | None:
    """It may go to another partition, and keep its number, which need not be the only one there."""
    is_placed = handle_of(table.info).kind is HandleKind.HIDDEN and bool(table.info.partition_ids)
    return (lambda _: True) if is_placed else None


def _primary_moves(table: TableAt) -> _Splits | None:
    """A primary key that is not the row handle may change."""
    primary = primary_of(table.info, table.version)
    if primary is None:
        return None

    def is_moved(row: bytes) -> bool:
        old, new = primary.updated(row)
        return old != new

    return is_moved


def _changes(
    rows: WalkedRows, handle: Handle, splits: _Splits | None, moved_op: int, seq: int
) -> Iterator[_Change]:
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
                if left_key is not None or (splits is not None and splits(row)):
                    images, op = both_images(handle, row), moved_op
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
