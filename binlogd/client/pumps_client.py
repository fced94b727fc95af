"""Writing to many Pumps as a TiDB does: one for a transaction, another if that does not take it.

A Prewrite goes where the strategy says, is tried elsewhere while its time lasts, and at last once
at every Pump that is online. Its Commit or Rollback goes to the same Pump, whatever became of it,
because only there the two can meet. A Pump that fails too often is left alone until a probe passes.

Source: tidb pkg/tidb-binlog/pump_client/{client,pump}.go.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from binlogd.binlog import BinlogType
from binlogd.client.directory import ONLINE, Directory, PumpNode
from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.client.strategy import Candidate, Selector, Strategy
from binlogd.errors import PumpUnavailable, Refused
from binlogd.host.tls import ClientTls
from binlogd.wire import peek

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PumpsLimits:
    """The original's constants, and `each` for one Pump."""

    each: ClientLimits = field(default_factory=ClientLimits)
    probe_every_s: float = 30.0
    look_every_s: float = 5.0
    errors_max: int = 10
    """In a row; one more, and the Pump is not chosen until a probe passes."""
    open_max: int = 1 << 20
    """Prewrites whose outcome has not come; beyond that the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class PumpView:
    """One Pump as the client sees it."""

    node_id: str
    state: str
    is_available: bool
    score: int
    in_flight: int
    written: int
    errors: int


@dataclass(slots=True)
class _Known:
    node: PumpNode
    client: PumpClient
    is_available: bool
    errors: int = 0
    in_flight: int = 0
    written: int = 0

    @property
    def is_usable(self) -> bool:
        return self.node.state == ONLINE and self.is_available


class PumpsClient:
    """All Pumps of one cluster. `run` it beside the writes, so that it follows what changes:

    async with PumpsClient(directory, cluster_id=1) as client, asyncio.TaskGroup() as group:
        running = group.create_task(client.run())
        await client.write(payload)
        running.cancel()
    """

    def __init__(
        self,
        directory: Directory,
        *,
        cluster_id: int,
        strategy: Strategy = Strategy.RANGE,
        limits: PumpsLimits | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self._directory = directory
        self._cluster_id = cluster_id
        self._limits = limits or PumpsLimits()
        self._selector = Selector(strategy)
        self._pumps: dict[str, _Known] = {}
        self._vanished: set[str] = set()
        self._wrote: OrderedDict[int, str] = OrderedDict()

    async def __aenter__(self) -> PumpsClient:
        """Asks for the Pumps. Raises PumpUnavailable when there is none."""
        await self.look()
        if not self._pumps:
            raise PumpUnavailable("no pump found")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends the connections and what is in flight on them."""
        for known in self._pumps.values():
            known.client.close()

    async def run(self) -> None:
        """Follows the directory and probes what is not available, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_looking(), name="pumps")
            group.create_task(self._keep_probing(), name="probes")

    async def write(self, payload: bytes) -> None:
        """Returns when a Pump has said that the binlog is durable.

        Raises Refused when none will ever take it, or PumpUnavailable when its time is over. A
        TiDB does not look at what becomes of an outcome: a Pump that never gets one asks for it.
        """
        head = peek.peek(payload)
        if head.tp == BinlogType.PREWRITE:
            pump = await self._write_prewrite(payload, head.start_ts)
            self._remember(head.start_ts, pump)
        else:
            await self._write_outcome(payload, head.start_ts)
            self._wrote.pop(head.start_ts, None)

    def use(self, strategy: Strategy) -> None:
        """From the next transaction on; those that are open stay where they are."""
        self._selector = Selector(strategy)

    async def look(self) -> None:
        """Asks the directory now. Raises PumpUnavailable."""
        nodes = {node.node_id: node for node in await self._directory.pumps()}
        before = [known.node.node_id for known in self._usable()]
        for name in sorted(self._pumps.keys() - nodes.keys()):
            self._vanished.add(name)  # outcomes still go there: it may only be restarting
            self._set_available(self._pumps[name], is_available=False)
        for name, node in nodes.items():
            known = self._pumps.get(name)
            if known is None or known.node.address != node.address:
                if known is not None:
                    known.client.close()
                self._pumps[name] = _Known(node, self._dial(node), node.state == ONLINE)
            else:
                if node.state != known.node.state or name in self._vanished:
                    self._set_available(known, is_available=node.state == ONLINE)
                known.node = node
            self._vanished.discard(name)
        if before != [known.node.node_id for known in self._usable()]:
            self._selector.restart()

    async def probe(self) -> None:
        """Asks every Pump that is online and not available whether it takes binlogs."""
        for known in list(self._pumps.values()):
            if known.node.state == ONLINE and not known.is_available:
                try:
                    await known.client.probe()
                except (PumpUnavailable, Refused) as error:
                    log.debug("probe_failed", pump=known.node.node_id, cause=str(error))
                else:
                    self._set_available(known, is_available=True)

    def statistics(self) -> Sequence[PumpView]:
        """How each Pump stands, by id; cheap."""
        return [
            PumpView(
                node_id=name,
                state=known.node.state,
                is_available=known.is_usable,
                score=known.node.score,
                in_flight=known.in_flight,
                written=known.written,
                errors=known.errors,
            )
            for name, known in sorted(self._pumps.items())
        ]

    # --- writing -----------------------------------------------------------------------------

    async def _write_prewrite(self, payload: bytes, start_ts: int) -> _Known:
        limits, clock = self._limits.each, asyncio.get_running_loop().time
        until_s = clock() + limits.prewrite_retry_s
        tries_min = len(self._usable())
        last, retries = "no available pump to write binlog", 0
        while known := self._chosen(start_ts, retries):
            try:
                await self._send(known, payload)
            except PumpUnavailable as error:
                last = str(error)
            else:
                return known
            retries += 1
            if clock() > until_s and retries > tries_min:
                break
            self._set_failing_aside()
            await asyncio.sleep(limits.prewrite_retry_interval_s)
        return await self._write_anywhere(payload, last)

    async def _write_outcome(self, payload: bytes, start_ts: int) -> None:
        """To the Pump of its prewrite, which may have another address at the next attempt."""
        limits, clock = self._limits.each, asyncio.get_running_loop().time
        until_s = clock() + limits.outcome_retry_s
        while True:  # until it is durable, refused, or its time is over
            known = self._pump_of(start_ts)
            try:
                await known.client.attempt(payload)
            except PumpUnavailable as error:
                if clock() + limits.outcome_retry_interval_s >= until_s:
                    raise
                log.info("outcome_retried", pump=known.node.node_id, cause=str(error))
                await asyncio.sleep(limits.outcome_retry_interval_s)
            else:
                known.written += 1
                return

    async def _write_anywhere(self, payload: bytes, last: str) -> _Known:
        """Once more at every Pump that is online, available or not."""
        for known in [each for each in self._in_order() if each.node.state == ONLINE]:
            try:
                await self._send(known, payload)
            except PumpUnavailable as error:
                last = str(error)
            else:
                self._set_available(known, is_available=True)
                return known
        self._set_failing_aside()
        raise PumpUnavailable(f"write binlog failed, the last error {last}")

    async def _send(self, known: _Known, payload: bytes) -> None:
        known.in_flight += 1
        try:
            await known.client.attempt(payload)
        except PumpUnavailable:
            known.errors += 1
            raise
        else:
            known.errors = 0
            known.written += 1
        finally:
            known.in_flight -= 1

    def _chosen(self, start_ts: int, retries: int) -> _Known | None:
        candidates = [
            Candidate(each.node.node_id, each.node.score, each.in_flight) for each in self._usable()
        ]
        chosen = self._selector.choose(candidates, start_ts=start_ts, retries=retries)
        return self._pumps[chosen.node_id] if chosen else None

    def _pump_of(self, start_ts: int) -> _Known:
        """Where the prewrite of a transaction is. Raises Refused when nobody here knows."""
        name = self._wrote.get(start_ts)
        if name is None and len(self._pumps) == 1:
            (name,) = self._pumps  # wherever it was written, it was there
        if name is None:
            raise Refused(
                f"the prewrite of start_ts {start_ts} was not written by this client; the pump that"
                " has it will ask for its outcome"
            )
        return self._pumps[name]

    def _remember(self, start_ts: int, known: _Known) -> None:
        self._wrote[start_ts] = known.node.node_id
        while len(self._wrote) > self._limits.open_max:
            self._wrote.popitem(last=False)

    # --- who is available --------------------------------------------------------------------

    def _in_order(self) -> list[_Known]:
        return [known for _, known in sorted(self._pumps.items())]

    def _usable(self) -> list[_Known]:
        return [known for known in self._in_order() if known.is_usable]

    def _set_failing_aside(self) -> None:
        for known in self._usable():
            if known.errors > self._limits.errors_max:
                self._set_available(known, is_available=False)

    def _set_available(self, known: _Known, *, is_available: bool) -> None:
        if known.is_available != is_available:
            log.info("pump_availability", pump=known.node.node_id, is_available=is_available)
            known.is_available, known.errors = is_available, 0
            self._selector.restart()

    def _dial(self, node: PumpNode) -> PumpClient:
        host, port = (node.address, 0) if not isinstance(node.address, tuple) else node.address
        return PumpClient(
            host, port, cluster_id=self._cluster_id, limits=self._limits.each, tls=self._tls
        )

    async def _keep_looking(self) -> None:
        while True:  # until cancelled
            await asyncio.sleep(self._limits.look_every_s)
            try:
                await self.look()
            except PumpUnavailable as error:
                log.warning("pumps_not_found", cause=str(error))

    async def _keep_probing(self) -> None:
        while True:  # until cancelled
            await asyncio.sleep(self._limits.probe_every_s)
            await self.probe()
