"""Processes that write into a Pump and are killed, and what a Pump finds afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from binlogd.binlog import CommittedBinlog
from binlogd.host.disk import PosixDisk
from binlogd.ports import RolledBack
from binlogd.pump.checking.check import check
from binlogd.wire.peek import body
from tests.support.killed import child_of
from tests.support.pump_world import (
    BASE,
    World,
    at,
    numbers,
    prewrite,
    pulled,
    until_released,
)
from tests.support.pump_writer import OPTIONS, WRITERS

ROOT = Path(__file__).parents[2]
Commits = list[tuple[int, int]]
SPOOLED_OF = 30
"""Of so many prewrites of a writer one is written as a large one."""


async def killed_writer(
    directory: Path,
    first: int,
    enough: int,
    *,
    under: Sequence[str] = (),
    refusals: int = 0,
    is_due: Callable[[], bool] = lambda: True,
    spooled_of: int = SPOOLED_OF,
) -> tuple[Commits, int]:
    """Runs a writing process, kills it after `enough` commits and `refusals` as soon as it
    `is_due`, and returns the commits that it was told are durable, and how many binlogs were
    refused.

    `under` is a command that runs it, such as strace. Of `spooled_of` prewrites one is written as a
    large one.
    """
    process = await asyncio.create_subprocess_exec(
        *(*under, sys.executable, "-m", "tests.support.pump_writer"),
        *(str(directory), str(first), str(spooled_of)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    committed: Commits = []
    refused, is_killed = 0, False
    async for line in process.stdout:
        if line == b"refused\n":
            refused += 1
        elif b"[" not in line:  # no line of the log
            start, commit_ts = map(int, line.split())
            committed.append((start, commit_ts))
        if is_killed or len(committed) < enough or refused < refusals:
            continue
        if is_due():
            is_killed = True
            os.kill(child_of(process.pid) if under else process.pid, signal.SIGKILL)
    await process.wait()
    assert is_killed, "the writer ended by itself"
    return committed, refused


class AfterBoot(PosixDisk):
    """The same files, on a machine that has gone down meanwhile."""

    def boot_id(self) -> str:
        return "another"


async def everything(
    directory: Path, upto: int, disk_of: Callable[..., PosixDisk] = PosixDisk
) -> list[CommittedBinlog]:
    """What a Pump gives that finds the directory as it is; a check finds nothing wrong before.

    After the power was lost a check may find what the next start mends.
    """
    with closing(disk_of(threads=4)) as disk:
        found = await check(directory, disk, lambda *_: None)
        findings = [each for each in found.findings if "is missing" not in each.what]
        assert findings == [] or disk_of is not PosixDisk
        world = World(directory, disk)
        world.fates.answers_all = RolledBack()
        async with world.pump(replace(OPTIONS, resolve_after_s=0.02), shards=2) as pump:
            world.times.says = at(upto)
            await pump.settle()
            await until_released(pump, upto)
            binlogs = [each for each in await pulled(pump, upto=at(upto)) if not each.is_fake]
            assert all(shard.late_commits == 0 for shard in pump.statistics().shards)
            return binlogs


async def nothing_is_lost(directory: Path, acknowledged: Commits, *, upto: int, lives: int) -> None:
    """`all_is_there`, and the same without the index."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    for path in copy.rglob("index.db*"):
        path.unlink()
    found = await all_is_there(directory, acknowledged, upto=upto, lives=lives)
    assert await everything(copy, upto) == found


async def all_is_there(
    directory: Path,
    acknowledged: Commits,
    *,
    upto: int,
    lives: int,
    disk_of: Callable[..., PosixDisk] = PosixDisk,
) -> list[CommittedBinlog]:
    """Everything acknowledged is there, once and as it was written, and next to nothing else.
    Returns what is there."""
    found = await everything(directory, upto, disk_of)
    assert len(set(numbers(found))) == len(found)
    assert set(acknowledged) <= set(numbers(found))
    assert len(found) - len(acknowledged) <= lives * WRITERS  # in flight when the process died
    for binlog in found:
        rows = body(binlog.payload).prewrite_value
        number = b"%d" % (binlog.start_ts - BASE)
        assert rows == number * (len(rows) // len(number))
        assert rows in prewrite(binlog.start_ts - BASE, len(rows) // len(number))
    return found
