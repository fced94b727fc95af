"""Floating-point numbers of 32 bits."""

from __future__ import annotations

import struct

_DIGITS_MIN, _DIGITS_MAX = 6, 9


def shortest_single(value: float) -> float:
    """The number with the fewest digits that is the same in 32 bits: 0.1, not 0.10000000149."""
    wanted = struct.pack("<f", value)
    for digits in range(_DIGITS_MIN, _DIGITS_MAX + 1):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == wanted:
            return short
    return value
