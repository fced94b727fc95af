"""Pumps and drainers that belong together: what the original keeps in PD's etcd.

Source: tidb-binlog pkg/node/registry.go; the JSON of a node has the original's fields.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from binlogd.errors import ConfigError
from binlogd.ports import NodeStatus
from binlogd.upstream.store import UpstreamStore

PUMP, DRAINER = "pumps", "drainers"
"""Kinds, named as in the keys of the original."""
LOOK_AGAIN_S = 1.0
"""`binlogd nodes --mark` writes from another process, which nobody here is told of."""


class NodeRegistry:
    """The nodes of one standalone upstream. Methods raise UpstreamUnavailable."""

    def __init__(self, store: UpstreamStore) -> None:
        self._store = store
        self._changed = asyncio.Condition()

    async def register(self, node: NodeStatus) -> None:
        """Adds or updates a node. Raises ConfigError when nobody could list it."""
        if "/" in node.node_id or not node.node_id:
            raise ConfigError(f'node-id "{node.node_id}": must not be empty nor contain a slash')
        await self._store.put_node(node)
        async with self._changed:
            self._changed.notify_all()

    async def nodes(self, kind: str) -> list[NodeStatus]:
        """All of a kind, by id."""
        return await self._store.nodes(kind)

    async def node(self, kind: str, node_id: str) -> NodeStatus | None:
        """One node; None if it was never here."""
        nodes = await self.nodes(kind)
        return next((node for node in nodes if node.node_id == node_id), None)

    async def watch(self, kind: str) -> AsyncIterator[Sequence[NodeStatus]]:
        """All of a kind now, and again soon after something of them has changed."""
        told: list[NodeStatus] | None = None
        while True:  # until the reader has enough
            nodes = await self.nodes(kind)
            if nodes != told:
                told = nodes
                yield nodes
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S), self._changed:
                    await self._changed.wait()


def status_json(node: NodeStatus) -> Mapping[str, Any]:
    """A node as /status and the tools of the original show it."""
    return {
        "nodeId": node.node_id,
        "host": node.host,
        "state": node.state,
        "isAlive": False,
        "score": node.score,
        "label": None,
        "maxCommitTS": node.max_commit_ts,
        "updateTS": node.update_ts,
    }
