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
    budget = Budget(bytes_max=100)
    await budget.take(50)
    assert budget.has_room(50)
    await budget.take(50)
    assert (budget.size, budget.waiting) == (100, 0)
    assert not budget.has_room(1)


async def test_those_who_wait_are_served_in_turn() -> None:
    budget, served = Budget(bytes_max=10), []

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        served.append(name)

    await budget.take(10)
    async with asyncio.TaskGroup() as group:
        group.create_task(take("large", 8))
        group.create_task(take("small", 1))
        await until_waiting(budget, 2)
        budget.give(2)
        await asyncio.sleep(0)
        assert served == []  # the small one does not overtake
        budget.give(8)
    assert served == ["large", "small"]


async def test_something_larger_than_the_room_is_admitted_alone() -> None:
    budget = Budget(bytes_max=100)
    await budget.take(1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.take(1_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        budget.give(1)
    assert budget.size == 1_000


async def test_one_who_gives_up_leaves_no_hole() -> None:
    budget = Budget(bytes_max=2)
    await budget.take(2)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(budget.take(2))
        second = group.create_task(budget.take(1))
        await until_waiting(budget, 2)
        first.cancel()
        budget.give(2)
        await second
    assert (budget.size, budget.waiting) == (1, 0)


async def test_one_who_is_cancelled_when_admitted_gives_back() -> None:
    budget = Budget(bytes_max=1)
    await budget.take(1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.take(1))
        await asyncio.sleep(0)
        budget.give(1)
        waiting.cancel()
    assert budget.size == 0
