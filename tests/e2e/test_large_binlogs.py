"""A large transaction passes a real process that never holds it: received, logged, served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.client.pump_client import PumpClient
from binlogd.tso import Tso
from tests.support.appliance import Appliance
from tests.support.large_binlogs import (
    CLUSTER,
    announce,
    forget_peak,
    memory_bytes,
    pull_large,
    raw_channel,
    write_large,
)
from tests.support.pump_world import at, commit, prewrite

MIB = 1 << 20
SLACK = 40 * MIB
"""What a process takes for all else: windows of connections, page tables, threads that begin."""


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    made = Appliance(tmp_path)
    yield made
    made.close()


def configure(appliance: Appliance, message_bytes: int) -> None:
    appliance.configure("[drainer]\nenabled = false\n")
    with appliance.config_file.open("a") as file:
        file.write(f'max-message-size = {message_bytes}\nmemory-budget = "32 MiB"\n')


class Watched:
    """The memory of a running appliance."""

    def __init__(self, appliance: Appliance) -> None:
        self.pid = appliance.pid
        self._before = memory_bytes(self.pid, "VmRSS")
        forget_peak(self.pid)

    def grown(self) -> int:
        """By how many bytes it was larger than at the start, at most."""
        return memory_bytes(self.pid, "VmHWM") - self._before


async def one_large_transaction(appliance: Appliance, value_bytes: int) -> tuple[int, int]:
    """Writes it and pulls it from two sides; the most memory that each took."""
    client = PumpClient(*appliance.target, cluster_id=CLUSTER)
    channels = [raw_channel(*appliance.target) for _ in range(2)]
    try:
        async with client:
            await client.write(prewrite(1))
            await client.write(commit(1, 2))
            watched = Watched(appliance)
            await write_large(channels[0], at(10), value_bytes)
            await client.write(commit(10, 20))
            written = watched.grown()
            watched = Watched(appliance)
            async with asyncio.TaskGroup() as group:
                for channel in channels:
                    group.create_task(pull_large(channel, Tso(at(2)), value_bytes))
            return written, watched.grown()
    finally:
        for channel in channels:
            channel.close()


@pytest.mark.parametrize(
    "size_mib",
    [96, pytest.param(1000, marks=pytest.mark.soak)],
)
async def test_a_large_transaction_is_held_neither_on_its_way_in_nor_on_its_way_out(
    appliance: Appliance, size_mib: int
) -> None:
    configure(appliance, (size_mib + 1) * MIB)
    appliance.start()
    written, pulled = await one_large_transaction(appliance, size_mib * MIB)
    assert written <= SLACK
    assert pulled <= SLACK  # two pullers at once
    assert appliance.stop() == 0


async def test_several_large_writers_at_once_take_little_memory(appliance: Appliance) -> None:
    size_mib, writers = 40, 6
    configure(appliance, (size_mib + 1) * MIB)
    appliance.start()
    channels = [raw_channel(*appliance.target) for _ in range(2)]
    async with PumpClient(*appliance.target, cluster_id=CLUSTER) as client:
        await client.write(prewrite(1))
        await client.write(commit(1, 2))
        watched = Watched(appliance)
        async with asyncio.TaskGroup() as group:
            for number in range(writers):  # several share a connection
                channel = channels[number % 2]
                group.create_task(write_large(channel, at(10 + number), size_mib * MIB))
        for number in range(writers):
            await client.write(commit(10 + number, 30 + number))
        assert watched.grown() <= SLACK  # of 240
    for channel in channels:
        channel.close()


async def test_above_the_limit_the_answer_is_the_originals(appliance: Appliance) -> None:
    configure(appliance, 4 * MIB)
    appliance.start()
    channel = raw_channel(*appliance.target)
    with pytest.raises(GRPCError) as refused:
        await announce(channel, 5 * MIB)
    assert refused.value.status is Status.RESOURCE_EXHAUSTED
    words = f"grpc: received message larger than max ({5 * MIB} vs. {4 * MIB})"
    assert refused.value.message == words
    channel.close()
