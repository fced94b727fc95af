"""etcd's services KV, Lease and Cluster on the keyspace of this process.

Source: go.etcd.io/etcd etcdserver/api/v3rpc/key.go, lease.go, member.go.
"""

from __future__ import annotations

from collections.abc import Mapping

from grpclib.const import Handler

from binlogd.grpc.messages import BytesStream, begin_answer
from binlogd.grpc.methods import OpenStreams, bidirectional, requests, send
from binlogd.placement.calls import MESSAGE_BYTES_MAX, as_status, unary
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


class KeyValueService:
    """`etcdserverpb.KV`."""

    def __init__(self, keyspace: KeyspaceStore) -> None:
        self._keyspace = keyspace

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        keyspace = self._keyspace
        return {
            "/etcdserverpb.KV/Range": unary(RangeRequest, keyspace.range),
            "/etcdserverpb.KV/Put": unary(PutRequest, keyspace.put),
            "/etcdserverpb.KV/DeleteRange": unary(DeleteRangeRequest, keyspace.delete_range),
            "/etcdserverpb.KV/Txn": unary(TxnRequest, keyspace.txn),
        }


class LeaseService:
    """`etcdserverpb.Lease`."""

    def __init__(self, keyspace: KeyspaceStore, streams: OpenStreams) -> None:
        self._keyspace, self._streams = keyspace, streams

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/etcdserverpb.Lease/LeaseGrant": unary(LeaseGrantRequest, self._grant),
            "/etcdserverpb.Lease/LeaseRevoke": unary(LeaseRevokeRequest, self._revoke),
            "/etcdserverpb.Lease/LeaseKeepAlive": bidirectional(self._keep_alive),
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


class ClusterService:
    """`etcdserverpb.Cluster`: a cluster of one, that is reached at the advertised address."""

    def __init__(self, keyspace: KeyspaceStore, name: str, url: str) -> None:
        self._keyspace, self._name, self._url = keyspace, name, url

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/etcdserverpb.Cluster/MemberList": unary(MemberListRequest, self._members),
        }

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
