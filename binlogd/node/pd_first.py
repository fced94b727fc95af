"""The PD of a node on its port, before the node itself.

A Pump that is new tells the Drainers before it takes its first binlog, and they look at the
registry before they answer. Where the registry is served by this very node, it has to be there
first: with the server as a whole the Pump would take binlogs that no Drainer waits for. Writers and
readers of the Pump are told to come again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from binlogd.grpc.bounds import Http2Limits
from binlogd.grpc.half import Servable
from binlogd.host.tls import ServerTls
from binlogd.placement.calls import PumpToCome
from binlogd.serving.server import Server, ServerLimits
from binlogd.settings.operators import Network

log = structlog.get_logger(__name__)

_LEAVE_S = 0.1
"""Whoever is connected then comes back to the node itself."""


@asynccontextmanager
async def serving_pd_first(
    services: Sequence[Servable],
    host: str,
    port: int,
    tls: ServerTls | None,
    peers_from: tuple[Network, ...],
) -> AsyncIterator[None]:
    """Serves them while its block lasts, and gives the port back. Raises ConfigError when the
    address is taken."""
    limits = ServerLimits(
        leave_timeout_s=_LEAVE_S, flush_timeout_s=_LEAVE_S, http2=Http2Limits(peers_from=peers_from)
    )
    server = Server([*services, PumpToCome()], limits=limits, tls=tls)
    await server.start(host, port)
    log.info("pd_serves_first", cause="Drainers look at the registry before they know this Pump")
    try:
        yield
    finally:
        await server.close()
