"""The write path of one shard: queue, log, answer, sort.

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

import structlog

from binlogd.binlog import BinlogType
from binlogd.errors import BinlogdError, IndexUnavailable, NotOnline, Unavailable
from binlogd.log.pointer import FIRST, ValuePointer
from binlogd.ports import Disk
from binlogd.pump.log.entry import WITNESS, Item
from binlogd.pump.log.spool import Spool
from binlogd.pump.shard.filing import Filer
from binlogd.pump.shard.index import SqliteIndex
from binlogd.pump.shard.options import ShardOptions
from binlogd.pump.shard.recovery import Recovered, recover
from binlogd.pump.shard.rounds import Rounds
from binlogd.pump.shard.sorting import Group, Logged, below, sort, sort_spooled
from binlogd.pump.shard.window import Window
from binlogd.pump.signal import Signal, end
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)

Settled = Callable[[BinlogdError | None], None]
"""Told once what became of a batch: durable, or why it is not. It raises nothing."""


class _Batch(NamedTuple):
    items: Sequence[Item]
    settled: Settled | None
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
        self.filer = Filer(recovered, options.filing)
        # What is older than the newest timestamp is looked up in the index, which has it all.
        self.window = Window(
            floor=max((segment.max_ts for segment in self.log.segments), default=NO_TS),
            bytes_max=options.window_bytes_max,
            commits_max=options.window_commits_max,
        )
        self.doubted = asyncio.Event()  # a Rollback came that somebody should confirm
        self._options = options
        self._queue: deque[_Batch] = deque()
        self._spools: deque[tuple[Spool, _Batch]] = deque()
        self._queued = asyncio.Event()
        self._is_busy = self._is_idle = False
        self.is_closing = self.has_stopped = False

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
        recovered = await recover(directory, disk, options, now_s)
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
        self.put(items, partial(end, done))
        return done

    def put(self, items: Sequence[Item], settled: Settled) -> None:
        """Queues items in order. `settled` is told when they are durable, or of LogFailed, DiskFull
        or NotOnline, and then none of them is acknowledged: a future for each would bring its word
        two turns of the loop later."""
        if self.is_closing:
            settled(NotOnline("offline"))
            return
        self._queue.append(_Batch(items, settled, self._clock()))
        self._wake()

    def put_spool(self, spool: Spool, start_ts: Tso) -> asyncio.Future[None]:
        """`submit` for one prewrite that is spooled, and dropped if it is not taken. What is queued
        before it may be written later: until it is acknowledged, its Commit has no timestamp."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        spool.is_given = not self.is_closing
        if spool.is_given:
            items = [Item(BinlogType.PREWRITE, start_ts, NO_TS, b"")]
            self._spools.append((spool, _Batch(items, partial(end, done), self._clock())))
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
        elif not self.is_closing:
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
        """The first prewrite whose fate is open, or the end of the log."""
        return self.sorter.undecided(self.log.segments.end)

    @property
    def watermark(self) -> Tso:
        """Every transaction with commit_ts <= watermark is here and can be read."""
        return self.sorter.watermark

    @property
    def queued_records(self) -> int:
        """What waits to be written, without what is spooled."""
        return sum(len(batch.items) for batch in self._queue)

    async def run(self) -> None:
        """Writes and files until `close`. Raises Corrupt or LogFailed when it cannot go on."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.filer.run(), name=f"{self.name} filer")
                group.create_task(self._write_loop(), name=f"{self.name} writer")
        finally:
            self.is_closing = True
            self._fail(self._queue, NotOnline("offline"))
            self._queue.clear()
            while self._spools:
                spool, batch = self._spools.popleft()
                await spool.drop()
                self._fail([batch], NotOnline("offline"))
            self.has_stopped = True
            self.changed.fire()
            self.filer.filed.fire()

    def stop(self) -> None:
        """Takes nothing more; `run` ends once what is queued is written and filed."""
        self.is_closing = True
        self._wake()
        self.filer.room.set()

    async def close(self) -> None:
        """Closes log and index; `run` must have ended. Raises LogFailed or DiskFull."""
        try:
            await self.log.close()
            changed = self.log.segments.changed()
            if changed and self.index.database.damage is None:
                await self.index.put((), None, changed)
        except IndexUnavailable as error:  # nothing is lost: the next start finds out by itself
            log.warning("index_not_saved", shard=self.name, cause=str(error))
        finally:
            await self.index.close()

    # --- inside ------------------------------------------------------------------------------

    async def _write_loop(self) -> None:
        while self._queue or self._spools or not self.is_closing:  # ends when closing, all written
            if not self._queue and not self._spools:
                await self._idle()
                continue
            if not self.filer.room.is_set() and not self.is_closing:
                await self.filer.room.wait()
            await self._rounds.enter()
            self._is_busy, writers = True, 0
            try:
                writers = await self._write(*self._next_group())  # its bytes are let go
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

    async def _write(self, batches: list[_Batch], group: Group, spool: Spool | None) -> int:
        """Returns how many writers were answered."""
        records, begin_s = len(group.payloads), self._clock()
        try:
            first = FIRST
            if spool is not None:
                first = await self.log.take_over(spool, group.max_ts)
            elif records:
                first = await self.log.append(group.payloads, group.max_ts)
        except Unavailable as error:
            log.warning("append_failed", shard=self.name, records=records, cause=str(error))
            self._measures.errors["write_binlog_batch"] += 1
            if spool is not None:
                await spool.drop()
            self._fail(batches, error)
            # A witness is true whatever became of the binlogs beside it, which nobody was told of.
            witnesses = [item for item in group.items if item.tp == WITNESS]
            self._note(sort(witnesses, FIRST, self.sorter, self.window, self._clock()))
            return len(batches)
        except BaseException as error:
            self._fail(batches, error if isinstance(error, BinlogdError) else NotOnline("offline"))
            raise
        now_s = self._clock()
        if spool is None:
            logged = sort(group.items, first, self.sorter, self.window, now_s)
        else:
            logged = sort_spooled(group.items[0], first, spool.payload_bytes, self.sorter, now_s)
        if not logged.suspects:  # as nearly always
            self._answer(batches, ())
        unkept = self._note(logged)
        if logged.suspects:
            self._answer(batches, unkept)
        return self._count(batches, logged, begin_s=begin_s, now_s=now_s)

    def _count(
        self, batches: Sequence[_Batch], logged: Logged, *, begin_s: float, now_s: float
    ) -> int:
        slow, writers, begun_s = self._options.slow, 0, now_s - begin_s
        self._measures.written([each.length for each in logged.entries], begun_s)
        for batch in batches:
            if batch.settled is not None:
                writers += 1
                came_s = now_s - batch.since_s
                self._measures.seconds["single"].observe(came_s, len(batch.items))
                if slow is not None:
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

    def _next_group(self) -> tuple[list[_Batch], Group, Spool | None]:
        """What is written next; a spool is alone."""
        batches, group = list[_Batch](), Group()
        if self._spools:
            spool, batch = self._spools.popleft()
            group.add(batch.items)
            return [batch], group, spool
        while self._queue and group.size_bytes < self._options.group_bytes_max:
            batch = self._queue.popleft()
            late_ts = below(batch.items, self.sorter, self.window, self.filer.kept_ts)
            if late_ts and batch.settled is not None:
                self.filer.keep(late_ts).add_done_callback(partial(self._take_again, batch))
                continue
            group.add(batch.items)
            batches.append(batch)
        return batches, group, None

    def _take_again(self, batch: _Batch, kept: asyncio.Future[None]) -> None:
        """Queues what may have come too late: should the process end, the next start will know."""
        if kept.exception() is None and not self.is_closing:
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
            self.log.segments.note(fid, needed_ts=needed_ts)
        if logged.rollbacks and not self._options.believes_rollbacks:
            self.doubted.set()
        if logged.entries:
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
                self._measures.failed_records += len(batch.items)
                batch.settled(error)


def _pass_on(settled: Settled, filed: asyncio.Future[None]) -> None:
    error = filed.exception()
    assert error is None or isinstance(error, BinlogdError), error
    settled(error)
