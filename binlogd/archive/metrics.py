"""The archiver as operators see it: in /status and in /metrics."""

from __future__ import annotations

from binlogd.archive.archiver import Archiver
from binlogd.status import ArchiveStatus
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import physical_ms


class ArchiverReport:
    """What one archiver says of itself."""

    def __init__(self, archiver: Archiver) -> None:
        self._archiver = archiver

    def status(self) -> ArchiveStatus:
        """Its part of `/status`."""
        return self._archiver.statistics()

    def say(self, out: Exposition) -> None:
        """Its metrics."""
        now = self._archiver.statistics()
        out.counter("binlogd_archive_segments", "Archived by this process.", now.segments)
        out.counter("binlogd_archive_bytes", "Archived by this process.", now.size_bytes)
        out.counter(
            "binlogd_archive_failures", "Rounds that failed; each is tried again.", now.failures
        )
        out.gauge("binlogd_archive_segments_waiting", "Sealed, and not archived yet.", now.waiting)
        if now.behind_s is not None:
            out.gauge(
                "binlogd_archive_behind_seconds",
                "Since the archive had all that was durable.",
                now.behind_s,
            )
        out.gauge("binlogd_archive_failed", "1 while rounds fail.", int(bool(now.failed)))
        out.gauge(
            "binlogd_archive_resolved_ts",
            "Physical ms up to which the archive is complete.",
            physical_ms(now.resolved_ts),
        )
        out.gauge(
            "binlogd_archive_gone_ts",
            "Physical ms from which on the archive can be read; 0: from its beginning.",
            physical_ms(now.gone_ts),
        )
        out.counter(
            "binlogd_archive_removed", "Files that retention removed (archive.keep).", now.removed
        )
