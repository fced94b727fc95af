"""The fate of a transaction, as TiKV has it.

A Rollback binlog is a claim: TiDB sends one, too, when it got no answer to its commit. So each is
asked about like a missing outcome.

Source: tidb-binlog pump/storage/storage.go, resolve; pkg/util/kv.go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from binlogd.errors import Unavailable, UpstreamUnavailable
from binlogd.ports import Committed, OpenPrewrite, Pending, RolledBack, TsoSource, TxnStatus
from binlogd.tso import Tso, physical_ms
from binlogd.upstream.tikv import fate
from binlogd.upstream.tikv.client import TikvClient
from binlogd.upstream.tikv.regions import RegionDirectory

_AT_ONCE = 64
_ANSWER_S = 20.0
"""For all who are asked about together; less than the Pump waits."""
_ABSENT_MAX = 10_000
"""That are remembered; beyond it all of them wait anew."""
_Found = TxnStatus | Unavailable


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
        places: RegionDirectory,
        tso: TsoSource,
        *,
        rolls_back_abandoned: bool,
        at_once: int = _AT_ONCE,
        answer_s: float = _ANSWER_S,
    ) -> None:
        """`rolls_back_abandoned` is about those only whose records may have been collected."""
        self._answer_s = answer_s
        self._client, self._places, self._tso = client, places, tso
        self._rolls_back_abandoned = rolls_back_abandoned
        self._asking = asyncio.Semaphore(at_once)
        self._answers: Counter[type[TxnStatus]] = Counter()
        self._decided = 0
        self._absent_since_ms: dict[Tso, int] = {}

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
        late = UpstreamUnavailable(f"TiKV: no answer in {self._answer_s:g} s")
        now = await self._tso.next()
        found: dict[OpenPrewrite, _Found] = {}
        with suppress(TimeoutError):  # who has an answer by then has it
            async with asyncio.timeout(self._answer_s), asyncio.TaskGroup() as group:
                for some in (await self._by_region(prewrites, found)).values():
                    group.create_task(self._ask_together(some, now, found))
        results = [found.get(each, late) for each in prewrites]
        failures = [each for each in results if isinstance(each, Unavailable)]
        if len(failures) == len(results):
            raise UpstreamUnavailable(str(failures[0]))
        answers = [
            Pending(str(each)) if isinstance(each, Unavailable) else each for each in results
        ]
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

    async def _by_region(
        self, prewrites: Sequence[OpenPrewrite], found: dict[OpenPrewrite, _Found]
    ) -> Mapping[int, Sequence[OpenPrewrite]]:
        """Those that can be asked about; when PD does not know a region now, it is spared the
        others that are not known."""
        groups: dict[int, list[OpenPrewrite]] = {}
        trouble: Unavailable | None = None
        for each in prewrites:
            if not each.prewrite_key:
                found[each] = Pending(
                    f"the prewrite of start_ts {each.start_ts} names no key to look at"
                )
            elif trouble is not None and not self._client.knows(each.prewrite_key):
                found[each] = trouble
            else:
                try:
                    region = await self._client.region(each.prewrite_key)
                    groups.setdefault(region, []).append(each)
                except Unavailable as error:
                    found[each] = trouble = error
        return groups

    async def _ask_together(
        self, prewrites: Sequence[OpenPrewrite], now: Tso, found: dict[OpenPrewrite, _Found]
    ) -> None:
        """One first: a region that gives it no answer is not asked about the others."""
        first, *others = prewrites
        await self._put(first, now, found)
        if isinstance(found[first], Unavailable):
            found.update((each, found[first]) for each in others)
            return
        async with asyncio.TaskGroup() as group:
            for each in others:
                group.create_task(self._put(each, now, found))

    async def _put(
        self, prewrite: OpenPrewrite, now: Tso, found: dict[OpenPrewrite, _Found]
    ) -> None:
        try:
            async with self._asking:
                found[prewrite] = await self._ask(prewrite, now)
        except Unavailable as error:
            found[prewrite] = error

    async def _ask(self, prewrite: OpenPrewrite, now: Tso) -> TxnStatus:
        start_ts, key = prewrite.start_ts, prewrite.prewrite_key
        found = fate.from_records(start_ts, await self._client.records(key), now)
        if isinstance(found, fate.Absent):
            early = fate.absent_too_shortly(start_ts, self._absent_for_s(start_ts, now))
            if early is not None:
                return early
            found = fate.from_absence(
                start_ts,
                await self._places.gc_safe_point(start_ts),
                gives_up_abandoned=self._rolls_back_abandoned,
            )
        if not isinstance(found, fate.LetTikvDecide):
            return found
        self._decided += 1
        answer = await self._client.check(
            key, start_ts, fate.slow_clock(now), makes_rollback=found.makes_rollback
        )
        return fate.from_check(start_ts, answer)

    def _absent_for_s(self, start_ts: Tso, now: Tso) -> float:
        if len(self._absent_since_ms) >= _ABSENT_MAX:
            self._absent_since_ms.clear()
        now_ms = physical_ms(now)
        return (now_ms - self._absent_since_ms.setdefault(start_ts, now_ms)) / 1000
