"""Where the records of a segment end, and what a start makes of it: whole, torn, or damaged.

Only the end of the last segment can be torn, and only what was never acknowledged. Anything else
that does not read is damage, and is reported with its place.

Source: tidb-binlog pump/storage/vlog.go; docs/FORMAT.md, value log.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from binlogd.errors import CorruptRecord
from binlogd.log import record
from binlogd.log.drive import DiskReading
from binlogd.log.index_file import Segment
from binlogd.log.pointer import ValuePointer
from binlogd.log.scan import End, Ending, resumes
from binlogd.ports import Disk
from binlogd.tso import NO_TS

log = structlog.get_logger(__name__)


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """What a restart knows about the end of the log.

    Everything before `upto` was acknowledged. `same_boot`: the machine has not gone down since the
    log was last written, so every byte that a write call took is there.
    """

    upto: ValuePointer
    same_boot: bool


class SegmentEnd:
    """Where the scan of a segment has ended. Methods raise OSError."""

    def __init__(self, disk: Disk, path: Path, segment: Segment, end: End) -> None:
        self._disk, self._path, self._segment, self._end = disk, path, segment, end

    async def settled(self, acknowledged: Acknowledged, flush_bytes_max: int | None) -> Segment:
        """The segment as a start goes on with it, once what is torn is cut away.

        `flush_bytes_max` limits what was written and synced at a time; of one with others behind it
        there is none, for it was acknowledged whole. Raises CorruptRecord for damage.
        """
        segment, end = self._segment, self._end
        if end.ending is not Ending.WHOLE:
            if flush_bytes_max is None or not await self._is_torn(acknowledged, flush_bytes_max):
                raise await self.damage()
            await self._disk.truncate(self._path, end.offset)
            log.warning(
                "tail_cut",
                path=str(self._path),
                offset=end.offset,
                cut_bytes=segment.size_bytes - end.offset,
                reason=end.reason,
            )
            segment = replace(segment, size_bytes=end.offset)
        footer_ts = record.footer_ts(end.footer)
        if footer_ts is None and flush_bytes_max is not None:
            return segment
        max_ts = segment.max_ts
        if footer_ts is not None and segment.is_sealed and footer_ts != max_ts != NO_TS:
            # A footer has no checksum, and a time source goes on from what it says.
            at = segment.size_bytes - record.FOOTER_BYTES
            reason = f"the footer says {footer_ts}, the index remembers {max_ts}"
            raise CorruptRecord(self._path, at, reason)
        return replace(segment, is_sealed=True, max_ts=max(footer_ts or NO_TS, max_ts))

    async def damage(self) -> CorruptRecord:
        """The error that says what is unreadable, and where whole records go on."""
        good = await self._next_good()
        lost = (self._segment.size_bytes if good is None else good) - self._end.offset
        where = f"{lost} bytes up to the end of the segment are unreadable"
        if good is not None:
            where = f"{lost} bytes are unreadable, whole records go on at offset {good}"
        return CorruptRecord(self._path, self._end.offset, f"{self._end.reason}; {where}")

    async def _is_torn(self, acknowledged: Acknowledged, flush_bytes_max: int) -> bool:
        """Whether the bytes at the end of the scan can be an append that nobody was told of.

        A process that dies leaves a prefix of its last append. A machine that goes down may leave
        any part of it, and whole records behind missing ones; but never more than one flush.
        """
        segment, end = self._segment, self._end
        if segment.is_sealed or ValuePointer(segment.fid, end.offset) < acknowledged.upto:
            return False
        if end.ending is Ending.TORN or await self._is_half_footer():
            return True
        if end.is_short or acknowledged.same_boot:
            return False
        return segment.size_bytes - end.offset <= await self._flush_bytes_max(flush_bytes_max)

    async def _flush_bytes_max(self, limit: int) -> int:
        """How long the last flush may have been: each is synced before the next begins, so what
        goes beyond it was acknowledged. Only a single record is longer than the limit says."""
        (head,) = await self._disk.read(self._path, [(self._end.offset, record.HEADER_BYTES)])
        alone = record.FRAMING.needs(head) or 0
        return alone if alone > limit and await self._next_good() is None else limit

    async def _is_half_footer(self) -> bool:
        """Whether the segment ends with the first bytes of the very footer that it would get."""
        (tail,) = await self._disk.read(self._path, [(self._end.offset, record.FOOTER_BYTES)])
        return record.footer(self._segment.max_ts).startswith(tail)

    async def _next_good(self) -> int | None:
        size = self._segment.size_bytes
        steps = resumes(record.FRAMING, fault=self._end.offset, size=size)
        return await DiskReading(self._disk, self._path, steps).ended()
