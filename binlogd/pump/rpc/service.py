"""The gRPC face of the Pump: WriteBinlog in batches, PullBinlogs in joined messages.

Invariant. OK means durable: an answer leaves only after the writer's outcome for that very binlog.
One road: a unary call is a batch of one, and whatever takes many calls at once uses the same
`write_binlogs`.

Statuses and texts are the original's: UNKNOWN with the plain error text, because clients compare
it; RESOURCE_EXHAUSTED for what is too large, because TiDB gives up on that one only.
Source: tidb-binlog pump/server.go, and grpc-go's texts for what its server refuses by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol, cast

import msgspec
import structlog
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.binlog import CommittedBinlog, Late
from binlogd.errors import BinlogdError, MalformedBinlog, WrongCluster
from binlogd.grpc.lane import Answered, CallSink
from binlogd.grpc.messages import (
    ARRIVAL_S,
    PIECE_BYTES,
    BytesStream,
    announced,
    begin_answer,
    compressed,
    compresses,
    gathered,
    in_time,
    inflated,
    note_written,
    piece,
    read_message,
    send_empty,
    send_joined,
)
from binlogd.grpc.methods import OpenStreams, unreadable
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES
from binlogd.merge.stream import MergeLimits, merged
from binlogd.ports import BinlogSource, ClusterIdentity
from binlogd.pump.budget import Budget
from binlogd.pump.log.spool import Spool
from binlogd.pump.rpc.batches import BatchService
from binlogd.pump.rpc.large import SLOWER, SPOOLED_BYTES_HELD, large_write, received, spooled
from binlogd.pump.rpc.pullers import Pull, Pullers, let_go_of
from binlogd.pump.rpc.refusals import missed, refusal, refusals
from binlogd.pump.spools import Spools
from binlogd.telemetry.histogram import Histogram, HistogramStatistics, doubling
from binlogd.telemetry.logs import Seldom
from binlogd.tso import Tso
from binlogd.wire import codec, peek
from binlogd.wire.requests import own_payloads

log = structlog.get_logger(__name__)

_CONTROL_MESSAGE_BYTES_MAX = 64 << 10
_SLOW_S = 1.0
_RPC_SECONDS = doubling(0.00005, 18)


class LateCommitFeed(Protocol):
    """Commits that came too late since it was last asked."""

    def news(self) -> Sequence[Late]:
        """Cheap."""


class BinlogWriter(Protocol):
    """What the service needs of a Pump."""

    async def write(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
        """Returns when all are durable or refused: one outcome for each, None is durable.

        An empty payload asks whether prewrites are taken now.
        """

    def write_now(
        self, payloads: Sequence[bytes], ended: Callable[[Sequence[BinlogdError | None]], None]
    ) -> bool:
        """`write` that tells `ended` what it would return, as soon as it is known. False if there
        is no room: nothing was done."""

    def sources(self) -> Sequence[BinlogSource]:
        """One for each shard."""

    def watch_late(self) -> LateCommitFeed:
        """What comes below what was handed out already, from now on."""


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


class ServiceStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; durations in seconds by outcome (`succ`, `fail`)."""

    writes: int
    writes_lost: int
    writes_in_flight: int
    bytes_received: int
    bytes_in_flight: int
    writes_held_back: int
    binlogs_sent: int
    bytes_sent: int
    pullers: int
    write_seconds: Mapping[str, HistogramStatistics]
    pull_seconds: Mapping[str, HistogramStatistics]


class PumpService:
    """`binlog.Pump`: what TiDB writes to and a Drainer pulls from."""

    def __init__(
        self,
        pump: BinlogWriter,
        cluster: ClusterIdentity,
        limits: ServiceLimits | None = None,
        spools: Spools | None = None,
    ) -> None:
        """`spools`: where large Prewrites are written to; without, they are gathered in memory."""
        self._pump = pump
        self._spools = spools
        self._cluster = cluster
        self._limits = limits or ServiceLimits()
        self._streams = OpenStreams()
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_flight = self._writes = self._lost = 0
        self._pullers = Pullers(self._limits.pullers_max)
        self._room = Budget(bytes_max=self._limits.bytes_in_flight_max)
        self._bytes_unread = self._bytes_received = 0
        self._binlogs_sent = self._bytes_sent = 0
        self._write_seconds = {label: Histogram(_RPC_SECONDS) for label in ("succ", "fail")}
        self._pull_seconds = {label: Histogram(_RPC_SECONDS) for label in ("succ", "fail")}
        self._batches = BatchService(
            write=self.write_payloads,
            take=self._take_room,
            add=self._room.add,
            give=self._room.give,
            until_closing=self._until_closing,
            message_bytes_max=self._limits.message_bytes_max,
            arrival_s=self._limits.arrival_s,
        )
        self._complaints = Seldom()

    def __mapping__(self) -> dict[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/binlog.Pump/WriteBinlog": Handler(
                self._write_binlog, Cardinality.UNARY_UNARY, bytes, bytes
            ),
            "/binlog.Pump/PullBinlogs": Handler(
                self._pull_binlogs, Cardinality.UNARY_STREAM, bytes, bytes
            ),
            **self._batches.__mapping__(),
        }

    def sinks(self) -> dict[bytes, CallSink]:
        """For a server that can hand over the messages of many calls at once, by path."""
        limits = self._limits
        return {
            b"/binlog.Pump/WriteBinlog": CallSink(
                write_now=self.write_now,
                write=self.write_binlogs,
                room=self._room.room,
                take=self._arrived,
                give=self._answered,
                message_bytes_max=limits.message_bytes_max,
                patience_s=limits.arrival_s / 10,
            )
        }

    async def write_binlogs(self, messages: Sequence[bytes]) -> Sequence[GRPCError | None]:
        """Takes serialised WriteBinlogReq messages, which their way in has counted; one outcome for
        each, None is OK."""
        requests: list[codec.WriteRequest | GRPCError] = []
        for message in messages:
            try:
                requests.append(codec.decode_write_request(message))
            except MalformedBinlog as error:
                requests.append(unreadable(error))
        return await self._taken(requests, [len(message) for message in messages])

    def write_now(self, messages: Sequence[bytes], answered: Answered) -> bool:
        """`write_binlogs` for what needs no waiting before it is queued, as nearly always: all for
        this Pump, and room."""
        own = self._cluster.cluster_id
        payloads = own_payloads(messages, own) if own is not None else [None]
        if None in payloads:
            return False
        clock, sizes = asyncio.get_running_loop().time, [len(message) for message in messages]
        begin_s = clock()

        def ended(outcomes: Sequence[BinlogdError | None]) -> None:
            answered(refusals(outcomes))
            self._account(sizes, outcomes, clock() - begin_s)

        return self._pump.write_now(cast(list[bytes], payloads), ended)

    async def write_payloads(
        self, cluster_id: int, payloads: Sequence[bytes]
    ) -> Sequence[GRPCError | None]:
        """Takes serialised binlogs of one cluster; one outcome for each, None is OK."""
        sizes, clock = list(map(len, payloads)), asyncio.get_running_loop().time
        with self._under_way(len(payloads)):
            if cluster_id != self._cluster.cluster_id:
                requests = [codec.WriteRequest(cluster_id, payload) for payload in payloads]
                return await self._taken(requests, sizes)
            begin_s = clock()
            outcomes = await self._written(payloads)
            self._account(sizes, outcomes, clock() - begin_s)
            return refusals(outcomes)

    async def close(self) -> None:
        """Ends every stream with OK, and waits for them and for the writes in flight.

        Writes that come later are still taken: whether they are is the Pump's state, not ours.
        """
        self._streams.close()
        await self._idle.wait()

    def statistics(self) -> ServiceStatistics:
        """Counters; cheap."""
        return ServiceStatistics(
            writes=self._writes,
            writes_lost=self._lost,
            writes_in_flight=self._in_flight,
            bytes_received=self._bytes_received,
            bytes_in_flight=self._room.size,
            writes_held_back=self._room.waiting,
            binlogs_sent=self._binlogs_sent,
            bytes_sent=self._bytes_sent,
            pullers=len(self._pullers),
            write_seconds={label: h.statistics() for label, h in self._write_seconds.items()},
            pull_seconds={label: h.statistics() for label, h in self._pull_seconds.items()},
        )

    # --- WriteBinlog -----------------------------------------------------------------------

    async def _write_binlog(self, stream: BytesStream) -> None:
        size_bytes, is_compressed = await announced(
            stream, self._limits.message_bytes_max, self._limits.arrival_s
        )
        if is_compressed:
            outcome = await self._of_compressed(stream, size_bytes)
        elif self._spools is not None and size_bytes >= self._limits.spooled_bytes_min:
            outcome = await self._of_large(stream, size_bytes, self._spools)
        else:
            outcome = await self._of_whole(stream, b"", size_bytes)
        if outcome is not None:
            raise outcome
        note_written(stream)
        await send_empty(stream)

    async def _of_whole(
        self, stream: BytesStream, first: bytes, size_bytes: int
    ) -> GRPCError | None:
        """Gathers a request in memory, of which `first` is there."""
        async with self._held(size_bytes + MESSAGE_PREFIX_BYTES):
            arriving = received(stream, first, size_bytes)
            request = await in_time(arriving, size_bytes, self._limits.arrival_s)
            with self._under_way(1):
                (outcome,) = await self._taken([request], [size_bytes])
        return outcome

    async def _of_compressed(self, stream: BytesStream, size_bytes: int) -> GRPCError | None:
        async with self._held(size_bytes + MESSAGE_PREFIX_BYTES):
            arriving = gathered(stream, BytesIO(), size_bytes)
            message = await in_time(arriving, size_bytes, self._limits.arrival_s)
            (outcome,) = await self._inflated(message)
        return outcome

    async def _of_large(
        self, stream: BytesStream, size_bytes: int, spools: Spools
    ) -> GRPCError | None:
        """Writes a request to a file as it comes, and makes that a part of the log."""
        clock = asyncio.get_running_loop().time
        patience_s, begin_s = self._limits.arrival_s, clock()
        outcome: BinlogdError | None = None
        try:
            async with AsyncExitStack() as until_written:
                async with self._held(SPOOLED_BYTES_HELD, size_bytes):
                    first = await in_time(piece(stream, PIECE_BYTES), 0, patience_s)
                    begun = large_write(first, message_bytes=size_bytes)
                    if begun is not None:
                        await self._admitted(codec.WriteRequest(begun.cluster_id, begun.prewrite))
                        spooling = spools.begun(begun.prewrite)
                        spool = await until_written.enter_async_context(spooling)
                        arriving = spooled(stream, begun, spool)
                        is_as_begun = await in_time(arriving, size_bytes * SLOWER, patience_s)
                if begun is None:
                    return await self._of_whole(stream, first, size_bytes)
                if not is_as_begun:
                    return await self._read_back(begun.cluster_id, spool)
                begin_s = clock()
                with self._under_way(1):
                    await spools.write(begun.prewrite, spool)
        except BinlogdError as error:
            outcome = error
        self._account([size_bytes], [outcome], clock() - begin_s)
        return None if outcome is None else refusal(outcome)

    async def _read_back(self, cluster_id: int, spool: Spool) -> GRPCError | None:
        """Writes a payload that does not end as TiDB's do, and has to be made anew."""
        async with self._held(spool.payload_bytes):
            request = codec.WriteRequest(cluster_id, await spool.payload())
            with self._under_way(1):
                (outcome,) = await self._taken([request], [spool.payload_bytes])
        return outcome

    async def _inflated(self, message: bytes) -> Sequence[GRPCError | None]:
        """Writes a compressed request; what it grows to is not known beforehand."""
        grown = 0

        def take(size_bytes: int) -> None:
            nonlocal grown
            if not self._room.has_room(size_bytes):
                raise GRPCError(
                    Status.UNAVAILABLE,
                    f"{self._room.size} bytes of unanswered binlogs are in flight already",
                )
            self._room.add(size_bytes)
            grown += size_bytes

        try:
            whole = await inflated(message, self._limits.message_bytes_max, take)
            with self._under_way(1):
                return await self.write_binlogs([whole])
        finally:
            self._room.give(grown)

    def _arrived(self, size_bytes: int, messages: int) -> None:
        self._room.add(size_bytes)
        self._count(messages)

    def _answered(self, size_bytes: int, messages: int) -> None:
        self._room.give(size_bytes)
        self._count(-messages)

    @contextmanager
    def _under_way(self, messages: int) -> Iterator[None]:
        self._count(messages)
        try:
            yield
        finally:
            self._count(-messages)

    def _count(self, messages: int) -> None:
        self._in_flight += messages
        if self._in_flight:
            self._idle.clear()
        else:
            self._note_idle()

    async def _take_room(self, size_bytes: int, coming_bytes: int = 0) -> None:
        """Room for a message, or for what is held of one that is larger, before more of it is read
        than its stream's window lets in.

        What waits unread takes from the window of its connection. It is kept so small that those
        who have room can always go on on the same connection.
        """
        unread = 0
        if not self._room.has_room(size_bytes):
            unread = min(max(size_bytes, coming_bytes), self._limits.stream_window_bytes)
            if self._bytes_unread + unread > self._limits.bytes_waiting_max:
                raise GRPCError(
                    Status.UNAVAILABLE,
                    f"{self._room.size} bytes of unanswered binlogs are in flight already, and"
                    f" {self._room.waiting} more wait",
                )
        self._bytes_unread += unread
        try:
            await self._room.take(size_bytes)
        finally:
            self._bytes_unread -= unread

    @asynccontextmanager
    async def _held(self, size_bytes: int, coming_bytes: int = 0) -> AsyncIterator[None]:
        await self._take_room(size_bytes, coming_bytes)
        try:
            yield
        finally:
            self._room.give(size_bytes)

    async def _taken(
        self, requests: Sequence[codec.WriteRequest | GRPCError], sizes: Sequence[int]
    ) -> Sequence[GRPCError | None]:
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        outcomes: list[BinlogdError | GRPCError | None] = [None] * len(requests)
        places, payloads = [], []
        own = self._cluster.cluster_id
        for place, request in enumerate(requests):
            if isinstance(request, GRPCError):
                outcomes[place] = request
                continue
            if request.cluster_id == own:
                payloads.append(request.payload)
                places.append(place)
                continue
            try:
                payloads.append(await self._admitted(request))
                places.append(place)
            except BinlogdError as error:
                outcomes[place] = error
        if payloads:
            for place, outcome in zip(places, await self._written(payloads), strict=True):
                outcomes[place] = outcome
        self._account(sizes, outcomes, clock() - begin_s)
        return refusals(outcomes)

    async def _admitted(self, request: codec.WriteRequest) -> bytes:
        """The payload of a request that this Pump may take."""
        cluster_id, payload = request
        own = self._cluster.cluster_id
        if own is None and payload:
            peek.peek(payload)  # a client that sends garbage does not decide whose log this is
            own = await self._cluster.adopt(cluster_id)
        if own is not None and cluster_id != own:
            raise WrongCluster(cluster_id, own)
        return payload

    async def _written(self, payloads: Sequence[bytes]) -> Sequence[BinlogdError | None]:
        try:
            return await self._pump.write(payloads)
        except BinlogdError as error:
            return [error] * len(payloads)

    def _note_idle(self) -> None:
        if not self._in_flight and not self._streams.count:
            self._idle.set()

    def _account(
        self,
        sizes: Sequence[int],
        outcomes: Sequence[BinlogdError | GRPCError | None],
        took_s: float,
    ) -> None:
        self._writes += len(sizes)
        self._bytes_received += sum(sizes)
        if took_s < _SLOW_S and not any(outcomes):  # as nearly always
            self._write_seconds["succ"].observe(took_s, len(sizes))
            return
        for size_bytes, outcome in zip(sizes, outcomes, strict=True):
            self._write_seconds["succ" if outcome is None else "fail"].observe(took_s)
            if outcome is not None:
                if not isinstance(outcome, WrongCluster):
                    self._lost += 1
                fields = {"size_bytes": size_bytes, "took_s": took_s, "cause": str(outcome)}
                self._complaints.warn("write_refused", **fields)
            elif took_s >= _SLOW_S:
                self._complaints.warn("write_was_slow", size_bytes=size_bytes, took_s=took_s)

    # --- PullBinlogs -----------------------------------------------------------------------

    async def _pull_binlogs(self, stream: BytesStream) -> None:
        message = await read_message(stream, _CONTROL_MESSAGE_BYTES_MAX, self._limits.arrival_s)
        try:
            cluster_id, after = codec.decode_pull_request(message)
        except MalformedBinlog as error:
            raise unreadable(error) from error
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        label = "fail"
        try:
            own = self._cluster.cluster_id
            if own is not None and cluster_id != own:
                raise refusal(WrongCluster(cluster_id, own))
            await self._serve_until_closing(stream, after)
            label = "succ"
        finally:
            self._pull_seconds[label].observe(clock() - begin_s)

    async def _serve_until_closing(self, stream: BytesStream, after: Tso) -> None:
        async with self._until_closing() as until:
            pull = self._pullers.begin(stream.peer.addr(), until)
            log.info("pull_began", after=after, peer=stream.peer.addr())
            try:
                await begin_answer(stream)
                await self._send_merged(stream, after, pull)
            finally:
                self._pullers.end(pull)
                log.info("pull_ended", peer=stream.peer.addr())
        if pull.is_let_go:
            raise let_go_of(pull)

    @asynccontextmanager
    async def _until_closing(self) -> AsyncIterator[asyncio.Timeout]:
        """Ends its block without an error when this service closes, and `close` waits for that."""
        self._idle.clear()
        try:
            async with self._streams.until_closing() as until:
                yield until
        finally:
            self._note_idle()

    async def _send_merged(self, stream: BytesStream, after: Tso, pull: Pull) -> None:
        # raised outside, or it would come out in a group
        failure: BinlogdError | GRPCError | None = None
        watch = self._pump.watch_late()
        ahead = MergeLimits(bytes_waiting_max=self._limits.pull_ahead_bytes_max)
        async with merged(self._pump.sources(), after, ahead) as batches:
            while failure is None:  # until the peer leaves, this side closes, or a source fails
                try:
                    pulled = await anext(batches)
                except BinlogdError as error:
                    failure = error
                else:
                    await self._send(stream, pulled.binlogs)
                    pull.note_sent()
                    failure = missed(watch.news(), pulled.resolved_ts)
                    del pulled  # it may be large
        log.error("pull_failed", after=after, cause=str(failure))
        raise refusal(failure)

    async def _send(self, stream: BytesStream, binlogs: Sequence[CommittedBinlog]) -> None:
        chunk_bytes = self._limits.pull_chunk_bytes
        if compresses(stream):
            await self._send_compressed(stream, binlogs)
        else:
            for chunk in codec.pull_chunks(binlogs, chunk_bytes=chunk_bytes):
                await send_joined(stream, chunk)
                self._bytes_sent += len(chunk)
        self._binlogs_sent += len(binlogs)

    async def _send_compressed(
        self, stream: BytesStream, binlogs: Sequence[CommittedBinlog]
    ) -> None:
        chunks, size = [], 0
        for binlog in binlogs:
            chunk = await compressed(codec.pull_answer_parts(binlog))
            chunks.append(chunk)
            size += len(chunk)
            if size >= self._limits.pull_chunk_bytes or binlog is binlogs[-1]:
                await send_joined(stream, b"".join(chunks))
                self._bytes_sent += size
                chunks, size = [], 0
