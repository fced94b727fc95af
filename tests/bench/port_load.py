"""A Pump behind its port, and clients that are bytes and no more: nearly all that is counted is the
server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self, cast

from hpack import Encoder

from binlogd.grpc import frames
from binlogd.grpc.prefix import prefixed
from binlogd.merge.stream import merged
from binlogd.ports import ClusterIdentity
from binlogd.pump.pump import Pump
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server
from binlogd.tso import NO_TS, Tso
from binlogd.wire import codec

CLUSTER = 6791641053252586769
_WINDOW_BYTES = 1 << 30
_READ_BYTES = 256 << 10
_FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "127.0.0.1:8250"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-go/1.75.0"),
    ("te", "trailers"),
]


class _OneCluster:
    cluster_id = CLUSTER

    async def adopt(self, cluster_id: int) -> int:
        return CLUSTER


@asynccontextmanager
async def behind_port(
    pump: Pump, cluster: ClusterIdentity | None = None, *, fast_lane: bool = True
) -> AsyncIterator[int]:
    """The port of a Pump that runs."""
    service = PumpService(pump, cluster or _OneCluster())
    server = Server([service], sinks=service.sinks() if fast_lane else None)
    _, port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await service.close()
        await server.close()


async def pulled_bytes(pump: Pump, upto: Tso) -> int:
    """What a pull of all up to a commit takes in DATA frames, which has no more behind it."""
    size = 0
    async with merged(pump.sources(), NO_TS) as stream:
        async for batch in stream:
            size += sum(map(len, codec.pull_chunks(batch.binlogs, chunk_bytes=64 << 10)))
            if batch.resolved_ts >= upto:
                return size
    return size


class Wire(asyncio.BufferedProtocol):
    """One connection of a client that reads frame heads; windows are wide open."""

    def __init__(self) -> None:
        self.data_bytes = 0
        """Of DATA frames, since the connection is there."""
        self.answered = 0
        """Calls that have ended."""
        self.pings = 0
        """Answered, since a server lets go of whoever does not."""
        self._moved = asyncio.Event()
        self._is_lost = False
        self._buffer = bytearray(_READ_BYTES)
        self._filled = 0
        self._stream = -1
        self._encoder = Encoder()

    @classmethod
    async def to(cls, port: int) -> Self:
        """Connects."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(cls, "127.0.0.1", port)
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greets."""
        self._transport = cast(asyncio.Transport, transport)
        settings = frames.setting.pack(frames.INITIAL_WINDOW_SIZE, _WINDOW_BYTES)
        self._transport.write(
            frames.PREFACE
            + frames.frame(frames.SETTINGS, 0, 0, settings)
            + frames.window_update(0, _WINDOW_BYTES)
        )

    def call(self, path: str, message: bytes) -> None:
        """Begins a unary call, or one whose answers are a stream."""
        self._stream += 2
        block = self._encoder.encode([(":path", path), *_FIELDS])
        self._transport.write(
            frames.frame(frames.HEADERS, frames.END_HEADERS, self._stream, block)
            + frames.frame(frames.DATA, frames.END_STREAM, self._stream, prefixed(message))
        )

    async def pull(self, after: Tso, data_bytes: int) -> None:
        """Pulls until so many bytes have come, and gives the call up."""
        until = self.data_bytes + data_bytes
        self.call("/binlog.Pump/PullBinlogs", codec.encode_pull_request(CLUSTER, after))
        while self.data_bytes < until:  # ends with the bytes, or with the connection
            await self.moved()
        assert self.data_bytes == until, f"{self.data_bytes - until} bytes too many"
        cancelled = frames.u32.pack(8)
        self._transport.write(frames.frame(frames.RST_STREAM, 0, self._stream, cancelled))

    async def write(self, payloads: Sequence[bytes]) -> None:
        """Writes binlogs one after the other, each when the one before is acknowledged."""
        for payload in payloads:
            upto = self.answered + 1
            message = codec.encode_write_request(CLUSTER, payload)
            self.call("/binlog.Pump/WriteBinlog", message)
            while self.answered < upto:  # ends with the answer, or with the connection
                await self.moved()

    async def moved(self) -> None:
        """Waits until something has come. Fails with the connection."""
        self._moved.clear()
        await self._moved.wait()
        assert not self._is_lost, "the server has ended the connection"

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tells who waits."""
        self._is_lost = True
        self._moved.set()

    def close(self) -> None:
        """Ends it."""
        self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Looks at the heads of frames."""
        end, at = self._filled + nbytes, 0
        while end - at >= frames.FRAME_HEAD_BYTES:
            word, flags, stream = frames.frame_head.unpack_from(self._buffer, at)
            stop = at + frames.FRAME_HEAD_BYTES + (word >> 8)
            if stop > end:
                break
            kind = word & 0xFF
            if kind == frames.DATA:
                self.data_bytes += word >> 8
            elif kind == frames.PING and not flags & frames.ACK:
                ping = bytes(self._buffer[at + frames.FRAME_HEAD_BYTES : stop])
                self._transport.write(frames.frame(frames.PING, frames.ACK, 0, ping))
                self.pings += 1
            elif kind == frames.HEADERS and flags & frames.END_STREAM:
                self.answered += 1
                status = bytes(self._buffer[at:stop])
                assert status.endswith(b"\x01\x30"), f"not OK on stream {stream}: {status!r}"
            at = stop
        self._buffer[: end - at] = self._buffer[at:end]
        self._filled = end - at
        self._moved.set()
