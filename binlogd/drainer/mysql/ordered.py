"""Transactions of the upstream whole, in their order: for `syncer.consistency = "transaction"`.

Invariant. Each downstream transaction holds a run of whole upstream transactions and moves the one
progress row; they are committed one after the other, in the order of commit_ts. So whoever reads
downstream sees only states that the upstream had, and after a crash of either side the row says
which one. Why it holds. A group begins where the one before it ends; it sends COMMIT only when that
of the group before is answered; the row is moved from the end of the group before, or not at all.

Several connections work all the same: while the first group (the head) is executed and committed,
those behind it execute what meets no row of a group ahead (`overlap`), and the rest at their turn.
The head never waits for long: whatever fails in it makes the groups behind let go of their locks,
and a table about which two groups met in the server is from then on written by one at a time.

A transaction above the cut limits is executed piece by piece in one downstream transaction, by the
head. Its pieces are gone when the connection is lost: the session then begins anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import structlog

from binlogd.drainer.mysql.apply import Applier
from binlogd.drainer.mysql.connection import SqlRefused, TryAgain
from binlogd.drainer.mysql.writer import RowWriter
from binlogd.drainer.rows.overlap import split
from binlogd.drainer.rows.parts import Gatherer, Part
from binlogd.drainer.rows.progress import LanePosition
from binlogd.errors import DownstreamUnavailable, RowNotFound
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

FILLED_BEHIND = 4
"""A part that follows another begins when it is a quarter full: below that, more is gathered."""
PROGRESS_LANE = 0
LOCK_WAIT = b"innodb_lock_wait_timeout = 2"
"""Seconds. Two groups may meet in the server, where it cannot see that one waits for the other."""


@dataclass(eq=False, slots=True)
class _Group:
    """A part between being taken and being committed."""

    part: Part
    early: Part
    late: Part
    holds_locks: bool = False
    """The early changes are executed, or about to be."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class OrderedApplier(Applier):
    """See the module. Any number of writers, one progress row."""

    def __init__(
        self, writers: Sequence[RowWriter], gatherer: Gatherer, position: LanePosition
    ) -> None:
        super().__init__(writers, gatherer, [position])
        self._worth_changes = writers[0].context.limits.changes_max // FILLED_BEHIND
        self._groups: deque[_Group] = deque()
        self._is_yielding = False
        """The head failed: those behind it let go of their locks."""
        self._bound: set[bytes] = set()
        self._stream: int | None = None
        """The writer of a transaction that comes in pieces."""
        self._stream_ts: Tso = self.gatherer.translated_ts

    # --- the interface -----------------------------------------------------------------------

    def applied_ts(self) -> Tso:
        """Everything up to here is committed."""
        applied_ts = super().applied_ts()
        return applied_ts if self._stream is None else min(applied_ts, Tso(self._stream_ts - 1))

    def close(self) -> None:
        """See Applier."""
        super().close()
        self._say_changed()

    def _is_at_rest(self) -> bool:
        return super()._is_at_rest() and self._stream is None

    # --- taking --------------------------------------------------------------------------------

    def _take(self, lane: int) -> Part | None:
        gatherer = self.gatherer
        if self._stream is not None:
            if self._stream != lane or self._groups:
                return None
            part = gatherer.take(0)
            if part is None and not gatherer.is_adding:  # nothing followed the last piece
                part = Part(end=LanePosition(gatherer.translated_ts), first_ts=self._stream_ts)
        else:
            is_worth_it = gatherer.changes_waiting >= self._worth_changes or gatherer.is_full()
            part = gatherer.take(0) if is_worth_it or not self._groups else None
        if part is not None:
            if part.end.piece and self._stream is None:
                self._stream, self._stream_ts = lane, part.first_ts
            ahead = [group.part for group in self._groups]
            self._groups.append(_Group(part, *split(part, ahead, self._bound)))
        return part

    async def _write(self, lane: int, part: Part) -> None:
        group = next(each for each in self._groups if each.part is part)
        writer = self.writers[lane]
        if self._stream == lane:
            await self._until_first(writer, group)
            await self._write_piece(writer, part)
            writer.note_done(part)
        else:
            await self._write_group(writer, group)
        self._groups.popleft()
        self._is_yielding = False
        self._say_changed()
        self._wake()

    # --- a group -----------------------------------------------------------------------------

    async def _write_group(self, writer: RowWriter, group: _Group) -> None:
        if self._groups[0] is not group:
            await self._prepare(writer, group)
        await self._until_first(writer, group)

        async def retried(error: DownstreamUnavailable) -> None:
            group.holds_locks = False
            await self._clear_the_way(writer, error)

        rest = group.late if group.holds_locks else None
        await writer.write(
            group.part, PROGRESS_LANE, self._positions[0], prepared=rest, retried=retried
        )
        self._positions = [group.part.end]

    async def _prepare(self, writer: RowWriter, group: _Group) -> None:
        """Executes what meets nobody; whatever goes wrong is left for the group's turn."""
        group.holds_locks = True
        try:
            session = await writer.connected()
            statements = group.early.statements(writer.context.limits.statement_bytes_max)
            await writer.begin(session)
            statements = takewhile(lambda _: not self._is_yielding, statements)
            await writer.run_all(session, statements, group.part)
        except (SqlRefused, TryAgain, RowNotFound) as error:
            log.info("group_not_prepared", lane=writer.lane, cause=str(error))
            await self._undo(writer, group)
        except DownstreamUnavailable as error:
            writer.note_retry(error)
            group.holds_locks = False
            self._say_changed()

    async def _until_first(self, writer: RowWriter, group: _Group) -> None:
        """Waits for the group's turn; on the way its locks are given up if the head needs them."""
        while self._groups[0] is not group:
            if self._is_closing:
                raise DownstreamUnavailable("the sink is closed")
            if self._is_yielding and group.holds_locks:
                await self._undo(writer, group)
                continue
            group.changed.clear()
            await group.changed.wait()

    async def _undo(self, writer: RowWriter, group: _Group) -> None:
        try:
            if writer.session is not None:
                await writer.session.run(b"ROLLBACK")
        except (SqlRefused, DownstreamUnavailable):
            writer.drop()
        group.holds_locks = False
        self._say_changed()

    async def _clear_the_way(self, head: RowWriter, error: DownstreamUnavailable) -> None:
        """Returns when no group behind the head holds a lock."""
        behind = [group for group in self._groups if group.holds_locks]
        if not behind:
            return
        if isinstance(error, TryAgain) and head.at_table not in self._bound:
            self._bound.add(head.at_table)
            log.info("table_written_by_one", table=head.at_table.decode(errors="replace"))
        self._is_yielding = True
        self._say_changed()
        first = self._groups[0]
        while any(group.holds_locks for group in behind) and not self._is_closing:
            first.changed.clear()
            await first.changed.wait()

    def _say_changed(self) -> None:
        for group in self._groups:
            group.changed.set()

    # --- a transaction in pieces -----------------------------------------------------------

    async def _write_piece(self, writer: RowWriter, part: Part) -> None:
        """Executes a piece; with the last one, commits. Raises what ends the session."""
        try:
            session = await writer.connected()
            await writer.begin(session)
            statements = part.statements(writer.context.limits.statement_bytes_max)
            await writer.run_all(session, statements, part)
            if part.end.piece:
                return
            await writer.move(session, PROGRESS_LANE, self._positions[0], part.end)
            await session.run(b"COMMIT")
        except (SqlRefused, RowNotFound) as error:
            raise await writer.rejection(error, part, PROGRESS_LANE, self._positions[0]) from error
        except DownstreamUnavailable as error:
            writer.note_retry(error)
            raise DownstreamUnavailable(
                f"lost in the middle of the large transaction at {self._stream_ts}, of which"
                f" nothing is committed: {error}"
            ) from error
        self._positions, self._stream = [part.end], None
