"""A Pump whose time is PD's: what it receives it keeps and serves, whatever becomes of PD; what it
says of the time is never ahead of the writers, and never goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.tso import Tso, physical_ms
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.leader import PdLimits
from binlogd.upstream.pd.tso import PdTso
from binlogd.upstream.txn_status import LocalTxnStatus
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from tests.support.pd_cluster import PdCluster, pd_cluster
from tests.support.pump_world import eventually, written

QUICK = PdLimits(call_s=1.0, connect_s=1.0, question_s=1.0, pause_s=0.01, tso_s=0.5, tso_call_s=0.5)


@dataclass
class Receiving:
    """A Pump, its PD, and a TiDB that takes its time from the same PD."""

    pump: Pump
    pd: PdCluster
    tso: PdTso

    def now(self) -> Tso:
        stamp = self.pd.timestamps(1)
        return Tso((stamp.physical << 18) + stamp.logical)

    async def transaction(self) -> Tso:
        start_ts = self.now()
        await written(self.pump, prewrite_binlog(start_ts, prewrite_key=b"k"))
        commit_ts = self.now()
        await written(self.pump, commit_binlog(start_ts, commit_ts))
        return commit_ts


@asynccontextmanager
async def receiving(directory: Path) -> AsyncIterator[Receiving]:
    async with pd_cluster() as pd:
        client = PdClient(pd.addresses, limits=QUICK)
        await client.cluster_id(patience_s=60)
        tso, disk = PdTso(client), PosixDisk()
        pump = await Pump.open(
            directory,
            shards=2,
            tso=tso,
            txn_status=LocalTxnStatus(tso, rolls_back_abandoned=False),
            clock=WallClock(),
            disk=disk,
            options=PumpOptions(free_bytes_min=1, fake_interval_s=0.05),
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump.run())
                yield Receiving(pump, pd, tso)
                await pump.close()
        finally:
            await tso.close()
            await client.close()
            disk.close()


async def test_without_writes_the_watermark_follows_pd(tmp_path: Path) -> None:
    async with receiving(tmp_path) as node:
        commit_ts = await node.transaction()
        await eventually(lambda: node.pump.max_commit_ts > commit_ts)
        node.pd.step_clock(+60_000)
        later_ms = physical_ms(commit_ts) + 60_000
        await eventually(lambda: physical_ms(node.pump.max_commit_ts) >= later_ms)
        assert node.pump.max_commit_ts < node.now(), "and is never ahead of the next writer"


async def test_while_pd_is_away_what_is_written_is_served_and_then_time_goes_on(
    tmp_path: Path,
) -> None:
    async with receiving(tmp_path) as node:
        await node.transaction()
        await node.pd.members[0].stop()
        for _ in range(20):  # TiDBs go on for a moment with what timestamps they have
            newest = await node.transaction()
            await eventually(lambda newest=newest: node.pump.max_commit_ts >= newest)  # type: ignore[misc] # of this round
        await eventually(lambda: node.tso.statistics().trouble != "")
        node.pd.step_clock(+3_600_000)  # an hour
        await node.pd.members[0].start()
        hour_ms = physical_ms(newest) + 3_600_000
        await eventually(lambda: physical_ms(node.pump.max_commit_ts) >= hour_ms)
        assert node.tso.statistics().trouble == ""


async def test_a_clock_that_steps_back_never_takes_the_watermark_along(tmp_path: Path) -> None:
    async with receiving(tmp_path) as node:
        await node.transaction()
        await eventually(lambda: node.tso.statistics().requests > 0)
        node.pd.step_clock(-600_000)
        await eventually(lambda: node.tso.statistics().went_back > 0)
        before = node.pump.max_commit_ts
        await eventually(lambda: node.tso.statistics().went_back > 2)
        assert node.pump.max_commit_ts == before
        assert "time went back" in node.tso.statistics().trouble
        node.pd.step_clock(+600_001)
        await eventually(lambda: node.pump.max_commit_ts > before)
        assert node.tso.statistics().trouble == ""
        assert await node.transaction() > before
        assert sum(shard.late_commits for shard in node.pump.statistics().shards) == 0
