"""The lease that keeps a cluster from collecting what a Drainer may read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from binlogd.tso import Tso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.cluster import GcHold, HoldLimits
from binlogd.upstream.pd.leader import PdLimits
from tests.support.pd_cluster import PdCluster, pd_cluster
from tests.support.pump_world import eventually

QUICK = HoldLimits(ttl_s=300, renew_s=0.05, retry_s=0.02)


@asynccontextmanager
async def holding(pd: PdCluster) -> AsyncIterator[GcHold]:
    client = PdClient(pd.addresses, limits=PdLimits(question_s=1.0, pause_s=0.01))
    await client.cluster_id(patience_s=60)
    hold = GcHold(client, "binlogd a:8250", QUICK)
    async with asyncio.TaskGroup() as group:
        renewing = group.create_task(hold.run())
        try:
            yield hold
        finally:
            renewing.cancel()
            await client.close()


async def test_what_is_needed_is_held_from_the_checkpoint_on_and_moves_with_it() -> None:
    async with pd_cluster() as pd, holding(pd) as hold:
        pd.services = {b"gc_worker": 100}
        await asyncio.sleep(0.02)
        assert pd.services == {b"gc_worker": 100}, "nothing is needed yet"
        hold.keep_from(Tso(500))
        await eventually(lambda: pd.services.get(b"binlogd a:8250") == 500)
        hold.keep_from(Tso(700))
        hold.keep_from(Tso(600))  # a checkpoint does not go back
        await eventually(lambda: pd.services.get(b"binlogd a:8250") == 700)
        assert hold.statistics().trouble == ""
    assert pd.services[b"binlogd a:8250"] == 700, "it runs out by itself: a restart finds it all"


async def test_what_is_collected_already_is_said() -> None:
    async with pd_cluster() as pd, holding(pd) as hold:
        pd.services = {b"gc_worker": 1000}
        hold.keep_from(Tso(500))
        await eventually(lambda: "collects up to 1000 already" in hold.statistics().trouble)


async def test_a_pd_that_is_away_is_asked_again_until_it_is_back() -> None:
    async with pd_cluster() as pd, holding(pd) as hold:
        await pd.members[0].stop()
        hold.keep_from(Tso(500))
        await eventually(lambda: hold.statistics().errors >= 2)
        await pd.members[0].start()
        await eventually(lambda: pd.services.get(b"binlogd a:8250") == 500)
        await eventually(lambda: hold.statistics().trouble == "")
