"""What PD, etcd and TiKV answer, and what they are asked: a message, or an error of the call."""

from __future__ import annotations

import contextlib
from typing import Any

from grpclib.exceptions import GRPCError

from binlogd.grpc.methods import NO_MESSAGE, parsed, understood
from binlogd.upstream.tikv.pairs import ScanAnswer
from binlogd.wire.generated import errorpb, etcdserverpb, kvrpcpb, metapb, pdpb

_KINDS: list[Any] = [
    pdpb.GetMembersResponse,
    pdpb.TsoResponse,
    pdpb.GetRegionResponse,
    pdpb.GetStoreResponse,
    etcdserverpb.RangeResponse,
    etcdserverpb.WatchResponse,
    etcdserverpb.TxnRequest,
    etcdserverpb.PutRequest,
    kvrpcpb.GetResponse,
]


def seeds() -> list[bytes]:
    """One of some of them."""
    header = pdpb.ResponseHeader(cluster_id=7)
    member = pdpb.Member(name="pd0", client_urls=["http://10.0.0.1:2379"])
    pair = etcdserverpb.KeyValue(key=b"k", value=b"v", mod_revision=5)
    region = metapb.Region(id=5, start_key=b"a", end_key=b"b")
    messages: list[tuple[int, Any]] = [
        (0, pdpb.GetMembersResponse(header=header, members=[member], leader=member)),
        (1, pdpb.TsoResponse(header=header, count=1, timestamp=pdpb.Timestamp(7, 8, 0))),
        (2, pdpb.GetRegionResponse(header=header, region=region)),
        (4, etcdserverpb.RangeResponse(kvs=[pair], count=1)),
        (5, etcdserverpb.WatchResponse(watch_id=1, events=[etcdserverpb.Event(kv=pair)])),
        (7, etcdserverpb.PutRequest(key=b"k", value=b"v")),
        (8, kvrpcpb.GetResponse(region_error=errorpb.Error(message="m"), value=b"v")),
    ]
    return [bytes([kind]) + bytes(message) for kind, message in messages]


def run(data: bytes) -> None:
    """The first byte says of which kind it should be."""
    if not data:
        return
    kind, raw = _KINDS[data[0] % len(_KINDS)], data[1:]
    with contextlib.suppress(ConnectionError):
        understood(kind(), raw)
    with contextlib.suppress(GRPCError):
        parsed(kind, raw)
    try:
        ScanAnswer().parse(raw)
    except NO_MESSAGE:
        return
