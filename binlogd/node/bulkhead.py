"""What works beside the Pump may fail: it is begun again, and receiving goes on.

Invariant. Nothing but a cancellation comes out of `keep`. Why: an exception in one task of a group
ends the others, and the Pump is one of them; TiDB would be refused writes for the sake of a report.
The waits grow, so that a part that fails at once is no load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

import msgspec
import structlog

from binlogd.drainer.backoff import Backoff
from binlogd.errors import BinlogdError
from binlogd.status import StuckPart
from binlogd.telemetry.faults import apart, named
from binlogd.telemetry.logs import Seldom

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
HEALED_S = 120.0
"""After a fault: a part that has worked for so long is well again."""

TRACEBACK_EVERY_S = 60.0
"""Of one route; every fault counts."""

log = structlog.get_logger(__name__)


Part = tuple[str, Callable[[], Awaitable[None]]]
"""Its name, and what begins it."""


class Fault(msgspec.Struct):
    """The last one of a part."""

    error: str
    at_s: float
    count: int = 1


class Bulkhead:
    """Keeps the parts of one node going, and says which of them failed."""

    def __init__(self, rng: Random, first_wait_s: float = FIRST_WAIT_S) -> None:
        self._rng, self._first_wait_s = rng, first_wait_s
        self._faults: dict[str, Fault] = {}
        self._seldom: dict[str, Seldom] = {}

    def start(
        self, group: asyncio.TaskGroup, part: str, run: Callable[[], Awaitable[None]]
    ) -> asyncio.Task[None]:
        """`keep` as a task of a group."""
        return group.create_task(self.keep(part, run), name=part)

    async def keep(self, part: str, run: Callable[[], Awaitable[None]]) -> None:
        """Runs a part until it ends by itself; begins it again when it fails."""
        backoff = Backoff(self._rng, first_s=self._first_wait_s, max_s=LONGEST_WAIT_S)
        clock = asyncio.get_running_loop().time
        while True:  # until it ends, or is cancelled
            began_s = clock()
            try:
                return await apart(run)
            except Exception as error:  # noqa: BLE001 - it is begun again
                cause = self.failed(part, error)
            if clock() - began_s > HEALED_S:
                backoff.reset()
            wait_s = backoff.next_s()
            log.error("part_restarted", part=part, cause=str(cause), wait_s=wait_s)
            await asyncio.sleep(wait_s)

    def route_failed(self, route: str, error: Exception) -> BinlogdError:
        """`failed`, of what a page asks for every second: few tracebacks."""
        seldom = self._seldom.setdefault(route, Seldom(TRACEBACK_EVERY_S))
        is_logged = seldom.due(asyncio.get_running_loop().time()) is not None
        return self.failed(route, error, is_logged=is_logged)

    def failed(self, part: str, error: Exception, *, is_logged: bool = True) -> BinlogdError:
        """Takes note of a fault, in the log too if `is_logged`; what to say of it."""
        cause = named(part, error, is_logged=is_logged)
        before = self._faults.get(part)
        now_s = asyncio.get_running_loop().time()
        self._faults[part] = Fault(str(cause), now_s, before.count + 1 if before else 1)
        return cause

    def stuck(self) -> Sequence[StuckPart]:
        """The parts that failed lately."""
        since_s = asyncio.get_running_loop().time() - HEALED_S
        return [
            StuckPart(part, fault.error, fault.count)
            for part, fault in sorted(self._faults.items())
            if fault.at_s > since_s
        ]

    def counts(self) -> Mapping[str, int]:
        """Faults by part, since the start."""
        return {part: fault.count for part, fault in sorted(self._faults.items())}
