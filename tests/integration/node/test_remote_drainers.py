"""Drainers elsewhere: what they still need of a Pump is not deleted, and it does not go offline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from binlogd.node.receiving import UNREAD, RemoteDrainers
from binlogd.ports import NodeStatus
from binlogd.pump.pump import Pump
from binlogd.tso import NO_TS
from binlogd.upstream.entry import DRAINER
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.registry import NodeRegistry
from binlogd.wire.generated.etcdserverpb import DeleteRangeRequest
from tests.integration.pump.test_garbage import DAY, SMALL, a_month, gc_ts
from tests.support.pump_world import World, at, eventually, posix_world


@dataclass
class Place:
    world: World
    pump: Pump
    registry: NodeRegistry
    keyspace: KeyspaceStore
    drainers: RemoteDrainers

    def holds(self) -> dict[str, int]:
        return {hold.name: hold.ts for hold in self.pump.statistics().gc.holds}

    async def says(self, node_id: str, position: int, state: str = "online") -> None:
        entry = NodeStatus(DRAINER, node_id, f"{node_id}:8249", state, at(position), NO_TS)
        await self.registry.register(entry)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.drainers.run())
            await eventually(lambda: UNREAD not in self.holds())
            yield
            task.cancel()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with posix_world(tmp_path) as world, world.pump(SMALL, shards=1) as pump:
        keyspace = await KeyspaceStore.open(tmp_path / "upstream.db", Random(1))
        registry = NodeRegistry(keyspace)
        yield Place(world, pump, registry, keyspace, RemoteDrainers(pump, registry, "mine"))
        await keyspace.close()


async def test_nothing_goes_before_it_is_known_who_reads(place: Place) -> None:
    assert place.holds() == {UNREAD: NO_TS}
    async with place.following():
        assert place.holds() == {}


async def test_every_drainer_but_our_own_holds_what_is_behind_its_checkpoint(place: Place) -> None:
    await place.says("mine", 1)
    await place.says("far", 7)
    await place.says("resting", 3, "paused")
    await place.says("gone", 2, "offline")
    async with place.following():
        assert place.holds() == {"drainer far": at(7), "drainer resting": at(3)}
        await place.says("far", 9)
        await eventually(lambda: place.holds()["drainer far"] == at(9))
        await place.says("resting", 3, "offline")
        await eventually(lambda: place.holds() == {"drainer far": at(9)})


async def test_a_drainer_that_vanishes_or_a_registry_that_does_holds_as_before(
    place: Place,
) -> None:
    await place.says("far", 7)
    async with place.following():
        everybody = DeleteRangeRequest(key=b"/", range_end=b"0")
        await place.keyspace.delete_range(everybody)
        await place.says("other", 8)
        await eventually(lambda: "drainer other" in place.holds())
        assert place.holds()["drainer far"] == at(7)
        await place.keyspace.close()
        await asyncio.sleep(0)
        assert place.holds() == {"drainer far": at(7), "drainer other": at(8)}


async def test_garbage_stays_until_the_last_drainer_has_come_past_it(place: Place) -> None:
    await place.says("far", 1 * DAY)
    async with place.following():
        place.world.clock.now_ms += 30 * 86_400_000
        await a_month(place.pump)
        await place.pump.caretaker.collect()
        assert gc_ts(place.pump) <= at(1 * DAY)
        assert place.pump.statistics().gc.held_by == ("drainer far",)
        await place.says("far", 20 * DAY)
        await eventually(lambda: place.holds()["drainer far"] == at(20 * DAY))
        await place.pump.caretaker.collect()
        assert at(1 * DAY) < gc_ts(place.pump) <= at(20 * DAY)
