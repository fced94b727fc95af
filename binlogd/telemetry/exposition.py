"""The numbers of every part under the original's metric names, in Prometheus text.

Components count by themselves and offer `statistics()`; `pump/metrics.py` and `drainer/metrics.py`
name those values, and here they become text. Names are the original's to the letter, counters
without `_total` included, because dashboards and alerts rely on them; prometheus_client would
rename such counters, so the exposition is written here. What the original lacks begins `binlogd_`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

from binlogd.telemetry.histogram import HistogramStatistics

Samples = Iterable[tuple[Mapping[str, str], float]]


class Exposition:
    """Collects metric families and says them in Prometheus text format 0.0.4."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def counter(self, name: str, meaning: str, samples: Samples | float) -> None:
        """A number that only rises."""
        self._family(name, "counter", meaning, samples)

    def gauge(self, name: str, meaning: str, samples: Samples | float | None) -> None:
        """A number that rises and falls; None has no sample: it is not known."""
        self._family(name, "gauge", meaning, () if samples is None else samples)

    def histogram(
        self,
        name: str,
        meaning: str,
        samples: Iterable[tuple[Mapping[str, str], HistogramStatistics]],
    ) -> None:
        """Observations in cumulative buckets; a series appears with its first observation."""
        self._head(name, "histogram", meaning)
        for labels, numbers in samples:
            if not any(numbers.counts):
                continue
            below = 0
            for bound, count in zip((*numbers.bounds, math.inf), numbers.counts, strict=True):
                below += count
                self._sample(f"{name}_bucket", {**labels, "le": _number(bound)}, below)
            self._sample(f"{name}_sum", labels, numbers.total)
            self._sample(f"{name}_count", labels, below)

    def text(self) -> bytes:
        """Everything so far."""
        return "".join(self._lines).encode()

    def _family(self, name: str, kind: str, meaning: str, samples: Samples | float) -> None:
        self._head(name, kind, meaning)
        for labels, value in [({}, samples)] if isinstance(samples, float | int) else samples:
            self._sample(name, labels, value)

    def _head(self, name: str, kind: str, meaning: str) -> None:
        self._lines.append(f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n")

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        self._lines.append(
            f"{name}{{{inside}}} {_number(value)}\n" if inside else f"{name} {_number(value)}\n"
        )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(value)


def process_metrics() -> bytes:
    """process_* and python_gc_* of this process."""
    return _of_process()()


@lru_cache(maxsize=1)
def _of_process() -> Callable[[], bytes]:
    """Made for who asks first, not at each start: the library brings a server of HTTP."""
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

    process = CollectorRegistry()
    ProcessCollector(registry=process)
    GCCollector(registry=process)
    return partial(generate_latest, process)
