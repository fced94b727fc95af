"""One port for gRPC and HTTP/1.1: the first bytes of a connection decide.

Invariant. Nothing that a peer sends raises out of `data_received`, and what one peer may make us
hold is bounded: connections, streams, unread answers, header and message sizes.
Why it holds. A connection is nobody's until its first bytes are known; then it belongs to grpclib's
protocol, with the gaps of that protocol closed here, or to aiohttp's, or it is closed.

Source: tidb-binlog pump/server.go, which puts cmux in front of grpc-go and net/http.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpclib.const
import msgspec
import structlog
from aiohttp import web
from grpclib.exceptions import GRPCError
from grpclib.protocol import Connection, EventsProcessor, H2Protocol, Stream
from grpclib.server import Handler
from grpclib.server import Server as GrpcServer
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import UnknownFrameReceived
from h2.exceptions import ProtocolError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame

from binlogd.errors import ConfigError
from binlogd.pump.service import BytesCodec

log = structlog.get_logger(__name__)

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP1_METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"TRACE ")
_STREAMS_FEW = 256
_OPENINGS = (_HTTP2_PREFACE, *_HTTP1_METHODS)


class Servable(Protocol):
    """A gRPC service as grpclib takes it."""

    def __mapping__(self) -> Mapping[str, grpclib.const.Handler]:
        """Path to handler."""
        ...


@dataclass(frozen=True, slots=True)
class StateReply:
    """The answer to an operator's request, in the original's form; 200 is done, 3 is refused."""

    message: str
    code: int
    data: None = None


class Operations(Protocol):
    """What an operator can see and do over HTTP."""

    def status(self) -> Mapping[str, Any]:
        """What is said at /status, as JSON."""
        ...

    def metrics(self) -> bytes:
        """What is said at /metrics, as Prometheus text."""
        ...

    def unready(self) -> str:
        """Why no prewrite is taken now; empty if all is well."""
        ...

    async def change_state(self, node_id: str, action: str) -> StateReply:
        """Begins to pause or to close; returns as soon as that is decided."""
        ...


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What peers may make one process hold."""

    connections_max: int = 1024
    streams_max: int = 1024  # of one connection
    connection_window_bytes: int = 8 << 20  # received and not read yet, of one connection
    stream_window_bytes: int = 4 << 20
    sniff_timeout_s: float = 10.0
    flush_timeout_s: float = 1.0


class Server:
    """Listens on one address, and hands each connection to the protocol that it speaks."""

    def __init__(
        self,
        services: Collection[Servable],
        operations: Operations,
        limits: ServerLimits | None = None,
    ) -> None:
        self._limits = limits or ServerLimits()
        self._grpc = _Grpc(services, self._limits)
        self._web = web.AppRunner(_application(operations), access_log=None)
        self._connections: dict[_Connection, asyncio.Transport] = {}
        self._empty = asyncio.Event()
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Begins to accept; returns the address, for port 0 the one that was given.

        Raises ConfigError when the address is taken or not ours.
        """
        await self._web.setup()
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._accepted, host, port, backlog=1024
            )
        except OSError as error:
            await self._web.cleanup()
            raise ConfigError(_why_not_listening(host, port, error)) from error
        address = self._listener.sockets[0].getsockname()
        log.info("server_started", host=address[0], port=address[1])
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        """Stops accepting and closes every connection; what runs on them is cancelled.

        Let the services finish first: only what is written already still goes out.
        """
        if self._listener is not None:
            self._listener.close()
        for transport in list(self._connections.values()):
            transport.close()
        try:
            async with asyncio.timeout(self._limits.flush_timeout_s):
                while self._connections:  # each connection that ends wakes us
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            for transport in list(self._connections.values()):
                transport.abort()
        await self._web.cleanup()
        log.info("server_closed")

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._connections)

    def _accepted(self) -> asyncio.Protocol:
        return _Connection(self)

    def opened(self, connection: _Connection, transport: asyncio.Transport) -> bool:
        """Counts a connection in; False if there are too many."""
        if len(self._connections) >= self._limits.connections_max:
            log.warning("connection_refused", connections=len(self._connections))
            return False
        self._connections[connection] = transport
        return True

    def closed(self, connection: _Connection) -> None:
        """Counts it out."""
        self._connections.pop(connection, None)
        self._empty.set()

    def protocol_for(self, opening: bytes) -> asyncio.Protocol:
        """The protocol of a connection that begins so."""
        if opening == _HTTP2_PREFACE:
            return self._grpc.protocol()
        server = self._web.server
        assert server is not None, "set up before anything is accepted"
        return server()

    @property
    def sniff_timeout_s(self) -> float:
        """How long a connection may keep silent before it says what it speaks."""
        return self._limits.sniff_timeout_s


class _Connection(asyncio.Protocol):
    """A connection, until the end: first unknown, then a shell round the protocol it speaks."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.opened(self, self._transport):
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(
            self._server.sniff_timeout_s, self._transport.abort
        )

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)
            return
        assert self._transport is not None
        self._received += data
        if self._transport.is_closing():
            return
        opening = next((o for o in _OPENINGS if self._received.startswith(o)), None)
        if opening is not None:
            self._hand_over(opening)
        elif not any(o.startswith(self._received) for o in _OPENINGS):
            log.debug("connection_not_understood", begins_with=self._received[:24].hex())
            self._transport.abort()

    def _hand_over(self, opening: bytes) -> None:
        assert self._transport is not None
        if self._timer is not None:
            self._timer.cancel()
        self._inner = self._server.protocol_for(opening)
        self._inner.connection_made(self._transport)
        received, self._received = self._received, b""
        self._inner.data_received(received)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.closed(self)
        if self._inner is not None:
            self._inner.connection_lost(cast(Exception | None, exc))


# --- gRPC --------------------------------------------------------------------------------------


class _Grpc(GrpcServer):
    """grpclib's server without its listener."""

    def __init__(self, services: Collection[Servable], limits: ServerLimits) -> None:
        super().__init__(cast(Any, services), codec=BytesCodec())
        self._limits = limits

    def protocol(self) -> asyncio.Protocol:
        """For one more connection."""
        calls = _Calls(_Methods(self._mapping), self._codec, None, self.__dispatch__)
        return _Http2(calls, self._config, self._limits)


class _Methods(dict[str, grpclib.const.Handler]):
    """The methods, and an answer for any other that gRPC clients understand (grpclib's lacks a
    content-type)."""

    def get(self, path: str, default: Any = None) -> Any:
        """Never None."""
        return super().get(path) or grpclib.const.Handler(
            _unimplemented, grpclib.const.Cardinality.UNARY_UNARY, bytes, bytes
        )


async def _unimplemented(_: object) -> None:
    raise GRPCError(grpclib.const.Status.UNIMPLEMENTED, "unknown service or method")


class _Calls(Handler):
    """The calls of one connection."""

    __gc_interval__ = 1000  # grpclib copies the table of all calls that often

    def accept(
        self, stream: Stream, headers: list[tuple[str, str]], release_stream: Callable[[], None]
    ) -> None:
        """Refuses a request without method or path, which grpclib takes for granted."""
        if {":method", ":path"} <= {name for name, _ in headers}:
            super().accept(stream, headers, release_stream)
        else:
            if stream.closable:  # the peer may have reset it in the same breath
                stream.reset_nowait(ErrorCodes.PROTOCOL_ERROR)
            release_stream()

    def cancel(self, stream: Stream) -> None:
        """A stream may be reset by both sides, and grpclib's own table knows it only once."""
        if stream in self._tasks:
            super().cancel(stream)


class _Frames(FrameBuffer):
    """h2's buffer of incoming bytes; that one looks at a frame's length when it has all of it."""

    def __init__(self, frame_bytes_max: int) -> None:
        super().__init__(server=True)
        self.max_frame_size = frame_bytes_max

    def __next__(self) -> Frame:
        """The next frame that is whole. Raises FrameTooLargeError."""
        if len(self._data) >= 3:
            self._validate_frame_length(int.from_bytes(self._data[:3], "big"))
        return super().__next__()


class _Http2Connection(H2Connection):
    """h2's connection; that one counts all open streams whenever one is opened."""

    def __init__(self, config: H2Configuration, streams_max: int) -> None:
        super().__init__(config)
        self._few = min(_STREAMS_FEW, streams_max // 2)

    def _open_streams(self, remainder: int) -> int:
        """How many are open; while there are few, those that have just ended count as well."""
        known = len(self.streams)
        return known if known < self._few else super()._open_streams(remainder)


class _Http2(H2Protocol):
    """grpclib's protocol, with an end of its own for every peer that breaks the rules.

    grpclib 0.4.9 raises out of `data_received` on frames it does not know and on headers that are
    not ASCII, closes without GOAWAY, allows 100 streams, and keeps reading a peer that does not
    read.
    """

    def __init__(self, handler: Any, config: Any, limits: ServerLimits) -> None:
        # h2's own checks of each header cost as much as all the rest of a call that we add
        unchecked = H2Configuration(
            client_side=False,
            header_encoding="ascii",
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        super().__init__(handler, config, unchecked)
        self._limits = limits
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        h2 = _Http2Connection(self.h2_config, self._limits.streams_max)
        h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.INITIAL_WINDOW_SIZE: self._limits.stream_window_bytes,
                SettingCodes.MAX_CONCURRENT_STREAMS: self._limits.streams_max,
                SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
            },
        )
        h2.incoming_buffer = _Frames(h2.max_inbound_frame_size)
        h2.initiate_connection()
        h2.increment_flow_control_window(self._limits.connection_window_bytes - 65_535)
        self.connection = Connection(h2, self._transport, config=self.config)
        self.connection.flush()
        self.connection.initialize()
        self.processor = EventsProcessor(self.handler, self.connection)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        try:
            events = self.connection.feed(data)
        except (ProtocolError, UnicodeDecodeError) as error:
            self._break_off(error)
            return
        self.connection.flush()
        for event in events:
            if not isinstance(event, UnknownFrameReceived):
                self.processor.process(event)
        if not self._transport.is_closing():
            self.connection.flush()

    def _break_off(self, error: ProtocolError | UnicodeDecodeError) -> None:
        log.info("peer_broke_http2", cause=str(error) or type(error).__name__)
        h2 = self.connection._connection  # noqa: SLF001 # grpclib says no GOAWAY
        if h2.state_machine.state is not ConnectionState.CLOSED:
            h2.close_connection(getattr(error, "error_code", ErrorCodes.PROTOCOL_ERROR))
        self.connection.flush()
        self.processor.close(f"Protocol error: {error}")

    def pause_writing(self) -> None:
        """A peer that does not read is not read either, so that answers cannot pile up."""
        super().pause_writing()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


def _why_not_listening(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"addr: {host}:{port} is in use by another process; stop it or choose another port"
    return f"addr: cannot listen on {host}:{port}: {error.strerror or error}"


# --- HTTP/1.1 ------------------------------------------------------------------------------------


def _application(operations: Operations) -> web.Application:
    async def status(_: web.Request) -> web.Response:
        return _json(operations.status())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=operations.metrics(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        reason = operations.unready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def change_state(request: web.Request) -> web.Response:
        reply = await operations.change_state(
            request.match_info["node_id"], request.match_info["action"]
        )
        return _json(msgspec.to_builtins(reply), indent=2)

    application = web.Application(middlewares=[_in_the_originals_words])
    application.router.add_get("/status", status)
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/livez", alive)
    application.router.add_get("/readyz", ready)
    application.router.add_put("/state/{node_id}/{action}", change_state)
    return application


@web.middleware
async def _in_the_originals_words(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(status=404, text="404 page not found\n")
    except web.HTTPMethodNotAllowed as error:
        return web.Response(status=405, headers={"Allow": ", ".join(sorted(error.allowed_methods))})


def _json(content: Any, *, indent: int = 0) -> web.Response:
    text = msgspec.json.encode(content)
    if indent:
        text = msgspec.json.format(text, indent=indent)
    return web.Response(
        body=text + b"\n", headers={"Content-Type": "application/json; charset=UTF-8"}
    )
