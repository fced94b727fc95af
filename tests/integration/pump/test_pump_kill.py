"""kill -9 at any moment: what a writer was told is durable can be pulled afterwards, once."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sys
from pathlib import Path

from binlogd.binlog import CommittedBinlog
from binlogd.ports import RolledBack
from binlogd.wire.peek import body
from tests.pump_world import BASE, at, numbers, posix_world, prewrite, pulled, until_released
from tests.pump_writer import OPTIONS, WRITERS

ROOT = Path(__file__).parents[3]
LIVES = 6


async def killed_writer(directory: Path, first: int, rng: random.Random) -> list[tuple[int, int]]:
    """Runs a writing process, kills it, and returns the commits it was told are durable."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.pump_writer",
        str(directory),
        str(first),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    committed: list[tuple[int, int]] = []
    enough = rng.randrange(50, 3_000)
    async for line in process.stdout:
        if b"[" in line:  # a log line
            continue
        start, commit_ts = map(int, line.split())
        committed.append((start, commit_ts))
        if len(committed) == enough:
            process.send_signal(signal.SIGKILL)
    await process.wait()
    return committed


async def everything(directory: Path, upto: int) -> list[CommittedBinlog]:
    """What a Pump gives that finds the directory as it is."""
    async with posix_world(directory) as world:
        world.fates.answers_all = RolledBack()
        async with world.pump(OPTIONS, shards=2) as pump:
            world.times.says = at(upto)
            await pump.settle()
            await until_released(pump, upto)
            binlogs = [each for each in await pulled(pump, upto=at(upto)) if not each.is_fake]
            assert all(shard.late_commits == 0 for shard in pump.statistics().shards)
            return binlogs


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    rng = random.Random(9)
    acknowledged: list[tuple[int, int]] = []
    directory, first = tmp_path / "data", 1_000
    for _ in range(LIVES):
        new = await killed_writer(directory, first, rng)
        assert len(new) >= 50
        acknowledged += new
        first = max(commit_ts for _, commit_ts in new) + 10_000
    shutil.copytree(directory, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("index.db*"):
        path.unlink()

    found = await everything(directory, first)
    assert len(set(numbers(found))) == len(found)
    assert set(acknowledged) <= set(numbers(found))
    assert len(found) - len(acknowledged) <= LIVES * WRITERS  # in flight when the process died
    for binlog in found:
        rows = body(binlog.payload).prewrite_value
        number = b"%d" % (binlog.start_ts - BASE)
        assert rows == number * (len(rows) // len(number))
        assert rows in prewrite(binlog.start_ts - BASE, len(rows) // len(number))

    assert await everything(tmp_path / "copy", first) == found
