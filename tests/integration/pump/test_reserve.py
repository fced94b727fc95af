"""The room that is kept for a full disk: when it is made, when it is given up, and what for."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.errors import CorruptIndex, IndexUnavailable, Unavailable
from binlogd.host.disk import PosixDisk
from binlogd.ports import Space
from binlogd.pump.reserve import RESERVE_BYTES, DataDiskFull, Reserve, room_in
from tests.support import strace
from tests.support.pump_world import (
    ROOMY,
    commit,
    eventually,
    posix_world,
    prewrite,
    written,
)
from tests.support.small_disk import fill, mounted

PLENTY = 1 << 40
DAY = 86_400_000 << 18
ROOT = Path(__file__).parents[3]
LIVES = """
import asyncio, sys
from pathlib import Path
from binlogd.host.disk import PosixDisk
from binlogd.ports import Space
from binlogd.pump.reserve import Reserve

class Full(PosixDisk):
    async def space(self, directory):
        return Space(1 << 40, 0)

async def main():
    reserve = Reserve(Path(sys.argv[1]), Full(threads=1))
    await reserve.keep(free_bytes=1 << 40, wanted_bytes=0)
    assert reserve.size_bytes
    assert await reserve.give_up()

asyncio.run(main())
"""


class ToldDisk(PosixDisk):
    """Has as much space as it is told."""

    free = PLENTY

    async def space(self, directory: Path) -> Space:
        return Space(PLENTY, self.free)


@pytest.mark.parametrize("found", [None, 0, 4096, RESERVE_BYTES])
async def test_whatever_a_killed_process_left_of_it_is_made_whole_and_given_up(
    tmp_path: Path, found: int | None
) -> None:
    disk, path = ToldDisk(threads=1), tmp_path / "reserve"
    if found is not None:
        path.write_bytes(bytes(found))
    reserve = Reserve(tmp_path, disk)
    await reserve.keep(free_bytes=PLENTY, wanted_bytes=PLENTY)  # no room for it
    assert reserve.size_bytes == (found or 0)
    await reserve.keep(free_bytes=PLENTY, wanted_bytes=0)
    assert path.stat().st_size == path.stat().st_blocks * 512 == reserve.size_bytes == RESERVE_BYTES
    assert not await reserve.give_up()  # while there is room
    disk.free = 0
    assert await reserve.give_up()
    assert reserve.size_bytes == 0
    assert await disk.sizes(tmp_path) == {}
    assert not await reserve.give_up()
    disk.close()


@pytest.mark.parametrize(
    "call", ["openat:when=1", "fallocate:when=1", "fsync:when=1", "fsync:when=2", "unlink:when=1"]
)
def test_a_process_that_is_killed_at_it_leaves_nothing_in_the_way(
    tmp_path: Path, call: str
) -> None:
    strace.skip_without()
    path, home = tmp_path / "data" / "reserve", tmp_path / "data"
    home.mkdir()
    name, _, when = call.partition(":")
    words = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-P", str(path), "-P", str(home)]
    words += ["-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:{when}"]
    done = subprocess.run([*words, sys.executable, "-c", LIVES, str(home)], cwd=ROOT)
    assert done.returncode != 0
    assert subprocess.run([sys.executable, "-c", LIVES, str(home)], cwd=ROOT).returncode == 0
    assert list(home.iterdir()) == []


@pytest.mark.soak  # it mounts, which only root may, and not everywhere
async def test_a_round_on_a_full_disk_takes_the_reserve_and_deletes_what_may_go(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "data", megabytes=96) as home:
        options = replace(ROOMY, segment_bytes_max=1_000, gc_keep_s=1.0, free_check_every_s=3_600.0)
        async with posix_world(home) as world, world.pump(options) as pump:
            world.clock.now_ms += 30 * 86_400_000
            for start in range(0, 30 * DAY, DAY):
                await written(pump, prewrite(start + 1, 200), commit(start + 1, start + 2))
            await eventually(
                lambda: pump._shards[0].filer.resume == pump._shards[0].log.segments.end
            )
            fill(home)
            with pytest.raises(Unavailable):
                await pump.caretaker.collect()
            before = pump.statistics().shards[0].segments
            (home / "filler").unlink()
            await Reserve(home, world.disk).keep(free_bytes=PLENTY, wanted_bytes=0)
            fill(home)
            (planned,) = await pump.caretaker.collect()
            assert planned.fids
            assert pump.statistics().shards[0].segments < before
            assert not (home / "reserve").exists()
            (home / "filler").unlink()


async def test_only_what_fails_for_want_of_room_says_that_the_disk_is_full(tmp_path: Path) -> None:
    disk = ToldDisk(threads=1)
    failure = IndexUnavailable(tmp_path / "index.db", "disk I/O error")
    disk.free = 4096
    with pytest.raises(DataDiskFull) as full:
        async with room_in(tmp_path, disk):
            raise failure
    assert str(full.value) == (
        f"data-dir {tmp_path}: its disk is full, 4096 bytes are free"
        f" ({tmp_path / 'index.db'}: disk I/O error); free at least"
        f" {RESERVE_BYTES - 4096} bytes more on that file system, or enlarge it, and start again:"
        " what pump.gc lets go is deleted then. Move nothing out of pump/ by hand"
    )
    with pytest.raises(CorruptIndex):
        async with room_in(tmp_path, disk):
            raise CorruptIndex(tmp_path / "index.db", "damage")
    disk.free = PLENTY
    with pytest.raises(IndexUnavailable):
        async with room_in(tmp_path, disk):
            raise failure
    disk.close()
