"""Groups of several shards begin together, and none waits for one that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from binlogd.pump.shard.rounds import Rounds


async def test_what_comes_during_a_round_begins_together_when_all_of_it_has_ended() -> None:
    rounds, begun = Rounds(), list[str]()
    may_end = {name: asyncio.Event() for name in "abcde"}

    async def group(name: str) -> None:
        async with group_of(rounds):
            begun.append(name)
            await may_end[name].wait()

    async with asyncio.TaskGroup() as tasks:
        rounds.coming = 1  # behind the first
        for name in "ab":
            tasks.create_task(group(name))
        await turns()
        rounds.coming = 0
        for name in "cde":
            tasks.create_task(group(name))
        may_end["a"].set()
        await turns()
        assert begun == ["a", "b"]
        may_end["b"].set()
        await turns()
        assert begun == ["a", "b", "c", "d", "e"]
        for name in "cde":
            may_end[name].set()


async def test_who_enters_again_at_once_does_not_overtake_those_who_wait() -> None:
    rounds, begun = Rounds(), list[str]()

    async def groups(name: str) -> None:
        for _ in range(10):
            async with group_of(rounds):
                begun.append(name)
                await turns()

    async with asyncio.TaskGroup() as tasks:
        for name in "ab":
            tasks.create_task(groups(name))
            await turns()
    assert all(len(set(begun[at : at + 2])) == 2 for at in range(1, 19, 2))


async def test_a_group_that_fails_or_is_cancelled_holds_nobody_up() -> None:
    rounds = Rounds()

    async def forever() -> None:
        async with group_of(rounds):
            await asyncio.Event().wait()

    with pytest.raises(ValueError, match="lost"):
        async with group_of(rounds):
            raise ValueError("lost")
    async with asyncio.TaskGroup() as tasks:
        under_way = tasks.create_task(forever())
        await turns()
        waiting = tasks.create_task(forever())
        await turns()
        waiting.cancel()
        under_way.cancel()
        async with asyncio.timeout(120), group_of(rounds):
            pass


async def test_behind_a_round_of_one_writer_a_group_begins_at_once_with_those_of_its_turn() -> None:
    rounds = Rounds()
    await rounds.enter()
    rounds.leave(1)
    await turns()
    for others in (1, 0):  # as two shards of one turn
        rounds.coming = others
        assert is_over(rounds.enter())
    late = asyncio.ensure_future(rounds.enter())
    await turns()
    assert not late.done()
    rounds.leave(1)
    await turns()
    assert not late.done()
    rounds.leave(0)
    await turns()
    assert late.done()


async def test_where_nobody_else_was_woken_a_round_is_closed_at_once() -> None:
    rounds = Rounds()
    assert is_over(rounds.enter())
    late = asyncio.ensure_future(rounds.enter())
    await turns()
    assert not late.done()
    rounds.leave(1)
    await turns()
    assert late.done()


async def test_behind_a_round_of_several_writers_a_group_waits_for_them_to_write_again() -> None:
    rounds = Rounds()
    await rounds.enter()
    rounds.leave(2)
    first = asyncio.ensure_future(rounds.enter())
    await asyncio.sleep(0)
    second = asyncio.ensure_future(rounds.enter())
    await asyncio.sleep(0)
    assert not first.done()
    await turns()
    assert first.done()
    assert second.done()


def is_over(entering: Coroutine[Any, Any, None]) -> bool:
    """Whether its first step was its last."""
    try:
        entering.send(None)
    except StopIteration:
        return True
    return False


@asynccontextmanager
async def group_of(rounds: Rounds) -> AsyncIterator[None]:
    await rounds.enter()
    try:
        yield
    finally:
        rounds.leave(2)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
