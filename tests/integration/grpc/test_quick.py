"""The client that measures keeps its calls in flight, within the window, and hears of refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from binlogd.grpc.bounds import Http2Limits
from binlogd.grpc.quick import QuickCalls
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server, ServerLimits
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.binlogs import prewrite_binlog
from tests.support.memory_pump import Cluster, MemoryPump

CLUSTER = 7


@asynccontextmanager
async def calls(
    slots: int, message: Callable[[int], bytes | None], pump: MemoryPump
) -> AsyncIterator[QuickCalls]:
    service = PumpService(pump, Cluster(CLUSTER))
    limits = ServerLimits(http2=Http2Limits(connection_window_bytes=200_000))
    server = Server([service], sinks=service.sinks(), limits=limits)
    host, port = await server.start("127.0.0.1", 0)
    made = partial(QuickCalls, "/binlog.Pump/WriteBinlog", slots, message)
    _, client = await asyncio.get_running_loop().create_connection(made, host, port)
    try:
        async with asyncio.timeout(120):
            yield client
    finally:
        client.close()
        await service.close()
        await server.close()


@pytest.mark.parametrize("size", [40, 100_000], ids=["small", "in frames"])
async def test_each_slot_has_one_call_in_flight_until_it_has_no_more(size: int) -> None:
    asked: list[int] = []

    def message(slot: int) -> bytes | None:
        asked.append(slot)
        if asked.count(slot) > 5:
            return None
        payload = prewrite_binlog(Tso(len(asked)), prewrite_value=bytes(size))
        return codec.encode_write_request(CLUSTER, payload)

    pump = MemoryPump()
    async with calls(8, message, pump) as client:
        await client.over
    assert sorted(asked) == sorted([*range(8)] * 6)
    assert len(pump.stored) == 40


async def test_a_refusal_and_a_lost_connection_are_told() -> None:
    request = codec.encode_write_request(CLUSTER + 1, prewrite_binlog(Tso(1)))
    async with calls(1, lambda _: request, MemoryPump()) as client:
        with pytest.raises(ConnectionError, match="mismatch"):
            await client.over
    waiting = MemoryPump()
    waiting.gate.clear()
    request = codec.encode_write_request(CLUSTER, prewrite_binlog(Tso(1)))
    async with calls(1, lambda _: request, waiting) as client:
        client.close()
        with pytest.raises(ConnectionError, match="closed"):
            await client.over
        waiting.gate.set()
