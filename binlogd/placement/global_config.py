"""Settings of the cluster that TiDB keeps with PD.

They are keys of the keyspace, so that whoever looks there sees the same.

Source: PD server/grpc_service.go, StoreGlobalConfig, LoadGlobalConfig.
"""

from __future__ import annotations

from collections.abc import Mapping

from grpclib.const import Handler

from binlogd.errors import EtcdRefused
from binlogd.placement.calls import unary
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.wire.generated import etcdserverpb as etcd
from binlogd.wire.generated.pdpb import (
    Error,
    ErrorType,
    EventType,
    GlobalConfigItem,
    LoadGlobalConfigRequest,
    LoadGlobalConfigResponse,
    StoreGlobalConfigRequest,
    StoreGlobalConfigResponse,
)

_ROOT = "/global/config"


class GlobalConfig:
    """The part of `pdpb.PD` that keeps settings."""

    def __init__(self, keyspace: KeyspaceStore) -> None:
        self._keyspace = keyspace

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/pdpb.PD/LoadGlobalConfig": unary(LoadGlobalConfigRequest, self._load),
            "/pdpb.PD/StoreGlobalConfig": unary(StoreGlobalConfigRequest, self._store),
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


def _root(path: str) -> str:
    """Without a path it is that of the clients before 6.6, which know none."""
    return path.rstrip("/") or _ROOT


def _span(path: str) -> tuple[bytes, bytes]:
    """All that begins so."""
    prefix = path.encode() or f"{_ROOT}/".encode()
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1])  # UTF-8 ends with no 0xff


def _item(key: bytes, value: bytes) -> GlobalConfigItem:
    text = value.decode(errors="replace")
    return GlobalConfigItem(name=key.decode(errors="replace"), value=text, payload=value)
