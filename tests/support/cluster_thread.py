"""A scripted PD and TiKV in a thread of their own, beside a process under test."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from binlogd.tidb.meta_keys import job_key
from binlogd.tso import Tso, compose, physical_ms
from binlogd.upstream.keyspace.store import KeyspaceStore
from tests.support.pd_cluster import PdCluster, pd_cluster
from tests.support.tikv import FakeTikv, tikv

DO_S = 10.0


@dataclass(frozen=True)
class ClusterThread:
    """The cluster; `do` what a test does to it, in its thread."""

    pd: PdCluster
    tikv: FakeTikv
    loop: asyncio.AbstractEventLoop

    def do(self, act: Callable[[], Awaitable[None]]) -> None:
        async def acting() -> None:
            await act()

        asyncio.run_coroutine_threadsafe(acting(), self.loop).result(DO_S)

    def pass_until(self, ts: int) -> None:
        """Time goes on to a second after `ts`."""
        self.pd.now_ms = physical_ms(Tso(ts)) + 1000

    @property
    def urls(self) -> str:
        """As a configuration names the members."""
        return ",".join(f"http://{host}:{port}" for host, port in self.pd.addresses)


@contextmanager
def running_cluster(
    cluster_id: int, history: bytes, begin_ts: int, members: int = 3
) -> Iterator[ClusterThread]:
    """A cluster with a history of DDL jobs, whose time stands a second before `begin_ts`.

    Nobody may be told a time that is ahead of the transactions that are still to be written.
    """
    ready, ended = threading.Event(), asyncio.Event()
    made: list[ClusterThread] = []

    async def live() -> None:
        with tempfile.TemporaryDirectory() as directory:
            keyspace = await KeyspaceStore.open(Path(directory) / "etcd.db", Random(1))
            try:
                await live_on(keyspace)
            finally:
                await keyspace.close()

    async def live_on(keyspace: KeyspaceStore) -> None:
        async with pd_cluster(members, keyspace=keyspace) as pd, tikv(stores=1) as kv:
            pd.cluster_id = cluster_id
            pd.now_ms = physical_ms(Tso(begin_ts)) - 1000
            pd.regions = [(each.meta(), each.peer(each.leader or 0)) for each in kv.regions]
            pd.stores = {number: store.meta() for number, store in kv.stores.items()}
            filed = compose(pd.now_ms - 10_000)
            for job in json.loads(history):
                kv.records.put(job_key(job["id"]), json.dumps(job).encode(), filed, Tso(filed + 1))
            made.append(ClusterThread(pd, kv, asyncio.get_running_loop()))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    assert ready.wait(DO_S), "the scripted cluster did not start"
    try:
        yield made[0]
    finally:
        made[0].loop.call_soon_threadsafe(ended.set)
        thread.join(DO_S)
