"""gRPC methods of typed messages, on the streams below grpclib's own: checked, bounded, compressed
as the request was."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, Self, TypeVar

import betterproto
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from binlogd.grpc.messages import BytesStream, Incoming, compressed, compresses, send_joined
from binlogd.grpc.prefix import prefixed


class Message(Protocol):
    """A generated message."""

    def parse(self, data: bytes) -> Self:
        """Fills it."""

    def __bytes__(self) -> bytes:
        """As it goes over the wire."""


R = TypeVar("R", bound=Message)
NO_MESSAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    EOFError,
    struct.error,
)
"""What betterproto raises for bytes that are no message of a kind."""


def bidirectional(handle: Callable[[BytesStream], Awaitable[None]]) -> Handler:
    """A method of many messages both ways."""
    return Handler(handle, Cardinality.STREAM_STREAM, bytes, bytes)


def refusing(status: Status, message: str) -> Handler:
    """A method that is not served, and says why."""

    async def refuse(_: BytesStream) -> None:
        raise GRPCError(status, message)

    return Handler(refuse, Cardinality.UNARY_STREAM, bytes, bytes)


async def requests(
    stream: BytesStream, request_type: type[R], bytes_max: int
) -> AsyncGenerator[R, None]:
    """The messages of a request as they come, until the peer has no more; each has at most so many
    bytes. Raises GRPCError."""
    incoming = Incoming(stream, bytes_max)
    while await incoming.next_size() is not None:  # until the peer has no more
        yield parsed(request_type, await incoming.message())


def parsed(request_type: type[R], message: bytes) -> R:
    """Raises GRPCError."""
    try:
        return _filled(request_type(), message)
    except NO_MESSAGE as error:
        raise unreadable(error) from error


def unreadable(error: Exception) -> GRPCError:
    """A request that is no message of its kind, in the words of grpc-go."""
    return GRPCError(Status.INTERNAL, f"grpc: error unmarshalling request: {error}")


def understood(empty: R, raw: bytes) -> R:
    """What a server answered. Raises ConnectionError for bytes that are no such message."""
    try:
        return _filled(empty, raw)
    except NO_MESSAGE as error:
        raise ConnectionError(f"what it answers is no {type(empty).__name__}: {error}") from error


def _filled(empty: R, raw: bytes) -> R:
    found = empty.parse(raw)
    _check_messages(found)
    bytes(found)  # betterproto takes a number for a text; only what encodes again is of its kind
    return found


def _check_messages(found: Any) -> None:
    """Raises TypeError for a number in the place of a message: betterproto would encode it as so
    many bytes."""
    held = vars(found)  # without the empty messages that betterproto makes when it is asked
    for field in dataclasses.fields(found):
        value, kind = held.get(field.name), betterproto.FieldMetadata.get(field).proto_type
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, betterproto.Message):
                _check_messages(each)
            elif isinstance(each, int) and kind == betterproto.TYPE_MESSAGE:
                raise TypeError(f"{field.name} holds a number, and should hold a message")


async def send(stream: BytesStream, answer: Message) -> None:
    """One message of an answer that has begun."""
    message = bytes(answer)
    framed = await compressed([message]) if compresses(stream) else prefixed(message)
    await send_joined(stream, framed)


class OpenStreams:
    """Streams that would go on for ever: they end, without an error, when this side closes."""

    def __init__(self) -> None:
        self._limits: dict[asyncio.Timeout, None] = {}  # ended in the order in which they came
        self._is_closing = False

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._limits)

    @asynccontextmanager
    async def until_closing(self) -> AsyncIterator[asyncio.Timeout]:
        """Its block is a stream, which `close` ends."""
        until = asyncio.timeout(0 if self._is_closing else None)
        try:
            async with until:
                self._limits[until] = None
                yield until
        except TimeoutError:
            if not until.expired():
                raise
        finally:
            self._limits.pop(until, None)

    def close(self) -> None:
        """Ends all of them, and those that are to come."""
        self._is_closing = True
        now_s = asyncio.get_running_loop().time()
        for until in self._limits:
            until.reschedule(now_s)
