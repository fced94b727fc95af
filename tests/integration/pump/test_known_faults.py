"""What the original's Pump gets wrong, and what its users rely on, where no other test has it.

Which test shows what is listed in docs/reference/pump.md. Source: tidb-binlog pump/server.go,
pump/storage/storage.go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.errors import CorruptRecord, DiskFull, MalformedBinlog
from binlogd.host.disk import PosixDisk
from binlogd.log.pointer import FIRST
from binlogd.ports import Committed, OpenPrewrite, RolledBack, TxnStatus
from binlogd.pump.log.kind import entry_of
from binlogd.pump.metrics import say_pump, say_service
from binlogd.pump.pump import PumpOptions
from binlogd.pump.rpc.service import PumpService
from binlogd.telemetry.exposition import Exposition
from binlogd.tso import NO_TS, Tso
from binlogd.wire.fields import uvarint
from tests.support.memory_pump import Cluster
from tests.support.pump_world import (
    ROOMY,
    Fates,
    World,
    at,
    commit,
    eventually,
    numbers,
    outcome,
    prewrite,
    pulled,
    rollback,
    until_released,
    written,
)

# --- fake binlogs ----------------------------------------------------------------------------


async def test_neither_probes_nor_refused_writes_put_off_the_fake(world: World) -> None:
    """In the original whoever hammers a Pump that is full keeps all Drainers waiting."""
    options = PumpOptions(free_bytes_min=1 << 60, fake_interval_s=0.05)
    async with world.pump(options, shards=3) as pump:
        world.times.says = at(100)
        while pump.max_commit_ts < at(100):  # ends with the fake, or with the patience of the test
            assert isinstance(await outcome(pump, commit(1, 2)), DiskFull)
            assert isinstance(await outcome(pump, b""), DiskFull)
            await asyncio.sleep(0)
        assert numbers(await pulled(pump, upto=at(100))) == [(100, 100)]


# --- pulls -----------------------------------------------------------------------------------


async def test_a_puller_ahead_of_the_watermark_waits_without_a_word_and_may_leave(
    world: World,
) -> None:
    """An idle Pump is behind its Drainer. The original has had a crash there, and a leak."""
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 2))
        await until_released(pump, 2)
        heard: list[tuple[int, int]] = []

        async def pull() -> None:
            async with aclosing(pump.sources()[0].pull(at(1000))) as batches:
                async for batch in batches:
                    assert batch.resolved_ts > at(1000)
                    heard.extend(numbers(batch.binlogs))

        async with asyncio.TaskGroup() as group:
            leaves, stays = group.create_task(pull()), group.create_task(pull())
            await asyncio.sleep(0)
            leaves.cancel()
            await written(pump, prewrite(3), commit(3, 1000))
            await until_released(pump, 1000)
            assert heard == []
            await written(pump, prewrite(1001), commit(1001, 1002))
            await eventually(lambda: heard == [(1001, 1002)])
            await pump.close()
        assert leaves.cancelled()
        assert stays.done(), "the end of the Pump ends it"


@pytest.mark.parametrize("after", [0, -1, -(1 << 63)])
async def test_a_position_below_all_is_the_beginning(world: World, after: int) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 2), prewrite(3), rollback(3))
        await written(pump, prewrite(4), commit(4, 5))
        assert numbers(await pulled(pump, upto=at(5), after=Tso(after))) == [(1, 2), (4, 5)]


class CountingDisk(PosixDisk):
    """Counts how often each place of a file was read."""

    def __init__(self) -> None:
        super().__init__(threads=2)
        self.reads: Counter[tuple[str, int]] = Counter()

    async def read(self, path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.reads.update((path.name, offset) for offset, _ in ranges)
        return await super().read(path, ranges)


async def test_what_a_puller_passes_over_is_read_once(tmp_path: Path) -> None:
    """The original reads commits without a prewrite ten times a second until one with rows comes,
    and prewrites likewise."""
    disk = CountingDisk()
    world = World(tmp_path, disk)
    options = replace(ROOMY, skip_orphan_commits=True)
    async with world.pump(options) as pump:
        await written(pump, prewrite(1), commit(1, 2), *(commit(n, n + 100) for n in range(3, 50)))
    async with world.pump(replace(options, window_bytes_max=1)) as pump:  # by the index
        disk.reads.clear()
        reached: list[int] = []

        async def pull() -> None:
            async with aclosing(pump.sources()[0].pull(NO_TS)) as batches:
                async for batch in batches:
                    reached.append(batch.resolved_ts)

        async with asyncio.TaskGroup() as group:
            puller = group.create_task(pull())
            await eventually(lambda: reached[-1:] == [at(149)])
            for number in range(200, 230, 2):
                await written(pump, prewrite(number), rollback(number))
            await written(pump, prewrite(300), commit(300, 301))
            await eventually(lambda: reached[-1:] == [at(301)])
            puller.cancel()
        orphans = [place for place, times in disk.reads.items() if times > 1]
        assert orphans == [], "some place was read twice"
        assert pump.statistics().shards[0].measures.errors["feed_pre_write_value"] == 47
    disk.close()


# --- what became of transactions -------------------------------------------------------------


class SilentFates(Fates):
    """Is asked, and says nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        self.asked.append(list(prewrites))
        await self.may_answer.wait()
        return [self.known.get(each.start_ts, RolledBack()) for each in prewrites]


async def test_while_nobody_answers_about_an_orphan_writers_and_pullers_go_on(
    world: World,
) -> None:
    """The original holds a lock of its sorter over the question."""
    fates = world.fates = SilentFates()
    async with world.pump(replace(ROOMY, resolve_after_s=0.02)) as pump:
        await written(pump, prewrite(1), commit(1, 2), prewrite(3))
        await eventually(lambda: fates.asked)
        for number in range(10, 200, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
        assert numbers(await pulled(pump, upto=at(2))) == [(1, 2)]
        assert pump.max_commit_ts == at(2), "one without an outcome holds what came behind it"
        assert len(fates.asked) == 1, "nor is it asked about again before there is an answer"
        fates.may_answer.set()
        await until_released(pump, 199)


async def test_a_pump_that_closes_waits_for_no_answer_about_an_orphan(world: World) -> None:
    """A TiKV that hangs would cost the ten seconds that a stop may take, and the marks."""
    fates = world.fates = SilentFates()
    async with world.pump(replace(ROOMY, resolve_after_s=0.02)) as pump:
        await written(pump, prewrite(1))
        await eventually(lambda: fates.asked)
        await pump.close()
        assert pump.statistics().resolvers[0].reason == "", "it did not come to the deadline"
    fates.may_answer.set()
    async with world.pump(replace(ROOMY, resolve_after_s=0.02)) as pump:
        await eventually(lambda: not pump.statistics().shards[0].open_prewrites)


async def test_an_answer_that_comes_when_the_pump_has_closed_hurts_nobody(world: World) -> None:
    """The original writes the commit to a queue that is closed, and ends in a panic."""
    fates = world.fates = SilentFates()
    fates.known[at(1)] = Committed(at(5))
    hasty = replace(ROOMY, resolve_after_s=0.02)
    async with world.pump(hasty) as pump, asyncio.TaskGroup() as group:
        await written(pump, prewrite(1))
        await eventually(lambda: fates.asked)
        closing = group.create_task(pump.close())
        await asyncio.sleep(0)
        fates.may_answer.set()
        await closing
    async with world.pump(hasty) as pump:  # asked again, or written before the end
        assert numbers(await pulled(pump, upto=at(5))) == [(1, 5)]


async def test_a_rollback_is_filed_under_no_timestamp(world: World) -> None:
    """The original files every Rollback under 0, where the last one is found."""
    async with world.pump() as pump:
        await written(pump, prewrite(1), rollback(1))
        assert await pump.read_binlog(at(1)) == prewrite(1)
        assert await pump.read_binlog(NO_TS) is None


@pytest.mark.parametrize("tp", [3, 4, 5, 1000])
async def test_a_type_that_nobody_knows_is_refused_at_the_door_and_in_a_log(
    world: World, tp: int
) -> None:
    """The original takes it for a Commit."""
    payload = b"".join(
        (b"\x08", uvarint(tp), b"\x10", uvarint(at(1)), b"\x18", uvarint(at(2)), b"\x38\0\x40\0")
    )
    async with world.pump() as pump:
        await written(pump, prewrite(1))
        refused = await outcome(pump, payload)
        assert isinstance(refused, MalformedBinlog)
        assert f"type {tp}" in str(refused)
        assert pump.statistics().shards[0].open_prewrites == 1
    with pytest.raises(CorruptRecord, match=f"a binlog of type {tp}, start_ts {at(1)}"):
        entry_of(FIRST.fid, FIRST.offset, payload, lambda _: Path("a segment"))


# --- what is shown ---------------------------------------------------------------------------


async def test_a_second_trigger_is_told_that_garbage_is_collected_already(world: World) -> None:
    async with world.pump() as pump:
        assert pump.caretaker.trigger()
        assert not pump.caretaker.trigger(), "nothing has run in between"
        await eventually(lambda: pump.statistics().gc.runs == 1)
        await eventually(pump.caretaker.trigger)


def doubled(first: float, count: int) -> list[float]:
    return [first * 2**exponent for exponent in range(count)]


BUCKETS = {
    "binlog_pump_rpc_duration_seconds": doubled(0.00005, 18),
    "binlog_pump_storage_write_binlog_size": doubled(16, 25),
    "binlog_pump_storage_write_binlog_duration_time": doubled(0.00005, 20),
    "binlog_drainer_slow_chaser_catchup_time_seconds": doubled(0.001, 22),
}


async def test_histograms_have_the_buckets_of_the_original(world: World) -> None:
    """Else quantiles of its dashboards jump on the day of the change."""
    async with world.pump() as pump:
        service = PumpService(pump, Cluster(7))
        await service.write_payloads(7, [prewrite(1), commit(1, 2)])
        out = Exposition()
        say_service(out, service.statistics())
        say_pump(out, pump.statistics())
    text = out.text().decode().splitlines()
    for name, bounds in BUCKETS.items():
        lines = [line for line in text if line.startswith(f"{name}_bucket{{")]
        shown = [line.split('le="')[1].split('"')[0] for line in lines]
        wanted = [*bounds, float("inf")]
        if not shown:  # a series begins with its first value
            assert name == "binlog_drainer_slow_chaser_catchup_time_seconds"
            (chased,) = [shard.measures.chase_seconds for shard in pump.statistics().shards]
            assert list(chased.bounds) == pytest.approx(bounds)
            continue
        assert len(shown) % len(wanted) == 0
        assert [float(each) for each in shown[: len(wanted)]] == pytest.approx(wanted)
