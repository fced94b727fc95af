"""The timestamps that a canonical payload begins with, told without reading them.

    payload := 08 tp | 10 start_ts | 18 commit_ts | fields 4 to 8

Made to be compiled. A timestamp of TiDB takes nine bytes, from 1978 to 2527; other numbers are for
`peek`, which reads them all. Source: pingcap/tipb proto/binlog/binlog.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

START_AT: Final = 3
COMMIT_AT: Final = 13
TIMESTAMP_BYTES: Final = 9
_TIMESTAMP_MAX: Final = (1 << 62) - 1


def is_stamped(payload: bytes, start_ts: int, commit_ts: int) -> bool:
    """Whether one with these timestamps begins so. Hot."""
    return is_started(payload, start_ts) and is_timestamp_at(payload, COMMIT_AT, commit_ts)


def is_started(payload: bytes, start_ts: int) -> bool:
    """Whether one with this start_ts begins so. Hot."""
    return (
        len(payload) > COMMIT_AT + TIMESTAMP_BYTES
        and payload[0] == 0x08
        and payload[1] <= 0x7F
        and payload[START_AT - 1] == 0x10
        and is_timestamp_at(payload, START_AT, start_ts)
        and payload[COMMIT_AT - 1] == 0x18
    )


def is_timestamp_at(data: bytes, at: i64, ts: int) -> bool:
    """Whether this timestamp stands there, in nine bytes. Raises IndexError."""
    if not 0 < ts <= _TIMESTAMP_MAX:
        return False
    left: i64 = ts
    end = at + TIMESTAMP_BYTES - 1
    while at < end:
        if data[at] != left & 0x7F | 0x80:
            return False
        left >>= 7
        at += 1
    return 0 < left == data[at]
