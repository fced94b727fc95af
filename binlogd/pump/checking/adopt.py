"""Takes over what Go Pumps have received: their value logs become those of a data directory.

The log has the original's format, so one Pump's segments are taken as they are when there is one
shard to hold them. For several shards, or several Pumps, the records are written anew, each
transaction into its shard. Where logs of several Pumps come together, they are merged by the
largest timestamp that each has had so far: a prewrite then never stands behind a timestamp that was
handed out after it (I4). The LevelDB of a Go Pump is not read: an index is made from the log.

A Go Pump appends behind what a failed write or a crash has left, so its logs may hold cut records
that nobody was told of. Those are passed over and reported; other damage stops the adoption.

Source: tidb-binlog pump/storage/vlog.go.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import NamedTuple

import structlog

from binlogd.errors import ConfigError, CorruptRecord, DiskFull, LogFailed
from binlogd.host.disk import PosixDisk
from binlogd.log import gone
from binlogd.log.directory import LOCK_FILE, VALUE, pump_directory, shard_name, value_directory
from binlogd.log.drive import DiskReading
from binlogd.log.pointer import FIRST, FileId, missing_fids, segment_fid, segment_name
from binlogd.log.record import FOOTER_BYTES, FRAMING, footer_ts
from binlogd.log.scan import survey
from binlogd.ports import DiskLock
from binlogd.pump.checking.check import Finding, OnProgress
from binlogd.pump.kept_routing import SHARDS_FILE
from binlogd.pump.log.entry import Entry
from binlogd.pump.log.kind import entry_of
from binlogd.pump.log.segments import Segments
from binlogd.pump.log.valuelog import ValueLog
from binlogd.pump.route import Routing
from binlogd.pump.shard.options import ShardOptions
from binlogd.pump.shard.shard import Shard
from binlogd.tso import NO_TS, Tso, compose, physical_ms

log = structlog.get_logger(__name__)

_BATCH_BYTES = 4 << 20
_MARGIN_MS = 600_000
"""The original lets segments go that end ten minutes before its gc ts."""
_NODE_FILE = ".node"


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was taken over. `passed_over` are the stretches that are no records; up to `gc_ts` the
    Go Pumps may have deleted binlogs. `is_linked`: the sealed segments are the very same files."""

    sources: tuple[str, ...]
    shards: int
    segments: int
    records: int
    size_bytes: int
    max_commit_ts: Tso
    open_prewrites: int
    gc_ts: Tso
    is_linked: bool
    passed_over: tuple[Finding, ...]


@dataclass(slots=True)
class _Source:
    """The value directory of one Go Pump, oldest segment first."""

    value: Path
    segments: list[tuple[FileId, int]]
    unreadable: list[Finding] = field(default_factory=list)
    records: int = 0
    first_commit_ts: Tso = NO_TS
    first_max_ts: Tso = NO_TS

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.segments)

    def path(self, fid: FileId) -> Path:
        return self.value / segment_name(fid)

    @property
    def gc_ts(self) -> Tso:
        """Up to where transactions may be missing, because segments were deleted."""
        if self.segments[0][0] == FIRST.fid:
            return NO_TS
        behind = compose(physical_ms(self.first_commit_ts) + _MARGIN_MS)
        return min(self.first_max_ts, behind)


class _Record(NamedTuple):
    entry: Entry
    payload: bytes


async def adopt(  # noqa: PLR0913 - what the command line asks for
    sources: Sequence[Path],
    data_dir: Path,
    disk: PosixDisk,
    on_progress: OnProgress,
    *,
    shards: int,
    options: ShardOptions,
    passes_over_damage: bool = False,
) -> Adopted:
    """Makes `data_dir`, which must have no Pump's data yet, from data directories of Go Pumps.

    The sources stay as they are. A crash leaves nothing that a Pump would take for data. Raises
    ConfigError when a source is none, is in use, or `data_dir` has data; CorruptRecord for damage;
    DiskFull or LogFailed.
    """
    try:
        async with AsyncExitStack() as stack:
            found = [await _opened(source, disk, stack) for source in sources]
            await disk.make_directory(data_dir)
            await _locked(data_dir, disk, stack)
            await _check_new(pump_directory(data_dir), disk)
            work = _Adoption(found, data_dir, disk, on_progress, shards, options)
            await work.survey(passes_over_damage=passes_over_damage)
            return await work.take()
    except OSError as error:
        raise LogFailed(error.filename or data_dir, error) from error


async def _opened(source: Path, disk: PosixDisk, stack: AsyncExitStack) -> _Source:
    value = source / VALUE
    try:
        sizes = await disk.sizes(value)
        fids = {name: segment_fid(name) for name in sizes}
        files = await disk.sizes(source)
    except FileNotFoundError as error:
        raise ConfigError(f"{value} is missing: {source} is no data directory of a Pump") from error
    except ValueError as error:
        raise ConfigError(f"{value}: {error}: move that file away") from error
    segments = sorted((fid, sizes[name]) for name, fid in fids.items() if fid is not None)
    if not segments:
        raise ConfigError(f"{value} has no *.vlog: there is nothing to adopt")
    missing = next(missing_fids([fid for fid, _ in segments], None), None)
    if missing is not None:
        raise ConfigError(f"{value / segment_name(missing)} is missing: put it back")
    if LOCK_FILE in files:  # of a Go Pump that may run
        await _locked(source, disk, stack)
    return _Source(value, segments)


async def _locked(directory: Path, disk: PosixDisk, stack: AsyncExitStack) -> None:
    lock: DiskLock = await disk.lock(directory / LOCK_FILE)
    stack.push_async_callback(lock.release)


async def _check_new(pump: Path, disk: PosixDisk) -> None:
    try:
        await disk.sizes(pump)
    except FileNotFoundError:
        return
    raise ConfigError(f"{pump} exists: adopt into a data directory that has no Pump's data yet")


class _Adoption:
    """First a pass over everything, which changes nothing; then the work, and one rename."""

    def __init__(
        self,
        sources: Sequence[_Source],
        data_dir: Path,
        disk: PosixDisk,
        on_progress: OnProgress,
        shards: int,
        options: ShardOptions,
    ) -> None:
        self._sources = sources
        self._data_dir = data_dir
        self._work = data_dir / "pump.adopting"
        self._disk = disk
        self._on_progress = on_progress
        self._shards, self._routing = shards, Routing(shards)
        self._options = options
        self._whole = 2 * sum(source.size_bytes for source in sources)
        self._done = 0
        self._is_linked = False

    async def survey(self, *, passes_over_damage: bool) -> None:
        """Raises CorruptRecord for what was not left by an unfinished append."""
        for source in self._sources:
            async for record in self._records(source, source.unreadable):
                source.records += 1
                entry = record.entry
                if entry.fid == source.segments[0][0]:
                    source.first_commit_ts = source.first_commit_ts or entry.commit_ts
                    source.first_max_ts = max(source.first_max_ts, _ts(record))
            damage = [each for each in source.unreadable if each.kind == "record"]
            if damage and not passes_over_damage:
                first = damage[0]
                more = f"; {len(damage) - 1} more such stretches" if len(damage) > 1 else ""
                raise CorruptRecord(
                    first.path,
                    first.begin or 0,
                    f"{first.what}{more}; to leave out what is unreadable, say --skip-damaged",
                )

    async def take(self) -> Adopted:
        """Fills a directory beside, and puts it in its place. Raises DiskFull, LogFailed."""
        self._is_linked = (
            self._shards == 1 and len(self._sources) == 1 and not self._sources[0].unreadable
        )
        await self._disk.remove_tree(self._work)
        for number in range(self._shards):
            await self._disk.make_directory(self._value(number))
        if self._is_linked:
            await self._take_files(self._sources[0])
        else:
            await self._check_space()
            await self._write_anew()
        await self._disk.write_whole(self._work / SHARDS_FILE, self._routing.to_bytes())
        adopted = await self._make_indexes()
        await self._disk.rename(self._work, pump_directory(self._data_dir))
        await self._take_name()
        return adopted

    def _value(self, number: int) -> Path:
        return value_directory(self._work, number)

    async def _check_space(self) -> None:
        needed = self._whole // 2
        space = await self._disk.space(self._data_dir)
        if space.free_bytes < needed:
            raise DiskFull(space.free_bytes, needed)

    async def _take_files(self, source: _Source) -> None:
        for fid, size in source.segments:
            path = source.path(fid)
            (tail,) = await self._disk.read(path, [(max(0, size - FOOTER_BYTES), FOOTER_BYTES)])
            target = self._value(0) / segment_name(fid)
            # Nobody writes to a sealed segment any more; into another one we shall.
            await self._disk.copy(path, target, may_link=footer_ts(tail) is not None)
            self._count(path, size)

    async def _write_anew(self) -> None:
        logs = []
        for number in range(self._shards):
            segments = await Segments.open(self._value(number), disk=self._disk)  # there is none
            logs.append(await ValueLog.begin(segments, self._options.log))
        waiting: list[list[_Record]] = [[] for _ in logs]
        size = 0
        try:
            async for record in self._merged():
                entry, payload = record
                if entry.start_ts == entry.commit_ts == NO_TS:
                    continue  # old versions of the original left such; they say nothing
                waiting[self._routing.shard_of(entry.start_ts)].append(record)
                size += len(payload)
                if size >= _BATCH_BYTES:
                    await self._flush(logs, waiting)
                    size = 0
            await self._flush(logs, waiting)
        finally:
            for value_log in logs:
                await value_log.close()

    async def _flush(self, logs: Sequence[ValueLog], waiting: Sequence[list[_Record]]) -> None:
        for value_log, records in zip(logs, waiting, strict=True):
            if records:
                await value_log.append(
                    [record.payload for record in records],
                    max(record.entry.index_ts for record in records),
                )
                records.clear()

    async def _make_indexes(self) -> Adopted:
        gc_ts = max(source.gc_ts for source in self._sources)
        first_fid = self._sources[0].segments[0][0] if self._is_linked else FIRST.fid
        shards = []
        for number in range(self._shards):
            name = shard_name(number)
            self._on_progress(f"index of {name}", self._done, self._whole)
            if gc_ts or first_fid:
                await gone.note(self._value(number), self._disk, gc_ts, first_fid)
            shard = await Shard.open(
                self._work / name, name=name, disk=self._disk, options=self._options, now_s=0.0
            )
            await shard.close()
            shards.append(shard)
        return Adopted(
            sources=tuple(str(source.value.parent) for source in self._sources),
            shards=self._shards,
            segments=sum(len(shard.log.segments) for shard in shards),
            records=sum(source.records for source in self._sources),
            size_bytes=sum(each.size_bytes for shard in shards for each in shard.log.segments),
            max_commit_ts=max(shard.watermark for shard in shards),
            open_prewrites=sum(shard.sorter.open_count for shard in shards),
            gc_ts=gc_ts,
            is_linked=self._is_linked,
            passed_over=tuple(each for source in self._sources for each in source.unreadable),
        )

    async def _take_name(self) -> None:
        """A Pump keeps its node id, if it is one Pump."""
        home = self._sources[0].value.parent
        names = await self._disk.sizes(home)
        here = await self._disk.sizes(self._data_dir)
        if len(self._sources) == 1 and _NODE_FILE in names and _NODE_FILE not in here:
            (name,) = await self._disk.read(home / _NODE_FILE, [(0, names[_NODE_FILE])])
            await self._disk.write_whole(self._data_dir / _NODE_FILE, name)

    async def _merged(self) -> AsyncIterator[_Record]:
        """The records of all sources, by the largest timestamp that each source has had so far."""
        async with AsyncExitStack() as stack:
            heads: list[tuple[Tso, int, _Record, AsyncGenerator[_Record, None]]] = []
            for number, source in enumerate(self._sources):
                records = self._records(source, [])
                stack.push_async_callback(records.aclose)
                first = await anext(records, None)
                if first is not None:
                    heads.append((_ts(first), number, first, records))
            heapify(heads)
            while heads:  # ends when every source has
                reached, number, record, records = heads[0]
                yield record
                following = await anext(records, None)
                if following is None:
                    heappop(heads)
                else:
                    heapreplace(heads, (max(reached, _ts(following)), number, following, records))

    async def _records(
        self, source: _Source, unreadable: list[Finding]
    ) -> AsyncGenerator[_Record, None]:
        """Every record that reads; what does not is put into `unreadable`."""
        for fid, size in source.segments:
            path = source.path(fid)
            reading = DiskReading(self._disk, path, survey(FRAMING, size=size))
            async for batch in reading.batches():
                for offset, payload in batch:
                    try:
                        entry = entry_of(fid, offset, payload, source.path)
                    except CorruptRecord as error:
                        unreadable.append(Finding("record", str(path), error.reason, offset))
                        continue
                    yield _Record(entry, payload)
                self._on_progress(str(path), self._done + batch[-1][0], self._whole)
            for lost in reading.found.unreadable:
                kind = "append" if lost.is_short else "record"
                what = f"{lost.fault}; {lost.end - lost.begin} bytes are unreadable"
                unreadable.append(Finding(kind, str(path), what, lost.begin, lost.end))
            self._count(path, size)

    def _count(self, path: Path, size: int) -> None:
        self._done += size
        self._on_progress(str(path), self._done, self._whole)


def _ts(record: _Record) -> Tso:
    return max(record.entry.start_ts, record.entry.commit_ts)
