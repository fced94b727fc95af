"""Numbers of the log for many records at once, by numpy.

Everything is told by positions in one array of bytes. It must have `PADDING` bytes behind the last
one that counts, so that a number that is cut is read as a wrong one instead of failing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
