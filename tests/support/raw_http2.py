"""A gRPC client that sends what it is told, whole or in pieces, and takes note of every answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import ChangedSetting, SettingCodes
from hyperframe.frame import Frame, GoAwayFrame

from binlogd.grpc.prefix import prefixed

WRITE = "/binlog.Pump/WriteBinlog"


@dataclass
class Answer:
    """What came back on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    reset: int | None = None
    is_over: bool = False

    @property
    def outcome(self) -> tuple[str | None, str | None]:
        return self.headers.get("grpc-status"), self.headers.get("grpc-message")

    @property
    def is_ok(self) -> bool:
        return self.outcome == ("0", None) and self.data == bytes(5)


def call_headers(path: str = WRITE, /, **changed: str | None) -> list[tuple[str, str]]:
    """What a Go client sends; `changed` replaces, adds or (None) leaves out, `_` stands for `-`."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "pump:8250",
        "content-type": "application/grpc",
        "user-agent": "grpc-go/1.75.0",
        "te": "trailers",
    }
    for name, value in changed.items():
        key = name.replace("_", "-")
        key = f":{key[1:]}" if key.startswith("-") else key
        if value is None:
            del fields[key]
        else:
            fields[key] = value
    return list(fields.items())


class _Lasting(H2Connection):
    """h2 as a client; that one takes nothing more after a GOAWAY, and the word that its first
    settings are known, which change nothing, for that of the next."""

    _is_known = False

    def _local_settings_acked(self) -> dict[SettingCodes | int, ChangedSetting]:
        if not self._is_known:
            self._is_known = True
            return {}
        return super()._local_settings_acked()

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        return [], [event]


class RawClient:
    """One connection. Calls are encoded at once and sent when `send` is told to."""

    def __init__(self) -> None:
        config = H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = _Lasting(config)
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.goaway: int | None = None
        self.is_closed = False
        self.holds_back = False  # gives the window back of nothing that it gets
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(
        self,
        host: str,
        port: int,
        *,
        receive_buffer: int | None = None,
        local_address: str | None = None,
    ) -> None:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if local_address is not None:
            sock.bind((local_address, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
        self._reader, self._writer = await asyncio.open_connection(sock=sock)

    def open(self, headers: list[tuple[str, str]] | None = None, *, ends: bool = False) -> int:
        """Begins a call; its stream."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, headers or call_headers(), end_stream=ends)
        self.answers[stream] = Answer()
        return stream

    def call(self, message: bytes, headers: list[tuple[str, str]] | None = None) -> int:
        """A whole call; its stream."""
        stream = self.open(headers)
        self.body(stream, prefixed(message))
        return stream

    def body(self, stream: int, data: bytes, *, ends: bool = True) -> None:
        """DATA in frames that are not too large."""
        pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)] or [b""]
        for number, piece in enumerate(pieces):
            self.h2.send_data(stream, piece, end_stream=ends and number == len(pieces) - 1)

    def taken(self) -> bytes:
        """What is encoded and not sent."""
        return self.h2.data_to_send()

    async def send(self, data: bytes | None = None, cuts: Iterable[int] = ()) -> None:
        """Sends bytes, by default what is encoded, in pieces of the sizes in `cuts`, repeated."""
        assert self._writer is not None
        data = self.taken() if data is None else data
        for piece in cut(data, list(cuts) or [len(data) or 1]):
            self._writer.write(piece)
            await asyncio.sleep(0)

    async def wait(self, *streams: int) -> list[Answer]:
        """The answers of these streams, by default of all, or until the connection ends."""
        wanted = streams or tuple(self.answers)
        async with asyncio.timeout(120):
            while not self.is_closed and not all(self.answers[s].is_over for s in wanted):
                await self._receive()
        return [self.answers[stream] for stream in wanted]

    async def wait_closed(self) -> None:
        """Until the other side hangs up."""
        async with asyncio.timeout(120):
            while not self.is_closed:
                await self._receive()

    async def pinged(self) -> None:
        """Until everything sent before has been looked at."""
        assert self._writer is not None
        self.h2.ping(b"12345678")
        self._writer.write(self.taken())
        await self.names_until("PingAckReceived")

    async def names_until(self, last: str) -> list[str]:
        """Of the events that come, to those that arrive together with one of this name."""
        names: list[str] = []
        async with asyncio.timeout(120):
            while last not in names:
                names += [type(event).__name__ for event in await self._receive()]
                assert not self.is_closed
        return names

    def hang_up(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    async def _receive(self) -> list[Event]:
        assert self._reader is not None
        assert self._writer is not None
        try:
            data = await self._reader.read(65_536)
        except ConnectionError:
            data = b""
        if not data:
            self.is_closed = True
            return []
        events = self.h2.receive_data(data)
        for event in events:
            self._note(event)
        self._writer.write(self.taken())
        return events

    def _note(self, event: Event) -> None:
        stream = getattr(event, "stream_id", None)
        answer = self.answers.setdefault(stream, Answer()) if stream else Answer()
        if isinstance(event, ResponseReceived | TrailersReceived):
            answer.headers.update({str(name): str(value) for name, value in event.headers or ()})
        elif isinstance(event, DataReceived):
            answer.data += event.data or b""
            if not self.holds_back:
                self.h2.acknowledge_received_data(event.flow_controlled_length or 0, stream or 0)
        elif isinstance(event, StreamEnded):
            answer.is_over = True
        elif isinstance(event, StreamReset):
            if not answer.is_over:
                answer.reset = int(event.error_code or 0)
            answer.is_over = True
        elif isinstance(event, ConnectionTerminated):
            self.goaway = int(event.error_code or 0)


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """Pieces of the given sizes, again and again."""
    at = number = 0
    while at < len(data):
        size = max(1, sizes[number % len(sizes)])
        yield data[at : at + size]
        at, number = at + size, number + 1
