"""What an error of the disk means to whoever writes to a log."""

from __future__ import annotations

import errno
from pathlib import Path

from binlogd.errors import DiskFull, LogFailed
from binlogd.ports import Disk

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


async def failed(disk: Disk, path: Path, error: OSError) -> DiskFull | LogFailed:
    """The error to raise for one of the disk at a file."""
    if error.errno in _NO_SPACE:
        try:
            return DiskFull((await disk.space(path.parent)).free_bytes, 0)
        except OSError as again:
            error = again
    return LogFailed(path, error)
