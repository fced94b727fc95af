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
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import msgspec
from grpclib.const import Cardinality, Handler
from grpclib.exceptions import GRPCError

from binlogd.errors import BinlogdError, WrongCluster
from binlogd.grpc.lane import Answered, CallSink
from binlogd.ports import ClusterIdentity
from binlogd.pump.rpc.batches import BatchService
from binlogd.pump.rpc.in_flight import InFlight, ServiceLimits
from binlogd.pump.rpc.pulling import RPC_SECONDS, PulledPump, PullService
from binlogd.pump.rpc.refusals import refusals
from binlogd.pump.rpc.unary import Request, UnaryWrites, decoded
from binlogd.pump.spools import Spools
from binlogd.telemetry.histogram import Histogram, HistogramStatistics
from binlogd.telemetry.logs import Seldom
from binlogd.wire import codec, peek

_SLOW_S = 1.0


class BinlogWriter(PulledPump, Protocol):
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
        self._cluster = cluster
        self._limits = limits = limits or ServiceLimits()
        self._in_flight = in_flight = InFlight(limits)
        self._writes = self._lost = self._bytes_received = 0
        self._write_seconds = {label: Histogram(RPC_SECONDS) for label in ("succ", "fail")}
        self._complaints = Seldom()
        self._unary = UnaryWrites(
            self._admitted, self._taken, self._account, in_flight, limits, spools
        )
        self._batches = BatchService(
            self.write_payloads, in_flight, limits.message_bytes_max, limits.arrival_s
        )
        self._pulls = PullService(pump, cluster, limits, in_flight)

    def __mapping__(self) -> dict[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        write, pull = self._unary.write, self._pulls.pull
        return {
            "/binlog.Pump/WriteBinlog": Handler(write, Cardinality.UNARY_UNARY, bytes, bytes),
            "/binlog.Pump/PullBinlogs": Handler(pull, Cardinality.UNARY_STREAM, bytes, bytes),
            **self._batches.__mapping__(),
        }

    def sinks(self) -> dict[bytes, CallSink]:
        """For a server that can hand over the messages of many calls at once, by path."""
        limits = self._limits
        return {
            b"/binlog.Pump/WriteBinlog": CallSink(
                write_now=self.write_now,
                write=self.write_binlogs,
                room=self._in_flight.room.room,
                take=self._in_flight.arrived,
                give=self._in_flight.answered,
                message_bytes_max=limits.message_bytes_max,
                patience_s=limits.arrival_s / 10,
            )
        }

    async def write_binlogs(self, messages: Sequence[bytes]) -> Sequence[GRPCError | None]:
        """Takes serialised WriteBinlogReq messages, which their way in has counted; one outcome for
        each, None is OK."""
        return await self._taken(list(map(decoded, messages)), list(map(len, messages)))

    def write_now(self, messages: Sequence[bytes], answered: Answered) -> bool:
        """`write_binlogs` for what needs no waiting before it is queued, as nearly always: all for
        this Pump, and room."""
        own = self._cluster.cluster_id
        payloads = codec.own_payloads(messages, own) if own is not None else [None]
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
        with self._in_flight.under_way(len(payloads)):
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
        await self._in_flight.close()

    def statistics(self) -> ServiceStatistics:
        """Counters; cheap."""
        return ServiceStatistics(
            writes=self._writes,
            writes_lost=self._lost,
            writes_in_flight=self._in_flight.messages,
            bytes_received=self._bytes_received,
            bytes_in_flight=self._in_flight.room.size,
            writes_held_back=self._in_flight.room.waiting,
            binlogs_sent=self._pulls.binlogs_sent,
            bytes_sent=self._pulls.bytes_sent,
            pullers=len(self._pulls.pullers),
            write_seconds={label: h.statistics() for label, h in self._write_seconds.items()},
            pull_seconds={label: h.statistics() for label, h in self._pulls.seconds.items()},
        )

    async def _taken(
        self, requests: Sequence[Request], sizes: Sequence[int]
    ) -> Sequence[GRPCError | None]:
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        outcomes: list[BinlogdError | GRPCError | None] = [None] * len(requests)
        places, payloads = [], []
        for place, request in enumerate(requests):
            try:
                payloads.append(await self._admitted(request))
                places.append(place)
            except (BinlogdError, GRPCError) as error:
                outcomes[place] = error
        if payloads:
            for place, outcome in zip(places, await self._written(payloads), strict=True):
                outcomes[place] = outcome
        self._account(sizes, outcomes, clock() - begin_s)
        return refusals(outcomes)

    async def _admitted(self, request: Request) -> bytes:
        """The payload of a request that this Pump may take. Raises why it is none."""
        if isinstance(request, GRPCError):
            raise request
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
