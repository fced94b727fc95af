"""What an error of the disk means to whoever writes to a log."""

from __future__ import annotations

from pathlib import Path

from binlogd.errors import DiskFull, LogFailed
from binlogd.host.disk import is_no_space
from binlogd.ports import Disk


async def failed(disk: Disk, path: Path, error: OSError) -> DiskFull | LogFailed:
    """The error to raise for one of the disk at a file."""
    if is_no_space(error):
        try:
            return DiskFull((await disk.space(path.parent)).free_bytes, 0)
        except OSError as again:
            error = again
    return LogFailed(path, error)
