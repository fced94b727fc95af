"""The whole records that a stretch of a log begins with, in one pass made to be compiled.

What stands behind them is judged by `scan`, which has the time for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import google_crc32c

if TYPE_CHECKING:
    from mypy_extensions import i64

Batch = list[tuple[int, bytes]]
"""Records as (offset, payload)."""
RECORD_BYTES_MIN: Final = 16
"""What a record without a payload takes: magic u32, length u64, checksum u32."""


def whole_records(
    stretch: bytes, at: i64, magic: i64, head_bytes: i64, trailer_bytes: i64, payload_bytes_max: i64
) -> tuple[Batch, int]:
    """Those before the first that is cut short or wrong, in a stretch that begins at `at` in its
    file, and how many bytes they take. No payload has 2**32 bytes. Hot."""
    records: Batch = []
    checksum_of = google_crc32c.value
    position: i64 = 0
    end: i64 = len(stretch)
    while position + RECORD_BYTES_MIN <= end:
        begin = position + head_bytes
        length = u32(stretch, position + 4)
        stop = begin + length
        after = stop + trailer_bytes
        if (
            after > end
            or length > payload_bytes_max
            or u32(stretch, position) != magic
            or u32(stretch, position + 8)
        ):
            break
        payload = stretch[begin:stop]
        if checksum_of(payload) != u32(stretch, after - 4 if trailer_bytes else begin - 4):
            break
        records.append((at + position, payload))
        position = after
    return records, position


def u32(data: bytes, at: i64) -> i64:
    """Little-endian."""
    low: i64 = data[at]
    second: i64 = data[at + 1]
    third: i64 = data[at + 2]
    high: i64 = data[at + 3]
    return low | second << 8 | third << 16 | high << 24
