"""Workloads and recordings over a real connection, also when the server goes away in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from tests.support.memory_pump import Cluster, MemoryPump
from tests.support.ports import free_port
from tests.workload import recording
from tests.workload.feed import Feeder
from tests.workload.generator import Options, Workload
from tests.workload.timeline import Record

RECORDINGS = Path(__file__).parents[1] / "recordings"


class Served:
    """A Pump in memory behind a real port; `restart` drops every connection."""

    def __init__(self) -> None:
        self.pump = MemoryPump()
        self._cluster = Cluster()
        self.target = ("127.0.0.1", free_port())

    async def start(self) -> None:
        self._service = PumpService(self.pump, self._cluster)
        self._server = Server([self._service])
        self.target = await self._server.start(*self.target)

    async def stop(self) -> None:
        await self._service.close()
        await self._server.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.start()
    yield served
    await served.stop()


@pytest.mark.parametrize(
    "name", ["few", *(pytest.param(name, marks=pytest.mark.soak) for name in ("keys", "types"))]
)
async def test_a_recording_arrives_whole(served: Served, name: str) -> None:
    statistics = await recording.feed_recording(RECORDINGS / name, served.target)
    expected = [payload for _, payload in recording.payloads(RECORDINGS / name)]
    assert statistics.acknowledged == len(expected)
    assert sorted(served.pump.stored) == sorted(expected)


async def test_what_was_not_acknowledged_comes_again_after_a_restart(served: Served) -> None:
    workload = Workload(Options(seed=2, transactions=400, sessions=64))
    sent: list[bytes] = []

    async def records() -> AsyncIterator[Record]:
        for number, record in enumerate(workload.records()):
            sent.append(record.payload)
            if number == 300:
                await served.stop()
                await served.start()
            yield record

    limits = ClientLimits(prewrite_retry_interval_s=0.01, outcome_retry_interval_s=0.01)
    async with PumpClient(*served.target, cluster_id=7, limits=limits) as client:
        feeder = Feeder([client])
        async with asyncio.timeout(120):
            await feeder.feed(records())
    assert feeder.statistics().acknowledged == len(sent)
    assert set(served.pump.stored) == set(sent)
