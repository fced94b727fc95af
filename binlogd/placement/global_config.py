"""Settings of the cluster that TiDB, TiKV and their tools tell each other through PD.

They are keys of the keyspace, so that whoever looks there sees the same.

Source: PD server/grpc_service.go, StoreGlobalConfig, LoadGlobalConfig, WatchGlobalConfig.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from grpclib.const import Handler

from binlogd.errors import EtcdRefused, Overtaken
from binlogd.grpc.methods import OpenStreams
from binlogd.placement.calls import server_streaming, unary
from binlogd.ports import ClusterIdentity
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.wire.generated import etcdserverpb as etcd
from binlogd.wire.generated.pdpb import (
    Error,
    ErrorType,
    EventType,
    GlobalConfigItem,
    LoadGlobalConfigRequest,
    LoadGlobalConfigResponse,
    ResponseHeader,
    StoreGlobalConfigRequest,
    StoreGlobalConfigResponse,
    WatchGlobalConfigRequest,
    WatchGlobalConfigResponse,
)

_ROOT = "/global/config"
_PUT, _DELETE = EventType(EventType.PUT), EventType(EventType.DELETE)


class GlobalConfig:
    """The part of `pdpb.PD` that keeps settings."""

    def __init__(
        self, keyspace: KeyspaceStore, cluster: ClusterIdentity, streams: OpenStreams
    ) -> None:
        self._keyspace, self._cluster, self._streams = keyspace, cluster, streams

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/pdpb.PD/LoadGlobalConfig": unary(LoadGlobalConfigRequest, self._load),
            "/pdpb.PD/StoreGlobalConfig": unary(StoreGlobalConfigRequest, self._store),
            "/pdpb.PD/WatchGlobalConfig": server_streaming(
                WatchGlobalConfigRequest, self._watch, self._streams
            ),
        }

    async def _load(self, request: LoadGlobalConfigRequest) -> LoadGlobalConfigResponse:
        """Those that were named, or all of a path."""
        if request.names:
            root = _root(request.config_path)
            items = [await self._named(root, name) for name in request.names]
            return LoadGlobalConfigResponse(items=items, revision=self._keyspace.revision)
        start, end = _span(request.config_path)
        found = await self._keyspace.range(etcd.RangeRequest(key=start, range_end=end))
        assert found.header is not None, "the keyspace always says it"
        return LoadGlobalConfigResponse(
            items=[_item(each.key, each.value) for each in found.kvs],
            revision=found.header.revision,
        )

    async def _named(self, root: str, name: str) -> GlobalConfigItem:
        key = f"{root}/{name}".encode()
        found = (await self._keyspace.range(etcd.RangeRequest(key=key))).kvs
        if found:
            return _item(name.encode(), found[0].value)
        missing = ErrorType(ErrorType.GLOBAL_CONFIG_NOT_FOUND)
        return GlobalConfigItem(
            name=name, error=Error(type=missing, message=f"[{root}/{name}] not found")
        )

    async def _store(self, request: StoreGlobalConfigRequest) -> StoreGlobalConfigResponse:
        """All of them, or none."""
        root = _root(request.config_path)
        ops = []
        for item in request.changes:
            key = f"{root}/{item.name}".encode()
            if item.kind == EventType.DELETE:
                ops.append(etcd.RequestOp(request_delete_range=etcd.DeleteRangeRequest(key=key)))
            else:
                put = etcd.PutRequest(key=key, value=item.payload or item.value.encode())
                ops.append(etcd.RequestOp(request_put=put))
        try:
            await self._keyspace.txn(etcd.TxnRequest(success=ops))
        except EtcdRefused as error:
            unknown = ErrorType(ErrorType.UNKNOWN)
            return StoreGlobalConfigResponse(error=Error(type=unknown, message=str(error)))
        return StoreGlobalConfigResponse()

    async def _watch(
        self, request: WatchGlobalConfigRequest
    ) -> AsyncGenerator[WatchGlobalConfigResponse, None]:
        """Changes from a revision on; a revision that is forgotten is said, and the watch ends."""
        header = ResponseHeader(
            cluster_id=self._cluster.cluster_id or self._keyspace.identity.cluster
        )
        start, end = _span(request.config_path)
        since = request.revision or self._keyspace.revision + 1
        try:
            async with aclosing(self._keyspace.watch(start, end, since)) as changes:
                async for events in changes:
                    yield WatchGlobalConfigResponse(
                        header=header,
                        changes=[_change(event) for event in events],
                        revision=self._keyspace.revision,
                    )
        except Overtaken as error:
            compacted = ErrorType(ErrorType.DATA_COMPACTED)
            header.error = Error(type=compacted, message=str(error))
            yield WatchGlobalConfigResponse(header=header, revision=error.compacted)


def _root(path: str) -> str:
    """Without a path it is that of the clients before 6.6, which know none."""
    return path.rstrip("/") or _ROOT


def _span(path: str) -> tuple[bytes, bytes]:
    """All that begins so."""
    prefix = path.encode() or f"{_ROOT}/".encode()
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1])  # UTF-8 ends with no 0xff


def _item(key: bytes, value: bytes, kind: EventType = _PUT) -> GlobalConfigItem:
    text = value.decode(errors="replace")
    return GlobalConfigItem(name=key.decode(errors="replace"), value=text, kind=kind, payload=value)


def _change(event: etcd.Event) -> GlobalConfigItem:
    assert event.kv is not None, "the keyspace always says it"
    kind = _DELETE if event.type == etcd.EventEventType.DELETE else _PUT
    return _item(event.kv.key, event.kv.value, kind)
