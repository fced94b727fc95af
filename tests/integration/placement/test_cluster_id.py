"""Whose cluster this is, the writers say; who asks is told a number that binds nobody."""

from __future__ import annotations

from pathlib import Path
from random import Random

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
    server = Server(stand_in.services())
    try:
        address = await server.start("127.0.0.1", 0)
        told = await asked(address)
        assert told == await asked(address) == stand_in.face().cluster_id != 0
        assert identity.cluster_id is None, "nobody has written yet"
        assert await identity.adopt(WRITERS) == WRITERS
        assert await asked(address) == WRITERS
    finally:
        stand_in.close()
        await server.close()
        await keyspace.close()
        await store.close()


async def asked(address: tuple[str, int]) -> int:
    client = PdClient([address], None)
    try:
        return await client.cluster_id()
    finally:
        await client.close()
