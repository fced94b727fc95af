"""A network in memory: connections that take their time, are cut, or go silent on one side.

Hosts have names or addresses of 127.0.0.0/8, so that a server takes whoever calls for a neighbour.
What TCP promises holds: bytes come in order and once, or the connection ends. What it does not
promise does not: a peer whose machine lost its power is silent until somebody asks it.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.sim.loop import PROCESS, Process, SimLoop

_HIGH_BYTES, _LOW_BYTES = 64 << 10, 16 << 10
_SILENT_S = 30.0
"""After which the kernel gives up a peer that answers nothing; see host/silence.py."""
_CONNECT_S = 75.0
"""For a peer that does not answer at all."""

Factory = Callable[[], asyncio.BaseProtocol]


@dataclass
class Weather:
    """What the links are like now. `cut_off` are pairs of hosts between which nothing passes."""

    delay_s: tuple[float, float] = (0.0001, 0.001)
    splits: float = 0.0
    """How often what is sent at once comes in two parts."""
    cut_off: set[frozenset[str]] = field(default_factory=set)

    def passes(self, one: str, other: str) -> bool:
        """Whether anything gets from one host to the other."""
        return frozenset((one, other)) not in self.cut_off


class SimSocket:
    """What asks for a socket wants to know: its kind, its options, its address."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.notices_silence = False

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Only one of them changes anything here."""
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            self.notices_silence = bool(value)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def fileno(self) -> int:
        return -1


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: SimNetwork,
        address: tuple[str, int],
        peer_address: tuple[str, int],
        context: Context,
    ) -> None:
        super().__init__()
        self.number = next(network.numbers)
        self.socket = SimSocket(address)
        self.host, self.peer_host = address[0], peer_address[0]
        self.process: Process | None = context.get(PROCESS)
        self._network, self._loop, self._context = network, network.loop, context
        self._address, self._peer_address = address, peer_address
        self._protocol: Any = None
        self.peer: SimTransport | None = None
        self._arriving: deque[bytes | None] = deque()  # None: the peer sends no more
        self._unread_bytes = 0
        self._arrives_s = 0.0
        self._is_closing = self.is_lost = self._is_paused = self._is_held_up = False
        self._is_delivering = False

    def __hash__(self) -> int:
        return self.number

    # --- asyncio.Transport -----------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {
            "socket": self.socket,
            "sockname": self._address,
            "peername": self._peer_address,
        }
        return known.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._wake()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They stay as they are."""

    def get_write_buffer_size(self) -> int:
        peer = self.peer
        return peer._unread_bytes if peer is not None else 0

    def write(self, data: Any) -> None:
        if self.is_lost or self._is_closing or not data:
            return
        assert self.peer is not None
        self._network.carry(self, self.peer, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.peer is not None:
            self._network.carry(self, self.peer, None)

    def close(self) -> None:
        if not self._is_closing:
            self.write_eof()
            self._is_closing = True
            self._soon(self.lose, None)

    def abort(self) -> None:
        self._is_closing = True
        self._network.reset(self)

    # --- the network's side ------------------------------------------------------------------

    def made(self, protocol: asyncio.BaseProtocol) -> None:
        """The protocol has it."""
        self._protocol = protocol
        self._soon(protocol.connection_made, self)

    def come(self, data: bytes | None, at_s: float) -> None:
        """Something is on its way, behind what is."""
        self._arrives_s = max(self._arrives_s, at_s)
        self._unread_bytes += len(data or b"")
        peer = self.peer
        if peer is not None and self._unread_bytes > _HIGH_BYTES and not peer._is_held_up:
            peer._is_held_up = True
            peer._soon(peer._tell, "pause_writing")
        self._loop.call_at(self._arrives_s, self._arrived, data, context=Context())

    def _arrived(self, data: bytes | None) -> None:
        self._arriving.append(data)
        self._wake()

    def _wake(self) -> None:
        if not self._is_delivering and self._arriving:
            self._is_delivering = True
            self._soon(self._deliver)

    def _deliver(self) -> None:
        self._is_delivering = False
        if self._protocol is None:
            self._wake()
            return
        if self.is_lost or self._is_paused or self._is_closing:
            return
        parts: list[bytes] = []
        while self._arriving and self._arriving[0] is not None:
            parts.append(self._arriving.popleft() or b"")
        data = b"".join(parts)
        if data:
            self._unread_bytes -= len(data)
            peer = self.peer
            if peer is not None and peer._is_held_up and self._unread_bytes < _LOW_BYTES:
                peer._is_held_up = False
                peer._soon(peer._tell, "resume_writing")
            self._protocol.data_received(data)
        if self._arriving and self._arriving[0] is None:
            self._arriving.popleft()
            if not self._protocol.eof_received():
                self.close()

    def _tell(self, what: str) -> None:
        if not self.is_lost:
            getattr(self._protocol, what)()

    def lose(self, error: Exception | None) -> None:
        """The protocol hears of the end, once."""
        if self._protocol is None:  # it has not even heard of the beginning
            self._soon(self.lose, error)
        elif not self.is_lost:
            self.is_lost = self._is_closing = True
            self._network.forget(self)
            self._soon(self._protocol.connection_lost, error)

    def _soon(self, callback: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(callback, *args, context=self._context)


class SimServer:
    """What `create_server` gives."""

    def __init__(
        self, network: SimNetwork, address: tuple[str, int], factory: Factory, context: Context
    ) -> None:
        self._network, self.factory, self.context = network, factory, context
        self.address = address
        self.process: Process | None = context.get(PROCESS)
        self.sockets = (SimSocket(address),)

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)

    async def wait_closed(self) -> None:
        """At once."""


class NetLoop(SimLoop):
    """A loop whose connections go over a simulated network; `host` names a process' machine."""

    network: SimNetwork

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return self.network.listen((host, port), protocol_factory)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect((host, port), protocol_factory)


class SimNetwork:
    """All connections of a world."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self._rng = loop, rng
        self.weather = Weather()
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.numbers = count(1)
        self._ports = count(40_000)
        self._ends: dict[SimTransport, None] = {}
        self.bytes_carried = 0

    def listen(self, address: tuple[str, int], factory: Factory) -> SimServer:
        """Raises OSError for an address that is taken."""
        there = self.listeners.get(address)
        if there is not None and _lives(there.process):
            raise OSError(errno.EADDRINUSE, "address in use", str(address))
        server = SimServer(self, address, factory, copy_context())
        self.listeners[address] = server
        return server

    async def connect(
        self, address: tuple[str, int], factory: Factory
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Raises OSError where nobody listens, TimeoutError where nobody answers."""
        context = copy_context()
        process = context.get(PROCESS)
        own = (process.host if isinstance(process, Machine) else "127.0.0.1", next(self._ports))
        await asyncio.sleep(2 * self._delay_s())
        if not self.weather.passes(own[0], address[0]):
            await asyncio.sleep(_CONNECT_S)
            raise TimeoutError(errno.ETIMEDOUT, f"nobody answers at {address}")
        server = self.listeners.get(address)
        if server is None or not _lives(server.process):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {address}")
        here = SimTransport(self, own, address, context)
        there = SimTransport(self, address, own, server.context)
        here.peer, there.peer = there, here
        self._ends |= {here: None, there: None}
        there.made(server.factory())
        protocol = factory()
        here.made(protocol)
        await asyncio.sleep(0)
        return here, protocol

    def carry(self, sender: SimTransport, to: SimTransport, data: bytes | None) -> None:
        """What is written at one end comes at the other, after a while."""
        if to.is_lost and (_lives(to.process) or self._is_up(to.host)):
            self._later_lost(sender, ConnectionResetError(errno.ECONNRESET, "reset by peer"))
            return
        if not self.weather.passes(sender.host, to.host):
            self._sever(sender)
            return
        self.bytes_carried += len(data or b"")
        now_s = self.loop.time()
        if data and len(data) > 1 and self._rng.random() < self.weather.splits:
            at = self._rng.randrange(1, len(data))
            to.come(data[:at], now_s + self._delay_s())
            data = data[at:]
        to.come(data, now_s + self._delay_s())

    def reset(self, end: SimTransport) -> None:
        """This end is gone at once; the other hears of it, if anything gets there."""
        end._soon(end.lose, None)
        peer = end.peer
        if peer is None or peer.is_lost:
            return
        if self.weather.passes(end.host, peer.host):
            self._later_lost(peer, ConnectionResetError(errno.ECONNRESET, "reset by peer"))
        else:
            self._unheard(peer)

    def forget(self, end: SimTransport) -> None:
        self._ends.pop(end, None)

    # --- faults ------------------------------------------------------------------------------

    def died(self, process: Process, *, with_power: bool) -> None:
        """Its kernel closes its connections; without power there is no kernel either."""
        for end in [each for each in self._ends if each.process is process]:
            end.is_lost = True
            self.forget(end)
            peer = end.peer
            if peer is None or peer.is_lost:
                continue
            if with_power and self.weather.passes(end.host, peer.host):
                self._later_lost(peer, ConnectionResetError(errno.ECONNRESET, "reset by peer"))
            else:
                self._unheard(peer)

    def cut(self, one: str, other: str) -> int:
        """Ends the connections between two hosts, as a firewall that sends resets; how many."""
        pair = {one, other}
        ends = [each for each in self._ends if {each.host, each.peer_host} == pair]
        for each in ends:
            each._soon(each.lose, ConnectionResetError(errno.ECONNRESET, "reset"))
        return len(ends)

    def half_open(self, host: str, rng: random.Random) -> bool:
        """One connection of a host is forgotten by a box in between: nothing gets through any
        more. False if it has none."""
        ends = [each for each in self._ends if host in (each.host, each.peer_host)]
        if not ends:
            return False
        self._sever(rng.choice(ends))
        return True

    # --- inside ------------------------------------------------------------------------------

    def _sever(self, end: SimTransport) -> None:
        """Nothing gets through this connection any more, also when others get through again: a
        part of what was sent is missing, and TCP gives no more after that."""
        for each in (end, end.peer):
            if each is not None and not each.is_lost:
                each.peer = _Silence(self, each)
                self._unheard(each)

    def _is_up(self, host: str) -> bool:
        return any(
            address[0] == host and _lives(server.process)
            for address, server in self.listeners.items()
        )

    def _delay_s(self) -> float:
        low, high = self.weather.delay_s
        return self._rng.uniform(low, high)

    def _later_lost(self, end: SimTransport, error: Exception) -> None:
        self.loop.call_later(self._delay_s(), end.lose, error, context=Context())

    def _unheard(self, end: SimTransport) -> None:
        """Nobody answers: the kernel gives up, if it was asked to look."""
        if end.socket.notices_silence and not end.is_lost:
            error = TimeoutError(errno.ETIMEDOUT, "no answer")
            self.loop.call_later(_SILENT_S, end.lose, error, context=Context())


def _lives(process: Process | None) -> bool:
    return process is None or process.is_alive


class _Silence(SimTransport):
    """The other end of a connection that nothing gets through: it takes everything."""

    def __init__(self, network: SimNetwork, end: SimTransport) -> None:
        super().__init__(network, end._peer_address, end._address, Context())

    def come(self, data: bytes | None, at_s: float) -> None:
        """Gone."""
        del data, at_s

    def lose(self, error: Exception | None) -> None:
        """There is nobody to tell."""


class Machine(Process):
    """A process that has a host of its own."""

    def __init__(self, name: str, host: str) -> None:
        super().__init__(name)
        self.host = host
