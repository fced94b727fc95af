"""Writing to a Pump of ours in batches: one stream, on which many binlogs share a message.

What many tasks write at the same time goes out together. Every promise of `PumpClient` holds for
each binlog; a Pump that does not know the batched write is written to one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count

import structlog
from grpclib.client import Channel, Stream, StreamStreamMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from binlogd.client.pump_client import PumpClient
from binlogd.errors import PumpUnavailable, leaves
from binlogd.grpc.channel import NO_ANSWER
from binlogd.grpc.inbox import Inbox, send
from binlogd.telemetry.faults import unforeseen
from binlogd.wire import batch as wire

log = structlog.get_logger(__name__)

_BATCH_BYTES = 256 << 10  # a batch is sent when it has as much, or when nobody writes any more
_ANSWER_BYTES_MAX = 64 << 20


class BatchedPumpClient(PumpClient):
    """A `PumpClient` that joins what is written at the same time."""

    _link: _Link | None = None
    _is_known = True  # the batched write, to the Pump

    def close(self) -> None:
        """Ends the connection; what is in flight on it fails as unavailable."""
        if self._link is not None:
            self._link.close()
        super().close()

    async def attempt(self, payload: bytes) -> None:
        """Sends a binlog once, with others. Raises as the same of `PumpClient`."""
        if len(payload) <= _BATCH_BYTES:  # a larger one gains nothing
            outcomes = await self._batch([payload])
            if outcomes is not None:
                if outcomes[0] is not None:
                    raise self._meaning(outcomes[0])
                self._written += 1
                return
        await super().attempt(payload)

    async def write_many(self, payloads: Sequence[bytes]) -> None:
        """Returns when all are durable; each is tried as often as `write` does.

        Raises as `write`, in a group if there are several reasons.
        """
        rest = [payload for payload in payloads if len(payload) > _BATCH_BYTES]
        small = [payload for payload in payloads if len(payload) <= _BATCH_BYTES]
        try:
            outcomes = await self._batch(small) if small else []
        except PumpUnavailable:
            outcomes = None
        if outcomes is None:
            rest += small
        else:
            refused = [p for p, outcome in zip(small, outcomes, strict=True) if outcome is not None]
            self._written += len(small) - len(refused)
            rest += refused
        async with asyncio.TaskGroup() as group:
            for payload in rest:
                group.create_task(self.write(payload))

    async def _batch(self, payloads: Sequence[bytes]) -> Sequence[GRPCError | None] | None:
        """The outcome of each; None if each must be asked about by itself. Raises
        PumpUnavailable."""
        if not self._is_known:
            return None
        channel = self._channel
        link = self._link
        if link is None or link.has_ended or link.channel is not channel:
            link = self._link = _Link(channel, self._cluster_id)
        try:
            async with asyncio.timeout(self._limits.deadline_s):
                answered = [link.submit(some) for some in _in_batches(payloads)]
                return [outcome for each in answered for outcome in await asyncio.shield(each)]
        except GRPCError as error:
            # it is about the stream, and nobody knows whose binlog is to blame
            self._is_known = error.status is not Status.UNIMPLEMENTED
            log.info("batches_refused", cause=f"{error.status.name}: {error.message}")
            return None
        except NO_ANSWER as error:
            link.close()
            self._redial(channel)
            raise PumpUnavailable(self._said(str(error) or type(error).__name__)) from error


_Outcomes = list[GRPCError | None]


def _expected(error: Exception) -> Exception | None:
    """What a stream may end with; None for a fault of ours."""
    found = leaves(error)
    if not all(isinstance(each, (GRPCError, *NO_ANSWER)) for each in found):
        return None
    said = [each for each in found if isinstance(each, GRPCError)]
    return said[0] if said else StreamTerminatedError(str(found[0]) or type(found[0]).__name__)


def _in_batches(payloads: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    begin = size = 0
    for at, payload in enumerate(payloads):
        size += len(payload)
        if size >= _BATCH_BYTES:
            yield payloads[begin : at + 1]
            begin, size = at + 1, 0
    if begin < len(payloads):
        yield payloads[begin:]


class _Link:
    """One stream of batches, until it ends; who submits later gets a new one."""

    def __init__(self, channel: Channel, cluster_id: int) -> None:
        self.channel = channel
        self.has_ended = False
        self._cluster_id = cluster_id
        self._numbers = count(1)
        self._queue: list[tuple[Sequence[bytes], asyncio.Future[_Outcomes]]] = []
        self._queued = asyncio.Event()
        self._unanswered: dict[int, list[tuple[int, asyncio.Future[_Outcomes]]]] = {}
        # Owned here and ended by `close`: who writes may come and go while it runs.
        self._task = asyncio.get_running_loop().create_task(self._run())

    def submit(self, payloads: Sequence[bytes]) -> asyncio.Future[_Outcomes]:
        """Ends with the outcome of each, or with what ended the stream."""
        answered: asyncio.Future[_Outcomes] = asyncio.get_running_loop().create_future()
        self._queue.append((payloads, answered))
        self._queued.set()
        return answered

    def close(self) -> None:
        """Ends the stream."""
        self._task.cancel()
        self._end(StreamTerminatedError("the stream of batches was closed"))

    async def _run(self) -> None:
        try:
            method = StreamStreamMethod[bytes, bytes](self.channel, wire.WRITE_BATCH, bytes, bytes)
            async with method.open() as stream:
                await stream.send_request()
                inbox = Inbox(stream, _ANSWER_BYTES_MAX)
                await stream.recv_initial_metadata()
                async with asyncio.TaskGroup() as group:
                    sending = group.create_task(self._send(stream))
                    await self._receive(inbox)
                    sending.cancel()
            self._end(StreamTerminatedError("the pump ended the stream of batches"))
        except Exception as error:  # noqa: BLE001 - whoever waits is to hear of it
            self._end(_expected(error) or unforeseen("the stream of batches", error))

    async def _send(self, stream: Stream[bytes, bytes]) -> None:
        while True:  # until the stream ends
            await self._queued.wait()
            await asyncio.sleep(0)  # a turn, so that everyone who writes now is in the batch
            payloads: list[bytes] = []
            waiting = []
            size = taken = 0
            for some, answered in self._queue:
                if size >= _BATCH_BYTES:
                    break
                taken += 1
                payloads += some
                size += sum(map(len, some))
                waiting.append((len(some), answered))
            del self._queue[:taken]
            if not self._queue:
                self._queued.clear()
            number = next(self._numbers)
            self._unanswered[number] = waiting
            message = wire.encode_batch(wire.Batch(number, self._cluster_id, payloads))
            await send(stream, message)

    async def _receive(self, inbox: Inbox) -> None:
        while messages := await inbox.messages():  # empty at the end of the stream
            for message in messages:
                self._answer(wire.decode_answer(message))

    def _answer(self, answer: wire.BatchAnswer) -> None:
        refusals = {
            position: GRPCError(Status(status), text) for position, status, text in answer.refusals
        }
        at = 0
        for size, answered in self._unanswered.pop(answer.number):
            if not answered.done():
                answered.set_result([refusals.get(at + number) for number in range(size)])
            at += size

    def _end(self, error: Exception) -> None:
        self.has_ended = True
        unanswered = [answered for _, answered in self._queue]
        for waiting in self._unanswered.values():
            unanswered += [answered for _, answered in waiting]
        self._queue.clear()
        self._unanswered.clear()
        for answered in unanswered:
            if not answered.done():
                answered.set_exception(error)
                answered.exception()  # whoever waited may have gone
