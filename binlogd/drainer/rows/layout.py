"""Row bytes to key and SQL literal, by walking along the layout that TiDB has for a table.

It does what the generated code of `plan` does, in a process in which this module is compiled: there
a walk over numbers is faster than Python that was written for the table, and begins at once. Run as
Python it would be slower, so nobody asks for it then.

Invariant. As in `plan`: literal and key of the generic decoder, or the row is refused (ODD).
Why it holds. Each column's id and flag are compared before its value is read, and the end of the
row must be reached; what is not read here is left to the readers that the generic decoder has.

The old half of an update gives its key only, and so does a deleted row. A clustered key of several
columns, which stands in front of a row as datums of its own, is left to the generated code.

Source: pingcap/tidb table/tables/tables.go (addInsertBinlog and its kin), util/rowcodec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from binlogd.drainer.rows.plan import (
    Decoders,
    Key,
    KeyColumn,
    has_code,
    omitted_when_null,
)
from binlogd.drainer.sql import NULL, escaped, float_literal
from binlogd.tidb.columns import INTEGER_TYPES, NUMBER_TYPES
from binlogd.tidb.datum import read_float, read_uvarint, skip_datum, varint
from binlogd.tidb.decimals import read_decimal
from binlogd.tidb.jsonb import json_end, json_text
from binlogd.tidb.kinds import STRING_TYPES, OddRow, Tp
from binlogd.tidb.model import Column, TableAt
from binlogd.tidb.times import clock_text, day_text, duration_text, fraction_text

if TYPE_CHECKING:
    from mypy_extensions import i64

_UNSIGNED, _SIGNED, _TEXT, _DOUBLE, _DECIMAL, _DATE, _MOMENT, _DURATION, _JSON = range(9)
_NOWHERE = -1
_FORMS = {
    Tp.FLOAT: (_DOUBLE, 5),
    Tp.DOUBLE: (_DOUBLE, 5),
    Tp.NEW_DECIMAL: (_DECIMAL, 6),
    Tp.DATE: (_DATE, 9),
    Tp.DATETIME: (_MOMENT, 9),
    Tp.TIMESTAMP: (_MOMENT, 9),
    Tp.DURATION: (_DURATION, 8),
    Tp.JSON: (_JSON, 10),
}
"""Form and flag of a datum."""


class _Step:
    """One column of a row: how it is found, what its value becomes, and where that goes."""

    def __init__(self, column: Column, *, is_null_if_missing: bool) -> None:
        name = b"\x08" + varint(column.id)
        self.name = name
        self.name_size: i64 = len(name)
        self.id_byte: i64 = name[1]
        self.form: i64 = _NOWHERE
        self.flag: i64 = 0
        self.form, self.flag = _form(column)
        self.fsp: i64 = max(0, column.field_type.decimal)
        self.is_nullable = not column.not_null
        self.is_null_if_missing = is_null_if_missing
        self.has_quotes = self.form not in (_DOUBLE, _DECIMAL)
        self.slot: i64 = _NOWHERE
        self.key_slot: i64 = _NOWHERE
        self.strips_spaces = False
        self.lead = b"_binary'" if column.is_binary and self.form == _TEXT else b"'"


def _form(column: Column) -> tuple[int, int]:
    tp = column.field_type.tp
    if tp in NUMBER_TYPES or (tp in INTEGER_TYPES and column.is_unsigned):
        return _UNSIGNED, 9
    if tp in INTEGER_TYPES:
        return _SIGNED, 8
    return (_TEXT, 2) if tp in STRING_TYPES else _FORMS[Tp(tp)]


class Layout:
    """The three decoders of one table."""

    def __init__(self, table: TableAt, columns: Sequence[Column], key: Sequence[KeyColumn]) -> None:
        info = table.info
        slots = {column.id: place for place, column in enumerate(columns)}
        key_slots = {each.column.id: place for place, each in enumerate(key)}
        stripped = {each.column.id for each in key if each.strips_spaces}
        omitted = omitted_when_null(table)
        handle = info.handle_column()
        self._has_hidden_id = handle is None
        self._handle: _Step | None = None
        self._is_unsigned_handle = handle is not None and handle.is_unsigned
        self._row_size = len(columns)
        self._key_size = len(key)
        self._in_rows: list[_Step] = []
        self._inserted: list[_Step] = []
        self._deleted: list[_Step] = []
        keys_left = set(key_slots)
        for column in info.columns:
            if not column.is_public:
                continue
            step = _Step(column, is_null_if_missing=column.id in omitted)
            step.slot = slots.get(column.id, _NOWHERE)
            step.key_slot = key_slots.get(column.id, _NOWHERE)
            step.strips_spaces = column.id in stripped
            if keys_left:
                self._deleted.append(step)
                keys_left.discard(column.id)
            if column.is_virtual:
                continue
            self._in_rows.append(step)
            if handle is not None and column.id == handle.id:
                self._handle = step
            else:
                self._inserted.append(step)

    def insert(self, row: bytes) -> tuple[Key, bytes]:
        """Key and literal of an inserted row. Raises ODD."""
        literals = [NULL] * self._row_size
        keys: list[Key] = [NULL] * self._key_size
        if row[0] != 8:
            raise OddRow
        at: i64 = 1
        number, at = _number(row, at)
        step = self._handle
        if step is not None:
            value = number >> 1 ^ -(number & 1)
            if self._is_unsigned_handle:
                value &= 0xFFFFFFFFFFFFFFFF
            if step.slot >= 0:
                literals[step.slot] = str(value).encode()
            if step.key_slot >= 0:
                keys[step.key_slot] = value
        begin = at
        at = _walk(self._inserted, row, at, literals, keys, may_lack=True)
        if at == begin:  # a row in which no column stands is a single NULL
            if row[at:] != b"\0":
                raise OddRow
        elif at != len(row):
            raise OddRow
        return self._key(keys), b"(" + b",".join(literals) + b")"

    def update(self, row: bytes) -> tuple[Key, Key, bytes]:
        """Old key, new key, new literal of an updated row. Raises ODD."""
        old: list[Key] = [NULL] * self._key_size
        keys: list[Key] = [NULL] * self._key_size
        literals = [NULL] * self._row_size
        at: i64 = 0
        at = self._hidden_id(row, _walk(self._in_rows, row, at, None, old))
        at = self._hidden_id(row, _walk(self._in_rows, row, at, literals, keys))
        if at != len(row):
            raise OddRow
        return self._key(old), self._key(keys), b"(" + b",".join(literals) + b")"

    def delete(self, row: bytes) -> Key:
        """Key of a deleted row, which is read as far as the key goes. Raises ODD."""
        keys: list[Key] = [NULL] * self._key_size
        at: i64 = 0
        if _walk(self._deleted, row, at, None, keys) > len(row):
            raise OddRow
        return self._key(keys)

    def _key(self, keys: list[Key]) -> Key:
        if len(keys) == 1:
            return keys[0]
        if not keys:
            return 0
        parts = [str(each).encode() if isinstance(each, int) else each for each in keys]
        return b"(" + b",".join(parts) + b")"

    def _hidden_id(self, row: bytes, at: i64) -> i64:
        """Behind the row id that ends half of an update, where the table has no handle."""
        if not self._has_hidden_id:
            return at
        if row[at] != 8 or row[at + 1] != 1 or row[at + 2] != 8:
            raise OddRow
        return _behind_number(row, at + 3)


def laid_out(
    table: TableAt, columns: Sequence[Column], key: Sequence[KeyColumn]
) -> Decoders | None:
    """As `plan.compiled`; None for a table that is left to it."""
    assert all(each.column.not_null for each in key), "a key column may be NULL"
    if table.info.is_common_handle or not has_code(table):
        return None
    layout = Layout(table, columns, key)
    return Decoders(layout.insert, layout.update, layout.delete)


# --- along a row ---------------------------------------------------------------------------


def _walk(  # noqa: C901, PLR0912 - one loop for every column of every row
    steps: list[_Step],
    row: bytes,
    at: i64,
    literals: list[bytes] | None,
    keys: list[Key],
    *,
    may_lack: bool = False,
) -> i64:
    """Reads columns from `at` on, into literals (None: those of the key alone) and keys."""
    end: i64 = len(row)
    for step in steps:
        size = step.name_size
        if at + size >= end:
            size = 0
        elif size == 2:
            if row[at] != 8 or row[at + 1] != step.id_byte:
                size = 0
        elif row[at : at + size] != step.name:
            size = 0
        is_wanted = step.key_slot >= 0 or (literals is not None and step.slot >= 0)
        if size == 0:
            if not may_lack or not step.is_null_if_missing:
                raise OddRow
            continue
        flag: i64 = row[at + size]
        at += size + 1
        if flag != step.flag:
            if flag != 0 or not step.is_nullable:
                raise OddRow
            continue
        if not is_wanted:
            at = _behind(step.form, row, at)
            continue
        if step.form <= _SIGNED:
            number, at = _number(row, at)
            if step.form == _SIGNED:
                number = number >> 1 ^ -(number & 1)
            if literals is not None and step.slot >= 0:
                literals[step.slot] = str(number).encode()
            if step.key_slot >= 0:
                keys[step.key_slot] = number
            continue
        text, at = _value(step, row, at)
        literal = step.lead + text + b"'" if step.has_quotes else text
        if literals is not None and step.slot >= 0:
            literals[step.slot] = literal
        if step.key_slot >= 0:
            keys[step.key_slot] = (
                step.lead + text.rstrip(b" ") + b"'" if step.strips_spaces else literal
            )
    return at


def _value(  # noqa: PLR0911 - one for each form
    step: _Step, row: bytes, at: i64
) -> tuple[bytes, i64]:
    """What stands in the literal of anything but an integer, and where it ends."""
    form = step.form
    if form == _TEXT:
        size, at = _size(row, at)
        return escaped(row[at : at + size]), at + size
    if form in (_MOMENT, _DATE):
        packed, at = _number(row, at)
        day = _day(packed >> 41)
        if form == _DATE:
            return day, at
        moment = day + _clock(packed >> 24 & 0x1FFFF)
        if step.fsp > 0:
            moment += fraction_text(packed & 0xFFFFFF, step.fsp).encode()
        return moment, at
    if form == _DECIMAL:
        return _decimal(row, at)
    if form == _DOUBLE:
        return float_literal(read_float(row, at)[0]), at + 8
    if form == _DURATION:
        packed, at = _number(row, at)
        return duration_text(packed >> 1 ^ -(packed & 1), step.fsp).encode(), at
    stop = json_end(row, at)
    return escaped(json_text(row[at:stop]).encode("utf-8", "surrogatepass")), stop


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


def _decimal(row: bytes, at: i64) -> tuple[bytes, i64]:
    """`read_decimal`; one of 18 digits at most without numbers of more than 64 bits."""
    precision: i64 = row[at]
    scale: i64 = row[at + 1]
    if not 0 < precision <= 18 or scale > precision:
        text, end = read_decimal(row, at)
        return text.encode(), end
    at += 2
    inverted: i64 = 0 if row[at] & 0x80 else 0xFF
    flipped: i64 = 0x80  # the top bit of the first byte
    unscaled: i64 = 0
    left: i64 = precision
    while left > 0:  # a group of nine digits at most, partial ones outermost
        digits: i64 = (left - scale) % 9 or 9 if left > scale else min(left, 9)
        group: i64 = 0
        for _ in range(_GROUP_BYTES[digits]):
            group = group << 8 | (row[at] ^ inverted ^ flipped)
            flipped = 0
            at += 1
        limit: i64 = _POWERS[digits]
        if group >= limit:
            raise OddRow
        unscaled = unscaled * limit + group
        left -= digits
    number = str(unscaled)
    if scale:
        if len(number) <= scale:
            number = number.zfill(scale + 1)
        number = number[:-scale] + "." + number[-scale:]
    return ("-" + number if inverted and unscaled else number).encode(), at


_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_POWERS = tuple(10**digits for digits in range(10))


def _behind(form: i64, row: bytes, at: i64) -> i64:
    """Where a value ends that nobody wants."""
    if form == _TEXT:
        size, at = _size(row, at)
        return at + size
    if form == _DOUBLE:
        return at + 8
    if form == _DECIMAL:
        return skip_datum(row, at - 1)
    if form == _JSON:
        return json_end(row, at)
    return _behind_number(row, at)


def _behind_number(row: bytes, at: i64) -> i64:
    while row[at] > 127:
        at += 1
    return at + 1


def _size(row: bytes, at: i64) -> tuple[i64, i64]:
    """Length of a text, and where it begins."""
    size: i64 = row[at]
    at += 1
    if size > 127:
        more: i64 = row[at]
        at += 1
        if more < 128:
            size = size & 127 | more << 7
        else:
            long, behind = read_uvarint(row, at - 2)
            if long >> 32:
                raise OddRow
            size, at = long, behind
    if size & 1:
        raise OddRow
    return size >> 1, at


def _number(row: bytes, at: i64) -> tuple[int, i64]:
    """An unsigned varint, and where it ends. Raises CorruptRow for one of too many bytes."""
    value: i64 = row[at]
    if value < 128:
        return value, at + 1
    begin = at
    value &= 127
    shift: i64 = 7
    while shift < 63:
        at += 1
        byte: i64 = row[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
        shift += 7
    long, behind = read_uvarint(row, begin)
    return long, behind
