"""etcd's client: keys, transactions, leases and watches at any of several endpoints.

A read goes to the next endpoint when one does not answer. A write does so only when it cannot have
been received: whether one that got no answer has happened, nobody knows, and the caller is told.
A watch goes on at the next endpoint from the revision that it has come to; it is given up when all
of them have failed one after the other, twice. Of a watch that has nothing to tell, `run` asks how
far it is, so that silence means that nobody is there; and a member that is cut off from the others
ends it, as it would tell nothing new for as long as that lasts.

Source: go.etcd.io/etcd clientv3/client.go, clientv3/watch.go (RequestProgress),
clientv3/retry_interceptor.go, etcdserver/api/v3rpc/interceptor.go (monitorLeader).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Self, TypeVar

import structlog
from grpclib.client import Channel, Stream, StreamStreamMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.errors import EtcdRefused, Overtaken, UpstreamUnavailable
from binlogd.grpc.channel import NO_ANSWER, LastingChannel, unary, woken_cleanly
from binlogd.grpc.methods import Message, understood
from binlogd.host.tls import ClientTls
from binlogd.upstream.pd.members import Address, addresses_of
from binlogd.wire.generated import etcdserverpb as etcd

log = structlog.get_logger(__name__)

A = TypeVar("A", bound=Message)

DEADLINE_S = 5.0
"""Of one call, all endpoints together; the original's."""
SYNC_S = 30.0
"""Between two looks at who the members are."""
_PAUSE_S = 0.1  # before a watch is begun anew
SILENCE_S = 30.0
"""A watch that hears nothing for so long is made anew."""
PROGRESS_S = 10.0
"""Between two questions to a watch how far it is."""
_REQUIRE_LEADER = {"hasleader": "true"}
_FINAL = (
    Status.INVALID_ARGUMENT,
    Status.OUT_OF_RANGE,
    Status.NOT_FOUND,
    Status.FAILED_PRECONDITION,
    Status.RESOURCE_EXHAUSTED,
    Status.ALREADY_EXISTS,
    Status.PERMISSION_DENIED,
    Status.UNAUTHENTICATED,
    Status.UNIMPLEMENTED,
)
_KV, _LEASE = "/etcdserverpb.KV/", "/etcdserverpb.Lease/"


class EtcdClient:
    """One etcd cluster, such as the one in PD. Methods raise EtcdRefused in etcd's words,
    UpstreamUnavailable when nobody answers in time."""

    def __init__(
        self,
        endpoints: Sequence[Address],
        *,
        tls: ClientTls | None = None,
        deadline_s: float = DEADLINE_S,
        sync_s: float = SYNC_S,
        progress_s: float = PROGRESS_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Asks one after the other; `run` looks every `sync_s` who the members are, and asks the
        watches every `progress_s` how far they are."""
        self.endpoints: Sequence[Address] = list(endpoints)
        """Who is asked: the members that are known, then those that were configured."""
        self._configured = self.endpoints
        self._tls, self._deadline_s, self._sync_s = tls, deadline_s, sync_s
        self._progress_s, self._silence_s = progress_s, silence_s
        self._at = 0
        self._channels: dict[Address, Channel] = {}
        self._watching: set[Stream[bytes, bytes]] = set()

    async def __aenter__(self) -> Self:
        """Connects with the first call."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes."""
        await self.close()

    async def run(self) -> None:
        """Follows the members of the cluster, as the original does, and keeps the watches
        talking; until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_members(), name="etcd members")
            group.create_task(self._ask_for_progress(), name="etcd progress")

    async def _follow_members(self) -> None:
        while True:  # until cancelled
            await asyncio.sleep(self._sync_s)
            try:
                found = await self.members()
            except (EtcdRefused, UpstreamUnavailable) as error:
                log.info("etcd_members_unknown", cause=str(error))
                continue
            urls = [url for member in found.members for url in member.client_urls]
            self._follow(addresses_of(urls))

    async def _ask_for_progress(self) -> None:
        question = bytes(etcd.WatchRequest(progress_request=etcd.WatchProgressRequest()))
        while True:  # until cancelled
            await asyncio.sleep(self._progress_s)
            for stream in list(self._watching):
                try:
                    async with asyncio.timeout(self._deadline_s):
                        with woken_cleanly():
                            await stream.send_message(question)
                except (*NO_ANSWER, GRPCError) as error:  # whoever reads it hears of it as well
                    log.debug("etcd_watch_not_asked", cause=str(error) or type(error).__name__)

    def _follow(self, advertised: Sequence[Address]) -> None:
        """Those that were configured stay, behind those that are told."""
        now = self._endpoint()
        endpoints = [*advertised, *(each for each in self._configured if each not in advertised)]
        if endpoints != self.endpoints:
            self.endpoints = endpoints
            self._at = endpoints.index(now) if now in endpoints else 0

    async def close(self) -> None:
        """Ends the connections and what is in flight on them."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # --- keys ------------------------------------------------------------------------------

    async def range(self, request: etcd.RangeRequest) -> etcd.RangeResponse:
        """Reads."""
        return await self._call(_KV + "Range", request, etcd.RangeResponse(), is_read=True)

    async def put(self, request: etcd.PutRequest) -> etcd.PutResponse:
        """Sets a key."""
        return await self._call(_KV + "Put", request, etcd.PutResponse())

    async def delete_range(self, request: etcd.DeleteRangeRequest) -> etcd.DeleteRangeResponse:
        """Removes keys."""
        return await self._call(_KV + "DeleteRange", request, etcd.DeleteRangeResponse())

    async def txn(self, request: etcd.TxnRequest) -> etcd.TxnResponse:
        """Compares, and then reads and writes, all in one moment."""
        ops = (*request.success, *request.failure)
        is_read = all(op.request_range is not None for op in ops)
        return await self._call(_KV + "Txn", request, etcd.TxnResponse(), is_read=is_read)

    # --- leases ----------------------------------------------------------------------------

    async def grant(self, number: int, ttl_s: int) -> tuple[int, int]:
        """Begins a lease; its number and seconds to live. Number 0 leaves the choice to etcd."""
        request = etcd.LeaseGrantRequest(ttl=ttl_s, id=number)
        answer = await self._call(_LEASE + "LeaseGrant", request, etcd.LeaseGrantResponse())
        if answer.error:
            raise EtcdRefused("UNKNOWN", answer.error)
        return answer.id, answer.ttl

    async def keep_alive(self, number: int) -> int:
        """Its seconds to live from now on; 0 if it is gone."""
        request = etcd.LeaseKeepAliveRequest(id=number)
        answer = await self._call(
            _LEASE + "LeaseKeepAlive", request, etcd.LeaseKeepAliveResponse(), is_read=True
        )
        return answer.ttl

    async def revoke(self, number: int) -> None:
        """Ends a lease, and removes what was bound to it."""
        request = etcd.LeaseRevokeRequest(id=number)
        await self._call(_LEASE + "LeaseRevoke", request, etcd.LeaseRevokeResponse())

    async def members(self) -> etcd.MemberListResponse:
        """Who belongs to the cluster."""
        request, answer = etcd.MemberListRequest(), etcd.MemberListResponse()
        return await self._call("/etcdserverpb.Cluster/MemberList", request, answer, is_read=True)

    # --- watching --------------------------------------------------------------------------

    async def watch(
        self, key: bytes, range_end: bytes, since: int
    ) -> AsyncGenerator[Sequence[etcd.Event], None]:
        """The changes of a range from a revision on, those of a revision together.

        Raises Overtaken when the compaction has gone past it, UpstreamUnavailable when all
        endpoints have failed one after the other, twice.
        """
        failures: list[str] = []
        while len(failures) < 2 * len(self.endpoints):  # anything that is heard begins anew
            if failures:
                await asyncio.sleep(_PAUSE_S)
            endpoint = self._endpoint()
            try:
                async with aclosing(self._watched(endpoint, key, range_end, since)) as answers:
                    async for answer in answers:
                        failures.clear()
                        if answer.events:
                            kept = [event.kv for event in answer.events if event.kv is not None]
                            since = 1 + max((each.mod_revision for each in kept), default=0)
                            yield answer.events
            except NO_ANSWER as error:
                failures.append(self._failed(endpoint, str(error) or type(error).__name__))
            except GRPCError as error:
                failures.append(self._failed(endpoint, f"{error.status.name}: {error.message}"))
        raise UpstreamUnavailable("; ".join(failures))

    async def _watched(
        self, endpoint: Address, key: bytes, range_end: bytes, since: int
    ) -> AsyncGenerator[etcd.WatchResponse, None]:
        create = etcd.WatchCreateRequest(key=key, range_end=range_end, start_revision=since)
        channel, path = self._channel(endpoint), "/etcdserverpb.Watch/Watch"
        watching = StreamStreamMethod[bytes, bytes](channel, path, bytes, bytes)
        async with watching.open(metadata=_REQUIRE_LEADER) as stream:
            async with asyncio.timeout(self._deadline_s):
                with woken_cleanly():
                    await stream.send_message(bytes(etcd.WatchRequest(create_request=create)))
                    await stream.recv_initial_metadata()
            self._watching.add(stream)
            try:
                while True:  # until the stream ends or keeps silent
                    answer = await self._next_answer(stream)
                    if answer.compact_revision:
                        raise Overtaken(since, answer.compact_revision)
                    if answer.canceled:
                        reason = answer.cancel_reason or "the watch is refused"
                        raise EtcdRefused("CANCELLED", reason)
                    yield answer
            finally:
                self._watching.discard(stream)

    async def _next_answer(self, stream: Stream[bytes, bytes]) -> etcd.WatchResponse:
        async with asyncio.timeout(self._silence_s):
            with woken_cleanly():
                message = await stream.recv_message()
        if message is None:
            raise ConnectionError("the watch was ended")
        return understood(etcd.WatchResponse(), message)

    # --- calling ---------------------------------------------------------------------------

    async def _call(self, path: str, request: Message, answer: A, *, is_read: bool = False) -> A:
        message = bytes(request)
        failures: list[str] = []
        clock = asyncio.get_running_loop().time
        until_s = clock() + self._deadline_s
        for left in range(len(self.endpoints), 0, -1):
            endpoint = self._endpoint()
            # a read leaves time for the others; a write is not repeated, so it may take all
            share_s = (until_s - clock()) / (left if is_read else 1)
            try:
                async with asyncio.timeout(share_s):
                    return understood(answer, await self._answered(endpoint, path, message))
            except _Unsent as error:
                failures.append(self._failed(endpoint, str(error)))
            except NO_ANSWER as error:
                cause = str(error) or type(error).__name__
                if isinstance(error, TimeoutError):
                    cause = f"no answer within {share_s:.1f} s"
                failures.append(self._failed(endpoint, cause))
                if not is_read:
                    break
        raise UpstreamUnavailable("; ".join(failures))

    async def _answered(self, endpoint: Address, path: str, message: bytes) -> bytes:
        channel = self._channel(endpoint)
        try:
            async with asyncio.timeout(self._deadline_s / len(self.endpoints)):
                await channel.__connect__()
        except (OSError, TimeoutError) as error:
            raise _Unsent(str(error) or "no connection in time") from error
        try:
            return await unary(channel, path, message)
        except GRPCError as error:
            if error.status in _FINAL:
                raise EtcdRefused(error.status.name, error.message or "") from error
            raise ConnectionError(f"{error.status.name}: {error.message}") from error

    def _endpoint(self) -> Address:
        return self.endpoints[self._at % len(self.endpoints)]

    def _channel(self, endpoint: Address) -> Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = LastingChannel(*endpoint, self._tls)
        return channel

    def _failed(self, endpoint: Address, cause: str) -> str:
        """Goes on to the next endpoint; says what was wrong with this one."""
        if endpoint == self._endpoint():
            self._at += 1
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            channel.close()
        said = f"etcd {endpoint[0]}:{endpoint[1]}: {cause}"
        log.info("etcd_endpoint_failed", endpoint=f"{endpoint[0]}:{endpoint[1]}", cause=cause)
        return said


class _Unsent(Exception):
    """The request has certainly not been received."""
