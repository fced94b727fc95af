"""The log is the truth: an index that is made again from it answers as the one that was lost.

Shards live, fail, are killed and lose power on a simulated disk; their SQLite is real, and after a
power cut it may be an older one of itself.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from binlogd.binlog import BinlogType
from binlogd.errors import Unavailable
from binlogd.log.index_file import FILES
from binlogd.pump.log.entry import Item
from binlogd.pump.log.valuelog import LogLimits
from binlogd.pump.shard.options import FilingOptions, ShardOptions
from binlogd.pump.shard.shard import Shard
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.wire.binlogs import fake
from tests.sim.disk import SimDisk
from tests.support.pump_world import at, commit, prewrite, rollback

OPTIONS = ShardOptions(
    log=LogLimits(flush_bytes_max=1_500, segment_bytes_max=3_000),
    filing=FilingOptions(queue_max=8, batch_max=4, every_s=0.0, marks_every_s=0.001, retry_s=0.01),
    window_bytes_max=2_000,
)


class History:
    """What one TiDB after another sends, with all that it may repeat."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ts = 10
        self._open: list[int] = []
        self._rolled_back: list[int] = []
        self._settled: list[tuple[int, int]] = []
        self.started: list[int] = []

    def batches(self, count: int) -> Iterator[list[Item]]:
        for _ in range(count):
            yield [self._item() for _ in range(self._rng.randrange(1, 5))]

    def _item(self) -> Item:
        choice = self._rng.random()
        self._ts += 1
        if choice < 0.35 and self._open:
            start = self._open.pop(self._rng.randrange(len(self._open)))
            return self._commit(start, self._ts)
        if choice < 0.42 and self._open:
            start = self._open.pop(0)
            self._rolled_back.append(start)
            return Item(BinlogType.ROLLBACK, at(start), NO_TS, rollback(start))
        if choice < 0.47 and self._rolled_back:  # the writer gave up, the transaction did not
            return self._commit(self._rolled_back.pop(), self._ts)
        if choice < 0.55 and self._settled:
            return self._commit(*self._rng.choice(self._settled), is_new=False)
        if choice < 0.6 and self._settled:
            return self._prewrite(self._rng.choice(self._settled)[0])
        if choice < 0.63:
            return Item(BinlogType.ROLLBACK, at(self._ts), at(self._ts), fake(at(self._ts)))
        self._open.append(self._ts)
        self.started.append(self._ts)
        return self._prewrite(self._ts)

    def _prewrite(self, start: int) -> Item:
        return Item(BinlogType.PREWRITE, at(start), NO_TS, prewrite(start, self._rng.randrange(99)))

    def _commit(self, start: int, commit_ts: int, *, is_new: bool = True) -> Item:
        if is_new:
            self._settled.append((start, commit_ts))
        return Item(BinlogType.COMMIT, at(start), at(commit_ts), commit(start, commit_ts))


@dataclass(frozen=True)
class Answers:
    """All that a shard can be asked, once what is known of its open prewrites is settled."""

    commits: list[object]
    prewrites: dict[Tso, object]
    outcomes: list[Tso | None]
    segments: list[object]
    open: list[Tso]
    watermark: Tso


async def answers(shard: Shard, history: History) -> Answers:
    starts = [at(start) for start in history.started]
    outcomes = [await shard.index.outcome(start) for start in starts]
    for start, outcome in zip(starts, outcomes, strict=True):
        if outcome is not None:  # a prewrite repeated behind its outcome: the resolver does this
            shard.sorter.settle(start)
    commits = await shard.index.commits_after(NO_TS, upto=MAX_TS, limit=100_000)
    segments = shard.log.segments
    for each in commits:  # garbage collection keeps what a commit needs: it takes the oldest first
        if each.prewrite is not None:
            fid = each.prewrite[0]
            gone = (segment.gone_ts for segment in segments if segment.fid <= fid)
            assert max(gone) >= each.commit_ts
    return Answers(
        commits=[(x.commit_ts, x.start_ts, x.place, x.prewrite) for x in commits],
        prewrites=dict(await shard.index.prewrites(starts)),
        outcomes=outcomes,
        segments=[replace(each, needed_ts=NO_TS, checksum=None) for each in segments],
        open=sorted(each.start_ts for each in shard.sorter.waiting_since(float("inf"))),
        watermark=shard.sorter.watermark,
    )


async def opened(home: Path, disk: SimDisk) -> Shard:
    return await Shard.open(home, name="shard", disk=disk, options=OPTIONS, now_s=0.0)


async def life(home: Path, disk: SimDisk, history: History, rng: random.Random) -> None:
    """Opens, writes with some faults, and is gone: stopped, or in the middle of anything."""
    shard = await opened(home, disk)
    running = asyncio.get_running_loop().create_task(shard.run())
    for items in history.batches(rng.randrange(40)):
        if rng.random() < 0.1:
            disk.fail_syncs = rng.randrange(2)
            disk.fail_writes_after = rng.choice([None, rng.randrange(2_000)])
        with suppress(Unavailable):
            await shard.submit(items)
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            await asyncio.sleep(0.002)  # so that something is filed
        if rng.random() < 0.1:
            keep_index(home)
    disk.fail_syncs, disk.fail_writes_after = 0, None
    if rng.random() < 0.3:
        shard.stop()
        await running
        await shard.close()
        return
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await shard.index.close()


def keep_index(home: Path) -> None:
    """An older index, for the next power cut. Copied file by file, so only when WAL and database
    agree: SQLite tells by itself, and what it takes for damaged is made again."""
    for name in FILES[:2]:
        if (home / name).exists():
            shutil.copy(home / name, home / f"older-{name}")


def lose_power(home: Path) -> None:
    for name in FILES:
        (home / name).unlink(missing_ok=True)
        if (home / f"older-{name}").exists():
            shutil.copy(home / f"older-{name}", home / name)


@pytest.mark.parametrize("examples", [25, pytest.param(1_500, marks=pytest.mark.soak)])
def test_an_index_made_again_answers_as_the_one_that_was_lost(
    tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.integers(0, 1 << 40))
    def property_holds(seed: int) -> None:
        asyncio.run(lives(tmp_path_factory.mktemp("shard"), random.Random(seed)))

    property_holds()


async def lives(home: Path, rng: random.Random) -> None:
    disk, history = SimDisk(rng), History(rng)
    for _ in range(rng.randrange(1, 5)):
        await life(home, disk, history, rng)
        if rng.random() < 0.4:
            disk = disk.crash()
            if rng.random() < 0.5:
                lose_power(home)
        else:
            disk = disk.kill()
    shard = await opened(home, disk)
    as_it_is = await answers(shard, history)
    await shard.close()
    for name in FILES:
        (home / name).unlink(missing_ok=True)
    shard = await opened(home, disk.kill())
    assert await answers(shard, history) == as_it_is
    await shard.close()
