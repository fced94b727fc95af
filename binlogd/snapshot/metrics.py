"""Exports that are asked of a service, as operators see them: in /status and in /metrics."""

from __future__ import annotations

from binlogd.snapshot.desk import Desk
from binlogd.status import ExportsStatus
from binlogd.telemetry.exposition import Exposition


class DeskReport:
    """What one desk says of itself."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def status(self) -> ExportsStatus:
        """Its part of `/status`."""
        now = self._desk.statistics()
        ticket = now.now
        return ExportsStatus(
            waiting=now.waiting,
            running=ticket.id if ticket is not None else None,
            stage=ticket.stage if ticket is not None else "",
            done=ticket.done if ticket is not None else 0,
            total=ticket.total if ticket is not None else 0,
            finished=now.finished,
            is_warm=self._desk.is_warm,
        )

    def say(self, out: Exposition) -> None:
        """Its metrics."""
        now = self._desk.statistics()
        out.gauge("binlogd_exports_running", "One at a time.", now.running)
        out.gauge("binlogd_exports_waiting", "Behind the one that runs.", now.waiting)
        out.gauge(
            "binlogd_exports_warm", "1 while a Spark process is kept.", int(self._desk.is_warm)
        )
        outcomes = [({"outcome": state}, count) for state, count in sorted(now.finished.items())]
        out.counter("binlogd_exports_finished", "By outcome.", outcomes)
        out.counter("binlogd_exports_refused", "As many waited as may.", now.refused)
        out.histogram("binlogd_exports_seconds", "Of those that were done.", [({}, now.seconds)])
        out.counter("binlogd_exports_rows", "In snapshots that were made.", now.rows)
        out.counter("binlogd_exports_bytes", "In snapshots that were made.", now.size_bytes)
