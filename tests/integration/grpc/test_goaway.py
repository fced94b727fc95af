"""Leaving a connection, by either side: what is in flight is answered, nothing new begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpclib.client import Channel

from binlogd.client.pump_client import PumpClient
from binlogd.grpc import frames
from binlogd.grpc.bounds import Http2Limits
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server, ServerLimits
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.binlogs import prewrite_binlog
from binlogd.wire.generated import binlog as pb
from tests.bench.port_load import Wire
from tests.support.memory_pump import Cluster, MemoryPump
from tests.support.raw_http2 import RawClient

PATIENT = ServerLimits(leave_timeout_s=60)
"""A server that waits for the answers of its Pump, however slow all of them are."""


def request(start_ts: int) -> bytes:
    return codec.encode_write_request(7, prewrite_binlog(Tso(start_ts), prewrite_value=b"v"))


@asynccontextmanager
async def serving(
    pump: MemoryPump, *, fast_lane: bool, limits: ServerLimits = PATIENT
) -> AsyncIterator[tuple[Server, RawClient]]:
    service = PumpService(pump, Cluster(7))
    server = Server([service], limits=limits, sinks=service.sinks() if fast_lane else None)
    client = RawClient()
    await client.connect(*await server.start("127.0.0.1", 0))
    try:
        yield server, client
    finally:
        client.hang_up()
        await server.close()


LANES = pytest.mark.parametrize("fast_lane", [True, False], ids=["fast lane", "grpclib"])


@LANES
async def test_a_server_that_closes_answers_what_it_has_and_says_goodbye(fast_lane: bool) -> None:  # noqa: FBT001
    pump = MemoryPump()
    pump.gate.clear()
    async with serving(pump, fast_lane=fast_lane) as (server, client):
        first = client.call(request(1))
        await client.send()
        await client.pinged()
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(server.close())
            while client.goaway is None:
                await client._receive()
            assert not closing.done()
            pump.gate.set()
            assert (await client.wait(first))[0].is_ok
            await client.wait_closed()
        assert client.goaway == frames.NO_ERROR
        assert pump.stored == [codec.decode_write_request(request(1)).payload]


@LANES
async def test_a_server_does_not_wait_for_ever_for_an_open_call(fast_lane: bool) -> None:  # noqa: FBT001
    pump = MemoryPump()
    pump.gate.clear()
    limits = ServerLimits(leave_timeout_s=0.05, flush_timeout_s=0.05)
    async with serving(pump, fast_lane=fast_lane, limits=limits) as (server, client):
        client.call(request(1))
        await client.send()
        await client.pinged()
        await server.close()
        assert not server.places
        pump.gate.set()


@LANES
async def test_an_idle_connection_does_not_hold_up_a_close(fast_lane: bool) -> None:  # noqa: FBT001
    async with serving(MemoryPump(), fast_lane=fast_lane) as (server, client):
        client.call(request(1))
        await client.send()
        await client.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(server.close())
            await client.wait_closed()
        assert client.goaway == frames.NO_ERROR


@LANES
async def test_a_connection_without_calls_is_left_and_one_with_a_call_is_not(
    fast_lane: bool,  # noqa: FBT001
) -> None:
    pump = MemoryPump()
    pump.gate.clear()
    limits = ServerLimits(http2=Http2Limits(idle_s=0.4))
    async with serving(pump, fast_lane=fast_lane, limits=limits) as (server, client):
        waiting = client.call(request(1))
        await client.send()
        await asyncio.sleep(0.6)
        await client.pinged()
        assert client.goaway is None
        pump.gate.set()
        assert (await client.wait(waiting))[0].is_ok
        await client.wait_closed()
        assert client.goaway == frames.NO_ERROR
        assert not server.places


async def test_a_peer_without_calls_that_answers_no_ping_is_let_go() -> None:
    """Its host may be gone, and it would keep its place for ever."""
    limits = ServerLimits(http2=Http2Limits(ping_after_s=0.1, ping_timeout_s=0.2))
    async with serving(MemoryPump(), fast_lane=True, limits=limits) as (server, client):
        await client.send()  # the greeting, and nothing that comes is read
        async with asyncio.timeout(120):
            while server.places:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)


async def test_the_client_of_the_benchmarks_is_kept_however_long_it_waits() -> None:
    """Under valgrind a pull takes longer than a server waits for an answer to its ping."""
    service = PumpService(MemoryPump(), Cluster(7))
    limits = ServerLimits(http2=Http2Limits(ping_after_s=0.1, ping_timeout_s=0.5))
    server = Server([service], limits=limits, sinks=service.sinks())
    _, port = await server.start("127.0.0.1", 0)
    wire = await Wire.to(port)
    async with asyncio.timeout(120):
        while wire.pings < 8:  # the first that is not answered ends the connection
            await wire.moved()
    wire.close()
    await server.close()


@LANES
async def test_a_peer_that_says_goodbye_still_gets_its_answers(fast_lane: bool) -> None:  # noqa: FBT001
    pump = MemoryPump()
    pump.gate.clear()
    async with serving(pump, fast_lane=fast_lane) as (server, client):
        first = client.call(request(1))
        await client.send(client.taken() + frames.goaway(0, frames.NO_ERROR))
        await client.pinged()
        pump.gate.set()
        assert (await client.wait(first))[0].is_ok
        await client.wait_closed()
        assert not server.places


@LANES
async def test_a_peer_that_leaves_in_anger_is_let_go(fast_lane: bool) -> None:  # noqa: FBT001
    async with serving(MemoryPump(), fast_lane=fast_lane) as (_, client):
        client.call(request(1))
        await client.send(client.taken() + frames.goaway(0, frames.PROTOCOL_ERROR))
        await client.wait_closed()


async def test_grpclibs_own_client_sees_a_closing_server_as_a_lost_connection() -> None:
    service = PumpService(MemoryPump(), Cluster(7))
    server = Server([service], sinks=service.sinks())
    host, port = await server.start("127.0.0.1", 0)
    async with Channel(host, port) as channel:
        stub = pb.PumpStub(channel)
        payload = codec.decode_write_request(request(1)).payload
        await stub.write_binlog(pb.WriteBinlogReq(cluster_id=7, payload=payload))
        await server.close()
        assert not channel._connected


@LANES
async def test_our_client_gets_its_answers_from_a_server_that_closes(fast_lane: bool) -> None:  # noqa: FBT001
    pump = MemoryPump()
    pump.gate.clear()
    service = PumpService(pump, Cluster(7))
    server = Server([service], limits=PATIENT, sinks=service.sinks() if fast_lane else None)
    host, port = await server.start("127.0.0.1", 0)
    async with PumpClient(host, port, cluster_id=7) as client, asyncio.TaskGroup() as group:
        writing = group.create_task(client.write(prewrite_binlog(Tso(1), prewrite_value=b"v")))
        while not service.statistics().writes_in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0)
        closing = group.create_task(server.close())
        channel = client._channel
        while channel._connected:  # noqa: ASYNC110
            await asyncio.sleep(0)
        pump.gate.set()
        await writing
        await closing
        assert (client.statistics().written, client.statistics().retried) == (1, 0)
