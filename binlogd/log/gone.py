"""How far a shard's log is deleted, kept beside its segments, for an index that is made again."""

from __future__ import annotations

from pathlib import Path

from binlogd.errors import CorruptRecord
from binlogd.log.pointer import FIRST, FileId
from binlogd.ports import Disk
from binlogd.tso import NO_TS, Tso


def path(directory: Path) -> Path:
    """The file, for the segments in `directory`."""
    return directory.with_name("value.gone")


async def said(directory: Path, disk: Disk) -> tuple[Tso, FileId]:
    """What `note` kept: up to which timestamp binlogs may be gone, and the first segment that
    is left. Raises CorruptRecord when it does not read, OSError."""
    file = path(directory)
    if file.name not in await disk.sizes(file.parent):
        return NO_TS, FIRST.fid
    (content,) = await disk.read(file, [(0, 64)])
    gc_ts, _, first_fid = content.strip().partition(b" ")
    if not (gc_ts.isdigit() and first_fid.isdigit()):
        raise CorruptRecord(file, 0, "it should hold a timestamp and the number of a segment")
    return Tso(int(gc_ts)), FileId(int(first_fid))


async def note(directory: Path, disk: Disk, gc_ts: Tso, first_fid: FileId) -> None:
    """Keeps it for the segments in `directory`, durably. Raises OSError."""
    await disk.write_whole(path(directory), f"{gc_ts} {first_fid}\n".encode())
