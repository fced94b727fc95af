"""The figures of the last minutes, one sample a second, and of the last day, one a minute: what a
picture begins with.

Rates are made here from counters, so that whoever joins sees the past at once and every watcher
sees the same. Bounded: SAMPLES_MAX and MINUTES_MAX samples of a few numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

SAMPLES_MAX = 900
MINUTES_MAX = 1440
MINUTE_MS = 60_000
EVERY_S = 1.0


class Sample(NamedTuple):
    """One moment. Rates are per second since the sample before; `lag_s` is None where it is not
    known."""

    at_ms: int
    lag_s: float | None
    received: float
    rows: float


class Counts(msgspec.Struct, frozen=True):
    """Counters of the process at one moment; they may begin at zero again."""

    received: int
    rows: int


class SampleHistory:
    """Remembers samples, the oldest first."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._minutes: deque[Sample] = deque(maxlen=MINUTES_MAX)
        self._minute: list[Sample] = []
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
        if self._minute and self._minute[0].at_ms // MINUTE_MS != at_ms // MINUTE_MS:
            self._minutes.append(_together(self._minute))
            self._minute.clear()
        self._minute.append(sample)
        return sample

    def samples(self) -> list[Sample]:
        """The oldest first."""
        return list(self._samples)

    def minutes(self) -> list[Sample]:
        """Those that are over, the oldest first: the largest lag and the mean rates of each."""
        return list(self._minutes)


def _together(samples: Sequence[Sample]) -> Sample:
    lags = [each.lag_s for each in samples if each.lag_s is not None]
    received = sum(each.received for each in samples) / len(samples)
    rows = sum(each.rows for each in samples) / len(samples)
    return Sample(samples[0].at_ms, max(lags, default=None), round(received, 1), round(rows, 1))


def _grown(before: int, now: int) -> int:
    """By how much a counter grew; one that fell began anew."""
    return now - before if now >= before else now
