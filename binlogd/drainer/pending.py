"""Transactions that wait for a sink which writes whole groups of them with their progress.

Invariant. A group ends where a commit_ts ends: progress that names it names all of its
transactions. Why it holds: transactions of one commit_ts come in one `submit`, and between two of
them nothing is awaited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from binlogd.drainer.parts import size_of
from binlogd.drainer.txn import Dml, Txn
from binlogd.errors import BinlogdError
from binlogd.tso import NO_TS, Tso


class PendingLimits(NamedTuple):
    """What may wait, and what goes into one group; a commit_ts alone may be above either."""

    queued_rows: int
    group_rows: int
    queued_bytes: int = 64 << 20
    group_bytes: int = 16 << 20


class _Item(NamedTuple):
    txn: Txn
    rows: int
    size_bytes: int


class Pending:
    """One producer calls `submit` and `flush`, one consumer `wait`, `group` and `done`."""

    def __init__(self, limits: PendingLimits) -> None:
        self._limits = limits
        self._items: deque[_Item] = deque()
        self.rows = self._bytes = 0
        self._resumed_ts = self._last_ts = NO_TS
        self._queued, self._moved = asyncio.Event(), asyncio.Event()
        self._failure: BinlogdError | None = None
        self.is_closing = False

    def begin(self, applied_ts: Tso) -> None:
        """What is at or below is there already, and passed over."""
        self._resumed_ts = applied_ts

    async def submit(self, txns: Sequence[Txn]) -> None:
        """Queues; waits for room. Raises what the consumer failed with."""
        for txn in txns:
            if txn.commit_ts <= self._resumed_ts:
                continue
            assert txn.commit_ts >= self._last_ts, "transactions out of order"
            if txn.commit_ts > self._last_ts:
                await self._room()
            size_bytes = _bytes_of(txn)
            self._items.append(_Item(txn, rows_of(txn), size_bytes))
            self.rows += self._items[-1].rows
            self._bytes += size_bytes
            self._last_ts = txn.commit_ts
            self._queued.set()
        self._raise_failure()

    async def flush(self) -> None:
        """Returns when all is done. Raises what the consumer failed with."""
        while self._items and not self._is_over:
            await self._move()
        self._raise_failure()

    async def wait(self) -> None:
        """Returns when there is something to do, or it is closed."""
        while not self._items and not self.is_closing:
            self._queued.clear()
            await self._queued.wait()

    def group(self) -> list[Txn]:
        """The next transactions that go together; they stay here until `done`."""
        limits, rows, size_bytes = self._limits, 0, 0
        group: list[Txn] = []
        for item in self._items:
            rows += item.rows + 1
            size_bytes += item.size_bytes
            is_full = rows > limits.group_rows or size_bytes > limits.group_bytes
            if group and is_full and item.txn.commit_ts > group[-1].commit_ts:
                break
            group.append(item.txn)
        return group

    def done(self, group: Sequence[Txn]) -> None:
        """The group is durable."""
        for _ in group:
            item = self._items.popleft()
            self.rows -= item.rows
            self._bytes -= item.size_bytes
        self._moved.set()

    def end(self, failure: BinlogdError | None) -> None:
        """The consumer has ended: nobody waits for it any more."""
        self._failure = failure
        self._moved.set()

    def close(self) -> None:
        """What is queued is not taken any more."""
        self.is_closing = True
        self._queued.set()
        self._moved.set()

    @property
    def txns(self) -> int:
        """How many wait."""
        return len(self._items)

    @property
    def failure(self) -> BinlogdError | None:
        """What the consumer failed with."""
        return self._failure

    @property
    def _is_over(self) -> bool:
        return self.is_closing or self._failure is not None

    async def _room(self) -> None:
        limits = self._limits
        while not self._is_over:
            rows = self.rows + len(self._items)  # what has no rows takes room too
            if rows <= limits.queued_rows and self._bytes <= limits.queued_bytes:
                break
            await self._move()
        self._raise_failure()

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def rows_of(txn: Txn) -> int:
    """Rows that it changes."""
    return txn.row_count if isinstance(txn, Dml) else 0


def _bytes_of(txn: Txn) -> int:
    if not isinstance(txn, Dml):
        return 0
    return sum(size_of(change.mutation) for change in txn.changes)
