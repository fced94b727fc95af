"""A puller that is gone without a word, or hangs, does not stay for ever."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator

from h2.config import H2Configuration
from h2.connection import H2Connection

from binlogd.binlog import Pulled
from binlogd.client.pump_client import RemoteSource
from binlogd.drainer.mysql.connection import MySqlServer as MySqlServer
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.grpc.bounds import Http2Limits
from binlogd.grpc.channel import PlainChannel
from binlogd.grpc.prefix import prefixed
from binlogd.pump.rpc.pulling import LateCommitFeed
from binlogd.pump.rpc.service import PumpService
from binlogd.serving.server import Server, ServerLimits
from binlogd.tso import Tso
from binlogd.wire import codec
from binlogd.wire.mysql import MysqlConnection
from tests.support.mariadb import MariaDb
from tests.support.memory_pump import MemoryPump
from tests.support.pump_world import eventually


class Mute:
    """A shard that promises nothing."""

    name = "mute"

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        await asyncio.Event().wait()
        yield Pulled((), after)


class Silent:
    """A Pump with nothing to say, of cluster 7."""

    cluster_id = 7

    async def adopt(self, cluster_id: int) -> int:
        return cluster_id

    async def write(self, payloads: object) -> list[None]:
        return []

    def write_now(self, *_: object) -> bool:
        return False

    def watch_late(self) -> LateCommitFeed:
        return MemoryPump()

    def sources(self) -> list[Mute]:
        return [Mute()]


async def pull_and_hang(host: str, port: int) -> asyncio.StreamWriter:
    """Asks for binlogs and then neither reads nor answers."""
    _, writer = await asyncio.open_connection(host, port, limit=1)
    h2 = H2Connection(H2Configuration(client_side=True))
    h2.initiate_connection()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/binlog.Pump/PullBinlogs"),
        (":authority", "test"),
        ("te", "trailers"),
        ("content-type", "application/grpc+proto"),
    ]
    h2.send_headers(1, headers)
    h2.send_data(1, prefixed(codec.encode_pull_request(7, Tso(0))), end_stream=True)
    writer.write(h2.data_to_send())
    return writer


async def until(service: PumpService, pullers: int) -> None:
    await eventually(lambda: service.statistics().pullers == pullers)


async def test_a_puller_that_answers_no_ping_is_given_up_and_one_that_does_is_kept() -> None:
    silent = Silent()
    service = PumpService(silent, silent)
    limits = ServerLimits(http2=Http2Limits(ping_after_s=0.1, ping_timeout_s=2.0))
    server = Server([service], limits=limits)
    host, port = await server.start("127.0.0.1", 0)

    async def pull() -> None:
        async for pulled in RemoteSource("remote", host, port, cluster_id=7).pull(Tso(0)):
            assert pulled == Pulled((), Tso(0)), "nothing was promised"

    async with asyncio.TaskGroup() as group:
        alive = group.create_task(pull())
        await until(service, 1)
        hanging = await pull_and_hang(host, port)
        await until(service, 2)
        await until(service, 1)
        await asyncio.sleep(0.5)
        assert service.statistics().pullers == 1
        assert not alive.done()
        alive.cancel()
    hanging.close()
    await service.close()
    await server.close()


def is_noticed_within_half_a_minute(connected: socket.socket) -> None:
    """That the peer is gone, whether something was sent to it or not."""
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    idle_s, again_s, count = (connected.getsockopt(socket.IPPROTO_TCP, o) for o in options)
    assert idle_s + again_s * count <= 30
    assert 0 < connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


async def test_a_puller_has_the_kernel_ask_whether_the_pump_is_still_there() -> None:
    """It never sends anything by itself, so nothing else would tell."""
    service = PumpService(Silent(), Silent())
    server = Server([service])
    host, port = await server.start("127.0.0.1", 0)
    async with PlainChannel(host, port) as channel:
        protocol = await channel.__connect__()
        is_noticed_within_half_a_minute(protocol.connection._transport.get_extra_info("socket"))
    await service.close()
    await server.close()


async def test_a_session_downstream_has_the_kernel_ask_whether_the_server_is_still_there(
    mariadb: MariaDb,
) -> None:
    """A DDL has no limit of time: without this it would wait for a dead server for ever."""
    session = await SqlSession.connect(MySqlServer("127.0.0.1", mariadb.port, mariadb.user, ""))
    assert isinstance(session._connection, MysqlConnection)
    connected = session._connection._writer.transport.get_extra_info("socket")
    is_noticed_within_half_a_minute(connected)
    session.close()
