"""What a PD, an etcd and a TiKV do and this process does not: refused with the reason.

Clients that can do without see the status, UNIMPLEMENTED, and people the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.grpc.messages import BytesStream
from binlogd.upstream.keyspace.requests import STANDS_IN

REASONS = {
    "etcdserverpb.KV": "its keys are compacted without being told to",
    "etcdserverpb.Lease": "its leases are granted, kept alive and revoked, and nothing else",
    "etcdserverpb.Cluster": "it has one member, and no other can join; for more take a real PD",
    "etcdserverpb.Maintenance": "its keys are in upstream.db of the data directory, and need no"
    " care; copy them with the directory, or with `etcdctl get --prefix`",
    "etcdserverpb.Auth": "its etcd keeps no users and no roles; who may connect is said by"
    " cert-allowed-cn in [security]",
    "pdpb.PD": "there is no TiKV here, and nothing to move, to split or to collect",
    "keyspacepb.Keyspace": "there are no keyspaces",
    "resource_manager.ResourceManager": "there are no resource groups",
    "meta_storagepb.MetaStorage": "there are no resource groups",
}
"""Of each service, why what is not answered elsewhere is not here."""


class Refusals:
    """All methods of these services that nobody else answers."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            f"/{service}/": _refusal(Status.UNIMPLEMENTED, f"{STANDS_IN}: {reason}")
            for service, reason in REASONS.items()
        }


class PumpToCome:
    """`binlog.Pump` while the PD of its node serves and it may not take anything yet: clients come
    back with a new connection, which finds it."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        handler = _refusal(Status.UNAVAILABLE, "this Pump is about to start")
        return {"/binlog.Pump/WriteBinlog": handler, "/binlog.Pump/PullBinlogs": handler}


def _refusal(status: Status, message: str) -> Handler:
    return Handler(partial(_refuse, status, message), Cardinality.UNARY_STREAM, bytes, bytes)


async def _refuse(status: Status, message: str, _: BytesStream) -> None:
    raise GRPCError(status, message)
