"""Binlogs of any size to and from a Pump, without holding one in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import google_crc32c
from grpclib.client import Channel
from grpclib.const import Cardinality

from binlogd.grpc.channel import BytesCodec
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.fields import uvarint

PIECE = bytes(range(256)) * 4096
CLUSTER = 7


def prewrite_pieces(start_ts: Tso, value_bytes: int) -> Iterator[bytes]:
    """A canonical Prewrite whose value has that many bytes."""
    yield b"\x08\x00\x10" + uvarint(start_ts) + b"\x18\x00\x22\x03key\x2a" + uvarint(value_bytes)
    yield from _value_pieces(value_bytes)
    yield b"\x38\x00\x40\x00"


def _value_pieces(value_bytes: int) -> Iterator[bytes]:
    for left in range(value_bytes, 0, -len(PIECE)):
        yield PIECE[:left]


async def write_large(channel: Channel, start_ts: Tso, value_bytes: int) -> None:
    """One WriteBinlog of such a Prewrite. Raises GRPCError."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in prewrite_pieces(start_ts, value_bytes):
            yield piece

    await send_payload(channel, sum(map(len, prewrite_pieces(start_ts, value_bytes))), pieces())


async def send_payload(channel: Channel, size_bytes: int, pieces: AsyncIterator[bytes]) -> None:
    """One WriteBinlog of a payload that comes in pieces. Raises GRPCError."""
    head = b"\x08" + uvarint(CLUSTER) + b"\x12" + uvarint(size_bytes)
    size = len(head) + size_bytes
    async with channel.request(
        "/binlog.Pump/WriteBinlog", Cardinality.UNARY_UNARY, bytes, bytes
    ) as stream:
        await stream.send_request()
        body = stream._stream
        with stream._wrapper:  # who ends what waits when the connection is lost
            await body.send_data(b"\x00" + size.to_bytes(4, "big") + head)
            async for piece in pieces:
                await body.send_data(piece)
            await body.end()
        stream._send_message_done = stream._end_done = True  # it was sent in pieces
        answer = await stream.recv_message()
    assert answer == b"", answer


async def announce(channel: Channel, size: int) -> None:
    """Begins a WriteBinlog of that size, and waits for what is said to it. Raises GRPCError."""
    async with channel.request(
        "/binlog.Pump/WriteBinlog", Cardinality.UNARY_UNARY, bytes, bytes
    ) as stream:
        await stream.send_request()
        await stream._stream.send_data(b"\x00" + size.to_bytes(4, "big") + bytes(100))
        await stream.recv_message()


async def pull_large(channel: Channel, after: Tso, value_bytes: int) -> None:
    """The first large binlog behind `after`; checks its value byte by byte."""
    wanted = 0
    for piece in _value_pieces(value_bytes):
        wanted = google_crc32c.extend(wanted, piece)
    async with channel.request(
        "/binlog.Pump/PullBinlogs", Cardinality.UNARY_STREAM, bytes, bytes
    ) as stream:
        await stream.send_message(codec.encode_pull_request(CLUSTER, after), end=True)
        await stream.recv_initial_metadata()
        body = stream._stream
        while True:  # ends with the large one; fakes may come before it
            prefix = await body.recv_data(MESSAGE_PREFIX_BYTES)
            size = int.from_bytes(prefix[1:], "big")
            if size > value_bytes:
                break
            await body.recv_data(size)
        head = await body.recv_data(200)
        begin = head.index(PIECE[:64])
        found = google_crc32c.value(head[begin:])
        left = value_bytes - (len(head) - begin)
        while left:  # ends: every turn reads a piece
            piece = await body.recv_data(min(left, len(PIECE)))
            found = google_crc32c.extend(found, piece)
            left -= len(piece)
        await body.recv_data(size - len(head) - (value_bytes - (len(head) - begin)))
        assert found == wanted, "the value came back with other bytes"
        await stream.cancel()


def memory_bytes(process: int | str, field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (the most so far) of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} of process {process}")


def forget_peak(process: int) -> None:
    """Lets VmHWM begin again with what is there now."""
    Path(f"/proc/{process}/clear_refs").write_text("5")


def raw_channel(host: str, port: int) -> Channel:
    """A connection that speaks messages as bytes."""
    return Channel(host, port, codec=BytesCodec())
