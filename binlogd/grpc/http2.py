"""The gRPC half of the port: grpclib's server, and an end of its own for every peer that breaks the
rules of HTTP/2.

Source: tidb-binlog pump/server.go, where grpc-go does all this.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import grpclib.const
import msgspec
import structlog
from grpclib.config import Configuration
from grpclib.exceptions import GRPCError
from grpclib.protocol import Connection, EventsProcessor, H2Protocol, Stream
from grpclib.server import Handler
from grpclib.server import Server as GrpcServer
from grpclib.utils import Wrapper
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RequestReceived,
    StreamReset,
    UnknownFrameReceived,
)
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from binlogd.grpc import frames as frames
from binlogd.grpc.blocks import ENTRY_BYTES
from binlogd.grpc.channel import BytesCodec
from binlogd.grpc.messages import CallStream
from binlogd.host.peers import address
from binlogd.settings.operators import Network, is_peer

log = structlog.get_logger(__name__)

_STREAMS_FEW = 256
_HEADER_LIST_BYTES_MAX = 8 << 10
"""Of one call, as HPACK counts; gRPC needs an eighth of it."""
_HEADER_BLOCK_BYTES_MAX = 16 << 10
_CLOSED_STREAMS_MAX = 1024
"""That h2 remembers of one connection; 64 times as many, by default."""
_STREAM_BYTES = 16 << 10
"""What a call costs that grpclib serves, beside its headers and message, measured."""
_RESETS_MAX = 2000
_RESETS_A_SECOND = 200.0
_KEPT = frozenset(
    {":method", ":path", "content-type", "te", "grpc-timeout", "grpc-encoding", "authorization"}
)
"""The headers that somebody reads; the others are dropped as soon as they are counted."""
_LAST_PING = b"goodbye!"


class Servable(Protocol):
    """A gRPC service as grpclib takes it."""

    def __mapping__(self) -> Mapping[str, grpclib.const.Handler]:
        """Path to handler; one that ends with a slash is of all other methods of its service."""


class Http2Limits(msgspec.Struct, frozen=True):
    """What one peer may make us hold on one connection, and all of them together."""

    streams_max: int = 1024
    streams_before_write_max: int = 256  # until it has written a binlog
    connection_window_bytes: int = 64 << 20  # received, unread; twice what writes may leave so
    stream_window_bytes: int = 4 << 20
    unread_bytes_max: int = 512 << 20  # of all connections together, by grpclib's streams
    strangers_bytes_max: int = 64 << 20  # of those together that have not written a binlog
    ping_after_s: float = 60.0  # again and again; a peer may have vanished without a word
    ping_timeout_s: float = 20.0
    idle_s: float = 3600.0  # without a call, a connection is left
    peers_from: tuple[Network, ...] | None = None  # who may do more than write; None: everybody


class TooMuchUnread(ProtocolError):
    """Above the limit of all connections; this one has the most."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class TooManyResets(ProtocolError):
    """Calls that are begun to be given up cost us and not the peer."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class Unread:
    """What peers make us hold on all connections: calls that are open with their headers, and what
    has come for them and no handler has read yet, in bytes.

    A connection has its window and its calls, and there may be a thousand of them. Handlers read at
    once what there is room for, so it is much only where peers send what nobody waits for, or where
    very many wait. Above the limit, the connection that has the most is left: nothing on it was
    acknowledged. Strangers, who have not written a binlog, have a smaller one among themselves.
    """

    def __init__(self, bytes_max: int, strangers_bytes_max: int) -> None:
        self.size = self.of_strangers = 0
        self._bytes_max, self._strangers_bytes_max = bytes_max, strangers_bytes_max
        self._of: dict[GrpcProtocol, int] = {}

    def arrived(self, owner: GrpcProtocol, size: int) -> None:
        """Counts what has come. Raises TooMuchUnread if it is the owner who must go."""
        self.size += size
        self._of[owner] = self._of.get(owner, 0) + size
        if not owner.has_written:
            self.of_strangers += size
        while self.of_strangers > self._strangers_bytes_max:  # ends: each turn forgets one
            strangers = [each for each in self._of if not each.has_written]
            self._let_go_of_one(strangers, self.of_strangers, owner)
        while self.size > self._bytes_max:  # ends: each turn forgets one
            self._let_go_of_one(self._of, self.size, owner)

    def _let_go_of_one(self, among: Iterable[GrpcProtocol], size: int, owner: GrpcProtocol) -> None:
        """Of the one that has the most. Raises TooMuchUnread if that is the owner."""
        most = max(among, key=self._of.__getitem__)
        error = TooMuchUnread(
            f"{size} bytes of connections are unread, {self._of[most]} of this one"
        )
        if most is owner:
            self.forget(owner)
            raise error
        most.break_off(error)

    def taken(self, owner: GrpcProtocol, size: int) -> None:
        """A handler has read it, or nobody will."""
        if owner in self._of:
            self.size -= size
            self._of[owner] -= size
            if not owner.has_written:
                self.of_strangers -= size

    def forget(self, owner: GrpcProtocol) -> None:
        """The connection is over, and what it held is gone."""
        size = self._of.pop(owner, 0)
        self.size -= size
        if not owner.has_written:
            self.of_strangers -= size

    def becomes_known(self, owner: GrpcProtocol) -> None:
        """It has written its first binlog; `has_written` says so from the next call on."""
        self.of_strangers -= self._of.get(owner, 0)


class GrpcHalf(GrpcServer):
    """grpclib's server without its listener."""

    def __init__(self, services: Collection[Servable], limits: Http2Limits) -> None:
        keepalive = Configuration(
            _keepalive_time=limits.ping_after_s,
            _keepalive_timeout=limits.ping_timeout_s,
            _keepalive_permit_without_calls=True,
            _http2_max_pings_without_data=0,
            _http2_min_sent_ping_interval_without_data=limits.ping_after_s / 2,
        )
        super().__init__(cast(Any, services), codec=BytesCodec(), config=keepalive)
        self._limits = limits
        self._unread = Unread(limits.unread_bytes_max, limits.strangers_bytes_max)

    def protocol(self) -> GrpcProtocol:
        """For one more connection."""
        return GrpcProtocol(self.calls(), self._config, self._limits, self._unread)

    def calls(self) -> Handler:
        """What a connection hands its requests to."""
        return _Calls(_Methods(self._mapping), self._codec, None, self.__dispatch__)


_OPEN_TO_ALL = ("/binlog.Pump/WriteBinlog", "/binlogd.BatchWriter/", "/grpc.health.v1.Health/")
"""Who writes learns nothing; all else shows rows and schemas, or changes the registry."""


class _Methods(dict[str, grpclib.const.Handler]):
    """The methods, and an answer for any other that gRPC clients understand (grpclib's lacks a
    content-type)."""

    def get(self, path: str, default: Any = None) -> Any:
        """Never None."""
        service = path[: path.rfind("/") + 1]
        return super().get(path) or super().get(service) or _handler(_unimplemented)


class _Closed(dict[str, grpclib.const.Handler]):
    """The methods for one who may only write; any other is refused with the missing setting."""

    def __init__(self, methods: _Methods, client: str) -> None:
        super().__init__()
        self._methods, self._client = methods, client
        self._is_logged = False

    def get(self, path: str, default: Any = None) -> Any:
        """Never None."""
        if path.startswith(_OPEN_TO_ALL):
            return self._methods.get(path)
        if not self._is_logged:
            log.warning("call_refused", client=self._client, path=path[:100], setting=self._setting)
            self._is_logged = True
        return _handler(self._refuse)

    @property
    def _setting(self) -> str:
        return f'security.peers-from = ["{self._client}"]'

    async def _refuse(self, _: object) -> None:
        raise GRPCError(
            grpclib.const.Status.PERMISSION_DENIED,
            f"{self._client} may write binlogs here and nothing else: set {self._setting} on this"
            " node, or ask with a certificate that its security.cert-allowed-cn names",
        )


def _handler(refuse: Callable[[Any], Awaitable[None]]) -> grpclib.const.Handler:
    return grpclib.const.Handler(refuse, grpclib.const.Cardinality.UNARY_UNARY, bytes, bytes)


async def _unimplemented(_: object) -> None:
    raise GRPCError(grpclib.const.Status.UNIMPLEMENTED, "unknown service or method")


class _Calls(Handler):
    """The calls of one connection."""

    __gc_interval__ = 1000  # grpclib copies the table of all calls that often

    def meet(self, transport: asyncio.Transport, peers_from: Sequence[Network]) -> None:
        """Closes all but writing to one who is neither here, nor named, nor has a certificate.

        Without client certificates there is none to show, and one of another CA is refused before.
        """
        peer = transport.get_extra_info("peername")
        is_by_socket = transport.get_extra_info("socket").family == socket.AF_UNIX
        if is_by_socket or not peer or transport.get_extra_info("peercert"):
            return
        client = address(peer[0])
        if not is_peer(client, peers_from):
            self.mapping = _Closed(cast(_Methods, self.mapping), str(client))

    def accept(
        self, stream: Stream, headers: list[tuple[str, str]], release_stream: Callable[[], None]
    ) -> None:
        """Refuses a request without method or path, which grpclib takes for granted."""
        names = dict(headers)
        if ":method" in names and ":path" in names:
            if isinstance(stream, CallStream):
                stream.encoding = names.get("grpc-encoding", "")
            kept = [field for field in headers if field[0] in _KEPT]
            super().accept(stream, kept, release_stream)
        else:
            if stream.closable:  # the peer may have reset it in the same breath
                stream.reset_nowait(ErrorCodes.PROTOCOL_ERROR)
            release_stream()

    def cancel(self, stream: Stream) -> None:
        """A stream may be reset by both sides, and grpclib's own table knows it only once."""
        if stream in self._tasks:
            super().cancel(stream)


# h2 has the text of each frame made, with all its bytes in hex, for a log that nobody keeps
Frame.__repr__ = object.__repr__  # type: ignore[method-assign]


class _Frames(FrameBuffer):
    """h2's buffer of incoming bytes; that one looks at a frame's length when it has all of it."""

    def __init__(self, frame_bytes_max: int) -> None:
        super().__init__(server=True)
        self.max_frame_size = frame_bytes_max

    def _update_header_buffer(self, f: Frame | None) -> Frame | None:
        """Gathers a block that comes in pieces. Raises ProtocolError."""
        whole = super()._update_header_buffer(f)
        if sum(len(each.data) for each in self._headers_buffer) > _HEADER_BLOCK_BYTES_MAX:
            raise DenialOfServiceError("a header block is larger than any that is decoded")
        return whole

    def __next__(self) -> Frame:
        """The next frame that is whole. Raises FrameTooLargeError."""
        if len(self._data) >= 3:
            self._validate_frame_length(int.from_bytes(self._data[:3], "big"))
        return super().__next__()


class Http2Connection(H2Connection):
    """h2's connection; that one counts all open streams whenever one is opened."""

    MAX_CLOSED_STREAMS = _CLOSED_STREAMS_MAX

    def __init__(self, config: H2Configuration, streams_max: int) -> None:
        super().__init__(config)
        self.decoder.max_header_list_size = _HEADER_LIST_BYTES_MAX
        self._few = min(_STREAMS_FEW, streams_max // 2)

    def _open_streams(self, remainder: int) -> int:
        """How many are open; while there are few, those that have just ended count as well."""
        known = len(self.streams)
        return known if known < self._few else super()._open_streams(remainder)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """The peer begins no more streams; h2 would end those it has begun."""
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]


class _Connection(Connection):
    """grpclib's connection, with streams that remember how their messages are encoded; `on_read` is
    told of what a handler has read, in bytes, `on_written` that a binlog was written."""

    def __init__(
        self,
        connection: H2Connection,
        transport: asyncio.Transport,
        *,
        config: Configuration,
        on_read: Callable[[int], None],
        on_written: Callable[[], None],
    ) -> None:
        super().__init__(connection, transport, config=config)
        self._on_read = on_read
        self._on_written = on_written

    def ack(self, stream_id: int, size: int) -> None:
        """Gives back the window of what was read."""
        self._on_read(size)
        super().ack(stream_id, size)

    def create_stream(
        self, *, stream_id: int | None = None, wrapper: Wrapper | None = None
    ) -> CallStream:
        """A new one."""
        stream = CallStream(
            self, self._connection, self._transport, stream_id=stream_id, wrapper=wrapper
        )
        stream.on_written = self._on_written
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
        self._owner.count_reset()

    def register(self, stream: Stream) -> Callable[[], None]:
        """Takes a stream in; what is returned lets go of it."""
        release = super().register(stream)

        def released() -> None:
            release()
            self._owner.close_if_idle()

        return released


def weight(fields: Iterable[tuple[Any, Any]]) -> int:
    """As HPACK counts them."""
    return sum(len(name) + len(value) + ENTRY_BYTES for name, value in fields)


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
        self._resets, self._reset_s = 0.0, 0.0
        self._is_leaving = False  # one side has said GOAWAY
        self._may_close = False  # and whatever the peer sent before it heard that, is here
        self._idle_timer: asyncio.TimerHandle | None = None
        self._highest_seen = 0  # the last stream when somebody looked whether it is used

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greets the peer: settings, and windows of our size."""
        self._transport = cast(asyncio.Transport, transport)
        if self._limits.peers_from is not None:
            cast(_Calls, self.handler).meet(self._transport, self._limits.peers_from)
        self._h2 = h2 = Http2Connection(self.h2_config, self._limits.streams_max)
        h2.local_settings = self._local_settings()
        h2.incoming_buffer = _Frames(h2.max_inbound_frame_size)
        h2.initiate_connection()
        h2.increment_flow_control_window(self._limits.connection_window_bytes - 65_535)
        self.connection = _Connection(
            h2,
            self._transport,
            config=self.config,
            on_read=self.let_go,
            on_written=self.note_written,
        )
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
                SettingCodes.MAX_HEADER_LIST_SIZE: _HEADER_LIST_BYTES_MAX,
            },
        )

    # --- what this peer makes us hold ------------------------------------------------------

    def hold(self, size: int) -> None:
        """Counts bytes. Raises TooMuchUnread if this connection has to go."""
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

    def count_reset(self) -> None:
        """One more call was given up. Raises TooManyResets."""
        now_s = asyncio.get_running_loop().time()
        forgiven = (now_s - self._reset_s) * _RESETS_A_SECOND
        self._resets, self._reset_s = max(0.0, self._resets - forgiven) + 1, now_s
        if self._resets > _RESETS_MAX:
            raise TooManyResets(f"{_RESETS_MAX} calls were given up at once")

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
                last = self._h2.highest_inbound_stream_id
                self._transport.write(frames.goaway(last, frames.NO_ERROR))
            self.processor.close("the connection was left")

    def break_off(self, error: ProtocolError | UnicodeDecodeError) -> None:
        """Leaves the peer, with a word of why."""
        tell = log.warning if isinstance(error, TooMuchUnread | TooManyResets) else log.info
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
