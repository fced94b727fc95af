"""gRPC on one connection: grpclib's protocol, and an end of its own for every peer that breaks the
rules of HTTP/2.

Source: tidb-binlog pump/server.go, where grpc-go does all this.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import structlog
from grpclib.config import Configuration
from grpclib.protocol import Connection, EventsProcessor, H2Protocol
from grpclib.utils import Wrapper
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    PingAckReceived,
    RequestReceived,
    StreamReset,
    UnknownFrameReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from binlogd.grpc import bounds, frames
from binlogd.grpc.blocks import weight
from binlogd.grpc.bounds import Http2Limits, TooMuch, Unread
from binlogd.grpc.messages import CallStream

log = structlog.get_logger(__name__)

_STREAM_BYTES = 16 << 10
"""What a call costs that grpclib serves, beside its headers and message, measured."""
_LAST_PING = b"goodbye!"


class GrpcProtocol(H2Protocol):
    """grpclib's protocol, with an end of its own for every peer that breaks the rules.

    grpclib 0.4.9 raises out of `data_received` on frames it does not know and on headers that are
    not ASCII, closes without GOAWAY, cancels all calls when a peer says GOAWAY, allows 100 streams,
    and keeps reading a peer that does not read.
    """

    def __init__(self, handler: Any, config: Any, limits: Http2Limits, unread: Unread) -> None:
        checked = H2Configuration(  # of what goes out, h2 need not check our own
            client_side=False,
            header_encoding="ascii",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        super().__init__(handler, config, checked)
        self._limits = limits
        self._unread = unread
        self.has_written = False
        """Whether a binlog that came on it was taken: until then it is a stranger's."""
        self.streams_max = min(limits.streams_before_write_max, limits.streams_max)
        self.resets = bounds.Resets()
        self._is_leaving = False  # one side has said GOAWAY
        self._may_close = False  # and whatever the peer sent before it heard that, is here
        self._idle_timer: asyncio.TimerHandle | None = None
        self._highest_seen = 0  # the last stream when somebody looked whether it is used

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greets the peer: settings, and windows of our size."""
        self._transport = cast(asyncio.Transport, transport)
        self._h2 = h2 = bounds.Http2Connection(self.h2_config, self._limits.streams_max)
        h2.local_settings = self._local_settings()
        h2.incoming_buffer = bounds.BoundedFrames(h2.max_inbound_frame_size)
        h2.initiate_connection()
        h2.increment_flow_control_window(self._limits.connection_window_bytes - 65_535)
        self.connection = _Connection(h2, self._transport, self.config, self)
        self.connection.flush()
        self.connection.initialize()
        self.processor = _Processor(self.handler, self.connection, self)
        self._look_later()

    def _local_settings(self) -> Settings:
        """What this side tells of itself; it counts at once."""
        return Settings(
            client=False,
            initial_values={
                SettingCodes.INITIAL_WINDOW_SIZE: self._limits.stream_window_bytes,
                SettingCodes.MAX_CONCURRENT_STREAMS: self.streams_max,
                SettingCodes.MAX_HEADER_LIST_SIZE: bounds.HEADER_LIST_BYTES_MAX,
            },
        )

    # --- what this peer makes us hold ------------------------------------------------------

    def hold(self, size: int) -> None:
        """Counts bytes. Raises TooMuch if this connection has to go."""
        self._unread.arrived(self, size)

    def let_go(self, size: int) -> None:
        """Counts them no more."""
        self._unread.taken(self, size)

    def note_written(self) -> None:
        """A binlog was taken: the peer is no stranger any more, and may have more calls."""
        if self.has_written or self._transport.is_closing():
            return
        self._unread.becomes_known(self)
        self.has_written = True
        if self.streams_max < self._limits.streams_max:
            self.streams_max = self._limits.streams_max
            self._h2.local_settings = self._local_settings()
            payload = frames.setting.pack(SettingCodes.MAX_CONCURRENT_STREAMS, self.streams_max)
            self._transport.write(frames.frame(frames.SETTINGS, 0, 0, payload))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forgets it."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)
        self._unread.forget(self)

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(self._limits.idle_s, self._leave_if_unused)

    def _leave_if_unused(self) -> None:
        """Nothing is done for each call: whether there was one since the last time is enough."""
        highest = self._h2.highest_inbound_stream_id
        if self.is_idle and highest == self._highest_seen:
            self.leave()
        else:
            self._highest_seen = highest
            self._look_later()

    def data_received(self, data: bytes) -> None:
        """Whatever it is: raises nothing."""
        if self._transport.is_closing():
            return
        try:
            self.read(data)
        except (ProtocolError, UnicodeDecodeError) as error:
            self.break_off(error)

    def read(self, data: bytes) -> None:
        """Takes what has arrived. Raises ProtocolError or UnicodeDecodeError."""
        events = self.connection.feed(data)
        self.connection.flush()
        for event in events:
            if isinstance(event, ConnectionTerminated):
                self._peer_leaves(event)
            elif isinstance(event, PingAckReceived) and event.ping_data == _LAST_PING:
                self._may_close = True
                self.close_if_idle()
            elif not isinstance(event, UnknownFrameReceived):
                self.processor.process(event)
        if not self._transport.is_closing():
            self.connection.flush()

    def leave(self) -> None:
        """Tells the peer to send new calls elsewhere; those it sent are answered, then it closes.

        The peer may have sent some before it hears of that. Its answer to a ping says that it has.
        """
        if self._is_leaving or self._transport.is_closing():
            return
        self._is_leaving = True
        self._transport.write(
            frames.goaway(frames.STREAM_MAX, frames.NO_ERROR)
            + frames.frame(frames.PING, 0, 0, _LAST_PING)
        )

    @property
    def is_idle(self) -> bool:
        """Whether no call is open."""
        return not self.processor.streams

    @property
    def calls_begun(self) -> int:
        """Grows with every call."""
        return self._h2.highest_inbound_stream_id

    def say_goodbye(self) -> None:
        """Tells the peer which of its calls were seen: any later one it may send elsewhere."""
        self._transport.write(frames.goaway(self.calls_begun, frames.NO_ERROR))

    def _peer_leaves(self, event: ConnectionTerminated) -> None:
        if event.error_code != ErrorCodes.NO_ERROR:
            self.processor.process(event)
        else:
            self._is_leaving = self._may_close = True
            self.close_if_idle()

    def close_if_idle(self) -> None:
        """A call is over, or both sides have heard that one leaves: ends it if it was the last."""
        if self._may_close and self._is_leaving and self.is_idle:
            if not self._transport.is_closing():
                self.say_goodbye()
            self.processor.close("the connection was left")

    def break_off(self, error: ProtocolError | UnicodeDecodeError) -> None:
        """Leaves the peer, with a word of why."""
        tell = log.warning if isinstance(error, TooMuch) else log.info
        tell("peer_broke_http2", cause=str(error) or type(error).__name__)
        if not self._transport.is_closing():
            if self._h2.state_machine.state is not ConnectionState.CLOSED:
                self._h2.close_connection(getattr(error, "error_code", ErrorCodes.PROTOCOL_ERROR))
            self.connection.flush()
            self.processor.close(f"Protocol error: {error}")
        self._unread.forget(self)

    def pause_writing(self) -> None:
        """A peer that does not read is not read either, so that answers cannot pile up."""
        super().pause_writing()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if not self._transport.is_closing():
            self._transport.resume_reading()


class _Connection(Connection):
    """grpclib's connection, with streams that remember how their messages are encoded; its owner is
    told of what a handler has read, and that a binlog was written."""

    def __init__(
        self,
        h2: H2Connection,
        transport: asyncio.Transport,
        config: Configuration,
        owner: GrpcProtocol,
    ) -> None:
        super().__init__(h2, transport, config=config)
        self._owner = owner

    def ack(self, stream_id: int, size: int) -> None:
        """Gives back the window of what was read."""
        self._owner.let_go(size)
        super().ack(stream_id, size)

    def create_stream(
        self, *, stream_id: int | None = None, wrapper: Wrapper | None = None
    ) -> CallStream:
        """A new one."""
        stream = CallStream(
            self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper
        )
        stream.on_written = self._owner.note_written
        return stream


class _Processor(EventsProcessor):
    """grpclib's table of streams; that one tells nobody when a stream has gone, been given up, or
    what has come, and takes an empty frame in the middle of a message for the end."""

    def __init__(self, handler: Any, connection: Connection, owner: GrpcProtocol) -> None:
        super().__init__(handler, connection)
        self._owner = owner

    def process_request_received(self, event: RequestReceived) -> None:
        """A call: counted with its headers, until it is over."""
        size = _STREAM_BYTES + weight(event.headers or ())
        self._owner.hold(size)
        stream = self.connection.create_stream(stream_id=event.stream_id)
        release = self.register(stream)

        def released() -> None:
            release()
            self._owner.close_if_idle()
            self._owner.let_go(size)

        self.handler.accept(stream, cast(Any, event.headers), released)

    def process_data_received(self, event: DataReceived) -> None:
        """Takes what a frame brings, if it brings anything; its end is an event of its own."""
        if event.flow_controlled_length:
            self._owner.hold(event.flow_controlled_length)
            super().process_data_received(event)

    def process_stream_reset(self, event: StreamReset) -> None:
        """Given up by the peer, or because it broke a rule."""
        super().process_stream_reset(event)
        self._owner.resets.count()
