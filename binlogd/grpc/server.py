"""The gRPC half of the port: grpclib's server without its listener, which methods a peer may call,
and the protocol of each connection.

Invariant. Who is neither here, nor named by `peers_from`, nor has a certificate, writes and does
nothing else. Whatever is asked for is answered as gRPC clients understand it.
Source: tidb-binlog pump/server.go, where grpc-go does all this.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, cast

import structlog
from grpclib.config import Configuration
from grpclib.const import Handler as Method
from grpclib.const import Status
from grpclib.protocol import Stream
from grpclib.server import Handler
from grpclib.server import Server as GrpcServer
from h2.errors import ErrorCodes

from binlogd.grpc.bounds import Http2Limits, Unread
from binlogd.grpc.channel import BytesCodec
from binlogd.grpc.fastlane import FastLaneProtocol
from binlogd.grpc.http2 import GrpcProtocol
from binlogd.grpc.lane import CallSink, FastLane
from binlogd.grpc.messages import CallStream
from binlogd.grpc.methods import refusing
from binlogd.host.peers import address
from binlogd.settings.operators import Network, is_peer

log = structlog.get_logger(__name__)

_KEPT = frozenset(
    {":method", ":path", "content-type", "te", "grpc-timeout", "grpc-encoding", "authorization"}
)
"""The headers that somebody reads; the others are dropped as soon as they are counted."""
_SOON = re.compile(r"0+[HMS]|0*(?:[0-9]{1,2}m|[0-9]{1,5}u|[0-9]{1,8}n)")
"""Timeouts below a tenth of a second. grpclib fails, with a stack, where one is over at once."""
_OPEN_TO_ALL = ("/binlog.Pump/WriteBinlog", "/binlogd.BatchWriter/", "/grpc.health.v1.Health/")
"""Who writes learns nothing; all else shows rows and schemas, or changes the registry."""
_UNKNOWN = refusing(Status.UNIMPLEMENTED, "unknown service or method")


class Servable(Protocol):
    """A gRPC service as grpclib takes it."""

    def __mapping__(self) -> Mapping[str, Method]:
        """Path to handler; one that ends with a slash is of all other methods of its service."""


class GrpcHalf(GrpcServer):
    """Makes the protocol of each connection. There is a fast lane if there are `sinks`: path to
    what takes its messages. Each path is registered by a service, too."""

    def __init__(
        self, services: Collection[Servable], limits: Http2Limits, sinks: Mapping[bytes, CallSink]
    ) -> None:
        keepalive = Configuration(
            _keepalive_time=limits.ping_after_s,
            _keepalive_timeout=limits.ping_timeout_s,
            _keepalive_permit_without_calls=True,
            _http2_max_pings_without_data=0,
            _http2_min_sent_ping_interval_without_data=limits.ping_after_s / 2,
        )
        super().__init__(cast(Any, services), codec=BytesCodec(), config=keepalive)
        missing = sorted(path for path in sinks if path.decode() not in self._mapping)
        assert not missing, f"no service has {missing}, and a call may be declined"
        self._limits = limits
        self._unread = Unread(limits.unread_bytes_max, limits.strangers_bytes_max)
        # A larger message is grpclib's, which gives back the window of its stream meanwhile, and
        # holds one of a gigabyte once. One of a megabyte costs three times as much there.
        self._lane = FastLane(sinks, limits.stream_window_bytes // 2) if sinks else None

    def protocol(self, transport: asyncio.Transport) -> GrpcProtocol:
        """For one more connection."""
        methods = _Methods(self._mapping)
        methods.closed_to = _closed_to(transport, self._limits.peers_from)
        calls = _Calls(methods, self._codec, None, self.__dispatch__)
        if self._lane is None:
            return GrpcProtocol(calls, self._config, self._limits, self._unread)
        return FastLaneProtocol(self._lane, calls, self._config, self._limits, self._unread)


class _Methods(dict[str, Method]):
    """The methods as one peer may call them, and an answer for any other that gRPC clients
    understand (grpclib's lacks a content-type)."""

    closed_to = ""
    """Who may only write; the rest is refused with the missing setting."""
    _is_logged = False

    def get(self, path: str, default: Any = None) -> Any:
        """Never None."""
        if self.closed_to and not path.startswith(_OPEN_TO_ALL):
            return self._refused(path)
        service = path[: path.rfind("/") + 1]
        return super().get(path) or super().get(service) or _UNKNOWN

    def _refused(self, path: str) -> Method:
        client, setting = self.closed_to, f'security.peers-from = ["{self.closed_to}"]'
        if not self._is_logged:
            log.warning("call_refused", client=client, path=path[:100], setting=setting)
            self._is_logged = True
        return refusing(
            Status.PERMISSION_DENIED,
            f"{client} may write binlogs here and nothing else: set {setting} on this"
            " node, or ask with a certificate that its security.cert-allowed-cn names",
        )


class _Calls(Handler):
    """The calls of one connection."""

    __gc_interval__ = 1000  # grpclib copies the table of all calls that often

    def accept(
        self, stream: Stream, headers: list[tuple[str, str]], release_stream: Callable[[], None]
    ) -> None:
        """Refuses a request without method or path, which grpclib takes for granted."""
        names = dict(headers)
        if ":method" in names and ":path" in names:
            if isinstance(stream, CallStream):
                stream.encoding = names.get("grpc-encoding", "")
            kept = [
                (name, "100m" if name == "grpc-timeout" and _SOON.fullmatch(value) else value)
                for name, value in headers
                if name in _KEPT
            ]
            super().accept(stream, kept, release_stream)
        else:
            if stream.closable:  # the peer may have reset it in the same breath
                stream.reset_nowait(ErrorCodes.PROTOCOL_ERROR)
            release_stream()

    def cancel(self, stream: Stream) -> None:
        """A stream may be reset by both sides, and grpclib's own table knows it only once."""
        if stream in self._tasks:
            super().cancel(stream)


def _closed_to(transport: asyncio.Transport, peers_from: Sequence[Network] | None) -> str:
    """The address of a peer that is neither here, nor named, nor has a certificate; else nobody.

    Without client certificates there is none to show, and one of another CA is refused before.
    """
    peer = transport.get_extra_info("peername")
    is_by_socket = transport.get_extra_info("socket").family == socket.AF_UNIX
    if peers_from is None or is_by_socket or not peer or transport.get_extra_info("peercert"):
        return ""
    client = address(peer[0])
    return "" if is_peer(client, peers_from) else str(client)
