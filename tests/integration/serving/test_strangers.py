"""What somebody who has not written a binlog can make a node hold, in all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from binlogd.client.pump_client import PumpClient
from binlogd.grpc import frames
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.routes.guard import HttpLog
from binlogd.serving.server import Server
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.binlogs import prewrite_binlog
from tests.support.appliance import Appliance
from tests.support.memory_pump import Cluster, MemoryPump
from tests.support.raw_http2 import RawClient, call_headers

CLUSTER = 7
HELD_MAX = 128 << 20
"""Of headers and calls, as docs/SECURITY.md has it: 64 MiB as counted, and as much again."""
CALM = 11
BASE = 412_518_831_548_007_863


@asynccontextmanager
async def serving(*, fast_lane: bool) -> AsyncIterator[tuple[str, int]]:
    service = PumpService(MemoryPump(), Cluster(CLUSTER))
    server = Server([service], sinks=service.sinks() if fast_lane else None)
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await service.close()
        await server.close()


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    machine = Appliance(tmp_path)
    machine.start()
    yield machine
    machine.close()


def bomb(path: bytes, entry_bytes: int, named: int, streams: int) -> bytes:
    """A table entry that is sent once, and named by a byte each in every call; no call ends."""
    own = b"".join(
        b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    size = entry_bytes - 127
    entry = b"\x40\x01x\x7f" + bytes([size & 0x7F | 0x80, size >> 7]) + b"a" * entry_bytes
    blocks = [own + entry, *[own + b"\xbe" * named] * (streams - 1)]
    settings = frames.frame(frames.SETTINGS, 0, 0, b"")
    calls = (
        frames.frame(frames.HEADERS, frames.END_HEADERS, 2 * at + 1, block)
        for at, block in enumerate(blocks)
    )
    return frames.PREFACE + settings + b"".join(calls)


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize(
    ("entry_bytes", "named", "streams"),
    [(3900, 15, 1024), (3900, 1, 256), (200, 1, 256)],
    ids=["as large as HTTP/2 allows", "as large as is decoded", "small ones"],
)
@pytest.mark.parametrize("path", ["/binlog.Pump/WriteBinlog", "/binlog.Pump/PullBinlogs"])
async def test_headers_of_many_connections_have_a_limit_together(
    appliance: Appliance, path: str, entry_bytes: int, named: int, streams: int
) -> None:
    before = resident(appliance.pid)
    sent = bomb(path.encode(), entry_bytes, named, streams)
    async with asyncio.timeout(120), PumpClient(*appliance.target, cluster_id=CLUSTER) as client:
        strangers = []
        for number in range(40):
            _, writer = await asyncio.open_connection(*appliance.target)
            strangers.append(writer)
            writer.write(sent)
            if number % 10 == 9:  # who writes binlogs goes on meanwhile
                await client.write(prewrite_binlog(Tso(BASE + number), prewrite_value=b""))
        await client.write(prewrite_binlog(Tso(BASE + 100), prewrite_value=b""))
        assert resident(appliance.pid) - before < HELD_MAX
        for writer in strangers:
            writer.transport.abort()


@pytest.mark.parametrize("fast_lane", [True, False])
async def test_more_calls_at_once_are_for_those_who_have_written(*, fast_lane: bool) -> None:
    async with serving(fast_lane=fast_lane) as address:
        client = RawClient()
        await client.connect(*address)
        await client.pinged()
        assert client.h2.remote_settings.max_concurrent_streams == 256
        assert client.h2.remote_settings.max_header_list_size == 8192
        message = codec.encode_write_request(
            CLUSTER, prewrite_binlog(Tso(BASE), prewrite_value=b"")
        )
        stream = client.call(message)
        await client.send()
        assert (await client.wait(stream))[0].is_ok
        await client.pinged()
        assert client.h2.remote_settings.max_concurrent_streams == 1024
        client.hang_up()


@pytest.mark.parametrize("fast_lane", [True, False])
async def test_calls_that_are_begun_to_be_reset_end_the_connection(*, fast_lane: bool) -> None:
    async with serving(fast_lane=fast_lane) as address:
        client = RawClient()
        await client.connect(*address)
        with structlog.testing.capture_logs() as events:
            for _ in range(30):
                for _ in range(100):
                    client.h2.reset_stream(client.open(), error_code=8)
                await client.send()
            await client.wait_closed()  # what was on its way may end it before it reads why
        told = [each["cause"] for each in events if each["event"] == "peer_broke_http2"]
        client.hang_up()
        assert told == ["2000 calls were given up at once"]


async def test_a_header_that_is_larger_than_any_ends_the_connection() -> None:
    async with serving(fast_lane=True) as address:
        for size in (9_000, 40_000):
            client = RawClient()
            await client.connect(*address)
            client.open(call_headers(x_large="?" * size))
            await client.send()
            await client.wait_closed()
            assert client.goaway == CALM
            client.hang_up()


UNREADABLE = [
    b"GET / HTTP/9.x\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: many\r\n\r\n",
]


async def test_requests_that_cannot_be_read_take_a_line_of_the_log_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with structlog.testing.capture_logs() as events:
        async with serving(fast_lane=False) as address:
            for request in [*UNREADABLE, *UNREADABLE]:
                answer = await answered(address, request)
                assert answer.startswith(b"HTTP/1.0 400")
                assert b"\r\nServer: binlogd\r\n" in answer
    assert [each["event"] for each in events].count("request_not_understood") == 1
    assert caplog.text == ""


async def test_the_log_quotes_nothing_of_a_request_that_cannot_be_read() -> None:
    """A client that ends its lines by LF alone sends the token all the same."""
    request = b"GET /skips HTTP/1.1\nHost: a\nAuthorization: Bearer a-secret\n\r\n\r\n"
    with structlog.testing.capture_logs() as events:
        async with serving(fast_lane=False) as address:
            assert (await answered(address, request)).startswith(b"HTTP/1.0 400")
    (noted,) = [each for each in events if each["event"] == "request_not_understood"]
    assert noted["cause"] == "Bad status line: Expected CRLF after version:"


async def test_a_body_that_nobody_reads_is_not_unpacked(caplog: pytest.LogCaptureFixture) -> None:
    """Megabytes of it would be gigabytes: writers waited for seconds. What is none was a stack."""
    head = b"PATCH / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
    async with serving(fast_lane=False) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(head + b"Content-Length: 5\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
        writer.write(b"no gz")
        await reader.read()
        writer.close()
    assert caplog.text == ""


def test_a_client_that_has_gone_is_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    HttpLog().exception("Error handling request", exc_info=ConnectionResetError("closing"))
    assert caplog.text == ""
    HttpLog().exception("Error handling request", exc_info=ValueError("unforeseen"))
    assert "unforeseen" in caplog.text


async def test_a_method_that_no_route_has_is_answered() -> None:
    async with serving(fast_lane=False) as address:
        request = b"PATCH /status HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        assert (await answered(address, request)).startswith(b"HTTP/1.1 404")


async def answered(address: tuple[str, int], request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    try:
        return await reader.read(1 << 16)
    finally:
        writer.close()
