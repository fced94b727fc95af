"""Attributes of libraries that are used beyond their documentation: an upgrade that moves one must
show here, by name, before it shows in a connection."""

from __future__ import annotations

import inspect
from typing import Any

import aiosqlite
from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import MessageAccumulator
from grpclib.client import Channel
from grpclib.client import Stream as ClientStream
from grpclib.events import _DispatchServerEvents
from grpclib.protocol import Buffer, Connection, EventsProcessor, H2Protocol
from grpclib.protocol import Stream as ProtocolStream
from grpclib.server import Handler, Server
from grpclib.server import Stream as ServerStream
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection, _decode_headers
from h2.frame_buffer import FrameBuffer
from hpack import Decoder
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable, table_entry_size
from hyperframe.frame import GoAwayFrame

from binlogd.grpc.channel import BytesCodec


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


def test_grpclibs_answers_can_be_written_below_its_own_streams() -> None:
    assert ServerStream._send_initial_metadata_done is False
    assert ServerStream._send_message_done is False
    assert "self._send_message_done" in inspect.getsource(ServerStream.send_trailing_metadata)
    assert list(inspect.signature(Connection.create_stream).parameters)[1:] == [
        "stream_id",
        "wrapper",
    ]
    assert "self._connection" in inspect.getsource(Connection.feed)
    stream = inspect.getsource(ProtocolStream.__init__)
    for name in ("connection", "_h2_connection", "_transport", "window_updated"):
        assert f"self.{name}" in stream
    assert "self.write_ready" in inspect.getsource(Connection.__init__)
    assert "self.streams" in inspect.getsource(EventsProcessor.register)
    assert list(inspect.signature(EventsProcessor.register).parameters)[1:] == ["stream"]


def test_grpclibs_channel_is_put_together_as_we_do_it() -> None:
    source = inspect.getsource(Channel._protocol_factory)
    assert "H2Protocol(Handler(), self._config, self._h2_config)" in source
    assert "self._protocol.handler.connection_lost" in inspect.getsource(Channel)
    h2 = H2Connection(H2Configuration(client_side=True))
    assert GoAwayFrame in h2._frame_dispatch_table


def test_h2_shares_the_state_of_its_connection() -> None:
    h2 = H2Connection(H2Configuration(client_side=False))
    assert isinstance(h2.decoder, Decoder)
    assert h2.highest_inbound_stream_id == 0
    assert h2.outbound_flow_control_window == 65_535
    states = [h2.state_machine.state]
    h2.state_machine.process_input(ConnectionInputs.RECV_HEADERS)
    states.append(h2.state_machine.state)
    assert states == [ConnectionState.IDLE, ConnectionState.SERVER_OPEN]
    assert h2.max_outbound_frame_size == 16_384
    assert "self._receive_goaway_frame" in inspect.getsource(H2Connection.__init__)
    assert "decoder.decode(encoded_header_block, raw=True)" in inspect.getsource(_decode_headers)


def test_hpack_keeps_its_table_where_we_read_it() -> None:
    decoder = Decoder()
    decoder.header_table.add(b"x", b"1")
    decoder.header_table.add(b"y", b"2")
    assert list(decoder.header_table.dynamic_entries) == [(b"y", b"2"), (b"x", b"1")]
    assert decoder.header_table._current_size == 2 * 34
    assert decoder.header_table._maxsize == decoder.header_table.maxsize == 4096
    assert len(HeaderTable.STATIC_TABLE) == 61
    assert list(inspect.signature(Decoder.decode).parameters)[1:] == ["data", "raw"]
    assert decoder.max_header_list_size > 0
    assert decode_huffman(b"\x0b\x7f") == b"15"
    assert table_entry_size(b"x", b"1") == 34


def test_h2_has_what_we_replace() -> None:
    h2 = H2Connection(H2Configuration(client_side=False))
    assert isinstance(h2.incoming_buffer, FrameBuffer)
    assert h2.incoming_buffer._data == b""
    assert callable(h2.incoming_buffer._validate_frame_length)
    assert h2._open_streams(1) == 0
    assert h2.open_inbound_streams == 0
    assert h2.state_machine.state is not None
    assert h2.max_inbound_frame_size == 16_384


async def test_aiosqlite_runs_what_it_is_given_in_the_thread_of_its_connection() -> None:
    async with aiosqlite.connect(":memory:") as connection:
        hop: Any = connection._execute
        assert (await hop(lambda: connection._conn.execute("SELECT 1").fetchone())) == (1,)


def test_aiokafkas_producer_is_let_go_as_we_do_it() -> None:
    source = inspect.getsource(AIOKafkaProducer.stop)
    for name in (
        "self._message_accumulator.close()",
        "self._sender.close()",
        "self.client.close()",
    ):
        assert name in source
    assert list(inspect.signature(MessageAccumulator.fail_all).parameters) == ["self", "exception"]
