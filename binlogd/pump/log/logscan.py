"""Reads a segment from front to back, and says exactly where and why it had to stop.

A log that is used skips nothing: a `SegmentScan` ends at the first bytes that are no record, and
what follows them is looked at only to tell an unfinished append from damage. Who checks or adopts a
log reads on behind such bytes by a `Survey`, which remembers each stretch that it could not read.

Source: tidb-binlog pump/storage/log.go, scan and seekToNextRecord (which always goes on, and only
logs how many bytes it passed over).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from binlogd.log import record, tail
from binlogd.ports import Disk
from binlogd.tso import Tso

T = TypeVar("T")
CHUNK_BYTES = 4 << 20

Batch = list[tuple[int, bytes]]
"""Records as (offset, payload)."""


class SegmentScan:
    """One pass over a segment. What it found out stands in its fields once `batches` has ended.

    `end` is the offset behind the last good record. `fault` says what is wrong there, None if
    nothing is. `is_short`: the record at `end` announces more bytes than the file has. `footer_ts`
    is the max_ts of the footer, None if the segment is not sealed.
    """

    def __init__(self, disk: Disk, path: Path, *, start: int, size: int) -> None:
        self.end = start
        self.fault: str | None = None
        self.is_short = False
        self.footer_ts: Tso | None = None
        self._disk = disk
        self._path = path
        self._size = size

    async def batches(self) -> AsyncIterator[Batch]:
        """The records, some megabytes at a time. Raises OSError."""
        want = CHUNK_BYTES
        while self.end < self._size and self.fault is None:  # ends: `end` grows or a fault is set
            if await self._at_footer():
                return
            begin = self.end
            take = min(self._size - begin, want)
            (stretch,) = await self._disk.read(self._path, [(begin, take)])
            found = record.split(stretch)
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
        self.footer_ts = await _footer(self._disk, self._path, self._size)
        return self.footer_ts is not None


class Unreadable(NamedTuple):
    """A stretch of a segment, from `begin` to before `end`, that is no record.

    `is_short`: a record that announces more bytes than follow up to `end`, as an append leaves it
    that failed half-way and was never acknowledged.
    """

    begin: int
    end: int
    fault: str
    is_short: bool


class Survey:
    """A pass over a whole segment that goes on behind bytes that are no record.

    Once `batches` has ended, `unreadable` has every stretch that it passed over, and `footer_ts`
    the max_ts of the footer, None if there is none.
    """

    def __init__(self, disk: Disk, path: Path, *, size: int) -> None:
        self.unreadable: list[Unreadable] = []
        self.footer_ts: Tso | None = None
        self._disk = disk
        self._path = path
        self._size = size

    async def batches(self) -> AsyncIterator[Batch]:
        """The records, some megabytes at a time. Raises OSError."""
        begin: int | None = 0
        while begin is not None:  # ends: every turn begins behind the one before, or at a fault
            scan = SegmentScan(self._disk, self._path, start=begin, size=self._size)
            async for batch in scan.batches():
                yield batch
            self.footer_ts = scan.footer_ts
            if scan.fault is None:
                return
            begin = await resumes(self._disk, self._path, fault=scan.end, size=self._size)
            end = self._size if begin is None else begin
            (head,) = await self._disk.read(self._path, [(scan.end, record.HEADER_BYTES)])
            needs = record.FRAMING.needs(head)
            is_short = needs is not None and scan.end + needs > end
            self.unreadable.append(Unreadable(scan.end, end, scan.fault, is_short))


async def resumes(disk: Disk, path: Path, *, fault: int, size: int) -> int | None:
    """`tail.resumes` of a segment. Raises OSError."""
    return await _answered(disk, path, tail.resumes(record.FRAMING, fault=fault, size=size))


async def has_wrong_length(disk: Disk, path: Path, *, at: int, size: int) -> bool:
    """Whether a record that announces more bytes than the file has is damaged, not unfinished.
    Raises OSError."""
    judged = await _answered(disk, path, tail.judge(record.FRAMING, at=at, size=size))
    return judged.ending is not tail.Ending.TORN


async def _answered(disk: Disk, path: Path, asked: tail.Asked[T]) -> T:
    async def read(offset: int, length: int) -> bytes:
        (stretch,) = await disk.read(path, [(offset, length)])
        return stretch

    return await tail.awaited(asked, read)


async def _footer(disk: Disk, path: Path, size: int) -> Tso | None:
    (last,) = await disk.read(path, [(size - record.FOOTER_BYTES, record.FOOTER_BYTES)])
    return record.footer_ts(last)


def unreadable(fault: str, begin: int, good: int | None, size: int) -> str:
    """The reason for a CorruptRecord: what is wrong, and which stretch cannot be read for it."""
    if good is None:
        return f"{fault}; {size - begin} bytes up to the end of the segment are unreadable"
    return f"{fault}; {good - begin} bytes are unreadable, whole records go on at offset {good}"
