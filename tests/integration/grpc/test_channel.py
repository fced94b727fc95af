"""Connections that end before they began, and what is left of those that were closed."""

from __future__ import annotations

import asyncio
import socket
from asyncio import BaseTransport
from pathlib import Path

import pytest
from grpclib.protocol import H2Protocol
from hyperframe.frame import GoAwayFrame, SettingsFrame

from binlogd.grpc.channel import LastingChannel, PlainChannel
from binlogd.host.tls import ClientTls, ServerTls
from tests.support.certificates import Authority
from tests.support.hung_servers import LOOPS, hung_after, left_open_by
from tests.support.pump_world import eventually


class LostAtOnce(PlainChannel):
    """Of a machine so busy that the connection is lost before its caller runs again."""

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        made = protocol.connection_made

        def made_and_lost(transport: BaseTransport) -> None:
            made(transport)
            protocol.processor.close()

        protocol.connection_made = made_and_lost  # type: ignore[method-assign] # of this one alone
        return protocol


async def test_a_channel_that_was_closed_is_not_dialled_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        channel = PlainChannel(*listening.getsockname())
        await channel.__connect__()
        channel.close()
        with pytest.raises(ConnectionError, match="was closed"):
            await channel.__connect__()


async def test_a_connection_that_is_lost_as_soon_as_it_is_made_is_an_error_of_the_connection() -> (
    None
):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        channel = LostAtOnce(*listening.getsockname())
        with pytest.raises(ConnectionError, match="as soon as it was made"):
            await channel.__connect__()
        channel.close()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_closed_channel_leaves_no_connection_to_a_server_that_hangs(
    loop: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = ClientTls(authority.files(), is_grpc=True)

    async def connect_and_close(host: str, port: int) -> None:
        channel = PlainChannel(host, port, tls)
        await channel.__connect__()
        channel.close()

    server = ServerTls(authority.files(authority.issue("server"))).make()
    with hung_after(lambda accepted: server.wrap_socket(accepted, server_side=True)) as at:
        assert left_open_by(connect_and_close(*at), LOOPS[loop]) == []


async def test_a_closed_channel_ends_the_connections_too_that_its_server_is_leaving() -> None:
    """A server that says GOAWAY closes when it has answered, and that may take any time."""
    ended: asyncio.Queue[bytes] = asyncio.Queue()
    begun = 0

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal begun
        begun += 1
        writer.write(SettingsFrame().serialize() + GoAwayFrame().serialize())
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:  # it was cut off
            pass
        finally:
            ended.put_nowait(b"")
            writer.close()

    async with asyncio.timeout(60), await asyncio.start_server(leave, "127.0.0.1", 0) as server:
        channel = LastingChannel(*server.sockets[0].getsockname())
        while begun < 3:
            protocol = await channel.__connect__()
            await eventually(lambda made=protocol: made.handler.connection_lost)  # type: ignore[misc]
        channel.close()
        for _ in range(3):
            await ended.get()
