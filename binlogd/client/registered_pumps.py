"""The Pumps of a registry, or of the configuration, as the members of a merge: those of a registry
come, pause, move and go as it says.

A Pump that is new tells every Drainer before it takes its first binlog; it hears "done" when it is
in the merge, or when nobody merges and whoever does so next will look at the registry first.
One that is paused is waited for, one that is offline goes when it has delivered what it had, one
that vanishes from the registry, or that the registry cannot tell of for a while, stays. An entry
whose address makes no sense is a member all the same: it holds everything, and says why, because
what that Pump receives would be lost otherwise.

Source: tidb-binlog drainer/collector.go, updateStatus and handlePumpStatusUpdate. The original
reads a Pump's address once, and drops an offline one on the spot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Set
from contextlib import aclosing
from functools import partial

import structlog

from binlogd.binlog import Pulled
from binlogd.client.pump_client import RemoteSource
from binlogd.errors import PromiseAhead, PumpUnavailable, UpstreamUnavailable
from binlogd.host.tls import ClientTls
from binlogd.ports import BinlogSource, Clock, Member, NodeStatus, Registry, SourceState
from binlogd.settings.quantities import host_and_port, shown_address
from binlogd.tso import NO_TS, Tso, physical_ms


class PumpList:
    """`Sources`: all in the merge from its beginning, none ever leaves.

    A Pump of the list that is not there yet, or no longer, holds the merge until it is.
    """

    def __init__(
        self,
        local: Sequence[BinlogSource],
        remote: Sequence[tuple[str, int]],
        cluster_id: Callable[[], Awaitable[int]],
        horizon: Horizon,
        tls: ClientTls | None = None,
    ) -> None:
        """`horizon` is told every commit_ts that another Pump has promised: a shard in this process
        that nobody writes to may then promise the same."""
        self._local, self._remote, self._cluster_id = local, remote, cluster_id
        self._source = partial(RemoteSource, tls=tls, observe=horizon.take)

    async def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        """See Sources."""
        cluster_id = await self._cluster_id()
        others = (
            self._source(shown_address(each), *each, cluster_id=cluster_id) for each in self._remote
        )
        yield [Member(source) for source in (*self._local, *others)]
        await asyncio.Event().wait()


class Horizon:
    """How far ahead a timestamp of another Pump may lie: as one that is written to this one.

    Of the wall clock, and of everything before it; `observe` is told what is believed.
    """

    def __init__(self, observe: Callable[[Tso], None], clock: Clock, *, ahead_max_s: float) -> None:
        self._observe, self._clock = observe, clock
        self._ahead_max_ms = int(ahead_max_s * 1000)
        self._newest = NO_TS

    def take(self, source: str, pulled: Pulled) -> None:
        """Takes note of a batch. Raises PromiseAhead, and then no promise of it counts."""
        newest_ms = max(self._clock.wall_ms(), physical_ms(self._newest))
        horizon_ms = newest_ms + self._ahead_max_ms
        if physical_ms(pulled.resolved_ts) >= horizon_ms:
            for each in pulled.binlogs:
                if physical_ms(each.commit_ts) >= horizon_ms:
                    raise PromiseAhead(source, each.start_ts, each.commit_ts, horizon_ms)
        self._newest = max(self._newest, pulled.resolved_ts)
        self._observe(pulled.resolved_ts)


log = structlog.get_logger(__name__)

PUMPS = "pumps"
RETRY_S = 1.0
REFRESH_S = 10.0
"""Of a Pump that waits to be taken in; it gives up sooner, and asks again."""
_STATES = {"paused": SourceState.PAUSED, "offline": SourceState.OFFLINE}
"""Those that are pausing or closing still serve what they have."""


class RegisteredPumps:
    """`Sources`: the shards of this process, and every Pump that the registry knows but this one.

    For one watcher at a time.
    """

    def __init__(
        self,
        local: Sequence[BinlogSource],
        registry: Registry,
        *,
        own_id: str,
        cluster_id: Callable[[], Awaitable[int]],
        horizon: Horizon,
        tls: ClientTls | None = None,
    ) -> None:
        """`own_id` is the Pump that `local` belongs to; `horizon` is told what others promise."""
        self._local, self._registry, self._own_id = local, registry, own_id
        self._cluster_id = cluster_id
        self._remote = partial(RemoteSource, tls=tls, observe=horizon.take)
        self._is_watched = False
        self._taken_in: Set[str] = frozenset()
        self._turn = asyncio.Event()
        self._known: dict[str, tuple[str, BinlogSource]] = {}
        self.trouble = ""
        """Why the registry cannot tell who is there; "" when it can."""

    async def refresh(self) -> None:
        """Returns when every Pump that is registered by now is in the merge, or will be in the next
        one from its beginning. Raises UpstreamUnavailable when the registry does not tell."""
        wanted = self._living(await self._registry.nodes(PUMPS))
        try:
            async with asyncio.timeout(REFRESH_S):
                while self._is_watched and not wanted <= self._taken_in:  # ends with either
                    await self._turn.wait()
        except TimeoutError:
            missing = ", ".join(sorted(wanted - self._taken_in))
            raise UpstreamUnavailable(
                f"the registry has not told the merge of {missing} in {REFRESH_S:g} s"
            ) from None

    async def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        """See Sources. A registry that cannot be read is asked again, every second."""
        cluster_id = await self._cluster_id()
        self._is_watched = True
        reported: Sequence[Member] = ()
        try:
            async with aclosing(self._lists()) as lists:
                async for nodes in lists:
                    members = [
                        *map(Member, self._local),
                        *(self._member(each, cluster_id) for each in self._others(nodes)),
                    ]
                    if members != reported:
                        reported = members
                        yield members
                    self._have_turn(self._living(nodes))  # who asks for more has taken these in
        finally:
            self._is_watched = False
            self._have_turn(frozenset())

    async def _lists(self) -> AsyncGenerator[Sequence[NodeStatus], None]:
        while True:  # until the reader stops
            try:
                async with aclosing(self._registry.watch(PUMPS)) as lists:
                    async for nodes in lists:
                        if self.trouble:
                            log.info("registry_reached")
                            self.trouble = ""
                        yield nodes
            except UpstreamUnavailable as error:
                if not self.trouble:
                    log.warning(
                        "registry_unreachable",
                        cause=str(error),
                        consequence="the pumps that are known are pulled",
                    )
                self.trouble = str(error)
            await asyncio.sleep(RETRY_S)

    def _have_turn(self, taken_in: Set[str]) -> None:
        self._taken_in = taken_in
        self._turn.set()
        self._turn = asyncio.Event()

    def _others(self, nodes: Sequence[NodeStatus]) -> Sequence[NodeStatus]:
        return [node for node in nodes if node.node_id != self._own_id]

    def _living(self, nodes: Sequence[NodeStatus]) -> Set[str]:
        return frozenset(
            node.node_id
            for node in self._others(nodes)
            if _STATES.get(node.state) is not SourceState.OFFLINE
        )

    def _member(self, node: NodeStatus, cluster_id: int) -> Member:
        state = _STATES.get(node.state, SourceState.ONLINE)
        last_ts = node.max_commit_ts if state is SourceState.OFFLINE else NO_TS
        return Member(self._source(node, cluster_id), state, last_ts)

    def _source(self, node: NodeStatus, cluster_id: int) -> BinlogSource:
        """The same object as long as the address is the same."""
        known = self._known.get(node.node_id)
        if known is not None and known[0] == node.host:
            return known[1]
        if known is not None:
            log.info("pump_moved", pump=node.node_id, before=known[0], now=node.host)
        source: BinlogSource
        try:
            source = self._remote(node.node_id, *host_and_port(node.host), cluster_id=cluster_id)
        except ValueError:
            log.warning("pump_entry_unusable", pump=node.node_id, host=node.host)
            source = _Unreachable(node.node_id, node.host)
        self._known[node.node_id] = node.host, source
        return source


class _Unreachable:
    """A Pump whose entry names no address."""

    def __init__(self, name: str, host: str) -> None:
        self.name, self._host = name, host

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """See BinlogSource. Raises PumpUnavailable."""
        raise PumpUnavailable(
            f'pump {self.name}: the registry says that it is at "{self._host}", which is no'
            " host:port; give that Pump an advertise-addr, or, if it is gone for good,"
            f" `binlogd nodes {self.name} --mark offline`"
        )
        yield  # makes this a stream
