"""The registry of Pumps and Drainers, in our own keyspace, in a real etcd and in that of a real
PD."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from binlogd.errors import ConfigError, UpstreamUnavailable
from binlogd.node.membership import mark
from binlogd.ports import NodeStatus
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.entry import DRAINER, PUMP, node_key
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.upstream.keyspace.store import KeyspaceLimits, KeyspaceStore
from binlogd.upstream.registry import NodeRegistry
from binlogd.wire.generated.etcdserverpb import DeleteRangeRequest, PutRequest, RangeRequest
from tests.support.etcd import forgotten, own_etcd, say_version
from tests.support.real_pd import real_pd

GO_ENTRY = (
    b'{"nodeId":"pump0","host":"127.0.0.1:48350","state":"online","isAlive":false,"score":0,'
    b'"label":null,"maxCommitTS":470610283595300868,"updateTS":470610283595300867}'
)
PUMP0 = NodeStatus(
    PUMP, "pump0", "127.0.0.1:48350", "online", Tso(470610283595300868), Tso(470610283595300867)
)


@dataclass
class Place:
    """A registry, and the etcd below it as others see it."""

    registry: NodeRegistry
    beside: EtcdClient
    keyspace: KeyspaceStore | None

    async def stands_at(self, key: bytes) -> bytes | None:
        found = (await self.beside.range(RangeRequest(key=key))).kvs
        return found[0].value if found else None

    async def put(self, key: bytes, value: bytes) -> None:
        await self.beside.put(PutRequest(key=key, value=value))

    async def expire_claims(self) -> None:
        await self.beside.revoke(self.registry._lease)


IN_PD = pytest.param("in PD", marks=pytest.mark.soak)


@pytest.fixture(params=["own", "own by gRPC", "real", IN_PD])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "in PD":
        with real_pd(request.getfixturevalue("pd_program"), tmp_path) as pd:
            async with EtcdClient(pd.addresses) as client:
                yield Place(NodeRegistry(client), client, None)
        return
    if request.param == "real":
        port = request.getfixturevalue("real_etcd_port")
        say_version(port)
        async with EtcdClient([("127.0.0.1", port)]) as client:
            await client.delete_range(DeleteRangeRequest(key=b"/tidb-binlog", range_end=b"/u"))
            yield Place(NodeRegistry(client), client, None)
        return
    async with (
        own_etcd(tmp_path / "upstream.db", limits=KeyspaceLimits(history_revisions=20)) as (
            port,
            keyspace,
        ),
        EtcdClient([("127.0.0.1", port)]) as client,
    ):
        etcd = keyspace if request.param == "own" else client
        yield Place(NodeRegistry(etcd), client, keyspace)


async def test_an_entry_is_the_originals_to_the_byte(place: Place) -> None:
    await place.registry.register(PUMP0)
    assert await place.stands_at(b"/tidb-binlog/v1/pumps/pump0") == GO_ENTRY
    assert await place.registry.node(PUMP, "pump0") == PUMP0
    assert await place.registry.node(DRAINER, "pump0") is None


async def test_what_a_go_node_or_a_tidb_has_written_is_read(place: Place) -> None:
    await place.put(b"/tidb-binlog/v1/pumps/pump0", GO_ENTRY)
    assert await place.registry.nodes(PUMP) == [PUMP0]
    labelled = (
        b'{"nodeId":"b","label":{"labels":{"zone":"z1"}},"somethingNew":[1],"state":"paused"}'
    )
    await place.put(b"/tidb-binlog/v1/pumps/b", labelled)
    other, _ = await place.registry.nodes(PUMP)
    assert other == NodeStatus(PUMP, "b", "", "paused", NO_TS, NO_TS, labels={"zone": "z1"})
    await place.registry.register(replace(other, state="offline"))
    kept = json.loads(await place.stands_at(b"/tidb-binlog/v1/pumps/b") or b"")
    assert (kept["state"], kept["label"]) == ("offline", {"labels": {"zone": "z1"}})


async def test_nodes_are_listed_by_kind_and_in_order(place: Place) -> None:
    for name in ("b:8250", "a:8250", "a"):
        await place.registry.register(replace(PUMP0, node_id=name))
    await place.registry.register(replace(PUMP0, kind=DRAINER, node_id="d", state="offline"))
    assert [node.node_id for node in await place.registry.nodes(PUMP)] == ["a", "a:8250", "b:8250"]
    assert [node.node_id for node in await place.registry.nodes(DRAINER)] == ["d"]


async def test_one_entry_that_makes_no_sense_is_named(place: Place) -> None:
    await place.registry.register(PUMP0)
    await place.put(b"/tidb-binlog/v1/pumps/odd", b"{no")
    with pytest.raises(UpstreamUnavailable) as failed:
        await place.registry.nodes(PUMP)
    assert "error unmarshal NodeStatus with nodeID(odd), node value({no)" in str(failed.value)
    assert "/tidb-binlog/v1/pumps/odd" in str(failed.value)


@pytest.mark.parametrize("node_id", ["a/b", ""])
async def test_a_node_id_that_would_break_every_list_is_refused(place: Place, node_id: str) -> None:
    with pytest.raises(ConfigError, match="slash"):
        await place.registry.register(replace(PUMP0, node_id=node_id))


async def test_a_claim_to_be_alive_ends_and_the_entry_stays(place: Place) -> None:
    claim = b"/tidb-binlog/v1/binlogd/alive/pumps/pump0"
    await place.registry.keep([PUMP0])
    assert await place.stands_at(claim) is not None
    assert [node.is_alive for node in await place.registry.nodes(PUMP)] == [True]
    await place.expire_claims()
    assert await place.stands_at(claim) is None
    assert [node.is_alive for node in await place.registry.nodes(PUMP)] == [False]
    await place.registry.keep([PUMP0])  # it lives after all
    assert [node.is_alive for node in await place.registry.nodes(PUMP)] == [True]


async def test_a_pump_that_vanished_is_passed_over_and_waited_for(place: Place) -> None:
    go = replace(PUMP0, node_id="go")
    await place.registry.register(go)
    drainer = replace(PUMP0, kind=DRAINER, node_id="d")
    await place.registry.keep([PUMP0, drainer])
    assert await place.registry.pause_the_vanished() == []
    await place.expire_claims()
    (paused,) = await place.registry.pause_the_vanished()
    assert (paused.node_id, paused.state) == ("pump0", "paused")
    states = {node.node_id: node.state for node in await place.registry.nodes(PUMP)}
    assert states == {"go": "online", "pump0": "paused"}, "who claims nothing is left alone"
    (found,) = await place.registry.nodes(DRAINER)
    assert found.state == "online", "a Drainer that cannot be told must not be passed over"
    assert await place.registry.pause_the_vanished() == []
    await place.registry.keep([PUMP0])
    assert {node.state for node in await place.registry.nodes(PUMP)} == {"online"}


async def test_who_leaves_ends_the_claim_at_once(place: Place) -> None:
    await place.registry.keep([PUMP0])
    await place.registry.leave([replace(PUMP0, state="paused")])
    (left,) = await place.registry.nodes(PUMP)
    assert (left.state, left.is_alive) == ("paused", None)
    assert await place.stands_at(b"/tidb-binlog/v1/pumps/pump0") == GO_ENTRY.replace(
        b"online", b"paused"
    )


async def test_who_watches_is_told_of_every_change(place: Place) -> None:
    async with asyncio.timeout(120), aclosing(place.registry.watch(PUMP)) as seen:
        assert await anext(seen) == []
        await place.registry.register(PUMP0)
        assert await anext(seen) == [PUMP0]
        await place.put(node_key(PUMP, "pump0"), GO_ENTRY.replace(b"online", b"closing"))
        assert await anext(seen) == [replace(PUMP0, state="closing")]
        await place.registry.register(replace(PUMP0, node_id="b"))
        assert [node.node_id for node in await anext(seen)] == ["b", "pump0"]
        await place.beside.delete_range(DeleteRangeRequest(key=node_key(PUMP, "b")))
        assert [node.node_id for node in await anext(seen)] == ["pump0"]


async def test_who_watches_and_is_overtaken_by_a_compaction_reads_anew(place: Place) -> None:
    async with asyncio.timeout(120), aclosing(place.registry.watch(PUMP)) as seen:
        assert await anext(seen) == []
        for state in ("paused", "closing", "online"):
            await place.registry.register(replace(PUMP0, state=state))
        await forgotten(place.beside, place.keyspace)
        told: list[NodeStatus] = []
        while told != [PUMP0]:
            told = list(await anext(seen))


async def test_a_mark_is_made_in_the_words_of_binlogctl(place: Place) -> None:
    await place.put(b"/tidb-binlog/v1/pumps/pump0", GO_ENTRY)
    (marked,) = await mark(place.registry, "pump0", "paused")
    assert marked == replace(PUMP0, state="paused")
    assert await place.stands_at(b"/tidb-binlog/v1/pumps/pump0") == GO_ENTRY.replace(
        b"online", b"paused"
    )
    with pytest.raises(ConfigError, match="state gone is illegal"):
        await mark(place.registry, "pump0", "gone")
    with pytest.raises(ConfigError, match="key /tidb-binlog/v1/pumps/nobody in etcd not found"):
        await mark(place.registry, "nobody", "paused", kinds=(PUMP,))
