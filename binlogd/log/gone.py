"""How far a shard's log is deleted, kept beside its segments, for an index that is made again."""

from __future__ import annotations

from pathlib import Path

from binlogd.errors import CorruptRecord, Refused
from binlogd.log.checked_text import TEXT_BYTES_MAX, checksummed, text_in
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
    (content,) = await disk.read(file, [(0, TEXT_BYTES_MAX)])
    return _parsed(file, content)


async def note(directory: Path, disk: Disk, gc_ts: Tso, first_fid: FileId) -> None:
    """Keeps it for the segments in `directory`, durably. Raises OSError."""
    await disk.write_whole(path(directory), checksummed(b"%d %d" % (gc_ts, first_fid)))


def gone_ts(shard: int, directory: Path, first_fid: int) -> Tso:
    """Up to which timestamp binlogs may be gone from a log that begins with segment `first_fid`.

    Raises Refused where nobody knows, or more is missing than was deleted; OSError.
    """
    file = path(directory)
    try:
        ts, upto = _parsed(file, file.read_bytes()[:TEXT_BYTES_MAX])
    except (FileNotFoundError, CorruptRecord) as error:
        if first_fid == FIRST.fid:
            return NO_TS
        raise Refused(
            f"the log of shard {shard} begins with file {first_fid}, and {file} does not tell up to"
            " when binlogs are gone: start binlogd once, which finds out"
        ) from error
    if first_fid > upto:
        raise Refused(
            f"the log of shard {shard} begins with file {first_fid}, but GC went up to file {upto}"
            " only: put the files in between back"
        )
    return ts


def _parsed(file: Path, content: bytes) -> tuple[Tso, FileId]:
    try:
        ts, _, first_fid = text_in(content).partition(b" ")
    except ValueError as error:
        raise CorruptRecord(file, 0, f"it should hold a timestamp and a number: {error}") from error
    if not (ts.isdigit() and first_fid.isdigit()):
        raise CorruptRecord(file, 0, "it should hold a timestamp and the number of a segment")
    return Tso(int(ts)), FileId(int(first_fid))
