"""The shards of a Pump begin their groups together.

While the groups of one round are being synced, whatever arrives for any shard gathers for the
next. A shard on its own would begin as soon as its own sync has ended, with the few binlogs that
have come back by then: many small groups, and a sync, a thread and an answer for each. The files
lie on one disk, whose journal takes the syncs of a round together: it takes hardly longer than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from binlogd.pump.signal import Signal

_TURNS = 2  # one in which writers are answered, one in which those who are quick write again


class Rounds:
    """Who enters waits for the next round. It begins when the groups of the last one have ended,
    some turns of the loop later, so that everyone who can write now is in it."""

    def __init__(self) -> None:
        self._begins = Signal()
        self._is_about_to = False
        self._entering = 0
        self._under_way = 0

    @asynccontextmanager
    async def group(self) -> AsyncIterator[None]:
        """The place of one group in a round."""
        begins = self._begins.next
        self._entering += 1
        self._gather()
        try:
            await begins.wait()
        except asyncio.CancelledError:
            if begins.is_set():
                self._leave()
            else:
                self._entering -= 1
            raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._under_way -= 1
        self._gather()

    def _gather(self) -> None:
        if self._entering and not self._under_way and not self._is_about_to:
            self._is_about_to = True
            self._turn(_TURNS)

    def _turn(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)
            return
        self._is_about_to = False
        self._under_way, self._entering = self._entering, 0
        self._begins.fire()
