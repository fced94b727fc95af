"""What transactions changed: the rows of their prewrites, key by key.

Which prewrites are read, and when each was committed, is known before (`heads.Log`), so that what
was rolled back or lies behind the moment is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlogd.errors import CorruptRecord, CorruptRow, MalformedBinlog, UnreadableRow
from binlogd.snapshot.log.datums import Longs, RowSpans, number_keys, packed_longs, unpacked_longs
from binlogd.snapshot.log.moves import Home, Moves
from binlogd.snapshot.log.prewrites import ParsedMutations, parse_mutations
from binlogd.snapshot.log.reader import Slice, payloads_at
from binlogd.snapshot.log.row_changes import Changed, TableRows, changed
from binlogd.snapshot.log.rowkey import (
    Handle,
    HandleKind,
    Op,
    both_images,
    deleted,
    inserted,
    last_image,
    placed,
    updated,
)
from binlogd.tidb.known_tables import is_reserved
from binlogd.wire.in_order import DELETE, INSERT, UPDATE, rows_of
from binlogd.wire.mutation import LARGE_BYTES, Mutation, mutations_of

BATCH_ROWS_MAX = 131_072
BATCH_BYTES_MAX = 16 << 20
"""A batch ends at whichever comes first; one row may be larger."""
TOGETHER_BYTES = 8 << 20
"""Of prewrites that are read together."""
TOGETHER_ROWS_MIN = 64
"""Rows of a table in a batch below which there is nothing to gain from reading them together."""

EVENTS = pa.schema(
    [
        ("table_id", pa.int64()),
        ("key", pa.binary()),
        ("commit_ts", pa.int64()),
        ("seq", pa.int32()),
        ("op", pa.int8()),
        ("schema_version", pa.int64()),
        ("row", pa.binary()),
    ]
)
"""One change of one key each, in the order of `seq` within a transaction and table."""

CHANGES = EVENTS.append(pa.field("before", pa.binary()))
"""As `EVENTS`, with the row that a key held before, where it held one."""

_PUT, _DELETE, _UPDATE = Op.PUT.value, Op.DELETE.value, Op.UPDATE.value


class Reads(NamedTuple):
    """The prewrites of a slice whose rows count: where they stand and when they were committed."""

    at: Longs
    commit_ts: Longs

    def packed(self) -> bytes:
        """For a task."""
        return packed_longs(*self)

    @classmethod
    def unpacked(cls, data: bytes) -> Reads:
        """What `packed` gave."""
        return cls(*unpacked_longs(data))


@dataclass(frozen=True, slots=True)
class WantedTables:
    """Which tables' rows are read: handles by table id, and ids whose rows are passed over.

    `since`: of these tables, what was committed behind it only. With `has_before`, `CHANGES` are
    read instead of `EVENTS`. Rows that `moves` concern are given to the table that they belong to
    at the end.
    """

    handles: Mapping[int, Handle]
    passed_over: Set[int]
    since: Mapping[int, int] = field(default_factory=dict)
    has_before: bool = False
    moves: Moves = field(default_factory=Moves)

    def has(self, table_id: int) -> bool:
        """Whether rows of it are looked at; those of a table that nobody knows are, to be told."""
        if table_id in self.handles or table_id in self.moves.known:
            return True
        return not (table_id in self.passed_over or is_reserved(table_id))

    def counts(self, table_id: int, commit_ts: int) -> bool:
        """Whether what a transaction did to a table at the end is news."""
        return commit_ts > self.since.get(table_id, 0)

    @property
    def schema(self) -> pa.Schema:
        """What `events` gives."""
        return CHANGES if self.has_before else EVENTS


class CommittedPrewrite(NamedTuple):
    """A prewrite of rows: the file that it is in, where, and when it was committed."""

    path: str
    at: int
    payload: bytes
    commit_ts: int

    def mutations(self, is_wanted: Callable[[int], bool]) -> tuple[int, list[Mutation]]:
        """Its schema version and the row changes of wanted tables. Raises CorruptRecord."""
        try:
            return mutations_of(self.payload, is_wanted)
        except MalformedBinlog as error:
            raise CorruptRecord(self.path, self.at, f"no row changes: {error}") from error


def committed_prewrites(part: Slice, reads: Reads) -> Iterator[CommittedPrewrite]:
    """Some of a slice. Raises CorruptRecord."""
    places = reads.at.tolist()
    for at, payload, commit_ts in zip(
        places, payloads_at(part, places), reads.commit_ts.tolist(), strict=True
    ):
        yield CommittedPrewrite(part.path, at, payload, commit_ts)


def events(found: Iterable[CommittedPrewrite], wanted: WantedTables) -> Iterator[pa.RecordBatch]:
    """`EVENTS` of some prewrites, in any order. Raises CorruptRecord, UnreadableRow."""
    one_by_one = _Events(wanted)
    waiting: list[CommittedPrewrite] = []
    size = 0
    for each in found:
        if wanted.has_before or len(each.payload) > LARGE_BYTES:
            yield from one_by_one.take_from(each)
            continue
        waiting.append(each)
        size += len(each.payload)
        if size >= TOGETHER_BYTES:
            yield from _together(waiting, wanted, one_by_one)
            waiting.clear()
            size = 0
    if waiting:
        yield from _together(waiting, wanted, one_by_one)
    if one_by_one.keys:
        yield one_by_one.take()


def _together(
    prewrites: list[CommittedPrewrite], wanted: WantedTables, one_by_one: _Events
) -> Iterator[pa.RecordBatch]:
    """Tables whose handle is a number are read together; prewrites with others, and slow ones, are
    gone through one by one for those."""
    found = parse_mutations(RowSpans.joined([each.payload for each in prewrites]), wanted.has)
    commit_ts = np.fromiter((each.commit_ts for each in prewrites), np.int64, len(prewrites))
    batches, done = [], set()
    for table_id, rows in _tables(found, commit_ts, wanted):
        batch = _batch(table_id, wanted.handles[table_id], rows)
        if batch is not None:
            batches.append(batch)
            done.add(table_id)
    if batches:
        yield pa.concat_batches(batches)
    is_left = found.is_slow.copy()
    is_left[found.of_prewrite[~np.isin(found.table_id, list(done))]] = True
    for number in np.flatnonzero(is_left).tolist():
        is_whole = bool(found.is_slow[number])
        passed = frozenset() if is_whole else frozenset(done)
        yield from one_by_one.take_from(prewrites[number], passed)


def _tables(
    found: ParsedMutations, commit_ts: Longs, wanted: WantedTables
) -> Iterator[tuple[int, TableRows]]:
    """The tables that are read together, with what counts of them."""
    commit_ts = commit_ts[found.of_prewrite]
    ids, of_mutation = np.unique(found.table_id, return_inverse=True)
    counts = np.bincount(of_mutation[found.of_step], minlength=len(ids))
    for number, table_id in enumerate(ids.tolist()):
        handle = wanted.handles.get(table_id)
        is_few = counts[number] < TOGETHER_ROWS_MIN
        if handle is None or handle.kind is HandleKind.COMMON or is_few:
            continue
        if table_id in wanted.moves.known:
            continue
        is_ours = (of_mutation == number) & (commit_ts > wanted.since.get(table_id, 0))
        yield table_id, found.rows_of(is_ours, commit_ts[is_ours])


def _batch(table_id: int, handle: Handle, rows: TableRows) -> pa.RecordBatch | None:
    """None where a row is corrupt: one by one it is told with its transaction."""
    try:
        found = changed(handle, rows)
    except CorruptRow:
        return None
    return events_of(table_id, found, np.where(found.kinds == DELETE, _DELETE, _PUT))


def events_of(table_id: int, found: Changed, ops: npt.NDArray[np.integer]) -> pa.RecordBatch:
    """`EVENTS` of a table whose rows were read together."""
    columns = {
        "table_id": np.full(len(ops), table_id, np.int64),
        "key": number_keys(found.keys),
        "commit_ts": found.commit_ts,
        "seq": found.seq,
        "op": ops.astype(np.int8),
        "schema_version": found.schema_version,
        "row": found.rows,
    }
    return pa.RecordBatch.from_pydict(columns, schema=EVENTS)


class Run(NamedTuple):
    """The rows of a table in one transaction."""

    change: Mutation
    commit_ts: int
    schema_version: int


_Run = tuple[int, int, int]
"""table_id, commit_ts, schema_version."""


class _Events:
    """Row changes on their way into Arrow, as columns. What a run of them shares stands once."""

    def __init__(self, wanted: WantedTables) -> None:
        self._wanted = wanted
        self._followed = wanted.moves.followed()
        self._clear()

    def _clear(self) -> None:
        self._runs: list[_Run] = []
        self._begins: list[int] = []
        self._bytes = 0
        self.keys: list[bytes] = []
        self._seqs: list[int] = []
        self._ops: list[int] = []
        self._rows: list[bytes] = []
        self._before: list[bytes] = []

    def take_from(
        self, prewrite: CommittedPrewrite, passed_over: Set[int] = frozenset()
    ) -> Iterator[pa.RecordBatch]:
        """Takes the rows of a prewrite, but for those of some tables. Raises CorruptRecord too."""
        wanted = self._wanted
        version, tables = prewrite.mutations(wanted.has)
        for change in tables:
            run = Run(change, prewrite.commit_ts, version)
            if change.table_id in passed_over:
                continue
            seen = wanted.moves.seen(change.table_id, version, prewrite.commit_ts)
            with _named(run):
                if wanted.moves.concerns(change.table_id, seen):
                    yield from self.fill_moved(run, seen)
                elif wanted.counts(change.table_id, prewrite.commit_ts):
                    yield from self.fill(run)

    def _begin(self, run: _Run) -> None:
        self._runs.append(run)
        self._begins.append(len(self.keys))

    def _add(self, seq: int, key: bytes, op: int, row: bytes, before: bytes) -> bool:
        """Whether the batch is full."""
        self.keys.append(key)
        self._seqs.append(seq)
        self._ops.append(op)
        self._rows.append(row)
        self._before.append(before)
        self._bytes += len(row) + len(before)
        return len(self.keys) >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def fill(self, run: Run) -> Iterator[pa.RecordBatch]:
        """Takes the rows of one table in one transaction. Batches that got full meanwhile.

        Raises CorruptRow.
        """
        table_id = run.change.table_id
        handle = self._wanted.handles.get(table_id)
        found: Iterable[_Found]
        if handle is None and table_id in self._wanted.moves.known:
            return  # its rows are no more, whatever they were
        if handle is None:
            found = ((b"", Op.UNKNOWN_TABLE.value, b"", b""),)
        elif self._wanted.has_before:
            moved = _moved_rows(run.change, handle, frozenset(), lambda _: None)
            found = (change for _, change in moved)
        else:
            found = _rows(run.change, handle)
        of = table_id, run.commit_ts, run.schema_version
        self._begin(of)
        for seq, each in enumerate(found):
            if self._add(seq, *each):
                yield self.take()
                self._begin(of)

    def fill_moved(self, run: Run, seen: int) -> Iterator[pa.RecordBatch]:
        """As `fill`, for rows that may belong to another table at the end, or to none. Their
        partitions are those of the version `seen`."""
        table_id, version = run.change.table_id, run.schema_version
        handle, wanted = self._wanted.moves.handles[table_id], self._wanted

        def home(row: bytes) -> Home | None:
            found = self._followed.home(table_id, seen, row)
            if found is None or found.table_id not in wanted.handles:
                return None
            return found if wanted.counts(found.table_id, run.commit_ts) else None

        gone = self._followed.gone_twins(run.change, seen, run.commit_ts)
        moved = _moved_rows(run.change, handle, gone, home)
        for seq, (to, (key, op, row, before)) in enumerate(moved):
            if to is not None:
                is_placed = wanted.handles[to.table_id].kind is HandleKind.PLACED
                self._begin((to.table_id, run.commit_ts, version))
                full_key = placed(key, to.place) if is_placed else key
                if self._add(seq, full_key, op, row, before):
                    yield self.take()

    def take(self) -> pa.RecordBatch:
        """The batch; the next one begins."""
        begins = np.array([*self._begins, len(self.keys)], np.int64)
        counts = begins[1:] - begins[:-1]
        table_id, commit_ts, version = (
            np.repeat(np.array(column, np.int64), counts)
            for column in zip(*self._runs, strict=True)
        )
        columns = {
            "table_id": table_id,
            "key": _binary(self.keys),
            "commit_ts": commit_ts,
            "seq": np.array(self._seqs, np.int32),
            "op": np.array(self._ops, np.int8),
            "schema_version": version,
            "row": _binary(self._rows),
        }
        if self._wanted.has_before:
            columns["before"] = _binary(self._before)
        batch = pa.RecordBatch.from_pydict(columns, schema=self._wanted.schema)
        self._clear()
        return batch


@contextmanager
def _named(run: Run) -> Iterator[None]:
    """A row that is corrupt is told with its transaction."""
    try:
        yield
    except CorruptRow as error:
        label = f"table id {run.change.table_id}"
        raise UnreadableRow(label, run.commit_ts, str(error)) from error


def _binary(values: Sequence[bytes]) -> pa.Array:
    """The same as `pa.array`, in half the time."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


_Found = tuple[bytes, int, bytes, bytes]
"""Key, op, row, row before."""


def _rows(change: Mutation, handle: Handle) -> Iterator[_Found]:
    for kind, row in rows_of(change):
        if kind == INSERT:
            key, put = inserted(handle, row)
        elif kind == UPDATE:
            gone, (key, put) = updated(handle, row)
            if gone is not None:
                yield gone, _DELETE, b"", b""
        else:
            yield deleted(handle, row), _DELETE, b"", b""
            continue
        yield key, _PUT, put, b""


def _moved_rows(
    change: Mutation, handle: Handle, gone: Set[int], home: Callable[[bytes], Home | None]
) -> Iterator[tuple[Home | None, _Found]]:
    """Each change of a row, with the row before, and with where it is at the end; without those of
    the inserted rows that are `gone`, by their numbers."""
    number = -1
    for kind, row in rows_of(change):
        if kind == INSERT:
            number += 1
            if number in gone:
                continue
            put = inserted(handle, row)
            yield home(put.row), (put.key, _PUT, put.row, b"")
        elif kind == UPDATE:
            images = both_images(handle, row)
            old, new = home(images.old), home(images.new)
            if old == new and images.old_key == images.new_key:
                yield new, (images.new_key, _UPDATE, images.new, images.old)
            else:
                yield old, (images.old_key, _DELETE, b"", images.old)
                yield new, (images.new_key, _PUT, images.new, b"")
        else:
            last = last_image(handle, row)
            yield home(last.row), (last.key, _DELETE, b"", last.row)
