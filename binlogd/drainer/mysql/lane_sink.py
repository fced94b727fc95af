"""One lane of a layout as a sink: what one of several processes applies of a stretch of the log.

Whoever spreads a stretch lays the lanes out (`MySqlStore.open`), gives one to each process, and
goes on when all are done. Each walks the whole stretch, and applies what belongs to its lane. The
first DDL that is to be executed ends it (`met`): all lanes are to be there before anybody does it.

Invariant. However many processes are at one lane, each change is applied once. Why it holds. A part
and the step of the lane's progress row are one transaction. The step is made from the very position
before it, in this very layout, or not at all; and positions grow. So one that was taken for dead
and lives finds that the row has left the place it knows, and what it wrote is rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.measures import KINDS
from binlogd.drainer.mysql.apply import LaneApplier
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.mysql.tables import Tables
from binlogd.drainer.mysql.writer import RowWriter
from binlogd.drainer.rows.parts import Gatherer
from binlogd.drainer.rows.progress import LanePosition, Restart
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.tso import MAX_TS, NO_TS, Tso


@dataclass(frozen=True, slots=True)
class OneLane:
    """Lane `number` of the layout that stood as `restart` says when the stretch was spread, which
    begins behind `checkpoint`."""

    number: int
    restart: Restart
    checkpoint: Checkpoint


class LaneSink(MySqlSink):
    """A `Sink`; see the module."""

    def __init__(
        self, server: MySqlServer, cluster_id: int, options: MySqlSinkOptions, lane: OneLane
    ) -> None:
        own = replace(options, trash=None, has_positions=False)
        super().__init__(server, cluster_id, own, Random())
        self._lane, note = lane, self._store.first_shape
        self._tables = Tables(options.shapes, self._described, self.flush, note)
        self.met: Ddl | None = None
        """The DDL at which it ended."""
        self._given_ts = NO_TS
        self.walked = [0, 0, 0]
        """Inserts, updates and deletes of all lanes, from where the lowest of them stood to that
        DDL or the end: each process at a lane comes to the same."""

    @property
    def position(self) -> LanePosition:
        """Where it left the lane."""
        left = self._lane.restart.lanes[self._lane.number]
        return left if self._applier is None else self._applier.positions[0]

    async def open(self) -> Checkpoint | None:
        """See Sink. Raises also DownstreamWentBack, ConfigError where the layout is another one."""
        number, left = self._lane.number, self._lane.restart.lanes
        position = (await self._store.if_left(left))[number]
        await self._connect()
        lanes = (*left[:number], position, *left[number + 1 :])
        self._restart, self._low_ts = self._lane.restart._replace(lanes=lanes), position.whole_ts
        self._is_laid_out = True
        self._tables.begin({}, MAX_TS)
        context = replace(self._context, lanes=len(lanes))
        writer = RowWriter(number, context)
        gatherer = Gatherer([position] * len(lanes), context.limits, self._known_after, number)
        self._applier = LaneApplier([writer], gatherer, [position])
        await writer.open()
        return self._lane.checkpoint

    async def submit(self, txns: Sequence[Txn]) -> None:
        """See Sink."""
        await super().submit(txns)
        self._given_ts = txns[-1].commit_ts
        begin = min(each.whole_ts for each in self._lane.restart.lanes)
        end = self.met.commit_ts if self.met is not None else MAX_TS
        for txn in txns:
            if isinstance(txn, Dml) and begin < txn.commit_ts < end:
                for change in txn.changes:
                    sequence = change.mutation.sequence
                    for at, kind in enumerate(KINDS.values()):
                        self.walked[at] += sequence.count(kind)

    def applied_ts(self) -> Tso:
        """See Sink; of a lane that is ahead no more than what was walked."""
        return min(super().applied_ts(), self._given_ts)

    async def save(self, checkpoint: Checkpoint) -> None:
        """Nothing: whoever spread the lanes saves one when all are done."""

    async def _ddl(self, ddl: Ddl) -> None:
        begun = self._restart.ddl
        is_begun = begun is not None and begun.commit_ts == ddl.commit_ts
        if ddl.commit_ts <= self._restart.high_ts or not (ddl.statements or is_begun):
            await super()._ddl(ddl)
            return
        await self.flush()
        self.met, self._low_ts = ddl, MAX_TS  # what follows is for the next stretch
