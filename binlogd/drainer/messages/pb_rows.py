"""Row bytes to events of `pb_binlog`, by a walk along the layout that TiDB has for the table.

Invariant. An event has the bytes that `RowDecoder` and `TableEncoder` give, or the row is refused
and goes to them. Why it holds. `tidb.layout` compares ids, flags and the end of the row, and a
column that a row may lack is NULL.

What makes it quick: integers and text stand in the file as they stand in the row, flag and
all, so they are cut out and never decoded.

Source: tidb-binlog drainer/translator/pb.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from binlogd.drainer.messages.named import RowKind
from binlogd.drainer.messages.pb import NULL_DATUM
from binlogd.drainer.messages.pb_write import (
    EntryHeads,
    PairHeads,
    TableEncoder,
    changed_head,
    column_head,
    datum_of,
    event_entry,
    event_heads,
)
from binlogd.errors import CorruptRow
from binlogd.tidb.columns import Reader, reader_of
from binlogd.tidb.datum import skip_datum
from binlogd.tidb.kinds import INSERT, UPDATE, SchemaState, UnexpectedLayout
from binlogd.tidb.layout import (
    FLAG_OF,
    UNEXPECTED_LAYOUT,
    DatumPlace,
    DatumStep,
    Form,
    RowLayout,
    end_of_insert,
    layout_of,
    walk,
    walk_of,
)
from binlogd.tidb.model import TableAt
from binlogd.tidb.row import RowDecoder
from binlogd.wire.mutation import Mutation

if TYPE_CHECKING:
    from mypy_extensions import i64


class ChangeEncoder:
    """What a transaction did to one table, from row bytes to events. Keep it, like a RowDecoder."""

    def __init__(self, table: TableAt) -> None:
        self._decoder = RowDecoder(table)
        # an insert shows columns on their way in or out too, as the original does
        columns = tuple(replace(each, state=SchemaState.PUBLIC) for each in table.info.columns)
        self._insert_decoder = RowDecoder(replace(table, info=replace(table.info, columns=columns)))
        self._encoder = TableEncoder(table.database, table.info)
        self._events = row_events(table)

    def events(self, mutation: Mutation) -> Iterator[bytes]:
        """One event a row, in the order in which the rows changed. Raises CorruptRow."""
        inserted, updated = iter(mutation.inserted), iter(mutation.updated)
        deleted = iter(mutation.deleted)
        for kind in mutation.sequence:
            if kind == INSERT:
                yield self.insert(next(inserted))
            elif kind == UPDATE:
                yield self.update(next(updated))
            else:
                yield self.delete(next(deleted))

    def insert(self, row: bytes) -> bytes:
        """The event of an inserted row. Raises CorruptRow."""
        try:
            return self._walked().insert(row)
        except _REFUSED:
            return self._encoder.insert(self._insert_decoder.insert(row))

    def update(self, row: bytes) -> bytes:
        """The event of an updated row. Raises CorruptRow."""
        try:
            return self._walked().update(row)
        except _REFUSED:
            return self._encoder.update(*self._decoder.update(row))

    def delete(self, row: bytes) -> bytes:
        """The event of a deleted row. Raises CorruptRow."""
        try:
            return self._walked().delete(row)
        except _REFUSED:
            return self._encoder.delete(self._decoder.delete(row))

    def _walked(self) -> RowEvents:
        if self._events is None:
            raise UnexpectedLayout
        return self._events


class RowEvents:
    """The events of the rows of one table that are laid out as TiDB does.

    A walk puts what an event is made of into a list: what it begins with, then of each column two
    pieces, or four in an update: a head and a datum.
    """

    def __init__(self, table: TableAt, layout: RowLayout) -> None:
        columns = table.info.columns
        heads = [column_head(column) for column in columns]
        entries = [EntryHeads(head) for head in heads]
        begins = event_heads(table.database, table.info)
        slots = {column.id: slot for slot, column in enumerate(columns)}
        # a computed column is in no update
        shown = [each for each in layout.updated if each.column and not each.column.is_generated]
        places = {each.column.id: 1 + 4 * slot for slot, each in enumerate(shown) if each.column}

        def one(place: DatumPlace) -> DatumStep:
            if place.column is None or place.is_prefix:
                return DatumStep(place)
            slot = slots[place.column.id]
            return _One(place, 1 + 2 * slot, entries[slot])

        def old(place: DatumPlace) -> DatumStep:
            if place.column is None or place.column.id not in places:
                return DatumStep(place)
            return _Old(place, places[place.column.id])

        def new(place: DatumPlace) -> DatumStep:
            if place.column is None or place.column.id not in places:
                return DatumStep(place)
            pairs = PairHeads(heads[slots[place.column.id]])
            return _New(place, places[place.column.id], pairs)

        self._handle = walk_of(layout.handle, one)
        self._inserted = walk_of(layout.inserted, one)
        self._old = walk_of(layout.updated, old)
        self._new = walk_of(layout.updated, new)
        self._deleted = walk_of(layout.deleted, one)
        nulls = [piece for each in entries for piece in (each[1], NULL_DATUM)]
        self._insert = [begins[RowKind.INSERT], *nulls]
        self._update = [begins[RowKind.UPDATE], *([NULL_DATUM] * 4 * len(shown))]
        self._delete = [begins[RowKind.DELETE], *nulls]

    def insert(self, row: bytes) -> bytes:
        """The event of an inserted row. Raises UNEXPECTED_LAYOUT, CorruptRow."""
        out = self._insert[:]
        begin = walk(self._handle, row, 0, out)
        end_of_insert(row, begin, walk(self._inserted, row, begin, out))
        return event_entry(out)

    def update(self, row: bytes) -> bytes:
        """The event of an updated row. Raises UNEXPECTED_LAYOUT, CorruptRow."""
        out = self._update[:]
        if walk(self._new, row, walk(self._old, row, 0, out), out) != len(row):
            raise UnexpectedLayout
        return event_entry(out)

    def delete(self, row: bytes) -> bytes:
        """The event of a deleted row. Raises UNEXPECTED_LAYOUT, CorruptRow."""
        out = self._delete[:]
        if walk(self._deleted, row, 0, out) != len(row):
            raise UnexpectedLayout
        return event_entry(out)


def row_events(table: TableAt) -> RowEvents | None:
    """None for a table in the middle of a schema change, or of rows without a layout."""
    if table.aliases or not all(column.is_public for column in table.info.columns):
        return None
    layout = layout_of(table)
    return None if layout is None else RowEvents(table, layout)


class _Old(DatumStep):
    """Puts the datum behind its head, as the row has it where the file has the same."""

    def __init__(self, place: DatumPlace, slot: int) -> None:
        super().__init__(place)
        assert place.column is not None, "a column's datum"
        self.slot: i64 = slot
        is_same = place.form in _AS_THEY_STAND and place.flag == FLAG_OF[place.form]
        self.read: Reader | None = None if is_same else reader_of(place.column)
        self.datum = datum_of(place.column)

    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        if self.read is not None:
            return self.as_text(row, at, out)
        end = skip_datum(row, at - 1)
        self.put(row[at - 1 : end], out)
        return end

    def as_text(self, row: bytes, at: i64, out: list[Any]) -> i64:
        """A datum in the words of the file."""
        assert self.read is not None, "a column that is read"
        value, end = self.read(row, at - 1)
        self.put(self.datum(value), out)
        return end

    def put(self, datum: bytes, out: list[Any]) -> None:
        """Where it belongs."""
        out[self.slot + 1] = datum


class _One(_Old):
    """With its head."""

    def __init__(self, place: DatumPlace, slot: int, heads: EntryHeads) -> None:
        super().__init__(place, slot)
        self.heads = heads

    def put(self, datum: bytes, out: list[Any]) -> None:
        out[self.slot] = self.heads[len(datum)]
        out[self.slot + 1] = datum


class _New(_Old):
    """With the head of both, and its own."""

    def __init__(self, place: DatumPlace, slot: int, heads: PairHeads) -> None:
        super().__init__(place, slot)
        self.heads = heads

    def put(self, datum: bytes, out: list[Any]) -> None:
        slot = self.slot
        size = len(datum)
        out[slot] = self.heads[len(out[slot + 1]) << 30 | size]
        out[slot + 2] = changed_head(size)
        out[slot + 3] = datum

    def lack(self, row: bytes, at: i64, out: list[Any]) -> i64:
        self.put(NULL_DATUM, out)
        return super().lack(row, at, out)


_AS_THEY_STAND = (Form.SIGNED, Form.UNSIGNED, Form.BYTES)
_REFUSED = (*UNEXPECTED_LAYOUT, CorruptRow)
