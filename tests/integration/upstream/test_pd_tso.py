"""Timestamps out of PD's stream: many who wait, leaders that move, streams that break, time that
goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.errors import UpstreamUnavailable
from binlogd.tso import Tso, physical_ms
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.leader import PdLimits
from binlogd.upstream.pd.tso import PdTso
from tests.support.pd_cluster import PdCluster, pd_cluster
from tests.support.pump_world import PATIENCE_S, eventually

QUICK = PdLimits(
    call_s=1.0,
    connect_s=1.0,
    question_s=60.0,
    pause_s=0.01,
    pause_s_max=0.05,
    look_again_s=0.05,
    tso_s=60.0,
    tso_call_s=1.0,
    slow_tso_s=0.1,
    tso_every_s=0.02,
)
"""Patient with the cluster, for it answers in the end; brief with a member that hangs."""
BRIEF = replace(QUICK, tso_s=1.2)
"""For who shall give up."""


@asynccontextmanager
async def telling(pd: PdCluster, limits: PdLimits = QUICK) -> AsyncIterator[PdTso]:
    client = PdClient(pd.addresses, limits=limits)
    tso = PdTso(client)
    try:
        yield tso
    finally:
        await tso.close()
        await client.close()


async def many(tso: PdTso, count: int) -> list[Tso]:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(tso.next()) for _ in range(count)]
    return [each.result() for each in asked]


async def refused(tso: PdTso) -> str:
    with pytest.raises(UpstreamUnavailable) as error:
        await tso.next()
    return str(error.value)


async def test_many_who_wait_are_told_by_few_requests_in_the_order_in_which_they_came() -> None:
    async with pd_cluster() as pd, telling(pd) as tso:
        first = await many(tso, 1000)
        then = await many(tso, 1000)
        assert first + then == sorted({*first, *then})
        assert physical_ms(first[0]) == pd.now_ms
        assert pd.tso_requests < 10


@settings(max_examples=15, deadline=None)
@given(gives_up=st.lists(st.booleans(), min_size=1, max_size=30))
def test_who_gives_up_waiting_takes_nothing_from_the_others(gives_up: list[bool]) -> None:
    async def waited() -> None:
        async with pd_cluster() as pd, telling(pd) as tso:
            pd.tso_delay_s = 0.01
            tasks = [asyncio.ensure_future(tso.next()) for _ in gives_up]  # some are cancelled
            await asyncio.sleep(0.005)
            for task, goes in zip(tasks, gives_up, strict=True):
                if goes:
                    task.cancel()
            told = [await task for task, goes in zip(tasks, gives_up, strict=True) if not goes]
            after = await tso.next()
            assert [*told, after] == sorted({*told, after})

    asyncio.run(waited())


async def test_timestamps_go_on_above_the_last_when_the_leader_moves_or_dies() -> None:
    async with pd_cluster(3) as pd, telling(pd) as tso:
        told = [await tso.next()]
        pd.leader = pd.members[1]  # the old one lives, and says that it leads no more
        told += [await tso.next()]
        await pd.members[1].stop()
        pd.leader = pd.members[2]
        told += [await tso.next()]
        pd.members[2].answers.clear()
        pd.leader = pd.members[0]
        told += [await tso.next()]
        assert told == sorted(set(told))


async def test_a_pd_that_is_gone_is_said_in_time_and_found_again() -> None:
    async with pd_cluster() as pd, telling(pd, BRIEF) as tso:
        before = await tso.next()
        await pd.members[0].stop()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(refused(tso)) for _ in range(10)]
        assert all("Connect call failed" in each.result() for each in asked)
        assert tso.statistics().trouble
        await pd.members[0].start()
        assert await tso.next() > before
        assert not tso.statistics().trouble


async def test_a_leader_that_does_not_lead_yet_is_quoted_and_asked_again() -> None:
    """It resets the stream as soon as it has said so."""
    async with pd_cluster() as pd:
        async with telling(pd, BRIEF) as tso:
            pd.is_campaigning = True
            async with asyncio.timeout(PATIENCE_S):
                while "requested pd is not leader of cluster" not in await refused(tso):
                    pass  # it answers too late, or not yet
        async with telling(pd) as tso, asyncio.TaskGroup() as group:
            asked = group.create_task(tso.next())
            await eventually(lambda: tso._client.statistics().errors > 2)
            pd.is_campaigning = False
        assert asked.result()


async def test_a_pd_that_hangs_is_given_up_in_time() -> None:
    async with pd_cluster() as pd, telling(pd, BRIEF) as tso:
        await tso.next()
        pd.members[0].answers.clear()
        with pytest.raises(UpstreamUnavailable, match=r"given up after 1\.2 s"):
            await tso.next()


async def test_time_that_goes_back_is_refused_until_it_has_passed_what_was_told() -> None:
    async with pd_cluster() as pd, telling(pd) as tso:
        before = await tso.next()
        pd.step_clock(-60_000)
        with pytest.raises(UpstreamUnavailable, match=r"time went back: .* 60 s before"):
            await tso.next()
        assert "went back" in tso.statistics().trouble
        assert tso.statistics().went_back == 1
        pd.step_clock(+60_001)
        assert await tso.next() > before
        assert tso.statistics().trouble == ""


async def test_a_step_forward_is_taken() -> None:
    async with pd_cluster() as pd, telling(pd) as tso:
        before = await tso.next()
        pd.step_clock(+3_600_000)
        assert physical_ms(await tso.next()) == physical_ms(before) + 3_600_000


async def test_a_pd_far_behind_the_binlogs_is_refused() -> None:
    async with pd_cluster() as pd, telling(pd) as tso:
        now = await tso.next()
        tso.observe(Tso(now + (1_000 << 18)))  # a TiDB with a clock of its own
        assert await tso.next() > now
        tso.observe(Tso(now + (60_000 << 18)))  # PD's disk was lost, and its clock is behind
        with pytest.raises(UpstreamUnavailable, match="went back"):
            await tso.next()


async def test_slow_answers_are_counted_and_the_time_is_looked_at_by_itself() -> None:
    async with pd_cluster() as pd, telling(pd) as tso:
        pd.tso_delay_s = 0.15
        await tso.next()
        assert tso.statistics().slow >= 1
        pd.tso_delay_s = 0.0
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(tso.run())
            await eventually(lambda: tso.statistics().requests > 3)
            looking.cancel()
        assert 0 <= (tso.statistics().age_s or 0) < 60
