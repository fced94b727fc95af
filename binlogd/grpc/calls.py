"""Unary gRPC calls of one connection, taken out of its bytes in the form in which clients write
them, and answered. One pass over the bytes, no I/O, made to be compiled.

Invariant. What `take` takes is whole: HEADERS with all headers and one DATA frame with one message
and the end of the stream. It stops in front of anything else, and changes nothing by looking at it
but the table of header fields, which it remembers to have read.
Source: RFC 9113 section 6, gRPC's PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from binlogd.grpc.blocks import BlockReader, Field, weight
from binlogd.grpc.frames import (
    FRAME_BYTES_MAX,
    FRAME_HEAD_BYTES,
    OK_DATA_BYTES,
    STREAM_MAX,
    ok_answer,
    window_update,
)
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES

if TYPE_CHECKING:
    from mypy_extensions import i64

_FIELDS_MAX: Final = 64
_TIMEOUT: Final = b"grpc-timeout"
_SHAPES_MAX: Final = 16
_SHAPE_BYTES_MAX: Final = 2 << 10  # a larger one is judged by grpclib each time
_CONTENT_TYPES: Final = (b"application/grpc", b"application/grpc+proto")
_OWN_FIELDS: Final = (b"grpc-accept-encoding", _TIMEOUT, b"grpc-tags-bin", b"grpc-trace-bin")
_TABLE_BYTES: Final = 4096
_TIMEOUT_DIGITS_MAX: Final = 8
_UNITS: Final = b"HMSmun"
_NOTHING: Final[list[Field]] = []
_NO_PIECES: Final[list[bytes]] = []

_DATA_HEAD_BYTES: Final[int] = FRAME_HEAD_BYTES + MESSAGE_PREFIX_BYTES
"""A frame's, and the prefix of the message that it begins with."""
_HEADS_BYTES: Final[int] = FRAME_HEAD_BYTES + _DATA_HEAD_BYTES

Shape = tuple[Field, ...]
"""The headers of a call, all but its timeout."""


class Inlet:
    """The calls of one method, of all connections, that are whole and wait to be served.

    `room` is how many bytes more may be taken before somebody asks whether there is more.
    """

    def __init__(self, message_bytes_max: int) -> None:
        self.message_bytes_max = message_bytes_max
        self.room = 0
        self.calls: list[Call] = []
        self.messages: list[bytes] = []
        self.size = 0  # what the budget was or will be asked for, prefixes included
        self.uncounted = 0  # how much of that the budget has not heard of
        self.uncounted_calls = 0

    def add(self, call: Call, message: bytes) -> None:
        """One more, which is whole now."""
        call.is_complete = True
        self.uncounted_calls += 1
        self.calls.append(call)
        self.messages.append(message)

    def drain(self) -> Gathered:
        """What has gathered; the next ones gather anew."""
        gathered = Gathered(self.calls, self.messages, self.size)
        self.calls = []
        self.messages = []
        self.size = 0
        return gathered


class Gathered:
    """Calls that are served together, and their messages without prefixes."""

    def __init__(self, calls: list[Call], messages: list[bytes], size: int) -> None:
        self.calls = calls
        self.messages = messages
        self.size = size


class Call:
    """A stream of the fast lane until it is answered, reset or declined."""

    def __init__(self, owner: object, stream: int, inlet: Inlet, fields: list[Field]) -> None:
        self.owner = owner
        self.stream = stream
        self.inlet = inlet
        self.fields = fields
        self.pieces = _NO_PIECES  # of a message in several frames
        self.size = 0  # received, prefix included
        self.returned = 0  # how many of these the peer may send again already
        self.counted = 0  # what the budget keeps for it
        self.held = 0  # what its headers count for
        self.granted = 0  # of the peer's window, beyond what a stream begins with
        self.is_complete = False

    def put(self, data: bytes) -> None:
        """What one more frame brings. The prefix is in one piece, and so are small neighbours:
        else a frame of two bytes would be held as an object."""
        pieces = self.pieces
        if not pieces:
            self.pieces = [data]
        elif (
            len(pieces[-1]) < MESSAGE_PREFIX_BYTES or len(pieces[-1]) + len(data) <= FRAME_BYTES_MAX
        ):
            pieces[-1] += data
        else:
            pieces.append(data)
        self.size += len(data)


class CallTable:
    """The calls of one connection: open ones, and those that wait for the peer's window."""

    def __init__(self, owner: object, reader: BlockReader, inlets: dict[bytes, Inlet]) -> None:
        """`inlets`: of the methods that take such calls, by path."""
        self.open: dict[int, Call] = {}  # taken and not answered
        self.blocked: dict[int, Call] = {}  # to be answered OK when the peer opens its window
        self.abandoned = 0  # reset by the peer while somebody works on them
        self.table_size = _TABLE_BYTES
        """Of what h2 encodes: the smallest that the peer has set, for h2 answers that only in its
        next block."""
        self.highest = 0  # the largest stream so far
        self.held = 0  # bytes received and not given back
        self.freed = 0  # how many of them may go back
        self.fields: list[Field] | None = None
        self.has_read = False
        """Whether `take` stopped at a block that it has read; `fields` are what it says."""
        self._owner = owner
        self._reader = reader
        self._inlets = inlets
        self._shapes: dict[Shape, Inlet | None] = {}  # whose call such headers are
        self._judged: list[Any] = []  # headers without a timeout, the same objects
        self._judgement: Inlet | None = None

    def take(self, data: bytes, at: i64, *, streams: i64, window: i64) -> i64:
        """Takes calls from `at` on into their inlets, at most so many, and no more bytes than the
        window has; returns where something else begins."""
        self.has_read = False
        end: i64 = len(data)
        while end - at >= _HEADS_BYTES and streams > 0:
            block_at: i64 = at + FRAME_HEAD_BYTES
            body_at: i64 = block_at + _u24(data, at)
            if data[at + 3] != 1 or data[at + 4] != 4 or body_at + _DATA_HEAD_BYTES > end:
                break
            stream: i64 = _u32(data, at + 5)
            size: i64 = _u24(data, body_at)
            stop: i64 = body_at + FRAME_HEAD_BYTES + size
            if (
                data[body_at + 3] != 0
                or data[body_at + 4] != 1
                or _u32(data, body_at + 5) != stream
                or data[body_at + 9] != 0  # compressed
                or _u32(data, body_at + 10) + MESSAGE_PREFIX_BYTES != size
                or size > FRAME_BYTES_MAX
                or body_at - block_at > FRAME_BYTES_MAX
                or stop > end
                or size > window
                or not stream & 1
                or stream <= self.highest
                or stream > STREAM_MAX
            ):
                break
            fields = self._reader.look_ahead(data[block_at:body_at])
            inlet = None if fields is None else self.inlet_of(fields)
            if (
                fields is None
                or inlet is None
                or size > inlet.room
                or size > inlet.message_bytes_max
            ):
                self.has_read = True
                self.fields = fields
                break
            call = Call(self._owner, stream, inlet, _NOTHING)  # whole: nobody asks again
            call.size = call.counted = size
            inlet.add(call, data[stop - size + MESSAGE_PREFIX_BYTES : stop])
            inlet.size += size
            inlet.uncounted += size
            inlet.room -= size
            self.open[stream] = call
            self.highest = stream
            self.held += size
            window -= size
            streams -= 1
            at = stop
        return at

    def more(self, data: bytes, at: i64, *, window: i64) -> i64:
        """Takes frames from `at` on that go on with messages which have their room, as long as all
        that is held is within the window; returns where something else begins, be it an end."""
        end: i64 = len(data)
        while end - at >= FRAME_HEAD_BYTES and data[at + 3] == 0 and data[at + 4] == 0:
            body_at: i64 = at + FRAME_HEAD_BYTES
            size: i64 = _u24(data, at)
            call = self.open.get(_u32(data, at + 5))
            if (
                size > FRAME_BYTES_MAX
                or size > end - body_at
                or self.held + size > window
                or call is None
                or call.is_complete
                or call.size + size > call.counted
            ):
                break
            at = body_at + size
            call.put(data[body_at:at])
            self.held += size
            self.free(call)
        return at

    def free(self, call: Call) -> None:
        """The peer may send as much again as has come of a message that has its room: else some
        that have begun could take the whole window, and none of them end."""
        self.freed += call.size - call.returned
        call.returned = call.size

    def given_back(self) -> bytes:
        """A frame that gives the peer back what is free."""
        freed, self.freed = self.freed, 0
        self.held -= freed
        return window_update(0, freed)

    def inlet_of(self, fields: list[Field]) -> Inlet | None:
        """Whose call these headers begin, if a call with such headers was judged before."""
        if not self._is_as_judged(fields):
            shape = shape_of(fields)
            self._judged = [] if shape is None else list(shape)
            self._judgement = None if shape is None else self._shapes.get(shape)
        return self._judgement

    def _is_as_judged(self, fields: list[Any]) -> bool:
        """Whether these are the very fields that were judged last, but for the timeout."""
        judged, at = self._judged, 0
        for field in fields:
            if at < len(judged) and field is judged[at]:
                at += 1
            elif field[0] != _TIMEOUT or not _is_timeout(field[1]):
                return False
        return at == len(judged) > 0 and len(fields) <= _FIELDS_MAX

    def judge(self, fields: list[Field]) -> Inlet | None:
        """Whose call these headers begin: nobody's, if they ask for more than a call of a path that
        has an inlet, or if h2 owes the peer word of its table in the next block."""
        shape = shape_of(fields)
        if shape is None:
            return None
        if shape not in self._shapes:
            if weight(shape) > _SHAPE_BYTES_MAX:
                return None
            if len(self._shapes) >= _SHAPES_MAX:
                self.judge_again()
            is_ours = self.table_size >= _TABLE_BYTES and _is_plain(shape)
            path = dict(shape).get(b":path", b"")
            self.learn(shape, self._inlets.get(path) if is_ours else None)
        return self._shapes[shape]

    def learn(self, shape: Shape, inlet: Inlet | None) -> None:
        """Whose call such headers are: nobody's, if grpclib has to see them."""
        self._shapes[shape] = inlet
        self._judged = []

    def judge_again(self) -> None:
        """What counts for a judgement has changed."""
        self._shapes.clear()
        self._judged = []

    def acknowledge(self, calls: list[Call], window: int, stream_window: int) -> list[bytes]:
        """Answers OK to calls that were served, as far as the windows of the connection and of a
        new stream allow. `OK_DATA_BYTES` of the window go with each answer."""
        answers = []
        for call in calls:
            self.freed += call.size - call.returned
            if self.open.get(call.stream) is not call:  # reset meanwhile
                self.abandoned -= 1
            elif window >= OK_DATA_BYTES and stream_window + call.granted >= OK_DATA_BYTES:
                window -= OK_DATA_BYTES
                answers.append(ok_answer(call.stream))
                del self.open[call.stream]
            else:
                self.blocked[call.stream] = call
        return answers


def _u24(data: bytes, at: i64) -> i64:
    high: i64 = data[at]
    middle: i64 = data[at + 1]
    low: i64 = data[at + 2]
    return high << 16 | middle << 8 | low


def _u32(data: bytes, at: i64) -> i64:
    high: i64 = data[at]
    return high << 24 | _u24(data, at + 1)


def shape_of(fields: list[Any]) -> Shape | None:
    """The headers of a call without its timeout; None if that, or their number, makes no sense."""
    if len(fields) > _FIELDS_MAX:
        return None
    rest: list[Any] = []
    for field in fields:
        if field[0] == _TIMEOUT:
            if not _is_timeout(field[1]):
                return None
        else:
            rest.append(field)
    return tuple(rest)


def _is_plain(shape: Shape) -> bool:
    """Whether these headers, the timeout aside, ask for nothing but a call of a path."""
    fields = dict(shape)
    return (
        len(fields) == len(shape)
        and fields.get(b":method") == b"POST"
        and fields.get(b"te") == b"trailers"
        and fields.get(b"content-type") in _CONTENT_TYPES
        and b"content-length" not in fields  # h2 holds it against the body
        and all(
            (name + value).isascii()
            and (not name.endswith(b"-bin") or name in _OWN_FIELDS)
            and (not name.startswith(b"grpc-") or name in _OWN_FIELDS)
            for name, value in shape
        )
    )


def _is_timeout(value: bytes) -> bool:
    digits = len(value) - 1
    return 0 < digits <= _TIMEOUT_DIGITS_MAX and value[digits] in _UNITS and value[:-1].isdigit()


def by_owner(calls: list[Call]) -> list[tuple[object, list[Call]]]:
    """Calls of each connection, in order."""
    found: dict[int, tuple[object, list[Call]]] = {}
    for call in calls:
        mine = found.get(id(call.owner))
        if mine is None:
            found[id(call.owner)] = (call.owner, [call])
        else:
            mine[1].append(call)
    return list(found.values())
