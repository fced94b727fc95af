"""The upstream that is a PD with its TiKVs; who has none imports nothing of this."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from binlogd.host.clock import WallClock
from binlogd.ports import TsoSource, TxnStatusSource
from binlogd.settings.config import advertised
from binlogd.settings.quantities import pd_addresses
from binlogd.settings.setup import Setup, client_tls, plain_tls
from binlogd.status import UpstreamPart
from binlogd.tso import Tso
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.upstream.history import SchemaHistory, job_source
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.cluster import AwaitedCluster, GcHold, open_cluster
from binlogd.upstream.pd.tso import PdTso
from binlogd.upstream.registry import NodeRegistry
from binlogd.upstream.store import SkipList, UpstreamStore
from binlogd.upstream.tikv.client import TikvClient
from binlogd.upstream.tikv.schema import TikvJobs, TikvSchema
from binlogd.upstream.tikv.stores import Stores
from binlogd.upstream.tikv.txn_status import TikvTxnStatus
from binlogd.upstream.txn_status import LocalTxnStatus, TikvOrElse
from binlogd.upstream.upstream import TikvKnowledge, Upstream

if TYPE_CHECKING:
    from binlogd.node.tidb_ports import TidbPorts


async def open_pd(
    setup: Setup, store: UpstreamStore, by_age: Callable[[TsoSource], LocalTxnStatus]
) -> Upstream:
    """PD tells whose binlogs these are, and the time; TiKV the schema and the fate of orphans."""
    upstream, tls = setup.config.upstream, client_tls(setup)
    pd = PdClient(pd_addresses(upstream.pd_urls), tls)
    tso = PdTso(pd)
    stores = Stores(pd, tls)
    tikv = TikvClient(pd, tso, stores, Random())
    etcd, ends = etcd_client(setup), AsyncExitStack()
    try:
        cluster = await open_cluster(store, pd, upstream.cluster_id)
    except BaseException:
        await pd.close()
        raise
    tidb = _tidb(setup) if upstream.tidb else None
    source = job_source(upstream.schema_history, tls=plain_tls(setup.config.security))
    source = source or (tidb.jobs() if tidb is not None else TikvJobs(tikv, tso))
    otherwise: TxnStatusSource = by_age(tso)
    if tidb is not None:
        otherwise = tidb.fates(otherwise)
    gives_up = upstream.abandoned_prewrite == "rollback"
    fates = TikvTxnStatus(tikv, pd, tso, rolls_back_abandoned=gives_up)
    service = f"binlogd_{advertised(setup.config)}"
    holds = (
        [GcHold(pd, f"{service}_checkpoint")] if setup.config.syncer.load_schema_snapshot else []
    )
    for each in (pd, tso, etcd):
        ends.push_async_callback(each.close)
    ends.callback(stores.close)
    if tidb is not None:
        ends.callback(tidb.close)
    return Upstream(
        kind="pd",
        store=store,
        cluster=cluster,
        tso=tso,
        history=SchemaHistory(source, store),
        registry=NodeRegistry(etcd),
        txn_status=TikvOrElse(pd.has_tikv, fates, otherwise),
        skips=await SkipList.open(store, WallClock()),
        schema_at=TikvSchema(tikv, pd, service).tracker,
        table_name=tidb.tables().name if tidb is not None else None,
        keep_from=next((each.keep_from for each in holds), None),
        works=(pd, AwaitedCluster(cluster, pd), tso, etcd, *holds),
        ends=ends,
        parts=(
            pd.statistics,
            partial(_part_of, tikv, stores),
            *(each.statistics for each in holds),
            *(tidb.parts() if tidb else ()),
        ),
        shares_registry=True,
        tso_statistics=tso.statistics,
        tikv_statistics=lambda: TikvKnowledge(tikv.statistics(), fates.statistics()),
    )


async def ask_pd_the_time(setup: Setup) -> Tso:
    """A timestamp of the PD of `upstream.pd-urls`. Raises ConfigError, UpstreamUnavailable."""
    pd = PdClient(pd_addresses(setup.config.upstream.pd_urls), client_tls(setup))
    tso = PdTso(pd)
    try:
        return await tso.next()
    finally:
        await tso.close()
        await pd.close()


def etcd_client(setup: Setup) -> EtcdClient:
    """Where PD keeps the registry."""
    return EtcdClient(pd_addresses(setup.config.upstream.pd_urls), tls=client_tls(setup))


def _tidb(setup: Setup) -> TidbPorts:
    from binlogd.node.tidb_ports import TidbPorts  # others need no MySQL's protocol

    return TidbPorts.of(setup)


def _part_of(tikv: TikvClient, stores: Stores) -> UpstreamPart:
    now = tikv.statistics()
    return UpstreamPart(
        name="tikv",
        version=stores.version,
        trouble=now.trouble,
        requests=sum(now.router.calls.values()),
        errors=sum(now.router.region_errors.values()),
    )
