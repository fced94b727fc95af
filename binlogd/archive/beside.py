"""The archiver beside a node that runs."""

from __future__ import annotations

from collections.abc import Callable

from binlogd.archive.archiver import Archiver, ArchiverOptions, Logs
from binlogd.extras import require
from binlogd.settings.setup import Setup
from binlogd.tso import Tso
from binlogd.upstream.upstream import Upstream

HOLD = "archive"
"""As whom it keeps binlogs from being deleted."""


def archiving(
    setup: Setup, upstream: Upstream, logs: Logs, hold: Callable[[Tso], None]
) -> Archiver | None:
    """What is to be run, if there is an archive: nothing is deleted that is not in it.

    Raises ConfigError.
    """
    if not setup.config.archive.url:
        return None
    require("archive", "pyarrow")

    async def refresh() -> int | None:
        await upstream.history.known_jobs()
        return upstream.cluster.cluster_id

    options = ArchiverOptions(
        data_dir=str(setup.data_dir),
        url=setup.config.archive.url,
        interval_s=setup.config.archive.interval,
    )
    return Archiver(options, logs, hold=hold, refresh=refresh)
