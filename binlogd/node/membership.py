"""This node in the registry: announced before it serves, refreshed while it lives.

A Pump that is new, or was offline, is in no Drainer's merge: before it takes its first binlog,
every Drainer that is online has looked at the registry anew. After any other end the Drainers have
kept it, and wait for it.

Source: tidb-binlog pump/server.go, Start; pump/node.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import msgspec
import structlog

from binlogd.client.notify import notify
from binlogd.errors import ConfigError, DrainerUnavailable, UpstreamUnavailable
from binlogd.host.tls import ClientTls
from binlogd.ports import NodeStatus, Registry
from binlogd.pump.state import NodeState
from binlogd.settings.quantities import listen_address
from binlogd.upstream.entry import DRAINER, PUMP, node_key

log = structlog.get_logger(__name__)

NOTIFY_S = 10.0
"""For all Drainers together."""
REGISTRY_PAUSE_S_MAX = 8.0


class Identity(msgspec.Struct, frozen=True):
    """What others know a process by. The halves have different ids: a path says which is meant."""

    pump: str
    drainer: str
    host: str
    """`host:port` that others reach."""


async def mark(
    registry: Registry, node_id: str, state: str, kinds: Sequence[str] = (PUMP, DRAINER)
) -> Sequence[NodeStatus]:
    """Sets what the registry says of a node; the node itself hears nothing of it.

    One that lives puts it right with its next heartbeat. Raises ConfigError, UpstreamUnavailable.
    Source: tidb-binlog binlogctl/nodes.go, UpdateNodeState.
    """
    if state not in [each.value for each in NodeState]:
        known = ", ".join(each.value for each in NodeState)
        raise ConfigError(f"state {state} is illegal: expected {known}")
    found = [await registry.node(kind, node_id) for kind in kinds]
    marked = [replace(node, state=state) for node in found if node is not None]
    if not marked:
        raise not_registered(node_id, kinds)
    for node in marked:
        await registry.register(node)
    return marked


def not_registered(node_id: str, kinds: Sequence[str]) -> ConfigError:
    """In the words of the original's registry. Source: tidb-binlog pkg/etcd, Get."""
    keys = ", ".join(node_key(kind, node_id).decode() for kind in kinds)
    return ConfigError(
        f"key {keys} in etcd not found: {node_id} is not in the registry; `binlogd nodes` lists who"
        " is"
    )


class Membership:
    """The entries of one process: `entries` gives them as they are now, a Pump's first."""

    def __init__(
        self,
        registry: Registry,
        entries: Callable[[], Sequence[NodeStatus]],
        tls: ClientTls | None = None,
    ) -> None:
        """With `tls`, Drainers are spoken to by it."""
        self.trouble = ""  # why the entries could not be written the last time
        self._tls = tls
        self._registry = registry
        self._entries = entries
        self._is_new: bool | None = None

    async def announce(self) -> None:
        """Registers this node, and tells the Drainers of its Pump when they cannot know it.

        May be called again when it failed: what was there before this start was looked at once,
        since an attempt whose answer was lost may have left an entry. Raises ConfigError when one
        of them does not answer (this node is then registered as offline), UpstreamUnavailable when
        there is no registry.
        """
        entries = self._entries()
        is_new = await self._is_unknown(entries)
        await self._registry.keep(entries)
        if not is_new:
            return
        pump = entries[0]
        try:
            async with asyncio.timeout(NOTIFY_S):
                await self._tell_drainers({entry.node_id for entry in entries})
        except (DrainerUnavailable, TimeoutError) as error:
            paused = [replace(entry, state=NodeState.PAUSED.value) for entry in entries[1:]]
            # nobody is to be told of the rest of this process either
            await self._registry.leave([replace(pump, state=NodeState.OFFLINE.value), *paused])
            raise ConfigError(
                f"fail to notify all living drainer: {error or f'no answer in {NOTIFY_S:g} s'};"
                " bring it back, or, if it is dead, `binlogd nodes ID --mark paused`"
            ) from error

    async def has_to_tell(self) -> bool:
        """Whether there are Drainers that `announce` has to tell. Raises UpstreamUnavailable."""
        entries = self._entries()
        return await self._is_unknown(entries) and bool(
            await self._drainers_online({entry.node_id for entry in entries})
        )

    async def patiently(
        self, act: Callable[[], Awaitable[None]], say: Callable[[str], Awaitable[None]]
    ) -> None:
        """Has something done that the registry is needed for, again and again until it answers: a
        start while PD is away goes on when it is back. `say` is told why that takes long."""
        pause_s = 1.0
        while True:  # until it answers, or the process is told to end
            try:
                await act()
            except UpstreamUnavailable as error:
                log.warning("registry_awaited", cause=str(error), next_try_s=pause_s)
                await say(f"the registry does not answer: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, REGISTRY_PAUSE_S_MAX)
            else:
                return

    async def keep_fresh(self, interval_s: float) -> None:
        """Writes the entries again and again, until cancelled."""
        while True:  # until cancelled
            await self.refresh()
            await asyncio.sleep(interval_s)

    async def refresh(self) -> None:
        """Writes the entries as they are now, and looks for Pumps that have vanished; a registry
        that cannot be reached is logged once for each cause."""
        trouble = ""
        try:
            await self._registry.keep(self._entries())
            await self._registry.pause_the_vanished()
        except UpstreamUnavailable as error:
            trouble = str(error)
        if trouble not in ("", self.trouble):
            log.warning("heartbeat_failed", cause=trouble)
        self.trouble = trouble

    async def leave(self) -> None:
        """Writes the entries for the last time; a registry that cannot be reached is logged."""
        try:
            await self._registry.leave(self._entries())
        except UpstreamUnavailable as error:
            log.warning("last_words_unheard", cause=str(error))

    async def others(self, kind: str) -> Sequence[NodeStatus]:
        """The registered nodes of a kind that are not this process. Raises UpstreamUnavailable."""
        own = {entry.node_id for entry in self._entries() if entry.kind == kind}
        return [node for node in await self._registry.nodes(kind) if node.node_id not in own]

    async def _is_unknown(self, entries: Sequence[NodeStatus]) -> bool:
        """Whether the Drainers cannot know the Pump among these."""
        pump = entries[0]
        if pump.kind != PUMP:
            return False
        if self._is_new is None:
            before = await self._registry.node(PUMP, pump.node_id)
            self._is_new = before is None or before.state == NodeState.OFFLINE.value
        return self._is_new

    async def _drainers_online(self, own: set[str]) -> Sequence[NodeStatus]:
        return [
            drainer
            for drainer in await self._registry.nodes(DRAINER)
            if drainer.state == NodeState.ONLINE.value and drainer.node_id not in own
        ]

    async def _tell_drainers(self, own: set[str]) -> None:
        for drainer in await self._drainers_online(own):
            try:
                host, port = listen_address(drainer.host)
            except ConfigError as error:
                raise DrainerUnavailable(f"drainer {drainer.node_id}: {error}") from error
            await notify(drainer.node_id, host, port, tls=self._tls)
            log.info("drainer_notified", drainer=drainer.node_id, host=drainer.host)
