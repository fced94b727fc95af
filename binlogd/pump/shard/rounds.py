"""The shards of a Pump begin their groups together.

While the groups of one round are being synced, whatever arrives for any shard gathers for the
next. A shard on its own would begin as soon as its own sync has ended, with the few binlogs that
have come back by then: many small groups, and a sync, a thread and an answer for each. The files
lie on one disk, whose journal takes the syncs of a round together: it takes hardly longer than one.
"""

from __future__ import annotations

import asyncio

from binlogd.pump.signal import Signal

_TURNS = 2  # one in which writers are answered, one in which those who are quick write again


class Rounds:
    """Who enters waits for the next round, and leaves it when its group has ended.

    A round begins when the groups of the last one have ended, some turns of the loop later, so that
    everyone who can write now is in it. Behind a round of one writer there is nobody to wait for:
    then it begins at once, with all who enter in the same turn of the loop.
    """

    def __init__(self) -> None:
        self.coming = 0
        """Shards that were woken, and enter in this turn of the loop if they can. Where there is
        none, nobody needs to be told of the end of the turn, which would be one more."""
        self._begins = Signal()
        self._is_about_to = False
        self._is_open = False  # who enters now is in the round that has just begun
        self._entering = 0
        self._under_way = 0
        self._writers = self._writers_before = 0

    async def enter(self) -> None:
        """Waits for the place of one group in a round. Who is cancelled has none."""
        is_free = not self._under_way and not self._entering and self._writers_before <= 1
        if self._is_open or is_free:
            if self.coming:
                self._open()
            self._under_way += 1
            return
        begins = self._begins.next
        self._entering += 1
        self._gather()
        try:
            await begins.wait()
        except asyncio.CancelledError:
            if begins.is_set():
                self.leave(0)
            else:
                self._entering -= 1
            raise

    def leave(self, writers: int) -> None:
        """The group has ended, whatever became of it; so many will hear of that, and may write
        again."""
        self._under_way -= 1
        self._writers += writers
        if not self._under_way:
            self._writers_before, self._writers = self._writers, 0
        self._gather()

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            asyncio.get_running_loop().call_soon(self._close)

    def _close(self) -> None:
        self._is_open = False

    def _gather(self) -> None:
        if self._entering and not self._under_way and not self._is_about_to:
            self._is_about_to = True
            self._turn(_TURNS if self._writers_before > 1 else 0)

    def _turn(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)
            return
        self._is_about_to = False
        self._under_way, self._entering = self._under_way + self._entering, 0
        self._begins.fire()
