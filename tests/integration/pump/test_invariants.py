"""Random histories on a real Pump, with restarts, lost outcomes and garbage collection: whatever
happens, each reader gets every committed transaction once, whole, in order, below the watermark.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binlogd.binlog import CommittedBinlog
from binlogd.log.index_file import FILES
from binlogd.ports import Committed, RolledBack
from binlogd.pump.pump import Pump
from binlogd.pump.shard.pull import ShardSource
from binlogd.tso import NO_TS, Tso
from binlogd.wire import peek
from tests.support.interleavings import any_order, arrivals
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
    rollback,
    written,
)
from tests.support.recordings_reader import committed, records

RECORDINGS = Path(__file__).parents[2] / "recordings"
OPTIONS = replace(ROOMY, resolve_after_s=0.02, segment_bytes_max=2_000, fake_interval_s=3_600)


@asynccontextmanager
async def scratch() -> AsyncIterator[World]:
    """A world of its own for each example, where a sync costs nothing if there is such a place."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as home:
        async with posix_world(Path(home)) as made:
            yield made


@dataclass
class History:
    """What was written, and what must come of it. `now` hands out timestamps."""

    rng: random.Random
    now: int = 0
    open: list[int] = field(default_factory=list)
    expected: dict[int, int] = field(default_factory=dict)  # commit number: start number
    sizes: dict[int, int] = field(default_factory=dict)

    def tick(self) -> int:
        self.now += 1
        return self.now

    async def step(self, world: World, pump: Pump) -> None:
        """One thing that a cluster does; most of the time another binlog."""
        action = self.rng.random()
        if not self.open or (action < 0.4 and len(self.open) < 12):
            start = self.tick()
            self.sizes[start] = self.rng.choice((1, 30, 400))
            self.open.append(start)
            await written(pump, prewrite(start, self.sizes[start]))
            return
        start = self.open.pop(self.rng.randrange(len(self.open)))
        repeats = 1 + (self.rng.random() < 0.2)
        if action < 0.75:
            ended = self.tick()
            self.expected[ended] = start
            if self.rng.random() < 0.1:
                await written(pump, prewrite(start, self.sizes[start]))  # sent twice
            for _ in range(repeats):
                await written(pump, commit(start, ended))
        elif action < 0.85:
            world.fates.known[at(start)] = RolledBack()
            for _ in range(repeats):
                await written(pump, rollback(start))
        elif action < 0.95:  # its Commit is lost; the store knows
            ended = self.tick()
            self.expected[ended] = start
            world.fates.known[at(start)] = Committed(at(ended))
            if self.rng.random() < 0.5:  # and the writer, who does not, says it gave up
                await written(pump, rollback(start))
        else:
            world.fates.known[at(start)] = RolledBack()

    async def finish(self, world: World, pump: Pump) -> None:
        """Ends what is open, and waits until the last is settled."""
        while self.open:
            await self.step(world, pump)
        last = self.tick(), self.tick()
        self.expected[last[1]] = last[0]
        self.sizes[last[0]] = 1
        await written(pump, prewrite(last[0], 1), commit(*last))
        await eventually(lambda: pump.max_commit_ts >= at(last[1]))

    def check(self, found: list[CommittedBinlog], after: int = 0) -> None:
        """Every transaction behind `after`, once, in order, with its rows."""
        assert numbers(found) == [
            (start, ended) for ended, start in sorted(self.expected.items()) if ended > after
        ]
        for binlog in found:
            start = binlog.start_ts - at(0)
            assert peek.body(binlog.payload).prewrite_value == b"%d" % start * self.sizes[start]


class Watcher:
    """Looks at a running Pump after each step."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._marks: dict[str, Tso] = {}

    def look(self) -> None:
        """No mark falls, and none passes what is still to come."""
        for shard in self._pump.statistics().shards:
            assert shard.max_commit_ts >= self._marks.get(shard.name, NO_TS)
            self._marks[shard.name] = shard.max_commit_ts
            assert shard.filed_ts <= shard.max_commit_ts
            assert shard.late_commits == 0

    async def look_into_the_index(self, history: History) -> None:
        """What a mark of the index has passed is in the index."""
        shards = self._pump._shards
        filed = {shard.name: shard.filer.filed_ts for shard in shards}
        for ended, start in history.expected.items():
            if at(ended) <= min(filed.values()):
                found = [await each.index.has_commit(at(ended), at(start)) for each in shards]
                assert sum(found) == 1


def rewind(world: World, rng: random.Random) -> None:
    """What a kill leaves: marks of a while ago; or no index at all."""
    for index in world.directory.rglob(FILES[0]):
        if rng.random() < 0.3:
            for name in FILES:
                index.with_name(name).unlink(missing_ok=True)
            continue
        with sqlite3.connect(index) as connection:
            connection.execute("UPDATE marks SET value = zeroblob(12) WHERE name LIKE '%pointer'")
            connection.execute("UPDATE marks SET value = 0 WHERE name = 'max_commit_ts'")
        connection.close()


SEEDS = st.integers(0, 1 << 32)
UNHURRIED = [HealthCheck.too_slow]


@settings(max_examples=6, deadline=None, suppress_health_check=UNHURRIED)
@given(SEEDS)
async def test_each_reader_gets_every_transaction_once_whole_and_in_order(seed: int) -> None:
    await one_history(seed)


@pytest.mark.soak
@settings(max_examples=500, deadline=None, suppress_health_check=UNHURRIED)
@given(SEEDS)
async def test_that_holds_for_many_histories(seed: int) -> None:
    await one_history(seed)


async def one_history(seed: int) -> None:
    rng = random.Random(seed)
    shards, window = rng.randint(1, 3), rng.choice((1, 3_000, 1 << 24))
    history = History(rng)
    options = replace(OPTIONS, window_bytes_max=window)
    async with scratch() as world:
        world.fates.verifies_rollbacks = True
        for _ in range(rng.randint(1, 3)):
            async with world.pump(options, shards=shards) as pump:
                watcher = Watcher(pump)
                for _ in range(rng.randint(5, 60)):
                    await history.step(world, pump)
                    watcher.look()
                await watcher.look_into_the_index(history)
            if rng.random() < 0.6:
                rewind(world, rng)
        async with world.pump(options, shards=shards) as pump:
            await history.finish(world, pump)
            upto = at(history.now)
            history.check(await pulled(pump, upto=upto))
            middle = rng.randint(1, history.now - 1)
            history.check(await pulled(pump, after=at(middle), upto=upto), middle)
            for ended, start in history.expected.items():
                payload = await pump.read_binlog(at(ended))
                assert payload is not None
                assert peek.peek(payload)[1:3] == (at(start), at(ended))
                assert peek.head_and_canonical(payload)[1] is payload
        rewind(world, rng)
        async with world.pump(options, shards=shards) as pump:
            history.check(await pulled(pump, upto=upto))


DAY = 86_400_000 << 18


@settings(max_examples=3, deadline=None, suppress_health_check=UNHURRIED)
@given(SEEDS)
async def test_what_a_reader_behind_gc_ts_needs_is_never_deleted(seed: int) -> None:
    await one_year_of_garbage(seed)


@pytest.mark.soak
@settings(max_examples=200, deadline=None, suppress_health_check=UNHURRIED)
@given(SEEDS)
async def test_that_holds_for_many_years(seed: int) -> None:
    await one_year_of_garbage(seed)


async def one_year_of_garbage(seed: int) -> None:
    """Transactions of any length; collection at any time, with holds that come and go."""
    rng = random.Random(seed)
    options = replace(OPTIONS, resolve_after_s=3_600)
    expected: dict[int, int] = {}
    opened: list[int] = []
    async with scratch() as world:
        world.clock.now_ms += 1_000 * 86_400_000
        async with world.pump(options) as pump:
            for day in range(rng.randint(20, 60)):
                start = day * DAY + 1
                await written(pump, prewrite(start, rng.choice((10, 300))))
                opened.append(start)
                while opened and (rng.random() < 0.6 or len(opened) > 5):
                    ending = opened.pop(rng.randrange(len(opened)))
                    ended = day * DAY + 2 + len(expected)
                    await written(pump, commit(ending, ended))
                    expected[ended] = ending
                if rng.random() < 0.2:
                    pump.caretaker.hold("somebody", at(rng.randint(0, day) * DAY))
                elif rng.random() < 0.1:
                    pump.caretaker.release("somebody")
                if rng.random() < 0.3:
                    await asyncio.sleep(0.15)  # the index gets ahead, checksums are taken
                    holds = [hold.ts for hold in pump.statistics().gc.holds]
                    before = pump.statistics().shards[0].gc_ts
                    await pump.caretaker.collect()
                    gc_ts = pump.statistics().shards[0].gc_ts
                    assert gc_ts <= max(before, min([*holds, pump.max_commit_ts]))
                    await check_behind(pump, gc_ts, expected)
        async with world.pump(options) as pump:
            await check_behind(pump, pump.statistics().shards[0].gc_ts, expected)


async def check_behind(pump: Pump, gc_ts: Tso, expected: dict[int, int]) -> None:
    upto = pump.max_commit_ts
    if upto <= gc_ts:
        return
    found = numbers(await pulled(pump, after=gc_ts, upto=upto))
    assert found == [
        (start, ended) for ended, start in sorted(expected.items()) if gc_ts < at(ended) <= upto
    ]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("keys", 1),
        ("ddl", 2),
        *(pytest.param("mixed", n, marks=pytest.mark.soak) for n in range(9)),
    ],
)
async def test_a_recording_in_another_order_comes_out_as_it_was(name: str, seed: int) -> None:
    """Through real shards, while several pull."""
    directory, rng = RECORDINGS / name, random.Random(seed)
    order = any_order(arrivals(record.payload for record in records(directory)), rng)
    expected = [each for each in committed(directory) if not each.is_fake]
    last = expected[-1].commit_ts
    options = replace(ROOMY, window_bytes_max=rng.choice((1, 1 << 24)))
    async with scratch() as world, world.pump(options, shards=3) as pump, AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        pullers = [group.create_task(pulled(pump, upto=last)) for _ in range(2)]
        begin = 0
        while begin < len(order):  # ends: every turn writes at least one
            size = rng.randint(1, 40)
            await written(pump, *(each.payload for each in order[begin : begin + size]))
            begin += size
        for puller in pullers:
            found = [each for each in await puller if not each.is_fake]
            assert [(each.start_ts, each.commit_ts) for each in found] == [
                (each.start_ts, each.commit_ts) for each in expected
            ]
            assert [peek.body(each.payload) for each in found] == [
                peek.body(each.payload) for each in expected
            ]
        assert sum(shard.late_commits for shard in pump.statistics().shards) == 0
        assert isinstance(pump.sources()[0], ShardSource)
