"""Back-pressure: what waits for room, in which order, and who may be larger than the room."""

from __future__ import annotations

import asyncio

from binlogd.pump.budget import Budget


async def until_waiting(budget: Budget, count: int) -> None:
    for _ in range(10):
        if budget.waiting == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{budget.waiting} wait, not {count}")


async def test_what_fits_does_not_wait() -> None:
    budget = Budget(records_max=10, bytes_max=100)
    await budget.take(5, 50)
    await budget.take(5, 50)
    assert (budget.records, budget.size, budget.waiting) == (10, 100, 0)


async def test_those_who_wait_are_served_in_turn() -> None:
    budget, served = Budget(records_max=10, bytes_max=100), []

    async def take(name: str, records: int) -> None:
        await budget.take(records, 1)
        served.append(name)

    await budget.take(10, 10)
    async with asyncio.TaskGroup() as group:
        group.create_task(take("large", 8))
        group.create_task(take("small", 1))
        await until_waiting(budget, 2)
        budget.give(2, 2)
        await asyncio.sleep(0)
        assert served == []  # the small one does not overtake
        budget.give(8, 8)
    assert served == ["large", "small"]


async def test_something_larger_than_the_room_is_admitted_alone() -> None:
    budget = Budget(records_max=10, bytes_max=100)
    await budget.take(1, 1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.take(1, 1_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        budget.give(1, 1)
    assert budget.size == 1_000


async def test_one_who_gives_up_leaves_no_hole() -> None:
    budget = Budget(records_max=2, bytes_max=100)
    await budget.take(2, 2)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(budget.take(2, 2))
        second = group.create_task(budget.take(1, 1))
        await until_waiting(budget, 2)
        first.cancel()
        budget.give(2, 2)
        await second
    assert (budget.records, budget.waiting) == (1, 0)


async def test_one_who_is_cancelled_when_admitted_gives_back() -> None:
    budget = Budget(records_max=1, bytes_max=100)
    await budget.take(1, 1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.take(1, 1))
        await asyncio.sleep(0)
        budget.give(1, 1)
        waiting.cancel()
    assert budget.records == 0
