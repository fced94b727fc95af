"""Attributes of libraries that are used beyond their documentation: an upgrade that moves one must
show here, by name, before it shows in a connection."""

from __future__ import annotations

import inspect

from grpclib.client import Channel
from grpclib.client import Stream as ClientStream
from grpclib.events import _DispatchServerEvents
from grpclib.protocol import Buffer, Connection, EventsProcessor, H2Protocol
from grpclib.server import Handler, Server
from grpclib.server import Stream as ServerStream
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.frame_buffer import FrameBuffer

from binlogd.pump.service import BytesCodec


async def test_grpclibs_server_is_made_as_we_make_it() -> None:
    server = Server([], codec=BytesCodec())
    assert server._mapping == {}
    assert server._codec is not None
    assert server._config.http2_connection_window_size > 0
    assert isinstance(server.__dispatch__, _DispatchServerEvents)
    handler = Handler({}, BytesCodec(), None, server.__dispatch__)
    assert handler._tasks == {}
    assert Handler.__gc_interval__ > 0
    assert list(inspect.signature(Handler.accept).parameters)[1:] == [
        "stream",
        "headers",
        "release_stream",
    ]


def test_grpclibs_streams_have_their_bytes_where_we_read_them() -> None:
    assert "self._stream = stream" in inspect.getsource(ServerStream.__init__)
    assert "self._stream" in inspect.getsource(ClientStream.send_request)
    assert "self._wrapper" in inspect.getsource(ClientStream.send_request)
    assert hasattr(Channel, "__connect__")
    buffer = Buffer(lambda size: None)
    assert callable(buffer._ack_callback)
    assert all(hasattr(buffer, name) for name in ("add", "eof", "read", "unacked_size"))


def test_grpclibs_protocol_is_put_together_as_we_do_it() -> None:
    source = inspect.getsource(H2Protocol.connection_made)
    for step in ("initiate_connection", "Connection(", "initialize()", "EventsProcessor("):
        assert step in source
    assert list(inspect.signature(Connection.__init__).parameters)[1:] == [
        "connection",
        "transport",
        "config",
    ]
    assert list(inspect.signature(EventsProcessor.__init__).parameters)[1:] == [
        "handler",
        "connection",
    ]


def test_h2_has_what_we_replace() -> None:
    h2 = H2Connection(H2Configuration(client_side=False))
    assert isinstance(h2.incoming_buffer, FrameBuffer)
    assert h2.incoming_buffer._data == b""
    assert callable(h2.incoming_buffer._validate_frame_length)
    assert h2._open_streams(1) == 0
    assert h2.open_inbound_streams == 0
    assert h2.state_machine.state is not None
    assert h2.max_inbound_frame_size == 16_384
