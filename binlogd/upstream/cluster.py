"""Whose binlogs these are: the cluster id of the configuration, or else of the first writer."""

from __future__ import annotations

import asyncio

import structlog

from binlogd.errors import ConfigError
from binlogd.upstream.store import UpstreamStore

log = structlog.get_logger(__name__)

CLUSTER_ID = "cluster_id"


class StoredClusterIdentity:
    """Decided once for a data directory, and kept in it."""

    def __init__(self, store: UpstreamStore, cluster_id: int | None) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._known = asyncio.Event()
        if cluster_id is not None:
            self._known.set()

    @classmethod
    async def open(cls, store: UpstreamStore, configured: int) -> StoredClusterIdentity:
        """`configured` 0 leaves it to the first writer.

        Raises ConfigError when the data directory belongs to another cluster.
        """
        if not configured:
            return cls(store, await store.fact(CLUSTER_ID))
        kept = await store.put_fact_once(CLUSTER_ID, configured)
        if kept != configured:
            raise ConfigError(
                f"upstream.cluster-id is {configured}, but this data directory holds binlogs of"
                f" cluster {kept}; use another data-dir, or remove the key"
            )
        return cls(store, kept)

    @property
    def cluster_id(self) -> int | None:
        """None until the first writer has said it."""
        return self._cluster_id

    async def adopt(self, cluster_id: int) -> int:
        """Keeps it durably if none is known; returns the one that counts from now on."""
        if self._cluster_id is None:
            kept = await self._store.put_fact_once(CLUSTER_ID, cluster_id)
            if self._cluster_id is None:
                log.info("cluster_adopted", cluster_id=kept)
            self._cluster_id = kept
            self._known.set()
        return self._cluster_id

    async def wait_known(self) -> int:
        """The cluster id, as soon as the first writer has said it."""
        await self._known.wait()
        assert self._cluster_id is not None
        return self._cluster_id
