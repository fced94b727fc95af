"""`binlogd ctl generate_meta`: where a new Drainer is to begin.

Source: tidb-binlog binlogctl/meta.go. Its two lines of time make the file one that no Drainer can
read; here they are comments.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlogd import offline_commands
from binlogd.commands.output import warn
from binlogd.errors import ConfigError
from binlogd.settings.setup import Setup
from binlogd.tso import Tso, physical_ms

_DIRECTORY_MODE, _FILE_MODE = 0o700, 0o644
_TIME = "%Y-%m-%d %H:%M:%S %z %Z"


def save(setup: Setup, directory: Path, time_zone: str) -> tuple[Tso, Path]:
    """Asks PD for the time and writes it; what was written, and where. Raises ConfigError,
    UpstreamUnavailable."""
    ts = offline_commands.timestamp_of_pd(setup)
    path = directory / "savepoint"
    try:
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text("".join(f"{line}\n" for line in _lines(ts, time_zone)))
        beside.chmod(_FILE_MODE)
        os.replace(beside, path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; name a directory that may be written, by"
            " --data-dir"
        ) from error
    return ts, path


def _lines(ts: Tso, time_zone: str) -> list[str]:
    lines = [f"commitTS = {ts}"]
    if time_zone:
        now = datetime.fromtimestamp(physical_ms(ts) / 1000, tz=UTC)
        try:
            there = now.astimezone(ZoneInfo(time_zone))
        except (ZoneInfoNotFoundError, ValueError):
            warn(f"time zone {time_zone} is not known: left out")
        else:
            lines += [f"# {each.strftime(_TIME)}" for each in (now, there)]
    return lines
