"""Transactions that wait for a sink which writes whole groups of them with their progress.

Invariant. A group ends where a commit_ts ends: progress that names it names all of its
transactions. Why it holds: transactions of one commit_ts come in one `put`, and between two of
them nothing is awaited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from binlogd.drainer.rows.parts import size_of
from binlogd.drainer.sink import SinkStatistics
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.errors import BinlogdError
from binlogd.tso import NO_TS, Tso

T = TypeVar("T")


class PendingLimits(NamedTuple):
    """What may wait, and what goes into one group; a commit_ts alone may be above either."""

    queued_rows: int
    group_rows: int
    queued_bytes: int = 64 << 20
    group_bytes: int = 16 << 20


class PendingItem(NamedTuple, Generic[T]):
    """A transaction in the form in which it is written."""

    commit_ts: Tso
    form: T
    size_bytes: int
    rows: int = 0
    is_dml: bool = False
    is_ddl: bool = False


def pending(txn: Txn, form: T, size_bytes: int) -> PendingItem[T]:
    """A transaction that waits in some form; `size_bytes` is what this takes."""
    if isinstance(txn, Dml):
        return PendingItem(txn.commit_ts, form, size_bytes, txn.row_count, is_dml=True)
    is_ddl = isinstance(txn, Ddl) and not txn.is_skipped
    return PendingItem(txn.commit_ts, form, size_bytes, is_ddl=is_ddl)


def pending_whole(txn: Txn) -> PendingItem[Txn]:
    """A transaction that waits as it came."""
    changes = txn.changes if isinstance(txn, Dml) else ()
    return pending(txn, txn, sum(size_of(change.mutation) for change in changes))


class PendingTransactions(Generic[T]):
    """One producer calls `put` and `flush`, one consumer is in `run`. Who holds `writing` is alone
    with what the consumer writes to."""

    def __init__(self, limits: PendingLimits) -> None:
        self._limits = limits
        self.writing = asyncio.Lock()
        self.applied_ts = self.resumed_ts = NO_TS
        self._items: deque[PendingItem[T]] = deque()
        self._rows = self._bytes = 0
        self._last_ts = NO_TS
        self._queued, self._moved = asyncio.Event(), asyncio.Event()
        self._failure: BinlogdError | None = None
        self._is_closing = False
        self._rows_done = self._txns_done = self._ddls_done = 0

    def begin(self, applied_ts: Tso) -> None:
        """What is at or below is there already, and passed over."""
        self.resumed_ts = self.applied_ts = applied_ts

    async def put(self, items: Iterable[PendingItem[T]]) -> None:
        """Queues; waits for room. Raises what the consumer failed with."""
        for item in items:
            if item.commit_ts <= self.resumed_ts:
                continue
            assert item.commit_ts >= self._last_ts, "transactions out of order"
            while item.commit_ts > self._last_ts and self._is_full() and not self._is_over:
                await self._move()
            self._raise_failure()
            self._items.append(item)
            self._rows += item.rows
            self._bytes += item.size_bytes
            self._last_ts = item.commit_ts
            self._queued.set()
        self._raise_failure()

    def is_waiting(self, commit_ts: Tso) -> bool:
        """Whether something up to here is not done yet."""
        return bool(self._items) and self._items[0].commit_ts <= commit_ts

    async def flush(self) -> None:
        """Returns when all is done. Raises what the consumer failed with."""
        while self._items and not self._is_over:
            await self._move()
        self._raise_failure()

    async def run(self, apply: Callable[[Sequence[PendingItem[T]]], Awaitable[None]]) -> None:
        """Has group after group applied; ends after `close`. `apply` returns when the group is
        durable with its progress. Raises what it raises."""
        try:
            while True:  # until closed, or a group fails
                while not self._items and not self._is_closing:
                    self._queued.clear()
                    await self._queued.wait()
                async with self.writing:
                    if self._is_closing:
                        return
                    group = self._group()
                    await apply(group)
                    self._done(group)
        except BinlogdError as error:
            self._failure = error
            self._moved.set()
            raise

    def close(self) -> None:
        """What is queued is not taken any more."""
        self._is_closing = True
        self._queued.set()
        self._moved.set()

    def statistics(self, *, bytes_written: int = 0) -> SinkStatistics:
        """How it stands; cheap."""
        return SinkStatistics(
            applied_ts=self.applied_ts,
            txns_applied=self._txns_done,
            rows_applied=self._rows_done,
            ddls_applied=self._ddls_done,
            txns_queued=len(self._items),
            rows_queued=self._rows,
            bytes_written=bytes_written,
        )

    def _group(self) -> list[PendingItem[T]]:
        """The next transactions that go together; they stay here until they are done."""
        limits, rows, size_bytes = self._limits, 0, 0
        group: list[PendingItem[T]] = []
        for item in self._items:
            rows += item.rows + 1
            size_bytes += item.size_bytes
            is_full = rows > limits.group_rows or size_bytes > limits.group_bytes
            if group and is_full and item.commit_ts > group[-1].commit_ts:
                break
            group.append(item)
        return group

    def _done(self, group: Sequence[PendingItem[T]]) -> None:
        for item in group:
            self._items.popleft()
            self._rows -= item.rows
            self._bytes -= item.size_bytes
            self._rows_done += item.rows
            self._txns_done += item.is_dml
            self._ddls_done += item.is_ddl
        self.applied_ts = group[-1].commit_ts
        self._moved.set()

    @property
    def _is_over(self) -> bool:
        return self._is_closing or self._failure is not None

    def _is_full(self) -> bool:
        rows = self._rows + len(self._items)  # what has no rows takes room too
        return rows > self._limits.queued_rows or self._bytes > self._limits.queued_bytes

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
