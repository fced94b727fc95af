"""Exports that are asked of a service, as operators see them: in /status and in /metrics."""

from __future__ import annotations

from binlogd.snapshot.export_queue import ExportQueue
from binlogd.status import ExportsStatus
from binlogd.telemetry.exposition import Exposition


class ExportQueueReport:
    """What the queue says of itself."""

    def __init__(self, queue: ExportQueue) -> None:
        self._queue = queue

    def status(self) -> ExportsStatus:
        """Its part of `/status`."""
        now = self._queue.statistics()
        job = now.now
        return ExportsStatus(
            waiting=now.waiting,
            running=job.id if job is not None else None,
            stage=job.stage if job is not None else "",
            done=job.done if job is not None else 0,
            total=job.total if job is not None else 0,
            finished=now.finished,
            is_warm=self._queue.is_warm,
        )

    def say(self, out: Exposition) -> None:
        """Its metrics."""
        now = self._queue.statistics()
        out.gauge("binlogd_exports_running", "One at a time.", now.running)
        out.gauge("binlogd_exports_waiting", "Behind the one that runs.", now.waiting)
        out.gauge(
            "binlogd_exports_warm", "1 while a Spark process is kept.", int(self._queue.is_warm)
        )
        outcomes = [({"outcome": state}, count) for state, count in sorted(now.finished.items())]
        out.counter("binlogd_exports_finished", "By outcome.", outcomes)
        out.counter("binlogd_exports_refused", "As many waited as may.", now.refused)
        out.histogram("binlogd_exports_seconds", "Of those that were done.", [({}, now.seconds)])
        out.counter("binlogd_exports_rows", "In snapshots that were made.", now.rows)
        out.counter("binlogd_exports_bytes", "In snapshots that were made.", now.size_bytes)
