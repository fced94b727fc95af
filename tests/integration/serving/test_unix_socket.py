"""The unix socket beside the TCP port: both protocols, its rights, what an earlier life left."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from grpclib.client import Channel

from binlogd.errors import ConfigError
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server, SocketFile
from binlogd.tso import Tso
from binlogd.wire.binlogs import prewrite_binlog
from binlogd.wire.generated import binlog as pb
from tests.support.memory_pump import Cluster, MemoryPump


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[MemoryPump]:
    pump = MemoryPump()
    service = PumpService(pump, Cluster(7))
    server = Server([service], sinks=service.sinks())
    await server.start("127.0.0.1", 0, path)
    try:
        yield pump
    finally:
        await service.close()
        await server.close()


async def test_grpc_and_http_are_served_there_and_the_file_goes_with_the_server(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run" / "pump.sock"
    async with serving(path) as pump:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert [each.name for each in path.parent.iterdir()] == ["pump.sock"]
        async with Channel(path=str(path)) as channel:
            payload = prewrite_binlog(Tso(1), prewrite_value=b"rows")
            answer = await pb.PumpStub(channel).write_binlog(
                pb.WriteBinlogReq(cluster_id=7, payload=payload)
            )
        assert answer.errmsg == ""
        assert pump.stored == [payload]
        connector = aiohttp.UnixConnector(str(path))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://pump/nothing-here") as said,
        ):
            assert said.status == 404
    assert not path.exists()


async def test_a_file_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pump.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    async with serving(path):
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        await writer.wait_closed()


async def test_a_living_process_is_not_pushed_aside(tmp_path: Path) -> None:
    path = tmp_path / "pump.sock"
    async with serving(path):
        with pytest.raises(ConfigError, match=r"pump\.sock is in use by another process"):
            await Server([]).start("127.0.0.1", 0, path)
        assert path.is_socket()


async def test_the_file_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "pump.sock"
    async with serving(path):
        path.unlink()
        successor = SocketFile(path)
    assert path.is_socket()
    successor.socket.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plain", "is no socket; remove it"),
        ("x" * 120, "longer than 107 bytes"),
        ("plain/pump.sock", r"binlog-socket: .*plain/pump\.sock: (File exists|Not a directory)"),
    ],
)
async def test_what_cannot_be_a_socket_is_a_configuration_error(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "plain").write_text("precious")
    with pytest.raises(ConfigError, match=message):
        await Server([]).start("127.0.0.1", 0, tmp_path / name)
    assert (tmp_path / "plain").read_text() == "precious"
