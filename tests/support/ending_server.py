"""A gRPC server that ends as a process does."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from grpclib.encoding.base import CodecBase
from grpclib.protocol import H2Protocol
from grpclib.server import Server


class EndingServer(Server):
    """grpclib's, whose connections go with it."""

    def __init__(self, handlers: Collection[Any], codec: CodecBase | None = None) -> None:
        super().__init__(handlers, codec=codec)
        self.made: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self.made.append(protocol)
        return protocol

    async def end(self) -> None:
        """Returns when nobody is connected any more."""
        self.close()
        self._end_connections()  # Python waits for them from 3.12 on
        await self.wait_closed()
        await asyncio.sleep(0.01)  # for who was being accepted just then
        self._end_connections()

    def _end_connections(self) -> None:
        for protocol in self.made:
            connection = getattr(protocol, "connection", None)
            if connection is not None:
                connection.close()
