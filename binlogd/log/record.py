"""One record of a value log, and the footer that seals a segment; the Go Pump's bytes.

    segment := record* footer?
    record  := magic u32 | length u64 | CRC-32C of the payload u32 | payload
    footer  := max_ts i64 | magic u32

All little-endian. A record has no check on its length, so a length is measured against the bytes
that are there, and against what a gRPC message can hold, before it is believed. What the
configuration allows counts when a binlog is taken, not when one is read: it may be lowered.

Source: tidb-binlog pump/storage/log.go; docs/FORMAT.md, value log.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from mmap import mmap
from typing import Final

import google_crc32c

from binlogd.log.scan import Framing, mismatch
from binlogd.log.stretch import u32
from binlogd.tso import Tso

RECORD_MAGIC: Final = 0x823A56E8
FOOTER_MAGIC = 0x123AB922
HEADER_BYTES: Final = 16
FOOTER_BYTES = 12
PAYLOAD_BYTES_MAX = (1 << 32) - 1
"""A gRPC message counts its bytes in 32 bits, so no writer ever had a longer payload."""

_checksum_of: Final = google_crc32c.value
_HEADER: Final = struct.Struct("<IQI")
_HEADER_START: Final = struct.Struct("<IQ")
_FOOTER: Final = struct.Struct("<qI")
_MAGIC_BYTES = struct.pack("<I", RECORD_MAGIC)


def header(payload: bytes) -> bytes:
    """The 16 bytes that stand before a payload."""
    return _HEADER.pack(RECORD_MAGIC, len(payload), google_crc32c.value(payload))


def header_for(length: int, checksum: int) -> bytes:
    """The same of a payload whose length and CRC-32C are known already."""
    return _HEADER.pack(RECORD_MAGIC, length, checksum)


def together(
    payloads: Sequence[bytes], begin: int, *, bytes_max: int, each_max: int
) -> tuple[bytes, int]:
    """Whole records from the payload at `begin` on, and where they end: at the first that is larger
    or makes them too many. Hot."""
    parts: list[bytes] = []
    size, at = 0, begin
    while at < len(payloads):
        payload = payloads[at]
        length = len(payload)
        size += HEADER_BYTES + length
        if length > each_max or size > bytes_max:
            break
        parts.append(header(payload))
        parts.append(payload)
        at += 1
    return b"".join(parts), at


def expected_checksum(data: bytes, at: int = 0, *, length: int) -> int | str:
    """What the CRC-32C of a payload of known length must be, or what is wrong with its header."""
    if len(data) < at + HEADER_BYTES:
        return f"the file ends after {max(0, len(data) - at)} of {HEADER_BYTES + length} bytes"
    magic, found_length, checksum = _HEADER.unpack_from(data, at)
    if magic != RECORD_MAGIC:
        return f"wrong magic {magic:08x}"
    if found_length != length:
        return f"the header says {found_length} bytes, the index {length}"
    return int(checksum)


def encode(payload: bytes) -> bytes:
    """A whole record."""
    return header(payload) + payload


def decode(data: bytes, at: int = 0, *, length: int) -> bytes | str:
    """The payload of the record at an offset whose payload length is known, or what is wrong with
    it."""
    end = at + HEADER_BYTES + length
    payload = data[at + HEADER_BYTES : end]
    if (
        end <= len(data)
        and u32(data, at) == RECORD_MAGIC
        and u32(data, at + 4) | u32(data, at + 8) << 32 == length
        and int(_checksum_of(payload)) == u32(data, at + 12)
    ):
        return payload
    if len(data) < end:
        return f"the file ends after {max(0, len(data) - at)} of {HEADER_BYTES + length} bytes"
    checksum = expected_checksum(data, at, length=length)
    return (
        checksum if isinstance(checksum, str) else mismatch(google_crc32c.value(payload), checksum)
    )


def payload_at(data: bytes | mmap, at: int) -> bytes | None:
    """The payload of the record at an offset; None where there is no whole and sound one."""
    try:
        magic, length, checksum = _HEADER.unpack_from(data, at)
    except struct.error:
        return None
    begin = at + HEADER_BYTES
    payload = data[begin : begin + length]
    is_sound = (
        magic == RECORD_MAGIC
        and len(payload) == length
        and google_crc32c.value(payload) == checksum
    )
    return payload if is_sound else None


def wrong_at(data: bytes | mmap, at: int) -> str:
    """Why there is none."""
    header = data[at : at + HEADER_BYTES]
    length = _HEADER_START.unpack_from(header)[1] if len(header) == HEADER_BYTES else 0
    wrong = decode(data[at : at + HEADER_BYTES + length], length=length)
    assert isinstance(wrong, str)
    return wrong


def strides(data: bytes | mmap, size: int, *, bytes_min: int) -> tuple[list[int], int]:
    """Where records begin that lie at least so many bytes apart, and how far records go, as their
    lengths tell: no payload is looked at."""
    bounds, at = [0], 0
    unpack = _HEADER_START.unpack_from
    while at + HEADER_BYTES <= size:
        magic, length = unpack(data, at)
        after = at + HEADER_BYTES + length
        if magic != RECORD_MAGIC or after > size:
            break
        if at - bounds[-1] >= bytes_min:
            bounds.append(at)
        at = after
    return bounds, at


def size_of(length: int) -> int:
    """What a record takes whose payload has so many bytes."""
    return HEADER_BYTES + length


def end_of(offset: int, payload: bytes) -> int:
    """Where a record ends that begins at an offset."""
    return offset + size_of(len(payload))


def without_footer(size: int) -> int:
    """How many of the last bytes of a segment may be records, if a footer is among them."""
    return max(0, size - FOOTER_BYTES)


def footer(max_ts: Tso) -> bytes:
    """The 12 bytes that seal a segment."""
    return _FOOTER.pack(max_ts, FOOTER_MAGIC)


def footer_ts(tail: bytes) -> Tso | None:
    """max_ts of a footer, or None if these are not the 12 bytes of one."""
    if len(tail) != FOOTER_BYTES:
        return None
    max_ts, magic = _FOOTER.unpack(tail)
    return Tso(max_ts) if magic == FOOTER_MAGIC else None


FRAMING = Framing(
    magic=_MAGIC_BYTES,
    head_bytes=HEADER_BYTES,
    trailer_bytes=0,
    payload_bytes_max=PAYLOAD_BYTES_MAX,
    footer_bytes=FOOTER_BYTES,
    is_footer=lambda tail: footer_ts(tail) is not None,
)


def extend(checksum: int, more: bytes) -> int:
    """The CRC-32C of what had `checksum` so far, and more behind it; that of nothing is 0."""
    return int(google_crc32c.extend(checksum, more))
