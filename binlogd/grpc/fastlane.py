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
from typing import Any

from grpclib.exceptions import GRPCError
from h2.connection import ConnectionInputs
from h2.exceptions import FlowControlError, FrameTooLargeError, ProtocolError

from binlogd.grpc import frames as wire
from binlogd.grpc.blocks import weight
from binlogd.grpc.bounds import Http2Limits, Unread
from binlogd.grpc.calls import Call, CallTable
from binlogd.grpc.frames import DATA, END_STREAM, HEADERS, OK_DATA_BYTES, frame_head, u32
from binlogd.grpc.hpack import SharedDecoder
from binlogd.grpc.http2 import GrpcProtocol
from binlogd.grpc.lane import FastLane
from binlogd.grpc.pongs import Pongs
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES

_WHOLE_BLOCK = wire.END_HEADERS
_BLOCK_FORM = wire.END_HEADERS | wire.PADDED | wire.PRIORITY
_CALL_BYTES = 2 << 10
"""What a call costs that has begun, beside its headers."""
_MUCH_BYTES = 4 * wire.FRAME_BYTES_MAX


class FastLaneProtocol(GrpcProtocol):
    """grpclib's protocol; calls of a path that has a sink leave it early."""

    def __init__(
        self, lane: FastLane, handler: Any, config: Any, limits: Http2Limits, unread: Unread
    ) -> None:
        super().__init__(handler, config, limits, unread)
        self._lane = lane
        self._decoder = SharedDecoder(lane.values)
        self._calls = CallTable(self, self._decoder.reader, lane.inlets)
        self._rest = b""  # an incomplete frame
        self._pongs = Pongs()
        self._is_greeted = False
        self._is_in_block = False  # between HEADERS and the last CONTINUATION
        self._window_begins = 65_535  # what the peer lets us send on a new stream
        self._window_bytes = limits.connection_window_bytes
        self._freed_bytes_min = self._window_bytes // 4  # before the peer is told

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greets the peer."""
        super().connection_made(transport)
        self._decoder.max_header_list_size = self._h2.decoder.max_header_list_size
        self._h2.decoder = self._decoder

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forgets what is not answered yet."""
        for call in self._calls.open.values():  # what a sink has stays there, and nobody is told
            self._lane.ended(call)
        self._calls.open.clear()
        self._calls.blocked.clear()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no call is open in either lane."""
        return not self._calls.open and super().is_idle

    # --- frames in -------------------------------------------------------------------------

    def read(self, data: bytes) -> None:
        """Splits what has arrived into frames, each for its lane."""
        if not self._is_greeted:  # the port waits for the whole preface
            super().read(data[: len(wire.PREFACE)])
            self._is_greeted, data = True, data[len(wire.PREFACE) :]
        self._lane.look_for_room()
        at = 0
        if len(data) > _MUCH_BYTES and len(self._rest) >= wire.FRAME_HEAD_BYTES:
            size = frame_head.unpack_from(self._rest)[0] >> 8
            at = wire.FRAME_HEAD_BYTES + size - len(self._rest)
            self._split(self._rest + data[:at], 0)  # by itself: what is behind it is not copied
        elif self._rest:
            data = self._rest + data
        if not self._transport.is_closing():
            self._split(data, at)
        if self._pongs.waiting and not (self._calls.open or self.has_written):
            self._pongs.write(self._transport)  # who has written writes again

    def _split(self, data: bytes, at: int) -> None:
        end = len(data)
        while end - at >= wire.FRAME_HEAD_BYTES:
            if data[at + 3] <= HEADERS and not self._is_in_block:
                at = self._take(data, at)
                if end - at < wire.FRAME_HEAD_BYTES:
                    break
            word, flags, stream = frame_head.unpack_from(data, at)
            stream &= wire.STREAM_MAX
            begin = at + wire.FRAME_HEAD_BYTES
            stop = begin + (word >> 8)
            if word >> 8 > wire.FRAME_BYTES_MAX:
                raise FrameTooLargeError("a frame is larger than was allowed")
            if stop > end:
                break
            if not self._is_taken(word & 0xFF, flags, stream, data[begin:stop]):
                super().read(data[at:stop])
                if self._calls.blocked:
                    self._unblock()
            if self._transport.is_closing():
                return
            at = stop
        self._rest = data[at:]

    def _take(self, data: bytes, at: int) -> int:
        """Takes calls that are whole, as nearly all are, and what goes on with large ones; returns
        where something else begins."""
        calls = self._calls
        calls.highest = self._h2.highest_inbound_stream_id
        stopped = calls.take(
            data,
            at,
            streams=self.streams_max - len(calls.open) - calls.abandoned,
            window=self._window_bytes - calls.held,
        )
        if stopped > at:
            self._h2.highest_inbound_stream_id = calls.highest
            self._lane.arrived()
        after = calls.more(data, stopped, window=self._window_bytes)
        if after > stopped:
            self._give_back()
        return after

    def _is_taken(self, kind: int, flags: int, stream: int, body: bytes) -> bool:
        """Whether a frame was for this lane; if not, it is grpclib's."""
        if self._is_in_block:
            self._is_in_block = not (kind == wire.CONTINUATION and flags & wire.END_HEADERS)
            return False
        call = self._calls.open.get(stream)
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
        return self._of_all(kind, flags, stream, body)

    def _of_all(self, kind: int, flags: int, stream: int, body: bytes) -> bool:
        if kind == wire.SETTINGS:
            self._settings(flags, body)
        if kind == wire.WINDOW_UPDATE:
            return not stream and len(body) == 4 and self._widen(u32.unpack(body)[0])
        if kind != wire.PING or flags or stream or len(body) != 8:
            return False
        self._pongs.add(body, self._transport)
        return True

    def _of_call(self, call: Call, kind: int, body: bytes) -> bool:
        if kind == wire.RST_STREAM:
            self._drop(call)
        elif kind == wire.WINDOW_UPDATE:
            self._grant(call, u32.unpack(body)[0] & wire.WINDOW_BYTES_MAX)
        else:
            return False
        return True

    def _headers(self, call: Call | None, stream: int, flags: int, block: bytes) -> bool:
        calls = self._calls
        fields = calls.fields if calls.has_read else self._decoder.reader.look_ahead(block)
        calls.has_read = False
        if fields is None:
            return False
        highest = self._h2.highest_inbound_stream_id
        if call is not None or stream <= highest:
            if call is not None and not call.is_complete:
                self._decline(call)  # trailers, which no gRPC client sends
            self._decoder.leave(fields)
            return False
        inlet = calls.judge(fields) if stream & 1 and not flags & END_STREAM else None
        if inlet is None:
            self._decoder.leave(fields)
            return False
        self._h2.highest_inbound_stream_id = stream
        if not highest:  # the first call, which h2 does not see
            self._h2.state_machine.process_input(ConnectionInputs.RECV_HEADERS)
        if len(calls.open) + calls.abandoned >= self.streams_max:
            self._transport.write(wire.reset(stream, wire.REFUSED_STREAM))
            return True
        calls.open[stream] = begun = Call(self, stream, inlet, fields)
        self._lane.begun(begun)
        begun.held = _CALL_BYTES + weight(fields)
        self.hold(begun.held)
        return True

    def let_go_of_headers(self, call: Call) -> None:
        """Its message is here, or somebody else has it from now on."""
        self.let_go(call.held)
        call.held = 0

    def _data(self, call: Call, flags: int, data: bytes) -> bool:
        if call.is_complete:
            self._reset(call, wire.STREAM_CLOSED)
            return True
        if flags & ~END_STREAM:
            self._decline(call)  # padded
            return False
        size, expected, first = call.size + len(data), call.counted, data
        head = MESSAGE_PREFIX_BYTES
        if not expected:  # less than a prefix was there, or nothing
            first = b"".join([*call.pieces, data])
            expected = head + u32.unpack_from(first, 1)[0] if size >= head else head
        if (
            expected > call.inlet.message_bytes_max  # large
            or (not call.counted and first[:1] not in (b"\0", b""))  # or compressed
            or size > expected  # grpclib's service has the words for it
            or (flags & END_STREAM and size != expected)
            or (not call.counted and size >= head and not self._counts(call, expected))
        ):
            self._decline(call)  # and the patience
            return False
        call.put(data)
        self._calls.held += len(data)
        if self._calls.held > self._window_bytes:
            raise FlowControlError("more binlogs are unanswered than the window allows")
        if flags & END_STREAM:
            self._complete(call)
        elif call.counted:
            self._calls.free(call)
            self._give_back()
        return True

    def _complete(self, call: Call) -> None:
        pieces, call.pieces = call.pieces, []
        pieces[0] = pieces[0][MESSAGE_PREFIX_BYTES:]
        call.fields = []  # whoever has begun it is here
        call.inlet.size += call.counted
        call.inlet.add(call, b"".join(pieces))
        self._lane.ended(call)
        self._lane.arrived()

    def _counts(self, call: Call, size: int) -> bool:
        """Whether there is room for a message, which is its own from now on: as much as it says,
        so that whoever has begun can end."""
        if size > call.inlet.room:
            return False
        call.inlet.room -= size
        call.counted = size
        self._lane.method(call).sink.take(size, 0)
        return True

    def hand_over(self, call: Call) -> bool:
        """grpclib gets a call whose message does not come; False if that has to wait."""
        if self._transport.is_closing():
            self._lane.ended(call)
            return True
        if self._is_in_block:
            return False
        try:
            self._decline(call)
        except (ProtocolError, UnicodeDecodeError) as error:
            self.break_off(error)
        return True

    def _widen(self, increment: int) -> bool:
        """Takes more window of the connection, with which a client of grpc-go sends nearly each
        ping. grpclib hears of it where it has calls that may wait for it, h2 of what is wrong."""
        increment &= wire.WINDOW_BYTES_MAX
        window = self._h2.outbound_flow_control_window + increment
        if not increment or window > wire.WINDOW_BYTES_MAX or self.processor.streams:
            return False
        self._h2.outbound_flow_control_window = window
        if self._calls.blocked:
            self._unblock()
        return True

    def _settings(self, flags: int, body: bytes) -> None:
        """Looks on."""
        if flags & wire.ACK or len(body) % wire.setting.size:
            return
        for name, value in wire.setting.iter_unpack(body):
            if name == wire.HEADER_TABLE_SIZE:
                self._calls.table_size = min(self._calls.table_size, value)
            elif name == wire.INITIAL_WINDOW_SIZE:
                self._window_begins = value
        self._calls.judge_again()

    def _grant(self, call: Call, increment: int) -> None:
        call.granted += increment
        if not increment:
            self._reset(call, wire.PROTOCOL_ERROR)
        elif self._window_begins + call.granted > wire.WINDOW_BYTES_MAX:
            self._reset(call, wire.FLOW_CONTROL_ERROR)
        elif self._calls.blocked:
            self._unblock()

    def _decline(self, call: Call) -> None:
        """grpclib gets the stream from its beginning; the frame in hand follows."""
        del self._calls.open[call.stream]
        self._lane.ended(call)
        self._calls.held -= call.size - call.returned  # h2 counts these from now on
        if call.returned:  # and would count and give back the others again
            self._h2.note_returned(call.returned)
        highest = self._h2.highest_inbound_stream_id
        self._h2.highest_inbound_stream_id = call.stream - 2
        self._decoder.leave(call.fields)
        super().read(wire.frame(HEADERS, wire.END_HEADERS, call.stream))
        self._h2.highest_inbound_stream_id = highest
        if call.granted:
            super().read(wire.window_update(call.stream, call.granted))
        body = b"".join(call.pieces)
        for at in range(0, call.size, wire.FRAME_BYTES_MAX):
            super().read(wire.frame(DATA, 0, call.stream, body[at : at + wire.FRAME_BYTES_MAX]))

    # --- answers out -----------------------------------------------------------------------

    def acknowledge(self, calls: list[Call]) -> None:
        """Answers OK as far as the peer's window allows, and gives back room."""
        if self._transport.is_closing():
            return
        if not self.has_written and calls:
            self.note_written()
        window = self._h2.outbound_flow_control_window
        answers = self._calls.acknowledge(calls, window, self._window_begins)
        self._h2.outbound_flow_control_window = window - OK_DATA_BYTES * len(answers)
        self._send(answers)

    def refuse(self, call: Call, error: GRPCError) -> None:
        """Answers with an error, and gives back room."""
        if self._transport.is_closing():
            return
        self._calls.freed += call.size - call.returned
        if self._calls.open.get(call.stream) is call:
            del self._calls.open[call.stream]
            answer = wire.error_answer(call.stream, error.status.value, error.message or "")
            self._send([answer])
        else:  # reset meanwhile
            self._calls.abandoned -= 1
            self._send([])

    def _send(self, answers: list[bytes]) -> None:
        if self._calls.freed >= self._freed_bytes_min:
            answers.append(self._calls.given_back())
        if self._pongs.waiting:
            answers.append(self._pongs.waiting)
            self._pongs.waiting = b""
        if answers:
            self._transport.write(b"".join(answers))
        if self._is_leaving:
            self.close_if_idle()

    def _unblock(self) -> None:
        blocked = list(self._calls.blocked.values())
        self._calls.blocked.clear()
        for call in blocked:
            call.size = call.returned = 0  # given back already
        self.acknowledge(blocked)

    def _reset(self, call: Call, code: int) -> None:
        self._drop(call)
        self._transport.write(wire.reset(call.stream, code))

    def _drop(self, call: Call) -> None:
        self.resets.count()
        calls = self._calls
        del calls.open[call.stream]
        self._lane.ended(call)
        was_answered = calls.blocked.pop(call.stream, None) is not None
        if call.is_complete:  # what a sink has is given back when it answers
            calls.abandoned += not was_answered
        else:
            calls.freed += call.size - call.returned
            self._give_back()
        if self._is_leaving:
            self.close_if_idle()

    def _give_back(self) -> None:
        if self._calls.freed >= self._freed_bytes_min:
            self._transport.write(self._calls.given_back())
