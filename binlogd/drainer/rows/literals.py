"""Row bytes to key and SQL literal, by a walk along the layout that TiDB has for the table.

Invariant. Key and literal are those of the generic decoder, or the row is refused
(UNEXPECTED_LAYOUT). Why it holds. `tidb.layout` compares ids, flags and the end of the row; each
step gives what `sql.renderer` gives for the value of its column, without what stands around it,
which `_FORMATS` has.

The old half of an update gives its key only; the rest is stepped over. So does a deleted row,
whose tail behind the key is not even looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from binlogd.drainer.rows.plan import Decoders, Key, KeyColumn
from binlogd.drainer.sql import NULL, escaped, float_literal, tuple_of
from binlogd.tidb.columns import reader_of
from binlogd.tidb.decimals import read_decimal
from binlogd.tidb.kinds import UnexpectedLayout
from binlogd.tidb.layout import (
    FLAG_OF,
    DatumPlace,
    DatumStep,
    Form,
    RowLayout,
    end_of_insert,
    form_of,
    layout_of,
    skipped,
    walk,
    walk_of,
)
from binlogd.tidb.model import Column, TableAt
from binlogd.tidb.times import clock_text, day_text, fraction_text
from binlogd.tidb.varint import read_uvarint

if TYPE_CHECKING:
    from mypy_extensions import i64

_QUOTE, _BACKSLASH = 39, 92


class _Literal(DatumStep):
    """Puts a literal's inside to its place in `out`; a NULL is nothing, and noted at the end."""

    def __init__(self, place: DatumPlace, slot: int) -> None:
        super().__init__(place)
        self.slot: i64 = slot
        self.note = slot.to_bytes(_NOTE_BYTES, "big")

    def lack(self, row: bytes, at: i64, out: list[Any]) -> i64:
        if out[self.slot] is None:  # else the handle has told it
            out[self.slot] = b""
            out[-1] += self.note
        return super().lack(row, at, out)


class _Signed(_Literal):
    """An integer: a zig-zag varint, most of one to three bytes."""

    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        value: i64 = row[at]
        if value > 0x7F:
            more: i64 = row[at + 1]
            if more > 0x7F:
                last: i64 = row[at + 2]
                if last > 0x7F:
                    long, at = read_uvarint(row, at)
                    out[self.slot] = long >> 1 ^ -(long & 1)
                    return at
                value = value & 0x7F | (more & 0x7F) << 7 | last << 14
                at += 2
            else:
                value = value & 0x7F | more << 7
                at += 1
        out[self.slot] = value >> 1 ^ -(value & 1)
        return at + 1


class _Unsigned(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        value: i64 = row[at]
        if value < 0x80:
            out[self.slot] = value
            return at + 1
        long, at = read_uvarint(row, at)
        out[self.slot] = long
        return at


class _Text(_Literal):
    """As it stands: what needs an escape gets it when the row is whole."""

    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        begin: i64 = at + 1
        size: i64 = row[at]
        if size > 0x7F:
            more: i64 = row[begin]
            size = size & 0x7F | more << 7
            begin += 1
            if more > 0x7F:
                long, begin = read_uvarint(row, at)
                if long >> 32:
                    raise UnexpectedLayout
                size = long
        if size & 1:
            raise UnexpectedLayout
        end = begin + (size >> 1)
        out[self.slot] = row[begin:end]
        return end


class _Read(_Literal):
    """As the reader of the column has it."""

    def __init__(self, place: DatumPlace, slot: int) -> None:
        super().__init__(place, slot)
        assert place.column is not None, "a column's datum"
        self.read = reader_of(place.column)
        self.needs_escape = place.form is Form.JSON

    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        value, end = self.read(row, at - 1)
        if isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
            out[self.slot] = escaped(text) if self.needs_escape else text
        else:
            out[self.slot] = float_literal(value) if isinstance(value, float) else value
        return end


class _Decimal(_Literal):
    """A DECIMAL, with all its digits."""

    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        text, end = read_decimal(row, at)
        out[self.slot] = text.encode()
        return end


class _Datetime(_Literal):
    """A DATE, DATETIME or TIMESTAMP; clocks and days are kept by their bytes, as they repeat."""

    def __init__(self, place: DatumPlace, slot: int) -> None:
        super().__init__(place, slot)
        self.is_date = place.form is Form.DATE
        self.fsp: i64 = 0 if place.column is None else max(place.column.field_type.decimal, 0)

    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        if self.fsp == 0:  # most take nine bytes, in which clock and day are two pieces
            clock, days = _CLOCK_AT.get(row[at : at + 6]), _DAYS_AT.get(row[at + 6 : at + 9])
            if clock is not None and days is not None:
                day = days[row[at + 5] >> 6 & 1]
                out[self.slot] = day if self.is_date else day + clock
                return at + 9
        packed, end = read_uvarint(row, at)
        day, hms = day_text(packed >> 41).encode(), packed >> 24 & 0x1FFFF
        if self.is_date and hms:  # which no DATE has, and no reader looks at
            out[self.slot] = day
            return end
        clock = b" " + clock_text(hms).encode()
        if self.fsp > 0:
            clock += fraction_text(packed & 0xFFFFFF, self.fsp).encode()
        elif end == at + 9:
            if len(_CLOCK_AT) >= CLOCKS_KEPT_MAX:
                _CLOCK_AT.clear()
            if len(_DAYS_AT) >= DAYS_KEPT_MAX:
                _DAYS_AT.clear()
            even, odd = packed >> 42 << 1, packed >> 42 << 1 | 1
            _CLOCK_AT[row[at : at + 6]] = clock
            _DAYS_AT[row[at + 6 : end]] = day_text(even).encode(), day_text(odd).encode()
        out[self.slot] = day if self.is_date else day + clock
        return end


_CLOCK_AT: dict[bytes, bytes] = {}
"""By bytes 0 to 5 of a packed time, the last of which has the lowest bit of the day as well."""
_DAYS_AT: dict[bytes, tuple[bytes, bytes]] = {}
"""By bytes 6 to 8: the days of both values of that bit."""
CLOCKS_KEPT_MAX, DAYS_KEPT_MAX = 16_384, 4_096
"""Texts that are kept for the next row; when there are more, all are forgotten, so that the clocks
and days that rows have now are among them."""

_STEPS: dict[Form, type[_Literal]] = {
    Form.SIGNED: _Signed,
    Form.UNSIGNED: _Unsigned,
    Form.BYTES: _Text,
    Form.DECIMAL: _Decimal,
    Form.DATE: _Datetime,
    Form.DATETIME: _Datetime,
}
_FORMATS = {
    Form.SIGNED: b"%d",
    Form.UNSIGNED: b"%d",
    Form.FLOAT: b"%b",
    Form.DECIMAL: b"%b",
}
"""What stands around a literal's inside, where it is not in quotes."""
_NOTE_BYTES = 2
_FORMATS_KEPT_MAX = 256
"""Of rows with NULLs in the same columns."""


def _step(place: DatumPlace, slot: int) -> DatumStep:
    form = place.form
    return (_Read if place.flag != FLAG_OF[form] else _STEPS.get(form, _Read))(place, slot)


def _format(column: Column) -> bytes:
    form = form_of(column)
    assert form is not None, "a table with a layout"
    return _FORMATS.get(form, b"_binary'%b'" if column.is_binary else b"'%b'")


class _Rows:
    """The three decoders of one table."""

    def __init__(
        self, layout: RowLayout, columns: Sequence[Column], key: Sequence[KeyColumn]
    ) -> None:
        slots = {column.id: slot for slot, column in enumerate(columns)}
        key_ids = {each.column.id for each in key}

        def all_of(place: DatumPlace) -> DatumStep:
            return step_of(place, slots)

        def key_of(place: DatumPlace) -> DatumStep:
            return step_of(place, {each: slots[each] for each in key_ids})

        def step_of(place: DatumPlace, wanted: dict[int, int]) -> DatumStep:
            column = place.column
            if column is None or place.is_prefix or column.id not in wanted:
                return skipped(place)
            return _step(place, wanted[column.id])

        self._handle = [(each.flag, all_of(each)) for each in layout.handle]
        self._inserted = walk_of(layout.inserted, all_of)
        self._old = walk_of(layout.updated, key_of)
        self._new = walk_of(layout.updated, all_of)
        ids = [each.column.id if each.column is not None else 0 for each in layout.deleted]
        last = max((ids.index(each) + 1 for each in key_ids), default=0)
        self._deleted = walk_of(layout.deleted[:last], key_of)
        self._blank: list[Any] = [*([None] * len(columns)), b""]
        self._formats = [_format(column) for column in columns]
        self._rows: dict[bytes, bytes] = {}
        self._row = self._row_format(b"")
        texts = [each for each in columns if form_of(each) is Form.BYTES]
        self._texts = [slots[each.id] for each in texts]
        self._key = [(slots[each.column.id], each.strips_spaces) for each in key]
        self._number_slot: i64 = -1
        if len(key) == 1 and _format(key[0].column) == b"%d":
            self._number_slot = slots[key[0].column.id]

    def insert(self, row: bytes) -> tuple[Key, bytes]:
        """Key and literal of an inserted row. Raises UNEXPECTED_LAYOUT, CorruptRow."""
        out = self._blank[:]
        begin: i64 = 0
        for flag, step in self._handle:
            if row[begin] != flag:
                raise UnexpectedLayout
            begin = step.take(row, begin + 1, out)
        end_of_insert(row, begin, walk(self._inserted, row, begin, out))
        if _QUOTE in row or _BACKSLASH in row:
            self._escape(out)
        slot = self._number_slot
        key: Key = out[slot] if slot >= 0 else self._key_of(out)
        return key, (self._row_format(out[-1]) if out[-1] else self._row) % tuple(out)

    def update(self, row: bytes) -> tuple[Key, Key, bytes]:
        """Old key, new key, new literal of an updated row. Raises UNEXPECTED_LAYOUT, CorruptRow."""
        out = self._blank[:]
        at = walk(self._old, row, 0, out)
        slot = self._number_slot
        if slot >= 0:
            old: Key = out[slot]
        else:
            if _QUOTE in row or _BACKSLASH in row:
                self._escape(out)
            old = self._key_of(out)
            out = self._blank[:]
        if walk(self._new, row, at, out) != len(row):
            raise UnexpectedLayout
        if _QUOTE in row or _BACKSLASH in row:
            self._escape(out)
        key: Key = out[slot] if slot >= 0 else self._key_of(out)
        return old, key, (self._row_format(out[-1]) if out[-1] else self._row) % tuple(out)

    def delete(self, row: bytes) -> Key:
        """Key of a deleted row, read as far as the key. Raises UNEXPECTED_LAYOUT, CorruptRow."""
        out = self._blank[:]
        if walk(self._deleted, row, 0, out) > len(row):
            raise UnexpectedLayout
        if self._number_slot < 0 and (_QUOTE in row or _BACKSLASH in row):
            self._escape(out)
        return self._key_of(out)

    def _escape(self, out: list[Any]) -> None:
        for slot in self._texts:
            if out[slot] is not None:
                out[slot] = escaped(out[slot])

    def _row_format(self, notes: bytes) -> bytes:
        """The literal of a row with NULLs in the noted columns. The notes are a value too, and as
        the place of a NULL they are formatted to nothing."""
        found = self._rows.get(notes)
        if found is None:
            if len(self._rows) >= _FORMATS_KEPT_MAX:
                self._rows.clear()
            formats = self._formats[:]
            for at in range(0, len(notes), _NOTE_BYTES):
                formats[int.from_bytes(notes[at : at + _NOTE_BYTES], "big")] = NULL + b"%.0b"
            found = self._rows[notes] = b"(" + b",".join(formats) + b")%.0b"
        return found

    def _key_of(self, out: list[Any]) -> Key:
        if self._number_slot >= 0:
            number: int = out[self._number_slot]
            return number
        if not self._key:
            return 0
        parts = [
            self._formats[slot] % (out[slot].rstrip(b" ") if strips else out[slot])
            for slot, strips in self._key
        ]
        return tuple_of(parts)


def laid_out(
    table: TableAt, columns: Sequence[Column], key: Sequence[KeyColumn]
) -> Decoders | None:
    """Decoders of rows that are laid out as TiDB does for this table; None where no rows are.
    Without a key the key of every row is 0. They raise UNEXPECTED_LAYOUT, or CorruptRow."""
    assert all(each.column.not_null for each in key), "a key column may be NULL"
    layout = layout_of(table)
    if layout is None:
        return None
    rows = _Rows(layout, columns, key)
    return Decoders(rows.insert, rows.update, rows.delete)
