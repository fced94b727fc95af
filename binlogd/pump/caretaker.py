"""Looks after what piles up in a data directory: what is old enough goes, what is needed stays.

Nothing is deleted that somebody needs: the Drainer and its relay log (everything behind the saved
checkpoint), an open prewrite, a declared export base. When that leaves too little space, writes are
refused rather than binlogs deleted, and it is said who holds them.

Invariant. Whenever the power goes, the next start finds no segment missing: it is kept beside the
log how far that is gone, the index forgets the segments, and then only their files are removed.

Source: tidb-binlog pump/server.go, gcBinlogFile (which waits for nobody); pump/storage, GC and disk
usage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import structlog

from binlogd.errors import ConfigError, Corrupt, CorruptRecord, Unavailable
from binlogd.host.clock import is_set_within
from binlogd.host.disk import disk_errors
from binlogd.log import gone, record
from binlogd.log.directory import pump_directory
from binlogd.log.index_file import Segment
from binlogd.log.pointer import FileId
from binlogd.ports import Clock, Disk, Space
from binlogd.pump.admission import Admission
from binlogd.pump.bases import Bases
from binlogd.pump.kept_routing import SHARDS_FILE
from binlogd.pump.log.gc import GcPlan, Hold, Resume, plan
from binlogd.pump.log.segments import Segments
from binlogd.pump.reserve import Reserve
from binlogd.pump.shard.shard import Shard
from binlogd.tso import Tso, compose, physical_ms

log = structlog.get_logger(__name__)

_BASE = "export base "
_GONE = (
    "{} was removed or moved under this process, and with it what was written there; bring it back,"
    " or start anew on a directory that is whole"
)
_SHORT_OF_SPACE = 2
"""Garbage is looked for without waiting for the hour when less than that many times the reserve is
free."""


class CaretakerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """`holds` is who needs what; `held_by` names, by shard, who keeps a segment that is old enough
    to go, "" where nobody does; `failed` is why the last round did nothing, "" if it went well;
    `reserve_bytes` lie ready for a full disk."""

    holds: tuple[Hold, ...]
    held_by: tuple[str, ...]
    runs: int
    segments_deleted: int
    failed: str
    reserve_bytes: int
    capacity_bytes: int


class Caretaker:
    """Garbage collection and free space of one Pump; `run` and `watch_space` are its tasks."""

    def __init__(  # noqa: PLR0913 - what it looks after and by which means
        self,
        data_dir: Path,
        shards: Sequence[Shard],
        admission: Admission,
        space: Space,
        *,
        clock: Clock,
        disk: Disk,
        keep_s: float,
        every_s: float,
        space_every_s: float,
    ) -> None:
        """In seconds; `keep_s` is the age at which a binlog may go."""
        self.bases = Bases(data_dir, disk)
        """The export bases, which hold back garbage collection as long as they are declared."""
        self._data_dir = data_dir
        self._shards = shards
        self._admission = admission
        self._capacity_bytes = space.capacity_bytes
        self._clock = clock
        self._disk = disk
        self._keep_s, self._every_s, self._space_every_s = keep_s, every_s, space_every_s
        self._holds: dict[str, Hold] = {}
        self._base_holds: tuple[Hold, ...] = ()
        self._held_by = [""] * len(shards)
        self._asked = asyncio.Event()
        self._collecting = asyncio.Lock()
        self._runs = self._deleted = 0
        self._failed = ""
        self._reserve = Reserve(data_dir, disk)

    # --- who needs what ----------------------------------------------------------------------

    def hold(self, name: str, ts: Tso) -> None:
        """`name` still needs every binlog with commit_ts > ts; replaces what it said before. For
        what must outlive the process there are `bases`."""
        self._holds[name] = Hold(name, ts)

    def release(self, name: str) -> None:
        """`name` needs nothing any more."""
        self._holds.pop(name, None)

    async def look_for_bases(self) -> None:
        """Reads which export bases are declared now. Raises ConfigError, LogFailed."""
        declared = await self.bases.declared()
        holds = tuple(Hold(_BASE + hold.name, hold.ts) for hold in declared)
        if holds != self._base_holds:
            log.info("bases_changed", bases={hold.name: hold.ts for hold in declared})
        self._base_holds = holds

    # --- garbage -----------------------------------------------------------------------------

    def trigger(self) -> bool:
        """Collects soon, without waiting for the hour; False if it is at it already."""
        if self._collecting.locked() or self._asked.is_set():
            return False
        self._asked.set()
        return True

    def wake(self) -> None:
        """Lets `run` see that it should end."""
        self._asked.set()

    async def collect(self) -> Sequence[GcPlan]:
        """Deletes, in every shard, what is old enough and held by nobody.

        Age is measured from the wall clock or from the newest binlog, whichever is earlier: a
        recording fed years later is not old because of that. Raises Corrupt when a segment is not
        as remembered (nothing of it is deleted), ConfigError when a base does not read (nothing is
        deleted at all), or Unavailable.
        """
        async with self._collecting:
            try:
                return await self._collect()
            except Unavailable:
                if not await self._gave_up_reserve():
                    raise
            return await self._collect()

    async def _collect(self) -> Sequence[GcPlan]:
        await self.look_for_bases()
        newest_ms = max(physical_ms(shard.watermark) for shard in self._shards)
        now_ms = min(self._clock.wall_ms(), newest_ms)
        age_ts = compose(max(0, now_ms - int(self._keep_s * 1000)))
        plans = []
        for number, shard in enumerate(self._shards):
            planned = await _collect_of(shard, age_ts, self._all_holds())
            self._held_by[number] = planned.held_by
            self._deleted += len(planned.fids)
            plans.append(planned)
        self._runs += 1
        self._failed = ""
        return plans

    async def _gave_up_reserve(self) -> bool:
        """Whether there is room now for a round that has failed."""
        try:
            return await self._reserve.give_up()
        except OSError as error:
            log.warning("reserve_not_given_up", cause=str(error))
            return False

    async def run(self, stopping: asyncio.Event) -> None:
        """Collects every hour, and when asked, and looks whether all that is left is there; until
        `stopping` and `wake`."""
        while not stopping.is_set():
            await is_set_within(self._asked, self._every_s)
            if stopping.is_set():
                return
            try:
                await self.collect()
                for shard in self._shards:
                    await shard.log.segments.check_there()
            except (ConfigError, Corrupt, Unavailable) as error:
                if str(error) != self._failed:
                    log.warning("gc_refused", cause=str(error))
                self._failed = str(error)
            finally:
                self._asked.clear()

    # --- space -------------------------------------------------------------------------------

    def tell_space(self) -> None:
        """Says in the log how much is free, and what follows from it."""
        measured = {
            "directory": str(self._data_dir),
            "free_bytes": self._admission.free_bytes,
            "capacity_bytes": self._capacity_bytes,
            "stop_write_at_available_space": self._admission.free_bytes_min,
            "gc_held_by": self._holders(),
        }
        if self._admission.has_space:
            log.info("free_space_checked", **measured)
            return
        log.warning("free_space_short", **measured, consequence=f"refused: {self.refusal()}")

    async def watch_space(self, stopping: asyncio.Event) -> None:
        """Looks every few seconds, until `stopping`. As long as space is short, garbage is looked
        for as often: who held it may have let go of it."""
        short_bytes = _SHORT_OF_SPACE * self._admission.free_bytes_min
        had_space = self._admission.has_space
        while not await is_set_within(stopping, self._space_every_s):
            try:
                await self.look_at_space()
                await self.look_for_bases()
                free_bytes = self._admission.free_bytes
                await self._reserve.keep(free_bytes=free_bytes, wanted_bytes=short_bytes)
            except (ConfigError, Unavailable, OSError) as error:
                log.warning("free_space_unknown", cause=str(error))
            if self._admission.free_bytes <= short_bytes:
                self.trigger()
            if had_space != self._admission.has_space:
                self.tell_space()
            had_space = self._admission.has_space

    async def look_at_space(self) -> None:
        """How much is free now: nothing, where the directory is gone, with whose files the system
        would go on until the end of the process. Raises LogFailed."""
        with disk_errors(self._data_dir):
            try:
                space = await self._disk.space(self._data_dir)
                names = await self._disk.sizes(pump_directory(self._data_dir))
            except FileNotFoundError:
                names = {}
            self._admission.lacks = "" if SHARDS_FILE in names else _GONE.format(self._data_dir)
            if self._admission.lacks:
                space = Space(self._capacity_bytes, 0)
        self._admission.free_bytes = space.free_bytes
        self._capacity_bytes = space.capacity_bytes

    # --- looking -----------------------------------------------------------------------------

    def statistics(self) -> CaretakerStatistics:
        """How it stands; cheap."""
        return CaretakerStatistics(
            holds=self._all_holds(),
            held_by=tuple(self._held_by),
            runs=self._runs,
            segments_deleted=self._deleted,
            failed=self._failed,
            reserve_bytes=self._reserve.size_bytes,
            capacity_bytes=self._capacity_bytes,
        )

    def refusal(self) -> str:
        """Why binlogs are refused for want of space, and what takes it; "" if they are not."""
        if self._admission.has_space:
            return ""
        if self._admission.lacks:
            return self._admission.lacks
        holders = ", ".join(self._holders())
        kept = f"old ones are kept for {holders}" if holders else "none is old enough to be deleted"
        return (
            f"only {self._admission.free_bytes} bytes are free on the disk of {self._data_dir},"
            f" binlogs are taken with more than {self._admission.free_bytes_min}; {kept}"
        )

    def _holders(self) -> list[str]:
        return sorted({holder for holder in self._held_by if holder})

    def _all_holds(self) -> tuple[Hold, ...]:
        return (*self._holds.values(), *self._base_holds)


async def _collect_of(shard: Shard, age_ts: Tso, holds: Sequence[Hold]) -> GcPlan:
    """Deletes what may go. Raises CorruptRecord, LogFailed, IndexUnavailable."""
    filer, segments = shard.filer, shard.log.segments
    await filer.know_needs()
    marks, oldest = filer.marks, shard.sorter.oldest
    who = None if oldest is None else f"the open prewrite of start_ts {oldest.start_ts}"
    planned = plan(
        list(segments),
        age_ts=age_ts,
        holds=(*holds, Hold(who or "the watermark", marks.max_commit_ts)),
        resume=Resume(filer.resume.fid, who or "the index, which is behind"),
        gc_ts=marks.gc_ts,
    )
    if planned.fids:
        first_fid = FileId(max(planned.fids) + 1)
        await confirm(segments, [each for each in segments if each.fid < first_fid])
        with disk_errors(segments.directory):
            await gone.note(segments.directory, segments.disk, planned.gc_ts, first_fid)
        await filer.forget(planned.fids, planned.gc_ts)
        await segments.delete(planned.fids)
        log.info("segments_deleted", shard=shard.name, fids=planned.fids, gc_ts=planned.gc_ts)
    marks, deleted = filer.marks, 1
    while deleted and not shard.is_closing:  # ends when no row of a deleted segment is left
        database = shard.index.database
        deleted = await database.forget_rows(first_fid=marks.first_fid, upto=marks.gc_ts)
        shard.log.measures.deleted_rows += deleted
    return planned


async def confirm(segments: Segments, going: Iterable[Segment]) -> None:
    """Compares sealed segments on disk with what is remembered of them, before they go.

    Raises LogFailed, or CorruptRecord when size, footer or (where there is none) checksum differ.
    """
    for segment in going:
        path = segments.path(segment.fid)
        at = max(0, segment.size_bytes - record.FOOTER_BYTES)
        with disk_errors(path):
            (tail,) = await segments.disk.read(path, [(at, record.FOOTER_BYTES + 1)])
            footer_ts = record.footer_ts(tail)
            if footer_ts is not None and footer_ts == segment.max_ts:
                continue
            if footer_ts is None and at + len(tail) == segment.size_bytes:
                found = await segments.disk.checksum(path, segment.size_bytes)
                if found == segment.checksum:
                    continue
        raise CorruptRecord(path, at, f"size or footer is not as remembered: {segment}")
