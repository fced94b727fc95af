"""What a node serves in the place of PD, on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from binlogd.host.clock import WallClock
from binlogd.placement.pd_service import AdvertisedAddress
from binlogd.placement.stand_in import StandIn
from binlogd.serving.server import Server
from binlogd.tso import NO_TS
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.history import SchemaHistory, job_source
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import ClockTso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.upstream import OwnPd

CLUSTER_ID = 7710478698719943560


@asynccontextmanager
async def standing_in(directory: Path, source: Path | None = None) -> AsyncIterator[int]:
    """A node's stand-in for PD on a port."""
    store = await UpstreamStore.open(directory / "upstream.db")
    history = SchemaHistory(job_source(str(source) if source else ""), store)
    keyspace = await KeyspaceStore.open(store.path, Random(1))
    stand_in = StandIn(
        AdvertisedAddress("pump0", "http://127.0.0.1:8250"),
        OwnPd(keyspace, await ClockTso.open(store, WallClock()), history, store),
        await StoredClusterIdentity.open(store, CLUSTER_ID),
        WallClock(),
        lambda: NO_TS,
    )
    server = Server(stand_in.services)
    try:
        _, port = await server.start("127.0.0.1", 0)
        yield port
    finally:
        stand_in.close()
        await server.close()
        await keyspace.close()
        await store.close()
