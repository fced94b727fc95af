"""Row bytes to key and SQL literal, by a walk along the layout that TiDB has for the table.

Invariant. Key and literal are those of the generic decoder, or the row is refused (ODD). Why it
holds. `tidb.layout` compares ids, flags and the end of the row; each step gives what `sql.renderer`
gives for the value of its column, without what stands around it, which `_FORMATS` has.

The old half of an update gives its key only; the rest is stepped over. So does a deleted row,
whose tail behind the key is not even looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from binlogd.drainer.rows.plan import Decoders, Key, KeyColumn
from binlogd.drainer.sql import NULL, escaped, float_literal, tuple_of
from binlogd.tidb.datum import read_comparable_int, read_float, read_uvarint
from binlogd.tidb.decimals import read_decimal
from binlogd.tidb.jsonb import json_end, json_text
from binlogd.tidb.kinds import OddRow
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
from binlogd.tidb.times import clock_text, day_text, duration_text, fraction_text

if TYPE_CHECKING:
    from mypy_extensions import i64

_QUOTE, _BACKSLASH = 39, 92


class _Literal(DatumStep):
    """Puts a literal's inside to its place in `out`; a NULL is None, and noted at the end."""

    def __init__(self, place: DatumPlace, slot: int) -> None:
        super().__init__(place)
        self.slot: i64 = slot
        column = place.column
        self.fsp: i64 = 0 if column is None else max(0, column.field_type.decimal)

    def lack(self, row: bytes, at: i64, out: list[Any]) -> i64:
        out[-1] = _HAS_NULL
        return super().lack(row, at, out)


class _Signed(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        value: i64 = row[at]
        if value > 0x7F:
            more: i64 = row[at + 1]
            if more > 0x7F:
                last: i64 = row[at + 2]
                if last > 0x7F:
                    long, at = _number(row, at)
                    out[self.slot] = long >> 1 ^ -(long & 1)
                    return at
                value = value & 0x7F | (more & 0x7F) << 7 | last << 14
                at += 2
            else:
                value = value & 0x7F | more << 7
                at += 1
        out[self.slot] = value >> 1 ^ -(value & 1)
        return at + 1


class _UnsignedHandle(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        long, at = _number(row, at)
        out[self.slot] = (long >> 1 ^ -(long & 1)) & 0xFFFFFFFFFFFFFFFF
        return at


class _Unsigned(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        long, at = _number(row, at)
        out[self.slot] = long
        return at


class _Text(_Literal):
    """As it stands: what needs an escape gets it when the row is whole."""

    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        size: i64 = row[at]
        at += 1
        if size > 0x7F:
            more: i64 = row[at]
            at += 1
            if more > 0x7F:
                long, behind = read_uvarint(row, at - 2)
                if long >> 32:
                    raise OddRow
                size, at = long, behind
            else:
                size = size & 0x7F | more << 7
        if size & 1:
            raise OddRow
        end = at + (size >> 1)
        out[self.slot] = row[at:end]
        return end


class _Double(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        out[self.slot] = float_literal(read_float(row, at)[0])
        return at + 8


class _Decimal(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        text, end = read_decimal(row, at)
        out[self.slot] = text.encode()
        return end


class _Moment(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        packed, at = _number(row, at)
        text = _day(packed >> 41) + _clock(packed >> 24 & 0x1FFFF)
        if self.fsp > 0:
            text += fraction_text(packed & 0xFFFFFF, self.fsp).encode()
        out[self.slot] = text
        return at


class _WholeMoment(_Moment):
    """Without a fraction; most take nine bytes."""

    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        clock, days = _CLOCK_AT.get(row[at : at + 6]), _DAYS_AT.get(row[at + 6 : at + 9])
        if clock is None or days is None:
            return self._other(row, at, out)
        out[self.slot] = days[row[at + 5] >> 6 & 1] + clock
        return at + 9

    def _other(self, row: bytes, at: i64, out: list[Any]) -> i64:
        packed, end = _number(row, at)
        day, clock = _day(packed >> 41), _clock(packed >> 24 & 0x1FFFF)
        out[self.slot] = day + clock
        if end == at + 9:
            if len(_CLOCK_AT) < _KEPT_MAX:
                _CLOCK_AT[row[at : at + 6]] = clock
            if len(_DAYS_AT) < _KEPT_MAX:
                even = packed >> 42 << 1
                _DAYS_AT[row[at + 6 : end]] = _day(even), _day(even | 1)
        return end


# The varint of a time has its fraction and the clock in bytes 0 to 5, the day behind them but for
# its lowest bit, the last of byte 5. So a time's text is found by two pieces of the row.
_CLOCK_AT: dict[bytes, bytes] = {}
_DAYS_AT: dict[bytes, tuple[bytes, bytes]] = {}


class _Date(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        packed, at = _number(row, at)
        out[self.slot] = _day(packed >> 41)
        return at


class _Duration(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        long, at = _number(row, at)
        out[self.slot] = duration_text(long >> 1 ^ -(long & 1), self.fsp).encode()
        return at


class _DurationHandle(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        nanoseconds, end = read_comparable_int(row, at)
        out[self.slot] = duration_text(nanoseconds, self.fsp).encode()
        return end


class _Json(_Literal):
    def take(self, row: bytes, at: i64, out: list[Any]) -> i64:
        end = json_end(row, at)
        out[self.slot] = escaped(json_text(row[at:end]).encode("utf-8", "surrogatepass"))
        return end


_STEPS: dict[Form, type[_Literal]] = {
    Form.SIGNED: _Signed,
    Form.UNSIGNED: _Unsigned,
    Form.BYTES: _Text,
    Form.FLOAT: _Double,
    Form.DECIMAL: _Decimal,
    Form.DATE: _Date,
    Form.MOMENT: _Moment,
    Form.DURATION: _Duration,
    Form.JSON: _Json,
}
_HANDLE_STEPS: dict[Form, type[_Literal]] = {
    Form.UNSIGNED: _UnsignedHandle,
    Form.DURATION: _DurationHandle,
}
_FORMATS = {
    Form.SIGNED: b"%d",
    Form.UNSIGNED: b"%d",
    Form.FLOAT: b"%b",
    Form.DECIMAL: b"%b",
}
"""What stands around a literal's inside, where it is not in quotes."""
_HAS_NULL = b"\0"


def _step(place: DatumPlace, slot: int) -> DatumStep:
    form = place.form
    if place.flag != FLAG_OF[form]:
        return _HANDLE_STEPS[form](place, slot)
    if form is Form.MOMENT and place.column is not None and place.column.field_type.decimal <= 0:
        return _WholeMoment(place, slot)
    return _STEPS[form](place, slot)


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
        # what notes a NULL is in the list too: no byte of it is shown
        self._row = b"(" + b",".join(self._formats) + b")%.0b"
        texts = [each for each in columns if form_of(each) is Form.BYTES]
        self._texts = [slots[each.id] for each in texts]
        self._key = [(slots[each.column.id], each.strips_spaces) for each in key]
        self._number_slot: i64 = -1
        if len(key) == 1 and _format(key[0].column) == b"%d":
            self._number_slot = slots[key[0].column.id]

    def insert(self, row: bytes) -> tuple[Key, bytes]:
        """Key and literal of an inserted row. Raises ODD, CorruptRow."""
        out = self._blank[:]
        begin: i64 = 0
        for flag, step in self._handle:
            if row[begin] != flag:
                raise OddRow
            begin = step.take(row, begin + 1, out)
        end_of_insert(row, begin, walk(self._inserted, row, begin, out))
        if _QUOTE in row or _BACKSLASH in row:
            self._escape(out)
        slot = self._number_slot
        key: Key = out[slot] if slot >= 0 else self._key_of(out)
        return key, self._literal(out) if out[-1] else self._row % tuple(out)

    def update(self, row: bytes) -> tuple[Key, Key, bytes]:
        """Old key, new key, new literal of an updated row. Raises ODD, CorruptRow."""
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
            raise OddRow
        if _QUOTE in row or _BACKSLASH in row:
            self._escape(out)
        key: Key = out[slot] if slot >= 0 else self._key_of(out)
        return old, key, self._literal(out) if out[-1] else self._row % tuple(out)

    def delete(self, row: bytes) -> Key:
        """Key of a deleted row, which is read as far as the key goes. Raises ODD, CorruptRow."""
        out = self._blank[:]
        if walk(self._deleted, row, 0, out) > len(row):
            raise OddRow
        if self._number_slot < 0 and (_QUOTE in row or _BACKSLASH in row):
            self._escape(out)
        return self._key_of(out)

    def _escape(self, out: list[Any]) -> None:
        for slot in self._texts:
            text = out[slot]
            if text is not None:
                out[slot] = escaped(text)

    def _literal(self, out: list[Any]) -> bytes:
        pairs = zip(self._formats, out, strict=False)
        parts = [NULL if value is None else form % value for form, value in pairs]
        return b"(" + b",".join(parts) + b")"

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

    Without a key the key of every row is 0. They raise ODD, or CorruptRow.
    """
    assert all(each.column.not_null for each in key), "a key column may be NULL"
    layout = layout_of(table)
    if layout is None:
        return None
    rows = _Rows(layout, columns, key)
    return Decoders(rows.insert, rows.update, rows.delete)


# --- values --------------------------------------------------------------------------------

_DAYS: dict[int, bytes] = {}
_CLOCKS: dict[int, bytes] = {}
_KEPT_MAX = 100_000
"""Texts of days and of clocks that are kept for the next row; there are 86,400 clocks."""


def _day(ymd: int) -> bytes:
    found = _DAYS.get(ymd)
    if found is None:
        if len(_DAYS) >= _KEPT_MAX:
            _DAYS.clear()
        found = _DAYS[ymd] = day_text(ymd).encode()
    return found


def _clock(hms: int) -> bytes:
    """With the blank before it."""
    found = _CLOCKS.get(hms)
    if found is None:
        found = _CLOCKS[hms] = b" " + clock_text(hms).encode()
    return found


def _number(row: bytes, at: i64) -> tuple[int, i64]:
    """An unsigned varint, and where it ends. Raises CorruptRow for one of too many bytes."""
    value: i64 = row[at]
    if value < 0x80:
        return value, at + 1
    begin = at
    value &= 0x7F
    shift: i64 = 7
    while shift < 63:
        at += 1
        byte: i64 = row[at]
        if byte < 0x80:
            return value | byte << shift, at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
    long, behind = read_uvarint(row, begin)
    return long, behind
