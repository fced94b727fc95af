"""Connections that end before they began."""

from __future__ import annotations

import socket
from asyncio import BaseTransport

import pytest
from grpclib.protocol import H2Protocol

from binlogd.grpc.channel import PlainChannel


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
