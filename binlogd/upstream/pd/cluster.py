"""Whose binlogs these are, as PD says it; the data directory is held to that."""

from __future__ import annotations

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
    Raises ConfigError when PD is another cluster's than the directory or the configuration, and
    UpstreamUnavailable when nobody says whose it is.
    """
    identity = await StoredClusterIdentity.open(store, configured)
    try:
        is_known = identity.cluster_id is not None
        told = await client.cluster_id(client.limits.call_s if is_known else None)
    except UpstreamUnavailable as error:
        if identity.cluster_id is None:
            raise
        log.warning("cluster_not_confirmed", cluster_id=identity.cluster_id, cause=str(error))
        client.expect(identity.cluster_id)
        return identity
    kept = await identity.adopt(told)
    if kept != told:
        whose = "upstream.cluster-id is" if configured else "this data directory holds binlogs of"
        raise ConfigError(
            f"upstream.pd-urls: this PD is of cluster {told}, but {whose} {kept}; name the PD of"
            " that cluster, or use another data-dir"
        )
    return identity
