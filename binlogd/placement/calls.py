"""Methods of etcd and PD: their limits, and the status and the words that they give to errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.errors import BinlogdError, EtcdRefused, Unavailable
from binlogd.grpc.messages import BytesStream, begin_answer, read_message
from binlogd.grpc.methods import Message, R, parsed, send

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
