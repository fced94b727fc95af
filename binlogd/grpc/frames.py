"""HTTP/2 frames as bytes, and a gRPC server's answers made beforehand. No state, no I/O.

Invariant. The header blocks written here neither read nor change a compression table, so the same
bytes are right on every connection and whatever other blocks are written between them.

Source: RFC 9113 section 4 and 6, RFC 7541 section 6.2.2, gRPC's PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from urllib.parse import quote

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384
"""The largest body of a frame that a peer may send unless it was allowed more."""
WINDOW_BYTES_MAX: Final = 0x7FFFFFFF
STREAM_MAX: Final = 0x7FFFFFFF

DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING = 0, 1, 3, 4, 5, 6
GOAWAY, WINDOW_UPDATE, CONTINUATION = 7, 8, 9

END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, REFUSED_STREAM = 0, 1, 3, 5, 7

OK_DATA_BYTES: Final = 5
"""What an OK takes of the peer's window: the prefix of an empty message."""

frame_head = Struct("!IBI")
"""Length and type in one word (length << 8 | type), flags, stream."""

u32 = Struct("!I")
setting = Struct("!HI")
"""Name and value of one setting."""
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 1, 4

_SAFE_IN_MESSAGE = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """One frame; `body` must not be larger than the peer allows."""
    return frame_head.pack(len(body) << 8 | kind, flags, stream) + body


def reset(stream: int, code: int) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream, u32.pack(code))


def window_update(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE of a stream, or of the connection for stream 0."""
    return frame(WINDOW_UPDATE, 0, stream, u32.pack(increment))


def goaway(last_stream: int, code: int) -> bytes:
    """GOAWAY: streams above `last_stream` were not looked at, and may be sent elsewhere."""
    return frame(GOAWAY, 0, 0, u32.pack(last_stream) + u32.pack(code))


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that goes into no table and comes from none."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    head, size = b"\x7f", size - 0x7F
    while size >= 0x80:
        head += bytes((size & 0x7F | 0x80,))
        size >>= 7
    return head + bytes((size,)) + text


_STATUS_200 = b"\x88" + literal(b"content-type", b"application/grpc+proto")
_OK_FRAMES = (
    frame(HEADERS, END_HEADERS, 0, _STATUS_200),
    frame(DATA, 0, 0, bytes(OK_DATA_BYTES)),
    frame(HEADERS, END_HEADERS | END_STREAM, 0, literal(b"grpc-status", b"0")),
)
_heads = [each[:5] for each in _OK_FRAMES]
_rests = [each[FRAME_HEAD_BYTES:] for each in _OK_FRAMES]
_OK_1: Final = _heads[0]
_OK_2: Final = _rests[0] + _heads[1]
_OK_3: Final = _rests[1] + _heads[2]
_OK_4: Final = _rests[2]


def ok_answer(stream: int) -> bytes:
    """Headers, an empty message, trailers with status OK. Hot."""
    number = stream.to_bytes(4, "big")
    return _OK_1 + number + _OK_2 + number + _OK_3 + number + _OK_4


def error_answer(stream: int, status: int, message: str) -> bytes:
    """Trailers alone, which end the call with a status that is not OK."""
    text = quote(message, safe=_SAFE_IN_MESSAGE, errors="replace").encode("ascii")
    block = _STATUS_200 + literal(b"grpc-status", b"%d" % status) + literal(b"grpc-message", text)
    if len(block) <= FRAME_BYTES_MAX:
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
    pieces = [block[at : at + FRAME_BYTES_MAX] for at in range(0, len(block), FRAME_BYTES_MAX)]
    answer = frame(HEADERS, END_STREAM, stream, pieces[0])
    for piece in pieces[1:-1]:
        answer += frame(CONTINUATION, 0, stream, piece)
    return answer + frame(CONTINUATION, END_HEADERS, stream, pieces[-1])
