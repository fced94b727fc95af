"""gRPC methods of typed messages, on the streams below grpclib's own: checked, bounded, compressed
as the request was. Errors get the status and the words that etcd and PD give them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Protocol, Self, TypeVar

import structlog
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.errors import BinlogdError, EtcdRefused, Unavailable
from binlogd.pump.rpc.messages import (
    BytesStream,
    Incoming,
    begin_answer,
    compressed,
    compresses,
    read_message,
    send_joined,
)

log = structlog.get_logger(__name__)

REQUEST_BYTES_MAX = 3 << 19
"""etcd's limit of a request."""
_MESSAGE_BYTES_MAX = REQUEST_BYTES_MAX + (1 << 19)
"""What gRPC takes in at all."""


class Message(Protocol):
    """A generated message."""

    def parse(self, data: bytes) -> Self:
        """Fills it."""
        ...

    def __bytes__(self) -> bytes:
        """As it goes over the wire."""
        ...


class Service(Protocol):
    """A gRPC service as grpclib takes it."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Path to handler."""
        ...


R = TypeVar("R", bound=Message)
_MALFORMED = (ValueError, IndexError, KeyError, TypeError, EOFError, struct.error)


def unary(request_type: type[R], answer: Callable[[R], Awaitable[Message]]) -> Handler:
    """A method of one message each way, for grpclib's server with a `BytesCodec`."""

    async def handle(stream: BytesStream) -> None:
        message = await read_message(stream, _MESSAGE_BYTES_MAX)
        with said():
            if len(message) > REQUEST_BYTES_MAX:
                raise EtcdRefused("INVALID_ARGUMENT", "etcdserver: request is too large")
            answered = await answer(parsed(request_type, message))
        await begin_answer(stream)
        await send(stream, answered)

    return Handler(handle, Cardinality.UNARY_STREAM, bytes, bytes)


def streamed(handle: Callable[[BytesStream], Awaitable[None]]) -> Handler:
    """A method of many messages both ways."""
    return Handler(handle, Cardinality.STREAM_STREAM, bytes, bytes)


def told(
    request_type: type[R],
    answers: Callable[[R], AsyncGenerator[Message, None]],
    streams: OpenStreams,
) -> Handler:
    """A method of one message there and many back, until there are no more or this side closes."""

    async def handle(stream: BytesStream) -> None:
        request = parsed(request_type, await read_message(stream, _MESSAGE_BYTES_MAX))

        async def answer() -> None:
            with said():
                async with aclosing(answers(request)) as found:
                    async for each in found:
                        await send(stream, each)

        await begin_answer(stream)
        await streams.until_closing(answer())

    return Handler(handle, Cardinality.UNARY_STREAM, bytes, bytes)


def refused(service: str, methods: Iterable[str], reason: str) -> Mapping[str, Handler]:
    """Methods that are not here: clients that can do without see the status, people the reason."""

    async def handle(_: BytesStream) -> None:
        raise GRPCError(Status.UNIMPLEMENTED, f"binlogd stands in for PD: {reason}")

    handler = Handler(handle, Cardinality.UNARY_STREAM, bytes, bytes)
    return {f"/{service}/{method}": handler for method in methods}


async def requests(stream: BytesStream, request_type: type[R]) -> AsyncGenerator[R, None]:
    """The messages of a request as they come, until the peer has no more. Raises GRPCError."""
    incoming = Incoming(stream, _MESSAGE_BYTES_MAX)
    while await incoming.next_size() is not None:  # until the peer has no more
        yield parsed(request_type, await incoming.message())


def parsed(request_type: type[R], message: bytes) -> R:
    """Raises GRPCError in the words of grpc-go."""
    try:
        return request_type().parse(message)
    except _MALFORMED as error:
        raise GRPCError(Status.INTERNAL, f"grpc: error unmarshalling request: {error}") from error


async def send(stream: BytesStream, answer: Message) -> None:
    """One message of an answer that has begun."""
    message = bytes(answer)
    if compresses(stream):
        await send_joined(stream, await compressed([message]))
    else:
        await send_joined(stream, b"".join((b"\0", len(message).to_bytes(4, "big"), message)))


@contextmanager
def said() -> Iterator[None]:
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


class OpenStreams:
    """Streams that would go on for ever: they end, without an error, when this side closes."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._is_closing = False

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._limits)

    async def until_closing(self, work: Awaitable[None]) -> None:
        """Awaits the work, at most until `close`."""
        until = asyncio.timeout(0 if self._is_closing else None)
        try:
            async with until:
                self._limits.add(until)
                await work
        except TimeoutError:
            if not until.expired():
                raise
        finally:
            self._limits.discard(until)

    def close(self) -> None:
        """Ends all of them, and those that are to come."""
        self._is_closing = True
        now_s = asyncio.get_running_loop().time()
        for until in self._limits:
            until.reschedule(now_s)
