"""The life of the replicating half: it is paused, resumed or closed, and the Pump goes on.

A paused half keeps what it still needs from being deleted; a closed one does not, as a Drainer of
the original that is offline. Either can be resumed without a restart, which the original cannot.

Source: tidb-binlog drainer/server.go, ApplyAction and Close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from binlogd.drainer.drainer import Drainer, DrainerStatistics
from binlogd.errors import Refused
from binlogd.pump.state import Action, NodeState, asked, settled

log = structlog.get_logger(__name__)


class Replication:
    """Makes a Drainer for each stretch between two pauses. `run` it, and `end` it once."""

    def __init__(
        self,
        make: Callable[[], Drainer],
        release: Callable[[], None],
        ready: Callable[[], Coroutine[Any, Any, object]],
    ) -> None:
        """`ready` returns when there is something to replicate; `release` gives up what was kept
        for a half that is closed."""
        self._make, self._release, self._ready = make, release, ready
        self._drainer = make()
        self._state = NodeState.ONLINE
        self._asked, self._resumed = asyncio.Event(), asyncio.Event()
        self._ending, self._ended = asyncio.Event(), asyncio.Event()
        self._is_renewing = False

    @property
    def state(self) -> NodeState:
        """As operators and the registry see it."""
        return self._state

    def statistics(self) -> DrainerStatistics:
        """Of the Drainer that runs, or ran last."""
        return self._drainer.statistics()

    def request(self, action: Action) -> None:
        """Pause or close, after what was pulled is applied. Raises Refused unless online."""
        self._state = asked(self._state, action)
        log.info("drainer_state_changed", state=self._state.value)
        self._is_renewing = False
        self._asked.set()

    def renew(self) -> None:
        """Lets another Drainer go on, made anew, after what this one pulled is applied. One that
        rests is made anew when it is resumed."""
        if self._state is NodeState.ONLINE:
            self._is_renewing = True
            self._asked.set()

    def resume(self) -> None:
        """Goes on from the checkpoint. Raises Refused unless it is paused or offline."""
        if self._state not in (NodeState.PAUSED, NodeState.OFFLINE):
            raise Refused(f"cannot resume: the drainer is {self._state.value}")
        self._state = NodeState.ONLINE
        self._drainer = self._make()
        log.info("drainer_state_changed", state=self._state.value)
        self._resumed.set()

    def retry(self) -> None:
        """Lets a stuck Drainer try again."""
        self._drainer.retry()

    async def run(self) -> None:
        """Replicates until `end`. Only a bug comes out of it."""
        try:
            while not self._ending.is_set():
                self._resumed.clear()
                if await self._is_ready():
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._drainer.run(), name="drainer")
                        group.create_task(self._drain_when_asked(), name="drainer's end")
                if self._is_renewing and not self._ending.is_set():
                    self._is_renewing = False
                    self._asked.clear()
                    self._drainer = self._make()
                    log.info("drainer_renewed")
                    continue
                if self._state is NodeState.CLOSING:
                    self._release()
                self._state = settled(self._state)
                log.info("drainer_state_changed", state=self._state.value)
                self._asked.clear()
                if not self._ending.is_set():
                    await self._resumed.wait()
        finally:
            self._state = settled(self._state)
            self._ended.set()

    async def end(self) -> None:
        """Ends `run`, after what was pulled is applied."""
        self._ending.set()
        self._asked.set()
        self._resumed.set()
        await self._ended.wait()

    async def _is_ready(self) -> bool:
        """Waits until there is something to replicate, or it is to rest before; which of them."""
        async with asyncio.TaskGroup() as group:
            ready = group.create_task(self._ready(), name="something to replicate")
            asked = group.create_task(self._asked.wait(), name="drainer's end")
            ready.add_done_callback(lambda _: asked.cancel())
            asked.add_done_callback(lambda _: ready.cancel())
        return not ready.cancelled()

    async def _drain_when_asked(self) -> None:
        await self._asked.wait()
        await self._drainer.drain()
