"""Writers who never rest and do as TiDBs do: a timestamp, the prewrite in the store and at a Pump,
another timestamp, the commit in the store and at the Pump."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from binlogd.client.directory import AskedPumps
from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.client.pumps_client import PumpsClient, PumpsLimits
from binlogd.errors import PumpUnavailable, UpstreamUnavailable
from binlogd.tso import Tso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.members import Address
from binlogd.upstream.pd.tso import PdTso
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support import bank
from tests.support.appliance import Appliance
from tests.support.pump_world import PATIENCE_S, eventually

WRITERS = 4
PATIENT = PumpsLimits(
    each=ClientLimits(
        deadline_s=5, prewrite_retry_s=30, outcome_retry_s=200, outcome_retry_interval_s=0.1
    ),
    probe_every_s=0.5,
    look_every_s=0.3,
)


class Store(Protocol):
    """Where a Pump asks what became of a transaction."""

    def locked(self, key: bytes, start_ts: Tso) -> None: ...

    def committed(self, key: bytes, start_ts: Tso, commit_ts: Tso) -> None: ...

    def rolled_back(self, key: bytes, start_ts: Tso) -> None: ...


class Writers:
    """Each transaction is a row of the ledger; `written` are those that were acknowledged."""

    def __init__(self, pd: Sequence[Address], store: Store, *pumps: Appliance) -> None:
        self._pd, self._store, self._pumps = pd, store, pumps
        self.written: list[int] = []
        self._numbers = iter(range(1, 1 << 30))

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """While the body runs; what was begun is ended afterwards."""
        client = PdClient(self._pd)
        self._tso = PdTso(client)
        directory = AskedPumps(*(node.target for node in self._pumps))
        over = asyncio.Event()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(client.close)
            self._cluster_id = await client.cluster_id()
            pumps = await stack.enter_async_context(
                PumpsClient(directory, cluster_id=self._cluster_id, limits=PATIENT)
            )
            group = await stack.enter_async_context(asyncio.TaskGroup())
            serving = [group.create_task(each.run()) for each in (pumps, client, self._tso)]
            writers = [
                group.create_task(self._write(pumps, over, random.Random(seed)))
                for seed in range(WRITERS)
            ]
            yield
            over.set()
            await eventually(lambda: all(each.done() for each in writers))
            for each in serving:
                each.cancel()

    async def some_more(self, count: int = 20) -> None:
        """Until that many more transactions are acknowledged."""
        wanted = len(self.written) + count
        await eventually(lambda: len(self.written) >= wanted)

    async def orphan(self, node: Appliance) -> None:
        """What a TiDB leaves that dies after its commit: a prewrite here, its outcome in the
        store."""
        number, start_ts, prewrite = await self._prewritten()
        async with PumpClient(*node.target, cluster_id=self._cluster_id) as client:
            await client.write(prewrite)
        await self._commit(number, start_ts)
        self.written.append(number)

    async def _write(self, pumps: PumpsClient, over: asyncio.Event, rng: random.Random) -> None:
        while not over.is_set():
            number, start_ts, prewrite = await self._prewritten()
            try:
                await pumps.write(prewrite)
            except PumpUnavailable:
                self._store.rolled_back(key_of(number), start_ts)
                continue
            commit_ts = await self._commit(number, start_ts)
            await pumps.write(commit_binlog(start_ts, commit_ts))
            self.written.append(number)
            await asyncio.sleep(rng.uniform(0.0, 0.1))

    async def _prewritten(self) -> tuple[int, Tso, bytes]:
        number, start_ts = next(self._numbers), await self._told()
        key = key_of(number)
        self._store.locked(key, start_ts)
        value = encode_mutations(5, [bank.inserted(bank.LEDGER, (number, 1))])
        prewrite = prewrite_binlog(start_ts, prewrite_key=key, prewrite_value=value)
        return number, start_ts, prewrite

    async def _commit(self, number: int, start_ts: Tso) -> Tso:
        commit_ts = await self._told()
        self._store.committed(key_of(number), start_ts, commit_ts)
        return commit_ts

    async def _told(self) -> Tso:
        """A timestamp; waits while PD, or who stands in for it, is away."""
        async with asyncio.timeout(PATIENCE_S):
            while True:  # until somebody tells one
                try:
                    return await self._tso.next()
                except UpstreamUnavailable:
                    await asyncio.sleep(0.1)


def key_of(number: int) -> bytes:
    """The key of a transaction in the store."""
    return b"t%08d" % number
