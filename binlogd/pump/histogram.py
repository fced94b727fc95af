"""Counts of observations by size, for statistics that outlive their observations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistogramStatistics:
    """`counts[i]` observations lie above bounds[i - 1] and at or below bounds[i]; the last is above
    all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Observations sorted into buckets with fixed upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def statistics(self) -> HistogramStatistics:
        """What was observed so far."""
        return HistogramStatistics(self._bounds, tuple(self._counts), self._total)


def doubling(first: float, count: int) -> tuple[float, ...]:
    """`count` bounds, each twice the one before."""
    return tuple(first * 2**exponent for exponent in range(count))
