"""The connections of the port: what each speaks by its first bytes, and who has a place.

Invariant. Nothing that a peer sends raises out of `data_received`. By the port no more than
`connections_max` are open, of those no more of one client than `per_client_max`, and by the unix
socket as many as by the port: whoever fills the port leaves these their places.
Why it holds. A connection is nobody's until its first bytes are known; then it belongs to grpclib's
protocol, with the gaps of that protocol closed in binlogd/grpc, or to aiohttp's, or it is closed.
Where all places are taken, the one that is idle for the longest time goes, or the new one gets
none; nothing is awaited in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import cast

import structlog

from binlogd.grpc.frames import PREFACE
from binlogd.grpc.http2 import GrpcProtocol
from binlogd.host.peers import BY_SOCKET, peer_of
from binlogd.telemetry.logs import Seldom

log = structlog.get_logger(__name__)

_METHODS = ("GET", "PUT", "POST", "HEAD", "DELETE", "OPTIONS", "TRACE", "PATCH")
_HEAD_BYTES_MAX = 64 << 10
_OPENINGS = (PREFACE, *(f"{method} ".encode() for method in _METHODS))
_PARTING_S = 0.05
"""For the last words to one that is let go of, before its socket is closed."""


class PortConnection(asyncio.Protocol):
    """A connection, until the end: first unknown, then a shell round the protocol it speaks."""

    def __init__(
        self,
        opened: Callable[[PortConnection], bool],
        closed: Callable[[PortConnection], None],
        protocol_for: Callable[[bytes, PortConnection], asyncio.Protocol],
        sniff_timeout_s: float,
    ) -> None:
        """`opened` says whether there is a place for it, `closed` is told of its end, and
        `protocol_for` gives what it speaks by its first bytes."""
        self._opened, self._closed, self._protocol_for = opened, closed, protocol_for
        self._sniff_timeout_s = sniff_timeout_s
        self._received = b""
        self.inner: asyncio.Protocol | None = None
        """What it speaks, once that is known."""
        self._head: bytes | None = None  # the end of what has come of an HTTP request's head
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
        self.transport = cast(asyncio.Transport, transport)  # from here on it is there
        self.client = peer_of(transport.get_extra_info("peername"))
        self.note_used()
        if not self._opened(self):
            self.transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(
            self._sniff_timeout_s, self.transport.abort
        )

    def data_received(self, data: bytes) -> None:
        """Hands over to who speaks what the first bytes are of; what nobody speaks is the end."""
        if self.inner is not None:
            if self._head is not None:
                self._follow_head(data)
            self.inner.data_received(data)
            self._note_call()
            return
        self._received += data
        if self.transport.is_closing():
            return
        opening = next((o for o in _OPENINGS if self._received.startswith(o)), None)
        if opening is not None:
            if opening == PREFACE or _is_whole(self._received):
                self._hand_over(opening)
        elif not any(o.startswith(self._received) for o in _OPENINGS):
            log.debug("connection_not_understood", begins_with=self._received[:24].hex())
            self.transport.abort()

    def _hand_over(self, opening: bytes) -> None:
        assert self._timer is not None
        received, self._received = self._received, b""
        if opening == PREFACE:
            self._timer.cancel()
        else:
            self._head = b""
            self._follow_head(received)
        self.inner = self._protocol_for(opening, self)
        self.inner.connection_made(self.transport)
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
        if self.transport.is_closing():
            return
        self._is_let_go = True
        self.transport.pause_reading()
        if isinstance(self.inner, GrpcProtocol):
            self.inner.say_goodbye()
            asyncio.get_running_loop().call_later(_PARTING_S, self.transport.abort)
        else:
            self.transport.abort()

    def leave(self) -> None:
        """Ends the connection as soon as that hurts nobody."""
        if isinstance(self.inner, GrpcProtocol):
            self.inner.leave()
        else:
            self.transport.close()

    def eof_received(self) -> bool | None:
        """The peer says no more."""
        return self.inner.eof_received() if self.inner is not None else None

    def pause_writing(self) -> None:
        """The peer does not take what is written."""
        if self.inner is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        if self.inner is not None and not self._is_let_go:  # it would read again
            self.inner.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Counts it out."""
        if self._timer is not None:
            self._timer.cancel()
        self._closed(self)
        if self.inner is not None:
            self.inner.connection_lost(cast(Exception | None, exc))


def _is_whole(request: bytes) -> bool:
    """Whether the head of an HTTP/1 request is there, which aiohttp would wait for without end; or
    so much of it that aiohttp refuses it."""
    is_ended = b"\r\n\r\n" in request or b"\n\n" in request
    return is_ended or len(request) >= _HEAD_BYTES_MAX


class Places:
    """The connections that are open."""

    def __init__(self, connections_max: int, per_client_max: int) -> None:
        self._max, self._per_client_max = connections_max, per_client_max
        self._open: dict[PortConnection, None] = {}
        self._of_client: Counter[str] = Counter()
        self._departures = Seldom()
        self._one_left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def take(self, connection: PortConnection) -> str:
        """Counts a connection in; if there is no place for it, not even another's: why."""
        client = connection.client
        own, by_socket = self._of_client[client], self._of_client[BY_SOCKET]
        others = by_socket if client == BY_SOCKET else len(self._open) - by_socket
        if client != BY_SOCKET and own >= self._per_client_max:
            if not self._let_go_of_one(each for each in self._open if each.client == client):
                return (
                    f"it has {own} connections open, and none is idle:"
                    " security.connections-per-client-max"
                )
        elif others >= self._max and not self._let_go_of_one(
            each for each in self._open if (each.client == BY_SOCKET) == (client == BY_SOCKET)
        ):
            return f"{others} connections are open, and none is idle: security.connections-max"
        self._open[connection] = None
        self._of_client[client] += 1
        return ""

    def give_back(self, connection: PortConnection) -> None:
        """Counts it out, if it still has its place."""
        if connection in self._open:
            del self._open[connection]
            self._of_client[connection.client] -= 1
            if not self._of_client[connection.client]:
                del self._of_client[connection.client]
            self._one_left.set()

    async def vacate(self, leave_timeout_s: float, flush_timeout_s: float) -> None:
        """Asks all to leave. Who has not done so in time is closed when what was written is sent,
        and cut off when that takes too long."""
        for connection in list(self._open):
            connection.leave()
        if not await self._is_empty_within(leave_timeout_s):
            for connection in list(self._open):
                connection.transport.close()
        if not await self._is_empty_within(flush_timeout_s):
            for connection in list(self._open):
                connection.transport.abort()

    async def _is_empty_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._open:  # each connection that ends wakes us
                    self._one_left.clear()
                    await self._one_left.wait()
        except TimeoutError:
            return False
        return True

    def _let_go_of_one(self, among: Iterable[PortConnection]) -> bool:
        """The one that is idle for the longest time, strangers first; False if none is."""
        idle = [each for each in among if each.is_idle]
        if not idle:
            return False
        goes = min(idle, key=lambda each: (each.has_written, each.used_s))
        idle_s = round(asyncio.get_running_loop().time() - goes.used_s, 1)
        self._departures.warn("idle_connection_let_go", client=goes.client, idle_s=idle_s)
        self.give_back(goes)
        goes.let_go()
        return True
