"""Machines with a disk and a life: a Pump with its server, a Drainer with its relay log.

A node is put together as `binlogd.app` does it, from the same parts; what it asks of the world is
simulated. It runs, is killed, loses its power, is stopped or fails, and begins again on the disk
that it left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from binlogd.client.registered_pumps import Horizon, RegisteredPumps
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.ports import DrainerOptions, DrainerPorts
from binlogd.drainer.schema_log import SchemaLog
from binlogd.drainer.sink import Sink
from binlogd.errors import BinlogdError
from binlogd.node.membership import Membership
from binlogd.node.receiving import RemoteDrainers
from binlogd.node.replication import FirstContact, Replication
from binlogd.ports import NodeStatus
from binlogd.pump.pump import Pump, PumpOptions
from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.service import PumpService
from binlogd.pump.state import Action, NodeState
from binlogd.relay.log import RelayWriter
from binlogd.serving.server import Server
from binlogd.tso import NO_TS
from binlogd.upstream.entry import DRAINER, PUMP
from tests.sim.disk import SimDisk
from tests.sim.loop import EPOCH_MS, SimLoop
from tests.sim.network import Machine, SimNetwork
from tests.sim.pulls import JudgedSources
from tests.sim.upstream import SimHistory, SimPd, SimTikv

PORT = 8250
HEARTBEAT_S = 2.0


@dataclass
class Surroundings:
    """What all nodes of a world share."""

    loop: SimLoop
    network: SimNetwork
    pd: SimPd
    tikv: SimTikv
    rng: random.Random


class SimClock:
    """The wall clock of a machine; it may be wrong."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.off_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.off_ms


@dataclass
class Node:
    """One machine, through all lives of what runs on it."""

    world: Surroundings
    name: str
    host: str
    disk: SimDisk
    lives: int = 0
    endings: list[str] = field(default_factory=list)
    """Why lives ended that nobody ended."""
    machine: Machine | None = None
    _life: asyncio.Task[None] | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.clock = SimClock(self.world.loop)

    @property
    def is_up(self) -> bool:
        """Whether its process is there."""
        return self._life is not None and not self._life.done()

    def start(self) -> None:
        """A new process on the disk that there is."""
        self.lives += 1
        self._stopping = asyncio.Event()
        self.machine = Machine(f"{self.name}.{self.lives}", self.host)
        self._life = self.world.loop.begin(self.machine, self._live(self._stopping))

    def kill(self, *, with_power: bool = True) -> None:
        """SIGKILL, or the plug is pulled."""
        if self.machine is None or not self.is_up:
            return
        self.world.loop.kill(self.machine)
        self.world.network.died(self.machine, with_power=with_power)
        self.disk = self.disk.kill() if with_power else self.disk.crash()
        self._life = None
        self._died()

    async def stop(self) -> None:
        """SIGTERM; returns when the process has ended."""
        if self._life is not None and self.is_up:
            self._stopping.set()
            await asyncio.wait([self._life])

    def reap(self) -> bool:
        """Whether it has ended by itself; then all is as after a kill."""
        if self._life is None or not self._life.done() or self.machine is None:
            return False
        error = self._life.exception()
        if error is not None:
            self.endings.append(_said(error))
            if not _is_known(error):
                raise error
        self.world.loop.kill(self.machine)
        self.world.network.died(self.machine, with_power=True)
        self.disk = self.disk.kill()
        self._life = None
        self._died()
        return True

    def _died(self) -> None:
        """Its connections to others than the nodes end."""

    async def _live(self, stopping: asyncio.Event) -> None:
        raise NotImplementedError

    def _entry(self, kind: str, state: str, max_commit_ts: int) -> NodeStatus:
        update_ts = self.world.pd.last_ts
        return NodeStatus(
            kind, self.name, f"{self.host}:{PORT}", state, type(update_ts)(max_commit_ts), update_ts
        )


def _said(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_said(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"


def _is_known(error: BaseException) -> bool:
    """Whether it is one that binlogd has words for."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_known, error.exceptions))
    return isinstance(error, BinlogdError)


@dataclass
class PumpNode(Node):
    """A Pump, its port and its entry in the registry."""

    shards: int = 2
    options: PumpOptions = field(default_factory=PumpOptions)
    pump: Pump | None = None

    def start(self) -> None:
        """See Node; nobody looks at the Pump of the life before."""
        self.pump = None
        super().start()

    async def _live(self, stopping: asyncio.Event) -> None:
        world = self.world
        pump = await Pump.open(
            Path("/data"),
            shards=self.shards,
            tso=world.pd,
            txn_status=world.tikv,
            clock=self.clock,
            disk=self.disk,
            options=self.options,
        )
        self.pump = pump
        service = PumpService(pump, world.pd)
        membership = Membership(world.pd, self._entries)
        server = Server([service], None, None, sinks=service.sinks())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump.run())
                readers = group.create_task(RemoteDrainers(pump, world.pd, "").run())
                await membership.patiently(membership.announce, _unsaid)
                beat = group.create_task(membership.keep_fresh(HEARTBEAT_S))
                await server.start(self.host, PORT)
                await stopping.wait()
                pump.request(Action.PAUSE)
                await service.close()
                await server.close()
                for each in (beat, readers):
                    each.cancel()
                await pump.close()
        except BaseException:
            await server.close()
            await pump.close()
            raise
        await membership.leave()

    def _entries(self) -> Sequence[NodeStatus]:
        assert self.pump is not None
        return [self._entry(PUMP, self.pump.state.value, self.pump.max_commit_ts)]


async def _unsaid(reason: str) -> None:
    del reason


async def _reached() -> None:
    """A downstream is tried by the Drainer itself."""


@dataclass
class DrainerNode(Node):
    """A Drainer that merges the Pumps of the registry into a downstream."""

    history: SimHistory | None = None
    make_sink: Callable[[], Sink] | None = None
    on_saved: Callable[[Checkpoint], None] = lambda _: None
    found: list[str] = field(default_factory=list)
    """What was seen in the middle of somebody's work, who must not be told."""
    pulls: JudgedSources | None = None
    on_death: Callable[[], None] = lambda: None
    """Called when its process is there no more, however it ended."""
    dialect: Dialect = Dialect.MYSQL
    has_relay: bool = True
    relay_file_bytes: int = 20_000
    drainer: Drainer | None = None
    """The one of this life that was made last."""
    replication: Replication | None = None
    resumes_at_s: float | None = None
    """None: no operator has paused it."""

    def start(self) -> None:
        """See Node; nobody looks at the Drainer of the life before."""
        self.drainer = self.replication = self.resumes_at_s = self.pulls = None
        super().start()

    def pause(self, for_s: float) -> None:
        """By an operator's command, who comes back for it."""
        replication = self.replication
        if self.is_up and replication is not None and replication.state is NodeState.ONLINE:
            replication.request(Action.PAUSE)
            self.resumes_at_s = self.world.loop.time() + for_s

    def resume_if_due(self) -> None:
        """What the operator does then."""
        at_s, replication = self.resumes_at_s, self.replication
        if at_s is None or replication is None or self.world.loop.time() < at_s:
            return
        if replication.state is NodeState.PAUSED and self.is_up:
            replication.resume()
            self.resumes_at_s = None

    def _died(self) -> None:
        self.on_death()

    async def _live(self, stopping: asyncio.Event) -> None:
        world = self.world
        assert self.history is not None
        assert self.make_sink is not None
        home, relay = Path("/drainer"), None
        await self.disk.make_directory(home)
        if self.has_relay:
            relay = RelayWriter(home / "relay", self.disk, max_file_bytes=self.relay_file_bytes)
        sources = RegisteredPumps(
            (),
            world.pd,
            own_id="",
            cluster_id=world.pd.wait_known,
            horizon=Horizon(world.pd.observe, self.clock, ahead_max_s=600.0),
        )
        self.pulls = JudgedSources(sources, self.found)
        ports = DrainerPorts(
            sources=self.pulls,
            history=self.history,
            make_sink=self.make_sink,
            relay=relay,
            table_filter=TableFilter(),
            on_saved=self.on_saved,
            schema_log=SchemaLog(home / "schema", self.disk),
        )
        rng = random.Random(world.rng.randrange(1 << 30))

        def make() -> Drainer:
            self.drainer = Drainer(ports, Backoff(rng), DrainerOptions(dialect=self.dialect))
            return self.drainer

        first = FirstContact(world.pd.wait_known, _reached, Backoff(rng))
        replication = Replication(make, lambda: None, first, Backoff(rng))
        self.replication = replication
        membership = Membership(world.pd, self._entries)
        server = Server([CisternService(sources.refresh)])
        async with asyncio.TaskGroup() as group:
            group.create_task(replication.run())
            await membership.patiently(membership.announce, _unsaid)
            beat = group.create_task(membership.keep_fresh(HEARTBEAT_S))
            await server.start(self.host, PORT)
            await stopping.wait()
            await replication.end()
            beat.cancel()
            await server.close()
        await membership.leave()

    def _entries(self) -> Sequence[NodeStatus]:
        assert self.drainer is not None
        assert self.replication is not None
        state = NodeState.PAUSED if self._stopping.is_set() else self.replication.state
        saved_ts = self.drainer.statistics().checkpoint.commit_ts or NO_TS
        return [self._entry(DRAINER, state.value, saved_ts)]
