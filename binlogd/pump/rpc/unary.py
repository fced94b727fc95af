"""WriteBinlog as grpclib serves it: one message, of any size, compressed or not.

A large one is written to a file as it comes, if it is as TiDB writes its rows: their head tells
where they begin and end, and what follows. What is otherwise is gathered in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from io import BytesIO
from typing import NamedTuple

import msgspec
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.errors import BinlogdError, MalformedBinlog
from binlogd.grpc import messages
from binlogd.grpc.messages import BytesStream, in_time, piece
from binlogd.grpc.methods import unreadable
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES
from binlogd.pump.log.spool import Spool
from binlogd.pump.rpc.in_flight import InFlight, ServiceLimits
from binlogd.pump.rpc.refusals import refusal
from binlogd.pump.spools import Spools
from binlogd.wire import codec
from binlogd.wire.outline import Outline, outline
from binlogd.wire.peek import NO_DDL

_PIECE_BYTES = 1 << 20
_SPOOLED_BYTES_HELD = 2 * _PIECE_BYTES
"""What a call takes while it is written to a file."""
_SLOWER = 16
"""It may take so many times as long as one that has room for all of itself."""

Request = codec.WriteRequest | GRPCError
"""A WriteBinlogReq, or why it is none."""


class UnaryWrites(msgspec.Struct, frozen=True):
    """The method, and what it needs of the service that it is a part of: `admitted` gives the
    payload of a request that may be taken, `taken` writes and counts, `account` counts. Without
    `spools` large Prewrites are gathered in memory."""

    admitted: Callable[[codec.WriteRequest], Awaitable[bytes]]
    taken: Callable[[Sequence[Request], Sequence[int]], Awaitable[Sequence[GRPCError | None]]]
    account: Callable[[Sequence[int], Sequence[BinlogdError | None], float], None]
    in_flight: InFlight
    limits: ServiceLimits
    spools: Spools | None

    async def write(self, stream: BytesStream) -> None:
        """Answers when the binlog is durable. Raises GRPCError."""
        incoming = messages.Incoming(stream, self.limits.message_bytes_max)
        # a call that is begun and left keeps a stream
        size_bytes = await in_time(incoming.first_size(), 0, self.limits.arrival_s)
        if incoming.is_compressed:
            outcome = await self._of_compressed(stream, size_bytes)
        elif self.spools is not None and size_bytes >= self.limits.spooled_bytes_min:
            outcome = await self._of_large(stream, size_bytes, self.spools)
        else:
            outcome = await self._of_whole(stream, b"", size_bytes)
        if outcome is not None:
            raise outcome
        messages.note_written(stream)
        await messages.send_empty(stream)

    async def _of_whole(
        self, stream: BytesStream, first: bytes, size_bytes: int
    ) -> GRPCError | None:
        """Gathers a request in memory, of which `first` is there."""
        async with self.in_flight.held(size_bytes + MESSAGE_PREFIX_BYTES):
            arriving = _received(stream, first, size_bytes)
            request = await in_time(arriving, size_bytes, self.limits.arrival_s)
            return await self._written(request, size_bytes)

    async def _of_compressed(self, stream: BytesStream, size_bytes: int) -> GRPCError | None:
        """What it grows to is not known beforehand."""
        room, grown = self.in_flight.room, 0

        def take(step_bytes: int) -> None:
            nonlocal grown
            if not room.has_room(step_bytes):
                raise GRPCError(
                    Status.UNAVAILABLE,
                    f"{room.size} bytes of unanswered binlogs are in flight already",
                )
            room.add(step_bytes)
            grown += step_bytes

        async with self.in_flight.held(size_bytes + MESSAGE_PREFIX_BYTES):
            arriving = messages.gathered(stream, BytesIO(), size_bytes)
            message = await in_time(arriving, size_bytes, self.limits.arrival_s)
            try:
                whole = await messages.inflated(message, self.limits.message_bytes_max, take)
                return await self._written(decoded(whole), len(whole))
            finally:
                room.give(grown)

    async def _of_large(
        self, stream: BytesStream, size_bytes: int, spools: Spools
    ) -> GRPCError | None:
        """Writes a request to a file as it comes, and makes that a part of the log."""
        clock = asyncio.get_running_loop().time
        patience_s, begin_s = self.limits.arrival_s, clock()
        outcome: BinlogdError | None = None
        try:
            async with AsyncExitStack() as until_written:
                async with self.in_flight.held(_SPOOLED_BYTES_HELD, size_bytes):
                    first = await in_time(piece(stream, messages.PIECE_BYTES), 0, patience_s)
                    begun = _large_write(first, message_bytes=size_bytes)
                    if begun is not None:
                        await self.admitted(codec.WriteRequest(begun.cluster_id, begun.prewrite))
                        spooling = spools.begun(begun.prewrite)
                        spool = await until_written.enter_async_context(spooling)
                        arriving = _spooled(stream, begun, spool)
                        is_as_begun = await in_time(arriving, size_bytes * _SLOWER, patience_s)
                if begun is None:
                    return await self._of_whole(stream, first, size_bytes)
                if not is_as_begun:
                    return await self._read_back(begun.cluster_id, spool)
                begin_s = clock()
                with self.in_flight.under_way(1):
                    await spools.write(begun.prewrite, spool)
        except BinlogdError as error:
            outcome = error
        self.account([size_bytes], [outcome], clock() - begin_s)
        return None if outcome is None else refusal(outcome)

    async def _read_back(self, cluster_id: int, spool: Spool) -> GRPCError | None:
        """Writes a payload that does not end as TiDB's do, and has to be made anew."""
        async with self.in_flight.held(spool.payload_bytes):
            request = codec.WriteRequest(cluster_id, await spool.payload())
            return await self._written(request, spool.payload_bytes)

    async def _written(self, request: Request, size_bytes: int) -> GRPCError | None:
        with self.in_flight.under_way(1):
            (outcome,) = await self.taken([request], [size_bytes])
        return outcome


def decoded(message: bytes) -> Request:
    """A serialised WriteBinlogReq."""
    try:
        return codec.decode_write_request(message)
    except MalformedBinlog as error:
        return unreadable(error)


class _LargeWrite(NamedTuple):
    """A request whose payload ends it; `begin` is of the payload."""

    cluster_id: int
    prewrite: Outline
    begin: bytes


def _large_write(first: bytes, *, message_bytes: int) -> _LargeWrite | None:
    """A WriteBinlogReq by its first bytes; None for what is not as TiDB writes its rows."""
    head = codec.write_request_head(first, message_bytes=message_bytes)
    if head is None:
        return None
    begin = first[head.payload_at :]
    prewrite = outline(begin, NO_DDL, message_bytes - head.payload_at)
    return None if prewrite is None else _LargeWrite(head.cluster_id, prewrite, begin)


async def _spooled(stream: BytesStream, begun: _LargeWrite, spool: Spool) -> bool:
    """Writes the payload to a spool as it comes: whether it ends as was assumed. Raises GRPCError,
    LogFailed or DiskFull."""
    await spool.write(begun.begin)
    last = b""
    while left := begun.prewrite.whole_bytes - spool.payload_bytes:
        part = await piece(stream, min(left, _PIECE_BYTES))
        if not part:
            raise GRPCError(Status.INTERNAL, "unexpected EOF")
        await spool.write(part)
        last = last[-len(NO_DDL) :] + part[-len(NO_DDL) :]
    return last.endswith(NO_DDL)


async def _received(stream: BytesStream, first: bytes, size_bytes: int) -> Request:
    """A WriteBinlogReq of that size, of which `first` is here. Of a large one, only its payload is
    ever held, and once."""
    first = first or await piece(stream, min(size_bytes, messages.PIECE_BYTES))
    if size_bytes > len(first):
        head = codec.write_request_head(first, message_bytes=size_bytes)
        so_far = BytesIO()
        so_far.write(memoryview(first)[0 if head is None else head.payload_at :])
        message = await messages.gathered(stream, so_far, size_bytes - len(first))
        if head is not None:
            return codec.WriteRequest(head.cluster_id, message)
    else:
        message = first
    return decoded(message)
