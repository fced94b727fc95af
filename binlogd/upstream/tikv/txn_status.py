"""The fate of a transaction, as TiKV has it.

A Rollback binlog is a claim: TiDB sends one, too, when it got no answer to its commit. So each is
asked about like a missing outcome.

Source: tidb-binlog pump/storage/storage.go, resolve; pkg/util/kv.go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from binlogd.errors import Unavailable, UpstreamUnavailable
from binlogd.ports import Committed, OpenPrewrite, Pending, RolledBack, TsoSource, TxnStatus
from binlogd.tso import Tso
from binlogd.upstream.tikv import fate
from binlogd.upstream.tikv.client import TikvClient
from binlogd.upstream.tikv.places import Places

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class FateStatistics:
    """Counts of answers since the start."""

    committed: int
    rolled_back: int
    pending: int
    decided: int
    """Times that TiKV was asked to decide, as nothing said it."""


class TikvTxnStatus:
    """A `TxnStatusSource`; many are asked about together, `at_once` of them at a time."""

    def __init__(
        self,
        client: TikvClient,
        places: Places,
        tso: TsoSource,
        *,
        rolls_back_abandoned: bool,
        at_once: int = _AT_ONCE,
    ) -> None:
        """`rolls_back_abandoned` is about those only whose records may have been collected."""
        self._client, self._places, self._tso = client, places, tso
        self._rolls_back_abandoned = rolls_back_abandoned
        self._asking = asyncio.Semaphore(at_once)
        self._answers: Counter[type[TxnStatus]] = Counter()
        self._decided = 0

    @property
    def verifies_rollbacks(self) -> bool:
        """Yes."""
        return True

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        """One answer for each prewrite, in order; Pending where its region gives none.

        Raises UpstreamUnavailable when there is no timestamp, or no answer to any of them.
        """
        if not prewrites:
            return []
        now = await self._tso.next()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._status(each, now)) for each in prewrites]
        found = [each.result() for each in asked]
        failures = [each for each in found if isinstance(each, Unavailable)]
        if len(failures) == len(found):
            raise UpstreamUnavailable(str(failures[0]))
        answers = [Pending(str(each)) if isinstance(each, Unavailable) else each for each in found]
        self._answers.update(map(type, answers))
        return answers

    def statistics(self) -> FateStatistics:
        """How it stands."""
        return FateStatistics(
            committed=self._answers[Committed],
            rolled_back=self._answers[RolledBack],
            pending=self._answers[Pending],
            decided=self._decided,
        )

    async def _status(self, prewrite: OpenPrewrite, now: Tso) -> TxnStatus | Unavailable:
        if not prewrite.prewrite_key:
            return Pending(f"the prewrite of start_ts {prewrite.start_ts} names no key to look at")
        try:
            async with self._asking:
                return await self._ask(prewrite, now)
        except Unavailable as error:
            return error

    async def _ask(self, prewrite: OpenPrewrite, now: Tso) -> TxnStatus:
        start_ts, key = prewrite.start_ts, prewrite.prewrite_key
        found = fate.from_records(start_ts, await self._client.records(key), now)
        if isinstance(found, fate.Absent):
            found = fate.from_absence(
                start_ts,
                await self._places.gc_safe_point(),
                gives_up_abandoned=self._rolls_back_abandoned,
            )
        if not isinstance(found, fate.LetTikvDecide):
            return found
        self._decided += 1
        answer = await self._client.check(key, start_ts, now, makes_rollback=found.makes_rollback)
        return fate.from_check(start_ts, answer)
