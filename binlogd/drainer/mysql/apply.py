"""Lanes: connections that each apply, in order, what belongs to them, and nothing twice.

Invariant. A lane has one part in work at a time, written in one transaction that also moves the
lane's progress row. After any doubt (a lost connection, an error at COMMIT) the row is read again,
locked, before anything is repeated: the lock waits for the old transaction to end, if the server
still has it, so that "not there" means that it never will be.

While a lane is busy, what arrives gathers in its next part: parts grow with the load, and no timer
closes them. While more is being added, a lane that is free waits until its part is worth a
transaction; once all that is there was added (`wake`), it takes whatever it has. Whoever adds waits
while parts are full.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from binlogd.drainer.mysql.writer import RowWriter
from binlogd.drainer.rows.parts import SLICE_ROWS, Gatherer, Part
from binlogd.drainer.rows.progress import LanePosition, low_water
from binlogd.drainer.rows.target import Reader
from binlogd.drainer.txn import Dml
from binlogd.errors import BinlogdError, DownstreamUnavailable
from binlogd.tso import Tso


class Applier(ABC):
    """Hands transactions to connections. `run` in a task beside `add`; made for one layout."""

    def __init__(
        self, writers: Sequence[RowWriter], gatherer: Gatherer, positions: Sequence[LanePosition]
    ) -> None:
        """`positions`: where the progress rows stand, one for each lane of the layout."""
        self.writers, self.gatherer, self._positions = writers, gatherer, list(positions)
        self._work = [asyncio.Event() for _ in writers]
        self._busy: list[Part | None] = [None] * len(writers)
        self._changed = asyncio.Event()
        """A writer took or finished a part, or failed."""
        self._failure: BinlogdError | None = None
        self._is_closing = False
        self._rows_at_turn = 0
        self._is_more_coming = False
        """Between an `add` and the `wake` that ends a row of them."""

    @property
    def positions(self) -> tuple[LanePosition, ...]:
        """Where the progress rows stand now."""
        return tuple(self._positions)

    def stand_at(self, position: LanePosition) -> None:
        """All progress rows were moved there from outside, while nothing was in work."""
        self._positions = [position] * len(self._positions)

    @abstractmethod
    def _take(self, lane: int) -> Part | None:
        """What this writer shall do next; None when there is nothing for it now."""

    @abstractmethod
    async def _write(self, lane: int, part: Part) -> None:
        """Returns when the writer has done the part. Raises BinlogdError."""

    async def run(self) -> None:
        """Ends after `close`. Raises, in a group, what a lane raised."""
        async with asyncio.TaskGroup() as group:
            for lane in range(len(self.writers)):
                group.create_task(self._lane(lane), name=f"lane {lane}")

    async def add(self, dml: Dml, readers: Sequence[Reader]) -> None:
        """Returns when there is room for the next. Raises RowMismatch, and what a lane raised."""
        gatherer = self.gatherer
        self._is_more_coming = True
        for _ in gatherer.add(dml, readers):
            await self._turn()
            while gatherer.must_cut():
                await self._change()
        if gatherer.rows_added - self._rows_at_turn >= SLICE_ROWS:
            await self._turn()
        while gatherer.is_full():
            self._wake()
            await self._change()

    def wake(self) -> None:
        """Lanes shall take what they have; to be called after the last of several `add`."""
        self._is_more_coming = False
        self._wake()

    async def flush(self) -> None:
        """Returns when all that was added is applied. Raises what a lane raised."""
        self.wake()
        while not self._is_at_rest():
            await self._change()
        if self._failure is not None:
            raise self._failure

    def _is_at_rest(self) -> bool:
        """Whether all that was added is applied."""
        return not (self.gatherer.changes_waiting or any(self._busy))

    def applied_ts(self) -> Tso:
        """Everything up to here is applied."""
        in_work = [part.first_ts for part in self._busy if part is not None]
        return low_water(self.gatherer.translated_ts, self.gatherer.first_waiting + in_work)

    @property
    def changes_queued(self) -> int:
        """Changes that are not applied yet."""
        in_work = sum(part.changes for part in self._busy if part is not None)
        return self.gatherer.changes_waiting + in_work

    @property
    def txns_queued(self) -> int:
        """Transactions of which the first change is not applied yet."""
        in_work = sum(part.txn_count for part in self._busy if part is not None)
        return self.gatherer.txns_waiting + in_work

    def close(self) -> None:
        """Ends the lanes and drops their connections. Safe to call twice."""
        self._is_closing = True
        self._wake()
        self._changed.set()
        for writer in self.writers:
            writer.close()

    # --- lanes -------------------------------------------------------------------------------

    async def _lane(self, lane: int) -> None:
        while not self._is_closing:
            self._work[lane].clear()
            part = self._take(lane)
            if part is None:
                await self._work[lane].wait()
                continue
            self._busy[lane] = part
            self._changed.set()
            try:
                await self._write(lane, part)
            except BinlogdError as error:
                if self._is_closing:
                    return
                self._failure = error
                self._changed.set()
                raise
            self._busy[lane] = None
            self._changed.set()

    async def _turn(self) -> None:
        self._rows_at_turn = self.gatherer.rows_added
        self._wake()
        await asyncio.sleep(0)

    def _wake(self) -> None:
        for event in self._work:
            event.set()

    async def _change(self) -> None:
        """Waits for a lane to take or finish something. Raises what a lane raised."""
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise DownstreamUnavailable("the sink is closed")
        self._changed.clear()
        await self._changed.wait()
        if self._failure is not None:
            raise self._failure


class LaneApplier(Applier):
    """Each key in its lane, each lane for itself."""

    def _take(self, lane: int) -> Part | None:
        number = self.writers[lane].lane
        if self._is_more_coming and not self.gatherer.is_worth_taking(number):
            return None
        return self.gatherer.take(number)

    async def _write(self, lane: int, part: Part) -> None:
        writer = self.writers[lane]
        await writer.write(part, writer.lane, self._positions[lane])
        self._positions[lane] = part.end
