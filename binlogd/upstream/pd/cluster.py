"""Whose binlogs these are, as PD says it; the data directory is held to that. And what PD keeps for
this node."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import structlog

from binlogd.errors import ConfigError, UpstreamUnavailable
from binlogd.status import UpstreamPart
from binlogd.tso import NO_TS, Tso
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.store import UpstreamStore

log = structlog.get_logger(__name__)


async def open_cluster(
    store: UpstreamStore, client: PdClient, configured: int
) -> StoredClusterIdentity:
    """The cluster of the data directory, which is PD's; from then on `client` accepts no other PD.

    A directory that knows its cluster is opened without PD too, so that a restart needs nobody.
    Nobody knows it yet where a binlogd stands in for PD that no TiDB has written to: see
    `AwaitedCluster`. Raises ConfigError when PD is another cluster's than the directory or the
    configuration, and UpstreamUnavailable when nobody says whose it is.
    """
    identity = await StoredClusterIdentity.open(store, configured)
    known = identity.cluster_id
    try:
        cluster_id = await client.cluster_id(client.limits.call_s if known is not None else None)
    except UpstreamUnavailable as error:
        if known is None:
            raise
        log.warning("cluster_not_confirmed", cluster_id=known, cause=str(error))
        client.expect(known)
        return identity
    if client.has_no_cluster:
        if known is not None:
            client.expect(known)
        return identity
    kept = await identity.adopt(cluster_id)
    if kept != cluster_id:
        whose = "upstream.cluster-id is" if configured else "this data directory holds binlogs of"
        raise ConfigError(
            f"upstream.pd-urls: this PD is of cluster {cluster_id}, but {whose} {kept}; name the PD"
            " of that cluster, or use another data-dir"
        )
    return identity


class AwaitedCluster:
    """Asks on where `open_cluster` was answered with none, until PD or a writer of ours says it."""

    def __init__(self, identity: StoredClusterIdentity, client: PdClient) -> None:
        self._identity, self._client = identity, client

    async def run(self) -> None:
        """Ends when the cluster is known."""
        if self._identity.cluster_id is None:
            log.warning(
                "cluster_id_waited_for",
                cause="the binlogd at upstream.pd-urls, which stands in for PD, was told none yet",
                todo="let a TiDB write to it, or set upstream.cluster-id on each node",
            )
        while self._identity.cluster_id is None:  # until somebody writes
            await asyncio.sleep(self._client.limits.pause_s_max)
            with suppress(UpstreamUnavailable):  # the client shows that by itself
                cluster_id = await self._client.cluster_id()
                if not self._client.has_no_cluster:
                    await self._identity.adopt(cluster_id)
        self._client.expect(self._identity.cluster_id)


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """In seconds."""

    ttl_s: int = 300
    renew_s: float = 150.0
    retry_s: float = 1.0


class GcHold:
    """A lease at PD, from the first `keep_from` on: it keeps the cluster from collecting what a
    Drainer may read again, its schema as of the checkpoint. Source: tidb-binlog drainer/server.go,
    updateGCSafePoint; drainer/pd.go: five minutes, renewed twice in that time, and left to run out
    by itself when the Drainer ends."""

    def __init__(self, pd: PdClient, service: str, limits: HoldLimits | None = None) -> None:
        """`service` is the name at PD; one for each node."""
        self._pd, self._service, self._limits = pd, service, limits or HoldLimits()
        self._ts = NO_TS
        self._is_wanted = asyncio.Event()
        self._renewed = self._failed = 0
        self._trouble = ""

    def keep_from(self, ts: Tso) -> None:
        """What lies above `ts` is needed; told to PD with the next renewal, the first at once."""
        self._ts = max(self._ts, ts)
        if self._ts:
            self._is_wanted.set()

    async def run(self) -> None:
        """Renews the lease, until cancelled; a restart before it runs out finds everything."""
        await self._is_wanted.wait()
        while True:  # until cancelled
            is_held = await self._renew()
            await asyncio.sleep(self._limits.renew_s if is_held else self._limits.retry_s)

    def statistics(self) -> UpstreamPart:
        """How it stands."""
        return UpstreamPart(
            name="gc hold",
            trouble=self._trouble,
            requests=self._renewed + self._failed,
            errors=self._failed,
        )

    async def _renew(self) -> bool:
        ts = self._ts
        try:
            lowest = await self._pd.hold_gc(self._service, ts, self._limits.ttl_s)
        except UpstreamUnavailable as error:
            self._failed += 1
            self._trouble = str(error)
            log.warning("gc_hold_failed", ts=ts, cause=str(error))
            return False
        self._renewed += 1
        self._trouble = ""
        if lowest > ts:
            self._trouble = (
                f"PD collects up to {lowest} already, above the checkpoint {ts}: a start from there"
                " reads the DDL history instead of the tables"
            )
            log.warning("gc_hold_late", ts=ts, collected_up_to=lowest)
        return True
