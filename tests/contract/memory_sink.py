"""A sink without a database: rows in dictionaries, progress saved with each transaction.

`MemoryStore` is what survives a crash; a `MemorySink` is one life of a process in front of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.sink import SinkStatistics
from binlogd.drainer.txn import Ddl, Dml, Skip, Txn
from binlogd.errors import BinlogdError, CorruptRow, DownstreamUnavailable, RowMismatch
from binlogd.tidb.model import TableAt
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tso import NO_TS, Tso
from binlogd.wire.in_order import DELETE, INSERT, changes_of
from binlogd.wire.mutation import Mutation

QUEUE_MAX = 64

Row = tuple[tuple[str, Value], ...]
R = TypeVar("R")


@dataclass
class MemoryStore:
    """Tables by `database.table`, rows with how often they are there; faults to inject."""

    tables: dict[str, Counter[Row]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    commit_tss: list[Tso] = field(default_factory=list)
    applied_ts: Tso = NO_TS
    checkpoint: Checkpoint | None = None
    saves: list[Checkpoint] = field(default_factory=list)
    failures: dict[int, BinlogdError] = field(default_factory=dict)
    """Raised once, when the transaction of that commit_ts would be applied."""
    is_down: bool = False

    def apply(self, txn: Txn) -> int:
        """One transaction, whole, with its progress; returns how many rows it changed."""
        failure = self.failures.pop(txn.commit_ts, None)
        if failure is not None:
            raise failure
        rows = 0
        match txn:
            case Dml():
                for change in txn.changes:
                    rows += self._change(change.table, change.mutation, txn.commit_ts)
                self.commit_tss.append(txn.commit_ts)
            case Ddl():
                self.statements += txn.statements
            case Skip():
                pass
        self.applied_ts = txn.commit_ts
        return rows

    def _change(self, table: TableAt, mutation: Mutation, commit_ts: Tso) -> int:
        names = {column.id: column.name for column in table.info.columns if not column.is_virtual}

        def named(values: dict[int, Value]) -> Row:
            return tuple(sorted((names[n], value) for n, value in values.items() if n in names))

        rows = self.tables.setdefault(f"{table.database}.{table.info.name}", Counter())
        return count_changes(rows, named, table, mutation, commit_ts)


def count_changes(
    rows: Counter[R],
    row_of: Callable[[dict[int, Value]], R],
    table: TableAt,
    mutation: Mutation,
    commit_ts: Tso,
) -> int:
    """Adds what came to `rows` and takes away what went; how many rows changed."""
    try:
        for kind, old, new in changes_of(mutation, RowDecoder(table)):
            if kind != INSERT:
                rows[row_of(old)] -= 1
            if kind != DELETE:
                rows[row_of(new)] += 1
    except CorruptRow as error:
        name = f"{table.database}.{table.info.name}"
        raise RowMismatch(name, commit_ts, str(error)) from error
    return len(mutation.sequence)


class MemorySink:
    """One life. Nothing survives it but the store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._queue: deque[Txn] = deque()
        self._moved = asyncio.Event()
        self._submitted_ts = self._resumed_ts = NO_TS
        self._is_closing = False
        self._txns = self._rows = self._ddls = 0

    async def open(self) -> Checkpoint | None:
        self._check_up()
        self._submitted_ts = self._resumed_ts = self._store.applied_ts
        return self._store.checkpoint

    async def run(self) -> None:
        while not self._is_closing:
            if not self._queue:
                await self._moved.wait()
                continue
            self._check_up()
            txn = self._queue[0]
            self._rows += self._store.apply(txn)
            self._txns += isinstance(txn, Dml)
            self._ddls += isinstance(txn, Ddl)
            self._queue.popleft()
            self._wake()
            await asyncio.sleep(0)

    async def submit(self, txns: Sequence[Txn]) -> None:
        for txn in txns:
            if txn.commit_ts <= self._resumed_ts:
                continue
            assert txn.commit_ts >= self._submitted_ts, "transactions out of order"
            self._submitted_ts = txn.commit_ts
            self._queue.append(txn)
            self._wake()
            while len(self._queue) >= QUEUE_MAX and not self._is_closing:
                await self._moved.wait()

    async def flush(self) -> None:
        while self._queue and not self._is_closing:
            await self._moved.wait()

    def applied_ts(self) -> Tso:
        return self._store.applied_ts

    async def save(self, checkpoint: Checkpoint) -> None:
        self._check_up()
        assert checkpoint.commit_ts <= self._store.applied_ts, "a checkpoint ahead of the rows"
        self._store.checkpoint = checkpoint
        self._store.saves.append(checkpoint)

    async def close(self) -> None:
        self._is_closing = True
        self._queue.clear()
        self._wake()

    def statistics(self) -> SinkStatistics:
        return SinkStatistics(
            applied_ts=self._store.applied_ts,
            txns_applied=self._txns,
            rows_applied=self._rows,
            ddls_applied=self._ddls,
            lane_ts=(),
            txns_queued=len(self._queue),
            rows_queued=0,
            bytes_written=0,
            retries=0,
        )

    def _check_up(self) -> None:
        if self._store.is_down:
            raise DownstreamUnavailable("the memory is away")

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
