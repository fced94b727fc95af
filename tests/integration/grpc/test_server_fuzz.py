"""Damaged connections: whatever arrives, nothing is raised, and the next connection is served."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection

from binlogd.grpc.prefix import prefixed
from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.in_flight import ServiceLimits
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.binlogs import prewrite_binlog
from tests.support.memory_pump import Cluster, MemoryPump, nothing_to_do

CONNECTIONS = 400


def conversation(seed: random.Random) -> bytes:
    """What a client sends: some calls, a cancelled one, settings and pings between."""
    client = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
    client.initiate_connection()
    for _ in range(seed.randrange(1, 6)):
        stream = client.get_next_available_stream_id()
        path = seed.choice(["Pump/WriteBinlog", "Pump/PullBinlogs", "Cistern/Notify", "No/Such"])
        client.send_headers(
            stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/binlog.{path}"),
                (":authority", "fuzz"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("grpc-timeout", f"{seed.randrange(1, 99999)}m"),
                ("user-agent", "fuzz"),
            ],
        )
        payload = prewrite_binlog(Tso(seed.randrange(1 << 60)), prewrite_value=seed.randbytes(40))
        client.send_data(stream, prefixed(codec.encode_write_request(1, payload)))
        match seed.randrange(5):
            case 0:
                client.reset_stream(stream)
            case 1:
                client.ping(b"12345678")
                client.end_stream(stream)
            case 2:
                client.update_settings({4: seed.randrange(1 << 20)})
                client.end_stream(stream)
            case _:
                client.end_stream(stream)
    return client.data_to_send()


def damaged(whole: bytes, seed: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(seed.randrange(4)):
        at = seed.randrange(24, len(data))
        match seed.randrange(4):
            case 0:
                data[at] ^= 1 << seed.randrange(8)
            case 1:
                del data[at : at + seed.randrange(1, 20)]
            case 2:
                data[at:at] = seed.randbytes(seed.randrange(1, 20))
            case _:
                data[at:at] = data[24:at]  # frames twice
        if len(data) <= 25:
            break
    return bytes(data)


async def send_and_leave(host: str, port: int, data: bytes, seed: random.Random) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        while data and not writer.is_closing():
            size = seed.choice([1, 7, 1000, 100_000])
            writer.write(data[:size])
            data = data[size:]
            await asyncio.sleep(0)
        if seed.randrange(2):
            await writer.drain()
            await reader.read(1000)
    except ConnectionError:
        return  # the server hung up first, as it may
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.filterwarnings("default::ResourceWarning")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_damaged_connections_raise_nothing_and_the_next_one_is_served(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(damage_many())


async def damage_many() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    pump = MemoryPump()
    service = PumpService(pump, Cluster(1), ServiceLimits(message_bytes_max=1 << 20))
    server = Server([service, CisternService(nothing_to_do)], sinks=service.sinks())
    host, port = await server.start("127.0.0.1", 0)
    for number in range(CONNECTIONS):
        seed = random.Random(number)
        whole = conversation(seed)
        await send_and_leave(host, port, damaged(whole, seed), seed)
        assert complaints == [], f"seed {number}"
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 404")
    writer.close()
    await writer.wait_closed()
    await service.close()
    await server.close()
    assert complaints == []
    assert service.statistics().bytes_in_flight == 0
