"""One node as its operators see it: the status document, its registry entries, who it warns of."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from binlogd.errors import ConfigError, LogFailed, RecordTooLarge, UpstreamUnavailable
from binlogd.host.disk import PosixDisk
from binlogd.node.assembly import identity
from binlogd.node.closing import Closing
from binlogd.node.membership import Identity, Membership, mark
from binlogd.node.operations import Node
from binlogd.node.receiving import Receiving
from binlogd.ports import NodeStatus, Registry
from binlogd.pump.pump import Pump
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.state import Action
from binlogd.serving.answers import Reply
from binlogd.serving.finder import Finder
from binlogd.serving.routes.application import application
from binlogd.serving.routes.events import Hub, event
from binlogd.serving.routes.guard import Guard
from binlogd.serving.server import Server
from binlogd.settings.config import parse
from binlogd.settings.operators import operators
from binlogd.settings.setup import Setup
from binlogd.tso import NO_TS, Tso, physical_ms
from binlogd.upstream.entry import DRAINER, PUMP
from binlogd.upstream.store import SkipList, UpstreamStore
from tests.support.memory_pump import Cluster
from tests.support.nodes import own_registry
from tests.support.pump_world import (
    PATIENCE_S,
    ROOMY,
    World,
    at,
    commit,
    eventually,
    posix_world,
    prewrite,
    rollback,
    written,
)
from tests.support.recordings_reader import RECORDINGS

DAY = 86_400_000 << 18


@dataclass
class Standing:
    world: World
    node: Node
    membership: Membership
    store: UpstreamStore

    @property
    def pump(self) -> Pump:
        assert self.node.receiving is not None
        return self.node.receiving.pump

    @property
    def purged(self) -> Counter[str]:
        assert self.node.receiving is not None
        return self.node.receiving.purged

    def break_registry(self) -> None:
        """As a file that somebody has tampered with."""
        path = self.world.directory / "upstream.db"
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE keyspace_marks")
        connection.close()

    async def drainer(self, node_id: str, position: int, state: str = "online") -> None:
        status = NodeStatus(DRAINER, node_id, f"{node_id}:8249", state, at(position), NO_TS)
        await self.node.registry.register(status)


@asynccontextmanager
async def standing(directory: Path, segment_bytes_max: int = 1 << 20) -> AsyncIterator[Standing]:
    options = replace(ROOMY, segment_bytes_max=segment_bytes_max)
    async with (
        AsyncExitStack() as hosts,
        posix_world(directory) as world,
        world.pump(options, shards=2) as pump,
    ):
        store = await UpstreamStore.open(directory / "upstream.db")
        registry = await hosts.enter_async_context(own_registry(directory))
        cluster = Cluster(7)
        node = Node(
            identity=Identity("pump0", "pump0-drainer", "10.0.0.1:8250"),
            receiving=Receiving(pump, PumpService(pump, cluster)),
            cluster=cluster,
            registry=registry,
            tso=world.times,
            clock=world.clock,
            drainer=None,
            skips=await SkipList.open(store, world.clock),
            reload_now=lambda _: Reply("nothing to take has changed", 200),
            finder=Finder([directory]),
        )
        yield Standing(world, node, Membership(node.registry, node.entries), store)
        await store.close()


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Standing]:
    async with standing(tmp_path) as made:
        yield made


# --- the status document ---------------------------------------------------------------------


async def test_the_status_names_every_pump_by_id_and_a_timestamp_of_now(alone: Standing) -> None:
    for name in ("pump2", "pump1"):
        other = NodeStatus(PUMP, name, f"{name}:8250", "paused", Tso(1), Tso(2))
        await alone.node.registry.register(other)
    alone.world.times.says = at(1024)
    status = await alone.node.status()
    assert list(status.status or ()) == ["pump0", "pump1", "pump2"]
    assert (status.commit_ts, status.error) == (at(1024), "")


async def test_a_registry_that_fails_is_said_in_its_place(alone: Standing) -> None:
    alone.break_registry()
    status = await alone.node.status()
    assert (status.status, status.commit_ts) == (None, 0)
    assert "no such table: keyspace_marks" in status.error
    assert status.state == "online", "the rest is told all the same"


async def test_a_time_source_that_fails_is_said_in_its_place(alone: Standing) -> None:
    alone.world.times.is_down = True
    status = await alone.node.status()
    assert (list(status.status or ()), status.commit_ts) == (["pump0"], 0)
    assert status.error == "no time today"


async def test_a_binlog_that_is_too_large_to_be_shown_is_not_read(alone: Standing) -> None:
    await written(alone.pump, prewrite(1, 500))
    with pytest.raises(RecordTooLarge):
        await alone.pump.read_binlog(at(1), bytes_max=100)
    assert "prewrite_key" in await alone.node.binlog_text(at(1))


# --- what binlogctl asks for -----------------------------------------------------------------


async def test_a_close_is_answered_with_the_bytes_that_binlogctl_was_given(
    alone: Standing,
) -> None:
    with gzip.open(RECORDINGS / "wire" / "binlogctl-to-pump.jsonl.gz") as lines:
        said = [json.loads(line) for line in lines]
    (close,) = [each for each in said if each["dir"] == "http-response"]
    method, path = close["method"].split()
    guard = Guard(lambda: "", lambda: operators(["127.0.0.1"], ()))
    server = Server([], application(alone.node, guard, Hub(lambda: event("past", b"[]"))))
    host, port = await server.start("127.0.0.1", 0)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://{host}:{port}{path}") as answer,
        ):
            assert f"{answer.status} {answer.reason}" == close["status"]
            assert (await answer.read()).hex() == close["hex"]
        assert alone.node.stopping.is_set()
    finally:
        await server.close()


# --- its name --------------------------------------------------------------------------------


async def test_the_name_of_the_first_start_is_kept_and_counts(tmp_path: Path) -> None:
    disk = PosixDisk(threads=1)

    async def names(text: str = "") -> Identity:
        given = f'data-dir = "{tmp_path}"\naddr = "127.0.0.1:8250"\n{text}'
        return await identity(Setup(parse(given, "t")), disk)

    try:
        first = await names()
        assert first.pump == f"{socket.gethostname()}:8250"
        assert first.drainer == f"{first.pump}-drainer"
        assert first.host == "127.0.0.1:8250"
        (tmp_path / ".node").write_text("  kept\n")
        assert (await names()).pump == "kept"
        with capture_logs() as logged:
            assert (await names('node-id = "kept"')).pump == "kept"
            assert logged == []
            assert (await names('node-id = "given"')).pump == "given"
        (renamed,) = logged
        assert (renamed["event"], renamed["before"]) == ("node_renamed", "kept")
        assert "binlogd nodes kept --mark offline" in renamed["consequence"]
        with pytest.raises(ConfigError, match="is the name of the Pump already"):
            await names('[drainer]\nnode-id = "kept"')
        (tmp_path / ".node").unlink()
        (tmp_path / ".node").mkdir()
        with pytest.raises(LogFailed, match=r"\.node"):
            await names()
    finally:
        disk.close()


# --- the registry ----------------------------------------------------------------------------


async def test_the_entry_is_kept_fresh_and_a_registry_that_fails_meanwhile_is_survived(
    alone: Standing,
) -> None:
    async def position() -> Tso:
        node = await alone.node.registry.node(PUMP, "pump0")
        return node.max_commit_ts if node else NO_TS

    async with asyncio.TaskGroup() as group:
        beating = group.create_task(alone.membership.keep_fresh(0.01))
        await written(alone.pump, prewrite(1), commit(1, 2))
        async with asyncio.timeout(PATIENCE_S):
            while await position() < at(2):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        alone.break_registry()
        await asyncio.sleep(0.03)
        assert not beating.done()
        beating.cancel()


async def test_a_node_that_lives_puts_right_what_the_registry_says_of_it(alone: Standing) -> None:
    """As with the original's update-pump: an entry is what its node says."""
    await alone.node.registry.keep(alone.node.entries())
    await mark(alone.node.registry, "pump0", "offline")
    marked = await alone.node.registry.node(PUMP, "pump0")
    assert marked is not None
    assert marked.state == "offline"
    await alone.membership.refresh()
    again = await alone.node.registry.node(PUMP, "pump0")
    assert again is not None
    assert again.state == "online"


class LosesAnAnswer:
    """A registry whose answer to the first write is lost: it has happened all the same."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._is_lost = registry, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    async def keep(self, nodes: Sequence[NodeStatus]) -> None:
        await self._registry.keep(nodes)
        if not self._is_lost:
            self._is_lost = True
            raise UpstreamUnavailable("etcd: Connection lost")


async def test_a_pump_whose_registration_had_no_answer_still_tells_the_drainers(
    alone: Standing,
) -> None:
    gone = NodeStatus(DRAINER, "gone", "127.0.0.1:1", "online", NO_TS, NO_TS)
    await alone.node.registry.register(gone)
    said: list[str] = []

    async def say(reason: str) -> None:
        said.append(reason)

    registry: Any = LosesAnAnswer(alone.node.registry)
    membership = Membership(registry, alone.node.entries)
    with pytest.raises(ConfigError, match="fail to notify all living drainer"):
        await membership.patiently(membership.announce, say)
    assert said == ["the registry does not answer: etcd: Connection lost"]


async def test_why_the_registry_does_not_hear_of_this_node_is_in_its_status(
    alone: Standing, tmp_path: Path
) -> None:
    alone.node.membership = membership = Membership(alone.node.registry, alone.node.entries)
    (tmp_path / "upstream.db").rename(tmp_path / "elsewhere.db")
    with capture_logs() as lines:
        for _ in range(2):
            await membership.refresh()
            assert "upstream.db: the file was removed" in alone.node.own_status().registry_error
    assert [each["event"] for each in lines].count("heartbeat_failed") == 1
    (tmp_path / "elsewhere.db").rename(tmp_path / "upstream.db")
    await membership.refresh()
    assert alone.node.own_status().registry_error == ""


async def test_a_pump_that_was_offline_tells_the_drainers_as_a_new_one_does(
    alone: Standing,
) -> None:
    """They have let it go, and wait for it no more; one that was paused they have kept."""
    registry = alone.node.registry
    await registry.register(NodeStatus(DRAINER, "gone", "127.0.0.1:1", "online", NO_TS, NO_TS))
    for state, has_to_tell in (("paused", False), ("offline", True)):
        await registry.keep(alone.node.entries())
        await mark(registry, "pump0", state, [PUMP])
        assert await Membership(registry, alone.node.entries).has_to_tell() is has_to_tell


async def test_a_drainer_that_garbage_collection_has_overtaken_is_named(tmp_path: Path) -> None:
    async with standing(tmp_path, segment_bytes_max=1_000) as here:
        await here.node.look_at_drainers()
        assert not here.purged, "nothing is deleted yet"
        for day in range(31):
            start = day * DAY + 1
            await written(here.pump, prewrite(start, 200), commit(start, start + 1))
        here.world.clock.now_ms += 60 * 86_400_000

        def has_collected() -> bool:
            return max(shard.gc_ts for shard in here.pump.statistics().shards) > NO_TS

        async with asyncio.timeout(120):
            while not has_collected():  # what is not filed yet stays until the next round
                await here.pump.caretaker.collect()
                await asyncio.sleep(0.01)
        await here.drainer("late", DAY)
        await here.drainer("gone", DAY, "offline")
        await here.drainer("fine", 30 * DAY)
        await here.node.look_at_drainers()
        await here.node.look_at_drainers()
        assert here.purged == {"late": 2}
        said = here.node.metrics().decode()
        assert 'binlog_pump_detected_drainer_binlog_purge_count{id="late"} 2' in said
        gone = sorted(shard.gc_ts for shard in here.pump.statistics().shards)
        assert here.node.receiving is not None
        told = here.node.own_status().gc.gc_ts
        assert told == gone[-1], "what lies behind it can be read of every shard"
        assert f"binlog_pump_storage_gc_ts {physical_ms(gone[-1])}" in said
        assert f"binlog_pump_storage_done_gc_ts {physical_ms(gone[0])}" in said


# --- closing ---------------------------------------------------------------------------------


async def test_who_writes_while_the_pump_begins_to_close_is_waited_for_too(
    alone: Standing,
) -> None:
    answers: dict[int, object] = {}

    async def write(number: int) -> None:
        (answers[number],) = await alone.pump.write([prewrite(number, 10_000)])

    async def nobody() -> list[NodeStatus]:
        return []

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for number in range(1, 200):
            group.create_task(write(number))
            if number == 100:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        alone.pump.request(Action.CLOSE)
        closing = group.create_task(Closing(alone.pump, nobody).wait())
        await eventually(lambda: len(answers) == 199)
        taken = [number for number, answer in answers.items() if answer is None]
        assert taken, "some were admitted before the request"
        for number in taken[:-1]:
            await written(alone.pump, rollback(number))
        await asyncio.sleep(0.05)
        assert not closing.done(), "one has no outcome yet"
        await written(alone.pump, commit(taken[-1], 1000))


async def test_a_close_goes_on_when_registry_and_time_come_back(alone: Standing) -> None:
    is_down = True

    async def consumers() -> list[NodeStatus]:
        if is_down:
            raise UpstreamUnavailable("etcd is away")
        return []

    await written(alone.pump, prewrite(1), commit(1, 2))
    alone.world.times.is_down = True
    alone.pump.request(Action.CLOSE)
    closing = Closing(alone.pump, consumers)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(closing.wait())
        await asyncio.sleep(0.02)
        alone.world.times.is_down = False
        await eventually(lambda: closing.reason == "the registry cannot be read: etcd is away")
        assert not waiting.done()
        is_down = False
    assert closing.reason == ""


async def test_waiting_to_close_can_be_cancelled(alone: Standing) -> None:
    async def consumers() -> list[NodeStatus]:
        return [NodeStatus(DRAINER, "far", "far:8249", "paused", NO_TS, NO_TS)]

    await written(alone.pump, prewrite(1), commit(1, 2))
    alone.pump.request(Action.CLOSE)
    closing = Closing(alone.pump, consumers)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(closing.wait())
        await eventually(
            lambda: closing.reason == f"drainer far (paused) has come to 0, not yet to {at(2)}"
        )
        waiting.cancel()
    assert waiting.cancelled()


async def test_an_offline_drainer_holds_nobody(alone: Standing) -> None:
    async def consumers() -> list[NodeStatus]:
        return [NodeStatus(DRAINER, "far", "far:8249", "offline", NO_TS, NO_TS)]

    await written(alone.pump, prewrite(1), commit(1, 2))
    alone.pump.request(Action.CLOSE)
    async with asyncio.timeout(120):
        await Closing(alone.pump, consumers).wait()
