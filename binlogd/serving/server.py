"""One port for gRPC and HTTP/1.1: the first bytes of a connection decide.

Invariant. What one peer may make us hold is bounded: connections, streams, unread answers, header
and message sizes.
Why it holds. Each connection has a place, and the half that it belongs to is given its limits here.

Source: tidb-binlog pump/server.go, which puts cmux in front of grpc-go and net/http.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from binlogd.errors import ConfigError
from binlogd.grpc.bounds import Http2Limits
from binlogd.grpc.frames import PREFACE
from binlogd.grpc.lane import CallSink
from binlogd.grpc.server import GrpcHalf, Servable
from binlogd.host.peers import BY_SOCKET
from binlogd.host.tls import ServerTls
from binlogd.serving.connections import Places, PortConnection
from binlogd.serving.handshakes import HandshakeLimits, TlsListener
from binlogd.serving.routes.guard import HttpLog
from binlogd.telemetry.logs import Seldom

log = structlog.get_logger(__name__)

_BACKLOG = 1024
_SOCKET_MODE = 0o660
_PATH_BYTES_MAX = 107
"""What Linux has room for in a socket's address."""


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
        self._grpc = GrpcHalf(services, self.limits.http2, sinks or {})
        routes = application or web.Application()
        routes.middlewares.insert(0, self._noted)
        self._web = web.AppRunner(
            routes,
            access_log=None,
            logger=HttpLog(),
            keepalive_timeout=self.limits.http_idle_s,
            max_headers=self.limits.http_headers_max,
            auto_decompress=False,  # a request of some megabytes would be gigabytes of work
            shutdown_timeout=self.limits.leave_timeout_s,
        )
        self.places = Places(self.limits.connections_max, self.limits.connections_per_client_max)
        self._by_http: dict[object, PortConnection] = {}  # by aiohttp's protocol
        self._refusals = Seldom()
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
        await self.places.vacate(self.limits.leave_timeout_s, self.limits.flush_timeout_s)
        await self._web.cleanup()
        log.info("server_closed")

    def _accepted(self) -> asyncio.Protocol:
        return PortConnection(
            self._opened, self._closed, self._protocol_for, self.limits.sniff_timeout_s
        )

    def _opened(self, connection: PortConnection) -> bool:
        """Whether there is a place for it, and its peer may connect. One that was accepted just
        before `close` and is known only now would be closed by nobody."""
        if self._is_closed:
            return False
        client, reason = connection.client, ""
        if self._tls is not None and client != BY_SOCKET:
            reason = self._tls.refusal(connection.transport.get_extra_info("peercert"))
        reason = reason or self.places.take(connection)
        if reason:
            self._refusals.warn("connection_refused", client=client, cause=reason)
        return not reason

    def _closed(self, connection: PortConnection) -> None:
        self.places.give_back(connection)
        self._by_http.pop(connection.inner, None)

    def _protocol_for(self, opening: bytes, connection: PortConnection) -> asyncio.Protocol:
        if opening == PREFACE:
            return self._grpc.protocol(connection.transport)
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


class SocketFile:
    """A unix socket that is bound: made with its rights, and never in the way of the next start.
    Whoever may write the file may write binlogs: its owner and group.

    Source: tidb-binlog pkg/util/net.go; the original binds to the host part of its `socket` URL and
    stumbles over a file that is left behind.
    """

    def __init__(self, path: Path) -> None:
        """Binds. A file that a dead process left behind is replaced.

        Raises ConfigError when another process listens there, when the file is no socket, or when
        it cannot be made.
        """
        self.path = path
        if len(os.fsencode(path)) > _PATH_BYTES_MAX:
            raise ConfigError(
                f"binlog-socket: {path}: longer than {_PATH_BYTES_MAX} bytes; use a shorter path"
            )
        _refuse_living(path)
        beside = path.with_name(f"{path.name[:8]}.{os.getpid()}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.unlink(missing_ok=True)
            self.socket.bind(os.fspath(beside))
            beside.chmod(_SOCKET_MODE)
            beside.replace(path)  # at no moment is it there with other rights
        except OSError as error:
            self.socket.close()
            with suppress(OSError):
                beside.unlink()
            raise ConfigError(f"binlog-socket: {path}: {error.strerror or error}") from error
        self._inode = path.stat().st_ino

    def remove(self) -> None:
        """Removes the file, unless another process has put its own there."""
        with suppress(FileNotFoundError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()


def _refuse_living(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # not there; what is wrong with its directory, binding will say
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"binlog-socket: {path} is no socket; remove it or name another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                return
            raise ConfigError(f"binlog-socket: {path}: {error.strerror or error}") from error
    raise ConfigError(f"binlog-socket: {path} is in use by another process; stop it first")
