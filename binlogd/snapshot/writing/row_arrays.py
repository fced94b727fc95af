"""Rows of one table into Arrow, column by column instead of row by row.

Invariant. The arrays hold what `RowSpans.decode` and `ArrowColumn.build` give for each row. Why it
holds. Where a datum begins is found for all rows at once; then each column has a way for all of its
datums, or the reader of its type for each. A row in another form than TiDB's, one with a column of
a coming schema, and every row of a table that has stand-ins goes through `RowSpans.decode`. A way
takes datums of the flag that TiDB writes for the type and of values that lose nothing; one other
among them, and it gives None for all, which says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from binlogd.errors import CorruptRow
from binlogd.snapshot.formats.columns import ArrowColumn
from binlogd.snapshot.log.datums import (
    Columns,
    Longs,
    Mask,
    RowSpans,
    columns,
    datum_ends,
    signed,
    stretches,
    uvarints,
)
from binlogd.snapshot.log.rowkey import HandleKind
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.tidb.columns import Reader, Value, reader_of
from binlogd.tidb.datum import Flag
from binlogd.tidb.decimals import digit_groups
from binlogd.tidb.kinds import Tp
from binlogd.tidb.layout import INTEGER_TYPES, Form, form_of
from binlogd.tidb.model import Column
from binlogd.tidb.row import RowDecoder

Way = Callable[[RowSpans, Longs], pa.Array | None]
"""From rows, and where the datum of each begins."""

_NIL = Flag.NIL.value
_SIGN = np.uint64(1 << 63)
_DAY_US = 86_400_000_000
_INT64_DIGITS = 18
"""Digits of which every number fits in 64 bits."""


def way_of(column: ArrowColumn) -> Way | None:
    """The way of a column, if there is one for its type and what it becomes."""
    form = form_of(column.column)
    find = None if form is None else _WAYS.get(form)
    return None if find is None else find(column.column, column.type)


def _way_of_unsigned(column: Column, type_: pa.DataType) -> Way | None:
    tp = column.field_type.tp
    if tp == Tp.ENUM:
        return _labels(column.field_type.elems)
    is_of = types.is_decimal if tp == Tp.LONGLONG else types.is_integer
    is_kept = tp in INTEGER_TYPES and is_of(type_)
    return _integers(type_, is_unsigned=True) if is_kept else None


def _way_of_datetime(column: Column, type_: pa.DataType) -> Way | None:
    is_kept = types.is_timestamp(type_) or types.is_date32(type_)
    return _moments(type_, max(column.field_type.decimal, 0)) if is_kept else None


_WAYS: dict[Form, Callable[[Column, pa.DataType], Way | None]] = {
    Form.SIGNED: lambda _, to: _integers(to, is_unsigned=False) if types.is_integer(to) else None,
    Form.UNSIGNED: _way_of_unsigned,
    Form.BYTES: lambda _, to: _texts(to) if types.is_string(to) or types.is_binary(to) else None,
    Form.FLOAT: lambda _, type_: _floats(type_),
    Form.DECIMAL: lambda _, to: _decimals(to) if types.is_decimal(to) else None,
    Form.DATE: _way_of_datetime,
    Form.DATETIME: _way_of_datetime,
}


def _of_flag(rows: RowSpans, at: Longs, flag: Flag) -> Mask | None:
    """Which datums are NULL, if all others are of this flag."""
    flags = rows.data[at]
    is_null: Mask = flags == _NIL
    return is_null if (is_null | (flags == flag)).all() else None


def _uvarints_of(
    rows: RowSpans, at: Longs, flag: Flag
) -> tuple[npt.NDArray[np.uint64], Mask] | None:
    """The numbers of datums that are all of this flag, or NULL; and which of them are NULL."""
    is_null = _of_flag(rows, at, flag)
    if is_null is None:
        return None
    values, ends = uvarints(rows.data, at + 1)
    return None if (ends < 0).any() else (values, is_null)


def _integers(type_: pa.DataType, *, is_unsigned: bool) -> Way:
    flag = Flag.UVARINT if is_unsigned else Flag.VARINT

    def way(rows: RowSpans, at: Longs) -> pa.Array | None:
        found = _uvarints_of(rows, at, flag)
        if found is None:
            return None
        values, is_null = found
        try:
            return pa.array(values if is_unsigned else signed(values), mask=is_null).cast(type_)
        except pa.ArrowInvalid:
            return None

    return way


def _labels(elems: tuple[str, ...]) -> Way:
    labels = pa.array(["", *elems], pa.string())

    def way(rows: RowSpans, at: Longs) -> pa.Array | None:
        found = _uvarints_of(rows, at, Flag.UVARINT)
        if found is None:
            return None
        values, is_null = found
        values[is_null] = 0
        if values.max(initial=0) > len(elems):
            return None
        return labels.take(pa.array(values, mask=is_null))

    return way


def _texts(type_: pa.DataType) -> Way:
    def way(rows: RowSpans, at: Longs) -> pa.Array | None:
        is_null = _of_flag(rows, at, Flag.COMPACT_BYTES)
        if is_null is None:
            return None
        sizes, begins = uvarints(rows.data, at + 1)
        begins = np.where(is_null, at, begins)
        ends = begins + np.where(is_null, 0, (sizes >> np.uint64(1)).view(np.int64))
        found = stretches(rows, begins, ends, is_null)
        try:
            return found.cast(type_)
        except pa.ArrowInvalid:
            return None

    return way


def _floats(type_: pa.DataType) -> Way:
    def way(rows: RowSpans, at: Longs) -> pa.Array | None:
        is_null = _of_flag(rows, at, Flag.FLOAT)
        if is_null is None:
            return None
        bits = _bytes_at(rows, at + 1, 8).view(">u8").astype(np.uint64).ravel()
        bits = np.where(bits & _SIGN, bits ^ _SIGN, ~bits)
        values = bits.view(np.float64)
        if not (np.isfinite(values) | is_null).all():
            return None
        return pa.array(np.where(is_null, 0.0, values), mask=is_null).cast(type_)

    return way


def _bytes_at(rows: RowSpans, at: Longs, size: int) -> npt.NDArray[np.uint8]:
    """So many bytes of each, row by row; what is NULL at the very end reads what is behind."""
    return np.ascontiguousarray(rows.data[at[:, None] + np.arange(size)])


# --- decimals ------------------------------------------------------------------------------


def _decimals(type_: pa.Decimal128Type) -> Way:
    def way(rows: RowSpans, at: Longs) -> pa.Array | None:
        is_null = _of_flag(rows, at, Flag.DECIMAL)
        if is_null is None or is_null.all():
            return None
        first = int(at[np.argmin(is_null)])
        precision, scale = rows.raw[first + 1], rows.raw[first + 2]
        is_alike = (rows.data[at + 1] == precision) & (rows.data[at + 2] == scale)
        is_small = precision <= min(_INT64_DIGITS, type_.precision)
        if not (is_alike | is_null).all() or scale != type_.scale or not is_small:
            return None
        unscaled = _unscaled(rows, np.where(is_null, first, at) + 3, precision, scale)
        return None if unscaled is None else _decimal_array(unscaled, is_null, type_)

    return way


def _unscaled(rows: RowSpans, at: Longs, precision: int, scale: int) -> Longs | None:
    """Decimals of up to 18 digits as integers; None where a group of digits has too many."""
    groups = digit_groups(precision, scale)
    body = _bytes_at(rows, at, sum(size for size, _ in groups))
    is_negative = body[:, 0] < 0x80
    body[:, 0] ^= 0x80
    body[is_negative] ^= 0xFF
    found = np.zeros(len(at), np.int64)
    begin = 0
    for size, limit in groups:
        group = np.zeros(len(at), np.int64)
        for place in range(begin, begin + size):
            group = group << 8 | body[:, place]
        if (group >= limit).any():
            return None
        found = found * limit + group
        begin += size
    return np.where(is_negative, -found, found)


def _decimal_array(unscaled: Longs, is_null: Mask, type_: pa.Decimal128Type) -> pa.Array:
    words = np.empty((len(unscaled), 2), np.int64)
    words[:, 0], words[:, 1] = unscaled, unscaled >> 63
    found = pa.Array.from_buffers(type_, len(unscaled), [None, pa.py_buffer(words)])
    return pc.if_else(pa.array(is_null), pa.scalar(None, type_), found) if is_null.any() else found


# --- dates and times -----------------------------------------------------------------------


def _moments(type_: pa.DataType, fsp: int) -> Way:
    def way(rows: RowSpans, at: Longs) -> pa.Array | None:
        found = _uvarints_of(rows, at, Flag.UVARINT)
        if found is None:
            return None
        is_null, packed = found[1], np.where(found[1], _EPOCH, found[0])
        days, is_right = _days(packed >> np.uint64(41))
        micros, is_time = _clock((packed & np.uint64((1 << 41) - 1)).view(np.int64), fsp)
        if not (is_right & is_time).all():
            return None
        if types.is_date32(type_):
            return pa.array(days.astype(np.int32), mask=is_null).view(type_)
        return pa.array(days * _DAY_US + micros, mask=is_null).view(type_)

    return way


_EPOCH = np.uint64(((1970 * 13 + 1) << 5 | 1) << 41)
"""1970-01-01 as TiDB packs it."""


def _days(ymd: npt.NDArray[np.uint64]) -> tuple[Longs, Mask]:
    """Days since 1970, and which dates the calendar has, from the year 1 on."""
    months, day = (ymd >> np.uint64(5)).view(np.int64), (ymd & np.uint64(31)).view(np.int64)
    year, month = months // 13, months % 13
    is_right = (year >= 1) & (year <= 9999) & (month >= 1) & (day >= 1)
    number = np.where(is_right, (year - 1970) * 12 + month - 1, 0)
    first, behind = _first_days(number), _first_days(number + 1)
    is_right &= first + day <= behind
    return first + day - 1, is_right


def _first_days(months: Longs) -> Longs:
    """The first day of months since 1970."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _clock(packed: Longs, fsp: int) -> tuple[Longs, Mask]:
    """Microseconds of a day with so many digits of a fraction, and which are times of day."""
    hour, minute, second = packed >> 36, packed >> 30 & 63, packed >> 24 & 63
    fraction = packed & 0xFFFFFF
    is_right = (hour < 24) & (minute < 60) & (second < 60) & (fraction < 1_000_000)
    fraction -= fraction % 10 ** (6 - fsp)
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction, is_right


_NOWHERE = -1


class _Column(NamedTuple):
    out: ArrowColumn
    way: Way | None
    reader: Reader


class RowArrays:
    """The columns of one table."""

    def __init__(
        self,
        plan: TablePlan,
        columns_of: Sequence[ArrowColumn],
        decoder: Callable[[int], RowDecoder],
    ) -> None:
        self._handle = plan.handle
        self._columns = [_Column(each, way_of(each), reader_of(each.column)) for each in columns_of]
        self._decoder = decoder

    def arrays(
        self, rows: pa.Array, versions: Longs, losses: Sequence[Counter[str]]
    ) -> list[pa.Array]:
        """The columns of rows that are in the form of inserted rows. Counts what is lost.

        Raises CorruptRow.
        """
        many = RowSpans.of(rows)
        at, handles = self._behind_handle(many)
        found = columns(many, at)
        is_slow = found.is_slow | (at < 0) | (at >= many.ends)  # one without columns says so
        numbers = dict(zip(np.unique(versions).tolist(), range(len(versions)), strict=False))
        decoders = {version: self._decoder(version) for version in numbers}
        for each in {each for decoder in decoders.values() for each in decoder.aliases}:
            is_slow |= (found.ids == each).any(axis=0)
        starts = [self._starts(found, handles, each.out.column.id) for each in self._columns]
        for _, is_twice in starts:
            is_slow |= is_twice
        slow = {
            number: decoders[versions[number].item()].insert(rows[number].as_py())
            for number in np.flatnonzero(is_slow).tolist()
        }
        of = _Of(many, versions, decoders, slow, is_slow)
        return [
            _array(column, start, of, lost)
            for column, (start, _), lost in zip(self._columns, starts, losses, strict=True)
        ]

    def _behind_handle(self, many: RowSpans) -> tuple[Longs, dict[int, Longs]]:
        """Where the columns of each row begin, and where whole key columns are in its handle."""
        at, handles = many.begins, {}
        for column_id in self._handle.column_ids:
            handles[column_id] = at
            at = datum_ends(many, at, many.ends)
        return at, handles

    def _starts(
        self, found: Columns, handles: Mapping[int, Longs], column_id: int
    ) -> tuple[Longs, Mask]:
        """Where the datum of a column is in each row, -1 for nowhere; and which have it twice."""
        is_here = (found.ids == column_id) & (found.begins >= 0)
        start = np.where(is_here, found.begins, _NOWHERE).max(axis=0, initial=_NOWHERE)
        if column_id in handles and self._handle.kind is not HandleKind.HIDDEN:
            start = np.where(start < 0, handles[column_id], start)
        return start, is_here.sum(axis=0) > 1


class _Of(NamedTuple):
    """What a chunk of rows is made of."""

    many: RowSpans
    versions: Longs
    decoders: Mapping[int, RowDecoder]
    slow: Mapping[int, Mapping[int, Value]]
    is_slow: Mask


def _array(column: _Column, start: Longs, of: _Of, losses: Counter[str]) -> pa.Array:
    """One column: of rows that have it, that lack it, and that the slow path reads."""
    is_there = (start >= 0) & ~of.is_slow
    parts = [_of_datums(column, of.many, start[is_there], losses)]
    if is_there.all():
        return parts[0]
    places = [np.flatnonzero(is_there)]
    column_id = column.out.column.id
    is_lacking = ~is_there & ~of.is_slow
    for version, decoder in of.decoders.items():
        lacking = np.flatnonzero(is_lacking & (of.versions == version))
        if len(lacking):
            value = decoder.defaults([column_id])[column_id]
            parts.append(column.out.build([value] * len(lacking), losses))
            places.append(lacking)
    if of.slow:
        parts.append(column.out.build([each[column_id] for each in of.slow.values()], losses))
        places.append(np.fromiter(of.slow, np.int64, len(of.slow)))
    order = np.empty(len(start), np.int64)
    order[np.concatenate(places)] = np.arange(len(start))
    return pa.concat_arrays(parts).take(pa.array(order))


def _of_datums(column: _Column, many: RowSpans, at: Longs, losses: Counter[str]) -> pa.Array:
    array = column.way(many, at) if column.way is not None else None
    if array is not None:
        return array
    read, raw = column.reader, many.raw
    try:
        values = [read(raw, each)[0] for each in at.tolist()]
    except IndexError as error:
        raise CorruptRow("a row is cut") from error
    return column.out.build(values, losses)
