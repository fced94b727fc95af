"""The archiver beside a node that runs."""

from __future__ import annotations

from binlogd.archive.archiver import Archiver, ArchiverOptions
from binlogd.archive.metrics import ArchiverReport
from binlogd.archive.task import check_installed
from binlogd.node.operations import Node
from binlogd.pump.pump import Pump
from binlogd.settings.setup import Setup
from binlogd.upstream.upstream import Upstream

HOLD = "archive"
"""As whom it keeps binlogs from being deleted."""


def archiving(setup: Setup, node: Node, pump: Pump, upstream: Upstream) -> Archiver | None:
    """What is to be run, if there is an archive: nothing is deleted that is not in it.

    Raises ConfigError.
    """
    if not setup.archive_url:
        return None
    check_installed(setup.archive_url)

    async def refresh() -> int | None:
        await upstream.history.known_jobs()
        return upstream.cluster.cluster_id

    options = ArchiverOptions(
        data_dir=str(setup.data_dir),
        url=setup.archive_url,
        interval_s=setup.config.archive.interval,
    )
    archiver = Archiver(options, pump.logs, hold=lambda ts: pump.hold_gc(HOLD, ts), refresh=refresh)
    node.archiver = ArchiverReport(archiver)
    return archiver
