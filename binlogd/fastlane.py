"""A fast lane for small unary gRPC calls, in front of grpclib on the same connection.

Invariant. A stream belongs to one lane. This one takes a call as every gRPC client writes it,
HEADERS and then DATA, of a path that has a sink; anything else, and a call that turns out to be
something else, goes to grpclib from its first byte, where the same path is registered. Declining
costs time and never changes an answer.

Why it holds. What both lanes share is the state of the connection, and each part has one owner:
- the table of header fields: h2's decoder; a block is decoded here, and left there for h2;
- the window for sending: h2 counts it, answers written here are deducted from its number;
- the window for receiving: each lane gives back the bytes of its own streams, this one when the
  sink has answered, so that unanswered binlogs of one connection have a limit;
- the highest stream: h2's number, raised here with each stream taken.

What has arrived of all connections in one turn of the loop goes to the sink in one call.
Source: tidb-binlog pump/server.go, where grpc-go does this.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from h2.connection import ConnectionInputs, ConnectionState
from h2.exceptions import FlowControlError, FrameTooLargeError

from binlogd.http2 import GrpcHalf, GrpcProtocol, Http2Limits, Servable
from binlogd.pump.sink import CallSink
from binlogd.wire import http2 as wire
from binlogd.wire.hpack import Field, SharedDecoder
from binlogd.wire.http2 import DATA, END_STREAM, HEADERS, OK_DATA_BYTES, frame_head, u32

log = structlog.get_logger(__name__)

MESSAGE_BYTES_MAX = 256 << 10
"""A larger message is grpclib's: its cost is in its bytes, not in its call."""

_FIELDS_MAX = 64
_SHAPES_MAX = 64
_BATCH_BYTES_MAX = 4 << 20
_CONTENT_TYPES = (b"application/grpc", b"application/grpc+proto")
_TIMEOUT = re.compile(rb"[0-9]{1,8}[HMSmun]")
_OWN_FIELDS = (b"grpc-accept-encoding", b"grpc-timeout", b"grpc-tags-bin", b"grpc-trace-bin")
_WHOLE_BLOCK = wire.END_HEADERS
_BLOCK_FORM = wire.END_HEADERS | wire.PADDED | wire.PRIORITY


@dataclass(slots=True, eq=False)
class _Call:
    """A stream of this lane until it is answered, reset or declined."""

    protocol: FastLaneProtocol
    stream: int
    sink: CallSink
    fields: list[Field]
    body: bytearray | None = None  # of a message in several frames
    size: int = 0  # received, prefix included
    granted: int = 0  # of the peer's window, beyond what a stream begins with
    is_complete: bool = False


class _Batch:
    """Calls of one sink that became complete in the same turn of the loop."""

    __slots__ = ("calls", "messages", "size")

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.messages: list[bytes] = []
        self.size = 0


class FastLane:
    """The batches of all connections, and their way into the sinks."""

    def __init__(self, sinks: Mapping[bytes, CallSink]) -> None:
        self.sinks = sinks
        self.message_bytes_max = 5 + min(
            MESSAGE_BYTES_MAX, *(sink.message_bytes_max for sink in sinks.values())
        )
        self._batches: dict[CallSink, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # one for a batch that a sink has
        self._is_scheduled = False

    def add(self, call: _Call, message: bytes) -> None:
        """A call is complete, and goes into the next batch."""
        batch = self._batches.get(call.sink)
        if batch is None:
            batch = self._batches[call.sink] = _Batch()
        batch.calls.append(call)
        batch.messages.append(message)
        batch.size += len(message)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start)
        if batch.size >= _BATCH_BYTES_MAX:
            del self._batches[call.sink]
            self._serve(call.sink, batch)

    def _start(self) -> None:
        self._is_scheduled = False
        batches, self._batches = self._batches, {}
        for sink, batch in batches.items():
            self._serve(sink, batch)

    def _serve(self, sink: CallSink, batch: _Batch) -> None:
        # Owned by the set: a protocol's callbacks have no task whose group could own it.
        task = asyncio.get_running_loop().create_task(_served(sink, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _served(sink: CallSink, batch: _Batch) -> None:
    try:
        outcomes = await sink.write(batch.messages)
    except Exception:  # grpclib answers for a handler that breaks, in the same words
        log.exception("sink_failed", messages=len(batch.messages))
        outcomes = [GRPCError(Status.UNKNOWN, "Internal Server Error")] * len(batch.messages)
    answered: dict[FastLaneProtocol, list[tuple[_Call, GRPCError | None]]] = {}
    for call, outcome in zip(batch.calls, outcomes, strict=True):
        answered.setdefault(call.protocol, []).append((call, outcome))
    for protocol, answers in answered.items():
        protocol.answer(answers)


class FastLaneProtocol(GrpcProtocol):
    """grpclib's protocol; calls of a path that has a sink leave it early."""

    def __init__(self, lane: FastLane, handler: Any, config: Any, limits: Http2Limits) -> None:
        super().__init__(handler, config, limits)
        self._lane = lane
        self._decoder = SharedDecoder()
        self._calls: dict[int, _Call] = {}  # taken and not answered
        self._abandoned = 0  # reset by the peer while a sink has them: work all the same
        self._blocked: dict[int, _Call] = {}  # to be answered OK when the peer opens its window
        self._shapes: dict[tuple[Field, ...], CallSink | None] = {}
        self._judged: tuple[list[Field] | None, CallSink | None] = (None, None)
        self._rest = b""  # an incomplete frame or preface
        self._is_greeted = False
        self._is_in_block = False  # between HEADERS and the last CONTINUATION
        self._held = self._freed = 0  # received and not given back; how much of it may go back
        self._window_begins = 65_535  # what the peer lets us send on a new stream
        self._table_size = 4096  # of what h2 encodes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greets the peer."""
        super().connection_made(transport)
        self._decoder.max_header_list_size = self._h2.decoder.max_header_list_size
        self._h2.decoder = self._decoder

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forgets what is not answered yet."""
        self._calls.clear()  # what a sink has stays there, and nobody is left to be told
        self._blocked.clear()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no call is open in either lane."""
        return not self._calls and super().is_idle

    # --- frames in -------------------------------------------------------------------------

    def read(self, data: bytes) -> None:
        """Splits what has arrived into frames, each for its lane."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if not self._is_greeted:
            at = len(wire.PREFACE)
            if end < at and wire.PREFACE.startswith(data):
                self._rest = data
                return
            self._is_greeted = True
            super().read(data[:at])
        while end - at >= wire.FRAME_HEAD_BYTES:
            word, flags, stream = frame_head.unpack_from(data, at)
            begin = at + wire.FRAME_HEAD_BYTES
            stop = begin + (word >> 8)
            if word >> 8 > wire.FRAME_BYTES_MAX:
                raise FrameTooLargeError("a frame is larger than was allowed")
            if stop > end:
                break
            if not self._is_taken(word & 0xFF, flags, stream, data[begin:stop]):
                super().read(data[at:stop])
                if self._blocked:
                    self._unblock()
            if self._transport.is_closing():
                return
            at = stop
        self._rest = data[at:]

    def _is_taken(self, kind: int, flags: int, stream: int, body: bytes) -> bool:
        """Whether a frame was for this lane; if not, it is grpclib's."""
        if self._is_in_block:
            self._is_in_block = not (kind == wire.CONTINUATION and flags & wire.END_HEADERS)
            return False
        call = self._calls.get(stream)
        if kind == DATA:
            return call is not None and self._data(call, flags, body)
        if kind == HEADERS:
            if flags & _BLOCK_FORM == _WHOLE_BLOCK:
                return self._headers(call, stream, flags, body)
            self._is_in_block = not flags & wire.END_HEADERS
            if call is not None and not call.is_complete:
                self._decline(call)
            return False
        if call is not None and len(body) == 4:
            return self._of_call(call, kind, body)
        if kind == wire.SETTINGS:
            self._settings(flags, body)
        return kind == wire.PING and self._ping(flags, stream, body)

    def _of_call(self, call: _Call, kind: int, body: bytes) -> bool:
        if kind == wire.RST_STREAM:
            self._drop(call)
        elif kind == wire.WINDOW_UPDATE:
            self._grant(call, u32.unpack(body)[0] & wire.WINDOW_BYTES_MAX)
        else:
            return False
        return True

    def _headers(self, call: _Call | None, stream: int, flags: int, block: bytes) -> bool:
        fields = self._decoder.look_ahead(block)
        if fields is None:
            return False
        if call is not None or stream <= self._h2.highest_inbound_stream_id:
            if call is not None and not call.is_complete:
                self._decline(call)  # trailers, which no gRPC client sends
            self._decoder.leave(fields)
            return False
        sink = self._sink_of(fields) if stream & 1 and not flags & END_STREAM else None
        if sink is None:
            self._decoder.leave(fields)
            return False
        self._h2.highest_inbound_stream_id = stream
        if len(self._calls) + self._abandoned >= self._limits.streams_max:
            self._transport.write(wire.reset(stream, wire.REFUSED_STREAM))
            return True
        self._calls[stream] = _Call(self, stream, sink, fields)
        return True

    def _sink_of(self, fields: list[Field]) -> CallSink | None:
        """Whose call this is, if nothing in its headers asks for more than this lane can do."""
        known, sink = self._judged
        if known is fields:  # the very same block as before
            return sink
        if len(fields) > _FIELDS_MAX or self._table_size < 4096:
            return None  # with a smaller table, h2 owes the peer word of that in its next block
        shape = []
        for field in fields:
            if field[0] == b"grpc-timeout":
                if not _TIMEOUT.fullmatch(field[1]):
                    return None
            else:
                shape.append(field)
        key = tuple(shape)
        if key in self._shapes:
            sink = self._shapes[key]
        else:
            sink = self._lane.sinks.get(dict(key).get(b":path", b"")) if _is_plain(key) else None
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            self._shapes[key] = sink
            if self._h2.state_machine.state is ConnectionState.IDLE:
                self._h2.state_machine.process_input(ConnectionInputs.RECV_HEADERS)
        self._judged = fields, sink
        return sink

    def _data(self, call: _Call, flags: int, data: bytes) -> bool:
        if call.is_complete:
            self._reset(call, wire.STREAM_CLOSED)
            return True
        if flags & ~END_STREAM:
            self._decline(call)  # padded
            return False
        message: bytes | bytearray = data
        if call.body is not None:
            message = call.body
            message += data
        elif not flags & END_STREAM:
            message = call.body = bytearray(data)
        size = len(message)
        expected = 5 + u32.unpack_from(message, 1)[0] if size >= 5 else 5
        if expected > self._lane.message_bytes_max or message[:1] not in (b"\0", b""):
            return self._hand_back(call, data)  # large or compressed
        if size > expected or (flags & END_STREAM and size != expected):
            return self._hand_back(call, data)  # grpclib's service has the words for it
        if flags & END_STREAM and not call.sink.has_room(size):
            return self._hand_back(call, data)  # and the patience
        self._held += len(data)
        call.size = size
        if self._held > self._limits.connection_window_bytes:
            raise FlowControlError("more binlogs are unanswered than the window allows")
        if flags & END_STREAM:
            call.is_complete = True
            call.body = None
            self._lane.add(call, bytes(message[5:]))
        return True

    def _hand_back(self, call: _Call, data: bytes) -> bool:
        if call.body is not None:
            del call.body[call.size :]  # the frame in hand follows by itself
        self._decline(call)
        return False

    def _ping(self, flags: int, stream: int, body: bytes) -> bool:
        if flags or stream or len(body) != 8:
            return False
        self._transport.write(wire.frame(wire.PING, wire.ACK, 0, body))
        return True

    def _settings(self, flags: int, body: bytes) -> None:
        """Looks on: a table size lowered once is remembered, since h2 would answer in its next
        block only."""
        if flags & wire.ACK or len(body) % 6:
            return
        for at in range(0, len(body), 6):
            name, value = wire.setting.unpack_from(body, at)
            if name == wire.HEADER_TABLE_SIZE:
                self._table_size = min(self._table_size, value)
            elif name == wire.INITIAL_WINDOW_SIZE:
                self._window_begins = value
        self._judged = None, None

    def _grant(self, call: _Call, increment: int) -> None:
        call.granted += increment
        if not increment:
            self._reset(call, wire.PROTOCOL_ERROR)
        elif self._window_begins + call.granted > wire.WINDOW_BYTES_MAX:
            self._reset(call, wire.FLOW_CONTROL_ERROR)
        elif self._blocked:
            self._unblock()

    def _decline(self, call: _Call) -> None:
        """grpclib gets the stream from its beginning; the frame in hand follows."""
        del self._calls[call.stream]
        self._held -= call.size  # h2 counts them from now on
        highest = self._h2.highest_inbound_stream_id
        self._h2.highest_inbound_stream_id = call.stream - 2
        self._decoder.leave(call.fields)
        super().read(wire.frame(HEADERS, wire.END_HEADERS, call.stream))
        self._h2.highest_inbound_stream_id = highest
        if call.granted:
            super().read(wire.window_update(call.stream, call.granted))
        body = call.body or b""
        for at in range(0, call.size, wire.FRAME_BYTES_MAX):
            super().read(
                wire.frame(DATA, 0, call.stream, bytes(body[at : at + wire.FRAME_BYTES_MAX]))
            )

    # --- answers out -----------------------------------------------------------------------

    def answer(self, answers: Sequence[tuple[_Call, GRPCError | None]]) -> None:
        """Writes what the sink says, as far as the peer's window allows, and gives back room."""
        if self._transport.is_closing():
            return
        written = []
        window = self._h2.outbound_flow_control_window
        for call, outcome in answers:
            self._freed += call.size
            if self._calls.get(call.stream) is not call:  # reset meanwhile
                self._abandoned -= 1
                continue
            if outcome is not None:
                written.append(
                    wire.error_answer(call.stream, outcome.status.value, outcome.message or "")
                )
            elif window >= OK_DATA_BYTES and self._window_begins + call.granted >= OK_DATA_BYTES:
                window -= OK_DATA_BYTES
                written.append(wire.ok_answer(call.stream))
            else:
                self._blocked[call.stream] = call
                continue
            del self._calls[call.stream]
        self._h2.outbound_flow_control_window = window
        if self._freed >= self._limits.connection_window_bytes // 4:
            written.append(self._given_back())
        if written:
            self._transport.write(b"".join(written))
        if self._is_leaving:
            self._close_if_idle()

    def _unblock(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for call in blocked.values():
            call.size = 0  # given back already
        self.answer([(call, None) for call in blocked.values()])

    def _reset(self, call: _Call, code: int) -> None:
        self._drop(call)
        self._transport.write(wire.reset(call.stream, code))

    def _drop(self, call: _Call) -> None:
        del self._calls[call.stream]
        was_answered = self._blocked.pop(call.stream, None) is not None
        if call.is_complete:  # what a sink has is given back when it answers
            self._abandoned += not was_answered
        else:
            self._freed += call.size
            if self._freed >= self._limits.connection_window_bytes // 4:
                self._transport.write(self._given_back())
        if self._is_leaving:
            self._close_if_idle()

    def _given_back(self) -> bytes:
        freed, self._freed = self._freed, 0
        self._held -= freed
        return wire.window_update(0, freed)


def _is_plain(shape: tuple[Field, ...]) -> bool:
    """Whether these headers, the timeout aside, ask for nothing but a call of a path."""
    fields = dict(shape)
    return (
        len(fields) == len(shape)
        and fields.get(b":method") == b"POST"
        and fields.get(b"te") == b"trailers"
        and fields.get(b"content-type") in _CONTENT_TYPES
        and all(
            name.isascii()
            and value.isascii()
            and (not name.endswith(b"-bin") or name in _OWN_FIELDS)
            and (not name.startswith(b"grpc-") or name in _OWN_FIELDS)
            for name, value in shape
        )
    )


class FastGrpcHalf(GrpcHalf):
    """grpclib's server without its listener, and a fast lane for `sinks`: path to what takes its
    messages. Each path is registered by a service, too."""

    def __init__(
        self, services: Collection[Servable], limits: Http2Limits, sinks: Mapping[bytes, CallSink]
    ) -> None:
        super().__init__(services, limits)
        missing = sorted(path for path in sinks if path.decode() not in self._mapping)
        assert not missing, f"no service has {missing}, and a call may be declined"
        self._lane = FastLane(sinks)

    def protocol(self) -> GrpcProtocol:
        """For one more connection."""
        return FastLaneProtocol(self._lane, self.calls(), self._config, self._limits)
