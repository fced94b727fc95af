"""The downstream is tried before there is anything to write.

A Drainer connects when its cluster is known, which may be TiDB's first write: a wrong password
would wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.drainer import DrainerState, DrainerStatistics
from binlogd.errors import ConfigError, Failure, Unavailable

log = structlog.get_logger(__name__)


class FirstContact:
    """Waits for something to replicate, and tries the downstream meanwhile until it succeeds: a
    Drainer, which begins then, does the same itself."""

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
                await self._wait(error)
            else:
                self._failure = None
                return

    async def _wait(self, error: ConfigError | Unavailable) -> None:
        wait_s = self._backoff.next_s()
        self._failure = Failure.of(error)
        self._again_at_s = asyncio.get_running_loop().time() + wait_s
        log.warning("downstream_unreachable", cause=str(error), wait_s=wait_s)
        await asyncio.sleep(wait_s)

    def shown(self, now: DrainerStatistics) -> DrainerStatistics:
        """How a Drainer stands that has not begun, with what keeps it from writing."""
        failure = self._failure
        if failure is None:
            return now
        return replace(
            now,
            state=DrainerState.RETRYING,
            failure=failure,
            blocking=failure.sentence,
            failed_in_a_row=self._backoff.attempts,
            retry_in_s=max(0.0, self._again_at_s - asyncio.get_running_loop().time()),
        )
