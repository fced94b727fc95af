"""The messages of a client's stream, below grpclib's own: as many are read as have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from grpclib.client import Stream

from binlogd.errors import MalformedBinlog
from binlogd.grpc.prefix import MessageCutter, prefixed


class Inbox:
    """Stands in for grpclib's buffer of a stream, and cuts whatever has arrived into messages.

    grpclib hands out one message at a time, at six times the cost. What was not taken yet is not
    given back to the sender's window, so the window bounds it.
    """

    def __init__(self, stream: Stream[bytes, bytes], message_bytes_max: int) -> None:
        inner = stream._stream  # noqa: SLF001 # no public way to the bytes of a stream
        self._wrapper = stream._wrapper  # noqa: SLF001 # wakes us when the connection is lost
        self._ack: Callable[[int], None] = inner.buffer._ack_callback  # noqa: SLF001
        inner.buffer = self  # type: ignore[assignment] # add, eof and unacked_size are all it needs
        self._cutter = MessageCutter(message_bytes_max)
        self._arrived: list[bytes] = []
        self._unacked = 0
        self._is_over = False
        self._changed = asyncio.Event()

    async def messages(self) -> list[bytes]:
        """All messages that have arrived, at least one; none at the end of the stream."""
        with self._wrapper:
            while True:  # until a message is complete, or the stream ends
                arrived, self._arrived = self._arrived, []
                if self._unacked:
                    self._ack(self.unacked_size())
                messages = [message for data in arrived for message in self._cutter.feed(data)]
                if messages:
                    return messages
                if self._is_over and not self._arrived:
                    if self._cutter.is_inside:
                        raise MalformedBinlog("unexpected EOF")
                    return []
                self._changed.clear()
                await self._changed.wait()

    def add(self, data: bytes, ack_size: int) -> None:
        """Called by grpclib with what has arrived."""
        self._arrived.append(data)
        self._unacked += ack_size
        self._changed.set()

    def eof(self) -> None:
        """Called by grpclib at the end of the stream."""
        self._is_over = True
        self._changed.set()

    def unacked_size(self) -> int:
        """Called by grpclib when it lets go of the stream."""
        unacked, self._unacked = self._unacked, 0
        return unacked


async def send(stream: Stream[bytes, bytes], message: bytes) -> None:
    """One message of a request; grpclib would wrap each once more."""
    await stream._stream.send_data(prefixed(message))  # noqa: SLF001 # see above
