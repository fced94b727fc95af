"""What a PD, an etcd and a TiKV do and this process does not: refused with the reason.

Whatever is not named here is UNIMPLEMENTED as well, in gRPC's own words.

Source: the services of pingcap/kvproto; go.etcd.io/etcd rpc.proto.
"""

from __future__ import annotations

from collections.abc import Mapping

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.grpc.messages import BytesStream
from binlogd.placement.calls import refused

_ONE_MEMBER = "it has one member, and no other can join; for more take a real PD"
_NO_USERS = (
    "its etcd keeps no users and no roles; who may connect is said by cert-allowed-cn in [security]"
)
_NO_COPIES = (
    "its keys are in upstream.db of the data directory, and need no care;"
    " copy them with the directory, or with `etcdctl get --prefix`"
)
_NO_ROWS = "there is no TiKV here, and nothing to move, to split or to collect"
_NO_KEYSPACES = "there are no keyspaces"
_NO_GROUPS = "there are no resource groups"


class Refusals:
    """The methods that are not here."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            **refused("etcdserverpb.Cluster", _MEMBERS, _ONE_MEMBER),
            **refused("etcdserverpb.Maintenance", ("MoveLeader", "Downgrade"), _ONE_MEMBER),
            **refused("etcdserverpb.Maintenance", _COPIES, _NO_COPIES),
            **refused("etcdserverpb.Auth", _USERS, _NO_USERS),
            **refused("pdpb.PD", _ROWS, _NO_ROWS),
            **refused("pdpb.PD", _SAFE_POINTS_OF_KEYSPACES, _NO_KEYSPACES),
            **refused("keyspacepb.Keyspace", _KEYSPACES, _NO_KEYSPACES),
            **refused("resource_manager.ResourceManager", _GROUPS, _NO_GROUPS),
            **refused("meta_storagepb.MetaStorage", ("Get", "Put", "Watch"), _NO_GROUPS),
        }


class PumpToCome:
    """`binlog.Pump` while the PD of its node serves and it may not take anything yet: clients come
    back with a new connection, which finds it."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""

        async def refuse(_: BytesStream) -> None:
            raise GRPCError(Status.UNAVAILABLE, "this Pump is about to start")

        handler = Handler(refuse, Cardinality.UNARY_STREAM, bytes, bytes)
        return {"/binlog.Pump/WriteBinlog": handler, "/binlog.Pump/PullBinlogs": handler}


_MEMBERS = ("MemberAdd", "MemberRemove", "MemberUpdate", "MemberPromote")
_COPIES = ("Defragment", "Hash", "HashKV", "Snapshot")
_USERS = (
    "AuthEnable",
    "AuthDisable",
    "UserAdd",
    "UserGet",
    "UserList",
    "UserDelete",
    "UserChangePassword",
    "UserGrantRole",
    "UserRevokeRole",
    "RoleAdd",
    "RoleGet",
    "RoleList",
    "RoleDelete",
    "RoleGrantPermission",
    "RoleRevokePermission",
)
_ROWS = (
    "Bootstrap",
    "PutStore",
    "StoreHeartbeat",
    "RegionHeartbeat",
    "AskSplit",
    "AskBatchSplit",
    "ReportSplit",
    "ReportBatchSplit",
    "ReportBuckets",
    "ReportMinResolvedTS",
    "ScatterRegion",
    "SplitRegions",
    "SplitAndScatterRegions",
    "SyncRegions",
    "GetOperator",
    "GetClusterConfig",
    "PutClusterConfig",
    "GetExternalTimestamp",
    "SetExternalTimestamp",
    "IsSnapshotRecovering",
    "GetDCLocationInfo",
    "SyncMaxTS",
)
_SAFE_POINTS_OF_KEYSPACES = (
    "GetGCSafePointV2",
    "WatchGCSafePointV2",
    "UpdateGCSafePointV2",
    "UpdateServiceSafePointV2",
    "GetAllGCSafePointV2",
)
_KEYSPACES = ("LoadKeyspace", "WatchKeyspaces", "UpdateKeyspaceState", "GetAllKeyspaces")
_GROUPS = (
    "ListResourceGroups",
    "GetResourceGroup",
    "AddResourceGroup",
    "ModifyResourceGroup",
    "DeleteResourceGroup",
    "AcquireTokenBuckets",
)
