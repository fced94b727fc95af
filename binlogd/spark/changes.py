"""Row changes as bytes, key by key, with the DDL between them: what the pipeline works on.

Rows are decoded later, where they are written; so bytes go on. A change of a key is a DELETE of the
old and a PUT of the new one. The form `changes` is for who takes the last change of each row
handle, `changelog` for who keeps them all: there the primary key is a key too.

The rows of many transactions are gone through together, table by table, where the handle is a
number; any others, and those in a form that TiDB does not write, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from binlogd.archive.reading import gathered
from binlogd.binlog import CommittedBinlog
from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.log.datums import Longs, Mask, RowSpans, longs
from binlogd.snapshot.log.events import BATCH_BYTES_MAX, EVENTS, TOGETHER_ROWS_MIN, events_of
from binlogd.snapshot.log.prewrites import ParsedMutations, parse_mutations
from binlogd.snapshot.log.row_changes import changed
from binlogd.snapshot.log.rowkey import (
    SEQ_STEP,
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
from binlogd.spark.net import primary_of
from binlogd.spark.request import ReadRequest
from binlogd.spark.walk import LogWalk, SchemaChange, WalkedRows
from binlogd.tidb.known_tables import is_reserved
from binlogd.tidb.model import TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.wire import peek
from binlogd.wire.in_order import DELETE, INSERT, UPDATE, rows_of
from binlogd.wire.mutation import LARGE_BYTES

BATCH_ROWS = 65_536
"""Of a batch, which a large transaction may end before, at `BATCH_BYTES_MAX`."""
TOGETHER_BYTES = 4 << 20
"""Of log whose changes are in memory together."""
_Change = tuple[int, int, bytes, bytes]
"""seq, op, key, row."""
_Event = tuple[int, bytes, int, int, int, int, bytes]
"""One of `EVENTS`."""
_Splits = Callable[[bytes], bool]
"""Which updates are two changes, though their row handle stays."""
_Seen = tuple[int, int]
"""A table id, and the schema version of rows of it."""
_PUT, _UPDATE, _DELETE = Op.PUT.value, Op.UPDATE.value, Op.DELETE.value
_OPS = np.zeros(max(INSERT, UPDATE, DELETE) + 1, np.int8)
"""By the kind of a row."""
_OPS[[INSERT, UPDATE, DELETE]] = _PUT, _UPDATE, _DELETE


def change_runs(
    request: ReadRequest, walk: LogWalk, binlogs: Iterable[CommittedBinlog]
) -> Iterator[pa.RecordBatch | SchemaChange]:
    """Each DDL, and between them `EVENTS`, by table and time.

    Their `op` is that of rowkey, with UPDATE for a PUT of a row that was there: under whatever key,
    in a changelog under the same one. `row` of a DELETE is the row that went. `seq` is that of
    typed rows. Raises MissingDdlJob, UnknownTable, UnreadableRow.
    """
    run = _Run(request, walk)
    with walk.reading():
        for binlog in walk.begun(binlogs):
            ddl = peek.ddl(binlog.payload)
            if ddl is not None:
                yield from run.take()
                yield from walk.ddl(binlog, ddl)
            elif len(binlog.payload) > LARGE_BYTES:
                yield from run.take()
                yield from run.alone(binlog)
            else:
                run.add(binlog)
                if run.is_full:
                    yield from run.take()
        yield from run.take()


class _Parsed(NamedTuple):
    """Mutations of some transactions that were parsed together; of each of them its transaction's
    commit_ts, the `seq` of its first change, and its place among `seen`, each with its table."""

    found: ParsedMutations
    commit_ts: Longs
    begins: Longs
    of_seen: Longs
    seen: list[_Seen]
    tables: list[TableAt | None]


class _Run:
    """Transactions between two DDL."""

    def __init__(self, request: ReadRequest, walk: LogWalk) -> None:
        is_log = request.keeps_all
        self._walk, self._moved_op = walk, _PUT if is_log else _UPDATE
        self._wants = PerTable(lambda of: request.wants(of.database, of.info.name))
        self._splits = PerTable(_primary_moves if is_log else _may_move)
        self._handles = PerTable(lambda table: handle_of(table.info))
        self._held = list[CommittedBinlog]()
        self._bytes = 0

    def add(self, binlog: CommittedBinlog) -> None:
        """One more."""
        self._held.append(binlog)
        self._bytes += len(binlog.payload)

    @property
    def is_full(self) -> bool:
        """Whether it is as much as should be in memory."""
        return self._bytes >= TOGETHER_BYTES

    def take(self) -> Iterator[pa.RecordBatch]:
        """The changes of all of them, if there are some. Raises UnknownTable, UnreadableRow."""
        if not self._held:
            return
        parsed = self._parsed()
        done, batches = set[_Seen](), list[pa.RecordBatch]()
        rows = np.bincount(parsed.of_seen[parsed.found.of_step], minlength=len(parsed.seen))
        for table, places in _by_table(parsed.tables):
            if rows[places].sum() < TOGETHER_ROWS_MIN or not self._is_plain(table):
                continue
            batch = self._together(table, parsed, np.isin(parsed.of_seen, places))
            if batch is not None:
                batches.append(batch)
                done.update(parsed.seen[each] for each in places)
        batches.append(_events([row for each in self._left(parsed, done) for row in each]))
        self._held.clear()
        self._bytes = 0
        found = pa.concat_batches(batches)
        order = np.lexsort([longs(found, name) for name in ("seq", "commit_ts", "table_id")])
        for begin in range(0, len(order), BATCH_ROWS):
            yield found.take(pa.array(order[begin : begin + BATCH_ROWS]))

    def alone(self, binlog: CommittedBinlog) -> Iterator[pa.RecordBatch]:
        """The changes of a large transaction, some at a time. Raises as `take`."""
        rows = self._rows(binlog, frozenset())
        some = gathered(rows, lambda row: len(row[1]) + len(row[-1]), BATCH_ROWS, BATCH_BYTES_MAX)
        yield from map(_events, some)

    def _parsed(self) -> _Parsed:
        """Raises UnknownTable."""
        payloads = RowSpans.joined([bytes(each.payload) for each in self._held])
        found = parse_mutations(payloads, lambda table_id: not is_reserved(table_id))
        every = np.array([each.commit_ts for each in self._held], np.int64)
        commit_ts = every[found.of_prewrite]
        keys = np.stack([found.table_id, found.schema_version[found.of_prewrite]], axis=1)
        pairs, first, of_seen = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        seen = [(table_id, version) for table_id, version in pairs.tolist()]
        tables = [
            self._walk.table(*of, commit_ts[at].item())
            for of, at in zip(seen, first.tolist(), strict=True)
        ]
        of_seen = of_seen.reshape(-1)
        counts = np.bincount(found.of_step, minlength=len(commit_ts))
        counts[~np.array([each is not None for each in tables], bool)[of_seen]] = 0
        before = np.cumsum(counts) - counts
        begins = before - before[np.searchsorted(found.of_prewrite, found.of_prewrite)]
        return _Parsed(found, commit_ts, SEQ_STEP * begins, of_seen, seen, tables)

    def _is_plain(self, table: TableAt) -> bool:
        """Whether its rows may be gone through together."""
        is_number = self._handles.of(table).kind is not HandleKind.COMMON
        return is_number and self._wants.of(table) and self._splits.of(table) is None

    def _together(self, table: TableAt, parsed: _Parsed, is_ours: Mask) -> pa.RecordBatch | None:
        """None for what is to be gone through one by one: where a changelog has keys that moved,
        or a row is corrupt, which is told with its transaction then."""
        rows = parsed.found.rows_of(is_ours, np.arange(np.count_nonzero(is_ours)))
        with suppress(CorruptRow):
            found = changed(self._handles.of(table), rows, keeps_gone=True)
            if self._moved_op == _PUT and len(found.keys) > len(rows.sequence):
                return None
            of = found.commit_ts
            seq = (parsed.begins[is_ours][of] + found.seq).astype(np.int32)
            found = found._replace(commit_ts=parsed.commit_ts[is_ours][of], seq=seq)
            return events_of(table.info.id, found, _OPS[found.kinds])
        return None

    def _left(self, parsed: _Parsed, done: Set[_Seen]) -> Iterator[Iterator[_Event]]:
        """What was not gone through together."""
        found = parsed.found
        tables = zip(parsed.seen, parsed.tables, strict=True)
        is_wanted = [
            of not in done and table is not None and self._wants.of(table) for of, table in tables
        ]
        is_left = found.is_slow.copy()
        is_left[found.of_prewrite[np.array(is_wanted, bool)[parsed.of_seen]]] = True
        for number in np.flatnonzero(is_left).tolist():
            passed = frozenset() if found.is_slow[number] else done
            yield self._rows(self._held[number], passed)

    def _rows(self, binlog: CommittedBinlog, passed: Set[_Seen]) -> Iterator[_Event]:
        begin = 0
        for rows in self._walk.rows(binlog):
            table, version, seq = rows.table, rows.schema_version, begin * SEQ_STEP
            begin += len(rows.mutation.sequence)
            if (table.info.id, version) in passed or not self._wants.of(table):
                continue
            of = self._handles.of(table), self._splits.of(table), self._moved_op, seq
            for at, op, key, row in _changes(rows, *of):
                yield table.info.id, key, binlog.commit_ts, at, op, version, row


def _by_table(tables: Iterable[TableAt | None]) -> Iterator[tuple[TableAt, list[int]]]:
    """Each of them, with its places."""
    found: dict[int, tuple[TableAt, list[int]]] = {}
    for place, table in enumerate(tables):
        if table is not None:
            found.setdefault(id(table), (table, []))[1].append(place)
    yield from found.values()


def _events(rows: list[_Event]) -> pa.RecordBatch:
    columns = [[row[at] for row in rows] for at in range(len(EVENTS))]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns, EVENTS.types)), schema=EVENTS)


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
    """Raises UnreadableRow."""
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
        raise UnreadableRow(rows.table.label, rows.commit_ts, str(error)) from error
