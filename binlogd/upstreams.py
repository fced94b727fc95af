"""Which upstream a configuration asks for: the only place that knows every kind.

A kind is a function from the configuration and the open store to an `Upstream`; `binlogd nodes` and
its like need nothing but the registry, which is opened by itself, so that they work on a host
without a data directory where the registry is not in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from binlogd.errors import ConfigError
from binlogd.host.clock import WallClock
from binlogd.ports import Registry
from binlogd.setup import Setup, http_client_tls
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.history import SchemaHistory
from binlogd.upstream.job_sources import job_source
from binlogd.upstream.oracle import ClockTso, ObservedTso
from binlogd.upstream.registry import NodeRegistry
from binlogd.upstream.skips import SkipList
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.txn_status import LocalTxnStatus
from binlogd.upstream.upstream import Upstream


async def open_upstream(setup: Setup, store: UpstreamStore) -> Upstream:
    """The configured kind, on the store of the data directory.

    Raises ConfigError when the data directory belongs to another cluster, and UpstreamUnavailable
    when the directory does not say yet which cluster it belongs to and nobody else does.
    """
    kind = setup.config.upstream.kind
    if kind == "standalone":
        return await _standalone(setup, store)
    raise _missing(kind)


@asynccontextmanager
async def open_registry(
    setup: Setup, open_store: Callable[[], Awaitable[UpstreamStore]]
) -> AsyncIterator[Registry]:
    """The registry alone; `open_store` is asked where it is in the data directory.

    Raises ConfigError, and what `open_store` raises.
    """
    kind = setup.config.upstream.kind
    if kind != "standalone":
        raise _missing(kind)
    store = await open_store()
    try:
        yield NodeRegistry(store)
    finally:
        await store.close()


def _missing(kind: str) -> ConfigError:
    return ConfigError(
        f'upstream.kind = "{kind}": this binlogd has no such upstream; use "standalone"'
    )


async def _standalone(setup: Setup, store: UpstreamStore) -> Upstream:
    """There is nothing but binlogs."""
    upstream = setup.config.upstream
    tso = await ClockTso.open(store, WallClock()) if upstream.tso == "clock" else ObservedTso()
    return Upstream(
        kind="standalone",
        store=store,
        cluster=await StoredClusterIdentity.open(store, upstream.cluster_id),
        tso=tso,
        history=SchemaHistory(job_source(setup.schema_history, tls=http_client_tls(setup)), store),
        registry=NodeRegistry(store),
        txn_status=LocalTxnStatus(
            tso,
            rolls_back_abandoned=upstream.abandoned_prewrite == "rollback",
            txn_timeout_s=upstream.txn_timeout,
        ),
        skips=await SkipList.open(store, WallClock()),
    )
