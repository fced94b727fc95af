"""What a Pump holds in memory stays within its limits, whoever is slow or gives up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.errors import CorruptRecord
from binlogd.host.disk import PosixDisk
from binlogd.pump.budget import Budget
from binlogd.pump.pump import Pump
from binlogd.pump.shard.options import PullOptions
from binlogd.pump.shard.pull import ShardSource
from binlogd.tso import MAX_TS
from binlogd.wire import peek
from tests.sim.disk import SimDisk, SimFile
from tests.support.pump_world import (
    ROOMY,
    World,
    at,
    commit,
    eventually,
    numbers,
    prewrite,
    pulled,
    written,
)

# --- prewrites that fell out of the window -----------------------------------------------------

COUNT, SIZE = 60, 10_000
NARROW = replace(ROOMY, window_bytes_max=100_000)


async def test_a_window_stays_small_although_prewrites_are_fetched_for_it(world: World) -> None:
    async with world.pump(NARROW) as pump:
        for number in range(COUNT):
            await written(pump, prewrite(number + 1, SIZE))
        for number in range(COUNT):
            await written(pump, commit(number + 1, 1_000 + number))
        found = await pulled(pump, after=at(1_000), upto=at(1_000 + COUNT - 1))
        assert len(found) == COUNT - 1
        for number in range(2_000, 2_300, 2):
            await written(pump, prewrite(number, SIZE), commit(number, number + 1))

        window = pump._shards[0].window
        kept, _ = window.after(window.floor, upto=MAX_TS, commits_max=COUNT, bytes_max=SIZE * COUNT)
        assert sum(len(each.prewrite or b"") for each in kept) <= NARROW.window_bytes_max
        assert 0 < len(kept) < 20


class GreedyDisk(PosixDisk):
    """Remembers the most bytes that one read asked for."""

    largest = 0

    async def read(self, path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.largest = max(self.largest, sum(length for _, length in ranges))
        return await super().read(path, ranges)


async def test_a_batch_of_the_window_counts_the_prewrites_it_must_fetch(tmp_path: Path) -> None:
    disk = GreedyDisk()
    async with World(tmp_path, disk).pump(NARROW) as pump:
        for number in range(COUNT):
            await written(pump, prewrite(number + 1, SIZE))
        for number in range(COUNT):
            await written(pump, commit(number + 1, 1_000 + number))
        narrow = ShardSource(pump._shards[0], PullOptions(bytes_max=50_000), Budget(bytes_max=1))
        found: list[CommittedBinlog] = []
        async for batch in narrow.pull(at(1_000)):
            found += batch.binlogs
            if len(found) == COUNT - 1:
                break
        assert numbers(found) == [(number + 1, 1_000 + number) for number in range(1, COUNT)]
        assert disk.largest <= 50_000 + 3 * SIZE
    disk.close()


# --- writers who give up -----------------------------------------------------------------------


class StandingDisk(SimDisk):
    """A disk whose syncs wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.goes = asyncio.Event()
        self.goes.set()

    async def sync(self, file: SimFile) -> None:
        await self.goes.wait()
        await super().sync(file)


async def test_writers_who_give_up_leave_no_room_until_their_binlogs_are_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "pump" / "shard-0").mkdir(parents=True)  # SQLite has a disk of its own
    disk = StandingDisk()
    small = replace(ROOMY, memory_budget_bytes=200_000, fake_interval_s=3_600)
    async with World(tmp_path, disk).pump(small) as pump:
        disk.goes.clear()
        try:
            for number in range(200):
                writer = asyncio.get_running_loop().create_task(
                    pump.write([prewrite(number + 1, 2_000)])
                )
                await asyncio.sleep(0.001)
                writer.cancel()
            queued = pump.statistics()
        finally:
            disk.goes.set()
        assert queued.shards[0].write_queue_records < 60
        assert queued.write_queue_bytes > 50_000
        await eventually(lambda: pump.statistics().write_queue_bytes == 0)
        await written(pump, prewrite(900), commit(900, 901))


# --- large binlogs -----------------------------------------------------------------------------


async def batches_of(source: ShardSource, upto: int) -> list[list[tuple[int, int]]]:
    found: list[list[tuple[int, int]]] = []
    async with asyncio.timeout(120):
        async for batch in source.pull(at(5)):
            if batch.binlogs:
                found.append(numbers(batch.binlogs))
                for binlog in batch.binlogs:
                    rows = peek.body(binlog.payload).prewrite_value
                    start = binlog.start_ts - at(0)
                    assert rows == b"%d" % start * (300_000 if start % 5 == 0 else 20)
            if batch.resolved_ts >= at(upto):
                break
    return found


async def test_a_large_binlog_is_pulled_alone_and_whole_from_window_and_index(
    world: World,
) -> None:
    """Transactions 10, 20, 25 are large; 12 shares its commit_ts with a large one."""
    starts = {10: 30, 12: 40, 15: 40, 17: 50, 20: 60, 25: 61, 27: 70}
    options = replace(ROOMY, window_bytes_max=400_000)

    def source(pump: Pump) -> ShardSource:
        return ShardSource(pump._shards[0], PullOptions(bytes_max=50_000), Budget(bytes_max=1))

    async with world.pump(options) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        for start in starts:
            await written(pump, prewrite(start, 300_000 if start % 5 == 0 else 20))
        for start, committed in starts.items():
            await written(pump, commit(start, committed))
        expected = [[(10, 30)], [(12, 40), (15, 40)], [(17, 50)], [(20, 60)], [(25, 61)]]
        assert await batches_of(source(pump), 70) == [*expected, [(27, 70)]]
    async with world.pump(options) as pump:  # nothing is in memory now
        assert await batches_of(source(pump), 70) == [*expected, [(27, 70)]]


async def test_a_large_binlog_with_a_flipped_bit_is_not_handed_out(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(10, 6_000_000), commit(10, 30))
    (segment,) = (world.directory / "pump" / "shard-0" / "value").glob("*.vlog")
    with segment.open("r+b") as file:
        file.seek(9_000_000)
        file.write(b"X")
    async with world.pump() as pump:
        source = ShardSource(pump._shards[0], PullOptions(), Budget(bytes_max=1))
        with pytest.raises(CorruptRecord, match="checksum mismatch"):
            async for _ in source.pull(at(5)):
                pass
