"""The prefix of a message in a gRPC stream, and messages cut out of the bytes of one.

Made to be compiled. Source: gRPC's PROTOCOL-HTTP2.md, Length-Prefixed-Message.
"""

from __future__ import annotations

from typing import Final

from binlogd.errors import MalformedBinlog

MESSAGE_PREFIX_BYTES: Final = 5
"""What stands before each message of a gRPC stream: a compressed flag and the length."""
_LARGE_BYTES = 1 << 20  # above it a copy costs more than the care to avoid it


def prefixed(message: bytes) -> bytes:
    """A message as it stands in a gRPC stream, not compressed."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


class MessageCutter:
    """Cuts the bytes of a gRPC stream, as they arrive, into messages."""

    def __init__(self, message_bytes_max: int) -> None:
        self._limit = message_bytes_max
        self._rest: list[bytes] = []  # an incomplete message and its prefix
        self._held = 0
        self._needed = MESSAGE_PREFIX_BYTES

    @property
    def is_inside(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._held > 0

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes. Raises MalformedBinlog.

        A message above the limit is refused as soon as its prefix is there.
        """
        self._rest.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return []
        if self._needed > _LARGE_BYTES:
            return self._large()
        data = b"".join(self._rest)
        messages, pos, end = [], 0, len(data)
        self._needed = MESSAGE_PREFIX_BYTES
        while end - pos >= MESSAGE_PREFIX_BYTES:
            begin = pos + MESSAGE_PREFIX_BYTES
            length = int.from_bytes(data[pos + 1 : begin], "big")
            if data[pos]:
                raise MalformedBinlog("a compressed message, without an encoding agreed on")
            if length > self._limit:
                raise MalformedBinlog(
                    f"received message larger than max ({length} vs. {self._limit})"
                )
            if begin + length > end:
                self._needed = MESSAGE_PREFIX_BYTES + length
                break
            pos = begin + length
            messages.append(data[begin:pos])
        self._rest = [data[pos:]] if pos < end else []
        self._held = end - pos
        return messages

    def _large(self) -> list[bytes]:
        """The large message that has just become whole, copied once, and what came behind it."""
        last = self._rest.pop()
        cut = len(last) - (self._held - self._needed)
        pieces = [*(memoryview(piece) for piece in self._rest), memoryview(last)[:cut]]
        pieces[0] = pieces[0][MESSAGE_PREFIX_BYTES:]  # the piece in which it was seen to be large
        message = b"".join(pieces)
        self._rest, self._held, self._needed = [], 0, MESSAGE_PREFIX_BYTES
        return [message, *(self.feed(last[cut:]) if cut < len(last) else ())]
