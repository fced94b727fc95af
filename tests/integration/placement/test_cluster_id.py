"""Whose cluster this is, the writers say; who asks is told a number that binds nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from binlogd.errors import UpstreamUnavailable
from binlogd.host.clock import WallClock
from binlogd.placement.pd_service import AdvertisedAddress
from binlogd.placement.stand_in import StandIn
from binlogd.serving.server import Server
from binlogd.tso import NO_TS
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.history import SchemaHistory
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import ClockTso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.leader import PdLimits
from binlogd.upstream.pd.tso import PdTso
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.upstream import OwnPd

WRITERS = 6791641053252586769


async def test_a_question_makes_no_cluster_id(tmp_path: Path) -> None:
    store = await UpstreamStore.open(tmp_path / "upstream.db")
    keyspace = await KeyspaceStore.open(store.path, Random(1))
    identity = await StoredClusterIdentity.open(store, 0)
    own = OwnPd(
        keyspace, await ClockTso.open(store, WallClock()), SchemaHistory(None, store), store
    )
    stand_in = StandIn(
        AdvertisedAddress("a", "http://127.0.0.1:1"), own, identity, WallClock(), lambda: NO_TS
    )
    server = Server(stand_in.services)
    try:
        address = await server.start("127.0.0.1", 0)
        async with client_of(address) as early, client_of(address) as knowing:
            said = stand_in.documents()["cluster"]["id"]
            assert await early.cluster_id() == said != 0, "Go takes no other"
            assert early.has_no_cluster
            knowing.expect(WRITERS)
            assert await PdTso(knowing).next() > NO_TS, "whoever knows the id is answered"
            assert identity.cluster_id is None, "nobody has written yet"
            assert await identity.adopt(WRITERS) == WRITERS
            assert (await early.cluster_id(), early.has_no_cluster) == (WRITERS, False)
            assert await PdTso(knowing).next() > NO_TS
        async with client_of(address) as wrong:
            wrong.expect(5)
            with pytest.raises(UpstreamUnavailable, match=f"to cluster {WRITERS}, not to 5"):
                await PdTso(wrong).next()
    finally:
        stand_in.close()
        await server.close()
        await keyspace.close()
        await store.close()


@asynccontextmanager
async def client_of(address: tuple[str, int]) -> AsyncIterator[PdClient]:
    client = PdClient([address], None, PdLimits(question_s=0.5, tso_s=0.5))
    yield client
    await client.close()
