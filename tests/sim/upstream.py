"""What surrounds the nodes of a cluster: PD with its time and registry, TiKV with the fates."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from binlogd.errors import UpstreamUnavailable
from binlogd.ports import (
    Committed,
    NodeStatus,
    OpenPrewrite,
    Pending,
    RolledBack,
    TxnStatus,
)
from binlogd.tidb.job_index import JobIndex, entry_of
from binlogd.tidb.model import Job, job_from_json
from binlogd.tso import NO_TS, Tso, compose
from binlogd.upstream.entry import PUMP
from tests.sim.loop import EPOCH_MS, SimLoop
from tests.workload.catalogue import Catalogue

CLUSTER_ID = 7
LEASE_S = 10.0
LOCK_TTL_S = 20.0
_SILENCE_S = 3.0
"""After which those who ask give up."""
_JOB_S = 60.0


@dataclass(slots=True)
class Service:
    """Something that answers after a moment, or not at all."""

    loop: SimLoop
    rng: random.Random
    is_down: bool = False

    async def reached(self, what: str) -> None:
        """Raises UpstreamUnavailable."""
        await asyncio.sleep(self.rng.uniform(0.0002, 0.004))
        if self.is_down:
            await asyncio.sleep(_SILENCE_S)
            raise UpstreamUnavailable(f"{what} does not answer")


class SimPd:
    """Timestamps, the registry of nodes, and whose cluster it is."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.service = Service(loop, rng)
        self.step_ms = 0
        """How far its clock is from that of the others."""
        self.last_ts = NO_TS
        self._loop = loop
        self._nodes: dict[str, dict[str, NodeStatus]] = {}
        self._claims: dict[tuple[str, str], float] = {}
        self._changed = asyncio.Event()

    def handed_out(self) -> Tso:
        """A timestamp larger than all before."""
        now_ms = EPOCH_MS + int(self._loop.time() * 1000) + self.step_ms
        self.last_ts = max(Tso(self.last_ts + 1), compose(now_ms))
        return self.last_ts

    # --- TsoSource ---------------------------------------------------------------------------

    async def next(self) -> Tso:
        await self.service.reached("PD")
        return self.handed_out()

    def observe(self, ts: Tso) -> None:
        """PD hears nothing of binlogs."""
        assert ts <= self.last_ts, f"a timestamp from nowhere: {ts}"

    # --- ClusterIdentity ---------------------------------------------------------------------

    @property
    def cluster_id(self) -> int:
        return CLUSTER_ID

    async def adopt(self, cluster_id: int) -> int:
        del cluster_id
        return CLUSTER_ID

    async def wait_known(self) -> int:
        return CLUSTER_ID

    # --- Registry ----------------------------------------------------------------------------

    async def register(self, node: NodeStatus) -> None:
        await self.service.reached("the registry")
        self._put(node)

    async def keep(self, nodes: Sequence[NodeStatus]) -> None:
        await self.service.reached("the registry")
        for node in nodes:
            self._claims[node.kind, node.node_id] = self._loop.time() + LEASE_S
            self._put(replace(node, is_alive=True))

    async def leave(self, nodes: Sequence[NodeStatus]) -> None:
        await self.service.reached("the registry")
        for node in nodes:
            self._claims.pop((node.kind, node.node_id), None)
            self._put(node)

    async def pause_the_vanished(self) -> Sequence[NodeStatus]:
        paused = []
        for node in await self.nodes(PUMP):
            if node.state == "online" and node.is_alive is False:
                paused.append(replace(node, state="paused"))
                self._put(paused[-1])
        return paused

    async def nodes(self, kind: str) -> Sequence[NodeStatus]:
        await self.service.reached("the registry")
        return self._listed(kind)

    async def node(self, kind: str, node_id: str) -> NodeStatus | None:
        await self.service.reached("the registry")
        return self._nodes.get(kind, {}).get(node_id)

    async def watch(self, kind: str) -> AsyncGenerator[Sequence[NodeStatus], None]:
        while True:  # until the reader stops
            await self.service.reached("the registry")
            changed, listed = self._changed, self._listed(kind)
            yield listed
            await changed.wait()

    def _listed(self, kind: str) -> list[NodeStatus]:
        now_s = self._loop.time()
        return [
            replace(node, is_alive=self._claims.get((kind, name), -1.0) > now_s)
            if node.is_alive is not None
            else node
            for name, node in sorted(self._nodes.get(kind, {}).items())
        ]

    def _put(self, node: NodeStatus) -> None:
        self._nodes.setdefault(node.kind, {})[node.node_id] = node
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class SimTikv:
    """The fate of each transaction. A lock that nobody comes back to is rolled back by whoever asks
    after its time, and then it is too late to commit."""

    verifies_rollbacks = True

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.service = Service(loop, rng)
        self._loop = loop
        self._locked_s: dict[Tso, float] = {}
        self._known: dict[Tso, TxnStatus] = {}

    def lock(self, start_ts: Tso, ttl_s: float = LOCK_TTL_S) -> bool:
        """False if somebody has rolled it back already."""
        if start_ts not in self._known:
            self._locked_s[start_ts] = self._loop.time() + ttl_s
        return start_ts not in self._known

    def is_rolled_back(self, start_ts: Tso) -> bool:
        return isinstance(self._known.get(start_ts), RolledBack)

    def commit(self, start_ts: Tso, commit_ts: Tso) -> None:
        """Of one that is locked."""
        assert start_ts not in self._known
        del self._locked_s[start_ts]
        self._known[start_ts] = Committed(commit_ts)

    def roll_back(self, start_ts: Tso) -> None:
        """Of one that is not committed."""
        assert not isinstance(self._known.get(start_ts), Committed)
        self._locked_s.pop(start_ts, None)
        self._known[start_ts] = RolledBack()

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        await self.service.reached("TiKV")
        return [self._status(each.start_ts) for each in prewrites]

    def _status(self, start_ts: Tso) -> TxnStatus:
        known = self._known.get(start_ts)
        if known is not None:
            return known
        until_s = self._locked_s.get(start_ts)
        if until_s is None:
            return Pending("there is neither a lock nor a record", is_traceless=True)
        if self._loop.time() < until_s:
            return Pending("it is locked")
        self.roll_back(start_ts)
        return RolledBack()


class SimHistory:
    """The DDL jobs, as a TiDB tells them."""

    def __init__(self, loop: SimLoop, rng: random.Random, catalogue: Catalogue) -> None:
        self.service = Service(loop, rng)
        self._loop, self._catalogue = loop, catalogue
        self._jobs: dict[int, Job] = {}
        self._read = 0

    async def job(self, job_id: int) -> Job | None:
        until_s = self._loop.time() + _JOB_S
        while True:  # until it is there, or its time is over
            await self.service.reached("the history")
            found = self._known().get(job_id)
            if found is not None or self._loop.time() > until_s:
                return found
            await asyncio.sleep(0.5)

    async def index(self) -> JobIndex:
        await self.service.reached("the history")
        return JobIndex(entry_of(job) for job in self._known().values())

    async def read(self, job_ids: Sequence[int]) -> list[Job]:
        known = self._known()
        return [known[job_id] for job_id in job_ids]

    def _known(self) -> dict[int, Job]:
        for raw in self._catalogue._jobs[self._read :]:
            job = job_from_json(raw)
            self._jobs[job.id] = job
            self._read += 1
        return self._jobs
