"""Attributes of libraries that are used beyond their documentation: an upgrade that moves one must
show here, by name, before it shows in a connection. And none is used that is not named here."""

from __future__ import annotations

import ast
import binascii
import inspect
import re
import sqlite3
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp
import aiomysql
import aiosqlite
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.protocol.metadata import MetadataRequest, MetadataRequest_v5
from aiomysql.connection import MySQLResult
from grpclib.client import Channel
from grpclib.client import Stream as ClientStream
from grpclib.config import Configuration
from grpclib.events import _DispatchServerEvents
from grpclib.protocol import Buffer, Connection, EventsProcessor, H2Protocol
from grpclib.protocol import Stream as ProtocolStream
from grpclib.server import Handler, Server
from grpclib.server import Stream as ServerStream
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection, _decode_headers
from h2.events import DataReceived
from h2.frame_buffer import FrameBuffer
from hpack import Decoder
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable, table_entry_size
from hyperframe.frame import GoAwayFrame
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Transaction
from pyiceberg.table.update import UpdateTableMetadata
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

from binlogd.grpc.bounds import Http2Connection
from binlogd.grpc.channel import BytesCodec
from binlogd.host.database import connection_to

PRODUCT = Path(__file__).parents[2] / "binlogd"
STANDARD = {"_asdict", "_exit", "_current_frames", "_abc_impl"}
"""Of Python's own library, which documents them, or whose they are."""


def _modules() -> Iterator[tuple[str, str, ast.Module]]:
    for path in sorted(PRODUCT.rglob("*.py")):
        if "generated" not in path.parts:
            text = path.read_text()
            name = ".".join(path.relative_to(PRODUCT.parent).with_suffix("").parts)
            yield name.removesuffix(".__init__"), text, ast.parse(text)


def _private(name: str | None) -> bool:
    return name is not None and name.startswith("_") and not name.endswith("__")


def _uses(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Private names that stand behind a dot or before a keyword's value, and those made there."""
    used: set[str] = set()
    made: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg is not None and _private(node.arg):
            used.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
    return used, made


def _inherited(module: str, tree: ast.Module) -> Iterator[str]:
    """Private names that our classes have from a library's, be they used there or made anew."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not node.bases:
            continue
        kin = getattr(import_module(module), node.name).__mro__
        ours = [each for each in kin if each.__module__.startswith("binlogd")]
        theirs = [
            each for each in kin if each.__module__.split(".")[0] not in sys.stdlib_module_names
        ]
        theirs = [each for each in theirs if each not in ours]
        if theirs:
            used, _ = _uses(node)
            made = set().union(*(_uses(ast.parse(_source(each)))[1] for each in ours))
            anew = {name for each in theirs for name in vars(each) if name in vars(kin[0])}
            yield from (name for name in (used - made) | anew if _private(name))


def _source(of: type) -> str:
    return inspect.cleandoc("\n" + inspect.getsource(of))


def test_every_private_name_of_a_library_that_the_product_uses_is_held_here() -> None:
    used: set[str] = set()
    made: set[str] = set()
    excused: set[str] = set()
    inherited: set[str] = set()
    for name, text, tree in _modules():
        uses = _uses(tree)
        used |= uses[0]
        made |= uses[1]
        lines = [line for line in text.splitlines() if "noqa: SLF001" in line]
        excused |= {
            found for line in lines for found in re.findall(r"(?<!self)\.(_[a-z]\w*)", line)
        }
        if re.search(r"^(from|import) (grpclib|h2|hpack|aio)", text, re.MULTILINE):
            inherited |= set(_inherited(name, tree))
    borrowed = (used - made) | excused | inherited
    assert {"_ack_callback", "_read_query_result", "_open_streams", "_keepalive_time"} <= borrowed
    held = set(
        re.findall(r"\b_[a-z]\w*", Path(__file__).read_text().split("def test_grpclibs", 1)[1])
    )
    assert sorted(borrowed - held - STANDARD) == []


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


def test_grpclibs_connections_are_watched_by_the_settings_that_we_set() -> None:
    settings = set(inspect.signature(Configuration).parameters)
    assert {
        "_keepalive_time",
        "_keepalive_timeout",
        "_keepalive_permit_without_calls",
        "_http2_max_pings_without_data",
        "_http2_min_sent_ping_interval_without_data",
    } <= settings


def test_grpclibs_channel_is_put_together_as_we_do_it() -> None:
    assert "self._create_connection()" in inspect.getsource(Channel.__connect__)
    assert "self._path is not None" in inspect.getsource(Channel._create_connection)
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
    window = h2._inbound_flow_control_window_manager
    window.current_window_size += 30_000  # given back by somebody else
    window._bytes_processed -= 30_000
    window.window_consumed(60_000)
    assert not window.process_bytes(60_000)
    assert (window.current_window_size, window._bytes_processed) == (35_535, 30_000)
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
    assert h2.incoming_buffer._headers_buffer == []
    assert "self._update_header_buffer(" in inspect.getsource(FrameBuffer.__next__)
    assert h2._open_streams(1) == 0
    assert h2.open_inbound_streams == 0
    assert h2.state_machine.state is not None
    assert h2.max_inbound_frame_size == 16_384


async def test_aiosqlite_runs_what_it_is_given_in_the_thread_of_its_connection() -> None:
    async with aiosqlite.connect(":memory:") as connection:
        hop: Any = connection._execute
        assert (await hop(lambda: connection._conn.execute("SELECT 1").fetchone())) == (1,)


async def test_nobody_waits_for_the_thread_of_a_connection_that_aiosqlite_has_not_begun() -> None:
    async with connection_to(":memory:") as connection:
        assert isinstance(connection._thread, threading.Thread)
        assert connection._thread.is_alive()
        assert connection._thread.daemon


async def test_a_database_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    """It told of its end a loop that was closed by then: a stack at the end of a command."""
    assert "self._connect()" in inspect.getsource(aiosqlite.Connection.__await__)
    for _ in range(20):
        connection = connection_to(tmp_path)  # a directory
        with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
            await connection
        assert not connection._thread.is_alive()


def test_aiokafkas_producer_is_let_go_as_we_do_it() -> None:
    source = inspect.getsource(AIOKafkaProducer.stop)
    for name in (
        "self._message_accumulator.close()",
        "self._sender.close()",
        "self.client.close()",
    ):
        assert name in source
    assert list(inspect.signature(MessageAccumulator.fail_all).parameters) == ["self", "exception"]


def test_aiokafkas_connection_is_made_and_asked_as_we_do_it() -> None:
    known = inspect.signature(create_conn).parameters
    for name in ("client_id", "ssl_context", "sasl_oauth_token_provider", "sasl_plain_password"):
        assert name in known, name
        assert name in inspect.signature(AIOKafkaProducer).parameters, name
    assert collect_hosts(["[::1]:9093"], randomize=False)[0][:2] == ("::1", 9093)
    newest = MetadataRequest([]).build(MetadataRequest_v5).RESPONSE_TYPE.SCHEMA
    assert "brokers" in newest.names


def test_aiomysqls_connection_is_made_in_the_steps_that_we_look_into() -> None:
    connecting = inspect.getsource(aiomysql.Connection._connect)
    steps = ("_get_server_information", "_request_authentication", "self._writer")
    assert [step for step in steps if step not in connecting] == []
    login = inspect.getsource(aiomysql.Connection._request_authentication)
    assert "self._process_auth(plugin_name, auth_packet)" in login
    assert "if self._ssl_context and self.server_capabilities & CLIENT.SSL" in login
    server = inspect.getsource(aiomysql.Connection._get_server_information)
    assert "self.server_capabilities = " in server
    assert "self._auth_plugin_used = " in inspect.getsource(aiomysql.Connection.__init__)
    assert "self._writer.transport.close()" in inspect.getsource(aiomysql.Connection.close)


def test_aiohttps_connections_are_made_where_we_look() -> None:
    made = inspect.getsource(aiohttp.TCPConnector._create_connection)
    assert "return proto" in made
    assert "self._create_connection(" in inspect.getsource(aiohttp.BaseConnector)


def test_aiomysqls_answers_are_read_where_we_read_them() -> None:
    query = inspect.getsource(aiomysql.Connection.query)
    more = inspect.getsource(aiomysql.Connection.next_result)
    assert "await self._read_query_result(unbuffered=unbuffered)" in query
    assert "await self._read_query_result()" in more
    reading = inspect.getsource(aiomysql.Connection._read_query_result)
    for step in ("self._result = result", "self._affected_rows = ", "self.server_status = "):
        assert step in reading
    rows = inspect.getsource(MySQLResult._read_rowdata_packet)
    assert "self._read_row_from_packet(packet)" in rows
    assert "for encoding, converter in self.converters" in inspect.getsource(
        MySQLResult._read_row_from_packet
    )


def test_pyicebergs_transaction_takes_a_change_of_its_schema_as_we_give_it() -> None:
    taken = list(inspect.signature(Transaction._apply).parameters)[1:]
    assert taken == ["updates", "requirements"]
    commits = (UpdateSchema.commit, UpdateTableMetadata.commit)
    assert any("self._transaction._apply(" in inspect.getsource(each) for each in commits)


def test_pyicebergs_snapshots_are_made_in_the_steps_that_we_replace() -> None:
    assert isinstance(Transaction.table_metadata, property)
    for name in ("_table", "_updates"):
        assert f"self.{name}" in inspect.getsource(Transaction.table_metadata.fget)
    assert "self._updates += updates" in inspect.getsource(Transaction._stage)
    assert "self._existing_manifests" in inspect.getsource(_MergeAppendFiles._manifests)
    assert "_process_manifests" in vars(_MergeAppendFiles)
    assert {"_existing_manifests", "_deleted_entries"} <= vars(_OverwriteFiles).keys()
    assert "_process_manifests" not in vars(_OverwriteFiles)


def test_pyicebergs_versions_are_made_in_the_steps_that_its_own_catalogs_take() -> None:
    made, committed = (inspect.getsource(each) for each in (SqlCatalog.create_table, SqlCatalog))
    assert "self._write_metadata(metadata, io, metadata_location)" in made
    assert "self._update_and_stage_table(" in committed
    assert "self._load_file_io(metadata.properties, metadata_location)" in committed
    taken = list(inspect.signature(MetastoreCatalog._create_staged_table).parameters)
    assert taken[1:4] == ["identifier", "schema", "location"]


def test_no_text_is_made_of_the_bytes_of_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    client = H2Connection()
    server = Http2Connection(H2Configuration(client_side=False, header_encoding=None), 100)
    client.initiate_connection()
    head = {":method": "POST", ":path": "/", ":scheme": "http", ":authority": "pump"}
    client.send_headers(1, list(head.items()))
    client.send_data(1, bytes(16_000))

    def made(_: bytes) -> bytes:
        raise AssertionError("h2 writes a frame down")

    monkeypatch.setattr(binascii, "hexlify", made)
    events = server.receive_data(client.data_to_send())
    assert [each.data for each in events if isinstance(each, DataReceived)] == [bytes(16_000)]
