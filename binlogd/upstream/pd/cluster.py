"""Whose binlogs these are, as PD says it; the data directory is held to that."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from binlogd.errors import ConfigError, UpstreamUnavailable
from binlogd.upstream.cluster import StoredClusterIdentity
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.store import UpstreamStore

log = structlog.get_logger(__name__)


async def open_cluster(
    store: UpstreamStore, client: PdClient, configured: int
) -> StoredClusterIdentity:
    """The cluster of the data directory, which is PD's; from then on `client` accepts no other PD.

    A directory that knows its cluster is opened without PD too, so that a restart needs nobody.
    Nobody knows it yet where a binlogd stands in for PD that no TiDB has written to: `ToldCluster`.
    Raises ConfigError when PD is another cluster's than the directory or the configuration, and
    UpstreamUnavailable when nobody says whose it is.
    """
    identity = await StoredClusterIdentity.open(store, configured)
    known = identity.cluster_id
    try:
        told = await client.cluster_id(client.limits.call_s if known is not None else None)
    except UpstreamUnavailable as error:
        if known is None:
            raise
        log.warning("cluster_not_confirmed", cluster_id=known, cause=str(error))
        client.expect(known)
        return identity
    if client.is_untold:
        if known is not None:
            client.expect(known)
        return identity
    kept = await identity.adopt(told)
    if kept != told:
        whose = "upstream.cluster-id is" if configured else "this data directory holds binlogs of"
        raise ConfigError(
            f"upstream.pd-urls: this PD is of cluster {told}, but {whose} {kept}; name the PD of"
            " that cluster, or use another data-dir"
        )
    return identity


class ToldCluster:
    """Asks on where `open_cluster` was told nothing, until PD or a writer of ours says it."""

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
                told = await self._client.cluster_id()
                if not self._client.is_untold:
                    await self._identity.adopt(told)
        self._client.expect(self._identity.cluster_id)

    async def close(self) -> None:
        """Holds nothing."""
