"""Which shard a transaction belongs to.

Invariant I3. A transaction's prewrite and its outcome go to the same shard, in this process and in
every later one: the answer depends on start_ts and on the shard count alone, and the shard count is
written into the data directory.

And what the other shards are told of it. A commit_ts that arrives was handed out before anything
that arrives later; told to a shard as a *witness*, in front of the prewrites that come after it, it
raises that shard's watermark although nothing was written there (I4). So an idle shard does not
hold back the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType

from binlogd.binlog import BinlogType
from binlogd.pump.entry import WITNESS, Item
from binlogd.tso import NO_TS, Tso

ShardId = NewType("ShardId", int)
"""The number of a shard, from 0."""

_MIX = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbours go to different shards


def shard_of(start_ts: Tso, shards: int) -> ShardId:
    """The shard of a transaction.

    start_ts is mixed first: logical counters are often zero, and milliseconds come in steps.
    """
    mixed = (start_ts * _MIX) & 0xFFFFFFFFFFFFFFFF
    return ShardId((mixed >> 32) * shards >> 32)


@dataclass(slots=True)
class Share:
    """What one shard gets of a batch: items in order, and where its binlogs stood in the batch.

    Without positions, the only item is a witness.
    """

    items: list[Item] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class Router:
    """Splits batches in the order of their arrival, and remembers what each shard knows."""

    def __init__(self, shards: int, *, high: Tso) -> None:
        self.high = high  # the largest commit_ts that has arrived
        self._told = [high] * shards

    def split(self, items: Sequence[Item]) -> list[Share]:
        """One share for each shard; `positions` count from the beginning of `items`."""
        told, high = self._told, self.high
        count = len(told)
        shares = [Share() for _ in range(count)]
        for position, item in enumerate(items):
            number = shard_of(item.start_ts, count)
            share = shares[number]
            if item.tp == BinlogType.PREWRITE:
                if told[number] < high:
                    share.items.append(_witness(high))
                    told[number] = high
            elif item.commit_ts > high:
                high = told[number] = item.commit_ts
            share.items.append(item)
            share.positions.append(position)
        for at, share in enumerate(shares):
            if told[at] < high:
                share.items.append(_witness(high))
                told[at] = high
        self.high = high
        return shares


def _witness(ts: Tso) -> Item:
    return Item(WITNESS, NO_TS, ts, b"")
