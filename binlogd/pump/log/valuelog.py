"""A shard's log: segments of records, appended in groups, durable before anyone hears of them.

Invariant I1. `append` returns after the bytes and the segment's directory entry are synced.
A failed write or sync poisons its segment: no later write goes to that descriptor, because the
kernel may have dropped pages and called them clean. The segment is read back and cut to what was
acknowledged, sealed through a new descriptor, and the log goes on in a new segment.

Only the end of the last segment can be torn, and only what was never acknowledged. Anything else
that does not read is damage, and is reported with its place.

Source: tidb-binlog pump/storage/vlog.go; docs/FORMAT.md, value log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from binlogd.errors import ConfigError, CorruptRecord, DiskFull, LogFailed
from binlogd.host.disk import disk_errors
from binlogd.log import gone, record
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
from binlogd.log.scan import Batch, End, Ending, resumes, scan
from binlogd.log.stored import StoredRecord
from binlogd.ports import AppendFile, Disk
from binlogd.pump.log import pieces
from binlogd.pump.log.failure import failed
from binlogd.pump.log.measures import Measures
from binlogd.pump.log.spool import SPOOL_SUFFIX, Spool
from binlogd.tso import NO_TS, Tso
from binlogd.wire.outline import outline

log = structlog.get_logger(__name__)

SEAL_AT_CLOSE_BYTES = 50 << 10
"""A segment at least this large is sealed at close, so that the next start need not scan it."""

_JOINED_BYTES = 1 << 20  # a larger payload is not copied to stand behind its header
Records = tuple[FileId, Batch]


class LogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of a segment, and of what is written and synced at a time."""

    segment_bytes_max: int = 500 << 20
    flush_bytes_max: int = 4 << 20


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """What a restart knows about the end of the log.

    Everything before `upto` was acknowledged. `same_boot`: the machine has not gone down since the
    log was last written, so every byte that a write call took is there.
    """

    upto: ValuePointer
    same_boot: bool


class ValueLog:
    """One directory of segments. `append` has one caller at a time; reads may come from many."""

    def __init__(self, directory: Path, disk: Disk, limits: LogLimits) -> None:
        self.measures = Measures()
        self._clock = asyncio.get_running_loop().time
        self._directory = directory
        self._disk = disk
        self._limits = limits
        self._segments: dict[FileId, Segment] = {}
        self._changed: set[FileId] = set()
        self._current: AppendFile | None = None
        self._is_poisoned = False
        self._flushed_at = 0  # where the last acknowledged batch in the current segment began
        self._refused: Path | None = None  # may be there, with a record that nobody was told of

    # --- opening ---------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        disk: Disk,
        limits: LogLimits,
        known: Sequence[Segment] = (),
        first_fid: FileId | None = None,
    ) -> ValueLog:
        """Lists the segments; `recover` and `begin` come next.

        `known` are the segments the index remembers; what lies below `first_fid` was deleted, and
        is removed should a crash have left it. Raises ConfigError for a file name with no number,
        CorruptRecord for a segment that is missing or of another size, LogFailed by a sync.
        """
        opened = cls(directory, disk, limits)
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
            opened._set(replace(segment, size_bytes=found[fid]))
        for segment in known:
            opened._check_known(segment)
        if (missing := next(missing_fids(opened._segments, first_fid), None)) is not None:
            raise CorruptRecord(opened.path(missing), 0, MISSING)
        await opened._sync_last()
        return opened

    async def recover(
        self, start: ValuePointer, acknowledged: Acknowledged
    ) -> AsyncGenerator[Records, None]:
        """Every record from `start` on, some megabytes at a time, of large ones the `Outline`; cuts
        a torn tail.

        The caller reports the timestamps it finds by `note`. Raises CorruptRecord for damage,
        LogFailed when the disk cannot be read.
        """
        self._check_acknowledged(acknowledged.upto)
        for fid, reading in self._readings(start):
            with disk_errors(self.path(fid)):
                async for batch in reading.batches():
                    yield fid, batch
                await self._finish(fid, reading.found, acknowledged)

    async def begin(self) -> None:
        """Gets ready to append behind what `recover` saw. Raises LogFailed or DiskFull."""
        try:
            last = max(self._segments, default=None)
            if last is None or self._segments[last].is_sealed:
                await self._create(FileId(0 if last is None else last + 1))
            else:
                self._current = await self._disk.open_append(self.path(last), create=False)
                self._flushed_at = self._current.size
        except OSError as error:
            raise await self._failure(error) from error

    # --- writing ---------------------------------------------------------------------------

    async def append(self, payloads: Sequence[bytes], max_ts: Tso) -> ValuePointer:
        """Writes records and returns where the first one stands once all of them are durable: the
        others follow it in the same segment, without gaps.

        `max_ts` is the largest of their timestamps: start_ts of a prewrite, else commit_ts.
        Raises LogFailed or DiskFull; then none of the batch may be acknowledged, and all of it is
        cut away, so that the log has what its readers are told of. Should the process end before
        that, some of it may come to light at the next start. Raises CorruptRecord when, after an
        earlier failure, acknowledged bytes do not read back.
        """
        try:
            current = await self._writable()
            fid, begin, flushed = next(reversed(self._segments)), current.size, 0
            while flushed < len(payloads):  # ends: every flush takes at least one record
                parts, flushed = await self._fill(payloads, flushed)
                self._is_poisoned = True  # until the disk has said otherwise
                await self._flush(current, parts)
        except OSError as error:
            await self._cut_now()
            raise await self._failure(error) from error
        self._is_poisoned = False
        if payloads:
            self._flushed_at = begin
            self._grown(current, max_ts)
        return ValuePointer(fid, begin)

    async def spool(self, name: str) -> Spool:
        """A file beside the segments, for `take_over`. Raises LogFailed or DiskFull."""
        return await Spool.begin(self._disk, self._directory / f"{name}{SPOOL_SUFFIX}")

    async def take_over(self, spool: Spool, max_ts: Tso) -> ValuePointer:
        """Goes on in the file of a finished spool, which begins with it. Raises as `append`."""
        try:
            await self._seal_off(await self._writable())
            fid = FileId(max(self._segments) + 1)
            self._refused = self.path(fid)
            await spool.become(self._refused)
        except OSError as error:
            await self._cut_now()
            raise await self._failure(error) from error
        self._current, self._flushed_at = spool.file, 0
        self._set(Segment(fid, is_sealed=False, size_bytes=spool.file.size, max_ts=max_ts))
        return ValuePointer(fid, 0)

    def note(self, fid: FileId, *, max_ts: Tso = NO_TS, needed_ts: Tso = NO_TS) -> None:
        """Raises the timestamps of a segment; for one that is gone, nothing happens."""
        segment = self._segments.get(fid)
        if segment is not None and (max_ts > segment.max_ts or needed_ts > segment.needed_ts):
            self._set(
                replace(
                    segment,
                    max_ts=max(max_ts, segment.max_ts),
                    needed_ts=max(needed_ts, segment.needed_ts),
                )
            )

    async def measure(self, fid: FileId) -> Segment:
        """Reads a sealed segment once and remembers its checksum. Raises LogFailed."""
        segment = self._segments[fid]
        assert segment.is_sealed, "only a sealed segment has a checksum"
        with disk_errors(self.path(fid)):
            checksum = await self._disk.checksum(self.path(fid), segment.size_bytes)
        self._set(replace(self._segments[fid], checksum=checksum))
        return self._segments[fid]

    async def close(self) -> None:
        """Seals the current segment if that pays, and closes it. Raises LogFailed or DiskFull."""
        current, self._current = self._current, None
        if current is None:
            return
        try:
            if not self._is_poisoned and current.size >= SEAL_AT_CLOSE_BYTES:
                self._is_poisoned = True  # a footer that half got there must be cut away
                await self._seal(current)
                self._is_poisoned = False
        except OSError as error:
            await self._cut_now()
            raise await self._failure(error) from error
        finally:
            await current.close()

    # --- reading ---------------------------------------------------------------------------

    @property
    def end(self) -> ValuePointer:
        """Behind the last acknowledged record."""
        last = next(reversed(self._segments), None)  # a log of days has thousands, in order
        return FIRST if last is None else ValuePointer(last, self._segments[last].size_bytes)

    def segments(self) -> list[Segment]:
        """All of them, oldest first."""
        return list(self._segments.values())

    def changed(self) -> list[Segment]:
        """Segments that are not remembered as they are now, or not measured yet."""
        return [self._segments[fid] for fid in sorted(self._changed)]

    def saved(self, segments: Iterable[Segment]) -> None:
        """These are remembered now."""
        for segment in segments:
            is_measured = segment.checksum is not None or not segment.is_sealed
            if is_measured and self._segments.get(segment.fid) == segment:
                self._changed.discard(segment.fid)

    def path(self, fid: FileId) -> Path:
        """The file of a segment."""
        return self._directory / segment_name(fid)

    async def read(self, places: Sequence[Spot]) -> list[bytes]:
        """The payloads at some places, checked. Raises CorruptRecord or LogFailed."""
        try:
            return await self._read(places)
        except (CorruptRecord, LogFailed):
            self.measures.errors["read_value"] += 1
            raise

    async def _read(self, places: Sequence[Spot]) -> list[bytes]:
        payloads = [b""] * len(places)
        for fid, some in runs(places):
            path = self.path(fid)
            try:
                blocks = await self._disk.read(path, [(run.begin, run.length) for run in some])
            except FileNotFoundError as error:
                raise CorruptRecord(path, some[0].begin, "no such segment") from error
            except OSError as error:
                raise LogFailed(path, error) from error
            for run, block in zip(some, blocks, strict=True):
                if (wrong := cut(block, run, places, payloads)) is not None:
                    raise CorruptRecord(path, *wrong)
        return payloads

    async def stored(self, place: Place) -> StoredRecord:
        """The payload at a place, checked and left there, for one that is too large to be held.
        Raises CorruptRecord or LogFailed."""
        return await pieces.stored(self._disk, self.path(place.fid), place)

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
                if reading.found.ending is not Ending.WHOLE:
                    raise await self._damage(fid, reading.found)

    # --- deleting --------------------------------------------------------------------------

    async def confirm(self, fids: Iterable[FileId]) -> None:
        """Compares sealed segments on disk with what is remembered of them, before they go.

        Raises CorruptRecord when size, footer or (where there is no footer) checksum differ.
        """
        for fid in fids:
            segment, path = self._segments[fid], self.path(fid)
            at = max(0, segment.size_bytes - record.FOOTER_BYTES)
            with disk_errors(path):
                (tail,) = await self._disk.read(path, [(at, record.FOOTER_BYTES + 1)])
                footer_ts = record.footer_ts(tail)
                if footer_ts is not None and footer_ts == segment.max_ts:
                    continue
                if footer_ts is None and at + len(tail) == segment.size_bytes:
                    found = await self._disk.checksum(path, segment.size_bytes)
                    if found == segment.checksum:
                        continue
            raise CorruptRecord(path, at, f"size or footer is not as remembered: {segment}")

    async def note_gone(self, gc_ts: Tso, first_fid: FileId) -> None:
        """Keeps beside the segments how far they are gone, for an index that is made again.
        Raises LogFailed."""
        with disk_errors(self._directory):
            await gone.note(self._directory, self._disk, gc_ts, first_fid)

    async def delete(self, fids: Sequence[FileId]) -> None:
        """Removes segments. Raises LogFailed; what is left over goes at the next start."""
        for fid in fids:
            del self._segments[fid]
            self._changed.discard(fid)
        with disk_errors(self._directory):
            await self._disk.remove([self.path(fid) for fid in fids])

    def _set(self, segment: Segment) -> None:
        self._segments[segment.fid] = segment
        self._changed.add(segment.fid)

    # --- inside ----------------------------------------------------------------------------

    def _check_known(self, segment: Segment) -> None:
        path, found = self.path(segment.fid), self._segments.get(segment.fid)
        if found is None:
            raise CorruptRecord(path, 0, "the index knows this segment, the file is missing")
        if segment.is_sealed and found.size_bytes != segment.size_bytes:
            reason = f"sealed with {segment.size_bytes} bytes, the file has {found.size_bytes}"
            raise CorruptRecord(path, min(segment.size_bytes, found.size_bytes), reason)

    async def _sync_last(self) -> None:
        """Makes durable what a process left behind that died between write and sync."""
        await self._disk.sync_directory(self._directory)
        last = max(self._segments, default=None)
        if last is not None and not self._segments[last].is_sealed:
            file = await self._disk.open_append(self.path(last), create=False)
            try:
                with disk_errors(file.path):
                    await file.append([], sync=True)
            finally:
                await file.close()

    def _check_acknowledged(self, upto: ValuePointer) -> None:
        if upto == FIRST:
            return
        found = self._segments.get(upto.fid)
        size = 0 if found is None else found.size_bytes
        if size < upto.offset:
            reason = f"acknowledged up to offset {upto.offset}, the file has {size} bytes"
            raise CorruptRecord(self.path(upto.fid), size, reason)

    def _readings(self, start: ValuePointer) -> Iterator[tuple[FileId, DiskReading[End]]]:
        """Of each segment that is there now what lies from `start` on, in order."""
        for fid in sorted(self._segments):
            if fid >= start.fid:
                yield fid, self._scan(fid, start.offset if fid == start.fid else 0)

    def _scan(self, fid: FileId, start: int) -> DiskReading[End]:
        size = self._segments[fid].size_bytes
        steps = scan(record.FRAMING, start=start, size=size, outline=outline)
        return DiskReading(self._disk, self.path(fid), steps)

    async def _finish(self, fid: FileId, end: End, acknowledged: Acknowledged) -> None:
        """Settles what a recovery scan has found at the end of a segment."""
        is_last = fid == max(self._segments)
        if end.ending is not Ending.WHOLE:
            if not (is_last and await self._is_torn(fid, end, acknowledged)):
                raise await self._damage(fid, end)
            size = self._segments[fid].size_bytes
            await self._disk.truncate(self.path(fid), end.offset)
            self._set(replace(self._segments[fid], size_bytes=end.offset))
            log.warning(
                "tail_cut",
                path=str(self.path(fid)),
                offset=end.offset,
                cut_bytes=size - end.offset,
                reason=end.reason,
            )
        footer_ts = record.footer_ts(end.footer)
        self._check_footer(fid, footer_ts)
        if footer_ts is not None or not is_last:
            max_ts = max(footer_ts or NO_TS, self._segments[fid].max_ts)
            self._set(replace(self._segments[fid], is_sealed=True, max_ts=max_ts))

    def _check_footer(self, fid: FileId, footer_ts: Tso | None) -> None:
        """A footer has no checksum, and a time source goes on from what it says."""
        known = self._segments[fid]
        if footer_ts is not None and known.is_sealed and footer_ts != known.max_ts != NO_TS:
            at = known.size_bytes - record.FOOTER_BYTES
            reason = f"the footer says {footer_ts}, the index remembers {known.max_ts}"
            raise CorruptRecord(self.path(fid), at, reason)

    async def _is_torn(self, fid: FileId, end: End, acknowledged: Acknowledged) -> bool:
        """Whether the bytes at the end of the scan can be an append that nobody was told of.

        A process that dies leaves a prefix of its last append. A machine that goes down may leave
        any part of it, and whole records behind missing ones; but never more than one flush.
        """
        if self._segments[fid].is_sealed or ValuePointer(fid, end.offset) < acknowledged.upto:
            return False
        if end.ending is Ending.TORN or await self._is_half_footer(fid, end.offset):
            return True
        if end.is_short or acknowledged.same_boot:
            return False
        rest = self._segments[fid].size_bytes - end.offset
        return rest <= await self._flush_bytes_max(fid, end)

    async def _flush_bytes_max(self, fid: FileId, end: End) -> int:
        """How long the last flush may have been: each is synced before the next begins, so what
        goes beyond it was acknowledged. Only a single record is longer than the limit says."""
        (head,) = await self._disk.read(self.path(fid), [(end.offset, record.HEADER_BYTES)])
        alone = record.FRAMING.needs(head) or 0
        if alone > self._limits.flush_bytes_max and await self._next_good(fid, end) is None:
            return alone
        return self._limits.flush_bytes_max

    async def _is_half_footer(self, fid: FileId, begin: int) -> bool:
        """Whether the segment ends with the first bytes of the very footer that it would get."""
        footer = record.footer(self._segments[fid].max_ts)
        (tail,) = await self._disk.read(self.path(fid), [(begin, record.FOOTER_BYTES)])
        return footer.startswith(tail)

    async def _next_good(self, fid: FileId, end: End) -> int | None:
        size = self._segments[fid].size_bytes
        steps = resumes(record.FRAMING, fault=end.offset, size=size)
        return await DiskReading(self._disk, self.path(fid), steps).ended()

    async def _damage(self, fid: FileId, end: End) -> CorruptRecord:
        good = await self._next_good(fid, end)
        lost = (self._segments[fid].size_bytes if good is None else good) - end.offset
        where = f"{lost} bytes up to the end of the segment are unreadable"
        if good is not None:
            where = f"{lost} bytes are unreadable, whole records go on at offset {good}"
        return CorruptRecord(self.path(fid), end.offset, f"{end.reason}; {where}")

    async def _flush(self, current: AppendFile, parts: list[bytes]) -> None:
        begin_s = self._clock()
        await current.append(parts, sync=True)
        self.measures.seconds["to_disk"].observe(self._clock() - begin_s)
        self.measures.seconds["fsync"].observe(current.last_sync_s)

    async def _writable(self) -> AppendFile:
        """The segment to append to, after the repair or the rotation that is due."""
        if self._is_poisoned:
            await self._repair()
        if self._current is not None and self._current.size > self._limits.segment_bytes_max:
            await self._rotate(self._current)
        if self._current is None:
            await self._create(FileId(max(self._segments) + 1))
        assert self._current is not None
        return self._current

    async def _rotate(self, full: AppendFile) -> None:
        begin_s = self._clock()
        await self._seal_off(full)
        await self._create(FileId(max(self._segments) + 1))
        self.measures.seconds["rotate"].observe(self._clock() - begin_s)

    async def _seal_off(self, full: AppendFile) -> None:
        self._is_poisoned = True  # a footer that half got there must be cut away
        await self._seal(full)
        self._is_poisoned = False
        self._current = None  # first: who is cancelled at the next step must not seal it again
        await full.close()

    async def _create(self, fid: FileId) -> None:
        path = self.path(fid)
        try:
            self._current = await self._disk.open_append(path, create=True)
        except FileExistsError:
            # An earlier attempt made the name and failed to sync it; what it has was refused.
            sizes = await self._disk.sizes(self._directory)
            if sizes.get(path.name, 0) > 0 and path != self._refused:
                raise
            await self._disk.remove([path])
            self._current = await self._disk.open_append(path, create=True)
        self._flushed_at = 0
        self._set(Segment(fid, is_sealed=False, size_bytes=0))

    async def _fill(self, payloads: Sequence[bytes], begin: int) -> tuple[list[bytes], int]:
        """The parts of one write, and the first payload that is not in it."""
        parts: list[bytes] = []
        left = self._limits.flush_bytes_max
        while begin < len(payloads):  # ends: every turn takes a record
            records, end = record.together(payloads, begin, bytes_max=left, each_max=_JOINED_BYTES)
            more = [records]
            if end == begin:
                payload, end = payloads[begin], begin + 1
                if parts and record.HEADER_BYTES + len(payload) > left:
                    break
                is_large = len(payload) > pieces.LARGE_BYTES
                head = await pieces.header(payload) if is_large else record.header(payload)
                more = [head, payload]
            parts += more
            left, begin = left - sum(map(len, more)), end
        return parts, begin

    def _grown(self, current: AppendFile, max_ts: Tso) -> None:
        segment = next(reversed(self._segments.values()))
        self._set(replace(segment, size_bytes=current.size, max_ts=max(segment.max_ts, max_ts)))

    async def _seal(self, current: AppendFile) -> None:
        fid = max(self._segments)
        await current.append([record.footer(self._segments[fid].max_ts)], sync=True)
        self._set(replace(self._segments[fid], is_sealed=True, size_bytes=current.size))
        log.info(
            "segment_sealed",
            path=str(self.path(fid)),
            max_ts=self._segments[fid].max_ts,
            size_bytes=current.size,
        )

    async def _cut_now(self) -> None:
        """Tries to leave no unacknowledged bytes behind, should the process end before the repair.

        A restart could take them for damage: they need not look like an unfinished append.
        """
        if self._is_poisoned:
            fid = max(self._segments)
            try:
                await self._disk.truncate(self.path(fid), self._segments[fid].size_bytes)
            except OSError as error:
                log.warning("cut_failed", path=str(self.path(fid)), cause=str(error))

    async def _repair(self) -> None:
        """Leaves a poisoned segment behind: checks, cuts and seals it by a new descriptor."""
        assert self._current is not None
        fid = max(self._segments)
        path, size = self.path(fid), self._segments[fid].size_bytes
        await self._current.close()
        await self._disk.truncate(path, size)
        end = await self._scan(fid, min(self._flushed_at, size)).ended()
        if end.ending is not Ending.WHOLE:
            raise await self._damage(fid, end)
        self._current = await self._disk.open_append(path, create=False)
        await self._seal_off(self._current)
        log.warning("segment_repaired", path=str(path), size_bytes=size)

    async def _failure(self, error: OSError) -> DiskFull | LogFailed:
        return await failed(self._disk, self.path(max(self._segments, default=FileId(0))), error)
