"""What a Pump holds in memory stays within its limits, whoever is slow or gives up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.host.disk import PosixDisk
from binlogd.pump.pull import PullOptions, ShardSource
from tests.pump_world import (
    ROOMY,
    World,
    at,
    commit,
    eventually,
    numbers,
    posix_world,
    prewrite,
    pulled,
    written,
)
from tests.sim.disk import SimDisk, SimFile


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with posix_world(tmp_path) as made:
        yield made


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

        (statistics,) = pump.statistics().shards
        assert 0 <= statistics.window_bytes <= NARROW.window_bytes_max
        assert statistics.window_commits < 20


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
        narrow = ShardSource(pump._shards[0], PullOptions(bytes_max=50_000))
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
    small = replace(ROOMY, write_queue_bytes_max=100_000, fake_interval_s=3_600)
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
