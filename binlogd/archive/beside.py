"""The archiver beside a node that runs."""

from __future__ import annotations

from collections.abc import Callable

from binlogd.archive.archiver import Archiver, ArchiverOptions, Logs
from binlogd.archive.task import FILES_MAX, Keep
from binlogd.extras import require
from binlogd.settings.quantities import kept_s
from binlogd.settings.setup import Setup
from binlogd.tso import Tso
from binlogd.upstream.upstream import Upstream

HOLD = "archive"
"""As whom it keeps binlogs from being deleted."""


def archiving(
    setup: Setup,
    upstream: Upstream,
    logs: Logs,
    hold: Callable[[Tso], None],
    resolved_ts: Callable[[], Tso],
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

    of = setup.config.archive
    keep = Keep(keep_s=kept_s("archive.keep", of.keep), base=of.base, files_max=FILES_MAX)
    options = ArchiverOptions(
        data_dir=str(setup.data_dir),
        url=of.url,
        interval_s=of.interval,
        tail_interval_s=of.tail_interval,
        keep=keep if keep.keep_s else None,
    )
    return Archiver(options, logs, hold=hold, refresh=refresh, resolved_ts=resolved_ts)
