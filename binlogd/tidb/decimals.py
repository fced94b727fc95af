"""DECIMAL between its binary form and exact text.

Digits stand in groups of nine (four bytes each), the partial groups outermost; a negative number
has every bit inverted, then the top bit is flipped, so that the bytes compare like the numbers.
Source: pingcap/tidb types/mydecimal.go (ToBin, FromBin), util/codec/decimal.go.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from binlogd.errors import CorruptRow

PRECISION_MAX = 65
"""Digits of a DECIMAL."""
SCALE_MAX = 30
"""Digits of a DECIMAL behind the point."""
_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes that so many digits take."""


class _Layout(NamedTuple):
    size: int
    inverted: int
    """All bits of the body set."""
    sign: int
    """The top bit of the body."""
    groups: tuple[tuple[int, int, int], ...]
    """(bits to shift down, mask, 10 ** digits) of each group, most significant first."""


@lru_cache(maxsize=PRECISION_MAX * (SCALE_MAX + 1))
def _layout(precision: int, scale: int) -> _Layout:
    if not 1 <= precision <= PRECISION_MAX or scale > min(precision, SCALE_MAX):
        raise CorruptRow(f"DECIMAL({precision},{scale}) does not exist")
    groups, size = [], 0
    for taken, limit in reversed(digit_groups(precision, scale)):
        groups.append((8 * size, (1 << 8 * taken) - 1, limit))
        size += taken
    return _Layout(size, (1 << 8 * size) - 1, 1 << 8 * size - 1, tuple(reversed(groups)))


def digit_groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """Bytes of each group of digits, and what its number is below, most significant first."""
    whole = precision - scale
    digits = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    return [(_GROUP_BYTES[each], 10**each) for each in digits if each]


def decimal_size(precision: int, scale: int) -> int:
    """Bytes of the digits of a DECIMAL. Raises CorruptRow where there is no such type."""
    return _layout(precision, scale).size


def read_decimal(data: bytes, at: int) -> tuple[str, int]:
    """The text of a decimal that starts with its precision and scale, and the offset behind it.

    Text has a digit before the point at least and as many behind it as the scale says; zero has
    no sign. Raises CorruptRow, or IndexError at the end of the data.
    """
    scale = data[at + 1]
    size, inverted, sign, groups = _layout(data[at], scale)
    at += 2
    end = at + size
    if end > len(data):
        raise CorruptRow(f"a decimal of {size} bytes at offset {at} of {len(data)}")
    body = int.from_bytes(data[at:end], "big")
    is_negative = not body & sign
    body ^= sign ^ inverted if is_negative else sign
    unscaled = 0
    for shift, mask, limit in groups:
        group = body >> shift & mask
        if group >= limit:
            raise CorruptRow(f"a decimal at offset {at} has a group of {group}")
        unscaled = unscaled * limit + group
    text = str(unscaled)
    if scale:
        if len(text) <= scale:
            text = text.zfill(scale + 1)
        text = f"{text[:-scale]}.{text[-scale:]}"
    return ("-" + text if is_negative and unscaled else text), end


def decimal_bytes(text: str, precision: int, scale: int) -> bytes:
    """The binary form of a decimal with its precision and scale in front.

    Digits behind the scale are cut off, as TiDB does (its values have been rounded before).
    Raises ValueError for what is no plain decimal text or does not fit.
    """
    size, inverted, sign, groups = _layout(precision, scale)
    is_negative = text.startswith("-")
    whole, _, fraction = text.removeprefix("-").removeprefix("+").partition(".")
    unscaled = int((whole or "0") + fraction[:scale].ljust(scale, "0"))
    if unscaled >= 10**precision:
        raise ValueError(f"{text} does not fit in DECIMAL({precision},{scale})")
    body, rest = 0, unscaled
    for shift, _, limit in reversed(groups):
        rest, group = divmod(rest, limit)
        body |= group << shift
    if is_negative and unscaled:
        body ^= inverted
    return bytes((precision, scale)) + (body ^ sign).to_bytes(size, "big")
