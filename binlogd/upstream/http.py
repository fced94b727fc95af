"""Connections by HTTP that end with whoever made them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp

from binlogd.host.silence import cut
from binlogd.host.tls import ClientTls


def certificates(tls: ClientTls | None) -> ssl.SSLContext | bool:
    """As aiohttp takes them; they may have changed since the last request."""
    return tls.fresh() if tls is not None else True


@asynccontextmanager
async def session(answer_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    """An answer as a whole may take so long. At the end no connection is left, whatever its server
    does: aiohttp lets those go that are not to be used again, and TLS waits for a goodbye."""
    connector = _Connector()
    timeout = aiohttp.ClientTimeout(total=answer_s)
    try:
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as made:
            yield made
    finally:
        connector.cut()


class _Connector(aiohttp.TCPConnector):
    def __init__(self) -> None:
        super().__init__()
        self._made: list[asyncio.Transport] = []

    async def _create_connection(self, *of: Any) -> Any:
        protocol = await super()._create_connection(*of)
        self._made.append(cast(asyncio.Transport, protocol.transport))
        return protocol

    def cut(self) -> None:
        """Ends all that it has made."""
        for transport in self._made:
            cut(transport)
