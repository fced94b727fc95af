"""Numbers of the log for many records at once, by numpy.

Everything is told by positions in one array of bytes. It must have `PADDING` bytes behind the last
one that counts, so that a number that is cut is read as a wrong one instead of failing. Keys of row
changes in Arrow are told as numbers too: equal where the keys are, and in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.snapshot.log.rowkey import NUMBER_BYTES

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
