"""Which upstream a configuration asks for: the only place that knows every kind.

A kind is a function from the configuration and the open store to an `Upstream`; `binlogd nodes` and
its like need nothing but the registry, which is opened by itself, so that they work on a host
without a data directory where the registry is not in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from binlogd.host.clock import WallClock
from binlogd.log.directory import STORE_FILE
from binlogd.ports import Registry, TsoSource
from binlogd.settings.setup import Setup, plain_tls
from binlogd.tso import Tso
from binlogd.upstream.cluster import CLUSTER_ID, StoredClusterIdentity
from binlogd.upstream.entry import PUMP
from binlogd.upstream.history import JobSource, SchemaHistory, job_source
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.oracle import ClockTso, ObservedTso, Overheard
from binlogd.upstream.registry import NodeRegistry
from binlogd.upstream.store import SkipList, UpstreamStore
from binlogd.upstream.txn_status import LocalTxnStatus
from binlogd.upstream.upstream import OwnPd, Upstream, UpstreamStatistics


async def open_upstream(setup: Setup, store: UpstreamStore) -> Upstream:
    """The configured kind, on the store of the data directory.

    Raises ConfigError when the data directory belongs to another cluster, and UpstreamUnavailable
    when the directory does not say yet which cluster it belongs to and nobody else does.
    """
    match setup.config.upstream.kind:
        case "pd":
            from binlogd.node.pd_upstream import open_pd  # who has no PD needs none of its clients

            return await open_pd(setup, store, partial(_by_age, setup))
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


@asynccontextmanager
async def open_registry(
    setup: Setup, open_store: Callable[[], Awaitable[UpstreamStore]]
) -> AsyncIterator[Registry]:
    """The registry alone; `open_store` is asked where it is in the data directory.

    Raises ConfigError, and what `open_store` raises.
    """
    if setup.config.upstream.kind == "pd":
        from binlogd.node.pd_upstream import etcd_client

        async with etcd_client(setup) as etcd:
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


async def _standalone(setup: Setup, store: UpstreamStore) -> Upstream:
    """There is nothing but binlogs."""
    upstream = setup.config.upstream
    source = job_source(upstream.schema_history, tls=plain_tls(setup.config.security))
    asked = None if upstream.tso == "clock" else ObservedTso()
    return await _with_own_registry(setup, store, asked, upstream.cluster_id, source)


async def _tidb(setup: Setup, store: UpstreamStore) -> Upstream:
    """TiDB servers are asked, the first that answers; the registry is this node's own."""
    from binlogd.node.tidb_ports import TidbPorts
    from binlogd.upstream.tidb.sql import TidbTso
    from binlogd.upstream.tidb.status_port import cluster_id

    tls = plain_tls(setup.config.security)
    tidb = TidbPorts.of(setup)
    asked = TidbTso(tidb.sessions)
    known_id = setup.config.upstream.cluster_id or await store.fact(CLUSTER_ID)
    known_id = known_id or await cluster_id(tidb.ports, tls)
    source = job_source(setup.config.upstream.schema_history, tls=tls) or tidb.jobs()
    own = await _with_own_registry(setup, store, asked, known_id, source)
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


def _by_age(setup: Setup, tso: TsoSource) -> LocalTxnStatus:
    upstream = setup.config.upstream
    return LocalTxnStatus(
        tso,
        rolls_back_abandoned=upstream.abandoned_prewrite == "rollback",
        txn_timeout_s=upstream.txn_timeout,
    )
