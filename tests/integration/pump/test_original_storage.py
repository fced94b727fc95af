"""What the original's storage tests check, where no test of ours does already.

Source: tidb-binlog pump/storage/*_test.go. Elsewhere: writing while nobody files and catching up
(test_pump_in_trouble, test_failed_groups), a thousand transactions of many writers (test_pump),
batches, reopening, RLIMIT_FSIZE (test_value_log), damaged files (test_log_survey), the sorter
(test_sorter), pointers and segment names (test_pump_decisions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.binlog import BinlogType
from binlogd.errors import Behind
from binlogd.host.disk import PosixDisk
from binlogd.log.index_file import FILES, Marks
from binlogd.log.pointer import FIRST, FileId, ValuePointer
from binlogd.pump.log.entry import Entry
from binlogd.pump.shard.index import SqliteIndex
from binlogd.tso import MAX_TS, NO_TS, Tso
from tests.support.pump_world import (
    ROOMY,
    World,
    at,
    commit,
    eventually,
    numbers,
    posix_world,
    prewrite,
    pulled,
    until_released,
    written,
)


async def saved_marks(directory: Path) -> Marks:
    index = await SqliteIndex.open(directory / "pump" / "shard-0" / FILES[0])
    try:
        marks = await index.marks()
        assert marks is not None
        return marks
    finally:
        await index.close()


async def test_the_marks_are_the_same_after_a_restart(tmp_path: Path) -> None:
    """Append.TestCloseAndOpenAgain."""
    async with posix_world(tmp_path) as world:
        async with world.pump() as pump:
            await written(pump, prewrite(1, 128), commit(1, 2))
            await until_released(pump, 2)
            before = pump._shards[0].filer
        closed = await saved_marks(tmp_path)
        assert (closed.head, closed.max_commit_ts) == (before.marks.head, at(2))
        async with world.pump() as pump:
            assert pump._shards[0].filer.marks == closed


async def test_the_gc_mark_is_kept(tmp_path: Path) -> None:
    """Append.TestReadWriteGCTS: none at first, then what was saved."""
    index = await SqliteIndex.open(tmp_path / FILES[0])
    assert await index.marks() is None
    await index.put((), Marks(gc_ts=Tso(100)))
    await index.close()
    index = await SqliteIndex.open(tmp_path / FILES[0])
    marks = await index.marks()
    await index.close()
    assert marks is not None
    assert marks.gc_ts == 100


async def test_exactly_the_keys_up_to_the_gc_mark_go(tmp_path: Path) -> None:
    """Append.TestDoGCTS, with fewer keys: several transactions are needed all the same."""
    index = await SqliteIndex.open(tmp_path / FILES[0])
    last, upto = 12_499, 7_200
    entries = [
        Entry(BinlogType.COMMIT, Tso(ts), Tso(ts + 100_000), FIRST.fid, ts, 1)
        for ts in range(1, last + 1)
    ]
    await index.put(entries)
    turns = 0
    while await index.database.forget_rows(first_fid=FileId(1), upto=Tso(100_000 + upto)):
        turns += 1
    left = await index.commits_after(NO_TS, upto=MAX_TS, limit=last)
    assert [each.start_ts for each in left] == list(range(upto + 1, last + 1))
    assert turns > 1
    await index.close()


async def test_a_binlog_is_found_by_its_timestamp(tmp_path: Path) -> None:
    """Append.TestWriteCBinlog: a prewrite under its start_ts, a commit under its commit_ts."""
    async with posix_world(tmp_path) as world, world.pump() as pump:
        await written(pump, prewrite(42))
        assert await pump.read_binlog(at(42)) == prewrite(42)
        await written(pump, commit(42, 50))
        assert await pump.read_binlog(at(50)) == commit(42, 50)
        assert await pump.read_binlog(at(49)) is None


async def test_a_repeated_commit_moves_no_mark_past_an_open_prewrite(tmp_path: Path) -> None:
    """The original looks its handle mark up by commit_ts up to a second later, and finds the last
    record of that commit: a prewrite in between would not be scanned after a crash."""
    async with posix_world(tmp_path) as world:
        async with world.pump() as pump:
            await written(pump, prewrite(1), commit(1, 2))
            await written(pump, prewrite(3))
            await written(pump, commit(1, 2), prewrite(5), commit(5, 6))
            await eventually(lambda: not pump._shards[0].filer.waiting)
            oldest = pump._shards[0].sorter.oldest
            assert oldest is not None
            place = ValuePointer(oldest.place.fid, oldest.place.offset)
        assert (await saved_marks(tmp_path)).handle == place
        async with world.pump() as pump:
            assert pump.max_commit_ts == at(2)
            await written(pump, commit(3, 4))
            assert numbers(await pulled(pump, upto=at(6))) == [(1, 2), (3, 4), (5, 6)]


class CollectingDisk(PosixDisk):
    """Lets the garbage collection run just before it reads."""

    collect = None

    async def read(self, path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        collect, self.collect = self.collect, None
        if collect is not None:
            await collect()
        return await super().read(path, ranges)


async def test_a_puller_whose_segment_is_deleted_under_it_is_told_so(tmp_path: Path) -> None:
    """Vlog.TestGCTS has a lock between scan and GC; here a segment may go while it is read."""
    day = 86_400_000 << 18
    small = replace(ROOMY, segment_bytes_max=2_000, window_bytes_max=1)
    disk = CollectingDisk()
    world = World(tmp_path, disk)
    world.clock.now_ms += 30 * 86_400_000
    async with world.pump(small) as pump:
        for number in range(1, 32):
            await written(pump, prewrite(number * day, 200), commit(number * day, number * day + 1))
        log = pump._shards[0].log
        await eventually(lambda: all(s.checksum for s in log.segments if s.is_sealed))
        await eventually(lambda: pump._shards[0].filer.filed_ts == at(31 * day + 1))
        disk.collect = pump.caretaker.collect  # type: ignore[assignment]  # None before
        with pytest.raises(Behind, match="have been deleted"):
            await pulled(pump, upto=at(31 * day + 1), after=at(5))
    disk.close()
