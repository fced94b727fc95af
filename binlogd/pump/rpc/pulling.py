"""PullBinlogs: what a Pump has, in joined messages, to everybody who pulls.

Invariant. While one address has two places more than another would have, the other gets the next.
Why it holds. When all are taken, the address that has most gives one up for a newcomer that would
not have more than it has left then: the pull to which nothing was sent for the longest time.
Source: tidb-binlog pump/server.go, whose Pump has no limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.binlog import CommittedBinlog, Late
from binlogd.errors import BinlogdError, MalformedBinlog, WrongCluster
from binlogd.grpc import messages
from binlogd.grpc.messages import BytesStream
from binlogd.grpc.methods import unreadable
from binlogd.host.peers import BY_SOCKET, heaviest, peer_of
from binlogd.merge.stream import MergeLimits, merged
from binlogd.ports import BinlogSource, ClusterIdentity
from binlogd.pump.rpc.in_flight import InFlight, ServiceLimits
from binlogd.pump.rpc.refusals import missed, refusal
from binlogd.telemetry.histogram import Histogram, doubling
from binlogd.tso import Tso
from binlogd.wire import codec

log = structlog.get_logger(__name__)

_CONTROL_MESSAGE_BYTES_MAX = 64 << 10
RPC_SECONDS = doubling(0.00005, 18)
"""The bounds by which the durations of calls are counted."""


class LateCommitFeed(Protocol):
    """Commits that came too late since it was last asked."""

    def news(self) -> Sequence[Late]:
        """Cheap."""


class PulledPump(Protocol):
    """What pulling needs of a Pump."""

    def sources(self) -> Sequence[BinlogSource]:
        """One for each shard."""

    def watch_late(self) -> LateCommitFeed:
        """What comes below what was handed out already, from now on."""


class PullService:
    """The method, and counters of what was sent."""

    def __init__(
        self,
        pump: PulledPump,
        cluster: ClusterIdentity,
        limits: ServiceLimits,
        in_flight: InFlight,
    ) -> None:
        self._pump, self._cluster, self._limits = pump, cluster, limits
        self._in_flight = in_flight
        self.pullers = Pullers(limits.pullers_max)
        self.binlogs_sent = self.bytes_sent = 0
        self.seconds = {label: Histogram(RPC_SECONDS) for label in ("succ", "fail")}

    async def pull(self, stream: BytesStream) -> None:
        """Serves one puller until it leaves, or the service closes. Raises GRPCError."""
        patience_s = self._limits.arrival_s
        message = await messages.read_message(stream, _CONTROL_MESSAGE_BYTES_MAX, patience_s)
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
            self.seconds[label].observe(clock() - begin_s)

    async def _serve_until_closing(self, stream: BytesStream, after: Tso) -> None:
        async with self._in_flight.until_closing() as until:
            pull = self.pullers.begin(stream.peer.addr(), until)
            log.info("pull_began", after=after, peer=stream.peer.addr())
            try:
                await messages.begin_answer(stream)
                await self._send_merged(stream, after, pull)
            finally:
                self.pullers.end(pull)
                log.info("pull_ended", peer=stream.peer.addr())
        if pull.is_let_go:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED,
                f"all streams are taken, and {pull.client} has more of them than others;"
                " one was needed",
            )

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
        if messages.compresses(stream):
            await self._send_compressed(stream, binlogs)
        else:
            for chunk in codec.pull_chunks(binlogs, chunk_bytes=chunk_bytes):
                await messages.send_joined(stream, chunk)
                self.bytes_sent += len(chunk)
        self.binlogs_sent += len(binlogs)

    async def _send_compressed(
        self, stream: BytesStream, binlogs: Sequence[CommittedBinlog]
    ) -> None:
        chunks, size = [], 0
        for binlog in binlogs:
            chunk = await messages.compressed(codec.pull_answer_parts(binlog))
            chunks.append(chunk)
            size += len(chunk)
            if size >= self._limits.pull_chunk_bytes or binlog is binlogs[-1]:
                await messages.send_joined(stream, b"".join(chunks))
                self.bytes_sent += size
                chunks, size = [], 0


class Pull:
    """One of them; `until` ends it."""

    def __init__(self, client: str, until: asyncio.Timeout) -> None:
        self.client = client
        self._until = until
        self.is_let_go = False
        self.note_sent()

    def note_sent(self) -> None:
        """Something was sent to it now."""
        self.sent_s = asyncio.get_running_loop().time()

    def let_go(self) -> None:
        """Ends it for another."""
        self.is_let_go = True
        if not self._until.expired():  # it ends anyway
            self._until.reschedule(asyncio.get_running_loop().time())


class Pullers:
    """Everybody who pulls; the unix socket has as many places of its own."""

    def __init__(self, pullers_max: int) -> None:
        self._max = pullers_max
        self._pulls: dict[Pull, None] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._pulls)

    def begin(self, peername: object, until: asyncio.Timeout) -> Pull:
        """A place; `end` gives it back. Raises GRPCError if there is none."""
        client = peer_of(peername)
        by_socket = client == BY_SOCKET
        rivals = [each for each in self._pulls if (each.client == BY_SOCKET) == by_socket]
        if len(rivals) >= self._max:
            self._make_place(client, rivals)
        pull = Pull(client, until)
        self._pulls[pull] = None
        return pull

    def end(self, pull: Pull) -> None:
        """Gives back its place, if it still has it."""
        self._pulls.pop(pull, None)

    def _make_place(self, client: str, rivals: list[Pull]) -> None:
        counts = Counter(each.client for each in rivals)
        most = heaviest(counts)
        if counts[most] < counts[client] + 2:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{len(rivals)} streams are served already")
        goes = min((each for each in rivals if each.client == most), key=lambda each: each.sent_s)
        log.warning("pull_let_go", client=most, its_pulls=counts[most], new_client=client)
        self._pulls.pop(goes, None)
        goes.let_go()
