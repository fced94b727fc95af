"""A node with a commit that came below what is replicated: it says so, stops, and can go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import cast

import pytest

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.statistics import DrainerState
from binlogd.errors import ConfigError
from binlogd.node.problems import problems
from binlogd.node.replication import FirstContact, Replication
from binlogd.ports import BinlogSource
from binlogd.pump.pump import Pump
from binlogd.tso import Tso
from tests.contract.memory_sink import MemorySink, MemoryStore
from tests.integration.drainer.test_drainer import CREATE, DATABASE
from tests.integration.node.test_bulkhead import ddl, insert
from tests.integration.node.test_node import Standing, standing
from tests.support.job_history import MemoryHistory
from tests.support.memory_pump import MemoryPump
from tests.support.pump_world import eventually


def replication(alone: Standing, store: MemoryStore, *others: BinlogSource) -> Replication:
    ports = DrainerPorts(
        sources=[*alone.pump.sources(), *others],
        history=MemoryHistory([DATABASE, CREATE]),
        make_sink=lambda: MemorySink(store),
        relay=None,
        late=alone.pump.late,
        table_filter=TableFilter(ignored_commit_ts=alone.node.skips.commit_tss),
        on_saved=lambda _: None,
    )
    options = DrainerOptions(dialect=Dialect.MYSQL, checkpoint_interval_s=0.002)

    async def ready() -> None:
        """There is something to replicate."""

    def backoff() -> Backoff:
        return Backoff(Random(1), first_s=0.001, max_s=0.01)

    first = FirstContact(ready, ready, backoff())
    return Replication(lambda: Drainer(ports, backoff(), options), lambda: None, first, backoff())


async def test_replication_stops_at_a_late_commit_until_it_is_passed_over(tmp_path: Path) -> None:
    async with standing(tmp_path) as alone:
        node, store = alone.node, MemoryStore()
        node.drainer = drainer = replication(alone, store)
        async with asyncio.TaskGroup() as group:
            group.create_task(drainer.run())
            await ddl(alone.pump, 1, 2, "CREATE DATABASE `shop`;")
            await ddl(alone.pump, 2, 3, "CREATE TABLE `t` (`id` INT,`v` BIGINT);")
            await insert(alone.pump, 20, 1)
            await eventually(lambda: drainer.statistics().applied_ts == 20)
            assert (await node.skip(15, "it is not late")).code != 200

            await insert(alone.pump, 15, 2)
            await eventually(lambda: drainer.statistics().state is DrainerState.STUCK)
            failure = drainer.statistics().failure
            assert failure is not None
            assert (failure.kind, failure.skip_ts) == ("LateCommit", 15)
            assert "(start_ts 14) came below the watermark of shard-" in failure.message
            status = node.own_status()
            assert [each.commit_ts for each in status.first_late] == [15]
            found = [each for each in problems(status) if "too late" in each.title]
            assert [each.commit_ts for each in found] == ["15"]

            assert (await node.skip(15, "brought over by hand")).code == 200
            await insert(alone.pump, 30, 3)
            await eventually(lambda: drainer.statistics().applied_ts == 30)
            assert node.own_status().late_commits == 0
            await drainer.end()


async def test_a_late_commit_that_came_by_another_pump_is_dealt_with(tmp_path: Path) -> None:
    """TiDB wrote a prewrite here, heard nothing, wrote it there, and committed there."""
    async with standing(tmp_path) as alone:
        node, store, other = alone.node, MemoryStore(), MemoryPump()
        node.drainer = drainer = replication(alone, store, other.source)
        async with asyncio.TaskGroup() as group:
            group.create_task(drainer.run())
            await ddl(alone.pump, 1, 2, "CREATE DATABASE `shop`;")
            await ddl(alone.pump, 2, 3, "CREATE TABLE `t` (`id` INT,`v` BIGINT);")
            await insert(cast(Pump, other), 15, 2)
            await insert(alone.pump, 20, 1)
            await insert(cast(Pump, other), 20, 1)
            await eventually(lambda: drainer.statistics().applied_ts == 20)
            await insert(alone.pump, 15, 2)
            await eventually(lambda: drainer.statistics().sessions_begun > 1)
            await eventually(lambda: node.own_status().late_commits == 0)
            await insert(alone.pump, 30, 3)
            await insert(cast(Pump, other), 30, 3)
            await eventually(lambda: drainer.statistics().applied_ts == 30)
            await drainer.end()
        assert sum(store.tables["shop.t"].values()) == 3, "once each"


async def test_a_late_commit_that_replication_has_not_reached_comes_in_its_place(
    tmp_path: Path,
) -> None:
    async with standing(tmp_path) as alone:
        node, store = alone.node, MemoryStore(checkpoint=Checkpoint(Tso(3), schema_version=2))
        await insert(alone.pump, 20, 1)
        await insert(alone.pump, 15, 2)
        await eventually(lambda: node.own_status().late_commits == 1)
        node.drainer = drainer = replication(alone, store)
        async with asyncio.TaskGroup() as group:
            group.create_task(drainer.run())
            await eventually(lambda: drainer.statistics().applied_ts == 20)
            assert node.own_status().late_commits == 0
            await drainer.end()
        assert sum(store.tables["shop.t"].values()) == 2


async def test_a_node_that_only_receives_is_told_that_somebody_has_dealt_with_it(
    tmp_path: Path,
) -> None:
    async with standing(tmp_path) as alone:
        await insert(alone.pump, 20, 1)
        await insert(alone.pump, 15, 2)
        await eventually(lambda: alone.node.own_status().late_commits == 1)
        assert (await alone.node.skip(20, "it is not late")).code != 200
        with pytest.raises(ConfigError, match="reason is missing"):
            await alone.node.skip(15, " ")
        assert (await alone.node.skip(15, "compared")).code == 200
        assert alone.node.own_status().late_commits == 0
