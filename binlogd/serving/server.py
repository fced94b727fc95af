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
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import structlog
from aiohttp import web

from binlogd.errors import ConfigError
from binlogd.host.socket_file import SocketFile
from binlogd.host.tls import ServerTls
from binlogd.pump.rpc.sink import CallSink
from binlogd.serving.fastlane import FastGrpcHalf
from binlogd.serving.http2 import GrpcHalf, GrpcProtocol, Http2Limits, Servable
from binlogd.telemetry.logs import Seldom

log = structlog.get_logger(__name__)

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP1_METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"TRACE ")
_BACKLOG = 1024
_HEAD_BYTES_MAX = 64 << 10
_OPENINGS = (_HTTP2_PREFACE, *_HTTP1_METHODS)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What peers may make one process hold."""

    connections_max: int = 1024
    connections_per_client_max: int = 512  # of one address; the unix socket is not counted
    handshake_timeout_s: float = 10.0
    http_idle_s: float = 75.0  # an HTTP connection without a request
    http_headers_max: int = 64
    sniff_timeout_s: float = 10.0
    leave_timeout_s: float = 1.0
    flush_timeout_s: float = 1.0
    http2: Http2Limits = field(default_factory=Http2Limits)


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
        self._limits = limits or ServerLimits()
        http2 = self._limits.http2
        self._grpc = FastGrpcHalf(services, http2, sinks) if sinks else GrpcHalf(services, http2)
        self._web = web.AppRunner(
            application or web.Application(),
            access_log=None,
            keepalive_timeout=self._limits.http_idle_s,
            max_headers=self._limits.http_headers_max,
            shutdown_timeout=self._limits.leave_timeout_s,
        )
        self._connections: dict[_Connection, asyncio.Transport] = {}
        self._of_client: Counter[str] = Counter()
        self._refusals = Seldom()
        self._empty = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
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
            tcp = await loop.create_server(
                self._accepted,
                host,
                port,
                backlog=_BACKLOG,
                ssl=self._tls.listener() if self._tls else None,
                ssl_handshake_timeout=self._limits.handshake_timeout_s if self._tls else None,
            )
            self._listeners.append(tcp)
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
        address = tcp.sockets[0].getsockname()
        log.info(
            "server_started",
            host=address[0],
            port=address[1],
            binlog_socket=str(socket_file) if socket_file else "",
        )
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        """Stops accepting and closes every connection, gRPC peers after their open calls.

        Peers are told to send new calls elsewhere. What is not over in `leave_timeout_s` is
        cancelled, so let the services finish first.
        """
        for listener in self._listeners:
            listener.close()
        if self._socket_file is not None:
            self._socket_file.remove()
            self._socket_file.socket.close()
        for connection in list(self._connections):
            connection.leave()
        if not await self._is_empty_within(self._limits.leave_timeout_s):
            for transport in list(self._connections.values()):
                transport.close()
        if not await self._is_empty_within(self._limits.flush_timeout_s):
            for transport in list(self._connections.values()):
                transport.abort()
        await self._web.cleanup()
        log.info("server_closed")

    async def _is_empty_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._connections:  # each connection that ends wakes us
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._connections)

    def _accepted(self) -> asyncio.Protocol:
        return _Connection(self)

    def opened(self, connection: _Connection, transport: asyncio.Transport) -> bool:
        """Counts a connection in; False if there are too many, or its peer may not connect."""
        client = connection.client
        reason = self._refusal(client, transport)
        if reason:
            untold = self._refusals.due(asyncio.get_running_loop().time())
            if untold is not None:
                log.warning("connection_refused", client=client, cause=reason, others_untold=untold)
            return False
        self._connections[connection] = transport
        self._of_client[client] += 1
        return True

    def _refusal(self, client: str, transport: asyncio.Transport) -> str:
        limits = self._limits
        by_socket = self._of_client[""]  # whoever fills the port leaves the socket its own places
        others = len(self._connections) - by_socket if client else by_socket
        if others >= limits.connections_max:
            return f"{others} connections are open: security.connections-max"
        if client and self._of_client[client] >= limits.connections_per_client_max:
            return (
                f"it has {self._of_client[client]} connections open:"
                " security.connections-per-client-max"
            )
        if self._tls is not None and client:
            return self._tls.refusal(transport.get_extra_info("peercert"))
        return ""

    def closed(self, connection: _Connection) -> None:
        """Counts it out."""
        transport = self._connections.pop(connection, None)
        if transport is not None:
            client = connection.client
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]
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
        self._head: bytes | None = None  # the end of what has come of an HTTP request's head
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.client = ""
        """Its address, without the port; "" by the unix socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.client = _client_of(self._transport)
        if not self._server.opened(self, self._transport):
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(
            self._server.sniff_timeout_s, self._transport.abort
        )

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            if self._head is not None:
                self._follow_head(data)
            self._inner.data_received(data)
            return
        assert self._transport is not None
        self._received += data
        if self._transport.is_closing():
            return
        opening = next((o for o in _OPENINGS if self._received.startswith(o)), None)
        if opening is not None:
            if opening == _HTTP2_PREFACE or _is_whole(self._received):
                self._hand_over(opening)
        elif not any(o.startswith(self._received) for o in _OPENINGS):
            log.debug("connection_not_understood", begins_with=self._received[:24].hex())
            self._transport.abort()

    def _hand_over(self, opening: bytes) -> None:
        assert self._transport is not None
        assert self._timer is not None
        received, self._received = self._received, b""
        if opening == _HTTP2_PREFACE:
            self._timer.cancel()
        else:
            self._head = b""
            self._follow_head(received)
        self._inner = self._server.protocol_for(opening)
        self._inner.connection_made(self._transport)
        self._inner.data_received(received)

    def _follow_head(self, data: bytes) -> None:
        """The timer goes on until the head of the first request is whole."""
        seen = (self._head or b"") + data
        self._head = seen[-3:]
        if b"\r\n\r\n" in seen:
            self._head = None
            if self._timer is not None:
                self._timer.cancel()

    def leave(self) -> None:
        """Ends the connection as soon as that hurts nobody."""
        if isinstance(self._inner, GrpcProtocol):
            self._inner.leave()
        elif self._transport is not None:
            self._transport.close()

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


def _client_of(transport: asyncio.Transport) -> str:
    """The peer's address; "" of the unix socket."""
    peer = transport.get_extra_info("peername")
    family = transport.get_extra_info("socket").family
    return str(peer[0]) if peer and family != socket.AF_UNIX else ""


def _is_whole(request: bytes) -> bool:
    """Whether the head of an HTTP/1 request is there, which aiohttp would wait for without end; or
    so much of it that aiohttp refuses it."""
    is_ended = b"\r\n\r\n" in request or b"\n\n" in request
    return is_ended or len(request) >= _HEAD_BYTES_MAX


def _why_not_listening(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"addr: {host}:{port} is in use by another process; stop it or choose another port"
    return f"addr: cannot listen on {host}:{port}: {error.strerror or error}"
