"""Transactions that an operator decided to pass over, by `binlogd skip`.

They count like `syncer.ignore-txn-commit-ts`, from the moment of the decision and after every
restart; why and when is kept with them.
"""

from __future__ import annotations

from collections.abc import Set

from binlogd.ports import Clock
from binlogd.tso import Tso
from binlogd.upstream.store import SkipEntry, UpstreamStore


class SkipList:
    """The decisions of one data directory. Methods raise UpstreamUnavailable."""

    def __init__(self, store: UpstreamStore, clock: Clock, decided: list[SkipEntry]) -> None:
        self._store, self._clock = store, clock
        self._decided = {each.commit_ts: each for each in decided}

    @classmethod
    async def open(cls, store: UpstreamStore, clock: Clock) -> SkipList:
        """Reads what was decided before."""
        return cls(store, clock, await store.skips())

    @property
    def commit_tss(self) -> Set[Tso]:
        """What is passed over; grows with every decision."""
        return self._decided.keys()

    def decided(self) -> list[SkipEntry]:
        """All decisions, by commit_ts."""
        return [self._decided[ts] for ts in sorted(self._decided)]

    async def add(self, commit_ts: Tso, reason: str) -> bool:
        """Records a decision, durably; False if it was made before."""
        if commit_ts in self._decided:
            return False
        skip = SkipEntry(commit_ts, reason, self._clock.wall_ms())
        await self._store.put_skip(skip)
        self._decided[commit_ts] = skip
        return True
