"""`binlogd.BatchWriter`: many binlogs in one message, several messages at once on one stream.

Invariant. Batches enter the Pump in the order of their arrival, and each is answered when all of
its binlogs are durable or refused. When the service closes, what has been read is still answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.errors import MalformedBinlog
from binlogd.grpc import messages
from binlogd.grpc.messages import BytesStream, Incoming, in_time, note_written, send_joined
from binlogd.grpc.methods import unreadable
from binlogd.grpc.prefix import prefixed
from binlogd.pump.rpc.in_flight import InFlight
from binlogd.wire import batch as wire

_BATCHES_IN_FLIGHT = 16  # of one stream; the next one is not read
_BINLOG_BYTES = 256  # of the objects round a payload, roughly


class BatchService(msgspec.Struct, frozen=True):
    """The service, as grpclib takes it, and what it needs of the one that it is a part of.

    A message that has room and does not arrive in `arrival_s` ends the stream.
    """

    write: Callable[[int, Sequence[bytes]], Awaitable[Sequence[GRPCError | None]]]
    in_flight: InFlight
    message_bytes_max: int
    arrival_s: float

    def __mapping__(self) -> dict[str, Handler]:
        """The method, for grpclib's server with a `BytesCodec`."""
        return {wire.WRITE_BATCH: Handler(self._write, Cardinality.STREAM_STREAM, bytes, bytes)}

    async def _write(self, stream: BytesStream) -> None:
        await messages.begin_answer(stream)
        failures: list[GRPCError] = []
        writing = _Writing(stream, self)
        async with asyncio.TaskGroup() as group:
            try:
                async with self.in_flight.until_closing():
                    await self._read(stream, writing, group)
            except GRPCError as error:  # what came before is written and answered
                failures.append(error)
        if failures:
            raise failures[0]

    async def _read(self, stream: BytesStream, writing: _Writing, group: asyncio.TaskGroup) -> None:
        incoming = Incoming(stream, self.message_bytes_max)
        take, room = self.in_flight.take, self.in_flight.room
        while (size_bytes := await incoming.next_size()) is not None:  # until the peer ends it
            if incoming.is_compressed:  # how much room it needs would be known too late
                raise GRPCError(Status.UNIMPLEMENTED, "a batch cannot be compressed")
            await writing.slots.acquire()
            await take(size_bytes)
            try:
                arriving = in_time(incoming.message(), size_bytes, self.arrival_s)
                batch = wire.decode_batch(await arriving)
            except BaseException as error:
                room.give(size_bytes)
                if isinstance(error, MalformedBinlog):
                    raise unreadable(error) from error
                raise
            around_bytes = _BINLOG_BYTES * len(batch.payloads)
            room.add(around_bytes)
            group.create_task(writing.written(batch, size_bytes + around_bytes))


class _Writing:
    """The batches of one stream that are not answered yet."""

    def __init__(self, stream: BytesStream, service: BatchService) -> None:
        self.slots = asyncio.Semaphore(_BATCHES_IN_FLIGHT)
        self._stream = stream
        self._write, self._room = service.write, service.in_flight.room
        self._sending = asyncio.Lock()  # an answer may have to wait in the middle for a window

    async def written(self, batch: wire.Batch, size_bytes: int) -> None:
        """Writes a batch and answers; gives back its room."""
        try:
            outcomes = await self._write(batch.cluster_id, batch.payloads)
        finally:
            self.slots.release()
            self._room.give(size_bytes)
        if None in outcomes:
            note_written(self._stream)
        refusals = [
            wire.Refusal(position, outcome.status.value, outcome.message or "")
            for position, outcome in enumerate(outcomes)
            if outcome is not None
        ]
        answer = prefixed(wire.encode_answer(wire.BatchAnswer(batch.number, refusals)))
        async with self._sending:
            await send_joined(self._stream, answer)
