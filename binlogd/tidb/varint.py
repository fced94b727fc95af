"""LEB128: the numbers of TiDB's rows, of its JSON and of protobuf.

Written here alone. Read here, by `wire.fields` (which says what is wrong in the words of Go's
decoder, and cuts to 64 bits as it does) and by `snapshot.log.datums` (many at once); where a call
for each number would be felt, the one or two bytes of a small one are read in place. One test holds
all of them to the same numbers. Source: encoding/binary of Go, varint.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from binlogd.errors import CorruptRow

if TYPE_CHECKING:
    from mypy_extensions import i64

UINT64_MASK = (1 << 64) - 1


def read_uvarint(data: bytes, at: i64) -> tuple[int, i64]:
    """An unsigned number of at most 64 bits, and the offset behind it. Raises CorruptRow beyond,
    IndexError at the end."""
    value: i64 = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift: i64 = 7
    while shift < 63:
        byte: i64 = data[at]
        at += 1
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
        shift += 7
    last = data[at]
    if last > 1:
        raise CorruptRow("a varint has more than 64 bits")
    low: int = value
    return low | last << 63, at + 1


def read_varint(data: bytes, at: i64) -> tuple[int, i64]:
    """A zig-zag number: a signed integer of 64 bits."""
    raw, at = read_uvarint(data, at)
    return (raw >> 1) ^ -(raw & 1), at


def skip_varint(data: bytes, at: i64) -> i64:
    """The offset behind a number of either kind. Raises CorruptRow beyond 64 bits."""
    end: i64 = at
    while data[end] > 0x7F:
        end += 1
    if end - at > 8 and (end - at > 9 or data[end] > 1):
        raise CorruptRow("a varint has more than 64 bits")
    return end + 1


def uvarint(value: int) -> bytes:
    """An unsigned integer of 64 bits; a negative one takes ten bytes, as protobuf's int64 does."""
    if 0 <= value < _SHORT_MAX:
        return _SHORT[value]
    if 1 << 56 <= value < 1 << 62:
        return _nine_bytes(value)  # a timestamp of TiDB
    value &= UINT64_MASK
    body = bytearray()
    while value > 0x7F:
        body.append(value & 0x7F | 0x80)
        value >>= 7
    body.append(value)
    return bytes(body)


def bytes_field(tag: bytes, content: bytes) -> bytes:
    """A field of protobuf that holds bytes, a text or a message."""
    return tag + uvarint(len(content)) + content


def _nine_bytes(value: i64) -> bytes:
    first_seven = (
        value & 0x7F
        | (value & 0x7F << 7) << 1
        | (value & 0x7F << 14) << 2
        | (value & 0x7F << 21) << 3
        | (value & 0x7F << 28) << 4
        | (value & 0x7F << 35) << 5
        | (value & 0x7F << 42) << 6
    )
    number: int = first_seven | 0x80808080808080
    return number.to_bytes(7, "little") + _SHORT[value >> 49]


def varint(value: int) -> bytes:
    """The zig-zag form of a signed integer of 64 bits."""
    return uvarint((value << 1) ^ (value >> 63))


_SHORT_MAX: Final = 1 << 13
_SHORT: Final = [
    bytes((each,)) if each < 0x80 else bytes((each & 0x7F | 0x80, each >> 7))
    for each in range(_SHORT_MAX)
]
"""The numbers of one byte and the small ones of two, which are most."""
