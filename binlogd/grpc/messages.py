"""The messages of a call as bytes: checked before they are buffered, joined, compressed.

grpclib buffers whatever a prefix announces, knows no compression, and hands the network one frame
at a time. So all three happen here, on the streams below its own. Texts are those of grpc-go.
Source: google.golang.org/grpc rpc_util.go and server.go; gRPC's PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from io import BytesIO
from typing import TypeVar

from grpclib import protocol
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream
from h2.exceptions import StreamClosedError

from binlogd.errors import RecordTooLarge
from binlogd.grpc.compression import Inflater, NotGzip, deflated
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES

T = TypeVar("T")

PIECE_BYTES = 256 << 10
ARRIVAL_S = 30.0
"""How long a peer may take for a message; longer the larger it is."""
_SLOWEST_BYTES_S = 4 << 20
_STEPS_A_TURN = 64
"""Of one message that is inflated: a step may be next to nothing, and there may be millions."""
_STEPS_AT_ONCE = 4
"""Of one that is compressed: a small one takes no more."""
_GZIP = "gzip"
_IDENTITY = ("", "identity")
BytesStream = Stream[bytes, bytes]


class CallStream(protocol.Stream):
    """grpclib's stream, which remembers how the peer has encoded its messages, and tells its
    connection when a binlog was written."""

    encoding = ""
    on_written: Callable[[], None] | None = None


class Incoming:
    """The messages of a request, one after the other, each checked before it is buffered."""

    def __init__(self, stream: BytesStream, bytes_max: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self.is_compressed = False
        """Whether the next message is."""

    async def first_size(self) -> int:
        """As `next_size`, of a request that has a message. Raises GRPCError if it has none."""
        size_bytes = await self.next_size()
        if size_bytes is None:
            raise GRPCError(Status.INTERNAL, "a request without a message")
        return size_bytes

    async def next_size(self) -> int | None:
        """What the next message has in bytes as it is sent; None at the end. Raises GRPCError if
        that is too much, or if it is compressed in a way that is not known."""
        encoding = _encoding(self._stream)
        if encoding not in (*_IDENTITY, _GZIP):
            raise GRPCError(
                Status.UNIMPLEMENTED,
                f'grpc: Decompressor is not installed for grpc-encoding "{encoding}"',
            )
        prefix = await piece(self._stream, MESSAGE_PREFIX_BYTES)
        if not prefix:
            return None
        if prefix[0] > 1:
            raise GRPCError(
                Status.INTERNAL, f"grpc: received unexpected payload format {prefix[0]}"
            )
        if prefix[0] and encoding in _IDENTITY:
            raise GRPCError(
                Status.INTERNAL, "grpc: compressed flag set with identity or empty encoding"
            )
        size_bytes = self._size_bytes = int.from_bytes(prefix[1:], "big")
        self.is_compressed = bool(prefix[0])
        if size_bytes > self._bytes_max:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED, f"grpc: {RecordTooLarge(size_bytes, self._bytes_max)}"
            )
        return size_bytes

    async def message(self) -> bytes:
        """That next message, as it was meant. Raises GRPCError."""
        message = await gathered(self._stream, BytesIO(), self._size_bytes)
        return await inflated(message, self._bytes_max) if self.is_compressed else message


async def read_message(stream: BytesStream, bytes_max: int, patience_s: float = ARRIVAL_S) -> bytes:
    """The one message of a request. Raises GRPCError, also when it does not come in time."""

    async def whole() -> bytes:
        await incoming.first_size()
        return await incoming.message()

    incoming = Incoming(stream, bytes_max)
    return await in_time(whole(), bytes_max, patience_s)


async def in_time(arriving: Awaitable[T], size_bytes: int, patience_s: float) -> T:
    """What reads a message or its announcement, given up when that takes longer than a slow network
    would: it has room that others wait for. Raises GRPCError."""
    limit_s = patience_s + size_bytes / _SLOWEST_BYTES_S
    try:
        async with asyncio.timeout(limit_s):
            return await arriving
    except TimeoutError as error:
        raise GRPCError(
            Status.DEADLINE_EXCEEDED, f"no whole message came within {limit_s:.1f} s"
        ) from error


async def gathered(stream: BytesStream, so_far: BytesIO, left: int) -> bytes:
    """What was gathered and the `left` bytes that follow it; its memory is never doubled."""
    while left:  # ends: every turn reads a byte or raises
        part = await piece(stream, min(left, PIECE_BYTES))
        if not part:
            raise GRPCError(Status.INTERNAL, "unexpected EOF")
        so_far.write(part)
        left -= len(part)
    return so_far.getvalue()  # CPython hands out the buffer itself


async def piece(stream: BytesStream, size_bytes: int) -> bytes:
    """The next bytes of a request; none at its end. Raises GRPCError."""
    try:
        # grpclib itself would buffer whatever is announced
        return await stream._stream.recv_data(size_bytes)  # noqa: SLF001 # see above
    except AssertionError as error:  # grpclib's word for a stream that ends inside a message
        raise GRPCError(Status.INTERNAL, "unexpected EOF") from error


async def inflated(
    message: bytes, bytes_max: int, take: Callable[[int], None] | None = None
) -> bytes:
    """A compressed message as it was meant. Raises GRPCError.

    `take` is told of each step before the next, and may refuse it; other work goes on between.
    """
    inflater, whole = Inflater(), BytesIO()
    begun_at = 0
    try:
        for number, step in enumerate(inflater.steps(message, PIECE_BYTES)):
            if take is not None:
                take(len(step))
            whole.write(step)
            if whole.tell() > bytes_max:
                raise GRPCError(
                    Status.RESOURCE_EXHAUSTED,
                    "grpc: received message after decompression larger than max"
                    f" ({whole.tell()} vs. {bytes_max})",
                )
            if number % _STEPS_A_TURN == _STEPS_A_TURN - 1 or whole.tell() - begun_at > PIECE_BYTES:
                await asyncio.sleep(0)
                begun_at = whole.tell()
        inflater.end()
    except NotGzip as error:
        raise GRPCError(
            Status.INTERNAL, f"grpc: failed to decompress the received message: {error}"
        ) from error
    return whole.getvalue()


async def begin_answer(stream: BytesStream) -> None:
    """The headers of an answer, in the encoding that the request has chosen."""
    if _encoding(stream) != _GZIP:
        await stream.send_initial_metadata()
        return
    # grpclib has no room for this header in its own
    await stream._stream.send_headers(  # noqa: SLF001 # see above
        [(":status", "200"), ("content-type", "application/grpc+proto"), ("grpc-encoding", _GZIP)]
    )
    stream._send_initial_metadata_done = True  # noqa: SLF001 # see above


async def send_empty(stream: BytesStream) -> None:
    """The answer that says no more than OK."""
    if _encoding(stream) == _GZIP:
        await begin_answer(stream)
        await send_joined(stream, await compressed(()))
        stream._send_message_done = True  # noqa: SLF001 # see above
    else:
        await stream.send_message(b"")


def note_written(stream: BytesStream) -> None:
    """A binlog that came on it was taken."""
    inner = stream._stream  # noqa: SLF001 # what knows the connection
    if isinstance(inner, CallStream) and inner.on_written is not None:
        inner.on_written()


def compresses(stream: BytesStream) -> bool:
    """Whether the messages of an answer go through `compressed`."""
    return _encoding(stream) == _GZIP


async def compressed(parts: Iterable[bytes]) -> bytes:
    """One message, given in parts, with its prefix; other work goes on between its steps."""
    views = (
        memoryview(part)[at : at + PIECE_BYTES]
        for part in parts
        for at in range(0, len(part), PIECE_BYTES)
    )
    pieces = []
    for number, step in enumerate(deflated(views)):
        pieces.append(step)
        if number >= _STEPS_AT_ONCE:
            await asyncio.sleep(0)
    size = sum(map(len, pieces))
    return b"".join((b"\x01", size.to_bytes(4, "big"), *pieces))


async def send_joined(stream: BytesStream, data: bytes) -> None:
    """Writes bytes of an answer: all that the windows allow in one go.

    An open window never waits, so others get a turn afterwards.
    """
    inner = stream._stream  # noqa: SLF001 # grpclib's own writes each frame by itself
    h2, connection, stream_id = inner._h2_connection, inner.connection, inner.id  # noqa: SLF001
    assert stream_id is not None
    view = memoryview(data)
    at, end = 0, len(view)
    with suppress(StreamClosedError):  # reset in this turn: the call is about to be cancelled
        while at < end:  # ends: every turn sends a byte, or waits for the peer
            await connection.write_ready.wait()
            window = h2.local_flow_control_window(stream_id)
            if window <= 0:
                inner.window_updated.clear()
                await inner.window_updated.wait()
                continue
            stop = min(end, at + window)
            for begin in range(at, stop, h2.max_outbound_frame_size):
                h2.send_data(
                    stream_id, bytes(view[begin : min(stop, begin + h2.max_outbound_frame_size)])
                )
            inner._transport.write(h2.data_to_send())  # noqa: SLF001 # see above
            at = stop
    await asyncio.sleep(0)


def _encoding(stream: BytesStream) -> str:
    inner = stream._stream  # noqa: SLF001 # the headers are not handed to a handler
    return inner.encoding if isinstance(inner, CallStream) else ""
