"""Whether a Pump that is to close may go offline: whoever pulls it must have all that is in it.

A Drainer drops a Pump that is offline, and what it had not pulled is lost to it. So the Pump first
waits for the outcomes of its prewrites, then until every Drainer that is not offline has come past
the watermark. The original waits without limit; this one has a deadline, and ends as paused, which
loses nothing, when it is over.

Source: tidb-binlog pump/server.go, waitSafeToOffline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from binlogd.errors import UpstreamUnavailable
from binlogd.ports import NodeStatus
from binlogd.pump.pump import Pump
from binlogd.pump.state import NodeState
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

POLL_S = 1.0

Consumers = Callable[[], Awaitable[Sequence[NodeStatus]]]
"""Every Drainer that is known, with its position. May raise UpstreamUnavailable."""


def behind(consumers: Sequence[NodeStatus], target: Tso) -> list[NodeStatus]:
    """Who has not come to `target` yet, and does not say that it never will."""
    return [
        each
        for each in consumers
        if each.state != NodeState.OFFLINE.value and each.max_commit_ts < target
    ]


class Closing:
    """One wait for the end of everybody's need. `reason` says what it waits for."""

    def __init__(self, pump: Pump, consumers: Consumers) -> None:
        self._pump = pump
        self._consumers = consumers
        self._is_settled = False
        self._reason = ""

    @property
    def reason(self) -> str:
        """In words; "" when there is nothing to wait for any more."""
        if self._is_settled:
            return self._reason
        open_prewrites = sum(shard.open_prewrites for shard in self._pump.statistics().shards)
        if open_prewrites:
            blocked_by = self._pump.statistics().blocked_by or "they are being sorted"
            return f"{open_prewrites} transactions have no outcome: {blocked_by}"
        return "the watermark has to come past everything that was written"

    async def wait(self) -> None:
        """Returns when the Pump may go offline."""
        target = await self._pump.settle()
        self._is_settled = True
        log.info("pump_settled", max_commit_ts=target)
        while True:  # until nobody is behind
            self._reason = await self._who_needs(target)
            if not self._reason:
                return
            log.info("close_waits", reason=self._reason)
            await asyncio.sleep(POLL_S)

    async def _who_needs(self, target: Tso) -> str:
        try:
            late = behind(await self._consumers(), target)
        except UpstreamUnavailable as error:
            return f"the registry cannot be read: {error}"
        return ", ".join(
            f"drainer {each.node_id} ({each.state}) has come to {each.max_commit_ts}, not yet to"
            f" {target}"
            for each in late
        )
