"""The life of the replicating half: it is paused, resumed or closed, and the Pump goes on.

Invariant. Nothing but a cancellation comes out of `run`: what the Drainer does not hold itself ends
it alone, and another one is made after a wait that grows.

A paused half keeps what it still needs from being deleted; a closed one does not, as a Drainer of
the original that is offline. Either can be resumed without a restart, which the original cannot.

Source: tidb-binlog drainer/server.go, ApplyAction and Close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.drainer import Drainer
from binlogd.drainer.statistics import DrainerState, DrainerStatistics
from binlogd.errors import ConfigError, Failure, Refused, Unavailable, Unforeseen
from binlogd.host.clock import is_set_within
from binlogd.pump.state import Action, NodeState, asked, settled
from binlogd.telemetry.faults import apart, unforeseen


class FirstContact:
    """Waits for something to replicate, and tries the downstream meanwhile until it succeeds.

    A Drainer does the same itself; but it begins when its cluster is known, which may be TiDB's
    first write: a wrong password would wait for that."""

    def __init__(
        self,
        ready: Callable[[], Coroutine[Any, Any, object]],
        reach: Callable[[], Coroutine[Any, Any, object]],
        backoff: Backoff,
    ) -> None:
        """`ready` returns when there is something to replicate."""
        self._ready, self._reach, self._backoff = ready, reach, backoff
        self._failure: Failure | None = None
        self._again_at_s = 0.0

    async def run(self) -> None:
        """Returns when there is something to replicate."""
        try:
            async with asyncio.TaskGroup() as group:
                tried = group.create_task(self._try(), name="first contact")
                await self._ready()
                tried.cancel()
        finally:
            self._failure = None
            self._backoff.reset()

    async def _try(self) -> None:
        while True:  # until it is reached
            try:
                await self._reach()
            except (ConfigError, Unavailable) as error:
                wait_s = self._backoff.next_s()
                self._failure = Failure.of(error)
                self._again_at_s = asyncio.get_running_loop().time() + wait_s
                log.warning("downstream_unreachable", cause=str(error), wait_s=wait_s)
                await asyncio.sleep(wait_s)
            else:
                self._failure = None
                return

    def shown(self, now: DrainerStatistics) -> DrainerStatistics:
        """How a Drainer stands that has not begun, with what keeps it from writing."""
        if self._failure is None:
            return now
        return replace(
            now,
            state=DrainerState.RETRYING,
            failure=self._failure,
            failed_in_a_row=self._backoff.attempts,
            retry_in_s=max(0.0, self._again_at_s - asyncio.get_running_loop().time()),
        )


log = structlog.get_logger(__name__)


class Replication:
    """Makes a Drainer for each stretch between two pauses. `run` it, and `end` it once."""

    def __init__(
        self,
        make: Callable[[], Drainer],
        release: Callable[[], None],
        first: FirstContact,
        backoff: Backoff,
    ) -> None:
        """`release` gives up what was kept for a half that is closed."""
        self._make, self._release, self._first, self._backoff = make, release, first, backoff
        self._fault: Unforeseen | None = None
        self._faults = 0
        self._drainer = make()
        self.state = NodeState.ONLINE
        """As operators and the registry see it."""
        self._asked, self._resumed = asyncio.Event(), asyncio.Event()
        self._ending, self._ended = asyncio.Event(), asyncio.Event()
        self._is_renewing = False

    def statistics(self) -> DrainerStatistics:
        """Of the Drainer that runs, or ran last."""
        now, fault = self._first.shown(self._drainer.statistics()), self._fault
        if not self._faults:
            return now
        now = replace(now, unforeseen_errors=now.unforeseen_errors + self._faults)
        if fault is None:
            return now
        return replace(now, state=DrainerState.STUCK, failure=Failure.of(fault))

    def request(self, action: Action) -> None:
        """Pause or close, after what was pulled is applied. Raises Refused unless online."""
        self.state = asked(self.state, action)
        log.info("drainer_state_changed", state=self.state.value)
        self._is_renewing = False
        self._asked.set()

    def renew(self) -> None:
        """Lets another Drainer go on, made anew, after what this one pulled is applied. One that
        rests is made anew when it is resumed."""
        if self.state is NodeState.ONLINE:
            self._is_renewing = True
            self._asked.set()

    def resume(self) -> None:
        """Goes on from the checkpoint; one that is stuck or waits tries again at once. Raises
        Refused where it is at work."""
        waits = DrainerState.STUCK, DrainerState.RETRYING
        if self.state is NodeState.ONLINE and self.statistics().state in waits:
            log.info("drainer_asked_to_retry")
            self.retry()
            return
        if self.state not in (NodeState.PAUSED, NodeState.OFFLINE):
            raise Refused(f"cannot resume: the drainer is {self.state.value}")
        self._drainer = self._make()
        self.state = NodeState.ONLINE
        log.info("drainer_state_changed", state=self.state.value)
        self._resumed.set()

    def retry(self) -> None:
        """Lets a stuck Drainer try again."""
        self._drainer.retry()

    async def run(self) -> None:
        """Replicates until `end`."""
        try:
            while not self._ending.is_set():
                try:
                    await apart(self._stretch)
                    self._backoff.reset()
                except Exception as error:  # noqa: BLE001 - the bulkhead
                    await self._wait_after(unforeseen("replication", error))
        finally:
            self.state = settled(self.state)
            self._ended.set()

    async def _stretch(self) -> None:
        """From where it goes on to where it goes on again."""
        if self._fault is not None:  # the one before did not come to its end
            self._drainer, self._fault = self._make(), None
        self._resumed.clear()
        if await self._is_ready():
            async with asyncio.TaskGroup() as group:
                group.create_task(self._drainer.run(), name="drainer")
                group.create_task(self._drain_when_asked(), name="drainer's end")
        if self._is_renewing and not self._ending.is_set():
            self._drainer = self._make()
            self._is_renewing = False
            self._asked.clear()
            log.info("drainer_renewed")
            return
        if self.state is NodeState.CLOSING:
            self._release()
        self.state = settled(self.state)
        log.info("drainer_state_changed", state=self.state.value)
        self._asked.clear()
        if not self._ending.is_set():
            await self._resumed.wait()

    async def _wait_after(self, fault: Unforeseen) -> None:
        self._fault = fault
        self._faults += 1
        wait_s = self._backoff.next_s()
        log.error("replication_stuck", cause=str(fault), wait_s=wait_s)
        await is_set_within(self._asked, wait_s)

    async def end(self) -> None:
        """Ends `run`, after what was pulled is applied."""
        self._ending.set()
        self._asked.set()
        self._resumed.set()
        await self._ended.wait()

    async def _is_ready(self) -> bool:
        """Waits until there is something to replicate, or it is to rest before; which of them."""
        async with asyncio.TaskGroup() as group:
            ready = group.create_task(self._first.run(), name="something to replicate")
            asked = group.create_task(self._asked.wait(), name="drainer's end")
            ready.add_done_callback(lambda _: asked.cancel())
            asked.add_done_callback(lambda _: ready.cancel())
        return not ready.cancelled()

    async def _drain_when_asked(self) -> None:
        await self._asked.wait()
        await self._drainer.drain()
