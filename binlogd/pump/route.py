"""Which shard a transaction belongs to.

Invariant I3. A transaction's prewrite and its outcome go to the same shard, in this process and in
every later one: the answer depends on start_ts and on the shard count alone, and the shard count is
written into the data directory.
"""

from __future__ import annotations

from typing import NewType

from binlogd.tso import Tso

ShardId = NewType("ShardId", int)
"""The number of a shard, from 0."""

_MIX = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbours go to different shards


def shard_of(start_ts: Tso, shards: int) -> ShardId:
    """The shard of a transaction.

    start_ts is mixed first: logical counters are often zero, and milliseconds come in steps.
    """
    mixed = (start_ts * _MIX) & 0xFFFFFFFFFFFFFFFF
    return ShardId((mixed >> 32) * shards >> 32)
