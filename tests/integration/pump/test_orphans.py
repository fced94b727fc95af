"""Transactions whose outcome is missing or doubtful: who is asked, how often, and what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from binlogd.ports import Committed, OpenPrewrite, Pending, RolledBack, TxnStatus
from tests.support.pump_world import (
    ROOMY,
    Fates,
    World,
    at,
    commit,
    eventually,
    numbers,
    prewrite,
    pulled,
    rollback,
    until_released,
    written,
)

SOON = replace(ROOMY, resolve_after_s=0.05)
NEVER_BY_AGE = replace(ROOMY, resolve_after_s=3_600)


# --- rollbacks -----------------------------------------------------------------------------------


async def test_a_rollback_that_the_store_contradicts_becomes_a_commit(world: World) -> None:
    world.fates.verifies_rollbacks = True
    world.fates.known[at(1)] = Committed(at(5))
    async with world.pump(NEVER_BY_AGE) as pump:
        await written(pump, prewrite(1), prewrite(2), rollback(1), commit(2, 6))
        found = await pulled(pump, upto=at(6))
        assert numbers(found) == [(1, 5), (2, 6)]
        assert pump.statistics().resolvers[0].contradicted == 1
        assert pump.statistics().shards[0].late_commits == 0
    async with world.pump(NEVER_BY_AGE) as pump:  # and the log says so from now on
        assert numbers(await pulled(pump, upto=at(6))) == [(1, 5), (2, 6)]


async def test_a_rollback_that_the_store_confirms_holds_nobody_and_is_asked_about_once(
    world: World,
) -> None:
    world.fates.verifies_rollbacks = True
    world.fates.known[at(1)] = RolledBack()
    async with world.pump(NEVER_BY_AGE) as pump:
        await written(pump, prewrite(1), prewrite(2), commit(2, 6), rollback(1))
        assert numbers(await pulled(pump, upto=at(6))) == [(2, 6)]
        assert [[each.start_ts for each in asked] for asked in world.fates.asked] == [[at(1)]]
        assert pump.statistics().shards[0].written_records == 4


async def test_until_the_store_answers_a_rollback_holds_the_watermark_and_says_why(
    world: World,
) -> None:
    world.fates.verifies_rollbacks = True
    world.fates.answers_all = Pending("its lock is alive")
    async with world.pump(SOON) as pump:
        await written(pump, prewrite(1), rollback(1), prewrite(2), commit(2, 6))
        await eventually(lambda: "its lock is alive" in pump.statistics().blocked_by)
        assert pump.max_commit_ts < at(6)
    world.fates.is_down = True
    async with world.pump(SOON) as pump:  # the index has the Rollback now, which proves nothing
        await eventually(lambda: "no answer today" in pump.statistics().blocked_by)
        assert pump.max_commit_ts < at(6)
        world.fates.is_down = False
        world.fates.known[at(1)] = Committed(at(7))
        await until_released(pump, 7)
        assert numbers(await pulled(pump, upto=at(7))) == [(2, 6), (1, 7)]


async def test_a_commit_that_comes_after_all_needs_no_answer(world: World) -> None:
    world.fates.verifies_rollbacks = True
    async with world.pump(NEVER_BY_AGE) as pump:
        await written(pump, prewrite(1), rollback(1), commit(1, 4))
        assert numbers(await pulled(pump, upto=at(4))) == [(1, 4)]


async def test_without_anybody_to_ask_a_rollback_is_believed(world: World) -> None:
    async with world.pump(NEVER_BY_AGE) as pump:
        await written(pump, prewrite(1), prewrite(2), commit(2, 6), rollback(1))
        assert numbers(await pulled(pump, upto=at(6))) == [(2, 6)]
        assert world.fates.asked == []


async def test_an_orphan_that_was_rolled_back_is_asked_about_once(world: World) -> None:
    world.fates.verifies_rollbacks = True
    world.fates.answers_all = RolledBack()
    async with world.pump(SOON) as pump:
        await written(pump, prewrite(1), prewrite(2), commit(2, 6))
        await until_released(pump, 6)
        await written(pump, prewrite(8), commit(8, 9))
        await until_released(pump, 9)
        assert sum(map(len, world.fates.asked)) == 1


# --- many ----------------------------------------------------------------------------------------


class SlowFates(Fates):
    """Takes its time for each batch, and counts those on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.together = self.together_max = 0

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        self.together += 1
        self.together_max = max(self.together_max, self.together)
        await asyncio.sleep(0.05)
        self.together -= 1
        return await super().statuses(prewrites)


async def test_a_thousand_orphans_cost_a_few_questions_that_are_asked_together(
    world: World,
) -> None:
    fates = world.fates = SlowFates()
    for number in range(1, 1_001):
        fates.known[at(number)] = Committed(at(3_000 + number)) if number % 2 else RolledBack()
    options = replace(ROOMY, resolve_after_s=0.3, resolve_batch_max=100)
    async with world.pump(options) as pump:
        await written(pump, *(prewrite(number) for number in range(1, 1_001)))
        await written(pump, prewrite(2_000), commit(2_000, 4_500))
        await until_released(pump, 4_500)
        found = numbers(await pulled(pump, upto=at(4_500)))
        assert found == [*((n, 3_000 + n) for n in range(1, 1_001, 2)), (2_000, 4_500)]
        assert len(fates.asked) <= 20  # more than ten where writing them took its time
        assert 2 <= fates.together_max <= 8
        assert sum(map(len, fates.asked)) == 1_000  # nobody twice


async def test_orphans_that_nobody_knows_do_not_keep_others_from_being_asked_about(
    world: World,
) -> None:
    async with world.pump(replace(SOON, resolve_batch_max=2)) as pump:
        await written(pump, *(prewrite(number) for number in range(1, 101)))
        world.fates.known[at(100)] = Committed(at(200))
        await eventually(lambda: pump.statistics().shards[0].open_prewrites == 99)


class HalfDeaf(Fates):
    """Fails for batches that have the orphan 1."""

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        self.is_down = any(each.start_ts == at(1) for each in prewrites)
        return await super().statuses(prewrites)


async def test_a_batch_that_fails_holds_up_no_other(world: World) -> None:
    world.fates = HalfDeaf()
    world.fates.answers_all = RolledBack()
    async with world.pump(replace(SOON, resolve_batch_max=10)) as pump:
        await written(pump, *(prewrite(number) for number in range(1, 101)))
        await eventually(lambda: pump.statistics().shards[0].open_prewrites == 10)
        await eventually(lambda: "no answer today" in pump.statistics().blocked_by)
