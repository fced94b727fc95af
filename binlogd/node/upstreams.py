"""Which upstream a configuration asks for: the only place that knows every kind.

A kind is a function from the configuration and the open store to an `Upstream`; `binlogd nodes` and
its like need nothing but the registry, which is opened by itself, so that they work on a host
without a data directory where the registry is not in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from msgspec import structs

from binlogd.host.clock import WallClock
from binlogd.log.directory import STORE_FILE
from binlogd.ports import Registry, TsoSource, TxnStatusSource
from binlogd.settings.config import advertised, tidb_addresses
from binlogd.settings.quantities import pd_addresses
from binlogd.settings.setup import Setup, client_tls, http_client_tls
from binlogd.status import UpstreamPart
from binlogd.tso import Tso
from binlogd.upstream.cluster import CLUSTER_ID, StoredClusterIdentity
from binlogd.upstream.etcd.client import EtcdClient
from binlogd.upstream.history import JobSource, SchemaHistory, job_source
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import ClockTso, ObservedTso, Overheard
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.cluster import GcHold, ToldCluster, open_cluster
from binlogd.upstream.pd.tso import PdTso
from binlogd.upstream.registry import PUMP, NodeRegistry
from binlogd.upstream.store import SkipList, UpstreamStore
from binlogd.upstream.tidb.servers import Several
from binlogd.upstream.tidb.status_port import StatusPort, TidbTables, cluster_id
from binlogd.upstream.tidb.txn_status import TidbTxnStatus
from binlogd.upstream.tikv.client import TikvClient
from binlogd.upstream.tikv.schema import TikvJobs, TikvSchema
from binlogd.upstream.tikv.stores import Stores
from binlogd.upstream.tikv.txn_status import TikvTxnStatus
from binlogd.upstream.txn_status import LocalTxnStatus, TikvOrElse
from binlogd.upstream.upstream import (
    OwnPd,
    TikvKnowledge,
    Upstream,
    UpstreamStatistics,
)

if TYPE_CHECKING:
    from binlogd.upstream.tidb.jobs import TidbJobs
    from binlogd.upstream.tidb.sql import TidbSql


async def open_upstream(setup: Setup, store: UpstreamStore) -> Upstream:
    """The configured kind, on the store of the data directory.

    Raises ConfigError when the data directory belongs to another cluster, and UpstreamUnavailable
    when the directory does not say yet which cluster it belongs to and nobody else does.
    """
    match setup.config.upstream.kind:
        case "pd":
            return await _pd(setup, store)
        case "tidb":
            return await _tidb(setup, store)
        case _:
            return await _standalone(setup, store)


async def look(setup: Setup) -> tuple[int | None, Tso, UpstreamStatistics]:
    """What the configured upstream says now: its cluster id, a timestamp, and who answered.

    No data directory is touched. Raises ConfigError, UpstreamUnavailable.
    """
    with tempfile.TemporaryDirectory() as directory:
        async with (
            await UpstreamStore.open(Path(directory) / STORE_FILE) as store,
            await open_upstream(setup, store) as upstream,
        ):
            ts = await upstream.tso.next()
            await upstream.history.index()
            await upstream.registry.nodes(PUMP)
            return upstream.cluster.cluster_id, ts, upstream.statistics()


async def ask_pd_the_time(setup: Setup) -> Tso:
    """A timestamp of the PD of `upstream.pd-urls`. Raises ConfigError, UpstreamUnavailable."""
    pd = PdClient(pd_addresses(setup.config.upstream.pd_urls), client_tls(setup))
    tso = PdTso(pd)
    try:
        return await tso.next()
    finally:
        await tso.close()
        await pd.close()


@asynccontextmanager
async def open_registry(
    setup: Setup, open_store: Callable[[], Awaitable[UpstreamStore]]
) -> AsyncIterator[Registry]:
    """The registry alone; `open_store` is asked where it is in the data directory.

    Raises ConfigError, and what `open_store` raises.
    """
    if setup.config.upstream.kind == "pd":
        async with _etcd(setup) as etcd:
            yield NodeRegistry(etcd)
        return
    store = await open_store()
    await store.close()
    keyspace = await _keyspace(store)
    try:
        yield NodeRegistry(keyspace)
    finally:
        await keyspace.close()


async def _keyspace(store: UpstreamStore) -> KeyspaceStore:
    return await KeyspaceStore.open(store.path, Random())


def _etcd(setup: Setup) -> EtcdClient:
    return EtcdClient(pd_addresses(setup.config.upstream.pd_urls), tls=client_tls(setup))


async def _standalone(setup: Setup, store: UpstreamStore) -> Upstream:
    """There is nothing but binlogs."""
    upstream = setup.config.upstream
    source = job_source(setup.config.upstream.schema_history, tls=http_client_tls(setup))
    asked = None if upstream.tso == "clock" else ObservedTso()
    return await _with_own_registry(setup, store, asked, upstream.cluster_id, source)


async def _tidb(setup: Setup, store: UpstreamStore) -> Upstream:
    """TiDB servers are asked, the first that answers; the registry is this node's own."""
    from binlogd.upstream.tidb.sql import TidbTso

    tls = http_client_tls(setup)
    tidb = _TidbPorts.of(setup)
    asked = TidbTso(tidb.sessions)
    told = setup.config.upstream.cluster_id or await store.fact(CLUSTER_ID)
    told = told or await cluster_id(tidb.ports, tls)
    source = job_source(setup.config.upstream.schema_history, tls=tls) or tidb.jobs()
    own = await _with_own_registry(setup, store, asked, told, source)
    own.ends.callback(tidb.close)
    return replace(
        own,
        kind="tidb",
        txn_status=tidb.fates(own.txn_status),
        table_name=tidb.tables().name,
        parts=tidb.parts(),
        tso_statistics=asked.statistics,
    )


async def _with_own_registry(
    setup: Setup,
    store: UpstreamStore,
    asked: TsoSource | None,
    told_id: int,
    source: JobSource | None,
) -> Upstream:
    """What is in the data directory; `asked` for the time is the clock, where it is None."""
    clock = await ClockTso.open(store, WallClock())
    tso = clock if asked is None else Overheard(asked, clock)
    cluster = await StoredClusterIdentity.open(store, told_id)
    skips = await SkipList.open(store, WallClock())
    history = SchemaHistory(source, store)
    keyspace, ends = await _keyspace(store), AsyncExitStack()
    ends.push_async_callback(keyspace.close)
    is_pd = setup.config.upstream.embedded_pd
    return Upstream(
        kind="standalone",
        store=store,
        cluster=cluster,
        tso=tso,
        history=history,
        registry=NodeRegistry(keyspace),
        txn_status=_by_age(setup, tso),
        skips=skips,
        works=(keyspace,),
        ends=ends,
        shares_registry=is_pd,
        own_pd=OwnPd(keyspace, clock, history, store) if is_pd else None,
    )


async def _pd(setup: Setup, store: UpstreamStore) -> Upstream:
    """PD tells whose binlogs these are, and the time; TiKV the schema and the fate of orphans."""
    upstream, tls = setup.config.upstream, client_tls(setup)
    pd = PdClient(pd_addresses(upstream.pd_urls), tls)
    tso = PdTso(pd)
    stores = Stores(pd, tls)
    tikv = TikvClient(pd, tso, stores, Random())
    etcd, ends = _etcd(setup), AsyncExitStack()
    try:
        cluster = await open_cluster(store, pd, upstream.cluster_id)
    except BaseException:
        await pd.close()
        raise
    tidb = _TidbPorts.of(setup) if upstream.tidb else None
    source = job_source(setup.config.upstream.schema_history, tls=http_client_tls(setup)) or (
        tidb.jobs() if tidb is not None else TikvJobs(tikv, tso)
    )
    otherwise: TxnStatusSource = _by_age(setup, tso)
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
        works=(pd, ToldCluster(cluster, pd), tso, etcd, *holds),
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


@dataclass(frozen=True, slots=True)
class _TidbPorts:
    """The TiDBs of a configuration, and what they can be asked."""

    sql: Sequence[TidbSql]
    sessions: Several[TidbSql]
    ports: Several[StatusPort]

    @classmethod
    def of(cls, setup: Setup) -> _TidbPorts:
        from binlogd.upstream.tidb.sql import SqlLogin, TidbSql  # others need no MySQL's protocol

        upstream, tls = setup.config.upstream, http_client_tls(setup)
        addresses = tidb_addresses(upstream)
        login = SqlLogin(upstream.user, upstream.password, tls if upstream.sql_tls else None)
        sql = [TidbSql(address, login) for address, _ in addresses]
        ports = [StatusPort(address, tls) for _, address in addresses]
        return cls(sql, Several(sql, "tidb, MySQL port"), Several(ports, "tidb, status port"))

    def jobs(self) -> TidbJobs:
        from binlogd.upstream.tidb.jobs import TidbJobs

        return TidbJobs(self.ports, self.sessions)

    def fates(self, otherwise: TxnStatusSource) -> TidbTxnStatus:
        return TidbTxnStatus(self.ports, otherwise)

    def tables(self) -> TidbTables:
        return TidbTables(self.ports)

    def parts(self) -> tuple[Callable[[], UpstreamPart], ...]:
        return self._told, self.ports.statistics

    def _told(self) -> UpstreamPart:
        versions = (each.version for each in self.sql if each.version)
        return structs.replace(self.sessions.statistics(), version=next(versions, ""))

    def close(self) -> None:
        for connection in self.sql:
            connection.close()


def _part_of(tikv: TikvClient, stores: Stores) -> UpstreamPart:
    now = tikv.statistics()
    return UpstreamPart(
        name="tikv",
        version=stores.version,
        trouble=now.trouble,
        requests=sum(now.router.calls.values()),
        errors=sum(now.router.region_errors.values()),
    )


def _by_age(setup: Setup, tso: TsoSource) -> LocalTxnStatus:
    upstream = setup.config.upstream
    return LocalTxnStatus(
        tso,
        rolls_back_abandoned=upstream.abandoned_prewrite == "rollback",
        txn_timeout_s=upstream.txn_timeout,
    )
