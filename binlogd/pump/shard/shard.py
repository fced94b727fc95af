"""The write path of one shard: queue, log, answer, sort; and what a restart does to get there.

Invariants. I1: a writer is answered after its record is synced. I2: what is in memory here is made
from the log, at the start by scanning from the marks. I4: items reach the sorter in the order of
the log, witnesses among them, and before any writer is answered. What else there is to do about
them comes behind the answers, for which somebody waits, and in the same turn of the loop.

Group commit is whatever queued while the last round of syncs ran (`rounds.py`): one hop to the disk
for each group.

Source: tidb-binlog pump/storage/storage.go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from binlogd.binlog import BinlogType
from binlogd.errors import BinlogdError, IndexUnavailable, NotOnline, Unavailable
from binlogd.log.pointer import FIRST, FileId, ValuePointer
from binlogd.ports import Disk
from binlogd.pump.log.entry import WITNESS, Entry, Item
from binlogd.pump.log.gc import GcPlan, Hold, Resume, plan
from binlogd.pump.log.measures import MeasuresStatistics
from binlogd.pump.log.spool import Spool
from binlogd.pump.log.valuelog import LogLimits
from binlogd.pump.shard.chaser import ChaserStatistics
from binlogd.pump.shard.filing import Filer, FilingOptions
from binlogd.pump.shard.index import LateRow, SqliteIndex
from binlogd.pump.shard.recovery import Recovered, Sorting, recover
from binlogd.pump.shard.rounds import Rounds
from binlogd.pump.shard.sorting import Group, Logged, below, sort
from binlogd.pump.shard.window import Window
from binlogd.pump.signal import Signal
from binlogd.pump.slow import SlowWrites
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)

_LATE_SHOWN_MAX = 10


class ShardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one shard. `group_bytes_max` bounds what one sync makes durable."""

    log: LogLimits = msgspec.field(default_factory=LogLimits)
    filing: FilingOptions = msgspec.field(default_factory=FilingOptions)
    group_bytes_max: int = 8 << 20
    window_bytes_max: int = 16 << 20
    window_commits_max: int = 65_536
    believes_rollbacks: bool = True
    slow: SlowWrites | None = None
    """Whom writes are told; None: nobody."""


class ShardStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How one shard stands. Ages and `since` values are in seconds of the event loop's clock.

    `late_commits` came below the watermark since the start; of those of all lives `late_open` are
    not dealt with, and `first_late` are some of them.
    `index_damage` says what is wrong with the index while it is made again, "" if nothing is.
    """

    name: str
    max_commit_ts: Tso
    filed_ts: Tso
    gc_ts: Tso
    written_records: int
    written_bytes: int
    failed_records: int
    groups: int
    write_queue_records: int
    index_queue_records: int
    open_prewrites: int
    oldest_open_start_ts: Tso | None
    oldest_open_age_s: float | None
    late_commits: int
    late_open: int
    first_late: Sequence[LateRow]
    index_rebuilds: int
    index_damage: str
    segments: int
    log_bytes: int
    chaser: ChaserStatistics
    measures: MeasuresStatistics


Settled = Callable[[BinlogdError | None], None]
"""Told once what became of a batch: durable, or why it is not. It raises nothing."""


class _Batch(NamedTuple):
    items: Sequence[Item]
    settled: Settled | None
    since_s: float


class _Spooled(NamedTuple):
    spool: Spool
    start_ts: Tso
    settled: Settled
    since_s: float


class Shard:
    """One value log, its index and its watermark. `run` owns the tasks; `open` makes it."""

    def __init__(
        self, name: str, recovered: Recovered, options: ShardOptions, rounds: Rounds
    ) -> None:
        self._rounds = rounds
        self._clock = asyncio.get_running_loop().time  # to ask for the loop is a system call
        self.name = name
        self.log = recovered.log
        self._measures = recovered.log.measures
        self.sorter = recovered.sorter
        self.max_seen_ts = recovered.max_seen_ts
        self.changed = Signal()
        self.filer = Filer(
            recovered.log,
            recovered.index,
            recovered.remade,
            recovered.marks,
            options.filing,
            recovered.late,
        )
        # What is older than the newest timestamp is looked up in the index, which has it all.
        self.window = Window(
            floor=max((segment.max_ts for segment in self.log.segments()), default=NO_TS),
            bytes_max=options.window_bytes_max,
            commits_max=options.window_commits_max,
        )
        self.doubted = asyncio.Event()  # a Rollback came that somebody should confirm
        self._options = options
        self._queue: deque[_Batch] = deque()
        self._spools: deque[_Spooled] = deque()
        self._queued = asyncio.Event()
        self._is_busy = self._is_idle = False
        self._is_closing = False
        self.has_stopped = False
        self._written_records = self._written_bytes = self._failed_records = self._groups = 0

    # --- opening -----------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        name: str,
        disk: Disk,
        options: ShardOptions,
        now_s: float,
        rounds: Rounds | None = None,
    ) -> Shard:
        """Scans what the marks do not cover, and is ready to run, in the rounds of its Pump.

        Raises CorruptRecord, LogFailed, DiskFull, IndexUnavailable or ConfigError.
        """
        sorting = Sorting(now_s, options.believes_rollbacks)
        recovered = await recover(directory, disk=disk, limits=options.log, sorting=sorting)
        log.info(
            "shard_opened",
            shard=name,
            scanned=recovered.scanned,
            max_commit_ts=recovered.marks.max_commit_ts,
        )
        return cls(name, recovered, options, rounds or Rounds())

    # --- writing -----------------------------------------------------------------------------

    def submit(self, items: Sequence[Item]) -> asyncio.Future[None]:
        """`put`, with a future that ends when they are durable, or with the error."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.put(items, partial(_end, done))
        return done

    def put(self, items: Sequence[Item], settled: Settled) -> None:
        """Queues items in order. `settled` is told when they are durable, or of LogFailed, DiskFull
        or NotOnline, and then none of them is acknowledged: a future for each would bring its word
        two turns of the loop later."""
        if self._is_closing:
            settled(NotOnline("offline"))
            return
        self._queue.append(_Batch(items, settled, self._clock()))
        self._wake()

    def put_spool(self, spool: Spool, start_ts: Tso) -> asyncio.Future[None]:
        """`submit` for one prewrite that is spooled, and dropped if it is not taken. What is queued
        before it may be written later: until it is acknowledged, its Commit has no timestamp."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        spool.is_given = not self._is_closing
        if spool.is_given:
            self._spools.append(_Spooled(spool, start_ts, partial(_end, done), self._clock()))
            self._wake()
        else:
            done.set_exception(NotOnline("offline"))
        return done

    def witness(self, ts: Tso) -> None:
        """Takes note that `ts` was handed out before anything that is submitted from now on."""
        if not self._is_busy and not self._queue:
            before = self.sorter.watermark
            self.sorter.witness(ts)
            if self.sorter.watermark > before:
                self.sorted_on()
        elif not self._is_closing:
            if self._queue and self._queue[-1].settled is None:  # neighbours are one
                ts = max(ts, self._queue.pop().items[0].commit_ts)
            self._queue.append(_Batch((Item(WITNESS, NO_TS, ts, b""),), None, 0.0))
            self._wake()

    @property
    def index(self) -> SqliteIndex:
        """The present one: a damaged index is replaced while the shard runs."""
        return self.filer.index

    @property
    def undecided(self) -> ValuePointer:
        """The first prewrite whose fate is open, or the end of the log. The Commits of those
        before it are all in the log."""
        oldest = self.sorter.oldest
        return self.log.end if oldest is None else ValuePointer(*oldest.place[:2])

    @property
    def watermark(self) -> Tso:
        """Every transaction with commit_ts <= watermark is here and can be read."""
        return self.sorter.watermark

    async def run(self) -> None:
        """Writes and files until `close`. Raises Corrupt or LogFailed when it cannot go on."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.filer.run(), name=f"{self.name} filer")
                group.create_task(self._write_loop(), name=f"{self.name} writer")
        finally:
            self._is_closing = True
            self._fail(self._queue, NotOnline("offline"))
            self._queue.clear()
            while self._spools:
                await _refuse(self._spools.popleft(), NotOnline("offline"))
            self.has_stopped = True
            self.changed.fire()
            self.filer.filed.fire()

    def stop(self) -> None:
        """Takes nothing more; `run` ends once what is queued is written and filed."""
        self._is_closing = True
        self._wake()
        self.filer.room.set()

    async def close(self) -> None:
        """Closes log and index; `run` must have ended. Raises LogFailed or DiskFull."""
        try:
            await self.log.close()
            changed = self.log.changed()
            if changed and self.index.damage is None:
                await self.index.put((), None, changed)
        except IndexUnavailable as error:  # nothing is lost: the next start finds out by itself
            log.warning("index_not_saved", shard=self.name, cause=str(error))
        finally:
            await self.index.close()

    # --- deleting ----------------------------------------------------------------------------

    async def collect(self, age_ts: Tso, holds: Sequence[Hold]) -> GcPlan:
        """Deletes the segments that nobody needs. Raises CorruptRecord, LogFailed,
        IndexUnavailable."""
        await self.filer.know_needs()
        marks = self.filer.marks
        planned = plan(
            self.log.segments(),
            age_ts=age_ts,
            holds=(*holds, Hold(self._holder("the watermark"), marks.max_commit_ts)),
            resume=Resume(self.filer.resume.fid, self._holder("the index, which is behind")),
            gc_ts=marks.gc_ts,
        )
        if planned.fids:
            await self.log.confirm(planned.fids)
            await self.log.note_gone(planned.gc_ts, FileId(max(planned.fids) + 1))
            await self.filer.forget(planned.fids, planned.gc_ts)
            await self.log.delete(planned.fids)
            log.info("segments_deleted", shard=self.name, fids=planned.fids, gc_ts=planned.gc_ts)
        marks = self.filer.marks
        deleted = 1
        while deleted and not self._is_closing:  # ends when no row of a deleted segment is left
            deleted = await self.index.forget_rows(first_fid=marks.first_fid, upto=marks.gc_ts)
            self._measures.deleted_rows += deleted
        return planned

    def _holder(self, otherwise: str) -> str:
        """Who keeps the watermark and the point to scan from where they are."""
        oldest = self.sorter.oldest
        return otherwise if oldest is None else f"the open prewrite of start_ts {oldest.start_ts}"

    # --- looking -----------------------------------------------------------------------------

    def statistics(self) -> ShardStatistics:
        """How it stands; cheap."""
        now_s = self._clock()
        oldest = self.sorter.oldest
        segments = self.log.segments()
        return ShardStatistics(
            name=self.name,
            max_commit_ts=self.watermark,
            filed_ts=self.filer.filed_ts,
            gc_ts=self.filer.marks.gc_ts,
            written_records=self._written_records,
            written_bytes=self._written_bytes,
            failed_records=self._failed_records,
            groups=self._groups,
            write_queue_records=sum(len(batch.items) for batch in self._queue),
            index_queue_records=self.filer.waiting,
            open_prewrites=self.sorter.open_count,
            oldest_open_start_ts=None if oldest is None else oldest.start_ts,
            oldest_open_age_s=None if oldest is None else now_s - oldest.since_s,
            late_commits=self.filer.late_commits,
            late_open=self.filer.late_open,
            first_late=self.filer.late[:_LATE_SHOWN_MAX],
            index_rebuilds=self.filer.remade_count,
            index_damage=self.index.damage or "",
            segments=len(segments),
            log_bytes=sum(segment.size_bytes for segment in segments),
            chaser=self.filer.statistics(now_s),
            measures=self._measures.statistics(),
        )

    # --- inside ------------------------------------------------------------------------------

    async def _write_loop(self) -> None:
        while self._queue or self._spools or not self._is_closing:  # ends when closing, all written
            if not self._queue and not self._spools:
                await self._idle()
                continue
            if not self.filer.room.is_set() and not self._is_closing:
                await self.filer.room.wait()
            await self._rounds.enter()
            self._is_busy, writers = True, 0
            try:
                if self._spools:
                    writers = await self._take_over(self._spools.popleft())
                else:
                    writers = await self._write_group(*self._next_group())  # its bytes are let go
            finally:
                self._is_busy = False
                self._rounds.leave(writers)
        self.filer.close()

    async def _idle(self) -> None:
        self._queued.clear()
        self._is_idle = True
        try:
            await self._queued.wait()
        finally:
            self._rounds.coming -= not self._is_idle
            self._is_idle = False

    def _wake(self) -> None:
        self._rounds.coming += self._is_idle
        self._is_idle = False
        self._queued.set()

    async def _write_group(self, batches: list[_Batch], group: Group) -> int:
        """Returns how many writers were answered."""
        records, begin_s = len(group.payloads), self._clock()
        try:
            first = FIRST
            if records:
                first = await self.log.append(group.payloads, group.max_ts)
        except Unavailable as error:
            log.warning("append_failed", shard=self.name, records=records, cause=str(error))
            self._measures.errors["write_binlog_batch"] += 1
            self._fail(batches, error)
            # A witness is true whatever became of the binlogs beside it, which nobody was told of.
            witnesses = [item for item in group.items if item.tp == WITNESS]
            self._note(sort(witnesses, FIRST, self.sorter, self.window, self._clock()))
            return len(batches)
        except BaseException as error:
            self._fail(batches, error if isinstance(error, BinlogdError) else NotOnline("offline"))
            raise
        now_s, slow = self._clock(), self._options.slow
        logged = sort(group.items, first, self.sorter, self.window, now_s)
        if not logged.suspects:  # as nearly always
            self._answer(batches, ())
        unkept = self._note(logged)
        if logged.suspects:
            self._answer(batches, unkept)
        self._groups += 1
        if records:
            self._measures.seconds["batch"].observe(now_s - begin_s)
            self._measures.sizes["batch"].observe(group.size_bytes)
        writers = 0
        for batch in batches:
            if batch.settled is not None:
                writers += 1
                self._measures.seconds["single"].observe(now_s - batch.since_s, len(batch.items))
                if slow is not None:
                    came_s, begun_s = now_s - batch.since_s, now_s - begin_s
                    slow.answered(batch.items, came_s=came_s, begun_s=begun_s)
        return writers

    def _answer(self, batches: Sequence[_Batch], unkept: Collection[tuple[Tso, Tso]]) -> None:
        """Those with commits that are not kept yet are answered when these are."""
        for batch in batches:
            if batch.settled is None:
                continue
            if unkept and any((item.start_ts, item.commit_ts) in unkept for item in batch.items):
                self.filer.when_filed().add_done_callback(partial(_pass_on, batch.settled))
            else:
                batch.settled(None)

    async def _take_over(self, spooled: _Spooled) -> int:
        """Writes one that is spooled: returns how many writers were answered."""
        spool, start_ts, settled, since_s = spooled
        begin_s = self._clock()
        try:
            first = await self.log.take_over(spool, start_ts)
        except Unavailable as error:
            log.warning("append_failed", shard=self.name, records=1, cause=str(error))
            self._measures.errors["write_binlog_batch"] += 1
            self._failed_records += 1
            await _refuse(spooled, error)
            return 1
        except BaseException as error:
            settled(error if isinstance(error, BinlogdError) else NotOnline("offline"))
            raise
        size, tp = spool.payload_bytes, BinlogType.PREWRITE.value
        entry = Entry(tp, start_ts, NO_TS, first.fid, first.offset, size)
        now_s = self._clock()
        self.sorter.prewrite(start_ts, entry.place, now_s)
        self._groups += 1
        self._written_records += 1
        self._written_bytes += size
        for kind, from_s in (("single", since_s), ("batch", begin_s)):
            self._measures.sizes[kind].observe(size)
            self._measures.seconds[kind].observe(now_s - from_s)
        if self._options.slow is not None:
            items = [Item(tp, start_ts, NO_TS, b"")]
            self._options.slow.answered(items, came_s=now_s - since_s, begun_s=now_s - begin_s)
        self.filer.logged([entry])
        self.sorted_on()
        settled(None)
        return 1

    def _next_group(self) -> tuple[list[_Batch], Group]:
        batches, group = list[_Batch](), Group()
        while self._queue and group.size_bytes < self._options.group_bytes_max:
            batch = self._queue.popleft()
            late_ts = below(batch.items, self.sorter, self.window, self.filer.kept_ts)
            if late_ts and batch.settled is not None:
                self.filer.keep(late_ts).add_done_callback(partial(self._take_again, batch))
                continue
            group.add(batch.items)
            batches.append(batch)
        return batches, group

    def _take_again(self, batch: _Batch, kept: asyncio.Future[None]) -> None:
        """Queues what may have come too late: should the process end, the next start will know."""
        if kept.exception() is None and not self._is_closing:
            self._queue.append(batch)
            self._wake()
        else:
            self._fail([batch], NotOnline("offline"))

    def _note(self, logged: Logged) -> set[tuple[Tso, Tso]]:
        """Gives what was sorted just now to filer and pullers; nothing may wait in between.

        Returns commits that may have come too late, of which the next start would not know yet.
        """
        for commit in logged.suspects:
            self.filer.suspect(commit)
        for commit in logged.unplaced:
            self.filer.unplaced(commit.commit_ts, commit.start_ts)
        for fid, needed_ts in logged.needed.items():
            self.log.note(fid, needed_ts=needed_ts)
        if logged.rollbacks and not self._options.believes_rollbacks:
            self.doubted.set()
        if logged.entries:
            self._written_records += len(logged.entries)
            self._written_bytes += logged.size_bytes
            self._measures.sizes["single"].observe_all([each.length for each in logged.entries])
            self.filer.logged(logged.entries)
        self.sorted_on()
        kept_ts = self.filer.kept_ts
        return {(e.start_ts, e.commit_ts) for e in logged.suspects if e.commit_ts > kept_ts}

    def sorted_on(self) -> None:
        """Tells pullers and filer how far the sorter has come."""
        self.filer.advanced(self.sorter.watermark, self.undecided)
        self.changed.fire()

    def _fail(self, batches: Sequence[_Batch] | deque[_Batch], error: BinlogdError) -> None:
        for batch in batches:
            if batch.settled is not None:
                self._failed_records += len(batch.items)
                batch.settled(error)


async def _refuse(spooled: _Spooled, error: BinlogdError) -> None:
    await spooled.spool.drop()
    spooled.settled(error)


def _end(done: asyncio.Future[None], error: BinlogdError | None) -> None:
    """Whoever waited may have given up."""
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def _pass_on(settled: Settled, filed: asyncio.Future[None]) -> None:
    error = filed.exception()
    assert error is None or isinstance(error, BinlogdError), error
    settled(error)
