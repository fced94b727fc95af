"""The keys of row changes in Arrow, as numbers: equal where the keys are, and in their order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.snapshot.log.vectors import Longs, Mask

KEY_BYTES = 8
"""Of a key that is a number."""


def ranks(keys: pa.Array) -> npt.NDArray[np.uint64] | Longs:
    """Numbers that are in the order of the keys, equal where those are."""
    if np.all(key_lengths(keys) == KEY_BYTES):
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
