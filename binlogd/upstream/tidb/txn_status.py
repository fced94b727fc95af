"""The fate of transactions, by looking at the versions of their primary keys through a TiDB.

Over HTTP nothing can be rolled back, so a transaction without a trace stays Pending, until an
operator has said that age is proof enough (`abandoned-prewrite = "rollback"`). A Rollback of the
writer about such a transaction is believed (`pump/verdict.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from binlogd.errors import UpstreamUnavailable
from binlogd.ports import OpenPrewrite, Pending, TxnStatus, TxnStatusSource
from binlogd.upstream.mvcc import status_of
from binlogd.upstream.tidb.mvcc_answer import key_history
from binlogd.upstream.tidb.servers import Several
from binlogd.upstream.tidb.status_port import StatusPort

AT_ONCE = 8
"""Look-ups that are on their way to a TiDB together."""


class TidbTxnStatus:
    """A TxnStatusSource. `otherwise` judges what has no trace, by its age."""

    def __init__(self, ports: Several[StatusPort], otherwise: TxnStatusSource) -> None:
        self._ports, self._otherwise = ports, otherwise
        self._room = asyncio.Semaphore(AT_ONCE)

    @property
    def verifies_rollbacks(self) -> bool:
        """Yes: a commit leaves a record, whatever the writer knew of it."""
        return True

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        """One answer for each prewrite, in order; one that no TiDB could tell is Pending."""
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._status(each)) for each in prewrites]
        return [await self._judged(p, t.result()) for p, t in zip(prewrites, asked, strict=True)]

    async def _status(self, prewrite: OpenPrewrite) -> TxnStatus:
        if not prewrite.prewrite_key:
            return Pending(f"the prewrite of start_ts {prewrite.start_ts} names no key to look at")

        async def look(port: StatusPort) -> TxnStatus:
            path = f"/mvcc/hex/{prewrite.prewrite_key.hex().upper()}"
            try:
                return status_of(prewrite.start_ts, key_history(await port.get(path)))
            except UpstreamUnavailable as error:
                raise UpstreamUnavailable(f"tidb {port}{path}: {error}") from error

        async with self._room:
            try:
                return await self._ports.ask(look)
            except UpstreamUnavailable as error:
                return Pending(str(error))

    async def _judged(self, prewrite: OpenPrewrite, status: TxnStatus) -> TxnStatus:
        if not isinstance(status, Pending) or not status.is_traceless:
            return status
        try:
            (judged,) = await self._otherwise.statuses([prewrite])
        except UpstreamUnavailable as error:
            return Pending(f"{status.reason}; {error}", is_traceless=True)
        if isinstance(judged, Pending):
            return Pending(f"{status.reason}; {judged.reason}", is_traceless=True)
        return judged
