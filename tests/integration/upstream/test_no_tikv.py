"""Behind a PD without a TiKV: who judges what became of a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from binlogd.errors import UpstreamUnavailable
from binlogd.ports import Committed, OpenPrewrite, RolledBack, TxnStatus
from binlogd.pump.verdict import AskAgain, Settle, decide
from binlogd.tso import Tso, compose
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import ObservedTso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.leader import PdLimits
from binlogd.upstream.txn_status import LocalTxnStatus, TikvOrElse
from binlogd.wire.generated import metapb
from binlogd.wire.generated.etcdserverpb import PutRequest
from tests.support.pd_cluster import CLUSTER_ID, pd_cluster
from tests.support.pump_world import eventually
from tests.support.stand_in import standing_in

START = compose(1_700_000_000_000)


@pytest.fixture
async def keyspace(tmp_path: Path) -> AsyncIterator[KeyspaceStore]:
    """The etcd inside of a PD."""
    made = await KeyspaceStore.open(tmp_path / "etcd.db", Random(1))
    yield made
    await made.close()


class Tikv:
    """A TiKV that has committed everything."""

    verifies_rollbacks = True

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        return [Committed(Tso(each.start_ts + 1)) for each in prewrites]


async def test_a_pd_says_whether_it_has_a_tikv(keyspace: KeyspaceStore) -> None:
    async with pd_cluster(1, keyspace=keyspace) as cluster:
        cluster.stores[4] = metapb.Store(id=4, labels=[metapb.StoreLabel("zone", "z1")])
        client = PdClient(cluster.addresses)
        assert await client.has_tikv()
        cluster.has_cluster = False
        assert not await client.has_tikv()
        assert client.statistics().trouble == "", "that is an answer"
        assert await client.cluster_id() == CLUSTER_ID
        await client.close()


async def test_a_leader_on_its_way_out_does_not_make_a_tikv_disappear(
    keyspace: KeyspaceStore,
) -> None:
    """It says that its cluster was never bootstrapped, as it has let go of it already."""
    async with pd_cluster(1, keyspace=keyspace) as cluster:
        await keyspace.put(PutRequest(key=b"/pd/%d/raft" % CLUSTER_ID, value=b"a cluster"))
        cluster.stores[4] = metapb.Store(id=4)
        cluster.has_cluster = False
        client = PdClient(cluster.addresses, limits=PdLimits(question_s=60.0, pause_s=0.01))
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(client.has_tikv())
            await eventually(lambda: client.statistics().errors > 1)
            cluster.has_cluster = True  # of the next leader
        assert asked.result()
        await client.close()


async def test_a_binlogd_that_stands_in_for_pd_has_no_tikv(tmp_path: Path) -> None:
    async with standing_in(tmp_path) as port:
        client = PdClient([("127.0.0.1", port)])
        assert not await client.has_tikv(), "its one store has the history of DDL, and no more"
        await client.close()


def by_age(*, rolls_back: bool) -> LocalTxnStatus:
    times = ObservedTso()
    times.observe(compose(1_700_000_700_000))
    return LocalTxnStatus(times, rolls_back_abandoned=rolls_back)


async def test_tikv_is_asked_where_it_is_and_age_where_it_is_not() -> None:
    answers: list[bool] = [False, False, True]

    async def has_tikv() -> bool:
        return answers.pop(0)

    fates = TikvOrElse(has_tikv, Tikv(), by_age(rolls_back=True))
    one = [OpenPrewrite(START, b"k")]
    assert await fates.statuses(one) == [RolledBack()]
    assert await fates.statuses(one) == [RolledBack()]
    for _ in range(2):  # a cluster that has one keeps it
        assert await fates.statuses(one) == [Committed(Tso(START + 1))]


async def test_a_rollback_of_the_writer_is_believed_where_nobody_can_be_asked() -> None:
    async def has_tikv() -> bool:
        return False

    fates = TikvOrElse(has_tikv, Tikv(), by_age(rolls_back=False))
    (status,) = await fates.statuses([OpenPrewrite(START, b"k")])
    assert isinstance(decide(START, status), AskAgain)
    assert decide(START, status, has_rollback=True) == Settle()


async def test_a_pd_that_does_not_answer_leaves_everything_open() -> None:
    async def has_tikv() -> bool:
        raise UpstreamUnavailable("no PD today")

    fates = TikvOrElse(has_tikv, Tikv(), by_age(rolls_back=True))
    with pytest.raises(UpstreamUnavailable, match="no PD today"):
        await fates.statuses([OpenPrewrite(START, b"k")])
