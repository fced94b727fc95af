"""The orders in which a cluster's binlogs may reach a Pump.

Whatever the delays: an outcome follows its prewrite, and a prewrite comes before every binlog that
carries a timestamp above its commit_ts, since TiDB asks for a commit_ts only after the prewrite is
acknowledged, and time moves on. Everything else may happen in any order, in one shard or in many.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from binlogd.binlog import BinlogType
from binlogd.wire import peek


class Arrival(NamedTuple):
    """One binlog; `commit_ts` 0 for a prewrite and for a rollback."""

    tp: int
    start_ts: int
    commit_ts: int
    payload: bytes

    @property
    def ts(self) -> int:
        """What it carries: what was handed out before it was sent."""
        return max(self.start_ts, self.commit_ts)


def arrivals(payloads: Iterable[bytes]) -> list[Arrival]:
    """Without fakes, and with whole transactions only."""
    heads = [(peek.peek(payload), payload) for payload in payloads]
    found = [
        Arrival(head.tp, head.start_ts, head.commit_ts, payload)
        for head, payload in heads
        if head.start_ts != head.commit_ts
    ]
    prewritten = {each.start_ts for each in found if each.tp == BinlogType.PREWRITE}
    whole = prewritten & {each.start_ts for each in found if each.tp != BinlogType.PREWRITE}
    return [each for each in found if each.start_ts in whole]


class _Waiting:
    """What has not arrived yet, and what of it may be the next."""

    def __init__(self, all_of_them: Sequence[Arrival]) -> None:
        self._commit_of = {each.start_ts: each.commit_ts for each in all_of_them if each.commit_ts}
        self.left = list(all_of_them)
        self._open = {each.start_ts for each in all_of_them if each.tp == BinlogType.PREWRITE}

    def ready(self, among: int) -> list[int]:
        """Positions in `left`, of the first `among`, that may come next."""
        first = self.left[:among]
        # the earliest commit_ts of a prewrite that is still to come: nothing above it may come
        below = min(
            (
                self._commit_of[each.start_ts]
                for each in self.left
                if each.tp == BinlogType.PREWRITE and each.start_ts in self._commit_of
            ),
            default=None,
        )
        return [
            at
            for at, each in enumerate(first)
            if (each.tp == BinlogType.PREWRITE or each.start_ts not in self._open)
            and (below is None or each.ts < below)
        ]

    def take(self, at: int) -> Arrival:
        taken = self.left.pop(at)
        if taken.tp == BinlogType.PREWRITE:
            self._open.discard(taken.start_ts)
        return taken

    def put_back(self, at: int, taken: Arrival) -> None:
        self.left.insert(at, taken)
        if taken.tp == BinlogType.PREWRITE:
            self._open.add(taken.start_ts)


def all_orders(some: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """Every possible order of a few."""
    waiting = _Waiting(some)

    def orders(before: list[Arrival]) -> Iterator[list[Arrival]]:
        if not waiting.left:
            yield list(before)
            return
        for at in waiting.ready(len(waiting.left)):
            taken = waiting.take(at)
            yield from orders([*before, taken])
            waiting.put_back(at, taken)

    return orders([])


def any_order(whole: Sequence[Arrival], rng: random.Random, among: int = 16) -> list[Arrival]:
    """One possible order of many, at random; nothing overtakes more than `among` others by far."""
    ordered: list[Arrival] = []
    by_commit = sorted(
        (each.commit_ts, each.start_ts) for each in whole if each.tp == BinlogType.COMMIT
    )
    placed: set[int] = set()
    first, window, later = 0, list(whole[:among]), among
    while window:  # ends: of what waits, what carries the smallest timestamp may always come
        while first < len(by_commit) and by_commit[first][1] in placed:
            first += 1
        below = by_commit[first][0] if first < len(by_commit) else None
        ready = [
            at
            for at, each in enumerate(window)
            if (below is None or each.ts < below)
            and (each.tp == BinlogType.PREWRITE or each.start_ts in placed)
        ]
        if not ready:  # the prewrite that all wait for is further behind
            window.append(whole[later])
            later += 1
            continue
        taken = window.pop(rng.choice(ready))
        if taken.tp == BinlogType.PREWRITE:
            placed.add(taken.start_ts)
        ordered.append(taken)
        if later < len(whole):
            window.append(whole[later])
            later += 1
    return ordered
