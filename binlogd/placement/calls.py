"""Methods of etcd and PD: their limits, the status and the words that they give to errors, and what
is refused with the reason. Clients that can do without see UNIMPLEMENTED, and people the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.errors import BinlogdError, EtcdRefused, Unavailable
from binlogd.grpc.messages import BytesStream, begin_answer, read_message
from binlogd.grpc.methods import Message, R, parsed, refusing, send
from binlogd.upstream.keyspace.requests import STANDS_IN

log = structlog.get_logger(__name__)

REQUEST_BYTES_MAX = 3 << 19
"""etcd's limit of a request."""
MESSAGE_BYTES_MAX = REQUEST_BYTES_MAX + (1 << 19)
"""What gRPC takes in at all."""


def unary(request_type: type[R], answer: Callable[[R], Awaitable[Message]]) -> Handler:
    """A method of one message each way, for grpclib's server with a `BytesCodec`."""

    async def handle(stream: BytesStream) -> None:
        message = await read_message(stream, MESSAGE_BYTES_MAX)
        with as_status():
            if len(message) > REQUEST_BYTES_MAX:
                raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: request is too large")
            answered = await answer(parsed(request_type, message))
        await begin_answer(stream)
        await send(stream, answered)

    return Handler(handle, Cardinality.UNARY_STREAM, bytes, bytes)


@contextmanager
def as_status() -> Iterator[None]:
    """What its block raises, as the status that a Go client would get."""
    try:
        yield
    except EtcdRefused as error:
        raise GRPCError(Status[error.status], str(error)) from error
    except Unavailable as error:
        log.warning("placement_unavailable", cause=str(error))
        raise GRPCError(Status.UNAVAILABLE, str(error)) from error
    except BinlogdError as error:
        raise GRPCError(Status.UNKNOWN, str(error)) from error


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
            f"/{service}/": refusing(Status.UNIMPLEMENTED, f"{STANDS_IN}: {reason}")
            for service, reason in REASONS.items()
        }


class PumpToCome:
    """`binlog.Pump` while the PD of its node serves and it may not take anything yet: clients come
    back with a new connection, which finds it."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        handler = refusing(Status.UNAVAILABLE, "this Pump is about to start")
        return {"/binlog.Pump/WriteBinlog": handler, "/binlog.Pump/PullBinlogs": handler}
