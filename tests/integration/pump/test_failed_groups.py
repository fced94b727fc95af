"""A group of binlogs that fails half-way: what is in memory still follows the log."""

from __future__ import annotations

import asyncio
import errno
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from binlogd.binlog import BinlogType
from binlogd.errors import DiskFull, LogFailed
from binlogd.log import record
from binlogd.log.directory import VALUE
from binlogd.log.index_file import FILES
from binlogd.log.pointer import FIRST, FileId, ValuePointer
from binlogd.pump.log.entry import Item
from binlogd.pump.log.segments import Segments
from binlogd.pump.log.valuelog import LogLimits, ValueLog
from binlogd.pump.shard.options import FilingOptions, ShardOptions
from binlogd.pump.shard.shard import Shard
from binlogd.pump.shard.statistics import statistics_of
from binlogd.tso import MAX_TS, NO_TS
from tests.sim.disk import SimDisk, SimFile
from tests.support.appending import NOTHING_KNOWN, appended
from tests.support.pump_world import at, commit, eventually, prewrite


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a shard. SQLite has a disk of its own, so it is made here too."""
    (tmp_path / "shard").mkdir()
    return tmp_path / "shard"


OPTIONS = ShardOptions(
    log=LogLimits(flush_bytes_max=2_000, segment_bytes_max=20_000),
    filing=FilingOptions(queue_max=8, batch_max=4, every_s=0.01, retry_s=0.05),
)


def a_prewrite(start: int, size: int = 1) -> Item:
    return Item(BinlogType.PREWRITE, at(start), NO_TS, prewrite(start, size))


def a_commit(start: int, commit_ts: int) -> Item:
    return Item(BinlogType.COMMIT, at(start), at(commit_ts), commit(start, commit_ts))


@asynccontextmanager
async def running(directory: Path, disk: SimDisk) -> AsyncIterator[Shard]:
    shard = await Shard.open(directory, name="shard", disk=disk, options=OPTIONS, now_s=0.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(shard.run())
        yield shard
        shard.stop()
    await shard.close()


@pytest.mark.parametrize("room", [1_000, 2_500, 4_500, 6_500])
async def test_the_chaser_reads_what_was_acknowledged_and_nothing_else(
    home: Path, room: int
) -> None:
    disk = SimDisk(random.Random(1))
    async with running(home, disk) as shard:
        await shard.submit([a_prewrite(1), a_commit(1, 2)])
        with sqlite3.connect(home / FILES[0], isolation_level=None) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            disk.fail_writes_after = room
            with pytest.raises(DiskFull):
                await shard.submit([a_prewrite(start, 900) for start in range(10, 15)])
            for start in range(100, 140, 2):  # more than the queue holds
                await shard.submit([a_prewrite(start), a_commit(start, start + 1)])
            assert shard.filer.waiting > OPTIONS.filing.queue_max
            blocker.execute("ROLLBACK")
        blocker.close()
        await eventually(lambda: not shard.filer.waiting)
        found = await shard.index.commits_after(NO_TS, upto=MAX_TS, limit=1_000)
        starts = [each.start_ts - at(0) for each in found]
        assert starts == [1, *range(100, 140, 2)]
        assert [each for each in found if each.prewrite is None] == []

    async with running(home, disk.kill()) as shard:
        assert shard.sorter.open_count == 0, "what failed has come back"


class StandingDisk(SimDisk):
    """A disk that stops before its next sync but one."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.syncs_left = 1 << 30
        self.goes = asyncio.Event()

    async def sync(self, file: SimFile) -> None:
        if self.syncs_left == 0:
            await self.goes.wait()
        self.syncs_left -= 1
        await super().sync(file)


async def test_no_mark_passes_a_prewrite_that_is_being_written(home: Path) -> None:
    disk = StandingDisk()
    async with running(home, disk) as shard:
        await shard.submit([a_prewrite(1), a_commit(1, 2)])
        await eventually(lambda: not shard.filer.waiting)
        disk.syncs_left = 2
        written = shard.submit([a_prewrite(start, 900) for start in (10, 20, 30)])
        await eventually(lambda: disk.syncs_left == 0)
        shard.sorted_on()  # as after an orphan was settled
        disk.goes.set()
        await written
        await eventually(lambda: not shard.filer.waiting)
        oldest = shard.sorter.oldest
        assert oldest is not None
        assert shard.filer.marks.handle <= ValuePointer(oldest.place.fid, oldest.place.offset)


async def test_a_witness_stands_behind_what_is_being_written(home: Path) -> None:
    """What was handed out when it came may be above the commit of a prewrite on its way."""
    disk = StandingDisk()
    async with running(home, disk) as shard:
        await shard.submit([a_prewrite(1), a_commit(1, 2)])
        disk.syncs_left = 0
        written = shard.submit([a_prewrite(10)])
        await eventually(lambda: shard._is_busy and not shard._queue)
        shard.witness(at(50))
        assert shard.watermark == at(2)
        disk.syncs_left = 1 << 30
        disk.goes.set()
        await written
        await shard.submit([])
        assert shard.watermark == at(2)
        await shard.submit([a_commit(10, 20)])
        assert shard.watermark == at(50)


async def test_a_log_that_failed_goes_on_with_the_next_group(home: Path) -> None:
    disk = SimDisk(random.Random(1))
    async with running(home, disk) as shard:
        disk.fail_syncs = 1
        with pytest.raises(LogFailed):
            await shard.submit([a_prewrite(start, 900) for start in (10, 20, 30)])
        counted = statistics_of(shard)
        assert (counted.failed_records, counted.measures.errors["write_binlog_batch"]) == (3, 1)
        await shard.submit([a_prewrite(10), a_commit(10, 40)])
        assert shard.watermark == at(40)


async def test_what_a_failed_sync_of_a_start_lost_is_no_damage_to_the_next(home: Path) -> None:
    disk = SimDisk(random.Random(1))
    async with running(home, disk) as shard:
        await shard.submit([a_prewrite(1), a_commit(1, 2)])
    # a process was killed between its write and its sync, and the sync of the next one fails
    left = disk.files[home / VALUE / "000000.vlog"]
    left.content += record.encode(prewrite(10, 900))
    disk = disk.kill()
    disk.fail_syncs = 1
    with pytest.raises(LogFailed, match="Input/output error"):
        async with running(home, disk):
            pass
    assert not left.content.endswith(record.encode(prewrite(10, 900)))
    async with running(home, disk.kill()) as shard:
        await shard.submit([a_prewrite(10), a_commit(10, 40)])
        assert shard.watermark == at(40)


class LockingDisk(SimDisk):
    """A disk on which an index is locked by somebody else as soon as a log is synced."""

    locks: Path | None = None

    async def sync(self, file: SimFile) -> None:
        if self.locks is not None:
            self.other = sqlite3.connect(self.locks, isolation_level=None)
            self.other.execute("BEGIN IMMEDIATE")
        await super().sync(file)


async def test_a_start_whose_sync_fails_names_the_log_though_the_index_cannot_be_told(
    home: Path,
) -> None:
    disk = LockingDisk(random.Random(1))
    async with running(home, disk) as shard:
        await shard.submit([a_prewrite(1), a_commit(1, 2)])
    disk.locks, disk.fail_syncs = home / FILES[0], 1
    with pytest.raises(LogFailed, match="Input/output error"):
        async with running(home, disk):
            pass
    disk.other.close()


class UnreadableDisk(SimDisk):
    """A disk that fails to read some times."""

    failures = 0

    async def read(self, path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        return await super().read(path, ranges)


async def test_a_log_that_cannot_be_read_for_a_while_is_read_later(home: Path) -> None:
    disk = UnreadableDisk(random.Random(1))
    async with running(home, disk) as shard:
        with sqlite3.connect(home / FILES[0], isolation_level=None) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            for start in range(100, 140, 2):  # more than the queue holds
                await shard.submit([a_prewrite(start), a_commit(start, start + 1)])
            disk.failures = 3
            blocker.execute("ROLLBACK")
        blocker.close()
        await eventually(lambda: not shard.filer.waiting)
        assert disk.failures == 0
        found = await shard.index.commits_after(NO_TS, upto=MAX_TS, limit=1_000)
        assert [each.start_ts - at(0) for each in found] == list(range(100, 140, 2))


HOME = Path("/log/value")
LARGE = [prewrite(1, 60_000)]


async def a_log(disk: SimDisk) -> ValueLog:
    segments, limits = await Segments.open(HOME, disk=disk), LogLimits()
    records = segments.recover(FIRST, NOTHING_KNOWN, limits.flush_bytes_max)
    async for _, batch in records:
        assert [payload for _, payload in batch] == LARGE
        segments.note(FileId(0), max_ts=at(1))
    return await ValueLog.begin(segments, limits)


@pytest.mark.parametrize("room", range(12))
async def test_a_footer_that_the_disk_cuts_short_is_no_damage(room: int) -> None:
    disk = SimDisk(random.Random(1))
    value_log = await a_log(disk)
    await appended(value_log, LARGE, [at(1)])
    disk.fail_writes_after = room
    with pytest.raises(DiskFull):
        await value_log.close()
    again = await a_log(disk.kill())
    await again.close()


@pytest.mark.parametrize("room", range(12))
async def test_a_footer_that_a_kill_cuts_short_is_no_damage(room: int) -> None:
    disk = SimDisk(random.Random(1))
    value_log = await a_log(disk)
    await appended(value_log, LARGE, [at(1)])
    disk.files[HOME / "000000.vlog"].content += record.footer(at(1))[:room]
    again = await a_log(disk.kill())
    await again.close()
    assert [segment.is_sealed for segment in again.segments] == [True]
