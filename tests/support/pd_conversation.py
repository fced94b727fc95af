"""What the programs of a real cluster asked PD, asked again of a PD that has heard none of it.

All clients talk in the order in which they were answered. Numbers that a server chooses are put in
the place of those that PD chose: leases are granted under the recorded number, a revision stands
for the one that the same write made here. The recordings leave out repeated calls; what such a call
wrote shows in later answers, and is written here before those are compared (`filled` counts it).
"""

from __future__ import annotations

import asyncio
import gzip
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from grpclib.client import Channel, Stream
from grpclib.const import Cardinality

from binlogd.grpc.channel import PlainChannel
from binlogd.wire.generated import etcdserverpb as etcd
from binlogd.wire.generated import pdpb
from tests.support.wire_recordings import WIRE, say_whose

CLIENTS = ("pump", "drainer", "tidb", "binlogctl")
_UNARY: dict[str, tuple[type[Any], type[Any]]] = {
    "/etcdserverpb.KV/Range": (etcd.RangeRequest, etcd.RangeResponse),
    "/etcdserverpb.KV/Txn": (etcd.TxnRequest, etcd.TxnResponse),
    "/etcdserverpb.KV/Put": (etcd.PutRequest, etcd.PutResponse),
    "/etcdserverpb.KV/DeleteRange": (etcd.DeleteRangeRequest, etcd.DeleteRangeResponse),
    "/etcdserverpb.Lease/LeaseGrant": (etcd.LeaseGrantRequest, etcd.LeaseGrantResponse),
    "/etcdserverpb.Lease/LeaseRevoke": (etcd.LeaseRevokeRequest, etcd.LeaseRevokeResponse),
    "/etcdserverpb.Cluster/MemberList": (etcd.MemberListRequest, etcd.MemberListResponse),
    "/pdpb.PD/GetMembers": (pdpb.GetMembersRequest, pdpb.GetMembersResponse),
    "/pdpb.PD/GetRegion": (pdpb.GetRegionRequest, pdpb.GetRegionResponse),
    "/pdpb.PD/GetStore": (pdpb.GetStoreRequest, pdpb.GetStoreResponse),
    "/pdpb.PD/GetAllStores": (pdpb.GetAllStoresRequest, pdpb.GetAllStoresResponse),
    "/pdpb.PD/UpdateServiceGCSafePoint": (
        pdpb.UpdateServiceGcSafePointRequest,
        pdpb.UpdateServiceGcSafePointResponse,
    ),
    "/pdpb.PD/LoadGlobalConfig": (pdpb.LoadGlobalConfigRequest, pdpb.LoadGlobalConfigResponse),
}
_STREAMS: dict[str, tuple[type[Any], type[Any]]] = {
    "/etcdserverpb.Watch/Watch": (etcd.WatchRequest, etcd.WatchResponse),
    "/etcdserverpb.Lease/LeaseKeepAlive": (
        etcd.LeaseKeepAliveRequest,
        etcd.LeaseKeepAliveResponse,
    ),
    "/pdpb.PD/Tso": (pdpb.TsoRequest, pdpb.TsoResponse),
}


@dataclass(frozen=True, slots=True)
class Said:
    """One line of a recording."""

    client: str
    call: int
    method: str
    direction: str
    message: bytes
    phase: str


@dataclass
class Answered:
    """An answer of the real PD, and the one here to the same request."""

    client: str
    method: str
    phase: str
    request: Any
    real: Any
    own: Any


@dataclass
class OpenStream:
    """A stream here, with what was said on it and on the recorded one."""

    client: str
    method: str
    stream: Stream[bytes, bytes]
    requests: list[Any] = field(default_factory=list)
    real: list[Any] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)


def lines(clients: Sequence[str] = CLIENTS) -> list[Said]:
    """What was said, in the order of time."""
    found: list[tuple[int, Said]] = []
    say_whose(*clients, "pd")
    for client in clients:
        methods: dict[int, str] = {}
        with gzip.open(WIRE / f"{client}-to-pd.jsonl.gz", "rt") as recorded:
            for line in recorded:
                said = json.loads(line)
                if said["dir"] == "start":
                    methods[said["call"]] = said["method"]
                if said["call"] in methods:
                    message = bytes.fromhex(said.get("hex", ""))
                    method = methods[said["call"]]
                    one = Said(client, said["call"], method, said["dir"], message, said["phase"])
                    found.append((said["t_us"], one))
    return [said for _, said in sorted(found, key=lambda each: each[0])]


class Conversation:
    """Asks the PD at a port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers: list[Answered] = []
        self.streams: list[OpenStream] = []
        self.filled: Counter[bytes] = Counter()
        self.revisions: dict[int, int] = {}
        self._leases: set[int] = set()
        self._own_channel: Channel | None = None
        self._open: dict[tuple[str, int], OpenStream] = {}

    async def run(self, said: Sequence[Said]) -> None:
        """All of it; afterwards every answer that is owed has come."""
        requests: dict[tuple[str, int], bytes] = defaultdict(bytes)
        async with AsyncExitStack() as stack:
            channels = {
                client: await stack.enter_async_context(PlainChannel("127.0.0.1", self._port))
                for client in CLIENTS
            }
            self._own_channel = await stack.enter_async_context(
                PlainChannel("127.0.0.1", self._port)
            )
            group = await stack.enter_async_context(asyncio.TaskGroup())
            listening = []
            for line in said:
                key = line.client, line.call
                channel = channels[line.client]
                if line.method in _STREAMS:
                    if line.direction == "request":
                        if key not in self._open:
                            opened = await stack.enter_async_context(
                                channel.request(
                                    line.method, Cardinality.STREAM_STREAM, bytes, bytes
                                )
                            )
                            made = OpenStream(line.client, line.method, opened)
                            self._open[key] = made
                            self.streams.append(made)
                            await opened.send_request()
                            listening.append(group.create_task(self._listen(made)))
                        await self._say(self._open[key], line.message)
                    elif line.direction == "response":
                        await self._owed(self._open[key], line.message)
                elif line.direction == "request":
                    requests[key] = line.message
                elif line.direction == "response":
                    await self._ask(channel, line, requests[key])
            await asyncio.sleep(0.2)  # for what is told beyond what was recorded
            for each in listening:
                each.cancel()
            for each_stream in self.streams:
                await each_stream.stream.cancel()

    # --- streams ---------------------------------------------------------------------------

    async def _listen(self, made: OpenStream) -> None:
        _, answer_type = _STREAMS[made.method]
        while (message := await made.stream.recv_message()) is not None:
            made.own.append(answer_type().parse(message))
            made.told.set()

    async def _say(self, made: OpenStream, message: bytes) -> None:
        request_type, _ = _STREAMS[made.method]
        request = request_type().parse(message)
        made.requests.append(request)
        if isinstance(request, etcd.WatchRequest) and request.create_request is not None:
            since = request.create_request.start_revision
            if since:
                request.create_request.start_revision = self._here(since - 1) + 1
        await made.stream.send_message(bytes(request))

    async def _owed(self, made: OpenStream, message: bytes) -> None:
        """What answers a request must come before anybody says more, as it did."""
        _, answer_type = _STREAMS[made.method]
        answer = answer_type().parse(message)
        made.real.append(answer)
        async with asyncio.timeout(120):
            while _answers(made.own) < _answers(made.real):  # each answer wakes us
                made.told.clear()
                await made.told.wait()

    # --- unary calls -----------------------------------------------------------------------

    async def _ask(self, channel: Channel, line: Said, message: bytes) -> None:
        request_type, answer_type = _UNARY[line.method]
        request, real = request_type().parse(message), answer_type().parse(line.message)
        await self._fill(request, real)
        if isinstance(request, etcd.LeaseGrantRequest):
            request.id = real.id
            self._leases.add(real.id)
        if isinstance(request, etcd.RangeRequest) and request.max_create_revision:
            request.max_create_revision = self._here(request.max_create_revision)
        own = answer_type().parse(await self._call(channel, line.method, bytes(request)))
        if line.method.startswith("/etcdserverpb.") and real.header.revision:
            self.revisions[real.header.revision] = own.header.revision
        self.answers.append(Answered(line.client, line.method, line.phase, request, real, own))

    async def _call(self, channel: Channel, method: str, message: bytes) -> bytes:
        async with channel.request(method, Cardinality.UNARY_UNARY, bytes, bytes) as stream:
            await stream.send_message(message, end=True)
            return await stream.recv_message() or b""

    async def _beside(self, method: str, message: bytes) -> bytes:
        """What no recorded client says."""
        assert self._own_channel is not None
        return await self._call(self._own_channel, method, message)

    def _here(self, revision: int) -> int:
        """The newest revision here that stands for one of the real PD up to this."""
        known = sorted(self.revisions)
        at = bisect_right(known, revision)
        return self.revisions[known[at - 1]] if at else 0

    # --- what the recordings left out ------------------------------------------------------

    async def _fill(self, request: Any, real: Any) -> None:
        for lease in _leases_of(request):
            await self._fill_lease(lease)
        if isinstance(request, etcd.RangeRequest) and not request.revision and not request.limit:
            await self._fill_range(request, real)
        if isinstance(request, etcd.TxnRequest):
            for op, answer in zip(
                request.success if real.succeeded else request.failure,
                real.responses,
                strict=True,
            ):
                if op.request_range is not None:
                    await self._fill_range(op.request_range, answer.response_range)

    async def _fill_lease(self, lease: int) -> None:
        if lease and lease not in self._leases:
            self.filled[b"lease"] += 1
            self._leases.add(lease)
            grant = etcd.LeaseGrantRequest(id=lease, ttl=60)
            await self._beside("/etcdserverpb.Lease/LeaseGrant", bytes(grant))

    async def _fill_range(self, request: etcd.RangeRequest, real: etcd.RangeResponse) -> None:
        plain = etcd.RangeRequest(key=request.key, range_end=request.range_end)
        answered = await self._beside("/etcdserverpb.KV/Range", bytes(plain))
        own = {each.key: each for each in etcd.RangeResponse().parse(answered).kvs}
        for each in real.kvs:
            known = own.pop(each.key, None)
            await self._fill_key(each, known.version if known else 0)
        if not (request.max_create_revision or request.count_only):
            for key in own:
                self.filled[key] += 1
                gone = etcd.DeleteRangeRequest(key=key)
                await self._beside("/etcdserverpb.KV/DeleteRange", bytes(gone))

    async def _fill_key(self, real: etcd.KeyValue, version: int) -> None:
        while version < real.version:
            version += 1
            self.filled[real.key] += 1
            await self._fill_lease(real.lease)
            put = etcd.PutRequest(key=real.key, value=real.value, lease=real.lease)
            await self._beside("/etcdserverpb.KV/Put", bytes(put))


def _leases_of(request: Any) -> set[int]:
    if isinstance(request, etcd.PutRequest):
        return {request.lease} - {0}
    if isinstance(request, etcd.TxnRequest):
        ops = (*request.success, *request.failure)
        return {op.request_put.lease for op in ops if op.request_put is not None} - {0}
    return set()


def _answers(told: Sequence[Any]) -> int:
    """How many are not events, which come when they come."""
    return sum(1 for each in told if not getattr(each, "events", None))


def subsequence(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether all of one stands in the other, in its order."""
    rest: Iterator[Any] = iter(whole)
    return all(each in rest for each in part)
