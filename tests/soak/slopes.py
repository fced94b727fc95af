"""Whether a figure rises with time: a line through samples, and how sure its slope is.

Samples of one process depend on their neighbours (a cache fills, a fault lasts), so they are put
together in intervals first, each by its median, and the error of the slope is widened by what the
residuals still share with their neighbours. Source: ordinary least squares, its variance times
(1 + r) / (1 - r) for a correlation r of neighbours (Bartlett).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median

INTERVALS_MIN = 8
"""Through fewer points no slope is worth its name."""
ERRORS = 2.0
"""How many standard errors: some 95 in 100."""
_SHARED_MAX = 0.9


class Verdict(StrEnum):
    """What a slope shows, against the largest one that does not matter."""

    FLAT = "flat"
    RISES = "rises"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Slope:
    """A fitted line: the change an hour, its standard error, and the mean."""

    per_hour: float
    error: float
    mean: float
    intervals: int

    def verdict(self, tolerated_per_hour: float) -> Verdict:
        """Flat where even the upper end is tolerated, rising where even the lower is not; a longer
        run decides what is between."""
        if self.per_hour + ERRORS * self.error <= tolerated_per_hour:
            return Verdict.FLAT
        if self.per_hour - ERRORS * self.error > tolerated_per_hour:
            return Verdict.RISES
        return Verdict.UNDECIDED


def by_interval(
    samples: Sequence[tuple[float, float]], interval_s: float
) -> list[tuple[float, float]]:
    """(second, value) samples as one (second, median) for each interval that has any."""
    intervals: dict[int, list[tuple[float, float]]] = {}
    for at_s, value in samples:
        intervals.setdefault(int(at_s // interval_s), []).append((at_s, value))
    return [
        (fmean(at_s for at_s, _ in each), median(value for _, value in each))
        for _, each in sorted(intervals.items())
    ]


def fitted(points: Sequence[tuple[float, float]]) -> Slope:
    """The line through (second, value) points, in the order of their times. Raises ValueError for
    fewer than INTERVALS_MIN."""
    if len(points) < INTERVALS_MIN:
        raise ValueError(
            f"{len(points)} intervals are too few for a slope: {INTERVALS_MIN} at least"
        )
    hours = [at_s / 3600 for at_s, _ in points]
    values = [value for _, value in points]
    middle, mean = fmean(hours), fmean(values)
    spread = sum((hour - middle) ** 2 for hour in hours)
    per_hour = (
        sum((hour - middle) * (value - mean) for hour, value in zip(hours, values, strict=True))
        / spread
    )
    residuals = [
        value - mean - per_hour * (hour - middle) for hour, value in zip(hours, values, strict=True)
    ]
    squares = sum(each * each for each in residuals)
    shared = sum(one * other for one, other in pairwise(residuals)) / squares if squares else 0.0
    shared = min(max(shared, 0.0), _SHARED_MAX)
    variance = squares / (len(points) - 2) / spread * (1 + shared) / (1 - shared)
    return Slope(per_hour, math.sqrt(variance), mean, len(points))
