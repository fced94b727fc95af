"""Which Pump a transaction goes to: the choice only, of those that are available now.

Source: tidb pkg/tidb-binlog/pump_client/selector.go; its `score` chooses nothing, ours does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Strategy(StrEnum):
    """The names are those of TiDB's `binlog.strategy`."""

    RANGE = "range"
    """One after the other."""
    HASH = "hash"
    """By start_ts; a retry goes to the next."""
    SCORE = "score"
    """The one that is least loaded for its score."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An available Pump. `score` is what it says of itself, 0 to 100 by load, disk and data."""

    node_id: str
    score: int
    in_flight: int


class Selector:
    """One strategy, and what it remembers."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._next = 0

    def restart(self) -> None:
        """The list of candidates is another one now."""
        self._next = 0

    def choose(
        self, candidates: Sequence[Candidate], *, start_ts: int, retries: int
    ) -> Candidate | None:
        """One of the candidates, which come in the order of their ids; None when there are none."""
        if not candidates:
            return None
        match self._strategy:
            case Strategy.RANGE:
                chosen = candidates[self._next % len(candidates)]
                self._next += 1
            case Strategy.HASH:
                chosen = candidates[(start_ts + retries) % len(candidates)]
            case Strategy.SCORE:
                chosen = candidates[retries % len(candidates)] if retries else _best(candidates)
        return chosen


def _best(candidates: Sequence[Candidate]) -> Candidate:
    """What waits for a Pump's answer counts against it at once; its own score is seconds old."""
    return max(candidates, key=lambda each: (each.score / (1 + each.in_flight), -each.in_flight))
