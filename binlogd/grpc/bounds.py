"""What peers may make us hold by HTTP/2: the limits, what is counted against them, and the parts of
h2 with the bounds that they lack."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.frame_buffer import FrameBuffer
from hyperframe.frame import Frame, GoAwayFrame

from binlogd.settings.operators import Network

HEADER_LIST_BYTES_MAX = 8 << 10
"""Of one call, as HPACK counts; gRPC needs an eighth of it."""
_HEADER_BLOCK_BYTES_MAX = 16 << 10
_STREAMS_FEW = 256
_CLOSED_STREAMS_MAX = 1024
"""That h2 remembers of one connection; 64 times as many, by default."""
_RESETS_MAX = 2000
_RESETS_A_SECOND = 200.0


class Http2Limits(msgspec.Struct, frozen=True):
    """What one peer may make us hold on one connection, and all of them together."""

    streams_max: int = 1024
    streams_before_write_max: int = 256  # until it has written a binlog
    connection_window_bytes: int = 64 << 20  # received, unread; twice what writes may leave so
    stream_window_bytes: int = 4 << 20
    unread_bytes_max: int = 512 << 20  # of all connections together, by grpclib's streams
    strangers_bytes_max: int = 64 << 20  # of those together that have not written a binlog
    ping_after_s: float = 60.0  # again and again; a peer may have vanished without a word
    ping_timeout_s: float = 20.0
    idle_s: float = 3600.0  # without a call, a connection is left
    peers_from: tuple[Network, ...] | None = None  # who may do more than write; None: everybody


class TooMuch(ProtocolError):
    """A peer makes us hold more than is left for it, or do what costs us and not the peer."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class Resets:
    """The calls of one connection that were begun to be given up; time forgives them."""

    def __init__(self) -> None:
        self._counted = self._last_s = 0.0

    def count(self) -> None:
        """One more. Raises TooMuch."""
        now_s = asyncio.get_running_loop().time()
        forgiven = (now_s - self._last_s) * _RESETS_A_SECOND
        self._counted, self._last_s = max(0.0, self._counted - forgiven) + 1, now_s
        if self._counted > _RESETS_MAX:
            raise TooMuch(f"{_RESETS_MAX} calls were given up at once")


class Holder(Protocol):
    """A connection, as what it makes us hold is counted."""

    has_written: bool

    def break_off(self, error: TooMuch) -> None:
        """Ends it, and has it forgotten."""


class Unread:
    """What peers make us hold on all connections: calls that are open with their headers, and what
    has come for them and no handler has read yet, in bytes.

    A connection has its window and its calls, and there may be a thousand of them. Handlers read at
    once what there is room for, so it is much only where peers send what nobody waits for, or where
    very many wait. Above the limit, the connection that has the most is left: nothing on it was
    acknowledged. Strangers, who have not written a binlog, have a smaller one among themselves.
    """

    def __init__(self, bytes_max: int, strangers_bytes_max: int) -> None:
        self.size = self.of_strangers = 0
        self._bytes_max, self._strangers_bytes_max = bytes_max, strangers_bytes_max
        self._of: dict[Holder, int] = {}

    def arrived(self, owner: Holder, size: int) -> None:
        """Counts what has come. Raises TooMuch if it is the owner who must go."""
        self.size += size
        self._of[owner] = self._of.get(owner, 0) + size
        if not owner.has_written:
            self.of_strangers += size
        while self.of_strangers > self._strangers_bytes_max:  # ends: each turn forgets one
            strangers = [each for each in self._of if not each.has_written]
            self._let_go_of_one(strangers, self.of_strangers, owner)
        while self.size > self._bytes_max:  # ends: each turn forgets one
            self._let_go_of_one(self._of, self.size, owner)

    def _let_go_of_one(self, among: Iterable[Holder], size: int, owner: Holder) -> None:
        """Of the one that has the most. Raises TooMuch if that is the owner."""
        most = max(among, key=self._of.__getitem__)
        error = TooMuch(f"{size} bytes of connections are unread, {self._of[most]} of this one")
        if most is owner:
            self.forget(owner)
            raise error
        most.break_off(error)

    def taken(self, owner: Holder, size: int) -> None:
        """A handler has read it, or nobody will."""
        if owner in self._of:
            self.size -= size
            self._of[owner] -= size
            if not owner.has_written:
                self.of_strangers -= size

    def forget(self, owner: Holder) -> None:
        """The connection is over, and what it held is gone."""
        size = self._of.pop(owner, 0)
        self.size -= size
        if not owner.has_written:
            self.of_strangers -= size

    def becomes_known(self, owner: Holder) -> None:
        """It has written its first binlog; `has_written` says so from the next call on."""
        self.of_strangers -= self._of.get(owner, 0)


# h2 has the text of each frame made, with all its bytes in hex, for a log that nobody keeps
Frame.__repr__ = object.__repr__  # type: ignore[method-assign]


class BoundedFrames(FrameBuffer):
    """h2's buffer of incoming bytes; that one looks at a frame's length when it has all of it."""

    def __init__(self, frame_bytes_max: int) -> None:
        super().__init__(server=True)
        self.max_frame_size = frame_bytes_max

    def _update_header_buffer(self, f: Frame | None) -> Frame | None:
        """Gathers a block that comes in pieces. Raises ProtocolError."""
        whole = super()._update_header_buffer(f)
        if sum(len(each.data) for each in self._headers_buffer) > _HEADER_BLOCK_BYTES_MAX:
            raise DenialOfServiceError("a header block is larger than any that is decoded")
        return whole

    def __next__(self) -> Frame:
        """The next frame that is whole. Raises FrameTooLargeError."""
        if len(self._data) >= 3:
            self._validate_frame_length(int.from_bytes(self._data[:3], "big"))
        return super().__next__()


class Http2Connection(H2Connection):
    """h2's connection; that one counts all open streams whenever one is opened."""

    MAX_CLOSED_STREAMS = _CLOSED_STREAMS_MAX

    def __init__(self, config: H2Configuration, streams_max: int) -> None:
        super().__init__(config)
        self.decoder.max_header_list_size = HEADER_LIST_BYTES_MAX
        self._few = min(_STREAMS_FEW, streams_max // 2)

    def _open_streams(self, remainder: int) -> int:
        """How many are open; while there are few, those that have just ended count as well."""
        known = len(self.streams)
        return known if known < self._few else super()._open_streams(remainder)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """The peer begins no more streams; h2 would end those it has begun."""
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]

    def note_returned(self, size: int) -> None:
        """Of what comes next the peer has so much of its window already."""
        window = self._inbound_flow_control_window_manager
        window.current_window_size += size
        window._bytes_processed -= size  # noqa: SLF001 # no public way
