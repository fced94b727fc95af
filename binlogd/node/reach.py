"""Whether the configured downstream can be reached, before anything is written there."""

from __future__ import annotations

import asyncio

from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import SqlSession
from binlogd.errors import DownstreamUnavailable
from binlogd.node.assembly import downstream_server
from binlogd.settings.quantities import address_of
from binlogd.settings.setup import Setup

CONNECT_S = 10.0
_KAFKA_PORT = 9092


async def reach(setup: Setup) -> str:
    """Tries the configured downstream, and changes nothing there: a session of a database, a
    connection to one of Kafka's brokers. A warning of what a start goes on without, or "".

    Raises ConfigError, DownstreamUnavailable.
    """
    syncer = setup.config.syncer
    if syncer.db_type == "kafka":
        await _reach_any([each.strip() for each in syncer.to.kafka_addrs.split(",")])
    if syncer.db_type not in ("mysql", "tidb"):
        return ""
    server = downstream_server(setup)
    session = await SqlSession.connect(server)
    try:
        is_lacking = await catalog.lacks_process(session)
    finally:
        session.close()
    if not is_lacking:
        return ""
    return (
        f"the downstream's user {server.user} lacks the PROCESS privilege: an interrupted swap of"
        " tables or EXCHANGE PARTITION will stop and ask; see deploy/grants.sql"
    )


async def _reach_any(brokers: list[str]) -> None:
    key, refused = "syncer.to.kafka-addrs", list[str]()
    for broker in filter(None, brokers):
        host, port = address_of(key, broker if ":" in broker else f"{broker}:{_KAFKA_PORT}")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            refused.append(f"{host}:{port}: {getattr(error, 'strerror', '') or 'no answer'}")
        else:
            writer.close()
            return
    raise DownstreamUnavailable(
        f"no broker of Kafka can be reached: {'; '.join(refused)}",
        todo=f"check {key}, and that a broker listens there",
    )
