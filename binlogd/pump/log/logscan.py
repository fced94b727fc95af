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
from typing import NamedTuple

from binlogd import record
from binlogd.ports import Disk
from binlogd.tso import Tso

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
            needs = await _announced(self._disk, self._path, scan.end)
            is_short = needs is not None and scan.end + needs[0] > end
            self.unreadable.append(Unreadable(scan.end, end, scan.fault, is_short))


async def resumes(disk: Disk, path: Path, *, fault: int, size: int) -> int | None:
    """Where the next whole record, or the footer, begins behind bytes that are no record; None if
    nothing follows.

    A record whose payload fits its checksum ends with it, and one that tells its length well ends
    there, whatever else is wrong with it: what its payload holds is none of the log's records, even
    if it looks like one.
    """
    needs = await _announced(disk, path, fault)
    if needs is not None:
        after = fault + needs[0]
        fits = await _fits(disk, path, at=fault, upto=min(after, size), size=size)
        for end in (after,) if fits is None else (fits, after):
            if end == size:
                return None
            if await _is_record(disk, path, end, size):
                return end
    begin = fault + 1
    while size - begin >= record.HEADER_BYTES:  # ends: `begin` grows by a chunk each turn
        (stretch,) = await disk.read(path, [(begin, CHUNK_BYTES)])
        found = record.next_magic(stretch, 0)
        while found is not None:
            if await _is_record(disk, path, begin + found, size):
                return begin + found
            found = record.next_magic(stretch, found + 1)
        begin += CHUNK_BYTES - 3  # a magic may lie across the border
    if size - fault > record.FOOTER_BYTES and await _footer(disk, path, size) is not None:
        return size - record.FOOTER_BYTES
    return None


async def has_wrong_length(disk: Disk, path: Path, *, at: int, size: int) -> bool:
    """Whether a record that announces more bytes than the file has is damaged, not unfinished.

    It is when its checksum fits a shorter payload, up to some later record or the end; or when
    whole records lead from somewhere behind it exactly to the end. A payload may hold the bytes of
    whole records, so that there is one alone tells nothing.
    """
    if await _announced(disk, path, at) is None:
        return False  # not even the header is whole
    if await _fits(disk, path, at=at, upto=size, size=size) is not None:
        return True
    return await _leads_to_the_end(disk, path, at, size)


async def _fits(disk: Disk, path: Path, *, at: int, upto: int, size: int) -> int | None:
    """Where, up to `upto`, the payload of the record at `at` ends by its checksum: before a magic,
    the footer or the end. None if nowhere: then the payload itself is damaged or unfinished."""
    needs = await _announced(disk, path, at)
    if needs is None:
        return None
    _, expected = needs
    begin, checksum = at + record.HEADER_BYTES, 0
    while begin <= upto:  # ends: `begin` grows by a chunk each turn
        (stretch,) = await disk.read(path, [(begin, CHUNK_BYTES + 3)])
        ends = (end - begin for end in (size - record.FOOTER_BYTES, size))
        stops = {end for end in ends if 0 <= end <= CHUNK_BYTES}
        stop = record.next_magic(stretch, 0)
        while stop is not None and stop < CHUNK_BYTES:
            stops.add(stop)
            stop = record.next_magic(stretch, stop + 1)
        done = 0
        for stop in sorted(stops):
            checksum = record.extend(checksum, stretch[done:stop])
            done = stop
            if checksum == expected and begin + stop <= upto:
                return begin + stop
        checksum = record.extend(checksum, stretch[done:CHUNK_BYTES])
        begin += CHUNK_BYTES
    return None


async def _leads_to_the_end(disk: Disk, path: Path, at: int, size: int) -> bool:
    begin = await resumes(disk, path, fault=at, size=size)
    while begin is not None and begin < size:  # ends: every turn begins behind the one before
        scan = SegmentScan(disk, path, start=begin, size=size)
        async for _ in scan.batches():
            pass
        if scan.fault is None:
            return scan.end > begin  # a footer alone is no record
        begin = await resumes(disk, path, fault=scan.end, size=size)
    return False


async def _announced(disk: Disk, path: Path, at: int) -> tuple[int, int] | None:
    (head,) = await disk.read(path, [(at, record.HEADER_BYTES)])
    return record.announced(head)


async def _footer(disk: Disk, path: Path, size: int) -> Tso | None:
    (tail,) = await disk.read(path, [(size - record.FOOTER_BYTES, record.FOOTER_BYTES)])
    return record.footer_ts(tail)


async def _is_record(disk: Disk, path: Path, offset: int, size: int) -> bool:
    """Whether a whole record with the right checksum begins here, or the footer."""
    if size - offset == record.FOOTER_BYTES:
        return await _footer(disk, path, size) is not None
    want = record.HEADER_BYTES
    for _ in range(2):  # the header, then what it announces
        if want > size - offset:
            return False
        (stretch,) = await disk.read(path, [(offset, want)])
        found = record.split(stretch)
        if found.records:
            return True
        want = found.needs
        if found.fault is not None:
            return False
    return False


def unreadable(fault: str, begin: int, good: int | None, size: int) -> str:
    """The reason for a CorruptRecord: what is wrong, and which stretch cannot be read for it."""
    if good is None:
        return f"{fault}; {size - begin} bytes up to the end of the segment are unreadable"
    return f"{fault}; {good - begin} bytes are unreadable, whole records go on at offset {good}"
