"""The scripted TiKV as the stores of a real PD, in a thread of its own beside a process under test.

It says what a TiKV says to PD: `Bootstrap`, `PutStore`, and the heartbeats of its regions, which
tell where they are and who leads them. Source: pingcap/kvproto proto/pdpb.proto; TiKV
components/raftstore/src/store/worker/pd.rs.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import SupportsBytes, TypeVar

from betterproto import encode_varint, parse_fields
from grpclib.client import StreamStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError

from binlogd.errors import UpstreamUnavailable
from binlogd.tidb.meta_keys import job_key
from binlogd.tso import Tso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.leader import Way
from binlogd.wire.generated import pdpb
from tests.support.real_pd import PATIENCE_S, RealPd
from tests.support.tikv import FakeStore, FakeTikv, tikv

HEARTBEAT_S = 0.2

T = TypeVar("T")


class JoinedTikv:
    """The stores; `do` what a test does to them, in their thread."""

    def __init__(self, pd: RealPd, kv: FakeTikv, loop: asyncio.AbstractEventLoop) -> None:
        self.kv, self._loop = kv, loop
        self._client = PdClient(pd.addresses)

    def do(self, act: Callable[[], T]) -> T:
        """In the thread of the stores; what it returns."""

        async def acting() -> T:
            return act()

        return self.do_all(acting)

    def do_all(self, act: Callable[[], Awaitable[T]]) -> T:
        """What takes its time."""

        async def acting() -> T:
            return await act()

        return asyncio.run_coroutine_threadsafe(acting(), self._loop).result(PATIENCE_S)

    def safe_point(self, ts: Tso) -> None:
        """As the worker of a TiDB does that has collected up to here."""

        async def ask(way: Way) -> None:
            request = pdpb.UpdateGcSafePointRequest(self._client.header(), ts)
            await self._told(way, "UpdateGCSafePoint", bytes(request))

        self.do_all(lambda: self._client.asked("UpdateGCSafePoint", ask, PATIENCE_S))

    async def join(self) -> None:
        """The first store bootstraps the cluster, the others come to it."""
        await self._client.cluster_id(PATIENCE_S)
        (region,) = self.kv.regions
        first, *others = self.kv.stores.values()

        async def bootstrap(way: Way) -> None:
            await self._told(way, "Bootstrap", self._message(first.meta(), region.meta()))

        await self._client.asked("Bootstrap", bootstrap, PATIENCE_S)
        for each in others:
            await self.put(each)

    async def put(self, store: FakeStore) -> None:
        """A store, where it listens now."""

        async def ask(way: Way) -> None:
            await self._told(way, "PutStore", self._message(store.meta()))

        await self._client.asked("PutStore", ask, PATIENCE_S)

    async def beat(self) -> None:
        """Tells PD of the regions, whoever leads it, until cancelled."""
        while True:  # until cancelled
            with suppress(UpstreamUnavailable):
                await self._client.asked("RegionHeartbeat", self._beat_once, PATIENCE_S)
            await asyncio.sleep(HEARTBEAT_S)

    async def close(self) -> None:
        await self._client.close()

    async def _beat_once(self, way: Way) -> None:
        method = StreamStreamMethod[bytes, bytes](
            way.channel, "/pdpb.PD/RegionHeartbeat", bytes, bytes
        )
        async with asyncio.timeout(1.0), method.open(metadata=way.metadata) as stream:
            for region in self.kv.regions:
                if region.leader is None:
                    continue
                leader = region.peer(region.leader)
                await stream.send_message(self._message(region.meta(), leader))
            await stream.end()
            try:
                while (raw := await stream.recv_message()) is not None:
                    # what its schedulers want is not done here; who does not lead says an error
                    if _header(raw).error.type:
                        raise ConnectionError("it takes no heartbeats")
            except GRPCError as error:
                if error.message != "EOF":  # its word for a stream that has come to its end
                    raise

    async def _told(self, way: Way, name: str, message: bytes) -> None:
        call = UnaryUnaryMethod[bytes, bytes](way.channel, f"/pdpb.PD/{name}", bytes, bytes)
        self._client.check(name, _header(await call(message, metadata=way.metadata)))

    def _message(self, *parts: SupportsBytes) -> bytes:
        """What only a TiKV sends: the header and its parts, numbered from one on."""
        encoded = [bytes(part) for part in (self._client.header(), *parts)]
        return b"".join(
            encode_varint(number << 3 | 2) + encode_varint(len(each)) + each
            for number, each in enumerate(encoded, 1)
        )


def _header(answer: bytes) -> pdpb.ResponseHeader:
    """With which every answer of PD begins."""
    fields = {field.number: field.value for field in parse_fields(answer)}
    return pdpb.ResponseHeader().parse(fields.get(1, b""))


@contextmanager
def joined_tikv(pd: RealPd, history: bytes = b"[]", stores: int = 2) -> Iterator[JoinedTikv]:
    """Bootstraps the cluster, whose TiKV holds these DDL jobs from the beginning."""
    ready, ended = threading.Event(), asyncio.Event()
    made: list[JoinedTikv] = []

    async def live() -> None:
        async with tikv(stores=stores, cuts=()) as kv, asyncio.TaskGroup() as group:
            (region,) = kv.regions
            region.stores = [1]
            for job in json.loads(history):
                kv.records.put(job_key(job["id"]), json.dumps(job).encode(), Tso(1), Tso(2))
            joined = JoinedTikv(pd, kv, asyncio.get_running_loop())
            await joined.join()
            beating = group.create_task(joined.beat())
            made.append(joined)
            ready.set()
            await ended.wait()
            beating.cancel()
            await joined.close()

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S), f"the TiKV did not join: {pd.log()}"
    try:
        yield made[0]
    finally:
        made[0]._loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE_S)
