"""What operators read: log lines, and the numbers of every part under the original's metric names.

Components count by themselves and offer `statistics()`; `pump/metrics.py` and `drainer/metrics.py`
name those values, and here they become text. Names are the original's to the letter, counters
without `_total` included, because dashboards and alerts rely on them; prometheus_client would
rename such counters, so the exposition is written here. What the original lacks begins `binlogd_`.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TextIO

import structlog
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from structlog.typing import Processor

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}

Samples = Iterable[tuple[Mapping[str, str], float]]


def set_up_logging(level: str, stream: TextIO = sys.stdout) -> None:
    """One event on a line: coloured on a terminal, JSON elsewhere; `level` as in the configuration.

    What libraries log by themselves comes out in the same form, from warnings on.
    """
    steps: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    render: Processor
    if stream.isatty():
        render = structlog.dev.ConsoleRenderer()
    else:
        steps.append(structlog.processors.format_exc_info)
        render = structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[*steps, render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *steps],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(_LEVELS[level], logging.WARNING), force=True)


class Seldom:
    """For events that a stranger can cause at will: one is told, then none for a while."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._told_s = -math.inf
        self._untold = 0

    def due(self, now_s: float) -> int | None:
        """How many have gone untold since the last one that was told; None if this goes so too."""
        if now_s - self._told_s < self._every_s:
            self._untold += 1
            return None
        untold, self._untold, self._told_s = self._untold, 0, now_s
        return untold


# --- Prometheus text -----------------------------------------------------------------------


class HistogramNumbers(Protocol):
    """Observations by size."""

    @property
    def bounds(self) -> Sequence[float]:
        """Upper bounds of the buckets, ascending."""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """Of each bucket by itself, with one more for what is above all bounds."""
        ...

    @property
    def total(self) -> float:
        """The sum of all observations."""
        ...


class Exposition:
    """Collects metric families and says them in Prometheus text format 0.0.4."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def counter(self, name: str, meaning: str, samples: Samples | float) -> None:
        """A number that only rises."""
        self._family(name, "counter", meaning, samples)

    def gauge(self, name: str, meaning: str, samples: Samples | float) -> None:
        """A number that rises and falls."""
        self._family(name, "gauge", meaning, samples)

    def histogram(
        self,
        name: str,
        meaning: str,
        samples: Iterable[tuple[Mapping[str, str], HistogramNumbers]],
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


_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)
GCCollector(registry=_PROCESS)


def process_metrics() -> bytes:
    """process_* and python_gc_* of this process."""
    return generate_latest(_PROCESS)
