"""What the storage of one shard did, counted where it is done.

Source: tidb-binlog pump/storage/metrics.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from binlogd.telemetry.histogram import Histogram, HistogramStatistics, SizeHistogram, doubling

_SIZES = 25
_SECONDS = doubling(0.00005, 20)
_CHASE_SECONDS = doubling(0.001, 22)
_STEPS = ("single", "batch", "to_disk", "fsync", "rotate")


class MeasuresStatistics(msgspec.Struct, frozen=True):
    """By the original's label values. Sizes in bytes, durations in seconds."""

    sizes: Mapping[str, HistogramStatistics]
    seconds: Mapping[str, HistogramStatistics]
    chase_seconds: HistogramStatistics
    errors: Mapping[str, int]
    deleted_rows: int


class Measures:
    """Counts in the shard's own thread; what is done for each binlog is one addition."""

    def __init__(self) -> None:
        self.sizes = {kind: SizeHistogram(_SIZES) for kind in ("single", "batch")}
        self.seconds = {kind: Histogram(_SECONDS) for kind in _STEPS}
        self.chase_s = Histogram(_CHASE_SECONDS)
        self.errors: Counter[str] = Counter()
        self.written_records = self.written_bytes = self.failed_records = self.groups = 0
        self.deleted_rows = 0

    def written(self, sizes: Sequence[int], took_s: float) -> None:
        """A group was, of payloads of these sizes."""
        self.groups += 1
        if sizes:
            size_bytes = sum(sizes)
            self.written_records += len(sizes)
            self.written_bytes += size_bytes
            self.sizes["single"].observe_all(sizes)
            self.sizes["batch"].observe(size_bytes)
            self.seconds["batch"].observe(took_s)

    def statistics(self) -> MeasuresStatistics:
        """So far; cheap."""
        return MeasuresStatistics(
            sizes={kind: each.statistics() for kind, each in self.sizes.items()},
            seconds={kind: each.statistics() for kind, each in self.seconds.items()},
            chase_seconds=self.chase_s.statistics(),
            errors=dict(self.errors),
            deleted_rows=self.deleted_rows,
        )
