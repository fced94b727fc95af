"""Which shard a transaction belongs to.

Invariant I3. A transaction's prewrite and its outcome go to the same shard, in this process and in
every later one: the answer depends on start_ts and on the routing alone, and the routing is written
into the data directory.

Transactions that begin within one window of time go to one shard. So what arrives at a moment makes
a few large groups, however many shards there are, and a group costs a sync (decision 51); over time
all shards get as much.

And what the other shards are told of it. A commit_ts that arrives was handed out before anything
that arrives later; told to a shard as a *witness*, in front of the prewrites that come after it, it
raises that shard's watermark although nothing was written there (I4). So an idle shard does not
hold back the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType

from binlogd.binlog import BinlogType
from binlogd.log.checked_text import checksummed, text_in
from binlogd.pump.log.entry import ITEM_BYTES, WITNESS, Item
from binlogd.tso import NO_TS, Tso

ShardId = NewType("ShardId", int)
"""The number of a shard, from 0."""

_PREWRITE: Final[int] = BinlogType.PREWRITE.value
_MIX: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbours go to different shards


_TS_BITS = 64
WINDOW_BITS = 24
"""The window of new data directories: 2^6 ms, and 2^18 timestamps in each of them."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How a data directory spreads its transactions, from its first binlog to its last.

    The lowest `window_bits` of a start_ts make no difference; 0 in directories of before there were
    windows.
    """

    shards: int
    window_bits: int = WINDOW_BITS

    def shard_of(self, start_ts: Tso) -> ShardId:
        """The shard of a transaction. Windows are mixed, as the busy ones may come in steps."""
        mixed = ((start_ts >> self.window_bits) * _MIX) & 0xFFFFFFFFFFFFFFFF
        return ShardId((mixed >> 32) * self.shards >> 32)

    def to_bytes(self) -> bytes:
        """As it is kept in the data directory."""
        return checksummed(b"%d %d" % (self.shards, self.window_bits))

    @classmethod
    def from_bytes(cls, content: bytes) -> Routing:
        """What was kept. Raises ValueError when that is no routing."""
        numbers = [int(word) for word in text_in(content).split()]
        if len(numbers) not in (1, 2) or numbers[0] < 1 or not 0 <= numbers[-1] < _TS_BITS:
            raise ValueError(f"no routing: {content!r}")
        return cls(numbers[0], numbers[1] if len(numbers) > 1 else 0)


class Share:
    """What one shard gets of a batch: items in order, witnesses among them, where its binlogs stood
    in the batch, and what they take from the budget."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.positions: list[int] = []
        self.bytes_held = 0


class Router:
    """Splits batches in the order of their arrival, and remembers what each shard knows."""

    def __init__(self, routing: Routing, *, high: Tso) -> None:
        self.high = high  # the largest commit_ts that has arrived
        self.is_any_behind = False
        self._shard_of = routing.shard_of
        self._window_bits = routing.window_bits
        self._shown_ts = [high] * routing.shards

    def split(self, items: Sequence[Item]) -> dict[int, Share]:
        """The shares of the shards that get something; `positions` count from the beginning of
        `items`. The others are `shards_behind`."""
        shown_ts, high = self._shown_ts, self.high
        shares: dict[int, Share] = {}
        bits, window, number = self._window_bits, -1, 0
        share: Share | None = None
        for position, item in enumerate(items):
            if item.start_ts >> bits != window or share is None:  # neighbours are in one window
                window = item.start_ts >> bits
                number = self._shard_of(item.start_ts)
                share = shares.get(number)
                if share is None:
                    share = shares[number] = Share()
            share.bytes_held += len(item.payload) + ITEM_BYTES
            if item.tp == _PREWRITE:
                if shown_ts[number] < high:
                    share.items.append(Item(WITNESS, NO_TS, high, b""))
                    shown_ts[number] = high
            elif item.commit_ts > high:
                high = shown_ts[number] = item.commit_ts
            share.items.append(item)
            share.positions.append(position)
        self.is_any_behind = self.is_any_behind or (high > self.high and len(shown_ts) > 1)
        self.high = high
        return shares

    def shards_behind(self) -> list[tuple[int, Tso]]:
        """The shards that have not heard of the largest commit_ts, which they are told now.

        It need not be at once: a witness that stands further behind waits for more prewrites than
        it must, and is as true.
        """
        self.is_any_behind = False
        shown_ts, high = self._shown_ts, self.high
        behind = [number for number, ts in enumerate(shown_ts) if ts < high]
        for number in behind:
            shown_ts[number] = high
        return [(number, high) for number in behind]
