"""Reads a segment from front to back, and says exactly where and why it had to stop.

Nothing is skipped: a scan ends at the first bytes that are no record. What follows them is looked
at only to tell an unfinished append from damage, and to name the stretch that cannot be read.

Source: tidb-binlog pump/storage/log.go, scan (which goes on behind bad bytes).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from binlogd import record
from binlogd.ports import Disk
from binlogd.tso import Tso

CHUNK_BYTES = 4 << 20


class SegmentScan:
    """One pass over a segment. What it found out stands in its fields once `batches` has ended.

    `end` is the offset behind the last good record. `fault` says what is wrong there, None if
    nothing is. `is_short`: the record at `end` announces more bytes than the file has. `footer_ts`
    is the max_ts of the footer, None if the segment is not sealed.
    """

    def __init__(
        self, disk: Disk, path: Path, *, start: int, size: int, record_bytes_max: int
    ) -> None:
        self.end = start
        self.fault: str | None = None
        self.is_short = False
        self.footer_ts: Tso | None = None
        self._disk = disk
        self._path = path
        self._size = size
        self._record_bytes_max = record_bytes_max

    async def batches(self) -> AsyncIterator[list[tuple[int, bytes]]]:
        """The records as (offset, payload), some megabytes at a time. Raises OSError."""
        want = CHUNK_BYTES
        while self.end < self._size and self.fault is None:  # ends: `end` grows or a fault is set
            if await self._at_footer():
                return
            begin = self.end
            take = min(self._size - begin, want)
            (stretch,) = await self._disk.read(self._path, [(begin, take)])
            found = record.split(stretch, record_bytes_max=self._record_bytes_max)
            self.end = begin + found.consumed
            if found.records:
                yield [(begin + offset, payload) for offset, payload in found.records]
            remaining = self._size - self.end
            if remaining == record.FOOTER_BYTES and found.consumed:
                continue  # a footer is shorter than a header: look for it first
            self.fault = found.fault
            if found.fault is None and (found.needs > remaining or len(stretch) < take):
                self.fault = f"{found.needs} bytes are announced, {remaining} are there"
                self.is_short = True
            want = max(CHUNK_BYTES, found.needs)

    async def _at_footer(self) -> bool:
        if self._size - self.end != record.FOOTER_BYTES:
            return False
        (tail,) = await self._disk.read(self._path, [(self.end, record.FOOTER_BYTES)])
        self.footer_ts = record.footer_ts(tail)
        return self.footer_ts is not None


async def next_good(
    disk: Disk, path: Path, *, after: int, size: int, record_bytes_max: int
) -> int | None:
    """Where the next whole record, or the footer, begins behind damaged bytes; None if nowhere."""
    begin = after + 1
    while size - begin >= record.HEADER_BYTES:  # ends: `begin` grows by a chunk each turn
        (stretch,) = await disk.read(path, [(begin, CHUNK_BYTES)])
        found = record.next_magic(stretch, 0)
        while found is not None:
            if await _is_record(disk, path, begin + found, size, record_bytes_max):
                return begin + found
            found = record.next_magic(stretch, found + 1)
        begin += CHUNK_BYTES - 3  # a magic may lie across the border
    if size - after > record.FOOTER_BYTES:
        (tail,) = await disk.read(path, [(size - record.FOOTER_BYTES, record.FOOTER_BYTES)])
        if record.footer_ts(tail) is not None:
            return size - record.FOOTER_BYTES
    return None


async def _is_record(disk: Disk, path: Path, offset: int, size: int, record_bytes_max: int) -> bool:
    """Whether a whole record with the right checksum begins here."""
    want = record.HEADER_BYTES
    for _ in range(2):  # the header, then what it announces
        (stretch,) = await disk.read(path, [(offset, want)])
        found = record.split(stretch, record_bytes_max=record_bytes_max)
        if found.records:
            return True
        want = found.needs
        if found.fault is not None or want > size - offset:
            return False
    return False


def unreadable(fault: str, begin: int, good: int | None, size: int) -> str:
    """The reason for a CorruptRecord: what is wrong, and which stretch cannot be read for it."""
    if good is None:
        return f"{fault}; {size - begin} bytes up to the end of the segment are unreadable"
    return f"{fault}; {good - begin} bytes are unreadable, whole records go on at offset {good}"
