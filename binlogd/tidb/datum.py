"""TiDB's datums: one flag byte, then a body. Rows, handles and keys are made of them.

A read takes bytes and an offset and gives the value and the offset behind it. Reads past the end
raise IndexError where that costs nothing to leave to Python, otherwise CorruptRow; `RowDecoder`
turns both into CorruptRow.
Source: pingcap/tidb util/codec/{codec,number,bytes,float,decimal}.go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from binlogd.errors import CorruptRow
from binlogd.tidb.decimals import decimal_size, read_decimal
from binlogd.tidb.jsonb import json_end
from binlogd.tidb.varint import UINT64_MASK, read_uvarint, read_varint, skip_varint, uvarint

if TYPE_CHECKING:
    from mypy_extensions import i64

# the flags of what rows are full of, for code that compares them byte by byte
NIL: Final = 0
COMPACT: Final = 2
FLOAT: Final = 5
DECIMAL: Final = 6
VARINT: Final = 8
UVARINT: Final = 9
JSON: Final = 10


class Flag(IntEnum):
    """The first byte of a datum."""

    NIL = 0
    BYTES = 1
    COMPACT_BYTES = 2
    INT = 3
    UINT = 4
    FLOAT = 5
    DECIMAL = 6
    DURATION = 7
    VARINT = 8
    UVARINT = 9
    JSON = 10
    VECTOR = 20


FIXED_BODY: dict[int, int] = {
    Flag.NIL: 0,
    Flag.INT: 8,
    Flag.UINT: 8,
    Flag.FLOAT: 8,
    Flag.DURATION: 8,
}
"""Bytes behind the flags whose datums are of one size."""
Natural = int | float | str | bytes | None
"""A datum without its column: integers and durations (ns) as int, DECIMAL as text, JSON as its
binary form (type code and body)."""

SIGN_BIT = 1 << 63
GROUP = 8
"""Bytes in a group of the memcomparable form."""

_UINT64 = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")


def as_signed(value: int) -> int:
    """The 64 bits of `value` read as a signed integer."""
    return ((value & UINT64_MASK) ^ SIGN_BIT) - SIGN_BIT


# --- bytes -----------------------------------------------------------------------------


def read_compact_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes behind a *signed* varint length."""
    length, at = read_varint(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise CorruptRow(f"bytes of length {length} at offset {at} of {len(data)}")
    return data[at:end], end


def text_end(data: bytes, at: i64) -> i64:
    """The offset behind what `read_compact_bytes` reads, which may be beyond the data."""
    size: i64 = data[at]
    if size > 0x7F:
        long, at = read_uvarint(data, at)
        if long >> 32:
            raise CorruptRow(f"bytes of length {long >> 1} at offset {at} of {len(data)}")
        size = long
        at -= 1
    if size & 1:
        raise CorruptRow(f"bytes of length {-(size >> 1) - 1} at offset {at} of {len(data)}")
    return at + 1 + (size >> 1)


def compact_bytes(value: bytes) -> bytes:
    """Bytes with their length in front, as a signed varint."""
    return uvarint(len(value) << 1) + value


def read_memcomparable(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes in groups of eight, each followed by 0xFF minus the number of its pad bytes."""
    groups: list[bytes] = []
    while True:  # ends at a group with pad bytes, or with IndexError at the end
        marker = data[at + GROUP]
        used = marker - (0xFF - GROUP)
        group = data[at : at + GROUP]
        at += GROUP + 1
        if used == GROUP:
            groups.append(group)
            continue
        if used < 0 or any(group[used:]):
            raise CorruptRow(f"memcomparable group ends with marker {marker:#04x}")
        groups.append(group[:used])
        return b"".join(groups), at


def memcomparable(value: bytes) -> bytes:
    """The form of bytes that compares like the bytes, also with more behind it."""
    parts: list[bytes] = []
    for start in range(0, len(value) + 1, GROUP):
        group = value[start : start + GROUP]
        pads = GROUP - len(group)
        parts.append(group + bytes(pads) + bytes((0xFF - pads,)))
    return b"".join(parts)


# --- fixed width -----------------------------------------------------------------------


def _eight(data: bytes, at: int) -> int:
    if at + 8 > len(data):
        raise CorruptRow(f"eight bytes wanted at offset {at} of {len(data)}")
    value: int = _UINT64.unpack_from(data, at)[0]
    return value


def read_comparable_int(data: bytes, at: int) -> tuple[int, int]:
    """A signed integer in eight bytes that compare like it."""
    return _eight(data, at) - SIGN_BIT, at + 8


def comparable_int(value: int) -> bytes:
    """A signed integer of 64 bits in eight bytes that compare like it."""
    return _UINT64.pack(value + SIGN_BIT)


def read_comparable_uint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned integer in eight bytes, big-endian."""
    return _eight(data, at), at + 8


def read_float(data: bytes, at: int) -> tuple[float, int]:
    """A double in eight bytes that compare like it. Raises CorruptRow for NaN and infinities."""
    bits = _eight(data, at)
    bits = bits ^ SIGN_BIT if bits & SIGN_BIT else bits ^ UINT64_MASK
    value: float = _DOUBLE.unpack(_UINT64.pack(bits))[0]
    if value - value != 0.0:
        raise CorruptRow(f"a double that is no finite number at offset {at}")
    return value, at + 8


def comparable_float(value: float) -> bytes:
    """A double in eight bytes that compare like it; minus zero becomes zero, as in TiDB."""
    bits: int = _UINT64.unpack(_DOUBLE.pack(value))[0]
    return _UINT64.pack(bits | SIGN_BIT if value >= 0 else bits ^ UINT64_MASK)


# --- datums ----------------------------------------------------------------------------


def read_datum(data: bytes, at: int) -> tuple[int, Natural, int]:
    """Any datum: its flag, its natural value and the offset behind it."""
    flag = data[at]
    reader = _READERS.get(flag)
    if reader is None:
        raise CorruptRow(f"unknown flag {flag} at offset {at}")
    value, end = reader(data, at + 1)
    return flag, value, end


def skip_datum(data: bytes, at: i64) -> i64:
    """The offset behind the datum at `at`; its body is checked for its length only. Hot."""
    flag: i64 = data[at]
    at += 1
    if flag in (VARINT, UVARINT):
        return skip_varint(data, at)
    if flag == COMPACT:
        size: i64 = data[at]
        end: i64 = text_end(data, at) if size > 0x7F or size & 1 else at + 1 + (size >> 1)
    elif flag == FLOAT:
        end = at + 8
    elif flag == DECIMAL:
        end = at + 2 + decimal_size(data[at], data[at + 1])
    else:
        return read_datum(data, at - 1)[2]
    if end > len(data):
        raise CorruptRow(f"a value at offset {at} of {len(data)} is cut")
    return end


def _read_json(data: bytes, at: int) -> tuple[bytes, int]:
    end = json_end(data, at)
    return data[at:end], end


def _read_vector(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + 4 * int.from_bytes(data[at : at + 4], "little")
    if end > len(data):
        raise CorruptRow(f"a vector at offset {at} of {len(data)} is cut")
    return data[at:end], end


_READERS: dict[int, Callable[[bytes, int], tuple[Natural, int]]] = {
    Flag.NIL: lambda _, at: (None, at),
    Flag.BYTES: read_memcomparable,
    Flag.COMPACT_BYTES: read_compact_bytes,
    Flag.INT: read_comparable_int,
    Flag.UINT: read_comparable_uint,
    Flag.FLOAT: read_float,
    Flag.DECIMAL: read_decimal,
    Flag.DURATION: read_comparable_int,
    Flag.VARINT: read_varint,
    Flag.UVARINT: read_uvarint,
    Flag.JSON: _read_json,
    Flag.VECTOR: _read_vector,
}
