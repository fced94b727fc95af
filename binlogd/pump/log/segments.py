"""The segments of a shard's log: which there are, what is remembered of them, and what is in them.

Invariant. They are numbered without gaps, and only the last one grows. `end` is behind the last
acknowledged record: a reader never sees what nobody was told of.

Source: tidb-binlog pump/storage/vlog.go; docs/FORMAT.md, value log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from binlogd.errors import ConfigError, CorruptRecord, LogFailed
from binlogd.host.disk import disk_errors
from binlogd.log import record
from binlogd.log.drive import DiskReading
from binlogd.log.index_file import Segment
from binlogd.log.pointer import (
    FIRST,
    MISSING,
    FileId,
    Place,
    Spot,
    ValuePointer,
    missing_fids,
    segment_fid,
    segment_name,
)
from binlogd.log.runs import cut, runs
from binlogd.log.scan import Batch, End, Ending, scan
from binlogd.log.stored import StoredRecord
from binlogd.ports import Disk
from binlogd.pump.log import pieces
from binlogd.pump.log.measures import Measures
from binlogd.pump.log.spool import SPOOL_SUFFIX
from binlogd.pump.log.tail import Acknowledged, SegmentEnd
from binlogd.tso import NO_TS, Tso
from binlogd.wire.outline import outline

Records = tuple[FileId, Batch]


class Segments:
    """Those of one directory, oldest first. Reads may come from many; one `ValueLog` writes."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.directory, self.disk = directory, disk
        self.measures = Measures()
        self._segments: dict[FileId, Segment] = {}  # in order: a log of days has thousands
        self._changed: set[FileId] = set()

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        disk: Disk,
        known: Sequence[Segment] = (),
        first_fid: FileId | None = None,
    ) -> Segments:
        """Lists them; `recover` comes next.

        `known` are the segments the index remembers; what lies below `first_fid` was deleted, and
        is removed should a crash have left it. Raises ConfigError for a file name with no number,
        CorruptRecord for a segment that is missing or of another size, LogFailed by a sync.
        """
        opened = cls(directory, disk)
        await disk.make_directory(directory)
        sizes = await disk.sizes(directory)
        try:
            fids = {segment_fid(name): size for name, size in sizes.items()}
        except ValueError as error:
            raise ConfigError(f"{directory}: {error}: move that file away") from error
        found = {fid: size for fid, size in fids.items() if fid is not None}
        left_over = [fid for fid in found if first_fid is not None and fid < first_fid]
        spools = [directory / name for name in sizes if name.endswith(SPOOL_SUFFIX)]
        await disk.remove([*map(opened.path, left_over), *spools])
        remembered = {segment.fid: segment for segment in known}
        for fid in sorted(found.keys() - set(left_over)):
            segment = remembered.get(fid) or Segment(fid, is_sealed=False, size_bytes=0)
            opened.put(replace(segment, size_bytes=found[fid]))
        for segment in known:
            opened._check_there(segment, found.get(segment.fid))
        if (missing := next(missing_fids(opened._segments, first_fid), None)) is not None:
            raise CorruptRecord(opened.path(missing), 0, MISSING)
        await opened._sync_last()
        return opened

    async def recover(
        self, start: ValuePointer, acknowledged: Acknowledged, flush_bytes_max: int
    ) -> AsyncGenerator[Records, None]:
        """Every record from `start` on, some megabytes at a time, of large ones the `Outline`; cuts
        a torn tail, which has no more than `flush_bytes_max` and a record.

        The caller reports the timestamps it finds by `note`. Raises CorruptRecord for damage,
        LogFailed when the disk cannot be read.
        """
        upto = acknowledged.upto
        found = self._segments.get(upto.fid)
        size = 0 if found is None else found.size_bytes
        if size < upto.offset:
            reason = f"acknowledged up to offset {upto.offset}, the file has {size} bytes"
            raise CorruptRecord(self.path(upto.fid), size, reason)
        for fid, reading in self._readings(start):
            with disk_errors(self.path(fid)):
                async for batch in reading.batches():
                    yield fid, batch
                end = self._end_of(fid, reading.found)
                limit = flush_bytes_max if fid == self.last.fid else None
                self.put(await end.settled(acknowledged, limit))

    # --- looking ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments.values())

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def last(self) -> Segment:
        """The newest; there is one as soon as the log has begun."""
        return next(reversed(self._segments.values()))

    @property
    def end(self) -> ValuePointer:
        """Behind the last acknowledged record."""
        last = next(reversed(self._segments), None)
        return FIRST if last is None else ValuePointer(last, self._segments[last].size_bytes)

    def path(self, fid: FileId) -> Path:
        """The file of a segment."""
        return self.directory / segment_name(fid)

    def changed(self) -> list[Segment]:
        """Segments that are not remembered as they are now, or not measured yet."""
        return [self._segments[fid] for fid in sorted(self._changed)]

    # --- keeping ---------------------------------------------------------------------------

    def put(self, segment: Segment) -> None:
        """How one is now, or a new one behind the others."""
        self._segments[segment.fid] = segment
        self._changed.add(segment.fid)

    def note(self, fid: FileId, *, max_ts: Tso = NO_TS, needed_ts: Tso = NO_TS) -> None:
        """Raises the timestamps of a segment; for one that is gone, nothing happens."""
        segment = self._segments.get(fid)
        if segment is not None and (max_ts > segment.max_ts or needed_ts > segment.needed_ts):
            max_ts, needed_ts = max(max_ts, segment.max_ts), max(needed_ts, segment.needed_ts)
            self.put(replace(segment, max_ts=max_ts, needed_ts=needed_ts))

    async def measure(self, fid: FileId) -> None:
        """Reads a sealed segment once and remembers its checksum. Raises LogFailed."""
        segment = self._segments[fid]
        assert segment.is_sealed, "only a sealed segment has a checksum"
        with disk_errors(self.path(fid)):
            checksum = await self.disk.checksum(self.path(fid), segment.size_bytes)
        self.put(replace(self._segments[fid], checksum=checksum))

    def saved(self, segments: Iterable[Segment]) -> None:
        """These are remembered now."""
        for segment in segments:
            is_measured = segment.checksum is not None or not segment.is_sealed
            if is_measured and self._segments.get(segment.fid) == segment:
                self._changed.discard(segment.fid)

    async def delete(self, fids: Sequence[FileId]) -> None:
        """Removes segments. Raises LogFailed; what is left over goes at the next start."""
        for fid in fids:
            del self._segments[fid]
            self._changed.discard(fid)
        with disk_errors(self.directory):
            await self.disk.remove([self.path(fid) for fid in fids])

    # --- reading ---------------------------------------------------------------------------

    async def read(self, places: Sequence[Spot]) -> list[bytes]:
        """The payloads at some places, checked. Raises CorruptRecord or LogFailed."""
        try:
            return await self._read(places)
        except (CorruptRecord, LogFailed):
            self.measures.errors["read_value"] += 1
            raise

    async def stored(self, place: Place) -> StoredRecord:
        """The payload at a place, checked and left there, for one that is too large to be held.
        Raises CorruptRecord or LogFailed."""
        return await pieces.stored(self.disk, self.path(place.fid), place)

    async def scan(self, start: ValuePointer) -> AsyncGenerator[Records, None]:
        """The acknowledged records from `start` up to the present end of the log, of large ones the
        `Outline`.

        Raises CorruptRecord or LogFailed.
        """
        upto = self.end
        for fid, reading in self._readings(start):
            if fid > upto.fid:
                return
            with disk_errors(self.path(fid)):
                async for batch in reading.batches():
                    yield fid, batch
                await self._check_whole(fid, reading.found)

    async def check_last(self, start: int) -> None:
        """Reads the last one from an offset to its end. Raises CorruptRecord or OSError."""
        fid = self.last.fid
        await self._check_whole(fid, await self._reading(fid, start).ended())

    async def check_there(self) -> None:
        """Raises CorruptRecord where a sealed one was removed or cut under this process, LogFailed.

        Nobody reads what all have: without this the next start would be the first to say so.
        """
        sealed = [each for each in self if each.is_sealed]
        with disk_errors(self.directory):
            sizes = await self.disk.sizes(self.directory)
        for each in sealed:
            self._check_there(each, sizes.get(segment_name(each.fid)))

    # --- inside ----------------------------------------------------------------------------

    def _check_there(self, segment: Segment, size_bytes: int | None) -> None:
        path = self.path(segment.fid)
        if size_bytes is None:
            raise CorruptRecord(path, 0, "the index knows this segment, the file is missing")
        if segment.is_sealed and size_bytes != segment.size_bytes:
            reason = f"sealed with {segment.size_bytes} bytes, the file has {size_bytes}"
            raise CorruptRecord(path, min(segment.size_bytes, size_bytes), reason)

    async def _sync_last(self) -> None:
        """Makes durable what a process left behind that died between write and sync."""
        await self.disk.sync_directory(self.directory)
        if self._segments and not self.last.is_sealed:
            file = await self.disk.open_append(self.path(self.last.fid), create=False)
            try:
                with disk_errors(file.path):
                    await file.append([], sync=True)
            finally:
                await file.close()

    def _readings(self, start: ValuePointer) -> Iterator[tuple[FileId, DiskReading[End]]]:
        """Of each segment that is there now what lies from `start` on, in order."""
        for fid in list(self._segments):
            if fid >= start.fid:
                yield fid, self._reading(fid, start.offset if fid == start.fid else 0)

    def _reading(self, fid: FileId, start: int) -> DiskReading[End]:
        size = self._segments[fid].size_bytes
        steps = scan(record.FRAMING, start=start, size=size, outline=outline)
        return DiskReading(self.disk, self.path(fid), steps)

    def _end_of(self, fid: FileId, end: End) -> SegmentEnd:
        return SegmentEnd(self.disk, self.path(fid), self._segments[fid], end)

    async def _check_whole(self, fid: FileId, end: End) -> None:
        if end.ending is not Ending.WHOLE:
            raise await self._end_of(fid, end).damage()

    async def _read(self, places: Sequence[Spot]) -> list[bytes]:
        payloads = [b""] * len(places)
        for fid, some in runs(places):
            path = self.path(fid)
            try:
                blocks = await self.disk.read(path, [(run.begin, run.length) for run in some])
            except FileNotFoundError as error:
                raise CorruptRecord(path, some[0].begin, "no such segment") from error
            except OSError as error:
                raise LogFailed(path, error) from error
            for run, block in zip(some, blocks, strict=True):
                if (wrong := cut(block, run, places, payloads)) is not None:
                    raise CorruptRecord(path, *wrong)
        return payloads
