"""The process that archives: a task as JSON in, what was done as JSON out.

It is started by the running binlogd (archiver.py), which must not wait for disks, stores and
decoding itself.
"""

from __future__ import annotations

import sys

import msgspec

from binlogd.archive.keep import keep
from binlogd.archive.task import Archived, Keep, Task
from binlogd.archive.upload import archive
from binlogd.errors import BinlogdError
from binlogd.host.child import give, yield_to_others

MEMORY_BYTES_MAX = 1 << 30


def main() -> int:
    """One round, and one of retention; CANNOT and a sentence on standard error when it cannot."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    yield_to_others(MEMORY_BYTES_MAX)
    return give(lambda: _round(task), "a segment takes more memory than the archiver may have")


def _round(task: Task) -> bytes:
    archived = archive(task)
    if task.keep is not None:
        archived = _kept(task.url, task.keep, archived)
    return msgspec.json.encode(archived)


def _kept(url: str, asked: Keep, archived: Archived) -> Archived:
    """What cannot be removed yet holds up nothing that is archived."""
    try:
        removed = keep(url, asked)
    except (BinlogdError, OSError) as error:
        return msgspec.structs.replace(archived, not_removed=f"old segments stay: {error}")
    return msgspec.structs.replace(
        archived, removed=removed, gone_ts=max(archived.gone_ts, removed.leaving_ts)
    )


if __name__ == "__main__":
    sys.exit(main())
