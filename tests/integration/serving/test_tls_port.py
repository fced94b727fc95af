"""The port behind TLS: both protocols, the fast lane, who may connect, certificates that change."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web

from binlogd.client.notify import notify
from binlogd.client.pump_client import PumpClient, RemoteSource
from binlogd.errors import ConfigError, PumpUnavailable, UpstreamUnavailable
from binlogd.host.tls import ClientTls, ServerTls, TlsFiles
from binlogd.pump.rpc.cistern import CisternService
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.handshakes import HandshakeLimits
from binlogd.serving.server import Server, ServerLimits
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.history import SchemaHistory, job_source
from binlogd.upstream.store import UpstreamStore
from binlogd.wire.binlogs import prewrite_binlog
from tests.support.certificates import Authority
from tests.support.memory_pump import Cluster, MemoryPump, nothing_to_do
from tests.support.pump_world import eventually

PAYLOAD = prewrite_binlog(Tso(1), prewrite_value=b"rows")


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """On the loop that the process runs on, whose TLS is its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(**fixtures))

    return run


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@dataclass
class Port:
    pump: MemoryPump
    service: PumpService
    server: Server
    number: int

    def client(self, tls: ClientTls | None) -> PumpClient:
        return PumpClient("localhost", self.number, cluster_id=7, tls=tls)


async def _hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


async def _no_jobs(_: web.Request) -> web.Response:
    return web.json_response([])


@asynccontextmanager
async def serving(
    files: TlsFiles | None, socket_file: Path | None = None, limits: ServerLimits | None = None
) -> AsyncIterator[Port]:
    pump = MemoryPump()
    service = PumpService(pump, Cluster(7))
    routes = web.Application()
    routes.router.add_get("/hello", _hello)
    routes.router.add_get("/ddl/history", _no_jobs)
    server = Server(
        [service, CisternService(nothing_to_do)],
        routes,
        limits,
        sinks=service.sinks(),
        tls=ServerTls(files) if files else None,
    )
    _, port = await server.start("127.0.0.1", 0, socket_file)
    try:
        yield Port(pump, service, server, port)
    finally:
        await service.close()
        await server.close()


async def shown_certificate(port: int, authority: Authority) -> bytes:
    reader, writer = await asyncio.open_connection(
        "localhost", port, ssl=ClientTls(authority.files()).fresh()
    )
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    del reader
    assert isinstance(certificate, bytes)
    return certificate


@on_uvloop
async def test_grpc_and_http_are_told_apart_behind_tls(authority: Authority) -> None:
    tls = ClientTls(authority.files(), is_grpc=True)
    async with serving(authority.files(authority.issue("server"))) as port:
        async with port.client(tls) as client:
            await asyncio.wait_for(client.write(PAYLOAD), 120)
        assert port.pump.stored == [PAYLOAD]
        context = ClientTls(authority.files()).fresh()
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://localhost:{port.number}/hello", ssl=context) as answer,
        ):
            assert await answer.text() == "hello"
        await notify("drainer", "localhost", port.number, tls=tls)


@on_uvloop
async def test_a_remote_pump_is_pulled_by_tls(authority: Authority) -> None:
    async with serving(authority.files(authority.issue("server"))) as port:
        tls = ClientTls(authority.files(), is_grpc=True)
        source = RemoteSource("it", "localhost", port.number, cluster_id=8, tls=tls)
        with pytest.raises(PumpUnavailable, match="cluster ID are mismatch"):
            await anext(source.pull(NO_TS))


@on_uvloop
async def test_both_protocols_are_offered_by_alpn(authority: Authority) -> None:
    async with serving(authority.files(authority.issue("server"))) as port:
        for offered, chosen in ((["h2"], "h2"), (["http/1.1"], "http/1.1"), ([], None)):
            context = ClientTls(authority.files()).fresh()
            if offered:
                context.set_alpn_protocols(offered)
            _, writer = await asyncio.open_connection("localhost", port.number, ssl=context)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
            writer.close()


@on_uvloop
async def test_who_speaks_both_is_answered_what_it_asks_by_http(authority: Authority) -> None:
    """A browser, curl and a kubelet offer both, HTTP/2 first; a gRPC client does not."""
    async with serving(authority.files(authority.issue("server"))) as port:
        context = ClientTls(authority.files()).fresh()
        context.set_alpn_protocols(["h2", "http/1.1"])
        reader, writer = await asyncio.open_connection("localhost", port.number, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.write(b"GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"hello")
        writer.close()


@on_uvloop
async def test_who_speaks_no_tls_or_does_not_trust_us_gets_nothing(
    authority: Authority, tmp_path: Path
) -> None:
    strangers = Authority(tmp_path / "theirs")
    async with serving(authority.files(authority.issue("server"))) as port:
        for tls in (None, ClientTls(strangers.files(), is_grpc=True)):
            async with port.client(tls) as client:
                with pytest.raises(PumpUnavailable):
                    await client.attempt(PAYLOAD)
        assert port.pump.stored == []


@on_uvloop
async def test_only_clients_with_an_allowed_common_name_may_connect(
    authority: Authority, tmp_path: Path
) -> None:
    strangers = Authority(tmp_path / "theirs")
    server = authority.files(authority.issue("server"), "tidb", "binlog")
    ours = authority.issue("client", "tidb")
    refused = [
        authority.files(),
        authority.files(authority.issue("other", "somebody")),
        TlsFiles(authority.file, *_pair(strangers, "tidb")),
    ]
    async with serving(server) as port:
        async with port.client(ClientTls(authority.files(ours), is_grpc=True)) as client:
            await asyncio.wait_for(client.write(PAYLOAD), 120)
        for files in refused:
            async with port.client(ClientTls(files, is_grpc=True)) as client:
                with pytest.raises(PumpUnavailable):
                    await client.attempt(PAYLOAD)
        assert port.pump.stored == [PAYLOAD]
        await eventually(lambda: len(port.server.places) <= 1)


def _pair(authority: Authority, common_name: str) -> tuple[Path, Path]:
    pair = authority.issue("client", common_name)
    return pair.cert, pair.key


@on_uvloop
async def test_any_certificate_of_the_ca_will_do_where_that_is_said(authority: Authority) -> None:
    files = authority.files(authority.issue("server"), "*")
    async with serving(files) as port:
        ours = authority.files(authority.issue("client", "whoever"))
        async with port.client(ClientTls(ours, is_grpc=True)) as client:
            await asyncio.wait_for(client.write(PAYLOAD), 120)
        async with port.client(ClientTls(authority.files(), is_grpc=True)) as client:
            with pytest.raises(PumpUnavailable):
                await client.attempt(PAYLOAD)


@on_uvloop
async def test_a_client_looks_at_the_servers_name_too(authority: Authority) -> None:
    async with serving(authority.files(authority.issue("server", "somebody"))) as port:
        tls = ClientTls(authority.files(None, "binlog"), is_grpc=True)
        async with port.client(tls) as client:
            with pytest.raises(PumpUnavailable, match="was not found in the configuration"):
                await client.attempt(PAYLOAD)
        assert port.pump.stored == []


@on_uvloop
async def test_a_new_certificate_counts_from_the_next_handshake_on(authority: Authority) -> None:
    pair = authority.issue("server")
    async with serving(authority.files(pair)) as port:
        tls = ClientTls(authority.files(), is_grpc=True)
        async with port.client(tls) as client:
            await client.write(PAYLOAD)
            before = await shown_certificate(port.number, authority)
            authority.issue("server")
            assert await shown_certificate(port.number, authority) != before
            await client.write(PAYLOAD)  # on the connection that is there
            after = await shown_certificate(port.number, authority)
            pair.key.write_text("half written")
            assert await shown_certificate(port.number, authority) == after
            pair.key.unlink()
            assert await shown_certificate(port.number, authority) == after
        assert len(port.pump.stored) == 2


@on_uvloop
async def test_another_ca_counts_from_the_next_handshake_on(
    authority: Authority, tmp_path: Path
) -> None:
    theirs = Authority(tmp_path / "theirs")
    server = authority.files(authority.issue("server"), "*")
    client_files = TlsFiles(authority.file, *_pair(theirs, "tidb"))
    ours = authority.file.read_bytes()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ours)
    async with serving(TlsFiles(trusted, server.cert, server.key, ("*",))) as port:
        async with port.client(ClientTls(client_files, is_grpc=True)) as client:
            with pytest.raises(PumpUnavailable):
                await client.attempt(PAYLOAD)
        trusted.write_bytes(ours + theirs.file.read_bytes())
        os.utime(trusted, ns=(1, 1))
        async with port.client(ClientTls(client_files, is_grpc=True)) as client:
            await asyncio.wait_for(client.write(PAYLOAD), 120)


@on_uvloop
async def test_the_unix_socket_stays_plain(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    async with serving(authority.files(authority.issue("server"), "tidb"), path) as port:
        async with PumpClient(path, cluster_id=7) as client:
            await client.write(PAYLOAD)
        assert port.pump.stored == [PAYLOAD]


@on_uvloop
async def test_files_that_do_not_load_are_named(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("server"), authority.issue("other")
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    for files, said in (
        (TlsFiles(tmp_path / "no.pem"), "no.pem: No such file"),
        (TlsFiles(broken), "holds no certificates"),
        (TlsFiles(authority.file, pair.cert, other.key), "the key is not of this certificate"),
    ):
        with pytest.raises(ConfigError, match=said):
            ServerTls(files)


@on_uvloop
async def test_old_protocols_are_refused(authority: Authority) -> None:
    async with serving(authority.files(authority.issue("server"))) as port:
        context = ClientTls(authority.files()).fresh()
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
            context.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("localhost", port.number, ssl=context)


@on_uvloop
async def test_one_client_cannot_take_every_connection(tmp_path: Path) -> None:
    limits = ServerLimits(connections_max=8, connections_per_client_max=2)
    path = tmp_path / "p.sock"
    async with serving(None, path, limits) as port:
        ours = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(3)]
        assert await ours[0][0].read() == b"", "it was idle for the longest time"
        async with PumpClient(path, cluster_id=7) as client:
            await client.write(PAYLOAD)
        reader, writer = ours[2]
        writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, each in ours:
            each.close()


@on_uvloop
async def test_handshakes_that_are_not_ended_make_room_for_others(authority: Authority) -> None:
    """Of the address that has most, the oldest first; and no connection that is open."""
    handshakes = HandshakeLimits(under_way_max=3, timeout_s=600)
    limits = ServerLimits(connections_max=1, handshakes=handshakes)
    async with (
        asyncio.timeout(60),
        serving(authority.files(authority.issue("server")), limits=limits) as port,
    ):
        tls = ClientTls(authority.files()).fresh()
        reader, writer = await asyncio.open_connection("localhost", port.number, ssl=tls)
        other = await asyncio.open_connection("127.0.0.1", port.number, local_addr=("127.0.0.2", 0))
        silent = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(5)]
        for early, _ in silent[:3]:
            assert await early.read() == b""
        writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await reader.readuntil(b"hello")
        await other[1].start_tls(tls, server_hostname="localhost")
        other[1].write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await other[0].readline()).startswith(b"HTTP/1.1 200")
        assert await reader.read() == b"", "there is one place, and it was idle"
        late, late_writer = await asyncio.open_connection("localhost", port.number, ssl=tls)
        late_writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await late.readline()).startswith(b"HTTP/1.1 200")
        for _, each in silent:
            each.close()
        for each in (writer, other[1], late_writer):
            each.transport.abort()


@on_uvloop
async def test_a_handshake_has_a_limit_of_time(authority: Authority) -> None:
    limits = ServerLimits(handshakes=HandshakeLimits(timeout_s=0.2))
    async with serving(authority.files(authority.issue("server")), limits=limits) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


@on_uvloop
async def test_the_port_behind_tls_says_what_address_is_taken(authority: Authority) -> None:
    files = authority.files(authority.issue("server"))
    async with serving(files) as port:
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port.number} is in use"):
            await Server([], tls=ServerTls(files)).start("127.0.0.1", port.number)


@on_uvloop
async def test_a_request_that_never_ends_its_head_is_let_go() -> None:
    limits = ServerLimits(sniff_timeout_s=1.0)
    async with serving(None, limits=limits) as port:
        slow, slow_writer = await asyncio.open_connection("127.0.0.1", port.number)
        slow_writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n")
        whole, writer = await asyncio.open_connection("127.0.0.1", port.number)
        for part in (b"GET /hello HTTP/1.1\r\nHost: x\r\n\r", b"\n"):
            writer.write(part)
            await writer.drain()
        assert (await whole.readline()).startswith(b"HTTP/1.1 200")
        assert (await whole.readuntil(b"\r\n\r\nhello")).endswith(b"hello")
        assert await slow.read() == b""
        writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await whole.readline()).startswith(b"HTTP/1.1 200"), "it is still there"
        for each in (slow_writer, writer):
            each.close()


@on_uvloop
async def test_the_schema_history_is_asked_by_tls(authority: Authority, tmp_path: Path) -> None:
    async with serving(authority.files(authority.issue("server"), "binlog")) as port:
        store = await UpstreamStore.open(tmp_path / "upstream.db")
        url = f"https://localhost:{port.number}/ddl/history"
        try:
            ours = ClientTls(authority.files(authority.issue("client")))
            assert len(await SchemaHistory(job_source(url, tls=ours), store).known_jobs()) == 0
            await SchemaHistory(job_source(url, tls=ours), store).index()
            for tls in (None, ClientTls(authority.files())):
                with pytest.raises(UpstreamUnavailable):
                    await SchemaHistory(job_source(url, tls=tls), store).index()
        finally:
            await store.close()
