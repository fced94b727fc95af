"""grpclib's channel, for servers that leave in good order or in none, and by TLS.

grpclib cancels every open call when the server says GOAWAY. Here they get their answers, and new
calls are made on a new connection. Source: RFC 9113 section 6.8.

Who only reads never learns that the other side is gone, unless somebody asks. The kernel does, as
it does for the original: a Go Pump sends those away who ask it by HTTP/2 more often than every five
minutes. Source: Go's net.Dialer, KeepAlive; grpc-go's keepalive.EnforcementPolicy.
"""

from __future__ import annotations

import asyncio
from asyncio import BaseTransport
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from grpclib.client import Channel, Handler
from grpclib.config import Configuration
from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import ProtocolError, StreamTerminatedError
from grpclib.protocol import EventsProcessor, H2Protocol
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, StreamReset
from hyperframe.frame import Frame, GoAwayFrame

from binlogd.host.silence import cut, notice_silence
from binlogd.host.tls import ClientTls

NO_ANSWER = (StreamTerminatedError, ProtocolError, OSError, TimeoutError, RuntimeError)
"""What a connection that is gone or silent comes out as: of grpclib, of ssl, and uvloop's of one
that has just closed."""


@contextmanager
def woken_cleanly() -> Iterator[None]:
    """Around a call, within asyncio's timeout. It may not have grpclib's deadline as well.

    grpclib wakes a call whose connection is lost by cancelling its task, and does not take that
    back: every timeout around it, and the task's group, would count a cancellation that nobody
    meant, and one that somebody meant could be lost. Its deadline would wake the call once more.
    """
    task = asyncio.current_task()
    assert task is not None, "calls are made by tasks"
    before = task.cancelling()
    try:
        yield
    except asyncio.CancelledError:
        raise
    except BaseException:
        if task.cancelling() > before:
            task.uncancel()
        if task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise


async def unary(
    channel: Channel, path: str, message: bytes, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The answer to a call of one message, within asyncio's timeout. Raises GRPCError, and one of
    NO_ANSWER; so it does for a call that ends well without an answer."""
    answer = None
    with woken_cleanly():
        async with channel.request(
            path, Cardinality.UNARY_UNARY, bytes, bytes, metadata=metadata
        ) as stream:
            await stream.send_message(message, end=True)
            answer = await stream.recv_message()
    if answer is None:
        raise ConnectionError("it ended the call without an answer")
    return answer


class BytesCodec(CodecBase):
    """Messages as bytes; whoever calls says what they are."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: Any) -> bytes:
        """The message itself."""
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:
        """The message itself."""
        return data


class PlainChannel(Channel):
    """A channel to a host and port, or to the path of a unix socket, where there is no TLS.

    `tls` gives the certificates as they are now, and judges the server's before the first call.
    Closed is for good: grpclib would dial anew for a call that comes late, and nobody would ever
    close that connection.
    """

    _is_closed = False

    def __init__(self, host: str | Path, port: int = 0, tls: ClientTls | None = None) -> None:
        self._tls = None if isinstance(host, Path) else tls
        self._transports: set[asyncio.Transport] = set()
        if isinstance(host, Path):
            super().__init__(path=str(host), codec=BytesCodec())
        else:
            super().__init__(host, port, codec=BytesCodec(), ssl=tls.fresh() if tls else None)

    def _protocol_factory(self) -> H2Protocol:
        return _WakingOnce(self, Handler(), self._config, self._h2_config)

    async def _create_connection(self) -> H2Protocol:
        """Raises OSError, also for a server that is not who it should be."""
        self._refuse_if_closed()
        protocol = await super()._create_connection()
        self._refuse_if_closed()  # meanwhile
        assert isinstance(protocol, _WakingOnce), "of our own factory"
        transport = protocol.transport
        if transport.is_closing():  # before this task ran
            raise ConnectionError("the connection was closed as soon as it was made")
        if self._path is None:
            notice_silence(transport.get_extra_info("socket"))
        if self._tls is not None:
            refusal = self._tls.refusal(transport.get_extra_info("peercert"))
            if refusal:
                transport.abort()
                raise ConnectionError(refusal)
        return protocol

    def made(self, transport: asyncio.Transport) -> None:
        """One of its connections; it ends with the channel."""
        self._transports.add(transport)
        if self._is_closed:
            cut(transport)

    def lost(self, transport: asyncio.Transport) -> None:
        """It has ended."""
        self._transports.discard(transport)

    def close(self) -> None:
        """Ends its connections and what is in flight on them, also on those that the server is
        about to leave, which grpclib forgets."""
        self._is_closed = True
        super().close()
        for transport in list(self._transports):
            cut(transport)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ConnectionError("the channel was closed by somebody whose call had failed on it")


class LastingChannel(PlainChannel):
    """A channel whose calls outlive a GOAWAY."""

    def _protocol_factory(self) -> H2Protocol:
        return _Protocol(self, Handler(), self._config, self._h2_config)


class _WakingOnce(H2Protocol):
    """Wakes a call once. grpclib does so again for every further end, a GOAWAY and then the loss
    of the connection, and `woken_cleanly` could not tell that from somebody's cancellation."""

    def __init__(
        self, channel: PlainChannel, handler: Handler, config: Configuration, h2: H2Configuration
    ) -> None:
        super().__init__(handler, config, h2)
        self._channel = channel

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.processor = _Processor(self.handler, self.connection)
        self.transport = cast(asyncio.Transport, transport)
        self._channel.made(self.transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._channel.lost(self.transport)


class _Processor(EventsProcessor):
    def close(self, reason: str = "Connection closed") -> None:
        super().close(reason)
        for stream in self.streams.values():
            stream.wrapper = None  # it keeps the error that every later use raises

    def process_stream_reset(self, event: StreamReset) -> None:
        super().process_stream_reset(event)
        stream = self.streams.get(event.stream_id or 0)
        if stream is not None:
            stream.wrapper = None


class _Protocol(_WakingOnce):
    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        h2 = self.connection._connection  # noqa: SLF001 # h2 would end all streams by itself
        h2._frame_dispatch_table[GoAwayFrame] = self._leave  # noqa: SLF001 # see above

    def _leave(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """The server closes the connection after its last answer."""
        if frame.error_code != ErrorCodes.NO_ERROR:
            event = ConnectionTerminated()
            event.error_code = frame.error_code
            return [], [event]
        self.handler.connection_lost = True  # type: ignore[attr-defined] # so the channel dials anew
        for stream_id, stream in list(self.processor.streams.items()):
            if stream_id > frame.last_stream_id:
                stream.__terminated__("the server has left before it saw this call")
                stream.wrapper = None
        return [], []
