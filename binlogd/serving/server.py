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
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import cast

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from binlogd.errors import ConfigError
from binlogd.grpc.fastlane import FastGrpcHalf
from binlogd.grpc.frames import PREFACE
from binlogd.grpc.http2 import GrpcHalf, GrpcProtocol, Http2Limits, Servable
from binlogd.grpc.lane import CallSink
from binlogd.host.peers import BY_SOCKET, peer_of
from binlogd.host.socket_file import SocketFile
from binlogd.host.tls import ServerTls
from binlogd.serving.handshakes import HandshakeLimits, TlsListener
from binlogd.serving.routes.guard import HttpLog
from binlogd.telemetry.logs import Seldom

log = structlog.get_logger(__name__)

_METHODS = ("GET", "PUT", "POST", "HEAD", "DELETE", "OPTIONS", "TRACE", "PATCH")
_BACKLOG = 1024
_HEAD_BYTES_MAX = 64 << 10
_OPENINGS = (PREFACE, *(f"{method} ".encode() for method in _METHODS))
_PARTING_S = 0.05
"""For the last words to one that is let go of, before its socket is closed."""


class ServerLimits(msgspec.Struct, frozen=True):
    """What peers may make one process hold."""

    connections_max: int = 1024
    connections_per_client_max: int = 512  # of one address, or /64; the unix socket is not counted
    http_idle_s: float = 75.0  # an HTTP connection without a request
    http_headers_max: int = 64
    sniff_timeout_s: float = 10.0  # for a connection to say what it speaks
    leave_timeout_s: float = 1.0
    flush_timeout_s: float = 1.0
    http2: Http2Limits = msgspec.field(default_factory=Http2Limits)
    handshakes: HandshakeLimits = msgspec.field(default_factory=HandshakeLimits)


class Server:
    """Listens on one address, and hands each connection to the protocol that it speaks: gRPC to
    `services`, HTTP/1.1 to `application`. With `sinks` there is a fast lane for their paths; with
    `tls` both speak it, but for the unix socket, whose file says who may use it."""

    def __init__(
        self,
        services: Collection[Servable],
        application: web.Application | None = None,
        limits: ServerLimits | None = None,
        sinks: Mapping[bytes, CallSink] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._tls = tls
        self.limits = limits or ServerLimits()
        http2 = self.limits.http2
        self._grpc = FastGrpcHalf(services, http2, sinks) if sinks else GrpcHalf(services, http2)
        routes = application or web.Application()
        routes.middlewares.insert(0, self._noted)
        self._web = web.AppRunner(
            routes,
            access_log=None,
            logger=HttpLog(),
            keepalive_timeout=self.limits.http_idle_s,
            max_headers=self.limits.http_headers_max,
            shutdown_timeout=self.limits.leave_timeout_s,
        )
        self.connections: dict[_Connection, asyncio.Transport] = {}
        self._of_client: Counter[str] = Counter()
        self._by_http: dict[object, _Connection] = {}  # by aiohttp's protocol
        self._refusals, self._departures = Seldom(), Seldom()
        self._empty = asyncio.Event()
        self._is_closed = False
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._socket_file: SocketFile | None = None

    async def start(self, host: str, port: int, socket_file: Path | None = None) -> tuple[str, int]:
        """Begins to accept; returns the address, for port 0 the one that was given.

        With `socket_file` the same is served on a unix socket too. Raises ConfigError when an
        address is taken or not ours.
        """
        loop = asyncio.get_running_loop()
        await self._web.setup()
        try:
            if socket_file is not None:
                self._socket_file = SocketFile(socket_file)
            address = await self._listen(host, port)
            if self._socket_file is not None:
                self._listeners.append(
                    await loop.create_unix_server(
                        self._accepted, sock=self._socket_file.socket, backlog=_BACKLOG
                    )
                )
        except OSError as error:
            await self.close()
            raise ConfigError(_why_not_listening(host, port, error)) from error
        except ConfigError:
            await self.close()
            raise
        log.info(
            "server_started",
            host=address[0],
            port=address[1],
            binlog_socket=str(socket_file) if socket_file else "",
        )
        return address

    async def _listen(self, host: str, port: int) -> tuple[str, int]:
        tcp: asyncio.Server | TlsListener
        if self._tls is not None:
            tcp = TlsListener(self._tls.listener(), self._accepted, self.limits.handshakes)
            self._listeners.append(tcp)
            await tcp.open(host, port, _BACKLOG)
        else:
            loop = asyncio.get_running_loop()
            tcp = await loop.create_server(self._accepted, host, port, backlog=_BACKLOG)
            self._listeners.append(tcp)
        address = tcp.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        """Stops accepting and closes every connection, gRPC peers after their open calls.

        Peers are told to send new calls elsewhere. What is not over in `leave_timeout_s` is
        cancelled, so let the services finish first.
        """
        self._is_closed = True
        for listener in self._listeners:
            if isinstance(listener, TlsListener):
                listener.close()
                await listener.ended()
                continue
            for listening in listener.sockets:  # asyncio's loses what it has just accepted
                asyncio.get_running_loop().remove_reader(listening)
            await asyncio.sleep(0)
            listener.close()
        if self._socket_file is not None:
            self._socket_file.remove()
            self._socket_file.socket.close()
        for connection in list(self.connections):
            connection.leave()
        if not await self._is_empty_within(self.limits.leave_timeout_s):
            for transport in list(self.connections.values()):
                transport.close()
        if not await self._is_empty_within(self.limits.flush_timeout_s):
            for transport in list(self.connections.values()):
                transport.abort()
        await self._web.cleanup()
        log.info("server_closed")

    async def _is_empty_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self.connections:  # each connection that ends wakes us
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _accepted(self) -> asyncio.Protocol:
        return _Connection(self)

    def opened(self, connection: _Connection, transport: asyncio.Transport) -> bool:
        """Counts a connection in; False if there is no place for it, or its peer may not connect.

        Where all places are taken, the one that is idle for the longest time goes. One that was
        accepted just before `close` and is known only now would be closed by nobody.
        """
        if self._is_closed:
            return False
        client = connection.client
        reason = self._refusal(client, transport) or self._without_place(client)
        if reason:
            self._refusals.warn("connection_refused", client=client, cause=reason)
            return False
        self.connections[connection] = transport
        self._of_client[client] += 1
        return True

    def _refusal(self, client: str, transport: asyncio.Transport) -> str:
        if self._tls is not None and client != BY_SOCKET:
            return self._tls.refusal(transport.get_extra_info("peercert"))
        return ""

    def _without_place(self, client: str) -> str:
        """Why there is no place for one more of this client, not even another's."""
        limits = self.limits
        own = self._of_client[client]
        if client != BY_SOCKET and own >= limits.connections_per_client_max:
            if not self._let_go_of_one(each for each in self.connections if each.client == client):
                return (
                    f"it has {own} connections open, and none is idle:"
                    " security.connections-per-client-max"
                )
            return ""
        by_socket = self._of_client[BY_SOCKET]  # whoever fills the port leaves these their places
        is_by_socket = client == BY_SOCKET
        others = by_socket if is_by_socket else len(self.connections) - by_socket
        if others >= limits.connections_max and not self._let_go_of_one(
            each for each in self.connections if (each.client == BY_SOCKET) == is_by_socket
        ):
            return f"{others} connections are open, and none is idle: security.connections-max"
        return ""

    def _let_go_of_one(self, among: Iterable[_Connection]) -> bool:
        """The one that is idle for the longest time, strangers first; False if none is."""
        idle = [each for each in among if each.is_idle]
        if not idle:
            return False
        goes = min(idle, key=lambda each: (each.has_written, each.used_s))
        idle_s = round(asyncio.get_running_loop().time() - goes.used_s, 1)
        self._departures.warn("idle_connection_let_go", client=goes.client, idle_s=idle_s)
        self.closed(goes)
        goes.let_go()
        return True

    def closed(self, connection: _Connection) -> None:
        """Counts it out."""
        transport = self.connections.pop(connection, None)
        if transport is not None:
            client = connection.client
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]
        self._by_http.pop(connection.inner, None)
        self._empty.set()

    def protocol_for(self, opening: bytes, connection: _Connection) -> asyncio.Protocol:
        """The protocol of a connection that begins so."""
        if opening == PREFACE:
            return self._grpc.protocol()
        server = self._web.server
        assert server is not None, "set up before anything is accepted"
        protocol = server()
        self._by_http[protocol] = connection
        return protocol

    @web.middleware
    async def _noted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keeps in mind whose request is being served."""
        connection = self._by_http.get(request.protocol)
        if connection is None:  # it has just gone
            return await handler(request)
        connection.is_serving = True
        try:
            return await handler(request)
        finally:
            connection.is_serving = False
            connection.note_used()


class _Connection(asyncio.Protocol):
    """A connection, until the end: first unknown, then a shell round the protocol it speaks."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""
        self.inner: asyncio.Protocol | None = None
        """What it speaks, once that is known."""
        self._head: bytes | None = None  # the end of what has come of an HTTP request's head
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._calls_begun = 0
        self._is_let_go = False
        self.client = BY_SOCKET
        """Whom it is counted for."""
        self.used_s = 0.0
        """When its last call began, something came by HTTP or was answered, or it was opened; by
        the loop's clock. Pings do not count."""
        self.is_serving = False
        """Whether a request by HTTP is being answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ends it where there is no place for it, and if it says nothing for `sniff_timeout_s`."""
        self._transport = cast(asyncio.Transport, transport)
        self.client = _client_of(self._transport)
        self.note_used()
        if not self._server.opened(self, self._transport):
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(
            self._server.limits.sniff_timeout_s, self._transport.abort
        )

    def data_received(self, data: bytes) -> None:
        """Hands over to who speaks what the first bytes are of; what nobody speaks is the end."""
        if self.inner is not None:
            if self._head is not None:
                self._follow_head(data)
            self.inner.data_received(data)
            self._note_call()
            return
        assert self._transport is not None
        self._received += data
        if self._transport.is_closing():
            return
        opening = next((o for o in _OPENINGS if self._received.startswith(o)), None)
        if opening is not None:
            if opening == PREFACE or _is_whole(self._received):
                self._hand_over(opening)
        elif not any(o.startswith(self._received) for o in _OPENINGS):
            log.debug("connection_not_understood", begins_with=self._received[:24].hex())
            self._transport.abort()

    def _hand_over(self, opening: bytes) -> None:
        assert self._transport is not None
        assert self._timer is not None
        received, self._received = self._received, b""
        if opening == PREFACE:
            self._timer.cancel()
        else:
            self._head = b""
            self._follow_head(received)
        self.inner = self._server.protocol_for(opening, self)
        self.inner.connection_made(self._transport)
        self.inner.data_received(received)
        self._note_call()

    def _follow_head(self, data: bytes) -> None:
        """The timer goes on until the head of the first request is whole."""
        seen = (self._head or b"") + data
        self._head = seen[-3:]
        if b"\r\n\r\n" in seen:
            self._head = None
            if self._timer is not None:
                self._timer.cancel()

    def _note_call(self) -> None:
        if isinstance(self.inner, GrpcProtocol):
            begun = self.inner.calls_begun
            if begun == self._calls_begun:
                return
            self._calls_begun = begun
        self.note_used()

    def note_used(self) -> None:
        """It is used now."""
        self.used_s = asyncio.get_running_loop().time()

    @property
    def is_idle(self) -> bool:
        """Whether it has no call open, nor a request that is being answered."""
        if isinstance(self.inner, GrpcProtocol):
            return self.inner.is_idle
        return not self.is_serving

    @property
    def has_written(self) -> bool:
        """Whether a binlog that came on it was taken."""
        return isinstance(self.inner, GrpcProtocol) and self.inner.has_written

    def let_go(self) -> None:
        """Ends it for another, with a word if it knows one; nothing more is taken from it."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._is_let_go = True
        self._transport.pause_reading()
        if isinstance(self.inner, GrpcProtocol):
            self.inner.say_goodbye()
            asyncio.get_running_loop().call_later(_PARTING_S, self._transport.abort)
        else:
            self._transport.abort()

    def leave(self) -> None:
        """Ends the connection as soon as that hurts nobody."""
        if isinstance(self.inner, GrpcProtocol):
            self.inner.leave()
        elif self._transport is not None:
            self._transport.close()

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self.inner is not None else None

    def pause_writing(self) -> None:
        if self.inner is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self.inner is not None and not self._is_let_go:  # it would read again
            self.inner.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.closed(self)
        if self.inner is not None:
            self.inner.connection_lost(cast(Exception | None, exc))


def _client_of(transport: asyncio.Transport) -> str:
    """Whom a connection is counted for."""
    if transport.get_extra_info("socket").family == socket.AF_UNIX:
        return BY_SOCKET
    return peer_of(transport.get_extra_info("peername"))


def _is_whole(request: bytes) -> bool:
    """Whether the head of an HTTP/1 request is there, which aiohttp would wait for without end; or
    so much of it that aiohttp refuses it."""
    is_ended = b"\r\n\r\n" in request or b"\n\n" in request
    return is_ended or len(request) >= _HEAD_BYTES_MAX


async def check_address(host: str, port: int) -> None:
    """Before anything else is begun. Raises ConfigError for an address that cannot be had."""
    try:
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, host, port, start_serving=False
        )
    except OSError as error:
        raise ConfigError(_why_not_listening(host, port, error)) from error
    server.close()
    await server.wait_closed()


def _why_not_listening(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"addr: {host}:{port} is in use by another process; stop it or choose another port"
    return f"addr: cannot listen on {host}:{port}: {error.strerror or error}"
