"""The port behind TLS: accepts, and lets those in whose handshake is over.

Invariant. Never more than `under_way_max` handshakes are under way; none takes longer than
`timeout_s`; and whoever has not finished one takes nobody's place who has.
Why it holds. A connection is its task from the moment that it is accepted; a new one ends the
oldest of the address that has most, where all places are taken. The loops' own listeners tell
nobody of a handshake before it is over.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable

import msgspec
import structlog

from binlogd.host.peers import heaviest, peer_of
from binlogd.telemetry.faults import unforeseen
from binlogd.telemetry.logs import Seldom

log = structlog.get_logger(__name__)

_ACCEPT_AGAIN_S = 1.0
"""After an error, nearly always that there are no descriptors."""
_FAREWELL_S = 1.0
"""For a peer to say that it has heard of the end."""


class HandshakeLimits(msgspec.Struct, frozen=True):
    """What peers may have under way that are not known yet."""

    under_way_max: int = 256
    timeout_s: float = 10.0


class TlsListener:
    """Hands each connection to a protocol of `factory` when its handshake is over."""

    def __init__(
        self,
        context: ssl.SSLContext,
        factory: Callable[[], asyncio.Protocol],
        limits: HandshakeLimits,
    ) -> None:
        self._context, self._factory, self._limits = context, factory, limits
        self._under_way: dict[asyncio.Task[None], str] = {}  # whose they are, the oldest first
        self._departures = Seldom()
        self._one_ended = asyncio.Event()
        self.sockets: list[socket.socket] = []

    async def open(self, host: str, port: int, backlog: int) -> None:
        """Begins to accept. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            self.sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(backlog)
            listening.setblocking(False)
        for listening in self.sockets:
            self._listen(listening)

    def close(self) -> None:
        """Accepts no more, and ends the handshakes that are under way; the address is free."""
        loop = asyncio.get_running_loop()
        while self.sockets:
            listening = self.sockets.pop()
            loop.remove_reader(listening)
            listening.close()
        for task in self._under_way:
            _end(task)

    async def ended(self) -> None:
        """After `close`, when all of that is over."""
        while self._under_way:
            self._one_ended.clear()  # each that ends wakes us
            await self._one_ended.wait()

    def _listen(self, listening: socket.socket) -> None:
        if listening in self.sockets:  # not closed meanwhile
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """No task: one that is cancelled would lose what it has just accepted."""
        loop = asyncio.get_running_loop()
        try:
            accepted, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # it has gone again
            return
        except OSError as error:
            log.warning("connection_not_accepted", cause=str(error))
            loop.remove_reader(listening)
            loop.call_later(_ACCEPT_AGAIN_S, self._listen, listening)
            return
        if len(self._under_way) >= self._limits.under_way_max:
            self._let_go_of_one()
        accepted.setblocking(False)
        task = loop.create_task(self._greet(accepted))
        self._under_way[task] = peer_of(address)
        task.add_done_callback(self._ended)

    async def _greet(self, accepted: socket.socket) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.timeout_s,
                ssl_shutdown_timeout=_FAREWELL_S,
            )
        except OSError as error:  # ssl's are among them
            log.debug("handshake_failed", cause=str(error))
            accepted.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self._one_ended.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            unforeseen("a TLS handshake", error)

    def _let_go_of_one(self) -> None:
        """The oldest of the address that has most: an honest one takes milliseconds."""
        most = heaviest(Counter(self._under_way.values()))
        goes = next(task for task, client in self._under_way.items() if client == most)
        self._departures.warn("handshake_let_go", client=most)
        del self._under_way[goes]
        _end(goes)


def _end(task: asyncio.Task[None]) -> None:
    """Once it has begun: before that it does not own its connection, and nobody would close it."""
    asyncio.get_running_loop().call_soon(task.cancel)
