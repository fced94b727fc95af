"""Files what was logged into the index, behind the writers' backs.

Invariant. `filed_ts` is a watermark of the index: every commit with commit_ts <= filed_ts is in it.
Marks are saved in the same transaction as the rows they speak of, and never ahead of them. When the
index is slow or locked, nobody waits for it: the queue overflows, and slowChaser reads the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import structlog
from msgspec.structs import replace

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptIndex, IndexUnavailable, LogFailed, NotOnline
from binlogd.host.clock import is_set_within
from binlogd.log.pointer import FileId, ValuePointer
from binlogd.pump.log.entry import Entry
from binlogd.pump.log.kind import entries_of
from binlogd.pump.shard.chaser import ChaserStatistics, SlowChaser, Tail
from binlogd.pump.shard.index import LATE_MAX, LateRow
from binlogd.pump.shard.options import FilingOptions
from binlogd.pump.shard.recovery import Recovered, late_among, note_needed
from binlogd.pump.signal import Signal, end
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)

_SNAPSHOTS_MAX = 1024
_UNPLACED_MAX = 65_536
_MEASURE_AGAIN_S = 60.0
_READS_MAX = 10
_NEWEST_LATE = 1_024
_REMADE_MAX = 3
"""An index that is damaged again and again stands on a disk that nobody should trust."""


class _Owed(NamedTuple):
    """What somebody waits for: `kept_ts` at `ts`, and so many of the records since the start in the
    index."""

    ts: Tso
    records: int
    done: asyncio.Future[None]


class Snapshot(NamedTuple):
    """How the sorter stood after `records` had been logged."""

    records: int
    watermark: Tso
    handle: ValuePointer


class Filer:
    """Owns the way from the log into the index of one shard. `run` is its only task."""

    def __init__(self, recovered: Recovered, options: FilingOptions) -> None:
        marks = recovered.marks
        self.filed_ts = marks.max_commit_ts
        self.filed = Signal()
        self.late_commits = 0
        """Since the start; the newest of them are `newest_late`."""
        self.newest_late: deque[LateRow] = deque(maxlen=_NEWEST_LATE)
        self.late, self.late_open = recovered.late
        """Of all lives, and not decided about: the first of them, and how many."""
        self.kept_ts = NO_TS
        """What is logged from now on and commits up to here is known to be late by the next start,
        whatever the other shards and the time source say to it then: so the marks say, durably."""
        self._owed: list[_Owed] = []
        self.index = recovered.index
        self.remade_count = 0
        self._remade = recovered.remade
        self._segments = recovered.log.segments
        self.marks = marks
        """As they will be saved next."""
        self._saved = marks
        self._options = options
        self._tail = Tail(options.queue_max)
        self._chaser = SlowChaser(turn_on_after_s=options.slow_chaser_after_s)
        self._snapshots: deque[Snapshot] = deque()
        self._suspects: deque[Entry] = deque()
        self.room = asyncio.Event()
        """Cleared while nothing should be written: too much of it would be unchecked."""
        self.room.set()
        self._unplaced: set[tuple[Tso, Tso]] = set()
        self._has_more_unplaced = False
        self._work = asyncio.Event()
        self.index.database.on_damage(self._work.set)
        self._closing = asyncio.Event()
        self._measure_after_s = 0.0
        self._batch_since_s: float | None = None
        self._dirty_since_s: float | None = None
        self._has_ended = self._had_last_turn = False
        self._saving = asyncio.Lock()

    # --- what the shard tells ----------------------------------------------------------------

    def logged(self, entries: Sequence[Entry]) -> None:
        """Takes what is durable now, in the order of the log."""
        self._tail.extend(entries)
        self._work.set()

    def suspect(self, commit: Entry) -> None:
        """A logged commit at or below the watermark: a repeated one, or one that came too late.
        Which, is known when it is filed."""
        self._suspects.append(commit)
        if len(self._suspects) >= self._options.suspects_max:
            self.room.clear()

    def keep(self, ts: Tso) -> asyncio.Future[None]:
        """Ends when `kept_ts` is there, where the watermark is now; or with NotOnline."""
        return self._owe(ts, 0)

    def when_filed(self) -> asyncio.Future[None]:
        """Ends when all that was logged so far is in the index, with what is late; or with
        NotOnline."""
        return self._owe(NO_TS, self._tail.appended)

    def unplaced(self, commit_ts: Tso, start_ts: Tso) -> None:
        """A logged commit whose prewrite the sorter does not know; the index may."""
        if len(self._unplaced) < _UNPLACED_MAX:
            self._unplaced.add((commit_ts, start_ts))
        else:
            self._has_more_unplaced = True

    async def know_needs(self) -> None:
        """Waits until every logged commit has been noted in the segment of its prewrite.

        Raises IndexUnavailable.
        """
        if self._unplaced or self._has_more_unplaced:
            await self.caught_up()

    def advanced(self, watermark: Tso, handle: ValuePointer) -> None:
        """How the sorter stands after everything logged so far."""
        if self._tail.waiting() == 0:
            self._reach(self.marks.head, handle, watermark)
            return
        snapshots = self._snapshots
        if snapshots and snapshots[-1].records == self._tail.appended:
            snapshots.pop()
        elif len(snapshots) >= _SNAPSHOTS_MAX:  # fewer steps, the same end
            self._snapshots = snapshots = deque(list(snapshots)[1::2])
        snapshots.append(Snapshot(self._tail.appended, watermark, handle))

    # --- the task ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Files until `close`. Raises CorruptIndex, CorruptRecord or LogFailed."""
        try:
            while await self._is_due():  # ends when closing and nothing is left
                if self.index.database.damage is not None and not self._closing.is_set():
                    await self._make_index_again()
                if not await self._file_some():
                    return
                await self._measure_sealed()
        finally:
            self._has_ended = True
            self._pay(NotOnline("offline"))
            self.room.set()
            self.filed.fire()

    def close(self) -> None:
        """Files what is left and ends; the log takes nothing more."""
        self._closing.set()
        self._work.set()

    @property
    def resume(self) -> ValuePointer:
        """Where a restart would begin to scan, by what is saved now."""
        return min(self._saved.head, self._saved.handle)

    async def forget(self, fids: Sequence[FileId], gc_ts: Tso) -> None:
        """Takes deleted segments out of the index. Raises IndexUnavailable or CorruptIndex."""
        async with self._saving:
            gone: dict[str, Any] = {"gc_ts": gc_ts, "first_fid": FileId(max(fids) + 1)}
            forgotten = replace(self._saved, **gone)
            await self.index.forget_segments(fids, marks=forgotten)
            self._saved = forgotten
            self.marks = replace(self.marks, **gone)

    async def resolve_late(self, commit_tss: Collection[Tso]) -> None:
        """These late commits are dealt with. Raises IndexUnavailable or CorruptIndex."""
        if self.late_open:
            async with self._saving:
                await self.index.forget_late(commit_tss)
                self.late, self.late_open = await self.index.late()

    async def caught_up(self) -> None:
        """Waits until all that was logged so far is in the index.

        Raises IndexUnavailable when that takes too long, or will not happen any more.
        """
        records = self._tail.appended
        try:
            async with asyncio.timeout(self._options.patience_s):
                while self._tail.filed_count < records:  # ends when the filer has passed them
                    if self._has_ended:
                        raise TimeoutError
                    await self.filed.next.wait()
        except TimeoutError as error:
            raise IndexUnavailable("index", "it does not have the newest binlogs yet") from error

    @property
    def waiting(self) -> int:
        """Records that are not in the index yet."""
        return self._tail.waiting()

    def statistics(self, now_s: float) -> ChaserStatistics:
        """slowChaser's state and counters."""
        self._look_at_the_clock(now_s)
        return self._chaser.statistics()

    # --- inside ------------------------------------------------------------------------------

    def _owe(self, ts: Tso, records: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owed.append(_Owed(ts, records, done))
        if self._has_ended:
            self._pay(NotOnline("offline"))
        self._work.set()
        return done

    def _pay(self, error: NotOnline | None = None) -> None:
        """Ends what is reached, or all of it with an error."""
        owed, self._owed = self._owed, []
        for each in owed:
            is_due = each.ts <= self.kept_ts and each.records <= self._tail.filed_count
            if not is_due and error is None:
                self._owed.append(each)
            else:
                end(each.done, None if is_due else error)

    async def _is_due(self) -> bool:
        """Waits for rows, or for marks that have waited long enough. False at the end."""
        loop = asyncio.get_running_loop()
        while not self._tail.waiting():
            if self.index.database.damage is not None and not self._closing.is_set():
                return True
            self._work.clear()
            is_dirty = self._is_dirty()
            if self._closing.is_set():  # what is not measured yet is measured in the next life
                is_dirty, self._had_last_turn = is_dirty and not self._had_last_turn, True
                return is_dirty
            if not is_dirty:
                self._dirty_since_s = None
                await self._work.wait()
                continue
            self._dirty_since_s = self._dirty_since_s or loop.time()
            left_s = self._dirty_since_s + self._options.marks_every_s - loop.time()
            if left_s <= 0 or self._owed:
                return True
            await is_set_within(self._work, left_s)
        if self._tail.waiting() < self._options.batch_max:
            await is_set_within(self._closing, self._options.every_s)
        return True

    async def _file_some(self) -> bool:
        """One transaction. False if closing had to give up; the next start files it then."""
        begin_s = self._batch_since_s = asyncio.get_running_loop().time()
        if self._tail.missing():
            if self._chaser.missed():
                log.warning("slow_chaser_turned_on", unread=self.marks.head)
            entries = await self._from_log(self._tail.missing())
            self._chaser.read(len(entries))
            read_s = asyncio.get_running_loop().time() - begin_s
            self._segments.measures.chase_s.observe(read_s)
        else:
            entries = self._tail.first(self._options.batch_max)
        is_filed = await self._put(entries)
        self._batch_since_s = self._dirty_since_s = None
        if not is_filed:
            return False
        took_s = asyncio.get_running_loop().time() - begin_s
        is_behind = self._tail.missing() or self._tail.waiting() > self._options.batch_max
        if not is_behind and self._chaser.caught_up(took_s=took_s):
            log.info("slow_chaser_turned_off", filed=self.marks.head)
        return True

    async def _put(self, entries: Sequence[Entry]) -> bool:
        loop = asyncio.get_running_loop()
        give_up_s: float | None = None
        while True:  # until it is filed, or closing cannot wait any longer
            try:
                await self._save(entries)
            except IndexUnavailable as error:
                self._segments.measures.errors["batch_write_kv"] += 1
                log.warning("filing_delayed", cause=str(error), waiting=self._tail.waiting())
                if self.index.database.damage is not None and not self._closing.is_set():
                    await self._make_index_again()
                    continue
                self._look_at_the_clock(loop.time())
                if self._closing.is_set():
                    give_up_s = give_up_s or loop.time() + self._options.patience_s
                    if loop.time() >= give_up_s:
                        return False
                    await asyncio.sleep(self._options.every_s)
                else:
                    await is_set_within(self._closing, self._options.retry_s)
            else:
                return True

    async def _save(self, entries: Sequence[Entry]) -> None:
        async with self._saving:
            marks = self.marks
            filed = self._tail.filed_count + len(entries)
            reached = [each for each in self._snapshots if each.records <= filed]
            if reached:
                last = reached[-1]
                marks = replace(marks, max_commit_ts=last.watermark, handle=last.handle)
            if entries:
                marks = replace(marks, head=entries[-1].end)
                await self._note_needed(entries)
            changed = self._segments.changed()
            doubted = [each for each in self._suspects if (each.fid, each.offset) < marks.head]
            late = await late_among(self.index, marks, entries, doubted)
            is_durable = bool(late or self._owed)
            await self.index.put(entries, marks, changed, late=late, is_durable=is_durable)
            if is_durable:
                self.kept_ts = marks.max_commit_ts
            self._note_late(late, len(doubted))
            self._segments.saved(changed)
            self._saved = marks
            if self._unplaced:
                self._unplaced -= {(entry.commit_ts, entry.start_ts) for entry in entries}
        self._tail.filed(len(entries))
        if not self._tail.waiting():
            self._has_more_unplaced = False
        self._reach(marks.head, marks.handle, marks.max_commit_ts)
        while self._snapshots and self._snapshots[0].records <= filed:
            _, watermark, handle = self._snapshots.popleft()  # may have come meanwhile
            self._reach(marks.head, handle, watermark)
        self._pay()
        self.filed.fire()

    def _note_late(self, late: Sequence[LateRow], checked: int) -> None:
        self.late_commits += len(late)
        self.newest_late.extend(late)
        self.late_open += len(late)
        self.late = [*self.late, *late][:LATE_MAX] if late else self.late
        for _ in range(checked):
            self._suspects.popleft()
        if len(self._suspects) < self._options.suspects_max:
            self.room.set()

    async def _note_needed(self, entries: Sequence[Entry]) -> None:
        """So that it is saved together with the commits which segments they need."""
        if not self._unplaced and not self._has_more_unplaced:
            return
        prewrites: dict[Tso, FileId] = {}
        commits = []
        for entry in entries:
            if entry.tp == BinlogType.PREWRITE:
                prewrites[entry.start_ts] = entry.fid
            elif self._has_more_unplaced or (entry.commit_ts, entry.start_ts) in self._unplaced:
                commits.append(entry)
                if entry.start_ts in prewrites:
                    self._segments.note(prewrites[entry.start_ts], needed_ts=entry.commit_ts)
        await note_needed(self.index, self._segments, commits)

    async def _make_index_again(self) -> None:
        """Writers go on meanwhile; pullers who need the index are told to come again."""
        async with self._saving:
            damage = self.index.database.damage or ""
            log.error(
                "index_damaged",
                cause=damage,
                consequence="it is made again from the log; whoever needs it meanwhile waits",
            )
            self.remade_count += 1
            if self.remade_count > _REMADE_MAX:
                reason = f"damaged {self.remade_count} times: {damage}"
                raise CorruptIndex(self.index.database.path, reason)
            self.kept_ts = NO_TS
            await self.index.close()
            try:
                self.index = await self._remade(self._saved, self.late)
                self.late_open = len(self.late)
            except IndexUnavailable as error:  # no room, say: its damage stays noted
                self.remade_count -= 1
                log.warning("index_not_made_again", cause=str(error))
                await is_set_within(self._closing, self._options.retry_s)
                return
            self.index.database.on_damage(self._work.set)
            log.warning("index_made_again", upto=self._saved.head)

    def _reach(self, head: ValuePointer, handle: ValuePointer, watermark: Tso) -> None:
        was_dirty = self._is_dirty()
        known = self.marks  # a witness may have moved it while rows were on their way
        self.marks = replace(
            known,
            head=max(known.head, head),
            handle=max(known.handle, handle),
            max_commit_ts=max(known.max_commit_ts, watermark),
        )
        if watermark > self.filed_ts:
            self.filed_ts = watermark
            self.filed.fire()
        if not was_dirty:
            self._work.set()

    def _is_dirty(self) -> bool:
        return self.marks != self._saved or bool(self._owed or self._segments.changed())

    async def _from_log(self, limit: int) -> list[Entry]:
        """The next records to file, read from the log: at most a few megabytes of them."""
        failures = 0
        while True:  # ends with the records, or after some failures
            records = self._segments.scan(self.marks.head)
            try:
                fid, batch = await anext(records)  # what was acknowledged is in the log
                return entries_of(fid, batch[:limit], self._segments.path)
            except LogFailed as error:
                failures += 1
                if failures >= _READS_MAX or self._closing.is_set():
                    raise
                log.warning("log_not_read", cause=str(error), attempts_left=_READS_MAX - failures)
                await is_set_within(self._closing, self._options.retry_s)
            finally:
                await records.aclose()

    async def _measure_sealed(self) -> None:
        """One segment in a turn while there is something to file, so that neither filing nor the
        end waits for many: a log whose index was made again has them all to measure.

        What cannot be read now is tried again later: nobody waits for a checksum but the garbage
        collection."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._measure_after_s:
            return
        for segment in self._segments.changed():
            if self._closing.is_set() or self._tail.waiting() > self._options.batch_max:
                return
            if segment.is_sealed and segment.checksum is None:
                try:
                    await self._segments.measure(segment.fid)
                except LogFailed as error:
                    log.warning("segment_not_measured", cause=str(error))
                    self._measure_after_s = now_s + _MEASURE_AGAIN_S
                    return
                if self._tail.waiting():
                    return

    def _look_at_the_clock(self, now_s: float) -> None:
        since_s = self._batch_since_s
        if since_s is not None and self._chaser.stalled(waited_s=now_s - since_s):
            log.warning("slow_chaser_turned_on", unread=self.marks.head)
