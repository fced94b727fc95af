"""Opens a shard's log and index, and makes in memory what they say.

Invariant I2. The log is the truth. The scan begins at the smaller of two marks: everything before
`head` is in the index, everything before `handle` has left the sorter. So the cost of a start
follows what happened since the marks were saved, not the size of the log; with no index at all, the
whole log is scanned and the index is made again.

Source: tidb-binlog pump/storage/storage.go, NewAppendWithResolver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from binlogd.binlog import BinlogType
from binlogd.errors import CorruptIndex, IndexUnavailable, LogFailed
from binlogd.host.disk import disk_errors
from binlogd.log import gone, tally
from binlogd.log.directory import VALUE
from binlogd.log.index_file import FILES, Marks
from binlogd.log.pointer import FIRST
from binlogd.ports import Disk
from binlogd.pump.log.entry import Entry
from binlogd.pump.log.kind import entries_of
from binlogd.pump.log.segments import Segments
from binlogd.pump.log.tail import Acknowledged
from binlogd.pump.log.valuelog import ValueLog
from binlogd.pump.shard.index import LateKept, LateRow, SqliteIndex
from binlogd.pump.shard.options import ShardOptions
from binlogd.pump.shard.sorter import Sorter
from binlogd.pump.shard.sorting import sort_again
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.wire import peek

Remade = Callable[[Marks, Sequence[LateRow]], Awaitable[SqliteIndex]]

log = structlog.get_logger(__name__)


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """A shard as its files say. `max_seen_ts` is the largest commit_ts, released or not. `remade`
    makes the index again while the log goes on, see `make_again`."""

    log: ValueLog
    index: SqliteIndex
    remade: Remade
    marks: Marks
    late: LateKept
    sorter: Sorter
    max_seen_ts: Tso
    scanned: int


async def recover(directory: Path, disk: Disk, options: ShardOptions, now_s: float) -> Recovered:
    """What is open counts as come at `now_s`. Raises CorruptRecord, LogFailed, DiskFull,
    IndexUnavailable or ConfigError."""
    with disk_errors(directory):
        await disk.make_directory(directory)
        try:
            return await _recovered(directory, disk, options, now_s)
        except CorruptIndex as error:  # wherever it shows: the log has everything
            log.warning("index_dropped", path=str(error.path), cause=error.reason)
        await disk.remove([directory / name for name in FILES])
        return await _recovered(directory, disk, options, now_s)


async def _recovered(directory: Path, disk: Disk, options: ShardOptions, now_s: float) -> Recovered:
    index = await SqliteIndex.open(directory / FILES[0])
    try:
        marks, value, known = await index.marks(), directory / VALUE, await index.segments()
        if marks and marks.head != FIRST and marks.head.fid not in [each.fid for each in known]:
            reason = "it does not remember the segment of its own head"
            raise CorruptIndex(index.database.path, reason)
        gc_ts, first_fid = await gone.said(value, disk)
        begin = marks or Marks(gc_ts=gc_ts, first_fid=first_fid)
        try:
            segments = await Segments.open(value, disk=disk, known=known, first_fid=begin.first_fid)
        except LogFailed:  # a sync that fails may lose the end of the log, as a loss of power does
            try:
                await index.put((), replace(begin, boot_id=""), is_durable=True)
            except IndexUnavailable as error:  # it is the log that has failed
                log.warning("index_not_saved", path=str(index.database.path), cause=str(error))
            raise
        # Without marks nothing tells torn from damaged but the bytes themselves: then be strict.
        same_boot = marks is None or marks.boot_id == disk.boot_id() != ""
        acknowledged = Acknowledged(upto=begin.head, same_boot=same_boot)
        return await _scan(segments, index, begin, acknowledged, options, now_s)
    except BaseException:
        await index.close()
        raise


async def make_again(
    path: Path, segments: Segments, marks: Marks, late: Sequence[LateRow]
) -> SqliteIndex:
    """A new index with everything before `marks.head`, in place of one that is closed.

    The log may grow meanwhile. Should the process end before it is done, the marks in it make the
    next start go on with it. Raises CorruptRecord, LogFailed, IndexUnavailable or CorruptIndex.
    """
    with disk_errors(path.parent):
        await segments.disk.remove([path.parent / name for name in FILES])
    index = await SqliteIndex.open(path)
    try:
        begin = replace(marks, head=FIRST, handle=FIRST, max_commit_ts=NO_TS)
        await index.put((), begin, segments, late=late, is_durable=True)
        async for fid, batch in segments.scan(FIRST):
            before = [each for each in batch if (fid, each[0]) < marks.head]
            await index.put(entries_of(fid, before, segments.path))
            if len(before) < len(batch):
                break
        await index.put((), marks)
    except BaseException:
        await index.close()
        raise
    return index


async def _scan(
    segments: Segments,
    index: SqliteIndex,
    marks: Marks,
    acknowledged: Acknowledged,
    options: ShardOptions,
    now_s: float,
) -> Recovered:
    sorter = Sorter(watermark=marks.max_commit_ts, believes_rollbacks=options.believes_rollbacks)
    head, scanned, max_seen_ts = marks.head, 0, NO_TS
    is_whole_log = marks.head == FIRST  # without marks what was deleted is not there to tell
    records = segments.recover(
        min(marks.head, marks.handle), acknowledged, options.log.flush_bytes_max
    )
    async for fid, batch in records:
        entries = entries_of(fid, batch, segments.path)
        again = sort_again(entries, sorter, now_s)
        segments.note(fid, max_ts=again.newest_ts)
        for needed_fid, needed_ts in again.needed.items():
            segments.note(needed_fid, needed_ts=needed_ts)
        unplaced, suspects = again.unplaced, again.suspects
        if is_whole_log:
            strange = {(each.fid, each.offset) for each in unplaced}
            suspects = [
                each
                for each in suspects
                if each.commit_ts > marks.gc_ts and (each.fid, each.offset) not in strange
            ]
        unfiled = entries
        if entries and (fid, entries[0].offset) < head:
            unfiled = [entry for entry in entries if (fid, entry.offset) >= head]
        if unfiled:
            suspects = [each for each in suspects if (each.fid, each.offset) >= head]
            await index.put(unfiled, late=await late_among(index, marks, unfiled, suspects))
            head = unfiled[-1].end
        await note_needed(index, segments, unplaced)
        scanned += len(entries)
        max_seen_ts = max(max_seen_ts, again.newest_commit_ts)
    value_log = await ValueLog.begin(segments, options.log)
    boot_id, former_boot = segments.disk.boot_id(), marks.boot_id
    marks = replace(
        marks,
        head=max(head, segments.end),
        handle=sorter.undecided(segments.end),
        max_commit_ts=sorter.watermark,
        boot_id=boot_id,
    )
    changed = segments.changed()
    # Once for each time that the machine is up: should it go down, the next start must know that it
    # has, or what was torn then would look like damage.
    await index.put((), marks, changed, is_durable=not boot_id or boot_id != former_boot)
    segments.saved(changed)
    return Recovered(
        log=value_log,
        index=index,
        remade=partial(make_again, index.database.path, segments),
        marks=marks,
        late=await index.late(),
        sorter=sorter,
        max_seen_ts=max(max_seen_ts, sorter.watermark),
        scanned=scanned,
    )


async def late_among(
    index: SqliteIndex, marks: Marks, entries: Sequence[Entry], suspects: Sequence[Entry]
) -> list[LateRow]:
    """Which of the suspects nobody knew before: neither the index, which has everything in front of
    `entries`, nor an earlier one of these, among which they stand.

    One whose rows garbage collection has taken is repeated (decisions/0128-repeated-behind-gc.md).
    Raises IndexUnavailable or CorruptIndex.
    """
    if not suspects:
        return []
    first: dict[tuple[Tso, Tso], Entry] = {}
    for entry in entries:
        first.setdefault((entry.commit_ts, entry.start_ts), entry)
    begun = {entry.start_ts for entry in entries if entry.tp == BinlogType.PREWRITE}
    late = []
    for each in suspects:
        commit = (each.commit_ts, each.start_ts)
        if first.get(commit) != each or await index.has_commit(*commit):
            continue
        place = (await index.prewrites([each.start_ts])).get(each.start_ts)
        has_rows = each.start_ts in begun or (place is not None and place.fid >= marks.first_fid)
        if each.commit_ts > marks.gc_ts or has_rows:
            late.append(LateRow(*commit, each.place))
            log.error("commit_below_watermark", commit_ts=commit[0], start_ts=commit[1])
        else:
            log.warning("commit_behind_gc", commit_ts=commit[0], start_ts=commit[1])
    return late


async def note_needed(index: SqliteIndex, segments: Segments, commits: Sequence[Entry]) -> None:
    """Takes note which segments these commits need, by what is filed of their prewrites.

    Raises IndexUnavailable or CorruptIndex.
    """
    if not commits:
        return
    places = await index.prewrites([commit.start_ts for commit in commits])
    for commit in commits:
        place = places.get(commit.start_ts)
        if place is not None:
            segments.note(place.fid, needed_ts=commit.commit_ts)


async def check_filed(index: SqliteIndex, segments: Segments, after: Tso) -> None:
    """Raises IndexUnavailable where the index lacks commits behind `after` that were filed;
    CorruptRecord or LogFailed of the log. What was compared once is not compared again.

    A stretch of the log that does not hold what its tally says is read, and its commits are looked
    for one by one: see `log/tally.py` for what a database without checksums may lose.
    """
    if after >= index.compared_from:
        return
    for row in await index.database.query(tally.UNFIT, (after, MAX_TS)):
        stretch = tally.Tally(*row)
        async with aclosing(segments.scan(stretch.begin)) as batches:
            async for fid, records in batches:
                for offset, payload in records:
                    tp, start_ts, commit_ts, _ = peek.peek(payload)
                    if tp == BinlogType.PREWRITE or not commit_ts or (fid, offset) >= stretch.end:
                        continue
                    if not await index.has_commit(Tso(commit_ts), Tso(start_ts)):
                        raise index.database.found_damage(f"it lacks the commit at {commit_ts}")
                if (fid, records[-1][0]) >= stretch.end:
                    break
    index.compared_from = min(index.compared_from, after)
