"""One connection that writes rows: what both orders of applying (`apply`, `ordered`) share.

Every statement is looked at: whether it fits into a packet, whether the downstream took each value
as it was given, whether a row that was to be changed was there. What a DELETE or a REPLACE of many
rows affects is compared with what it must affect; where that is less, it is undone to a savepoint,
and which rows are missing is looked up. A part that is refused is run once more row by row, so that
the error names the transaction that it is about.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from random import Random

import structlog

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.filtering.loopback import LoopControl
from binlogd.drainer.mysql import seek
from binlogd.drainer.mysql.connection import (
    ATTEMPTS_MAX,
    NO_TABLE,
    PACKET_TOO_LARGE,
    RETRY_KINDS,
    UNKNOWN_COLUMN,
    Done,
    MySqlServer,
    SqlRefused,
    SqlSession,
    TryAgain,
)
from binlogd.drainer.mysql.progress_table import ProgressTable
from binlogd.drainer.mysql.refusals import changed_value
from binlogd.drainer.mysql.seek import Sought
from binlogd.drainer.rows.parts import Limits, Part, RunKind, Statement, commit_ts_of
from binlogd.drainer.rows.progress import LanePosition, not_as_left
from binlogd.drainer.sink import RowNotFoundRule
from binlogd.errors import BinlogdError, DownstreamUnavailable, RowNotFound
from binlogd.tidb.kinds import UPDATE
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

FIRST_WAIT_S = 0.02
WAIT_MAX_S = 2.0
WARNINGS_SHOWN_MAX = 20
GROUP_BYTES_MAX = 256 << 10
GROUP_STATEMENTS_MAX = 200
"""What goes out in one round trip; a larger statement has one of its own."""
SAVEPOINT = b"SAVEPOINT binlogd_group"
_WITH_VALUES = frozenset({1062, 1292, 1366, 1586})
"""Errors whose text quotes what was in the row."""


@dataclass(slots=True)
class LaneCounters:
    """Since the writer was made."""

    rows: int = 0
    txns: int = 0
    bytes_written: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    """By kind (`RETRY_KINDS`)."""
    rows_not_found: int = 0
    """Rows to be changed that were not there, where the rule is not to stop."""
    statements_warned: int = 0


@dataclass(frozen=True, slots=True)
class LaneContext:
    """What all writers of a sink have in common."""

    server: MySqlServer
    progress: ProgressTable
    limits: Limits
    packet_bytes_max: int
    rng: Random
    loop: LoopControl | None = None
    leaves_out_columns: bool = False
    """Columns that the downstream lacks are left out, instead of refused."""
    row_not_found: RowNotFoundRule = RowNotFoundRule.STOP
    passed_over: Sized = ()
    """Transactions that an operator left out."""
    lanes: int = 1
    """How many progress rows the layout has that the writers were made for."""

    def rule_of(self, sought: Sought) -> RowNotFoundRule:
        """What becomes of a row that is missing."""
        is_by_key = sought.reader.target.shape.tells_missing
        return self.row_not_found.by_key(self.passed_over) if is_by_key else self.row_not_found


class RowWriter:
    """A connection for rows; `lane` numbers it in logs, `wishes` are settings of its sessions."""

    def __init__(self, lane: int, context: LaneContext, wishes: Sequence[bytes] = ()) -> None:
        self.lane = lane
        self._wishes = wishes
        self.counters = LaneCounters()
        self.session: SqlSession | None = None
        self.is_closed = False
        self.context = context
        self._alone: set[bytes] = set()
        """Tables about which the server warns: their statements go one by one."""
        self._has_savepoints = True
        self.at_table: bytes = b""
        """The table of the statement that was run last."""

    async def open(self) -> SqlSession:
        """Connects. Raises DownstreamUnavailable, ConfigError."""
        session = await SqlSession.connect(self.context.server, for_rows=True, wishes=self._wishes)
        if self.is_closed:
            session.close()
            raise DownstreamUnavailable("the sink is closed")
        self.session = session
        return session

    async def connected(self) -> SqlSession:
        """The session, made anew when there is none. Raises as `open`."""
        return self.session or await self.open()

    def close(self) -> None:
        """Drops the connection and with it what is not committed; no other is made."""
        self.is_closed = True
        self.drop()

    def drop(self) -> None:
        """Drops the connection; the server rolls back what was open."""
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def note_retry(self, error: DownstreamUnavailable) -> None:
        """Counts it, and lets go of a connection that cannot be used any more."""
        self.counters.retries[RETRY_KINDS.get(type(error), "connection")] += 1
        if not isinstance(error, TryAgain):
            self.drop()

    def note_done(self, part: Part) -> None:
        """The part is committed."""
        self.counters.rows += part.changes
        self.counters.txns += part.txn_count

    async def begin(self, session: SqlSession) -> None:
        """What each transaction begins with. Raises as `SqlSession.run`."""
        if self.context.loop is not None:
            await session.run(self.context.loop.mark(self.lane))

    async def write(
        self,
        part: Part,
        lane: int,
        before: LanePosition,
        *,
        prepared: Part | None = None,
        retried: Callable[[DownstreamUnavailable], Awaitable[None]] | None = None,
    ) -> None:
        """Returns when the part is committed, and the row of the lane moved on from `before`.

        `prepared` is what remains of a part that the open transaction has begun already; whoever is
        to know that all of it is done anew is told by `retried`. Raises DownstreamUnavailable after
        many attempts, StatementRejected, RowNotFound, DownstreamWentBack, or ConfigError when
        someone else moves this lane.
        """
        backoff = Backoff(self.context.rng, first_s=FIRST_WAIT_S, max_s=WAIT_MAX_S)
        while True:  # until committed, or after so many attempts
            try:
                session = await self.connected()
                if backoff.attempts:
                    await session.run(b"ROLLBACK")
                    if await self._is_done(session, lane, before, part.end):
                        break
                if prepared is None:
                    await self.begin(session)
                statements = (prepared or part).statements(self.context.limits.statement_bytes_max)
                await self.run_all(session, statements, part)
                await self.move(session, lane, before, part.end)
                await session.run(b"COMMIT")
                break
            except (SqlRefused, RowNotFound) as error:
                raise await self.rejection(error, part, lane, before) from error
            except DownstreamUnavailable as error:
                prepared = None
                self.note_retry(error)
                if self.is_closed or backoff.attempts >= ATTEMPTS_MAX:
                    raise
                if retried is not None:
                    await retried(error)
                wait_s = backoff.next_s()
                log.warning("apply_retried", lane=self.lane, cause=str(error), wait_s=wait_s)
                await asyncio.sleep(wait_s)
        self.note_done(part)

    # --- statements --------------------------------------------------------------------------

    async def run_all(
        self, session: SqlSession, statements: Iterable[Statement], part: Part
    ) -> None:
        """Runs statements of a part in order, small ones together. Raises as `SqlSession.run`, and
        RowNotFound."""
        for group in self._groups(statements):
            if len(group) == 1 or not self._has_savepoints:
                await self._run_each(session, group, part)
            else:
                await self._run_group(session, group, part)

    async def _run_group(self, session: SqlSession, group: Sequence[Statement], part: Part) -> None:
        """Several in one round trip. Where one of them warns, they are undone and run one by one,
        since the server tells the words of the last statement's warnings only; and where one does
        not find its row, which is looked for before the next one is run."""
        done = await self._behind_savepoint(session, group)
        if done is None:
            return await self._run_each(session, group, part)
        answered = list(zip(group, done, strict=True))
        warned = [each for each, answer in answered if answer.warnings]
        if warned or any(_is_short(each, answer, part) for each, answer in answered):
            self._alone |= {each.target.name for each in warned}
            await session.run(b"ROLLBACK TO " + SAVEPOINT)
            return await self._run_each(session, group, part)
        self.counters.bytes_written += sum(len(each.text) for each in group)
        return None

    async def _behind_savepoint(
        self, session: SqlSession, group: Sequence[Statement]
    ) -> list[Done] | None:
        """The answers to statements that can be undone; None: nothing was run, since the server has
        no savepoints. Raises as `SqlSession.run`."""
        done: list[Done] = []
        try:
            await session.run_all([SAVEPOINT, *(each.text for each in group)], done)
        except (SqlRefused, TryAgain) as error:
            if done or isinstance(error, TryAgain):  # which may have undone what came before
                self.at_table = group[max(len(done), 1) - 1].target.name
                raise
            self._has_savepoints = False
            log.info("savepoints_refused", server=str(self.context.server))
            return None
        return done[1:]

    def _groups(self, statements: Iterable[Statement]) -> Iterator[Sequence[Statement]]:
        bytes_max = min(GROUP_BYTES_MAX, self.context.packet_bytes_max - 1024)
        group: list[Statement] = []
        size = 0
        for statement in statements:
            size += len(statement.text) + 1
            is_alone = statement.target.name in self._alone
            is_full = size > bytes_max or len(group) >= GROUP_STATEMENTS_MAX
            if group and (is_full or is_alone):
                yield group
                group, size = [], len(statement.text) + 1
            group.append(statement)
            if is_alone:
                yield group
                group, size = [], 0
        if group:
            yield group

    async def _run_each(self, session: SqlSession, group: Sequence[Statement], part: Part) -> None:
        for statement in group:
            await self._run(session, statement, part)

    async def move(
        self, session: SqlSession, lane: int, before: LanePosition, after: LanePosition
    ) -> None:
        """Moves a progress row in the open transaction. Raises DownstreamWentBack, ConfigError if
        it is not where it was left."""
        move = self.context.progress.move(lane, self.context.lanes, before, after)
        if (await session.run(move)).affected != 1:
            found = await self._found(session, lane, before)
            await session.run(b"ROLLBACK")
            raise not_as_left(str(self.context.server), found, [before])

    async def _is_done(
        self, session: SqlSession, lane: int, before: LanePosition, after: LanePosition
    ) -> bool:
        """After a doubt: whether the transaction that moved the row is there, now and for ever."""
        found = await self._found(session, lane, before)
        if found == [before] and before != after:
            return False
        await session.run(b"ROLLBACK")
        if found != [after]:
            raise not_as_left(str(self.context.server), found, [before])
        return True

    async def _found(
        self, session: SqlSession, lane: int, before: LanePosition
    ) -> list[LanePosition]:
        """Where the progress row is, once nobody else is at it; [] if it is not there."""
        try:
            rows = await session.rows(self.context.progress.read_lane(lane))
        except SqlRefused as error:
            if error.code in NO_TABLE:
                raise not_as_left(str(self.context.server), [], [before]) from error
            raise
        return [LanePosition(Tso(commit_ts), piece) for commit_ts, piece in rows]

    async def _run(self, session: SqlSession, statement: Statement, part: Part) -> None:
        size = len(statement.text)
        if size + 16 > self.context.packet_bytes_max:
            raise SqlRefused(
                PACKET_TOO_LARGE,
                f"a row takes {size} bytes and the downstream's max_allowed_packet is"
                f" {self.context.packet_bytes_max}",
            )
        self.at_table = statement.target.name
        done = await self._sent(session, statement)
        if done.warnings:
            await self._look_at_warnings(session, statement)
        self.counters.bytes_written += len(statement.text)
        if _is_short(statement, done, part):
            if statement.kind is RunKind.SINGLE:
                await self._seek(session, statement, part)
            elif self._has_savepoints:
                await session.run(b"ROLLBACK TO " + SAVEPOINT)
                await self._look_up(session, statement, part)

    async def _sent(self, session: SqlSession, statement: Statement) -> Done:
        """One that must find rows goes behind a savepoint."""
        text = statement.text
        if not statement.finds or not self._has_savepoints:
            return await session.run(text)
        if len(text) + len(SAVEPOINT) + 16 > self.context.packet_bytes_max:
            await session.run(SAVEPOINT)
            return await session.run(text)
        done = await self._behind_savepoint(session, [statement])
        return await session.run(text) if done is None else done[0]

    async def _look_up(self, session: SqlSession, statement: Statement, part: Part) -> None:
        """Does once more what affected too few rows, and knows of each whether it is there."""
        target, changes = statement.target, seek.keyed_changes(statement.target, part)
        must = [bool(each) for each in statement.finds]
        if statement.kind is RunKind.WRITE:
            keys = [changes.key_of[item] for item in statement.items]
            is_there = await seek.present(session, target, keys)
            await session.run(statement.text)
        else:
            keys = list(statement.items)
            is_there = [(await session.run(target.deletion(key))).affected > 0 for key in keys]
        for key, must_be, is_it in zip(keys, must, is_there, strict=True):
            sought = changes.first.get(key)
            if must_be and not is_it and sought is not None:
                self._missing(sought)

    def _missing(self, sought: Sought) -> None:
        """Counts it. Raises RowNotFound where the rule is to stop."""
        rule = self.context.rule_of(sought)
        if rule is RowNotFoundRule.STOP:
            raise sought.error()
        self.counters.rows_not_found += 1
        if self.counters.rows_not_found <= WARNINGS_SHOWN_MAX:
            cause = sought.error().message
            log.warning("row_not_found", lane=self.lane, rule=rule.value, cause=cause)

    async def _seek(self, session: SqlSession, statement: Statement, part: Part) -> None:
        """A row that was not found is looked for once more; else the rule decides."""
        sought = seek.sought_by(statement, part)
        assert sought is not None, "a statement of a part is about a row in it"
        if await seek.found(session, sought):
            return
        self._missing(sought)
        if self.context.row_not_found is RowNotFoundRule.REPAIR and sought.kind == UPDATE:
            await self._run(session, sought.instead(), part)

    async def _look_at_warnings(self, session: SqlSession, statement: Statement) -> None:
        """Raises SqlRefused when the downstream took another value than it was given."""
        found = await session.warnings()
        changed = changed_value(found, statement.target.members)
        if changed is not None:
            raise SqlRefused(changed.code, changed.message)
        self.counters.statements_warned += 1
        if self.counters.statements_warned <= WARNINGS_SHOWN_MAX:
            codes = sorted({each.code for each in found})
            log.warning("statement_warned", table=statement.target.label, codes=codes)

    # --- a statement that was refused --------------------------------------------------------

    async def rejection(
        self, error: SqlRefused | RowNotFound, part: Part, lane: int, before: LanePosition
    ) -> BinlogdError:
        """Which transaction it is about, found by running the part again, one row at a time.

        DownstreamWentBack where the server is not where it was left: it may lack tables and rows.
        DownstreamUnavailable where another session, that asks for the columns anew, can go on.
        """
        try:
            if self.session is not None:
                await self.session.run(b"ROLLBACK")
                await self._is_done(self.session, lane, before, before)
        except BinlogdError as further:
            self.drop()
            return further
        if isinstance(error, RowNotFound):
            return error
        if error.code == UNKNOWN_COLUMN and self.context.leaves_out_columns:
            self.drop()
            return DownstreamUnavailable(f"a column is gone downstream: {error.reason}")
        shown = SqlRefused(error.code, without_values(error.code, error.reason))
        try:
            statement, item = await self._culprit(part)
        except BinlogdError as further:
            log.warning("rejected_row_not_found", cause=str(further))
            statement, item = None, b""
        finally:
            self.drop()
        if statement is None:
            return shown.of_rows(part.first_ts, "rows of several tables", is_theirs=False)
        return shown.of_rows(commit_ts_of(part, statement, item), str(statement))

    async def _culprit(self, part: Part) -> tuple[Statement | None, bytes]:
        session = self.session
        if session is None:
            return None, b""
        await session.run(b"ROLLBACK")
        for statement in part.statements(self.context.limits.statement_bytes_max):
            try:
                await self._run(session, statement._replace(finds=b""), part)
            except SqlRefused:
                if len(statement.items) == 1:
                    return statement, statement.items[0]
                for item in statement.items:
                    text = statement.head + item + statement.tail
                    single = item if statement.kind is RunKind.SINGLE else text
                    try:
                        alone = statement._replace(text=single, finds=b"")
                        await self._run(session, alone, part)
                    except SqlRefused:
                        return statement, item
        return None, b""


def _is_short(statement: Statement, done: Done, part: Part) -> bool:
    """Whether it was to change rows that it did not find. A row that is replaced counts twice,
    unless it is replaced by what it was."""
    if statement.kind is RunKind.SINGLE:
        return not statement.target.shape.is_safe and done.affected == 0
    finds = statement.finds.count(1)
    if statement.kind is RunKind.WRITE and finds:
        lacks = len(statement.items) + finds - done.affected
        return lacks > 0 and lacks > seek.alike(statement, part)
    return done.affected < finds


def without_values(code: int, reason: str) -> str:
    """The server's text without what it quotes from the row."""
    return re.sub(r"'(?:[^']|'')*'", "'...'", reason, count=1) if code in _WITH_VALUES else reason
