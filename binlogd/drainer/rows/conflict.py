"""Which lane a key, or a whole table, belongs to.

Invariant. A key belongs to the same lane for ever: the lane is a function of the data and of the
number of lanes. Why it matters. After a restart each row must go to the lane it went to before,
otherwise progress by lane could not mean "applied exactly once". So it is CRC-32 over table id and
key, never Python's `hash`, which differs from process to process.
"""

from __future__ import annotations

from zlib import crc32


def seed_of(table_id: int) -> int:
    """What the CRC of a key of this table begins with."""
    return crc32(table_id.to_bytes(8, "little", signed=True))


def lane_of(key: bytes, seed: int, lanes: int) -> int:
    """The lane of a key, given as its literal; b"" is a table that is bound as a whole."""
    return crc32(key, seed) % lanes


def lanes_for(worker_count: int) -> int:
    """How many lanes the original's `worker-count` stands for.

    One worker is one lane, which shows only states that the upstream had. A worker of the original
    applies some twenty rows at a time, a lane thousands: sixteen workers (the default) are two
    lanes, which is what one process can keep busy; each eight stand for one. More lanes make
    smaller statements, and help where the downstream is far away.
    """
    return max(min(worker_count, 2), worker_count // 8)
