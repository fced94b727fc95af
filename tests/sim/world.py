"""A world of one seed: what is drawn, what happens in it, and what must hold.

Two Pumps with some shards each, a registry, a Drainer that merges them, TiDBs that write, a
downstream. Each seed first draws which kinds of faults there are at all, and how often (swarm):
with all of them at once, many states are never reached. When the TiDBs are done the faults stop,
and within ten minutes everything must be downstream.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from binlogd.pump.pump import PumpOptions
from tests.sim.checks import Checks
from tests.sim.disk import Pace, SimDisk
from tests.sim.downstream import make_downstream
from tests.sim.faults import FAULTS, Fault
from tests.sim.loop import PROCESS, forgotten, simulated
from tests.sim.network import NetLoop, SimNetwork, Weather
from tests.sim.nodes import DrainerNode, Node, PumpNode, Surroundings
from tests.sim.plan import Plan
from tests.sim.sqlite import Databases, inline_sqlite
from tests.sim.tidb import Tidb
from tests.sim.upstream import SimHistory, SimPd, SimTikv

CATCH_UP_S = 600.0
_LIFE_S_MAX = 7_200.0
"""Of the TiDBs; more than any plan needs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a world ended. `violation` is "" where everything held."""

    plan: Plan
    violation: str
    virtual_s: float
    hash: str
    faults: dict[str, int]
    committed: int
    trace: list[str]


class Trace:
    """Everything that was said, in its order, and a hash of it."""

    def __init__(self, loop: NetLoop, *, is_kept: bool) -> None:
        self._loop, self._is_kept = loop, is_kept
        self._hash = hashlib.blake2b(digest_size=8)
        self.lines: list[str] = []

    def note(self, who: str, what: str) -> None:
        """One line."""
        line = f"{self._loop.time():.6f} {who} {what}"
        self._hash.update(line.encode())
        if self._is_kept:
            self.lines.append(line)

    def digest(self) -> str:
        """Of all lines, and of every step of the loop."""
        self._hash.update(b"%d" % self._loop.steps)
        return self._hash.hexdigest()

    def logged(self, _: object, __: str, event: MutableMapping[str, Any]) -> str:
        """A line of the log of a process."""
        process = PROCESS.get()
        facts = " ".join(f"{key}={event[key]}" for key in sorted(event) if key != "event")
        self.note(process.name if process is not None else "world", f"{event['event']} {facts}")
        raise structlog.DropEvent


class _Faults(logging.Handler):
    """Libraries tell a log of exceptions that nobody took."""

    def __init__(self, loop: NetLoop) -> None:
        super().__init__(logging.ERROR)
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        said = "".join(traceback.format_exception(*record.exc_info)[-4:]) if record.exc_info else ""
        self._loop.faults.append(f"{record.getMessage()}: {said}")


@contextmanager
def _logging_into(trace: Trace, loop: NetLoop) -> Iterator[None]:
    kept = structlog.get_config()
    handler = _Faults(loop)
    library = logging.getLogger("grpclib")
    library.addHandler(handler)
    library.propagate = False
    structlog.configure(
        processors=[trace.logged],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        loop.bury()
        library.removeHandler(handler)
        library.propagate = True
        structlog.configure(**kept)


@dataclass
class World:
    """All that there is."""

    plan: Plan
    surroundings: Surroundings
    pumps: list[PumpNode]
    drainer: DrainerNode
    tidb: Tidb
    checks: Checks
    trace: Trace
    rng: random.Random
    happened: dict[str, int] = field(default_factory=dict)
    is_healing: bool = False
    _down_until_s: dict[str, float] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Node]:
        """Those that run binlogd."""
        return [*self.pumps, self.drainer]

    async def live(self) -> None:
        """From the first start to the last check. Raises AssertionError for what must not be."""
        loop = self.surroundings.loop
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(self._keep_up(), name="keep up"),
                group.create_task(self._watch(), name="watch"),
            ]
            faults = group.create_task(self._disturb(), name="faults")
            async with asyncio.timeout(_LIFE_S_MAX):
                await self.tidb.run()
            faults.cancel()
            await asyncio.wait([faults])
            self._heal()
            self.trace.note("world", "healed")
            until_s = loop.time() + CATCH_UP_S
            while (behind := self.checks.behind()) and loop.time() < until_s:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            assert not behind, f"not caught up within {CATCH_UP_S:g} s: {behind}"
            self.checks.at_rest()
            beside[0].cancel()
            await self.drainer.stop()
            self.checks.at_end()
            for pump in self.pumps:
                await pump.stop()
            beside[1].cancel()

    # --- lives -------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Whoever has ended is begun again, as a supervisor does."""
        loop = self.surroundings.loop
        for n, node in enumerate(self.nodes):
            if n == 1:
                self._down_until_s[node.name] = self.plan.second_pump_after_s
        while True:  # until cancelled
            for node in self.nodes:
                if node.reap():
                    self.trace.note(node.name, f"ended: {node.endings[-1:]}")
                    self.down(node, 1.0)
                if not node.is_up and loop.time() >= self._down_until_s.get(node.name, 0.0):
                    self.trace.note(node.name, "starts")
                    node.start()
            self.drainer.resume_if_due()
            await asyncio.sleep(0.25)

    def down(self, node: Node, for_s: float) -> None:
        """It is not begun again before that."""
        self._down_until_s[node.name] = self.surroundings.loop.time() + for_s

    async def _watch(self) -> None:
        while True:  # until cancelled
            self.checks.each_second()
            await asyncio.sleep(1.0)

    # --- faults ------------------------------------------------------------------------------

    async def _disturb(self) -> None:
        kinds: list[Fault] = [FAULTS[name] for name in self.plan.faults]
        if not kinds:
            return
        await asyncio.sleep(self.rng.uniform(0.0, self.plan.fault_every_s))
        async with asyncio.TaskGroup() as going_on:
            while True:  # until cancelled
                kind = self.rng.choice(kinds)
                self.happened[kind.name] = self.happened.get(kind.name, 0) + 1
                self.trace.note("fault", kind.name)
                going_on.create_task(kind.happen(self), name=kind.name)
                await asyncio.sleep(self.rng.expovariate(1 / self.plan.fault_every_s))

    def _heal(self) -> None:
        """Nothing goes wrong any more."""
        self.is_healing = True
        at = self.surroundings
        at.network.weather = Weather()
        self.checks.downstream.heal()
        for service in (at.pd.service, at.tikv.service, self.drainer_history.service):
            service.is_down = False
        for node in self.nodes:
            disk = node.disk
            disk.fail_syncs = disk.fail_creates = 0
            disk.fail_writes_after, disk.free, disk.pace = None, 1 << 40, Pace()
            self._down_until_s[node.name] = 0.0

    @property
    def drainer_history(self) -> SimHistory:
        """The DDL history that the Drainer reads."""
        assert self.drainer.history is not None
        return self.drainer.history


def made(plan: Plan, loop: NetLoop, trace: Trace) -> World:
    """A world before its first moment; each part draws from a source of its own."""

    def rng(of: str) -> random.Random:
        return random.Random(f"{plan.seed} {of}")

    loop.network = SimNetwork(loop, rng("network"))
    loop.network.weather.splits = plan.splits
    pd, tikv = SimPd(loop, rng("pd")), SimTikv(loop, rng("tikv"))
    at = Surroundings(loop, loop.network, pd, tikv, rng("nodes"))
    tidb = Tidb(rng("tidb"), pd, tikv, plan.habit)
    options = PumpOptions(
        free_bytes_min=1 << 20,
        segment_bytes_max=plan.segment_bytes_max,
        index_queue_max=plan.index_queue_max,
        gc_keep_s=plan.gc_keep_s,
        gc_every_s=plan.gc_every_s,
    )

    def disk(name: str) -> SimDisk:
        made_disk = SimDisk(rng(f"disk {name}"))
        made_disk.pace, made_disk.flips = Pace(), plan.flips
        return made_disk

    pumps = [
        PumpNode(
            at, f"pump{n}", f"127.0.1.{n}", disk(f"pump{n}"), shards=plan.shards, options=options
        )
        for n in (1, 2)
    ]
    downstream = make_downstream(rng("downstream"), plan.database)
    drainer = DrainerNode(
        at,
        "drainer",
        "127.0.2.1",
        disk("drainer"),
        history=SimHistory(loop, rng("history"), tidb.catalogue),
        make_sink=downstream.sink,
        dialect=downstream.dialect,
    )
    checks = Checks(tidb, pumps, drainer, downstream, loop)
    if not plan.has_gc:
        tidb.on_acknowledged = checks.acknowledged
    downstream.on_visible = checks.became_visible
    drainer.on_saved, drainer.on_death = checks.saved, downstream.writer_died
    return World(plan, at, pumps, drainer, tidb, checks, trace, rng("faults"))


def run(plan: Plan, *, keeps_trace: bool = False) -> Outcome:
    """Lives through the world of a plan."""
    with forgotten():
        return _lived(plan, keeps_trace=keeps_trace)


def _lived(plan: Plan, *, keeps_trace: bool) -> Outcome:
    with simulated(NetLoop) as loop:
        trace = Trace(loop, is_kept=keeps_trace)
        world = made(plan, loop, trace)

        def databases(process: object) -> Databases:
            return next(each.disk.databases for each in world.nodes if each.machine is process)

        violation = ""
        with _logging_into(trace, loop), inline_sqlite(databases):
            try:
                loop.run_until_complete(world.live())
            except Exception as error:  # noqa: BLE001 - the outcome of a world
                violation = _first(error)
            if loop.faults:
                violation = f"nobody took: {loop.faults[0]}; {violation}"
            return Outcome(
                plan,
                violation,
                loop.time(),
                trace.digest(),
                dict(sorted(world.happened.items())),
                len(world.tidb.ledger.committed),
                trace.lines,
            )


def _first(error: BaseException) -> str:
    """What went wrong, and where."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        frames.append(f"{code.co_filename.rpartition('/')[2]}:{at.tb_lineno} {code.co_name}")
        at = at.tb_next
    return f"{type(error).__name__}: {error} [{' < '.join(reversed(frames[-4:]))}]"
