"""Drainers elsewhere that read this Pump: what they still need is not deleted.

A Drainer's entry in the registry says up to where everything is durable downstream. That holds
garbage collection as the Drainer of this process does; one that is offline holds nothing, one that
vanishes from the registry holds as before. Until the registry has been read nothing is deleted, and
while it cannot be read, what was known counts.

The original deletes by age alone, and counts afterwards whom it has overtaken
(tidb-binlog pump/server.go, gcBinlogFile and detectDrainerCheckpoint).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.ports import NodeStatus, Registry
from binlogd.pump.pump import Pump
from binlogd.pump.state import NodeState
from binlogd.tso import NO_TS
from binlogd.upstream.registry import DRAINER

RETRY_S = 1.0
UNREAD = "the registry, which has not said yet who reads this Pump"

log = structlog.get_logger(__name__)


class RemoteDrainers:
    """Holds a Pump's garbage collection for every Drainer but its own; `run` follows them."""

    def __init__(self, pump: Pump, registry: Registry, own_id: str) -> None:
        """`own_id` is the Drainer of this process, which speaks for itself."""
        self._caretaker, self._registry, self._own_id = pump.caretaker, registry, own_id
        self._is_reached = True
        self._caretaker.hold(UNREAD, NO_TS)

    async def run(self) -> None:
        """Until cancelled."""
        while True:  # until cancelled
            try:
                async with aclosing(self._registry.watch(DRAINER)) as lists:
                    async for drainers in lists:
                        self._take(drainers)
            except UpstreamUnavailable as error:
                if self._is_reached:
                    log.warning(
                        "drainers_unknown", cause=str(error), consequence="those known still hold"
                    )
                self._is_reached = False
            await asyncio.sleep(RETRY_S)

    def _take(self, drainers: Sequence[NodeStatus]) -> None:
        self._is_reached = True
        for each in drainers:
            if each.node_id == self._own_id:
                continue
            name = f"drainer {each.node_id}"
            if each.state == NodeState.OFFLINE.value:
                self._caretaker.release(name)
            else:
                self._caretaker.hold(name, each.max_commit_ts)
        self._caretaker.release(UNREAD)
