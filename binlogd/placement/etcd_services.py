"""etcd's services on the keyspace of this process; `watches` has those of a stream.

Source: go.etcd.io/etcd etcdserver/api/v3rpc/key.go, lease.go, member.go.
"""

from __future__ import annotations

from collections.abc import Mapping

from grpclib.const import Handler

from binlogd.grpc.messages import BytesStream, begin_answer
from binlogd.grpc.methods import OpenStreams, bidirectional, requests, send
from binlogd.placement.calls import MESSAGE_BYTES_MAX, as_status, unary
from binlogd.placement.watches import PROGRESS_S, Watches
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.wire.generated.etcdserverpb import (
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    LeaseRevokeResponse,
    Member,
    MemberListRequest,
    MemberListResponse,
    PutRequest,
    RangeRequest,
    TxnRequest,
)


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
            "/etcdserverpb.KV/Range": unary(RangeRequest, keyspace.range),
            "/etcdserverpb.KV/Put": unary(PutRequest, keyspace.put),
            "/etcdserverpb.KV/DeleteRange": unary(DeleteRangeRequest, keyspace.delete_range),
            "/etcdserverpb.KV/Txn": unary(TxnRequest, keyspace.txn),
            "/etcdserverpb.Lease/LeaseGrant": unary(LeaseGrantRequest, self._grant),
            "/etcdserverpb.Lease/LeaseRevoke": unary(LeaseRevokeRequest, self._revoke),
            "/etcdserverpb.Lease/LeaseKeepAlive": bidirectional(self._keep_alive),
            "/etcdserverpb.Watch/Watch": bidirectional(self._watch),
            "/etcdserverpb.Cluster/MemberList": unary(MemberListRequest, self._members),
        }

    async def _grant(self, request: LeaseGrantRequest) -> LeaseGrantResponse:
        number, ttl_s = await self._keyspace.grant(request.id, request.ttl)
        return LeaseGrantResponse(header=self._keyspace.header(), id=number, ttl=ttl_s)

    async def _revoke(self, request: LeaseRevokeRequest) -> LeaseRevokeResponse:
        await self._keyspace.revoke(request.id)
        return LeaseRevokeResponse(header=self._keyspace.header())

    async def _keep_alive(self, stream: BytesStream) -> None:
        async with self._streams.until_closing():
            await begin_answer(stream)
            async for request in requests(stream, LeaseKeepAliveRequest, MESSAGE_BYTES_MAX):
                with as_status():
                    ttl_s = await self._keyspace.keep_alive(request.id)
                header = self._keyspace.header()
                await send(stream, LeaseKeepAliveResponse(header=header, id=request.id, ttl=ttl_s))

    async def _watch(self, stream: BytesStream) -> None:
        await begin_answer(stream)
        async with self._streams.until_closing():
            await Watches(self._keyspace, stream, self._progress_s).run()

    async def _members(self, _: MemberListRequest) -> MemberListResponse:
        member = Member(
            id=self._keyspace.identity.member,
            name=self._name,
            peer_urls=[self._url],
            client_urls=[self._url],
        )
        header = self._keyspace.header()
        header.revision = 0  # who belongs to a cluster stands in no revision
        return MemberListResponse(header=header, members=[member])
