"""Nothing is left of a connection to a server that hangs, once its loop is over."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from pymysql.constants import CLIENT
from pymysql.err import OperationalError

from binlogd.host.tls import ClientTls, ServerTls
from binlogd.tidb.job_index import JobIndex
from binlogd.upstream.history import HistoryLimits, UrlJobs
from binlogd.upstream.tidb.status_port import StatusPort
from binlogd.wire.mysql import MysqlConnection
from tests.support.certificates import Authority
from tests.support.hung_servers import LOOPS, hung_after, left_open_by
from tests.support.pump_world import eventually

pytestmark = pytest.mark.parametrize("loop", LOOPS)
WELCOME = b"\0\0\0\x02\0\0\0"
REFUSAL = b"\xff" + (1045).to_bytes(2, "little") + b"#28000Access denied"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_side(authority: Authority) -> Callable[[socket.socket], ssl.SSLSocket]:
    tls = ServerTls(authority.files(authority.issue("server"))).make()
    return lambda accepted: tls.wrap_socket(accepted, server_side=True)


def mysql(
    answer: bytes, encrypted: Callable[[socket.socket], socket.socket] | None
) -> Callable[[socket.socket], socket.socket]:
    """A server up to its answer to a login. Source: MySQL's protocol, HandshakeV10."""
    able = CLIENT.SECURE_CONNECTION | CLIENT.PLUGIN_AUTH | CLIENT.PROTOCOL_41
    able |= CLIENT.SSL if encrypted else 0
    low, high = able.to_bytes(4, "little")[:2], able.to_bytes(4, "little")[2:]
    has_autocommit = b"\x02\0"
    greeting = b"\x0a8.0.0\0" + bytes(4) + b"12345678\0" + low + b"\x21" + has_autocommit + high
    greeting += b"\x15" + bytes(10) + b"123456789012\0" + b"mysql_native_password\0"

    def packet(number: int, body: bytes) -> bytes:
        return len(body).to_bytes(3, "little") + bytes([number]) + body

    def talk(accepted: socket.socket) -> socket.socket:
        accepted.sendall(packet(0, greeting))
        number = 2
        if encrypted is not None:
            accepted.recv(36, socket.MSG_WAITALL)
            accepted, number = encrypted(accepted), 3
        accepted.recv(1 << 16)
        accepted.sendall(packet(number, answer))
        return accepted

    return talk


def connection(at: tuple[str, int], tls: ClientTls | None) -> MysqlConnection:
    return MysqlConnection(at, "u", "", autocommit=True, tls=tls, without_tls="")


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("is_asked", [False, True], ids=["idle", "asked"])
def test_a_session_of_mysql_ends(
    authority: Authority, loop: str, *, has_tls: bool, is_asked: bool
) -> None:
    tls = ClientTls(authority.files()) if has_tls else None

    async def connect_and_close(at: tuple[str, int]) -> None:
        session = connection(at, tls)
        await session.open()
        if is_asked:
            transport = session._writer.transport
            asking = asyncio.create_task(session.query(bytes(40 << 20)))
            await eventually(lambda: transport.get_write_buffer_size() > 0)
            asking.cancel()
            await asyncio.wait([asking])
        session.close()

    encrypted = server_side(authority) if has_tls else None
    with hung_after(mysql(WELCOME, encrypted)) as at:
        assert left_open_by(connect_and_close(at), LOOPS[loop]) == []


def test_a_login_that_mysql_refuses_ends(authority: Authority, loop: str) -> None:
    async def try_to_connect(at: tuple[str, int]) -> None:
        with pytest.raises(OperationalError, match="Access denied"):
            await connection(at, ClientTls(authority.files())).open()

    with hung_after(mysql(REFUSAL, server_side(authority))) as at:
        assert left_open_by(try_to_connect(at), LOOPS[loop]) == []


def http(
    encrypted: Callable[[socket.socket], socket.socket],
) -> Callable[[socket.socket], socket.socket]:
    """A server that says that it closes, and does not."""

    def talk(accepted: socket.socket) -> socket.socket:
        accepted = encrypted(accepted)
        accepted.recv(1 << 16)
        accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]")
        return accepted

    return talk


def test_a_question_to_a_status_port_ends(authority: Authority, loop: str) -> None:
    async def ask(at: tuple[str, int]) -> None:
        assert await StatusPort(at, ClientTls(authority.files())).get("/x") == b"[]"

    with hung_after(http(server_side(authority))) as at:
        assert left_open_by(ask(at), LOOPS[loop]) == []


def test_a_history_that_is_read_at_a_url_ends(authority: Authority, loop: str) -> None:
    async def read(at: tuple[str, int]) -> None:
        url = f"https://{at[0]}:{at[1]}/ddl/history"
        source = UrlJobs(url, HistoryLimits(), ClientTls(authority.files()))
        assert [jobs async for jobs in source.jobs(JobIndex())] == [[]]

    with hung_after(http(server_side(authority))) as at:
        assert left_open_by(read(at), LOOPS[loop]) == []
