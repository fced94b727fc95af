"""The datums of many rows at once: where each begins and ends, column by column; and numbers of the
log for many records at once, by numpy.

Everything is told by positions in one array of bytes. It must have `PADDING` bytes behind the last
one that counts, so that a number that is cut is read as a wrong one instead of failing. Keys of row
changes in Arrow are told as numbers too: equal where the keys are, and in their order.

Invariant. What is told of a row is what `rowkey.pairs` tells; a row that is slow is left to it,
and nothing is said of it. Why it holds: a step is taken for all rows together, and only by flags
and forms that are read here; any other datum is stepped over by `datum.skip_datum`, and rows that
are cut, or not rows, or have ids in another form, are slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.errors import CorruptRow
from binlogd.snapshot.log.rowkey import NUMBER_BYTES
from binlogd.tidb.datum import COMPACT, DECIMAL, FIXED_BODY, UVARINT, VARINT, Flag, skip_datum
from binlogd.tidb.decimals import PRECISION_MAX, SCALE_MAX, decimal_size

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PADDING = 64
"""Bytes behind the data; no number has more."""
_BITS = 7
_LAST_SHIFT = 63


def padded(data: bytes) -> Bytes:
    """The bytes as an array that may be read a little beyond its end."""
    return np.frombuffer(data + bytes(PADDING), np.uint8)


def uvarints(data: Bytes, at: Longs) -> tuple[npt.NDArray[np.uint64], Longs]:
    """LEB128 numbers of at most 64 bits and where each ends; a longer one ends at -1."""
    byte = data[at]
    values = (byte & 0x7F).astype(np.uint64)
    ends = at + 1
    left = np.flatnonzero(byte > 0x7F)
    shift = _BITS
    while left.size:
        byte = data[ends[left]]
        values[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        ends[left] += 1
        if shift == _LAST_SHIFT:
            ends[left[byte > 1]] = -1
            break
        left = left[byte > 0x7F]
        shift += _BITS
    return values, ends


def signed(values: npt.NDArray[np.uint64]) -> Longs:
    """Zig-zag numbers."""
    return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64)


def offsets(lengths: npt.NDArray[Any]) -> Longs:
    """Where each of several stretches begins that lie one behind the other, and where all end."""
    found = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=found[1:])
    return found


def lengths(values: list[bytes]) -> Longs:
    """Of each."""
    return np.fromiter(map(len, values), np.int64, len(values))


# --- columns of numbers in few bytes ---------------------------------------------------------


def packed_longs(*columns: Longs) -> bytes:
    """Columns of one length whose numbers change little from one to the next: their differences,
    compressed."""
    arrays = [pa.array(np.diff(each, prepend=0)) for each in columns]
    batch = pa.RecordBatch.from_arrays(arrays, names=[str(each) for each in range(len(arrays))])
    return arrow_stream(batch, compression="zstd")


def arrow_stream(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    """An Arrow stream of one batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked_longs(data: bytes) -> list[Longs]:
    """The columns of `packed_longs`."""
    with pa.ipc.open_stream(data) as stream:
        return [np.cumsum(each.to_numpy()) for each in stream.read_next_batch().columns]


# --- keys of row changes ---------------------------------------------------------------------


def ranks(keys: pa.Array) -> npt.NDArray[np.uint64] | Longs:
    """Numbers that are in the order of the keys, equal where those are."""
    if np.all(key_lengths(keys) == NUMBER_BYTES):
        return key_numbers(keys)
    coded = keys.dictionary_encode()
    rank = np.empty(len(coded.dictionary), np.int64)
    rank[pc.array_sort_indices(coded.dictionary).to_numpy()] = np.arange(len(rank))
    found: Longs = rank[coded.indices.to_numpy()]
    return found


def key_numbers(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """Keys of eight bytes as numbers in their order."""
    begin = _offsets(keys)[0]
    data = keys.buffers()[2]
    if data is None or not len(keys):
        return np.zeros(0, np.uint64)
    return np.frombuffer(data, ">u8", len(keys), begin).astype(np.uint64)


def number_keys(numbers: npt.NDArray[np.integer]) -> pa.Array:
    """Keys of eight bytes of numbers."""
    ends = np.arange(0, NUMBER_BYTES * len(numbers) + 1, NUMBER_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(numbers.astype(">u8").tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(numbers), buffers)


def key_lengths(keys: pa.Array) -> npt.NDArray[np.int32]:
    """Bytes of each key."""
    return np.diff(_offsets(keys))


def _offsets(keys: pa.Array) -> npt.NDArray[np.int32]:
    return np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset)


def longs(changes: pa.RecordBatch, name: str) -> Longs:
    """A column of numbers."""
    found: Longs = changes.column(name).to_numpy()
    return found


def is_first(*columns: npt.NDArray[np.generic]) -> Mask:
    """Where any of some columns is not what it was in the row before."""
    found = np.ones(len(columns[0]), bool)
    found[1:] = False
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


_SELDOM = frozenset[int]({Flag.JSON, Flag.BYTES, Flag.VECTOR})
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class RowSpans:
    """Some rows in one stretch of bytes: where each begins and ends."""

    raw: bytes
    data: Bytes
    """The same, padded."""
    begins: Longs
    ends: Longs

    @classmethod
    def joined(cls, rows: list[bytes]) -> RowSpans:
        """These, one behind the other."""
        raw, places = b"".join(rows), offsets(lengths(rows))
        return cls(raw, padded(raw), places[:-1], places[1:])

    @classmethod
    def of(cls, rows: pa.Array) -> RowSpans:
        """Those of a binary array without NULLs."""
        _, places, data = rows.buffers()
        ends = np.frombuffer(places, np.int32, len(rows) + 1, 4 * rows.offset).astype(np.int64)
        raw = data[ends[0].item() : ends[-1].item()].to_pybytes() if data is not None else b""
        ends -= ends[0]
        return cls(raw, padded(raw), ends[:-1], ends[1:])

    def within(self, begins: Longs, ends: Longs) -> RowSpans:
        """Others in the same bytes."""
        return RowSpans(self.raw, self.data, begins, ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> bytes:
        return self.raw[self.begins[number] : self.ends[number]]


def stretches(rows: RowSpans, begins: Longs, ends: Longs, is_null: Mask | None = None) -> pa.Array:
    """Stretches of the bytes that follow each other, as binary values.

    What lies between two of them is a value as well, and is not taken.
    """
    size = len(begins)
    places = np.empty(2 * size, np.int32)
    places[::2], places[1::2] = begins, ends
    buffers = [None, pa.py_buffer(places), pa.py_buffer(rows.raw)]
    every = pa.Array.from_buffers(pa.binary(), max(2 * size - 1, 0), buffers)
    return every.take(pa.array(np.arange(0, 2 * size, 2), mask=is_null))


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of some rows: arrays of (the n-th pair, row), and how many pairs a row has.

    Of a slow row nothing is told.
    """

    ids: Longs
    begins: Longs
    """Where the datum is, behind its id."""
    ends: Longs
    count: Longs
    is_slow: Mask


def columns(rows: RowSpans, at: Longs) -> Columns:
    """The pairs of column id and datum from `at` on, to the end of each row."""
    data = rows.data
    size = len(rows)
    count = np.zeros(size, np.int64)
    is_slow = at > rows.ends
    is_bare = (rows.ends - at == 1) & (data[np.minimum(at, rows.ends)] == 0)
    live = np.flatnonzero(~is_slow & ~is_bare & (at < rows.ends))
    at = at.copy()
    steps: list[tuple[Longs, Longs, Longs]] = []
    while live.size:
        here = at[live]
        ids, begins = _ids(data, here)
        ends = datum_ends(rows, begins, rows.ends[live])
        is_wrong = (begins < 0) | (ends < 0)
        steps.append(
            (_spread(ids, live, size), _spread(begins, live, size), _spread(ends, live, size))
        )
        if is_wrong.any():
            is_slow[live[is_wrong]] = True
            live, ends = live[~is_wrong], ends[~is_wrong]
        count[live] += 1
        at[live] = ends
        live = live[ends < rows.ends[live]]
    if not steps:
        empty = np.zeros((0, size), np.int64)
        return Columns(empty, empty, empty, count, is_slow)
    of_ids, of_begins, of_ends = (np.stack(each) for each in zip(*steps, strict=True))
    return Columns(of_ids, of_begins, of_ends, count, is_slow)


def _spread(values: Longs, live: Longs, size: int) -> Longs:
    """Values of some rows among all of them."""
    if len(live) == size:
        return values
    found = np.full(size, _NOWHERE, np.int64)
    found[live] = values
    return found


def _ids(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """Column ids and where their datums begin, -1 where there is none in the usual form."""
    byte = data[at + 1].astype(np.int64)
    ids, begins = (byte >> 1) ^ -(byte & 1), at + 2
    long = np.flatnonzero(byte > 0x7F)
    if long.size:
        values, begins[long] = uvarints(data, at[long] + 1)
        ids[long] = signed(values)
    return ids, np.where(data[at] == VARINT, begins, _NOWHERE)


def integers(data: Bytes, at: Longs) -> tuple[npt.NDArray[np.uint64], Longs]:
    """Varint datums modulo 2^64 and where they end; -1 where there is none of that form."""
    flag = data[at]
    values, ends = uvarints(data, at + 1)
    is_signed = flag == VARINT
    if is_signed.any():
        values = np.where(is_signed, signed(values).view(np.uint64), values)
    return values, np.where(is_signed | (flag == UVARINT), ends, _NOWHERE)


def datum_ends(rows: RowSpans, at: Longs, limits: Longs) -> Longs:
    """Where datums end, -1 for one that is cut, or none. Positions before 0 are none."""
    data = rows.data
    found = np.full(len(at), _NOWHERE, np.int64)
    flags = data[np.minimum(np.maximum(at, 0), len(rows.raw))]
    for flag in np.flatnonzero(np.bincount(flags, minlength=256)).tolist():
        of_flag = np.flatnonzero(flags == flag)
        found[of_flag] = _ends_of(rows, flag, at[of_flag])
    found[(at < 0) | (found > limits)] = _NOWHERE
    return found


def _ends_of(rows: RowSpans, flag: int, at: Longs) -> Longs | int:
    if flag in FIXED_BODY:
        return at + 1 + FIXED_BODY[flag]
    if flag in _SELDOM:
        return np.array([_skipped(rows.raw, each) for each in at.tolist()], np.int64)
    find = _ENDS.get(flag)
    return _NOWHERE if find is None else find(rows.data, at)


def _ends_of_varints(data: Bytes, at: Longs) -> Longs:
    return uvarints(data, at + 1)[1]


def _ends_of_texts(data: Bytes, at: Longs) -> Longs:
    sizes, begins = uvarints(data, at + 1)
    is_wrong = (begins < 0) | (sizes & np.uint64(1) != 0) | (sizes > 2 * len(data))
    return np.where(is_wrong, _NOWHERE, begins + (sizes >> np.uint64(1)).view(np.int64))


def _ends_of_decimals(data: Bytes, at: Longs) -> Longs:
    sizes = _DECIMAL_BYTES[data[at + 1], data[at + 2]]
    return np.where(sizes < 0, _NOWHERE, at + 3 + sizes)


_ENDS = {
    VARINT: _ends_of_varints,
    UVARINT: _ends_of_varints,
    COMPACT: _ends_of_texts,
    DECIMAL: _ends_of_decimals,
}


def _skipped(raw: bytes, at: int) -> int:
    try:
        return skip_datum(raw, at)
    except (CorruptRow, IndexError):
        return _NOWHERE


def _decimal_bytes() -> npt.NDArray[np.int64]:
    """Bytes of the digits of a DECIMAL by precision and scale, -1 where there is no such type."""
    found = np.full((256, 256), _NOWHERE, np.int64)
    for precision in range(1, PRECISION_MAX + 1):
        for scale in range(min(precision, SCALE_MAX) + 1):
            found[precision, scale] = decimal_size(precision, scale)
    return found


_DECIMAL_BYTES = _decimal_bytes()
