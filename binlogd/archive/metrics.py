"""The archiver's figures as Prometheus text."""

from __future__ import annotations

from binlogd.archive.archiver import ArchiverStatistics
from binlogd.telemetry import Exposition


def say_archiver(out: Exposition, now: ArchiverStatistics) -> None:
    """Adds them to `out`."""
