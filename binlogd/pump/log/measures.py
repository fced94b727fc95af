"""What the storage of one shard did, counted where it is done.

Source: tidb-binlog pump/storage/metrics.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from binlogd.telemetry.histogram import Histogram, HistogramStatistics, SizeHistogram, doubling

_SIZES = 25
_SECONDS = doubling(0.00005, 20)
_CHASE_SECONDS = doubling(0.001, 22)


@dataclass(frozen=True, slots=True)
class MeasuresStatistics:
    """By the original's label values. Sizes in bytes, durations in seconds."""

    sizes: Mapping[str, HistogramStatistics]
    seconds: Mapping[str, HistogramStatistics]
    chase_seconds: HistogramStatistics
    errors: Mapping[str, int]
    deleted_rows: int


class Measures:
    """Counts in the shard's own thread; what is done for each binlog is one addition."""

    def __init__(self) -> None:
        self.single_size = SizeHistogram(_SIZES)
        self.batch_size = SizeHistogram(_SIZES)
        self.single_s = Histogram(_SECONDS)
        self.batch_s = Histogram(_SECONDS)
        self.to_disk_s = Histogram(_SECONDS)
        self.fsync_s = Histogram(_SECONDS)
        self.rotate_s = Histogram(_SECONDS)
        self.chase_s = Histogram(_CHASE_SECONDS)
        self.errors: Counter[str] = Counter()
        self.deleted_rows = 0

    def statistics(self) -> MeasuresStatistics:
        """So far; cheap."""
        return MeasuresStatistics(
            sizes={
                "single": self.single_size.statistics(),
                "batch": self.batch_size.statistics(),
            },
            seconds={
                "single": self.single_s.statistics(),
                "batch": self.batch_s.statistics(),
                "to_disk": self.to_disk_s.statistics(),
                "fsync": self.fsync_s.statistics(),
                "rotate": self.rotate_s.statistics(),
            },
            chase_seconds=self.chase_s.statistics(),
            errors=dict(self.errors),
            deleted_rows=self.deleted_rows,
        )
