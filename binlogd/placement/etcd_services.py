"""etcd's services on the keyspace of this process.

Source: go.etcd.io/etcd etcdserver/api/v3rpc/key.go, lease.go, member.go, watch.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby

import msgspec
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.errors import UpstreamUnavailable
from binlogd.grpc.messages import BytesStream, begin_answer
from binlogd.grpc.methods import OpenStreams, bidirectional, requests, send
from binlogd.placement.calls import MESSAGE_BYTES_MAX, as_status, unary
from binlogd.upstream.keyspace.requests import STANDS_IN, event, is_empty_range
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.keyspace.versions import KeyVersion
from binlogd.wire.generated import etcdserverpb as etcd

WATCHES_MAX = 4096
"""Of one stream."""
PROGRESS_S = 600.0
"""A watch of which nothing was said for so long is told how far it is, if it wants that."""
_REQUESTS_MAX = 64  # that wait; the next ones are not read
_ANSWER_BYTES = 1 << 20
_NONE = -1
"""The watch id of answers that belong to none."""
_NEWEST = (1 << 63) - 1


class _Watch(msgspec.Struct):
    start: bytes
    end: bytes
    next_revision: int
    wants_progress: bool
    reported_s: float
    """When something was said of it, by the loop's clock."""


class Watches:
    """Many watches on one stream.

    Invariant. On a stream the answer to a request comes before the events that follow from it, and
    after the end of a watch nothing more is said of it. A progress names no revision whose events
    have not been sent, because a client goes on behind it when its connection is lost.
    Why it holds. One task owns the watches of a stream, takes the requests in their order, and is
    the only one that sends. What has not been sent is not remembered, but read from the keyspace
    when the peer takes it: a slow peer costs nothing, and is told when the compaction has overtaken
    it. For the revision of a progress it looks where its watches stand, and not how far the
    keyspace is.
    """

    def __init__(self, keyspace: KeyspaceStore, stream: BytesStream, progress_s: float) -> None:
        self._keyspace, self._stream, self._progress_s = keyspace, stream, progress_s
        self._watches: dict[int, _Watch] = {}
        self._next_id = 0
        self._requests: asyncio.Queue[etcd.WatchRequest] = asyncio.Queue(_REQUESTS_MAX)
        self._wake = asyncio.Event()
        self._has_ended = self._is_asked = False
        self._failure: GRPCError | None = None

    async def run(self) -> None:
        """Until the peer has no more requests. Raises GRPCError."""
        with self._keyspace.listening(self._wake):
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read(), name="watch requests")
                while not self._has_ended:
                    self._wake.clear()
                    await self._take_requests()
                    if not await self._send_changes():
                        await self._say_progress()
                        await self._wait()
                reading.cancel()
        if self._failure is not None:
            raise self._failure

    async def _read(self) -> None:
        try:
            async for request in requests(self._stream, etcd.WatchRequest, MESSAGE_BYTES_MAX):
                await self._requests.put(request)
                self._wake.set()
        except GRPCError as error:
            self._failure = error
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._wake.set()

    async def _wait(self) -> None:
        """Until there is something to do, or a watch is due."""
        since_s = [each.reported_s for each in self._waiting().values()]
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(since_s) + self._progress_s if since_s else None):
                await self._wake.wait()

    async def _say_progress(self) -> None:
        """To whoever has asked, and to watches of which nothing was said for long."""
        if self._is_asked:
            self._is_asked = False
            upto = min((each.next_revision - 1 for each in self._watches.values()), default=_NEWEST)
            header = self._keyspace.header(min(upto, self._keyspace.revision))
            await self._say(etcd.WatchResponse(header=header, watch_id=_NONE))
        until_s = _now_s() - self._progress_s
        for number, watch in self._waiting().items():
            if watch.reported_s <= until_s:
                watch.reported_s = _now_s()
                header = self._keyspace.header(
                    min(watch.next_revision - 1, self._keyspace.revision)
                )
                await self._say(etcd.WatchResponse(header=header, watch_id=number))

    def _waiting(self) -> Mapping[int, _Watch]:
        return {number: each for number, each in self._watches.items() if each.wants_progress}

    # --- requests --------------------------------------------------------------------------

    async def _take_requests(self) -> None:
        while not self._requests.empty():
            request = self._requests.get_nowait()
            if request.create_request is not None:
                await self._create(request.create_request)
            elif request.cancel_request is not None:
                number = request.cancel_request.watch_id
                if self._watches.pop(number, None) is not None:
                    await self._say(etcd.WatchResponse(watch_id=number, canceled=True))
            elif request.progress_request is not None:
                self._is_asked = True

    async def _create(self, request: etcd.WatchCreateRequest) -> None:
        start, end = request.key or b"\0", request.range_end
        refusal = ""
        if is_empty_range(start, end):
            refusal = "mvcc: watcher range is empty"
        elif request.watch_id or request.prev_kv or request.filters:
            refusal = f"{STANDS_IN}: watches have no ids of their clients, no prev_kv, no filters"
        elif len(self._watches) >= WATCHES_MAX:
            refusal = f"there are {WATCHES_MAX} watches on this stream"
        if refusal:
            await self._say(
                etcd.WatchResponse(
                    watch_id=_NONE, created=True, canceled=True, cancel_reason=refusal
                )
            )
            return
        number, self._next_id = self._next_id, self._next_id + 1
        header = self._keyspace.header()
        since = request.start_revision or header.revision + 1
        self._watches[number] = _Watch(start, end, since, request.progress_notify, _now_s())
        await self._say(etcd.WatchResponse(header=header, watch_id=number, created=True))

    # --- events ----------------------------------------------------------------------------

    async def _send_changes(self) -> bool:
        """Some of what every watch has not seen; False if there is nothing left."""
        is_behind = False
        for number, watch in list(self._watches.items()):
            try:
                changes = await self._keyspace.changes(watch.start, watch.end, watch.next_revision)
            except UpstreamUnavailable as error:
                self._failure = GRPCError(Status.UNAVAILABLE, str(error))
                self._end()
                return True
            if changes is None:
                del self._watches[number]
                await self._say(self._overtaken(number))
                continue
            watch.next_revision = changes.next_revision
            is_behind = is_behind or changes.next_revision <= changes.revision
            if changes.versions:
                watch.reported_s = _now_s()
            for some in _answers(changes.versions):
                header = self._keyspace.header(changes.revision)
                events = [event(change) for change in some]
                await self._say(etcd.WatchResponse(header=header, watch_id=number, events=events))
        return is_behind

    def _overtaken(self, number: int) -> etcd.WatchResponse:
        header = self._keyspace.header()
        header.revision = 0  # as in the original: it is not up to any revision
        return etcd.WatchResponse(
            header=header, watch_id=number, canceled=True, compact_revision=self._keyspace.compacted
        )

    async def _say(self, answer: etcd.WatchResponse) -> None:
        if answer.header is None:
            answer.header = self._keyspace.header()
        await send(self._stream, answer)


def _answers(shown: Sequence[KeyVersion]) -> list[list[KeyVersion]]:
    """Cut into answers that are not too large, and never within a revision."""
    answers: list[list[KeyVersion]] = []
    size = _ANSWER_BYTES
    for _, same in groupby(shown, key=lambda change: change.mod_revision):
        together = list(same)
        if size >= _ANSWER_BYTES:
            answers.append([])
            size = 0
        answers[-1] += together
        size += sum(change.size for change in together)
    return answers


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class EtcdServices:
    """KV, Lease, Watch and Cluster of `etcdserverpb`: a cluster of one, which says that it is
    `name` and reached at `url`."""

    def __init__(
        self,
        keyspace: KeyspaceStore,
        streams: OpenStreams,
        *,
        name: str,
        url: str,
        progress_s: float = PROGRESS_S,
    ) -> None:
        self._keyspace, self._streams = keyspace, streams
        self._name, self._url, self._progress_s = name, url, progress_s

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        keyspace = self._keyspace
        return {
            "/etcdserverpb.KV/Range": unary(etcd.RangeRequest, keyspace.range),
            "/etcdserverpb.KV/Put": unary(etcd.PutRequest, keyspace.put),
            "/etcdserverpb.KV/DeleteRange": unary(etcd.DeleteRangeRequest, keyspace.delete_range),
            "/etcdserverpb.KV/Txn": unary(etcd.TxnRequest, keyspace.txn),
            "/etcdserverpb.Lease/LeaseGrant": unary(etcd.LeaseGrantRequest, self._grant),
            "/etcdserverpb.Lease/LeaseRevoke": unary(etcd.LeaseRevokeRequest, self._revoke),
            "/etcdserverpb.Lease/LeaseKeepAlive": bidirectional(self._keep_alive),
            "/etcdserverpb.Watch/Watch": bidirectional(self._watch),
            "/etcdserverpb.Cluster/MemberList": unary(etcd.MemberListRequest, self._members),
        }

    async def _grant(self, request: etcd.LeaseGrantRequest) -> etcd.LeaseGrantResponse:
        number, ttl_s = await self._keyspace.grant(request.id, request.ttl)
        return etcd.LeaseGrantResponse(header=self._keyspace.header(), id=number, ttl=ttl_s)

    async def _revoke(self, request: etcd.LeaseRevokeRequest) -> etcd.LeaseRevokeResponse:
        await self._keyspace.revoke(request.id)
        return etcd.LeaseRevokeResponse(header=self._keyspace.header())

    async def _keep_alive(self, stream: BytesStream) -> None:
        async with self._streams.until_closing():
            await begin_answer(stream)
            async for request in requests(stream, etcd.LeaseKeepAliveRequest, MESSAGE_BYTES_MAX):
                with as_status():
                    ttl_s = await self._keyspace.keep_alive(request.id)
                header = self._keyspace.header()
                await send(
                    stream, etcd.LeaseKeepAliveResponse(header=header, id=request.id, ttl=ttl_s)
                )

    async def _watch(self, stream: BytesStream) -> None:
        await begin_answer(stream)
        async with self._streams.until_closing():
            await Watches(self._keyspace, stream, self._progress_s).run()

    async def _members(self, _: etcd.MemberListRequest) -> etcd.MemberListResponse:
        member = etcd.Member(
            id=self._keyspace.identity.member,
            name=self._name,
            peer_urls=[self._url],
            client_urls=[self._url],
        )
        header = self._keyspace.header()
        header.revision = 0  # who belongs to a cluster stands in no revision
        return etcd.MemberListResponse(header=header, members=[member])
