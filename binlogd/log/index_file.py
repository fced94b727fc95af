"""What a shard's index says of itself: its marks, and the segments that it remembers.

The database is the Pump's (`pump/shard/index_database.py`); whoever reads a data directory may look
into it. docs/FORMAT.md, index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import google_crc32c
import msgspec

from binlogd.log.pointer import FIRST, FileId, ValuePointer
from binlogd.tso import NO_TS, Tso

FORMAT = 1
FILES = ("index.db", "index.db-wal", "index.db-shm")
MARKS_QUERY = "SELECT name, value FROM marks"
SEGMENTS_QUERY = "SELECT fid, sealed, size, max_ts, needed_ts, checksum FROM segments ORDER BY fid"


class Segment(msgspec.Struct, frozen=True, gc=False):
    """One `NNNNNN.vlog`.

    `max_ts` is the largest index timestamp of its records (start_ts of a prewrite, else commit_ts),
    `needed_ts` the largest commit_ts of a transaction whose prewrite is in it. `checksum` is the
    CRC-32C of the whole file, None while the segment grows.
    """

    fid: FileId
    is_sealed: bool
    size_bytes: int
    max_ts: Tso = NO_TS
    needed_ts: Tso = NO_TS
    checksum: int | None = None

    @property
    def gone_ts(self) -> Tso:
        """Once the segment is gone, binlogs up to here can no longer be read whole."""
        return max(self.max_ts, self.needed_ts)


class Marks(msgspec.Struct, frozen=True, gc=False):
    """How far a shard had come.

    Everything before `head` is filed. A restart scans from the smaller of `head` and `handle`;
    `max_commit_ts` is the watermark that belongs to them. Up to `gc_ts` binlogs may be gone, and
    no segment below `first_fid` is left. `boot_id` is that of the last process that wrote.
    """

    head: ValuePointer = FIRST
    handle: ValuePointer = FIRST
    max_commit_ts: Tso = NO_TS
    gc_ts: Tso = NO_TS
    first_fid: FileId = FIRST.fid
    boot_id: str = ""


def marks_of(rows: Iterable[tuple[str, Any]]) -> Marks | None:
    """What `MARKS_QUERY` gives; None in a new index. Raises ValueError when it makes no sense, or
    is of a format that is not known here."""
    found = dict(rows)
    if not found.keys() - {"format"}:
        return None
    try:
        if found["format"] != FORMAT:
            raise ValueError(f"it has format {found['format']}, this binlogd knows {FORMAT}")
        if "checksum" in found and found["checksum"] != _sum_of(found):
            raise ValueError("its marks do not match their checksum")
        return Marks(
            head=ValuePointer.decode(found["head_pointer"]),
            handle=ValuePointer.decode(found["handle_pointer"]),
            max_commit_ts=Tso(int(found["max_commit_ts"])),
            gc_ts=Tso(int(found["gc_ts"])),
            first_fid=FileId(int(found["first_fid"])),
            boot_id=str(found["boot_id"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"its marks make no sense: {error!r}") from error


def mark_rows(marks: Marks) -> list[tuple[str, object]]:
    """What `marks_of` is given, but for the format."""
    found: dict[str, object] = {
        "head_pointer": marks.head.encode(),
        "handle_pointer": marks.handle.encode(),
        "max_commit_ts": marks.max_commit_ts,
        "gc_ts": marks.gc_ts,
        "first_fid": marks.first_fid,
        "boot_id": marks.boot_id,
    }
    return [*found.items(), ("checksum", _sum_of(found))]


def _sum_of(found: Mapping[str, object]) -> int:
    """Of all that counts: the database has no checksums of its own."""
    return int(google_crc32c.value(repr([found[name] for name in _NAMES]).encode()))


_NAMES = ("head_pointer", "handle_pointer", "max_commit_ts", "gc_ts", "first_fid", "boot_id")


def segments_of(rows: Iterable[tuple[Any, ...]]) -> list[Segment]:
    """What `SEGMENTS_QUERY` gives. Raises ValueError when it makes no sense."""
    rows = list(rows)
    for row in rows:
        if not all(isinstance(each, int) and each >= 0 for each in (*row[:5], row[5] or 0)):
            raise ValueError(f"a segment of it makes no sense: {row}")
    return [
        Segment(FileId(fid), bool(sealed), size, Tso(max_ts), Tso(needed_ts), checksum)
        for fid, sealed, size, max_ts, needed_ts, checksum in rows
    ]
