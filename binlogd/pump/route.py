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
    """What one shard gets of a batch: items in order, witnesses among them, and where its binlogs
    stood in the batch."""

    items: list[Item] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class Router:
    """Splits batches in the order of their arrival, and remembers what each shard knows."""

    def __init__(self, shards: int, *, high: Tso) -> None:
        self.high = high  # the largest commit_ts that has arrived
        self.has_untold = False
        self._told = [high] * shards

    def split(self, items: Sequence[Item]) -> dict[int, Share]:
        """The shares of the shards that get something; `positions` count from the beginning of
        `items`. The others are `untold`."""
        told, high = self._told, self.high
        count = len(told)
        shares: dict[int, Share] = {}
        for position, item in enumerate(items):
            number = shard_of(item.start_ts, count)
            share = shares.get(number)
            if share is None:
                share = shares[number] = Share()
            if item.tp == BinlogType.PREWRITE:
                if told[number] < high:
                    share.items.append(_witness(high))
                    told[number] = high
            elif item.commit_ts > high:
                high = told[number] = item.commit_ts
            share.items.append(item)
            share.positions.append(position)
        self.has_untold = self.has_untold or (high > self.high and count > 1)
        self.high = high
        return shares

    def untold(self) -> list[tuple[int, Tso]]:
        """The shards that have not heard of the largest commit_ts, which they are told now.

        It need not be at once: a witness that stands further behind waits for more prewrites than
        it must, and is as true.
        """
        self.has_untold = False
        told, high = self._told, self.high
        behind = [number for number, ts in enumerate(told) if ts < high]
        for number in behind:
            told[number] = high
        return [(number, high) for number in behind]


def _witness(ts: Tso) -> Item:
    return Item(WITNESS, NO_TS, ts, b"")
