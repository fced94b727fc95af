"""What waits for each lane: transactions in, parts out.

Invariant. The parts that a lane takes hold all changes of that lane, each once, and end where a
transaction ends (or, for one above the cut limits, where `piece` says). Between two turns of the
caller's loop a transaction is either wholly added or known to be open, so a lane that takes its
part in between never takes half of one unknowingly.

Within a part, the changes of a merged table are the last state of each key (row literal, or None:
deleted); those of other tables stay in order, as runs of one kind. Tables come in the order of
their ids in every part, so that two lanes lock in one order.

Which rows must be there already is noted with the changes: a key whose first change in a part is an
update or a deletion. A key that is born within the part is none of these, whatever becomes of it.

One who has a single lane of a layout (a task of Spark) gathers its changes alone, with the same
parts: of rows that go to other lanes no more is decoded than the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from binlogd.drainer import sql
from binlogd.drainer.rows.conflict import lane_of
from binlogd.drainer.rows.plan import Key
from binlogd.drainer.rows.progress import LanePosition
from binlogd.drainer.rows.shape import Mode
from binlogd.drainer.rows.target import Reader, Target, key_text
from binlogd.drainer.txn import Dml
from binlogd.errors import CorruptRow, RowMismatch
from binlogd.tidb.kinds import DELETE, INSERT, UPDATE
from binlogd.tidb.layout import UNEXPECTED_LAYOUT
from binlogd.tso import NO_TS, Tso
from binlogd.wire.in_order import rows_of
from binlogd.wire.mutation import Mutation
from binlogd.wire.slices import RowSlices

NOWHERE = LanePosition(NO_TS)
SLICE_ROWS = 256
"""Rows added between two turns of the event loop, about a millisecond."""
SLICE_BYTES = 1 << 20
"""Bytes likewise; one row may be larger."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a part is full, and when a transaction is cut; statements are bounded as well."""

    changes_worth: int = 500
    bytes_worth: int = 512 << 10
    """From here on a part is worth a transaction while more is being added."""
    changes_max: int = 2000
    bytes_max: int = 4 << 20
    cut_changes_max: int = 50_000
    cut_bytes_max: int = 32 << 20
    """Above these a transaction is cut; shared by all lanes (`of_lane`)."""
    statement_bytes_max: int = 1 << 20

    def of_lane(self, lanes: int) -> Limits:
        """The limits of one of so many lanes. With several, a transaction is spread over them
        anyway: what a lane may hold back for the sake of a whole is half of its share, since it
        has another part in work."""
        if lanes == 1:
            return self
        return replace(
            self,
            cut_changes_max=max(self.changes_max, self.cut_changes_max // (2 * lanes)),
            cut_bytes_max=max(self.bytes_max, self.cut_bytes_max // (2 * lanes)),
        )


class RunKind(Enum):
    """What the items of a run are."""

    DELETE = "delete"
    """Keys for DELETE ... IN."""
    WRITE = "write"
    """Row literals for REPLACE or INSERT."""
    SINGLE = "single"
    """Whole statements."""


class Statement(NamedTuple):
    """A statement, and what it was made of: `head` + `items` joined by commas + `tail`. One of a
    single item may be written otherwise."""

    text: bytes
    target: Target
    kind: RunKind
    head: bytes
    items: Sequence[bytes]
    tail: bytes
    finds: bytes = b""
    """Of each item 1 where the downstream must hold its row already; "" for none of them."""

    def __str__(self) -> str:
        """For people: table and shape, no values."""
        return f"{self.head.decode('utf-8', 'replace')}... ({len(self.items)} rows)"


@dataclass(slots=True, eq=False)
class Part:
    """What one downstream transaction of one lane does."""

    merged: dict[Target, dict[Key, bytes | None]] = field(default_factory=dict)
    before: dict[Target, list[Key]] = field(default_factory=dict)
    """Of merged tables the keys that the downstream must hold before this part."""
    runs: dict[Target, list[tuple[RunKind, list[bytes], bytearray]]] = field(default_factory=dict)
    """Kind, items, and of each item 1 where its row must be there before."""
    last: Dml | None = None
    txns: list[Dml] = field(default_factory=list)
    """All that have changes here; `txn_count` is of those that have their first change here."""
    txn_count: int = 0
    changes: int = 0
    size_bytes: int = 0
    first_ts: Tso = NO_TS
    end: LanePosition = NOWHERE

    def statements(self, bytes_max: int) -> Iterator[Statement]:
        """In the order in which they must be run."""
        for target in sorted({*self.merged, *self.runs}, key=lambda each: each.table_id):
            if target in self.merged:
                yield from self._of_states(target, self.merged[target], bytes_max)
            for kind, items, finds in self.runs.get(target, ()):
                yield from _of_run(target, kind, items, bytes_max, finds)

    def _of_states(
        self, target: Target, states: dict[Key, bytes | None], bytes_max: int
    ) -> Iterator[Statement]:
        gone: list[bytes] = []
        rows: list[bytes] = []
        gone_there, rows_there = bytearray(), bytearray()
        noted = self.before.get(target, [])
        before = frozenset(noted) if len(noted) < len(states) else states.keys()
        for key in sorted(states):  # the keys of one table are of one type
            row = states[key]
            if row is not None:
                rows.append(row)
                rows_there.append(key in before)
            else:
                gone.append(key_text(key))
                gone_there.append(key in before)
        if target.shape.deletes_first:
            gone = [key_text(key) for key in sorted(states)]
            gone_there.clear()
        if gone:
            yield from _of_run(target, RunKind.DELETE, gone, bytes_max, gone_there)
        if rows:
            if not target.by_key:  # one of several keys may take the row of another
                rows_there.clear()
            yield from _of_run(target, RunKind.WRITE, rows, bytes_max, rows_there)


def commit_ts_of(part: Part, statement: Statement, item: bytes) -> Tso:
    """The last transaction in a part that made this item; the part's first if none is found."""
    for commit_ts, reader, rows in changes_in(reversed(part.txns), statement.target):
        if any(item == each for each in _items(rows, reader, statement.kind)):
            return commit_ts
    return part.first_ts


def changes_in(txns: Iterable[Dml], target: Target) -> Iterator[tuple[Tso, Reader, Mutation]]:
    """What each of these transactions changes in a table, and how that is read."""
    for dml in txns:
        for change in dml.changes:
            if change.table.info.id == target.table_id:
                yield dml.commit_ts, Reader(change.table, target), change.mutation


def _items(mutation: Mutation, reader: Reader, kind: RunKind) -> Iterator[bytes]:
    decoders = reader.decoded
    if reader.target.mode is Mode.ORIGINAL:
        for row_kind, row in rows_of(mutation):
            yield from reader.original_statements(row_kind, row)
    elif kind is RunKind.SINGLE:
        yield from (reader.statement(UPDATE, row) for row in mutation.updated)
        yield from (reader.statement(DELETE, row) for row in mutation.deleted)
    elif kind is RunKind.WRITE:
        yield from (decoders.insert(row)[1] for row in mutation.inserted)
        yield from (decoders.update(row)[2] for row in mutation.updated)
    else:
        yield from (key_text(decoders.update(row)[0]) for row in mutation.updated)
        yield from (key_text(decoders.delete(row)) for row in mutation.deleted)


def _of_run(
    target: Target, kind: RunKind, items: Sequence[bytes], bytes_max: int, there: bytearray
) -> Iterator[Statement]:
    finds = bytes(there) if 1 in there else b""
    if kind is RunKind.SINGLE:
        for item in items:
            yield Statement(item, target, kind, target.single_head, (item,), b"")
        return
    is_delete = kind is RunKind.DELETE
    if is_delete and not target.in_lists:
        for at, item in enumerate(items):
            text = target.deletion(item)
            found = finds[at : at + 1]
            yield Statement(text, target, kind, target.delete_head, (item,), b"", found)
        return
    head, tail = target.delete_head if is_delete else target.write_head, target.write_tail
    at = 0
    for batch in sql.batches(items, bytes_max - len(head) - len(tail)):
        if is_delete:
            tail = sql.delete_tail(batch)
        found = finds[at : at + len(batch)]
        at += len(batch)
        yield Statement(head + b",".join(batch) + tail, target, kind, head, batch, tail, found)


class Gatherer:
    """Adds transactions in commit order, gives each lane its part. Pure."""

    def __init__(
        self,
        stored: Sequence[LanePosition],
        limits: Limits,
        known_after: Tso = NO_TS,
        own: int | None = None,
    ) -> None:
        """Transactions above `known_after` tell by themselves which rows the downstream holds.
        `own` is the lane whose changes are gathered; None for all."""
        self.translated_ts = min(each.whole_ts for each in stored)
        self.rows_added = 0
        self._stored = tuple(stored)
        self._caught_up_at = max(each.commit_ts for each in stored)
        self._limits = limits
        self._lanes, self._own = len(stored), own
        self._open = [Part() for _ in stored]
        self._adding: Dml | None = None
        self._is_counted = self._is_catching_up = self._is_known = False
        self._known_after = known_after
        self._row = b""
        """The last one of the change being added: TiDB writes twice what it partitions anew, the
        same bytes right behind, and a slice or a part may end between the two."""
        self._before = [0] * self._lanes
        """Changes of the transaction being added that lie before the lane's open part."""

    @property
    def is_adding(self) -> bool:
        """Whether a transaction is open: only what is above the cut limits can be taken."""
        return self._adding is not None

    @property
    def first_waiting(self) -> list[Tso]:
        """The first commit_ts of each part that has changes."""
        return [part.first_ts for part in self._open if part.changes]

    @property
    def changes_waiting(self) -> int:
        """Changes in all open parts."""
        return sum(part.changes for part in self._open)

    @property
    def txns_waiting(self) -> int:
        """Transactions that have their first change in an open part."""
        return sum(part.txn_count for part in self._open)

    def skip(self, commit_ts: Tso) -> None:
        """Nothing is to be done up to this commit_ts."""
        assert self._adding is None, "one transaction at a time"
        self.translated_ts = max(self.translated_ts, commit_ts)

    def add(self, dml: Dml, readers: Sequence[Reader]) -> Iterator[None]:
        """Takes one transaction, a slice with each step; `readers` as `dml.changes`. Until it has
        ended, lanes can take what is above the cut limits only. Raises RowMismatch."""
        assert dml.commit_ts >= self.translated_ts, "transactions come in commit order"
        assert self._adding is None, "one transaction at a time"
        self._adding, self._is_counted = dml, False
        self._is_catching_up = dml.commit_ts <= self._caught_up_at
        self._is_known = dml.commit_ts > self._known_after
        self._before = [-part.changes for part in self._open]
        rows_left, bytes_left = SLICE_ROWS, SLICE_BYTES
        for change, reader in zip(dml.changes, readers, strict=True):
            mutation, self._row = change.mutation, b""
            rows, size = len(mutation.sequence), size_of(mutation)
            self.rows_added += rows
            rest = iter(mutation.inserted), iter(mutation.updated), iter(mutation.deleted)
            if rows <= rows_left and size <= bytes_left:
                rows_left, bytes_left = rows_left - rows, bytes_left - size
                self._add_rows(mutation.sequence, rest, reader)
                continue
            yield
            step = max(1, min(SLICE_ROWS, SLICE_BYTES * rows // max(1, size)))
            for begin in range(0, rows, step):
                self._add_rows(mutation.sequence[begin : begin + step], rest, reader)
                yield
            rows_left, bytes_left = SLICE_ROWS, SLICE_BYTES
        self.translated_ts = dml.commit_ts
        self._adding = None

    def is_full(self) -> bool:
        """Whether a lane has as much as it should have: to be asked between two transactions."""
        limits = self._limits
        return any(
            part.changes >= limits.changes_max or part.size_bytes >= limits.bytes_max
            for part in self._open
        )

    def is_worth_taking(self, lane: int) -> bool:
        """Whether a lane has so much that it need not wait for what is still being added."""
        part, limits = self._open[lane], self._limits
        return part.changes >= min(
            limits.changes_worth, limits.changes_max
        ) or part.size_bytes >= min(limits.bytes_worth, limits.bytes_max)

    def must_cut(self) -> bool:
        """Whether some part must be taken before the open transaction goes on."""
        return any(self._is_above_cut(part) for part in self._open)

    def take(self, lane: int) -> Part | None:
        """What waits for a lane; None when there is nothing, or only half a transaction."""
        part = self._open[lane]
        if part.changes == 0:
            return None
        part.end = LanePosition(self.translated_ts)
        if self._adding is not None:
            if not self._is_above_cut(part):
                return None
            piece = self._before[lane] = max(self._before[lane] + part.changes, 0)
            if piece:
                part.end = LanePosition(self._adding.commit_ts, piece)
        self._open[lane] = Part()
        return part

    # --- rows ------------------------------------------------------------------------------

    def _add_rows(self, sequence: bytes, rows: _Rows, reader: Reader) -> None:
        mode, by_key, own = reader.target.mode, reader.target.by_key, self._own
        if own is not None and not by_key and reader.target.seed % self._lanes != own:
            return
        in_order = _in_order(sequence, rows)
        try:
            if by_key and own is not None:
                self._merge_own(in_order, reader, own)
            elif mode is Mode.MERGED:
                self._merge(sequence, rows, reader)
            elif mode is Mode.ORDERED:
                self._add_ordered(in_order, reader)
            elif mode is Mode.ORIGINAL:
                self._add_original(in_order, reader)
            else:
                self._add_singles(in_order, reader)
        except CorruptRow as error:
            assert self._adding is not None
            raise RowMismatch(reader.target.label, self._adding.commit_ts, str(error)) from error

    def _merge(  # noqa: C901, PLR0912, PLR0915 - a row shall cost one call, that of its decoder
        self, sequence: bytes, rows: _Rows, reader: Reader
    ) -> None:
        inserted, updated, deleted = rows
        fast, slow = reader.decoders
        insert, update, delete = fast.insert, fast.update, fast.delete
        target, parts, lanes, adding = reader.target, self._open, self._lanes, self._adding
        by_key, seed, lane = target.by_key, target.seed, target.seed % self._lanes
        tells = self._is_known and target.shape.tells_missing
        last = data = self._row
        row: bytes | None
        for kind in sequence:
            is_there = tells and kind != INSERT
            if kind == UPDATE:
                data = next(updated)
                try:
                    old, key, row = update(data)
                except UNEXPECTED_LAYOUT:
                    old, key, row = slow.update(data)
                if old != key:
                    self._put_state(target, old, None, is_there=tells and data != last)
                    is_there = False
            elif kind == INSERT:
                data = next(inserted)
                try:
                    key, row = insert(data)
                except UNEXPECTED_LAYOUT:
                    key, row = slow.insert(data)
            else:
                data = next(deleted)
                try:
                    key, row = delete(data), None
                except UNEXPECTED_LAYOUT:
                    key, row = slow.delete(data), None
            if self._is_catching_up:
                self._put_state(target, key, row, is_there=is_there and data != last)
                continue
            if by_key:
                literal = b"%d" % key if key.__class__ is int else key
                # lane_of, without the call
                lane = crc32(literal, seed) % lanes  # type: ignore[arg-type]  # bytes by now
            part = parts[lane]
            if part.last is not adding:
                self._enter(part)
            try:
                states = part.merged[target]
            except KeyError:
                states = part.merged[target] = {}
                part.before[target] = []
            if is_there and key not in states and data != last:
                part.before[target].append(key)
            states[key] = row
            part.changes += 1
            part.size_bytes += 24 if row is None else len(row)
        self._row = data

    def _merge_own(self, rows: _InOrder, reader: Reader, own: int) -> None:
        """As `_merge`, for the rows of one lane."""
        target, decode, lanes, last = reader.target, reader.decoded, self._lanes, self._row
        tells = self._is_known and target.shape.tells_missing
        for kind, data in rows:
            old, key = reader.keys(kind, data)
            is_there = tells and kind != INSERT and data != last
            if old != key:
                if lane_of(key_text(old), target.seed, lanes) == own:
                    self._put_state(target, old, None, is_there=is_there)
                is_there = False
            if lane_of(key_text(key), target.seed, lanes) == own:
                row = None
                if kind == INSERT:
                    row = decode.insert(data)[1]
                elif kind == UPDATE:
                    row = decode.update(data)[2]
                self._put_state(target, key, row, is_there=is_there)
            self._row = data

    def _add_ordered(self, rows: _InOrder, reader: Reader) -> None:
        target, decode = reader.target, reader.decoded
        is_known = self._is_known and target.shape.tells_missing
        for kind, data in rows:
            tells = is_known and data != self._row
            self._row = b"" if kind == INSERT else data
            if kind == INSERT:
                self._put_item(target, RunKind.WRITE, decode.insert(data)[1])
            elif kind == UPDATE:
                old, key, row = decode.update(data)
                if old != key:
                    self._put_item(target, RunKind.DELETE, key_text(old), is_there=tells)
                is_there = tells and old == key
                self._put_item(target, RunKind.WRITE, row, is_there=is_there)
            else:
                key = decode.delete(data)
                self._put_item(target, RunKind.DELETE, key_text(key), is_there=tells)

    def _add_singles(self, rows: _InOrder, reader: Reader) -> None:
        target, decode = reader.target, reader.decoded
        for kind, data in rows:
            if kind == INSERT:
                self._put_item(target, RunKind.WRITE, decode.insert(data)[1])
                self._row = b""
            elif data != self._row:  # with its hidden id: a row that equals it is another
                self._row = data
                self._put_item(target, RunKind.SINGLE, reader.statement(kind, data))

    def _add_original(self, rows: _InOrder, reader: Reader) -> None:
        for kind, data in rows:
            for statement in reader.original_statements(kind, data):
                self._put_item(reader.target, RunKind.SINGLE, statement)

    def _put_state(self, target: Target, key: Key, row: bytes | None, *, is_there: bool) -> None:
        lane = target.seed % self._lanes
        if target.by_key:
            lane = lane_of(key_text(key), target.seed, self._lanes)
        if self._is_catching_up and self._is_applied(lane):
            return
        part = self._open[lane]
        if part.last is not self._adding:
            self._enter(part)
        states = part.merged.setdefault(target, {})
        before = part.before.setdefault(target, [])
        if is_there and key not in states:
            before.append(key)
        states[key] = row
        part.changes += 1
        part.size_bytes += 24 if row is None else len(row)

    def _put_item(
        self, target: Target, kind: RunKind, item: bytes, *, is_there: bool = False
    ) -> None:
        lane = target.seed % self._lanes
        if self._is_catching_up and self._is_applied(lane):
            return
        part = self._open[lane]
        if part.last is not self._adding:
            self._enter(part)
        runs = part.runs.setdefault(target, [])
        if not runs or runs[-1][0] is not kind:
            runs.append((kind, [], bytearray()))
        runs[-1][1].append(item)
        runs[-1][2].append(is_there)
        part.changes += 1
        part.size_bytes += len(item)

    def _enter(self, part: Part) -> None:
        """The transaction's first change in this part."""
        dml = self._adding
        assert dml is not None
        if part.last is None:
            part.first_ts = dml.commit_ts
        part.last = dml
        part.txns.append(dml)
        if not self._is_counted:
            self._is_counted = True
            part.txn_count += 1

    def _is_applied(self, lane: int) -> bool:
        """Whether the lane had the next change of this transaction before the restart."""
        assert self._adding is not None
        stored, commit_ts = self._stored[lane], self._adding.commit_ts
        if commit_ts <= stored.whole_ts:
            return True
        if commit_ts > stored.commit_ts:
            return False
        done = self._before[lane] + self._open[lane].changes
        if done < stored.piece:
            self._before[lane] += 1
            return True
        return False

    def _is_above_cut(self, part: Part) -> bool:
        limits = self._limits
        return part.changes >= limits.cut_changes_max or part.size_bytes >= limits.cut_bytes_max


_Rows = tuple[Iterator[bytes], Iterator[bytes], Iterator[bytes]]
"""What remains of a mutation: rows inserted, updated and deleted."""
_InOrder = Iterator[tuple[int, bytes]]


def _in_order(sequence: bytes, rows: _Rows) -> _InOrder:
    """Kind and bytes of the next rows."""
    inserted, updated, deleted = rows
    for kind in sequence:
        yield kind, next(inserted if kind == INSERT else updated if kind == UPDATE else deleted)


def size_of(mutation: Mutation) -> int:
    """Bytes of all its rows."""
    if len(mutation.sequence) == 1:  # most are so
        return len((mutation.inserted or mutation.updated or mutation.deleted)[0])
    size = 0
    for rows in (mutation.inserted, mutation.updated, mutation.deleted):
        if isinstance(rows, RowSlices):
            size += rows.size_bytes
        elif rows:
            size += sum(map(len, rows))
    return size
