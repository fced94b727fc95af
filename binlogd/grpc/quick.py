"""Unary calls of one connection, as cheaply as a client can make them: to measure what serves them.

grpclib's client costs ten times what the fast lane costs, so that with it one measures the client.
Here a call is one block that is always the same and a message; of an answer, the end is read.
Source: RFC 9113 section 6, RFC 7541 section 6.2.2, gRPC's PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from binlogd.grpc import frames
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES, prefixed

_WINDOW_BYTES = 1 << 30  # never given back: enough for 200 million empty answers


class QuickCalls(asyncio.Protocol):
    """Keeps a call in flight for each slot: `message` is asked for the next of a slot when its last
    was answered OK, and says None when there are no more. A message fits the window that the
    server gives to a stream."""

    def __init__(self, path: str, slots: int, message: Callable[[int], bytes | None]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends when no slot has more; with ConnectionError for a refusal or a lost connection."""
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "bench",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        self._block = b"".join(
            frames.literal(name.encode(), value.encode()) for name, value in fields.items()
        )
        self._message = message
        self._slots: dict[int, int] = {}  # by stream
        self._answered: set[int] = set()
        self._begin = range(slots)
        self._stream = 1
        self._rest = b""
        self._window = 65_535  # what the server lets us send
        self._held_back: deque[tuple[bytes, int]] = deque()  # calls, and what each takes of it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greets, and begins."""
        self._transport = cast(asyncio.Transport, transport)
        greeting = frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0)
        opening = frames.window_update(0, _WINDOW_BYTES)
        calls = b"".join(map(self._call, self._begin))
        self._transport.write(greeting + opening + calls)

    def data_received(self, data: bytes) -> None:
        """Answers, and what the connection itself needs."""
        data, at, said = self._rest + data, 0, list[bytes]()
        while len(data) - at >= frames.FRAME_HEAD_BYTES:
            word, flags, stream = frames.frame_head.unpack_from(data, at)
            begin = at + frames.FRAME_HEAD_BYTES
            stop = begin + (word >> 8)
            if stop > len(data):
                break
            at, kind = stop, word & 0xFF
            if kind in (frames.SETTINGS, frames.PING) and not flags & frames.ACK:
                body = data[begin:stop] if kind == frames.PING else b""
                said.append(frames.frame(kind, frames.ACK, 0, body))
            elif kind == frames.DATA:
                self._answered.add(stream)
            elif kind == frames.HEADERS and flags & frames.END_STREAM:
                said.append(self._over(stream, data[begin:stop]))
            elif kind == frames.WINDOW_UPDATE and not stream:
                self._window += frames.u32.unpack_from(data, begin)[0]
                while self._held_back and self._window >= self._held_back[0][1]:
                    said.append(self._sent(*self._held_back.popleft()))
            elif kind in (frames.GOAWAY, frames.RST_STREAM):
                self._end(ConnectionError(f"the call was ended: {data[begin:stop]!r}"))
        self._rest = data[at:]
        self._transport.write(b"".join(said))
        if not self._slots:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells who waits."""
        self._end(exc or ConnectionError("the connection was closed"))

    def close(self) -> None:
        """Ends the connection."""
        self._transport.close()

    def _call(self, slot: int) -> bytes:
        message = self._message(slot)
        if message is None:
            return b""
        stream, self._stream = self._stream, self._stream + 2
        self._slots[stream] = slot
        message, last = prefixed(message), len(message) + MESSAGE_PREFIX_BYTES - 1
        call = frames.frame(frames.HEADERS, frames.END_HEADERS, stream, self._block) + b"".join(
            frames.frame(
                frames.DATA,
                frames.END_STREAM if begin + frames.FRAME_BYTES_MAX > last else 0,
                stream,
                message[begin : begin + frames.FRAME_BYTES_MAX],
            )
            for begin in range(0, len(message), frames.FRAME_BYTES_MAX)
        )
        if self._held_back or self._window < len(message):
            self._held_back.append((call, len(message)))
            return b""
        return self._sent(call, len(message))

    def _over(self, stream: int, trailers: bytes) -> bytes:
        """An error comes without a message."""
        if stream not in self._answered:
            self._end(ConnectionError(f"not OK: {trailers!r}"))
        self._answered.discard(stream)
        return self._call(self._slots.pop(stream))

    def _sent(self, call: bytes, size: int) -> bytes:
        self._window -= size
        return call

    def _end(self, error: Exception | None) -> None:
        if not self.over.done():
            if error is None:
                self.over.set_result(None)
            else:
                self.over.set_exception(error)
