"""What can go wrong, by name."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from binlogd.errors import DownstreamUnavailable
from tests.sim.disk import Pace
from tests.sim.downstream import MemoryDownstream
from tests.sim.mysql import Fault as SqlFault
from tests.sim.mysql import Faults, SimMySql
from tests.sim.network import Weather
from tests.sim.nodes import Node
from tests.sim.replica import Replica

if TYPE_CHECKING:
    from tests.sim.world import World

Happens = Callable[["World"], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind."""

    name: str
    happen: Happens


FAULTS: dict[str, Fault] = {}


def _fault(name: str) -> Callable[[Happens], Happens]:
    def named(happens: Happens) -> Happens:
        FAULTS[name] = Fault(name, happens)
        return happens

    return named


def _down_s(rng: random.Random) -> float:
    """Mostly a restart, sometimes long enough that everybody notices."""
    return rng.choice((0.0, 0.5, 3.0, 25.0))


def _kill(world: World, node: Node, *, with_power: bool) -> None:
    if node.is_up:
        world.down(node, _down_s(world.rng))
        if not with_power:
            world.checks.power_fails(node)
        node.kill(with_power=with_power)


@_fault("kill pump")
async def _(world: World) -> None:
    _kill(world, world.rng.choice(world.pumps), with_power=True)


@_fault("power of pump")
async def _(world: World) -> None:
    _kill(world, world.rng.choice(world.pumps), with_power=False)


@_fault("kill drainer")
async def _(world: World) -> None:
    _kill(world, world.drainer, with_power=True)


@_fault("power of drainer")
async def _(world: World) -> None:
    _kill(world, world.drainer, with_power=False)


@_fault("stop pump")
async def _(world: World) -> None:
    node = world.rng.choice(world.pumps)
    world.down(node, _down_s(world.rng))
    await node.stop()


@_fault("stop drainer")
async def _(world: World) -> None:
    world.down(world.drainer, _down_s(world.rng))
    await world.drainer.stop()


@_fault("pause drainer")
async def _(world: World) -> None:
    world.drainer.pause(world.rng.choice((0.5, 5.0, 30.0)))


@_fault("slow sync")
async def _(world: World) -> None:
    node = world.rng.choice(world.nodes)
    slowest_s = world.rng.choice((0.05, 0.5, 4.0))
    node.disk.pace = Pace(sync_s=(slowest_s / 4, slowest_s))
    await asyncio.sleep(world.rng.uniform(1.0, 10.0))
    node.disk.pace = Pace()


@_fault("sync fails")
async def _(world: World) -> None:
    world.rng.choice(world.nodes).disk.fail_syncs = 1


@_fault("disk full")
async def _(world: World) -> None:
    node = world.rng.choice(world.nodes)
    room = world.rng.choice((0, 500, 5_000))
    node.disk.free, node.disk.fail_writes_after = 0, room
    await asyncio.sleep(world.rng.uniform(1.0, 15.0))
    node.disk.free, node.disk.fail_writes_after = 1 << 40, None


async def _silent(world: World, name: str) -> None:
    at = world.surroundings
    services = {
        "pd": at.pd.service,
        "tikv": at.tikv.service,
        "history": world.drainer_history.service,
    }
    services[name].is_down = True
    await asyncio.sleep(world.rng.choice((0.5, 5.0, 30.0)))
    services[name].is_down = False


@_fault("pd silent")
async def _(world: World) -> None:
    await _silent(world, "pd")


@_fault("tikv silent")
async def _(world: World) -> None:
    await _silent(world, "tikv")


@_fault("history silent")
async def _(world: World) -> None:
    await _silent(world, "history")


PD_AHEAD_MS_MAX = 480_000
"""A Drainer that begins anew believes no more than `pump.timestamp-ahead-max`, ten minutes, ahead
of its machine's clock, and clocks that jump take one of these."""


@_fault("pd steps")
async def _(world: World) -> None:
    pd = world.surroundings.pd
    pd.step_ms = min(pd.step_ms + world.rng.choice((-2_000, 50, 3_000, 60_000)), PD_AHEAD_MS_MAX)


@_fault("clock jumps")
async def _(world: World) -> None:
    world.rng.choice(world.nodes).clock.off_ms = world.rng.choice((-60_000, -500, 0, 500, 60_000))


@_fault("cut")
async def _(world: World) -> None:
    hosts = [node.host for node in world.nodes]
    one, other = world.rng.choice(hosts), world.rng.choice([*hosts, "127.0.0.1"])
    world.surroundings.network.cut(one, other)


@_fault("half open")
async def _(world: World) -> None:
    host = world.rng.choice(world.nodes).host
    world.surroundings.network.half_open(host, world.rng)


@_fault("partition")
async def _(world: World) -> None:
    hosts = [node.host for node in world.nodes]
    pair = frozenset((world.rng.choice(hosts), world.rng.choice([*hosts, "127.0.0.1"])))
    cut_off = world.surroundings.network.weather.cut_off
    cut_off.add(pair)
    await asyncio.sleep(world.rng.choice((1.0, 10.0, 40.0)))
    cut_off.discard(pair)


@_fault("slow network")
async def _(world: World) -> None:
    weather = world.surroundings.network.weather
    slow = replace(weather, delay_s=(0.01, world.rng.choice((0.1, 1.0, 4.0))))
    world.surroundings.network.weather = slow
    await asyncio.sleep(world.rng.uniform(1.0, 20.0))
    world.surroundings.network.weather = replace(slow, delay_s=Weather().delay_s)


# --- the downstream ------------------------------------------------------------------------------


@_fault("downstream")
async def _(world: World) -> None:
    downstream = world.checks.downstream
    if isinstance(downstream, Replica):
        for connection in list(downstream.server.connections.values()):
            downstream.server.kill(connection)
    elif isinstance(downstream, MemoryDownstream):
        failures = downstream.store.failures
        failures[0] = DownstreamUnavailable("the connection was lost")
        await asyncio.sleep(world.rng.uniform(0.1, 3.0))
        failures.pop(0, None)


async def _for_a_while(world: World, change: Callable[[Faults], None]) -> None:
    """Other rates of faults than none."""
    faults = _replica(world).server.faults
    change(faults)
    await asyncio.sleep(world.rng.choice((0.5, 5.0, 30.0)))
    faults.quiet()


def _replica(world: World) -> Replica:
    downstream = world.checks.downstream
    assert isinstance(downstream, Replica), "drawn for a database alone"
    return downstream


_LOST_COMMITS = (SqlFault.CUT_BEFORE, SqlFault.CUT_DONE, SqlFault.CUT_LATER, SqlFault.CUT_AFTER)


@_fault("commits cut")
async def _(world: World) -> None:
    kinds = world.rng.sample(_LOST_COMMITS, world.rng.randint(1, len(_LOST_COMMITS)))
    rates = dict.fromkeys(kinds, world.rng.choice((0.05, 0.2)))

    def change(faults: Faults) -> None:
        faults.commits = rates

    await _for_a_while(world, change)


@_fault("statements cut")
async def _(world: World) -> None:
    rates = dict.fromkeys(_LOST_COMMITS, world.rng.choice((0.002, 0.02)))

    def change(faults: Faults) -> None:
        faults.writes = faults.others = rates

    await _for_a_while(world, change)


@_fault("deadlocks")
async def _(world: World) -> None:
    rate = world.rng.choice((0.05, 0.3))
    rates = {SqlFault.DEADLOCK: rate, SqlFault.LOCK_TIMEOUT: rate / 3}

    def change(faults: Faults) -> None:
        faults.writes, faults.commits = rates, {SqlFault.DEADLOCK: rate / 3}

    await _for_a_while(world, change)


@_fault("slow database")
async def _(world: World) -> None:
    faults = _replica(world).server.faults
    faults.latency_s = (0.01, world.rng.choice((0.1, 1.0)))
    await _for_a_while(world, lambda faults: setattr(faults, "writes", {SqlFault.SLOW: 0.05}))
    faults.latency_s = _replica(world).database.latency_s


@_fault("connections refused")
async def _(world: World) -> None:
    rate = world.rng.choice((0.3, 1.0))
    await _for_a_while(world, lambda faults: setattr(faults, "refused", rate))


@_fault("read-only database")
async def _(world: World) -> None:
    inside = _replica(world).server.inside
    inside.is_read_only = True
    await asyncio.sleep(world.rng.choice((0.5, 5.0, 30.0)))
    inside.is_read_only = False


@_fault("kill database")
async def _(world: World) -> None:
    server = _replica(world).server
    server.crash()
    await _down(world, server)


@_fault("fail over")
async def _(world: World) -> None:
    replica = _replica(world)
    lost = world.rng.choice((0, 1, 2, 5, 20, 100))
    replica.server.fail_over(replica.may_lose(lost, can_pull_again=not world.plan.has_gc))
    await _down(world, replica.server)


async def _down(world: World, server: SimMySql) -> None:
    server.is_down = True
    await asyncio.sleep(world.rng.choice((0.0, 0.5, 5.0, 30.0)))
    server.is_down = False
