"""A slow or damaged index, large orphans, a stop in the middle: nobody dies of it, or hangs."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.archive.places import DirectoryIndex
from binlogd.errors import CorruptIndex, IndexUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.log.index_file import FILES, Marks, Segment
from binlogd.pump.budget import Budget
from binlogd.pump.pump import Pump
from binlogd.pump.shard.index import LateRow, SqliteIndex
from binlogd.pump.shard.options import PullOptions
from binlogd.pump.shard.pull import ShardSource
from binlogd.pump.shard.statistics import statistics_of
from binlogd.tso import NO_TS, Tso
from tests.support.pump_world import (
    PATIENCE_S,
    ROOMY,
    World,
    at,
    commit,
    eventually,
    numbers,
    prewrite,
    pulled,
    rollback,
    until_released,
    written,
)

INDEX = Path("pump") / "shard-0" / FILES[0]


# --- the index ---------------------------------------------------------------------------------


async def test_a_repeated_commit_survives_an_index_that_lacks_a_table(world: World) -> None:
    """It is made again while the commit waits to be looked up there."""
    async with world.pump(replace(ROOMY, window_bytes_max=1)) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        await until_released(pump, 2)
        filer, path = pump._shards[0].filer, world.directory / INDEX
        with sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S) as other:
            other.execute("DROP TABLE commits")
        other.close()
        await written(pump, commit(1, 2), prewrite(3), commit(3, 4))
        await eventually(lambda: filer.remade_count == 1 and filer.index.database.damage is None)
        assert numbers(await pulled(pump, upto=at(4))) == [(1, 2), (3, 4)]


async def test_an_index_with_a_row_that_lacks_a_number_is_made_again(world: World) -> None:
    async with world.pump(replace(ROOMY, window_bytes_max=1)) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        filer = pump._shards[0].filer
        await eventually(lambda: filer.filed_ts >= at(2))
        with sqlite3.connect(world.directory / INDEX, timeout=PATIENCE_S) as other:
            other.execute("UPDATE prewrites SET length = NULL")
        other.close()
        with pytest.raises(IndexUnavailable, match="lacks a number"):
            await filer.index.commits_after(NO_TS, upto=at(2), limit=9)
        await eventually(lambda: filer.remade_count == 1 and filer.index.database.damage is None)
        assert numbers(await pulled(pump, upto=at(2))) == [(1, 2)]


@pytest.mark.parametrize("value", ["'some'", "x'00ff'", "1.5", "-1"])
async def test_an_index_with_anything_but_numbers_is_made_again(world: World, value: str) -> None:
    async with world.pump(replace(ROOMY, window_bytes_max=1)) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        filer = pump._shards[0].filer
        await eventually(lambda: filer.filed_ts >= at(2))
        with sqlite3.connect(world.directory / INDEX, timeout=PATIENCE_S) as other:
            other.execute(f"UPDATE commits SET length = {value}")
        other.close()
        with pytest.raises(IndexUnavailable, match="it is damaged"):
            await filer.index.commits_after(NO_TS, upto=at(2), limit=9)
        await eventually(lambda: filer.remade_count == 1 and filer.index.database.damage is None)
        assert numbers(await pulled(pump, upto=at(2))) == [(1, 2)]


@pytest.mark.parametrize(
    "change",
    ["UPDATE marks SET name = 'tead_pointer' WHERE name = 'head_pointer'", "DELETE FROM segments"],
)
async def test_an_index_that_lost_a_row_about_itself_is_told_and_made_again(
    world: World, change: str
) -> None:
    async with world.pump(replace(ROOMY, window_bytes_max=1)) as pump:
        await written(pump, prewrite(1), commit(1, 2))
    with sqlite3.connect(world.directory / INDEX) as other:
        other.execute(change)
    other.close()
    if "marks" in change:
        with pytest.raises(CorruptIndex, match="its marks make no sense"):
            DirectoryIndex(world.directory).resolved_ts()
    async with world.pump(replace(ROOMY, window_bytes_max=1)) as pump:
        assert numbers(await pulled(pump, upto=at(2))) == [(1, 2)]
        assert len(pump._shards[0].log.segments) == 1


async def test_an_index_with_damaged_pages_is_made_again(world: World) -> None:
    async with world.pump() as pump:
        for number in range(10, 3_000, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
    path = world.directory / INDEX
    content = bytearray(path.read_bytes())
    for page in range(4_096 * 8, len(content) - 4_096, 4_096):
        content[page : page + 64] = random.Random(page).randbytes(64)
    path.write_bytes(content)
    # what a crash leaves to be filed meets the damage
    with sqlite3.connect(path) as other:
        other.execute("UPDATE marks SET value = zeroblob(12) WHERE name LIKE '%pointer'")
    other.close()
    async with world.pump() as pump:
        found = await pulled(pump, upto=at(2_999))
        assert len(found) == len(range(10, 3_000, 2))


async def test_an_index_that_is_damaged_while_it_is_used_is_made_again(world: World) -> None:
    """Writers notice nothing; pullers who need it are told to come again, and then get it all."""
    options = replace(ROOMY, window_bytes_max=1, resolve_after_s=0.05)
    async with world.pump(options) as pump:
        for number in range(10, 2_000, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
        await eventually(lambda: pump.statistics().shards[0].filed_ts == at(1_999))
        ruin(world.directory / INDEX)
        shard = pump._shards[0]
        with pytest.raises(IndexUnavailable, match="made again"):
            await shard.index.outcome(at(12))
        await written(pump, prewrite(2_000), commit(2_000, 2_001))
        await eventually(lambda: statistics_of(shard).index_rebuilds == 1)
        await eventually(lambda: statistics_of(shard).index_damage == "")
        await written(pump, prewrite(3_000), commit(3_000, 3_001))
        found = await pulled(pump, upto=at(3_001))
        assert numbers(found) == [(n, n + 1) for n in [*range(10, 2_002, 2), 3_000]]
    async with world.pump(options) as pump:
        assert await pulled(pump, upto=at(3_001)) == found


async def test_an_index_that_cannot_be_made_again_yet_is_made_later(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 2))
        filer, failures = pump._shards[0].filer, [1, 2]
        remade = filer._remade

        async def refusing(marks: Marks, late: Sequence[LateRow]) -> SqliteIndex:
            if failures:
                failures.pop()
                raise IndexUnavailable("index.db", "database or disk is full")
            return await remade(marks, late)

        filer._remade = refusing
        filer._options = replace(filer._options, retry_s=0.01)
        filer.index.database.found_damage("ruined")
        await eventually(lambda: filer.remade_count == 1 and filer.index.database.damage is None)
        await written(pump, prewrite(3), commit(3, 4))
        assert numbers(await pulled(pump, upto=at(4))) == [(1, 2), (3, 4)]


async def test_a_row_that_leads_to_another_binlog_is_no_answer(world: World) -> None:
    async with world.pump(replace(ROOMY, window_bytes_max=1)) as pump:
        for number in range(10, 30, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
        await eventually(lambda: pump.statistics().shards[0].filed_ts == at(29))
        with sqlite3.connect(world.directory / INDEX) as other:
            ((offset,),) = other.execute("SELECT offset FROM commits WHERE start_ts = ?", (at(20),))
            other.execute("UPDATE commits SET offset = ? WHERE start_ts = ?", (offset, at(12)))
        other.close()
        with pytest.raises(IndexUnavailable, match=f"row of commit_ts {at(13)} leads to another"):
            await pulled(pump, upto=at(29))
        await eventually(lambda: pump._shards[0].index.database.damage is None)
        expected = [(number, number + 1) for number in range(10, 30, 2)]
        assert numbers(await pulled(pump, upto=at(29))) == expected


async def reached(source: ShardSource, upto: Tso) -> None:
    async for batch in source.pull(at(1)):
        if batch.resolved_ts >= upto:
            return


@pytest.mark.parametrize("size", [20, 5_000])
async def test_a_prewrite_of_another_transaction_is_no_answer_however_large(
    world: World, size: int
) -> None:
    async with world.pump(replace(ROOMY, window_bytes_max=1)) as pump:
        for number in range(10, 30, 2):
            await written(pump, prewrite(number, size), commit(number, number + 1))
        await eventually(lambda: pump.statistics().shards[0].filed_ts == at(29))
        with sqlite3.connect(world.directory / INDEX) as other:
            other.execute(
                "UPDATE prewrites SET (fid, offset, length) = (SELECT fid, offset, length FROM"
                " prewrites WHERE start_ts = ?) WHERE start_ts = ?",
                (at(20), at(12)),
            )
        other.close()
        shard = pump._shards[0]
        narrow = ShardSource(shard, PullOptions(bytes_max=4_000), Budget(bytes_max=100_000))
        with pytest.raises(IndexUnavailable, match=f"row of commit_ts {at(13)} leads to another"):
            await reached(narrow, at(29))


async def test_an_index_that_is_ruined_again_and_again_ends_the_process(world: World) -> None:
    async def ruined_four_times() -> None:
        async with world.pump() as pump:
            await written(pump, prewrite(1), commit(1, 2))
            for _ in range(4):
                await eventually(lambda: pump._shards[0].index.database.damage is None)
                pump._shards[0].index.database.found_damage("ruined")
            await asyncio.sleep(PATIENCE_S)  # its end comes first

    with pytest.raises(ExceptionGroup) as caught:
        await ruined_four_times()
    assert caught.group_contains(CorruptIndex, match="damaged 4 times: ruined")


def ruin(path: Path) -> None:
    """Overwrites every page but the first, once all of them are in the file."""
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    content = bytearray(path.read_bytes())
    for page in range(4_096, len(content) - 4_095, 4_096):
        content[page : page + 64] = random.Random(page).randbytes(64)
    path.write_bytes(content)


# --- orphans -----------------------------------------------------------------------------------


class GreedyDisk(PosixDisk):
    """Remembers the most bytes that one read asked for, and how much was read in all."""

    largest = total = 0

    async def read(self, path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        size = sum(length for _, length in ranges)
        self.largest, self.total = max(self.largest, size), self.total + size
        return await super().read(path, ranges)


async def test_large_orphans_are_read_once_and_not_all_at_once(tmp_path: Path) -> None:
    disk = GreedyDisk()
    world = World(tmp_path, disk)
    async with world.pump(replace(ROOMY, resolve_after_s=0.05)) as pump:
        for number in range(10, 30):
            await written(pump, prewrite(number, 500_000))
        await eventually(lambda: [len(asked) for asked in world.fates.asked[-3:]] == [20, 20, 20])
        assert {each.prewrite_key for each in world.fates.asked[-1]} == {
            b"key %d" % number for number in range(10, 30)
        }
        assert disk.largest < 6_000_000
        assert disk.total < 25_000_000
    disk.close()


async def test_a_repeated_prewrite_is_looked_up_when_the_index_has_its_commit(
    world: World,
) -> None:
    options = replace(ROOMY, resolve_after_s=0.05, window_bytes_max=1)
    async with world.pump(options) as pump:
        with sqlite3.connect(world.directory / INDEX, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            await written(pump, prewrite(1), commit(1, 2))
            pump._shards[0].sorter._outcomes.clear()  # as after many others
            await written(pump, prewrite(1), prewrite(3), commit(3, 4))
            await asyncio.sleep(0.5)
            other.execute("ROLLBACK")
        other.close()
        await until_released(pump, 4)
        assert world.fates.asked == []


# --- a log that was never measured -------------------------------------------------------------


class SlowReader(PosixDisk):
    """Takes its time to read a whole segment."""

    measured = 0

    async def checksum(self, path: Path, length: int) -> int:
        self.measured += 1
        await asyncio.sleep(0.3)
        return await super().checksum(path, length)


async def test_segments_without_a_checksum_hold_up_neither_filing_nor_the_end(
    world: World, tmp_path: Path
) -> None:
    small = replace(ROOMY, segment_bytes_max=1_000)
    async with world.pump(small) as pump:
        for number in range(10, 500, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
    for name in FILES:  # an index that is made again knows no checksums
        (world.directory / INDEX).with_name(name).unlink(missing_ok=True)

    disk = SlowReader()
    async with World(tmp_path, disk).pump(small) as pump:
        segments = len(pump._shards[0].log.segments)
        assert segments > 20
        measured = disk.measured
        await written(pump, prewrite(1_000), commit(1_000, 1_001))
        await eventually(lambda: pump.statistics().shards[0].filed_ts == at(1_001))
        assert disk.measured <= measured + 2, "the one that was under way, and one in its turn"
    assert disk.measured < segments
    disk.close()


# --- garbage -----------------------------------------------------------------------------------


async def test_a_commit_after_a_rollback_keeps_its_prewrite(world: World) -> None:
    """A Rollback says that the writer gave up, not that nothing was committed."""
    small = replace(ROOMY, segment_bytes_max=2_000, gc_keep_s=0.001)
    async with world.pump(small) as pump:
        await written(pump, prewrite(1), rollback(1))
        for number in range(10, 200, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
        await written(pump, commit(1, 10_000))
        later = 1 << 22  # milliseconds later
        await written(pump, prewrite(later), commit(later, later + 1))
        await eventually(lambda: pump.statistics().shards[0].filed_ts == at(later + 1))
        pump.caretaker.hold("drainer", at(300))
        world.clock.now_ms += 1_000
        await eventually(lambda: all(s.checksum for s in segments_of(pump) if s.is_sealed))
        await pump.caretaker.collect()
        found = await pulled(pump, after=at(300), upto=at(10_000))
        assert numbers(found) == [(1, 10_000)]


async def test_a_commit_for_a_rollback_behind_the_marks_keeps_its_prewrite(world: World) -> None:
    small = replace(ROOMY, segment_bytes_max=2_000, gc_keep_s=0.001)
    async with world.pump(small) as pump:
        await written(pump, prewrite(1), rollback(1))
        for number in range(10, 200, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
    async with world.pump(small) as pump:  # its sorter has never heard of 1
        await written(pump, commit(1, 10_000))
        later = 1 << 22
        await written(pump, prewrite(later), commit(later, later + 1))
        pump.caretaker.hold("drainer", at(300))
        world.clock.now_ms += 1_000
        await eventually(lambda: all(s.checksum for s in segments_of(pump) if s.is_sealed))
        await pump.caretaker.collect()
        assert segments_of(pump)[0].needed_ts == at(10_000)
        assert numbers(await pulled(pump, after=at(300), upto=at(10_000))) == [(1, 10_000)]
    for name in FILES:
        (world.directory / INDEX).with_name(name).unlink(missing_ok=True)
    async with world.pump(small) as pump:
        assert segments_of(pump)[0].needed_ts == at(10_000)


def segments_of(pump: Pump) -> list[Segment]:
    return list(pump._shards[0].log.segments)


async def test_a_commit_repeated_before_it_is_filed_is_not_late(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), prewrite(50), rollback(50))
    async with world.pump() as pump:
        await written(pump, commit(1, 2), commit(1, 2), prewrite(51), commit(51, 52))
        await until_released(pump, 52)
        await eventually(lambda: pump.statistics().shards[0].filed_ts == at(52))
        assert pump.statistics().shards[0].late_commits == 0
        await written(pump, prewrite(30), rollback(30), commit(30, 40))
        await eventually(lambda: pump.statistics().shards[0].late_commits == 1)
