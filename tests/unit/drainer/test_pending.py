"""Transactions that wait for a sink which writes groups of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from binlogd.drainer.pending import (
    PendingItem,
    PendingLimits,
    PendingTransactions,
    pending_whole,
)
from binlogd.drainer.txn import Skip, Txn
from binlogd.tso import Tso


async def test_a_group_is_full_only_where_a_commit_ts_ends() -> None:
    """Progress that names one names all of its transactions."""
    pending = PendingTransactions[Txn](PendingLimits(queued_rows=100, group_rows=3))
    groups: list[list[int]] = []

    async def apply(group: Sequence[PendingItem[Txn]]) -> None:
        groups.append([item.commit_ts for item in group])

    txns = [Skip(Tso(ts)) for ts in (1, 2, 2, 2, 2, 3, 4, 4, 5)]
    await pending.put(map(pending_whole, txns))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pending.run(apply))
        await pending.flush()
        pending.close()
    assert groups == [[1, 2, 2, 2, 2], [3, 4, 4], [5]]
    assert pending.applied_ts == 5
