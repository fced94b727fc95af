"""What clients may ask of the Pump's service, and what of that is not over.

Invariant. Those who have room can always go on, whatever waits on the same connection.
Why it holds. What waits unread takes from the window of its connection; it is kept so small that
a part of the window is always left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.grpc.messages import ARRIVAL_S
from binlogd.grpc.methods import OpenStreams
from binlogd.pump.budget import Budget


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What one client may ask for."""

    message_bytes_max: int = 1 << 30
    bytes_in_flight_max: int = 1 << 30  # of unanswered writes; the next ones are not read
    bytes_waiting_max: int = 32 << 20  # that may arrive unread of those, of all connections
    spooled_bytes_min: int = 16 << 20  # a larger message is written to a file while it comes
    stream_window_bytes: int = 4 << 20  # that can arrive unread of one write
    arrival_s: float = ARRIVAL_S  # for a call to say how much comes, and then for all of it
    pull_chunk_bytes: int = 64 << 10
    pull_ahead_bytes_max: int = 4 << 20  # of one shard, waiting for the others; for each puller
    pullers_max: int = 64  # by the port, and as many by the unix socket


class InFlight:
    """Writes that are not answered, with the `room` that they have, and streams that are open."""

    def __init__(self, limits: ServiceLimits) -> None:
        self.room = Budget(bytes_max=limits.bytes_in_flight_max)
        self.messages = 0
        self._limits = limits
        self._bytes_unread = 0
        self._streams = OpenStreams()
        self._idle = asyncio.Event()
        self._idle.set()

    def arrived(self, size_bytes: int, messages: int) -> None:
        """Counts what is there already."""
        self.room.add(size_bytes)
        self._count(messages)

    def answered(self, size_bytes: int, messages: int) -> None:
        """Counts it no more."""
        self.room.give(size_bytes)
        self._count(-messages)

    @contextmanager
    def under_way(self, messages: int) -> Iterator[None]:
        """Counts messages while its block lasts."""
        self._count(messages)
        try:
            yield
        finally:
            self._count(-messages)

    @asynccontextmanager
    async def held(self, size_bytes: int, coming_bytes: int = 0) -> AsyncIterator[None]:
        """Has room while its block lasts, as `take` takes it."""
        await self.take(size_bytes, coming_bytes)
        try:
            yield
        finally:
            self.room.give(size_bytes)

    async def take(self, size_bytes: int, coming_bytes: int = 0) -> None:
        """Waits for room for a message, or for what is held of one that is larger, before more of
        it is read than its stream's window lets in. Raises GRPCError if too much waits."""
        unread = 0
        if not self.room.has_room(size_bytes):
            unread = min(max(size_bytes, coming_bytes), self._limits.stream_window_bytes)
            if self._bytes_unread + unread > self._limits.bytes_waiting_max:
                raise GRPCError(
                    Status.UNAVAILABLE,
                    f"{self.room.size} bytes of unanswered binlogs are in flight already, and"
                    f" {self.room.waiting} more wait",
                )
        self._bytes_unread += unread
        try:
            await self.room.take(size_bytes)
        finally:
            self._bytes_unread -= unread

    @asynccontextmanager
    async def until_closing(self) -> AsyncIterator[asyncio.Timeout]:
        """Its block is a stream: `close` ends it without an error, and waits for that."""
        self._idle.clear()
        try:
            async with self._streams.until_closing() as until:
                yield until
        finally:
            self._count(0)

    async def close(self) -> None:
        """Ends every stream, and waits for them and for the messages under way."""
        self._streams.close()
        await self._idle.wait()

    def _count(self, messages: int) -> None:
        self.messages += messages
        if self.messages or self._streams.count:
            self._idle.clear()
        else:
            self._idle.set()
