"""A Pump without a disk: what the service tests write to and pull from, and the rest of a port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from binlogd.binlog import BinlogType, CommittedBinlog, Late, Pulled
from binlogd.errors import BinlogdError, MalformedBinlog, NotOnline
from binlogd.ports import BinlogSource
from binlogd.pump.state import NodeState
from binlogd.tso import NO_TS, Tso
from binlogd.wire import peek
from binlogd.wire.joining import join


class MemoryPump:
    """Takes writes, joins commits with their prewrites at once, and serves one source."""

    def __init__(self) -> None:
        self.state = NodeState.ONLINE
        self.stored: list[bytes] = []
        self.largest_batch = 0
        self.gate = asyncio.Event()  # writes wait here, for tests of what is in flight
        self.gate.set()
        self.source = MemorySource("memory")
        self._prewrites: dict[int, bytes] = {}

    async def write(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
        await self.gate.wait()
        self.largest_batch = max(self.largest_batch, len(payloads))
        return [self._take(payload) for payload in payloads]

    def sources(self) -> Sequence[BinlogSource]:
        return [self.source]

    def write_now(self, *_: object) -> bool:
        return False

    def watch_late(self) -> MemoryPump:
        return self

    def news(self) -> Sequence[Late]:
        return ()

    def _take(self, payload: bytes) -> BinlogdError | None:
        try:
            head = peek.peek(payload)
        except MalformedBinlog as error:
            return error
        if head.tp == BinlogType.PREWRITE and not self.state.takes_prewrites:
            return NotOnline(self.state.value)
        if not payload:
            return None
        self.stored.append(payload)
        if head.tp == BinlogType.PREWRITE:
            self._prewrites[head.start_ts] = payload
        elif head.tp == BinlogType.COMMIT:
            joined = join(self._prewrites[head.start_ts], payload)
            self.source.add(CommittedBinlog(Tso(head.start_ts), Tso(head.commit_ts), joined))
        return None


class MemorySource:
    """Serves what was added, to any number of pullers; fails with `failure` when that is set."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._binlogs: list[CommittedBinlog] = []
        self._grew = asyncio.Event()
        self.failure: BinlogdError | None = None

    @property
    def name(self) -> str:
        return self._name

    def add(self, *binlogs: CommittedBinlog) -> None:
        self._binlogs.extend(binlogs)
        self._wake()

    def fail(self, failure: BinlogdError) -> None:
        self.failure = failure
        self._wake()

    def _wake(self) -> None:
        self._grew.set()
        self._grew = asyncio.Event()

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        resolved = NO_TS
        while True:  # until the reader stops
            grew = self._grew
            batch = [b for b in self._binlogs if b.commit_ts > max(after, resolved)]
            if batch:
                resolved = batch[-1].commit_ts
                yield Pulled(batch[:1000], batch[:1000][-1].commit_ts)
                resolved = batch[:1000][-1].commit_ts
                continue
            if self.failure is not None:
                raise self.failure
            await grew.wait()


class Cluster:
    """Whose binlogs these are: the one it is made with, or that of the first who says it."""

    def __init__(self, cluster_id: int | None = None) -> None:
        self.cluster_id = cluster_id

    async def adopt(self, cluster_id: int) -> int:
        if self.cluster_id is None:
            self.cluster_id = cluster_id
        return self.cluster_id


async def nothing_to_do() -> None:
    """For a CisternService that nobody asks."""
