"""What a Pump holds in memory stays within its limits, whoever is slow or gives up."""

from __future__ import annotations

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
    numbers,
    posix_world,
    prewrite,
    pulled,
    written,
)


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
