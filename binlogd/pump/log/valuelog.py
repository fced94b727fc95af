"""A shard's log: segments of records, appended in groups, durable before anyone hears of them.

Invariant I1. `append` returns after the bytes and the segment's directory entry are synced.
A failed write or sync poisons its segment: no later write goes to that descriptor, because the
kernel may have dropped pages and called them clean. The segment is read back and cut to what was
acknowledged, sealed through a new descriptor, and the log goes on in a new segment.

Source: tidb-binlog pump/storage/vlog.go; docs/FORMAT.md, value log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from binlogd.errors import DiskFull, LogFailed
from binlogd.host.disk import failed
from binlogd.log import record
from binlogd.log.index_file import Segment
from binlogd.log.pointer import FileId, ValuePointer
from binlogd.ports import AppendFile
from binlogd.pump.log import pieces
from binlogd.pump.log.segments import Segments
from binlogd.pump.log.spool import SPOOL_SUFFIX, Spool
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

SEAL_AT_CLOSE_BYTES = 50 << 10
"""A segment at least this large is sealed at close, so that the next start need not scan it."""

_JOINED_BYTES = 1 << 20  # a larger payload is not copied to stand behind its header


class LogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of a segment, and of what is written and synced at a time."""

    segment_bytes_max: int = 500 << 20
    flush_bytes_max: int = 4 << 20


class ValueLog:
    """The writer of some segments, which others read; `append` has one caller at a time."""

    def __init__(self, segments: Segments, limits: LogLimits) -> None:
        self.segments = segments
        self.measures = segments.measures
        self._clock = asyncio.get_running_loop().time
        self._disk = segments.disk
        self._limits = limits
        self._current: AppendFile | None = None
        self._is_poisoned = False
        self._flushed_at = 0  # where the last acknowledged batch in the current segment began
        self._refused: Path | None = None  # may be there, with a record that nobody was told of

    @classmethod
    async def begin(cls, segments: Segments, limits: LogLimits) -> ValueLog:
        """Gets ready to append behind what `Segments.recover` saw. Raises LogFailed or DiskFull."""
        begun = cls(segments, limits)
        try:
            if not segments or segments.last.is_sealed:
                await begun._create()
            else:
                path = segments.path(segments.last.fid)
                begun._current = await segments.disk.open_append(path, create=False)
                begun._flushed_at = begun._current.size
        except OSError as error:
            raise await begun._failure(error) from error
        return begun

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
            first, flushed = self.segments.end, 0
            while flushed < len(payloads):  # ends: every flush takes at least one record
                parts, flushed = await self._fill(payloads, flushed)
                self._is_poisoned = True  # until the disk has said otherwise
                begin_s = self._clock()
                await current.append(parts, sync=True)
                self.measures.seconds["to_disk"].observe(self._clock() - begin_s)
                self.measures.seconds["fsync"].observe(current.last_sync_s)
        except OSError as error:
            await self._cut_now()
            raise await self._failure(error) from error
        self._is_poisoned = False
        if payloads:
            self._flushed_at = first.offset
            last = self.segments.last
            max_ts = max(last.max_ts, max_ts)
            self.segments.put(replace(last, size_bytes=current.size, max_ts=max_ts))
        return first

    async def spool(self, name: str) -> Spool:
        """A file beside the segments, for `take_over`. Raises LogFailed or DiskFull."""
        return await Spool.begin(self._disk, self.segments.directory / f"{name}{SPOOL_SUFFIX}")

    async def take_over(self, spool: Spool, max_ts: Tso) -> ValuePointer:
        """Goes on in the file of a finished spool, which begins with it. Raises as `append`."""
        try:
            await self._seal_off(await self._writable())
            fid = self._next_fid()
            self._refused = self.segments.path(fid)
            await spool.become(self._refused)
        except OSError as error:
            await self._cut_now()
            raise await self._failure(error) from error
        self._current, self._flushed_at = spool.file, 0
        self.segments.put(Segment(fid, is_sealed=False, size_bytes=spool.file.size, max_ts=max_ts))
        return ValuePointer(fid, 0)

    async def close(self) -> None:
        """Seals the current segment if that pays, and closes it. Raises LogFailed or DiskFull."""
        current, self._current = self._current, None
        if current is None:
            return
        try:
            if not self._is_poisoned and current.size >= SEAL_AT_CLOSE_BYTES:
                await self._seal(current)
        except OSError as error:
            await self._cut_now()
            raise await self._failure(error) from error
        finally:
            await current.close()

    # --- inside ----------------------------------------------------------------------------

    async def _writable(self) -> AppendFile:
        """The segment to append to, after the repair or the rotation that is due."""
        if self._is_poisoned:
            await self._repair()
        if self._current is not None and self._current.size > self._limits.segment_bytes_max:
            begin_s = self._clock()
            await self._seal_off(self._current)
            await self._create()
            self.measures.seconds["rotate"].observe(self._clock() - begin_s)
        if self._current is None:
            await self._create()
        assert self._current is not None
        return self._current

    async def _seal_off(self, full: AppendFile) -> None:
        await self._seal(full)
        self._current = None  # first: who is cancelled at the next step must not seal it again
        await full.close()

    async def _create(self) -> None:
        fid = self._next_fid()
        path = self.segments.path(fid)
        try:
            self._current = await self._disk.open_append(path, create=True)
        except FileExistsError:
            # An earlier attempt made the name and failed to sync it; what it has was refused.
            sizes = await self._disk.sizes(path.parent)
            if sizes.get(path.name, 0) > 0 and path != self._refused:
                raise
            await self._disk.remove([path])
            self._current = await self._disk.open_append(path, create=True)
        self._flushed_at = 0
        self.segments.put(Segment(fid, is_sealed=False, size_bytes=0))

    def _next_fid(self) -> FileId:
        return FileId(self.segments.last.fid + 1 if self.segments else 0)

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

    async def _seal(self, current: AppendFile) -> None:
        self._is_poisoned = True  # a footer that half got there must be cut away
        await current.append([record.footer(self.segments.last.max_ts)], sync=True)
        self._is_poisoned = False
        sealed = replace(self.segments.last, is_sealed=True, size_bytes=current.size)
        self.segments.put(sealed)
        log.info(
            "segment_sealed",
            path=str(self.segments.path(sealed.fid)),
            max_ts=sealed.max_ts,
            size_bytes=current.size,
        )

    async def _cut_now(self) -> None:
        """Tries to leave no unacknowledged bytes behind, should the process end before the repair.

        A restart could take them for damage: they need not look like an unfinished append.
        """
        if self._is_poisoned:
            last = self.segments.last
            path = self.segments.path(last.fid)
            try:
                await self._disk.truncate(path, last.size_bytes)
            except OSError as error:
                log.warning("cut_failed", path=str(path), cause=str(error))

    async def _repair(self) -> None:
        """Leaves a poisoned segment behind: checks, cuts and seals it by a new descriptor."""
        assert self._current is not None
        last = self.segments.last
        path, size = self.segments.path(last.fid), last.size_bytes
        await self._current.close()
        await self._disk.truncate(path, size)
        await self.segments.check_last(min(self._flushed_at, size))
        self._current = await self._disk.open_append(path, create=False)
        await self._seal_off(self._current)
        log.warning("segment_repaired", path=str(path), size_bytes=size)

    async def _failure(self, error: OSError) -> DiskFull | LogFailed:
        return await failed(self._disk, self.segments.path(self.segments.end.fid), error)
