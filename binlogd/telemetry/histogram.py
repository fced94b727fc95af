"""Counts of observations by size, for statistics that outlive their observations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec


class HistogramStatistics(msgspec.Struct, frozen=True):
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

    def observe(self, value: float, times: int = 1) -> None:
        """Counts an observation, or several of the same value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def statistics(self) -> HistogramStatistics:
        """What was observed so far."""
        return HistogramStatistics(self._bounds, tuple(self._counts), self._total)


def doubling(first: float, count: int) -> tuple[float, ...]:
    """`count` bounds, each twice the one before."""
    return tuple(first * 2**exponent for exponent in range(count))


def together(each: Iterable[HistogramStatistics]) -> HistogramStatistics:
    """The sum of histograms with the same bounds; there is at least one."""
    first, *rest = each
    counts, total = first.counts, first.total
    for one in rest:
        counts = tuple(a + b for a, b in zip(counts, one.counts, strict=True))
        total += one.total
    return HistogramStatistics(first.bounds, counts, total)


class SizeHistogram:
    """Sizes in bytes, in buckets that double from 16; one addition for each."""

    _FIRST_BITS = 4

    def __init__(self, bounds: int) -> None:
        self._bounds = doubling(1 << self._FIRST_BITS, bounds)
        self._by_bits = [0] * 65  # by the bit length of size - 1
        self._total = 0

    def observe(self, size: int) -> None:
        """Counts one size."""
        self._by_bits[(size - 1).bit_length()] += 1
        self._total += size

    def observe_all(self, sizes: Sequence[int]) -> None:
        """Counts many."""
        by_bits = self._by_bits
        for size in sizes:
            by_bits[(size - 1).bit_length()] += 1
        self._total += sum(sizes)

    def statistics(self) -> HistogramStatistics:
        """What was observed so far."""
        first, last = self._FIRST_BITS + 1, self._FIRST_BITS + len(self._bounds)
        by_bits = self._by_bits
        counts = (sum(by_bits[:first]), *by_bits[first:last], sum(by_bits[last:]))
        return HistogramStatistics(self._bounds, counts, self._total)
