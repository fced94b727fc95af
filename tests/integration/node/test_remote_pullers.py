"""What a remote puller may make the Pump hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from binlogd.binlog import CommittedBinlog, Pulled
from binlogd.client.pump_client import RemoteSource
from binlogd.errors import BinlogdError
from binlogd.ports import BinlogSource
from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.pulling import LateCommitFeed
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from binlogd.tso import Tso
from binlogd.wire.binlogs import prewrite_binlog
from tests.support.memory_pump import MemoryPump, nothing_to_do
from tests.support.pump_world import PATIENCE_S

BATCH_BYTES = 1 << 20


class Rich:
    """A shard with much to give."""

    name = "rich"
    given = 0

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        while True:  # until nobody pulls
            ts = Tso(after + self.given + 1)
            self.given += 1
            payload = prewrite_binlog(ts, prewrite_value=bytes(BATCH_BYTES))
            yield Pulled([CommittedBinlog(ts, Tso(ts + 1), payload)], Tso(ts + 1))


class Mute:
    """A shard that promises nothing, as one with an open transaction."""

    name = "mute"

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        await asyncio.Event().wait()
        yield Pulled((), after)


class Shards:
    cluster_id = 7

    def __init__(self) -> None:
        self.rich = Rich()

    async def adopt(self, cluster_id: int) -> int:
        return cluster_id

    async def write(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
        return [None for _ in payloads]

    def write_now(self, *_: object) -> bool:
        return False

    def watch_late(self) -> LateCommitFeed:
        return MemoryPump()

    def sources(self) -> Sequence[BinlogSource]:
        return [self.rich, Mute()]


async def test_a_shard_does_not_run_far_ahead_for_a_puller_who_waits_for_another() -> None:
    shards = Shards()
    service = PumpService(shards, shards)
    server = Server([service, CisternService(nothing_to_do)])
    host, port = await server.start("127.0.0.1", 0)

    async def pull() -> None:
        async for pulled in RemoteSource("remote", host, port, cluster_id=7).pull(Tso(0)):
            assert pulled == Pulled((), Tso(0)), "nothing was promised"

    puller = asyncio.get_running_loop().create_task(pull())
    before = -1
    async with asyncio.timeout(PATIENCE_S):
        while shards.rich.given > before or not before:  # until it stands
            assert not puller.done(), "it pulls on"
            before = shards.rich.given
            await asyncio.sleep(0.2)
    puller.cancel()
    await service.close()
    await server.close()
    assert 0 < shards.rich.given * BATCH_BYTES <= 16 << 20
