"""The figures of the last minutes, one sample a second: what a picture begins with.

Rates are made here from counters, so that whoever joins sees the past at once and every watcher
sees the same. Bounded: SAMPLES_MAX samples of a few numbers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

SAMPLES_MAX = 900
EVERY_S = 1.0


class Sample(NamedTuple):
    """One moment. Rates are per second since the sample before; `lag_s` is None where it is not
    known."""

    at_ms: int
    lag_s: float | None
    received: float
    rows: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of the process at one moment; they may begin at zero again."""

    received: int
    rows: int


class Pulse:
    """Remembers samples, the oldest first."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._last: tuple[int, Counts] | None = None

    def take(self, at_ms: int, lag_s: float | None, counts: Counts) -> Sample:
        """Notes how it stands now. `at_ms` is wall time, which may stand still or go back."""
        received = rows = 0.0
        if self._last is not None and at_ms > self._last[0]:
            elapsed_s, before = (at_ms - self._last[0]) / 1000, self._last[1]
            received = _grown(before.received, counts.received) / elapsed_s
            rows = _grown(before.rows, counts.rows) / elapsed_s
        self._last = at_ms, counts
        lag = None if lag_s is None else round(lag_s, 3)
        sample = Sample(at_ms, lag, round(received, 1), round(rows, 1))
        self._samples.append(sample)
        return sample

    def samples(self) -> list[Sample]:
        """The oldest first."""
        return list(self._samples)


def _grown(before: int, now: int) -> int:
    """By how much a counter grew; one that fell began anew."""
    return now - before if now >= before else now
