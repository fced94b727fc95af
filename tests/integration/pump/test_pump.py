"""A Pump on real files: what is written can be pulled, in order, once, and after every restart."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from binlogd.errors import (
    Behind,
    BinlogdError,
    ConfigError,
    CorruptRecord,
    DiskFull,
    FromTheFuture,
    MalformedBinlog,
    NotOnline,
    RecordTooLarge,
    Refused,
)
from binlogd.ports import Committed, RolledBack
from binlogd.pump.kept_routing import SHARDS_FILE, routing_of
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.state import Action, NodeState
from binlogd.tso import NO_TS, Tso
from binlogd.wire.binlogs import commit_binlog, fake
from binlogd.wire.joining import join
from binlogd.wire.peek import body, peek
from tests.support.pump_world import (
    BASE,
    ROOMY,
    Times,
    World,
    at,
    commit,
    eventually,
    numbers,
    outcome,
    posix_world,
    prewrite,
    pulled,
    rollback,
    until_released,
    written,
)

SMALL = replace(ROOMY, segment_bytes_max=2_000)


# --- write and pull ------------------------------------------------------------------------


async def test_a_transaction_is_pulled_whole(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 2))
        (binlog,) = await pulled(pump, upto=at(2))
        assert binlog.payload == join(prewrite(1), commit(1, 2))
        assert (binlog.start_ts, binlog.commit_ts) == (at(1), at(2))
        assert await pump.read_binlog(at(1)) == prewrite(1)
        assert await pump.read_binlog(at(2)) == commit(1, 2)
        assert await pump.read_binlog(at(3)) is None


async def test_a_callback_is_told_what_a_writer_would_be_and_the_others_are_told_of_its_commit(
    world: World,
) -> None:
    told: list[list[BinlogdError | None]] = []

    def ended(outcomes: Sequence[BinlogdError | None]) -> None:
        told.append(list(outcomes))

    async with world.pump(shards=4) as pump:
        assert pump.write_now([b""], ended)
        assert told == [[None]]
        assert pump.write_now([prewrite(1), b"no binlog", b""], ended)
        assert len(told) == 1
        await eventually(lambda: len(told) == 2)
        durable, refused, probe = told[1]
        assert isinstance(refused, MalformedBinlog)
        assert durable is probe is None
        assert pump.write_now([commit(1, 2)], ended)
        await eventually(lambda: len(told) == 3)
        assert pump.max_commit_ts == at(2)
        assert numbers(await pulled(pump, upto=at(2))) == [(1, 2)]
    assert pump.write_now([commit(1, 2)], ended)
    assert isinstance(told[3][0], NotOnline)


async def test_a_callback_does_not_wait_for_room(world: World) -> None:
    async with world.pump() as pump:
        pump._budget.add(1 << 40)
        assert not pump.write_now([prewrite(1)], lambda _: None)
        pump._budget.give(1 << 40)
        assert pump.statistics().accepted == 0
        assert pump._budget.size == 0


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_thousand_transactions_of_many_writers_come_back_in_order(
    world: World, shards: int
) -> None:
    """And again after a restart, and from any point on."""
    rng, count = random.Random(7), 1_024
    order: list[tuple[int, int]] = []

    async with world.pump(SMALL, shards=shards) as pump:
        clock = iter(range(1, 10 * count))

        async def transaction() -> None:
            start = next(clock)
            await written(pump, prewrite(start, rng.randrange(1, 300)))
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            commit_ts = next(clock)
            order.append((start, commit_ts))
            await written(pump, commit(start, commit_ts))

        async def writer() -> None:
            for _ in range(count // 64):
                await transaction()

        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(writer())
        order.sort(key=lambda each: each[1])
        last = order[-1][1]
        assert numbers(await pulled(pump, upto=at(last))) == order
    async with world.pump(SMALL, shards=shards) as pump:
        assert pump.max_commit_ts == at(last)
        binlogs = await pulled(pump, upto=at(last))
        assert numbers(binlogs) == order
        for binlog in binlogs:
            assert body(binlog.payload).prewrite_value.startswith(b"%d" % (binlog.start_ts - BASE))
        middle = order[count // 2][1]
        assert (
            numbers(await pulled(pump, upto=at(last), after=at(middle))) == order[count // 2 + 1 :]
        )
        assert all(shard.late_commits == 0 for shard in pump.statistics().shards)


async def test_an_idle_shard_does_not_hold_the_others(world: World) -> None:
    async with world.pump(shards=8) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        assert pump.max_commit_ts == at(2)
    async with world.pump(shards=8) as pump:
        assert pump.max_commit_ts == at(2)


async def test_an_open_prewrite_holds_what_came_behind_it(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), prewrite(2), commit(2, 3))
        assert pump.max_commit_ts == NO_TS
        assert "start_ts" in pump.statistics().blocked_by
        await written(pump, commit(1, 5))
        assert numbers(await pulled(pump, upto=at(5))) == [(2, 3), (1, 5)]
        assert pump.statistics().blocked_by == ""


async def test_a_rolled_back_transaction_is_not_pulled(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), prewrite(2), commit(2, 3), rollback(1))
        assert numbers(await pulled(pump, upto=at(3))) == [(2, 3)]


async def test_repeated_binlogs_are_pulled_once(world: World) -> None:
    async with world.pump() as pump:
        for _ in range(3):
            await written(pump, prewrite(1), prewrite(1), commit(1, 2), commit(1, 2))
            await until_released(pump, 2)
        await written(pump, prewrite(3), commit(3, 4))
        assert numbers(await pulled(pump, upto=at(4))) == [(1, 2), (3, 4)]
    async with world.pump() as pump:
        await written(pump, commit(1, 2), commit(3, 4))
        assert numbers(await pulled(pump, upto=at(4))) == [(1, 2), (3, 4)]
        assert pump.statistics().shards[0].late_commits == 0


@pytest.mark.parametrize(
    "forge", [prewrite, lambda start: commit(1, start), lambda ts: fake(at(ts))]
)
async def test_a_forged_timestamp_moves_no_watermark(
    world: World, forge: Callable[[int], bytes]
) -> None:
    century = 100 * 365 * 86_400_000 << 18
    async with world.pump(replace(ROOMY, fake_interval_s=0.01, ahead_max_s=600), shards=4) as pump:
        await written(pump, prewrite(1), prewrite(5))
        assert isinstance(await outcome(pump, forge(century)), FromTheFuture)
        assert pump.statistics().from_the_future == 1
        await written(pump, commit(1, 2), commit(5, 6), prewrite(7), commit(7, 8))
        await until_released(pump, 8)
        assert pump.max_commit_ts < at(100)
        assert world.times.observed < at(100)
        found = [each for each in await pulled(pump, upto=at(8)) if not each.is_fake]
        assert numbers(found) == [(1, 2), (5, 6), (7, 8)]
        assert sum(shard.late_commits for shard in pump.statistics().shards) == 0


async def test_a_commit_below_the_watermark_is_told(world: World) -> None:
    """It cannot come from a TiDB; if it comes, it is counted and logged, never lost silently."""
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 20))
        await until_released(pump, 20)
        await written(pump, prewrite(3), commit(3, 10))
    statistics = pump.statistics()
    assert statistics.shards[0].late_commits == 1


async def test_two_commits_of_one_timestamp_are_both_pulled(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), prewrite(2), commit(1, 9), commit(2, 9), fake(at(9)))
        async for batch in pump.sources()[0].pull(NO_TS):
            assert numbers(batch.binlogs) == [(1, 9), (2, 9)]
            break
    async with world.pump() as pump:
        async for batch in pump.sources()[0].pull(NO_TS):
            assert numbers(batch.binlogs) == [(1, 9), (2, 9)]
            break


async def test_commits_of_one_timestamp_come_together_however_small_a_batch_is(
    world: World,
) -> None:
    """Read from the index, and one of them has more than a batch is to hold."""
    small = replace(ROOMY, pull_bytes_max=100, window_bytes_max=1)
    async with world.pump(small) as pump:
        await written(pump, prewrite(1, 50), prewrite(2), commit(1, 9), commit(2, 9))
        await written(pump, prewrite(3), commit(3, 10))
        found: list[tuple[int, int]] = []
        async for batch in pump.sources()[0].pull(NO_TS):
            found += numbers(batch.binlogs)
            if batch.resolved_ts >= at(10):
                break
    assert found == [(1, 9), (2, 9), (3, 10)]


async def test_what_arrives_is_stored_in_canonical_form(world: World) -> None:
    short = prewrite(1).removesuffix(bytes.fromhex("38004000"))
    async with world.pump() as pump:
        await written(pump, short)
        assert await pump.read_binlog(at(1)) == prewrite(1)


async def test_a_puller_is_woken_by_the_watermark(world: World) -> None:
    async with world.pump() as pump:
        arrived: asyncio.Queue[Tso] = asyncio.Queue(10)

        async def pull() -> None:
            async for batch in pump.sources()[0].pull(NO_TS):
                arrived.put_nowait(batch.resolved_ts)

        async with asyncio.TaskGroup() as group:
            puller = group.create_task(pull())
            for number in (1, 11, 21):
                await written(pump, prewrite(number), commit(number, number + 1))
                assert await arrived.get() == at(number + 1)
            puller.cancel()


async def test_a_pull_ends_with_the_pump(world: World) -> None:
    async with world.pump() as pump, asyncio.TaskGroup() as group:

        async def pull() -> int:
            return len([batch async for batch in pump.sources()[0].pull(NO_TS)])

        puller = group.create_task(pull())
        await written(pump, prewrite(1), commit(1, 2))
        await until_released(pump, 2)
        await pump.close()
        assert await puller == 1


async def test_pulls_stay_within_their_limits(world: World) -> None:
    options = replace(ROOMY, pull_commits_max=3)
    async with world.pump(options) as pump:
        for number in range(1, 21, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
    expected = [(number, number + 1) for number in range(1, 21, 2)]
    async with world.pump(options) as pump:
        async for batch in pump.sources()[0].pull(NO_TS):
            assert len(batch.binlogs) <= 3
            if batch.resolved_ts >= at(20):
                break
        assert numbers(await pulled(pump, upto=at(20))) == expected
    for bytes_max in (1, 200, 100_000):
        async with world.pump(replace(ROOMY, pull_bytes_max=bytes_max)) as pump:
            assert numbers(await pulled(pump, upto=at(20))) == expected


async def test_a_window_that_is_too_small_is_no_loss(world: World) -> None:
    """Pushed out of memory, commits come from the index, and prewrites from the log."""
    async with world.pump(replace(ROOMY, window_bytes_max=2_000)) as pump:
        for number in range(1, 201, 2):
            await written(pump, prewrite(number, 100))
        for number in range(1, 201, 2):
            await written(pump, commit(number, 200 + number))
        expected = [(number, 200 + number) for number in range(1, 201, 2)]
        assert numbers(await pulled(pump, upto=at(399))) == expected


# --- what is refused -----------------------------------------------------------------------


async def test_probes_are_answered_and_not_stored(world: World) -> None:
    async with world.pump() as pump:
        assert await outcome(pump, b"") is None
        assert await outcome(pump, bytes.fromhex("08001000180038004000")) is None
        assert pump.statistics().shards[0].written_records == 0


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"invalid", "unexpected EOF"),
        (bytes.fromhex("0803100118023800"), "type 3"),
        (bytes.fromhex("0801100518023800"), "start_ts 5"),
        (bytes.fromhex("080110051800"), "commit_ts 0"),
        (bytes.fromhex("0801100018053800"), "start_ts 0"),
    ],
)
async def test_what_is_no_binlog_is_refused_alone(world: World, payload: bytes, text: str) -> None:
    async with world.pump() as pump:
        answers = await pump.write([prewrite(1), payload, commit(1, 2)])
        assert isinstance(answers[1], MalformedBinlog)
        assert text in str(answers[1])
        assert (answers[0], answers[2]) == (None, None)
        assert numbers(await pulled(pump, upto=at(2))) == [(1, 2)]


async def test_a_shard_that_takes_nothing_is_told_to_those_alone_who_wrote_to_it(
    world: World,
) -> None:
    async with world.pump(shards=2) as pump:
        pump._shards[1].stop()
        starts = (2, 1, 4, 3, 5)
        answers = await pump.write([b"\xff", *(prewrite(start) for start in starts)])
        routing = pump._routing
        expected = [True, *(routing.shard_of(at(start)) == 1 for start in starts)]
        assert [answer is not None for answer in answers] == expected
        assert False in expected[1:]
        assert True in expected[1:]


async def test_a_binlog_above_the_limit_is_refused_in_the_words_tidb_knows(world: World) -> None:
    async with world.pump(replace(ROOMY, record_bytes_max=1_000)) as pump:
        answer = await outcome(pump, prewrite(1, 1_000))
        assert isinstance(answer, RecordTooLarge)
        assert "message larger than max" in str(answer)


async def test_short_of_space_only_fakes_are_taken(world: World) -> None:
    async with world.pump(PumpOptions(free_bytes_min=1 << 60)) as pump:
        for payload in (prewrite(1), commit(1, 2), rollback(1), b""):
            answer = await outcome(pump, payload)
            assert isinstance(answer, DiskFull)
            assert "no available space, available: " in str(answer)
        assert await outcome(pump, fake(at(3))) is None
        assert pump.max_commit_ts == at(3)


async def test_space_that_comes_back_is_noticed(world: World) -> None:
    options = PumpOptions(free_bytes_min=1 << 60, free_check_every_s=0.01)
    async with world.pump(options) as pump:
        assert isinstance(await outcome(pump, prewrite(1)), DiskFull)
        before = pump.statistics().free_bytes
        (world.directory / "ballast").write_bytes(bytes(1 << 20))
        await eventually(lambda: pump.statistics().free_bytes != before)


# --- states --------------------------------------------------------------------------------


async def test_a_paused_pump_refuses_prewrites_and_takes_outcomes(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), prewrite(5))
        pump.request(Action.CLOSE)
        answer = await outcome(pump, prewrite(3))
        assert isinstance(answer, NotOnline)
        assert str(answer) == "no online: closing"
        assert isinstance(await outcome(pump, b""), NotOnline)
        with pytest.raises(Refused):
            pump.request(Action.PAUSE)
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(pump.settle())
            await written(pump, commit(1, 2))
            assert not settling.done()
            await written(pump, rollback(5))
        assert settling.result() == pump.max_commit_ts >= at(5)
        assert pump.state.value == "closing", "who pulls may still need it"
        await pump.close()
        assert pump.state.value == "offline"


async def test_a_pump_that_may_not_close_yet_ends_as_paused(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1))
        pump.request(Action.CLOSE)
        pump.give_up_closing()
        assert isinstance(await outcome(pump, prewrite(3)), NotOnline)
        await pump.close()
        assert pump.state is NodeState.PAUSED


async def test_after_close_nothing_is_taken(world: World) -> None:
    async with world.pump() as pump:
        await pump.close()
        assert isinstance(await outcome(pump, commit(1, 2)), NotOnline)
        assert pump.state is NodeState.PAUSED


async def test_a_pump_may_be_closed_before_it_has_begun_to_run(world: World) -> None:
    for _ in range(3):
        async with world.pump(shards=2):
            pass
    async with world.pump(shards=2) as pump, asyncio.TaskGroup() as group:
        group.create_task(pump.close())
        group.create_task(pump.close())


# --- the data directory --------------------------------------------------------------------


async def test_the_time_source_hears_at_the_start_how_far_the_log_has_come(world: World) -> None:
    """What it hands out from then on lies above."""
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 20))
        await until_released(pump, 20)
    world.times = Times()
    async with world.pump():
        assert world.times.observed == at(20)


async def test_a_data_directory_has_one_owner(world: World) -> None:
    async with world.pump():
        with pytest.raises(ConfigError, match=r"is in use by process \d+"):
            async with world.pump():
                pass
    async with world.pump():
        pass


async def test_a_data_directory_keeps_its_shard_count(world: World) -> None:
    async with world.pump(shards=2):
        pass
    with pytest.raises(ConfigError, match="was made with 2 shards"):
        async with world.pump(shards=3):
            pass
    with pytest.raises(ConfigError, match="at least 1"):
        async with world.pump(shards=0):
            pass
    async with world.pump(shards=2):
        pass


async def test_a_shard_that_is_gone_and_a_lost_count_are_missed_where_there_are_binlogs(
    world: World,
) -> None:
    """Else their transactions would be, in silence."""
    transactions = [(start, start + 1) for start in range(1, 21, 2)]
    async with world.pump(shards=4) as pump:
        for start, commit_ts in transactions:
            await written(pump, prewrite(start), commit(start, commit_ts))
    shard, aside = world.directory / "pump/shard-1", world.directory / "aside"
    shard.rename(aside)
    with pytest.raises(ConfigError, match="shard-1/value is missing, and all that was written"):
        async with world.pump(shards=4):
            pass
    aside.rename(shard)
    count = world.directory / "pump" / SHARDS_FILE
    content = count.read_bytes()
    count.unlink()
    with pytest.raises(ConfigError, match="pump/shards is missing"):
        await routing_of(count.parent, 2, world.disk)
    values = [count.parent / f"shard-{number}" / "value" for number in range(3)]
    for number, value in enumerate(values):
        value.rename(world.directory / str(number))
        value.mkdir()
    with pytest.raises(ConfigError, match="pump/shards is missing"):
        await routing_of(count.parent, 2, world.disk)
    for number, value in enumerate(values):
        value.rmdir()
        (world.directory / str(number)).rename(value)
    assert not count.exists()
    count.write_bytes(content)
    async with world.pump(shards=4) as pump:
        assert numbers(await pulled(pump, upto=at(20))) == transactions


# --- fake binlogs --------------------------------------------------------------------------


async def test_an_idle_pump_moves_the_watermark_by_fakes(world: World) -> None:
    async with world.pump(replace(ROOMY, fake_interval_s=0.01), shards=3) as pump:
        world.times.is_down = True  # else one may come while this is still being written
        await written(pump, prewrite(1), commit(1, 2))
        world.times.is_down = False
        world.times.says = at(100)
        await until_released(pump, 100)
        statistics = pump.statistics()
        assert statistics.fakes == 1
        found = await pulled(pump, upto=at(100))
        assert numbers(found) == [(1, 2), (100, 100)]
        assert found[-1].is_fake
        assert peek(bytes(found[-1].payload))[:3] == (2, at(100), at(100))
    async with world.pump(shards=3) as pump:
        assert pump.max_commit_ts == at(100)


async def test_rollbacks_do_not_keep_the_watermark_from_moving(world: World) -> None:
    """A TiDB that rolls all back would stop whoever merges this Pump with others."""
    async with world.pump(replace(ROOMY, fake_interval_s=0.3), shards=3) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        world.times.says = at(100_000)
        for start in range(3, 100_000):
            await written(pump, prewrite(start), rollback(start))
            if pump.max_commit_ts >= at(100_000):
                break
        assert pump.max_commit_ts == at(100_000)


async def test_no_fake_is_written_for_what_is_known(world: World) -> None:
    async with world.pump(replace(ROOMY, fake_interval_s=0.01)) as pump:
        world.times.is_down = True  # else one may come while this is still being written
        await written(pump, prewrite(1), commit(1, 2))
        world.times.is_down = False
        await asyncio.sleep(0.1)
        assert pump.statistics().fakes == 0
        world.times.is_down = True
        await asyncio.sleep(0.05)
        world.times.is_down = False
        world.times.says = at(5)
        await until_released(pump, 5)
        assert pump.statistics().fakes == 1


# --- orphans -------------------------------------------------------------------------------

HASTY = replace(ROOMY, resolve_after_s=0.02)


async def test_lost_outcomes_are_asked_for_all_at_once(world: World) -> None:
    world.fates.known = {at(1): Committed(at(11)), at(2): RolledBack(), at(3): Committed(at(12))}
    async with world.pump(HASTY) as pump:
        await written(pump, prewrite(1), prewrite(2), prewrite(3), prewrite(4), commit(4, 20))
        found = await pulled(pump, upto=at(20))
        assert numbers(found) == [(1, 11), (3, 12), (4, 20)]
        assert found[0].payload == join(prewrite(1), commit_binlog(at(1), at(11)))
        asked = world.fates.asked[0]
        assert [(each.start_ts, each.prewrite_key) for each in asked] == [
            (at(number), b"key %d" % number) for number in (1, 2, 3)
        ]
    async with world.pump() as pump:
        assert numbers(await pulled(pump, upto=at(20))) == [(1, 11), (3, 12), (4, 20)]


async def test_a_thousand_orphans_do_not_cost_a_thousand_seconds(world: World) -> None:
    world.fates.answers_all = RolledBack()
    async with world.pump(replace(HASTY, resolve_after_s=0.3, resolve_batch_max=100)) as pump:
        await written(pump, *(prewrite(number) for number in range(1, 1_001)))
        await written(pump, prewrite(2_000), commit(2_000, 2_001))
        async with asyncio.timeout(120):
            assert numbers(await pulled(pump, upto=at(2_001))) == [(2_000, 2_001)]
        assert sum(map(len, world.fates.asked)) == 1_000, "nobody twice"
        assert len(world.fates.asked) <= 20  # more than ten where writing them took its time


async def test_an_undecided_transaction_waits_and_says_why(world: World) -> None:
    async with world.pump(HASTY) as pump:
        await written(pump, prewrite(1), prewrite(2), commit(2, 3))
        await eventually(lambda: pump.statistics().resolvers[0].reason != "")
        assert "nobody knows" in pump.statistics().blocked_by
        assert pump.max_commit_ts == NO_TS
        world.fates.is_down = True
        await eventually(lambda: "no answer today" in pump.statistics().blocked_by)
        world.fates.is_down = False
        world.fates.known[at(1)] = RolledBack()
        await until_released(pump, 3)


async def test_a_prewrite_repeated_long_after_its_commit_is_found_in_the_index(
    world: World,
) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 2), prewrite(3), rollback(3), prewrite(5))
        await written(pump, commit(5, 6))
    async with world.pump(HASTY) as pump:
        await written(pump, prewrite(1), prewrite(3), prewrite(7), commit(7, 8))
        assert numbers(await pulled(pump, upto=at(8))) == [(1, 2), (5, 6), (7, 8)]
        assert world.fates.asked == []


async def test_a_commit_without_a_prewrite_stops_the_pull_or_is_passed_over(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 2), commit(3, 4), prewrite(5), commit(5, 6))
        with pytest.raises(CorruptRecord, match="skip-orphan-commits"):
            await pulled(pump, upto=at(6))
    async with world.pump() as pump:
        with pytest.raises(CorruptRecord, match=f"no prewrite of start_ts {at(3)}"):
            await pulled(pump, upto=at(6))
    async with world.pump(replace(ROOMY, skip_orphan_commits=True)) as pump:
        assert numbers(await pulled(pump, upto=at(6))) == [(1, 2), (5, 6)]
        await written(pump, commit(7, 8), prewrite(9), commit(9, 10))
        assert numbers(await pulled(pump, upto=at(10))) == [(1, 2), (5, 6), (9, 10)]


# --- restarts ------------------------------------------------------------------------------


async def test_a_clean_stop_leaves_nothing_to_scan(world: World) -> None:
    async with world.pump(shards=2) as pump:
        for number in range(1, 200, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
    for shard in (0, 1):
        with sqlite3.connect(world.directory / f"pump/shard-{shard}/index.db") as index:
            marks = dict(index.execute("SELECT name, value FROM marks"))
            size = (world.directory / f"pump/shard-{shard}/value/000000.vlog").stat().st_size
        index.close()
        assert marks["max_commit_ts"] == at(200)
        assert marks["head_pointer"] == marks["handle_pointer"]
        assert int.from_bytes(marks["head_pointer"][4:], "little") == size


async def test_an_open_prewrite_is_waited_for_after_a_restart(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), prewrite(2), commit(2, 3))
    async with world.pump() as pump:
        assert pump.max_commit_ts == NO_TS
        assert pump.statistics().shards[0].open_prewrites == 1
        await written(pump, prewrite(4), commit(4, 5), commit(1, 6))
        assert numbers(await pulled(pump, upto=at(6))) == [(2, 3), (4, 5), (1, 6)]


@pytest.mark.parametrize("damage", ["missing", "garbage", "senseless", "older"])
async def test_the_index_is_made_again_from_the_log(world: World, damage: str) -> None:
    index = world.directory / "pump/shard-0/index.db"
    older = b""
    async with world.pump(SMALL) as pump:
        for number in range(1, 100, 2):
            await written(pump, prewrite(number), commit(number, number + 1))
            if number == 49:
                await until_filed(pump)
                older = index.read_bytes()
        await written(pump, prewrite(201))
    match damage:
        case "missing":
            index.unlink()
        case "garbage":
            index.write_bytes(b"not a database, not at all" * 500)
        case "senseless":
            with sqlite3.connect(index) as database:
                database.execute("UPDATE marks SET value = x'00' WHERE name = 'head_pointer'")
            database.close()
        case _:
            index.write_bytes(older)
    async with world.pump(SMALL) as pump:
        expected = [(number, number + 1) for number in range(1, 100, 2)]
        assert numbers(await pulled(pump, upto=at(100))) == expected
        assert pump.statistics().shards[0].open_prewrites == 1


async def test_an_index_of_a_newer_format_is_refused(world: World) -> None:
    async with world.pump():
        pass
    with sqlite3.connect(world.directory / "pump/shard-0/index.db") as index:
        index.execute("UPDATE marks SET value = 99 WHERE name = 'format'")
    index.close()
    with pytest.raises(ConfigError, match="format 99"):
        async with world.pump():
            pass


async def test_damage_behind_the_marks_is_found_by_the_puller(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 2), prewrite(3), commit(3, 4))
    path = world.directory / "pump/shard-0/value/000000.vlog"
    damaged = bytearray(path.read_bytes())
    damaged[30] ^= 1
    path.write_bytes(damaged)
    async with world.pump() as pump:
        with pytest.raises(CorruptRecord, match=r"000000\.vlog at offset 0: checksum mismatch"):
            await pulled(pump, upto=at(4))
        assert pump.statistics().shards[0].measures.errors["read_value"] == 1
        assert numbers(await pulled(pump, upto=at(4), after=at(2))) == [(3, 4)]


async def test_damage_in_what_is_scanned_stops_the_start(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), prewrite(3), commit(3, 4))
    path = world.directory / "pump/shard-0/value/000000.vlog"
    damaged = bytearray(path.read_bytes())
    damaged[30] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptRecord, match=r"000000\.vlog at offset 0: .*go on at offset"):
        async with world.pump():
            pass
    path.write_bytes(bytes(damaged[:30]) + bytes([damaged[30] ^ 1]) + bytes(damaged[31:]))
    async with world.pump() as pump:
        assert pump.statistics().shards[0].open_prewrites == 1


# --- an index that is slow -----------------------------------------------------------------


async def test_writers_and_pullers_do_not_wait_for_a_locked_index(world: World) -> None:
    """The queue overflows, slowChaser turns on, and reads the log once the lock is gone."""
    options = replace(ROOMY, index_queue_max=10, slow_chaser_after_s=1.0)
    async with world.pump(options) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        await until_filed(pump)
        before = pump.statistics().shards[0].chaser
        lock = sqlite3.connect(world.directory / "pump/shard-0/index.db")
        lock.execute("BEGIN IMMEDIATE")
        try:
            for number in range(3, 4_003, 2):
                await written(pump, prewrite(number), commit(number, number + 1))
            expected = [(number, number + 1) for number in range(1, 4_003, 2)]
            assert numbers(await pulled(pump, upto=at(4_002), after=at(0))) == expected
            await eventually(lambda: pump.statistics().shards[0].chaser.is_on)
            shard = pump.statistics().shards[0]
            assert shard.index_queue_records > 3_000
            assert shard.chaser.turned_on == before.turned_on + 1
        finally:
            lock.rollback()
            lock.close()
        await eventually(lambda: not pump.statistics().shards[0].chaser.is_on)
        await until_filed(pump)
        shard = pump.statistics().shards[0]
        assert shard.chaser.recoveries > before.recoveries
        assert shard.chaser.records_read > 3_000
        assert shard.filed_ts == at(4_002)
    async with world.pump() as pump:
        assert numbers(await pulled(pump, upto=at(4_002))) == expected


async def test_a_puller_behind_the_window_waits_for_a_locked_index(world: World) -> None:
    options = replace(ROOMY, window_bytes_max=1)
    async with world.pump(options) as pump:
        await written(pump, prewrite(1), commit(1, 2))
        await until_released(pump, 2)
        lock = sqlite3.connect(world.directory / "pump/shard-0/index.db")
        lock.execute("BEGIN IMMEDIATE")
        await written(pump, prewrite(3), commit(3, 4), prewrite(5), commit(5, 6))
        async with asyncio.TaskGroup() as group:
            puller = group.create_task(pulled(pump, upto=at(6)))
            await asyncio.sleep(0.05)
            assert not puller.done()
            lock.rollback()
            lock.close()
            assert numbers(await puller) == [(1, 2), (3, 4), (5, 6)]


async def test_a_pump_closes_although_its_index_is_locked(world: World) -> None:
    async with world.pump() as pump:
        await written(pump, prewrite(1), commit(1, 2))
        await until_released(pump, 2)
        lock = sqlite3.connect(world.directory / "pump/shard-0/index.db")
        lock.execute("BEGIN IMMEDIATE")
        await written(pump, prewrite(3), commit(3, 4))
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(pump.close())
            await asyncio.sleep(0.5)
            lock.rollback()
            lock.close()
            await closing
    async with world.pump() as pump:
        assert numbers(await pulled(pump, upto=at(4))) == [(1, 2), (3, 4)]


# --- garbage -------------------------------------------------------------------------------

DAY = 86_400_000 << 18


async def many_segments(pump: Pump, days: int) -> None:
    """One transaction a day, a segment for every few of them; all is filed and measured."""
    for day in range(days):
        await written(pump, prewrite(day * DAY + 1, 200), commit(day * DAY + 1, day * DAY + 2))
    await until_filed(pump)


async def until_filed(pump: Pump) -> None:
    shard = pump._shards[0]
    await eventually(
        lambda: (
            not shard.filer.waiting
            and all(each.checksum for each in shard.log.segments if each.is_sealed)
            and (shard.sorter.open_count or shard.filer.resume == shard.log.segments.end)
        )
    )


async def test_old_binlogs_go_and_newer_ones_stay(world: World) -> None:
    world.clock.now_ms += 30 * 86_400_000
    async with world.pump(SMALL) as pump:
        await many_segments(pump, 31)
        before = pump.statistics().shards[0]
        (plan,) = await pump.caretaker.collect()
        after = pump.statistics().shards[0]
        assert after.segments == before.segments - len(plan.fids)
        assert len(plan.fids) > 3
        assert at(20 * DAY) < after.gc_ts <= at(23 * DAY + 2)
        kept = [day for day in range(31) if at(day * DAY + 2) > after.gc_ts]
        expected = [(day * DAY + 1, day * DAY + 2) for day in kept]
        assert numbers(await pulled(pump, upto=at(30 * DAY + 2))) == expected
        assert await pump.read_binlog(at(1)) is None
        with pytest.raises(Behind, match="have been deleted"):
            await pulled(pump, upto=at(30 * DAY + 2), after=at(5))
    names = sorted(path.name for path in (world.directory / "pump/shard-0/value").iterdir())
    assert len(names) == after.segments
    async with world.pump(SMALL) as pump:
        assert pump.statistics().shards[0].gc_ts == after.gc_ts
        assert numbers(await pulled(pump, upto=at(30 * DAY + 2))) == expected


async def test_nothing_goes_that_somebody_still_needs(world: World) -> None:
    world.clock.now_ms += 30 * 86_400_000
    async with world.pump(SMALL) as pump:
        await many_segments(pump, 31)
        pump.caretaker.hold("drainer", at(5 * DAY))
        await pump.caretaker.collect()
        statistics = pump.statistics()
        assert statistics.gc.held_by == ("drainer",)
        assert statistics.shards[0].gc_ts <= at(5 * DAY)
        found = await pulled(pump, upto=at(30 * DAY + 2), after=at(5 * DAY))
        assert len(found) == 26
        pump.caretaker.release("drainer")
        await pump.caretaker.collect()
        assert pump.statistics().gc.held_by == ("",)
        assert pump.statistics().shards[0].gc_ts > at(20 * DAY)


async def test_an_open_prewrite_keeps_everything_behind_it(world: World) -> None:
    world.clock.now_ms += 30 * 86_400_000
    async with world.pump(SMALL) as pump:
        await written(pump, prewrite(0 * DAY + 3))
        await many_segments(pump, 31)
        await pump.caretaker.collect()
        assert pump.statistics().shards[0].gc_ts == NO_TS
        await written(pump, commit(3, 30 * DAY + 5))
        await until_released(pump, 30 * DAY + 5)
        await until_filed(pump)
        await pump.caretaker.collect()
        # The prewrite is a month old, its commit is new: its segment must stay.
        assert pump.statistics().shards[0].gc_ts == NO_TS
        found = await pulled(pump, upto=at(30 * DAY + 5))
        assert numbers(found)[-1] == (3, 30 * DAY + 5)


async def test_a_recording_fed_years_later_is_not_old(world: World) -> None:
    world.clock.now_ms += 3_000 * 86_400_000
    async with world.pump(SMALL) as pump:
        await many_segments(pump, 6)
        await pump.caretaker.collect()
        assert pump.statistics().shards[0].gc_ts == NO_TS


async def test_garbage_is_collected_on_request(world: World) -> None:
    world.clock.now_ms += 30 * 86_400_000
    async with world.pump(SMALL) as pump:
        await many_segments(pump, 31)
        pump.caretaker.trigger()
        await eventually(lambda: pump.statistics().shards[0].gc_ts != NO_TS)


async def test_a_segment_that_is_not_as_remembered_is_not_deleted(world: World) -> None:
    world.clock.now_ms += 30 * 86_400_000
    async with world.pump(SMALL) as pump:
        await many_segments(pump, 31)
        path = world.directory / "pump/shard-0/value/000000.vlog"
        path.write_bytes(path.read_bytes()[:-4] + b"xxxx")
        with pytest.raises(CorruptRecord, match="not as remembered"):
            await pump.caretaker.collect()
        assert path.exists()
        assert pump.statistics().shards[0].gc_ts == NO_TS


@pytest.mark.parametrize("waits_for_room", [False, True])
async def test_settling_sees_an_old_transaction_that_is_being_written_just_then(
    tmp_path: Path,
    *,
    waits_for_room: bool,
) -> None:
    """Its prewrite was admitted before the close, and lies below the watermark."""
    async with posix_world(tmp_path) as world, world.pump(shards=2) as pump:
        for start in (1, 2, 3, 4):
            await written(pump, prewrite(start), commit(start, start + 100))
        await eventually(lambda: pump.max_commit_ts == at(104))
        if waits_for_room:
            pump._budget.add(1 << 40)
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(written(pump, prewrite(50)))
            await asyncio.sleep(0)
            pump.request(Action.CLOSE)
            settling = group.create_task(pump.settle())
            if waits_for_room:
                await asyncio.sleep(0.05)
                pump._budget.give(1 << 40)
            await writing
            await asyncio.sleep(0.05)
            assert not settling.done()
            await written(pump, commit(50, 200))
        assert settling.result() >= at(200)
