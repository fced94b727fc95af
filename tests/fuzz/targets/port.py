"""The port, by HTTP/2 and HTTP/1: nothing that a peer sends raises, or leaves anything behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from socket import AF_INET
from types import SimpleNamespace
from typing import Any

import structlog
from hpack import Encoder

from binlogd.grpc import frames
from binlogd.grpc.prefix import prefixed
from binlogd.serving.server import Server
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.binlogs import prewrite_binlog
from tests.support.raw_http2 import call_headers

CLUSTER = 7
_TURNS = 12
_PIECES = (1 << 20, 9, 24, 1)


class _Transport(asyncio.Transport):
    """Takes what is written, and is closed as a socket would be."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__(
            {
                "socket": SimpleNamespace(family=AF_INET, setsockopt=lambda *_: None),
                "peername": ("127.0.0.1", 1),
            }
        )
        self._protocol, self.is_over, self.written = protocol, False, 0

    def write(self, data: Any) -> None:
        self.written += len(data)

    def writelines(self, pieces: Any) -> None:
        self.written += sum(map(len, pieces))

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        """There is no more."""

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All is taken at once."""

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol  # type: ignore[assignment]  # aiohttp never does


class _World:
    """A server without a socket, on a loop of its own."""

    def __init__(self) -> None:
        logging.disable()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        self.loop = asyncio.new_event_loop()
        self.faults: list[Mapping[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self.server = self.loop.run_until_complete(self._started())

    async def _started(self) -> Server:
        from tests.fuzz.serving import server

        found = server()
        await found._web.setup()
        return found

    async def serve(self, data: bytes, piece_bytes: int) -> None:
        connection = self.server._accepted()
        transport = _Transport(connection)
        connection.connection_made(transport)
        for at in range(0, len(data), piece_bytes):
            if transport.is_over:
                break
            connection.data_received(data[at : at + piece_bytes])
            if at % 64 == 0:
                await asyncio.sleep(0)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        transport.close()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        assert not self.server.places
        assert transport.written < (1 << 20) + 100 * len(data)


_WORLDS: list[_World] = []


def seeds() -> list[bytes]:
    """Calls of both kinds, a pull, and requests."""
    encoder, settings = Encoder(), frames.frame(frames.SETTINGS, 0, 0)
    payload = prewrite_binlog(Tso(1 << 60), prewrite_key=b"k", prewrite_value=b"v")
    sent = frames.PREFACE + settings
    for stream, (path, message) in enumerate(
        (
            ("/binlog.Pump/WriteBinlog", codec.encode_write_request(CLUSTER, payload)),
            ("/binlog.Pump/WriteBinlog", codec.encode_write_request(CLUSTER, payload)),
            ("/binlog.Pump/PullBinlogs", codec.encode_pull_request(CLUSTER, Tso(0))),
            ("/nothing", b""),
        )
    ):
        block = encoder.encode(call_headers(path))
        sent += frames.frame(frames.HEADERS, frames.END_HEADERS, 2 * stream + 1, block)
        sent += frames.frame(frames.DATA, frames.END_STREAM, 2 * stream + 1, prefixed(message))
    ping = frames.frame(6, 0, 0, bytes(8))
    others = ping + frames.window_update(0, 7) + frames.reset(1, 8) + frames.goaway(0, 0)
    return [
        b"\0" + sent,
        b"\1" + sent + others,
        b"\0" + frames.PREFACE + settings + others,
        b"\2GET /status HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\0GET /api/transactions?ts=5 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b'\0POST /skip HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"a": 1}\n',
        b"\3PUT /state/a/pause HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\n",
    ]


def run(data: bytes) -> None:
    """The first byte says in which pieces it comes."""
    if not data:
        return
    if not _WORLDS:
        _WORLDS.append(_World())
    world = _WORLDS[0]
    asyncio.set_event_loop(world.loop)
    world.loop.run_until_complete(world.serve(data[1:], _PIECES[data[0] % len(_PIECES)]))
    assert not world.faults, world.faults
    left = asyncio.all_tasks(world.loop)
    for each in left:  # aiohttp listens for some seconds to the rest of what it has refused
        each.cancel()
    world.loop.run_until_complete(asyncio.sleep(0))
    assert len(left) <= 1, left
