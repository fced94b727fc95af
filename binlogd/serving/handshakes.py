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
from dataclasses import dataclass

import structlog

from binlogd.host.peers import heaviest, peer_of
from binlogd.telemetry.faults import unforeseen
from binlogd.telemetry.logs import Seldom

log = structlog.get_logger(__name__)

_ACCEPT_AGAIN_S = 1.0
"""After an error, nearly always that there are no descriptors."""
_FAREWELL_S = 1.0
"""For a peer to say that it has heard of the end."""


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
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
        self._tasks: list[asyncio.Task[None]] = []
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
        # Owned by the list until `ended`, as a server's listeners are.
        self._tasks = [loop.create_task(self._accept(each)) for each in self.sockets]
        for task in self._tasks:
            task.add_done_callback(self._accepted_last)

    def close(self) -> None:
        """Accepts no more, and ends the handshakes that are under way."""
        for task in (*self._tasks, *self._under_way):
            task.cancel()

    async def ended(self) -> None:
        """After `close`, when all of that is over and the address is free."""
        while self._under_way or not all(task.done() for task in self._tasks):
            self._one_ended.clear()  # each that ends wakes us
            await self._one_ended.wait()
        for listening in self.sockets:
            listening.close()

    @property
    def under_way(self) -> int:
        """How many handshakes are."""
        return len(self._under_way)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:  # until it is closed
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("connection_not_accepted", cause=str(error))
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(self._under_way) >= self._limits.under_way_max:
                self._let_go_of_one()
            accepted.setblocking(False)
            task = loop.create_task(self._greet(accepted))
            self._under_way[task] = peer_of(address)
            task.add_done_callback(self._ended)

    def _accepted_last(self, task: asyncio.Task[None]) -> None:
        self._one_ended.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            unforeseen("the port behind TLS", error)

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
        except asyncio.CancelledError:
            accepted.close()
            raise

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self._one_ended.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            unforeseen("a TLS handshake", error)

    def _let_go_of_one(self) -> None:
        """The oldest of the address that has most: an honest one takes milliseconds."""
        most = heaviest(Counter(self._under_way.values()))
        goes = next(task for task, client in self._under_way.items() if client == most)
        untold = self._departures.due(asyncio.get_running_loop().time())
        if untold is not None:
            log.warning("handshake_let_go", client=most, others_untold=untold)
        del self._under_way[goes]
        goes.cancel()
