"""Lanes: connections that each apply, in order, what belongs to them, and nothing twice.

Invariant. A lane has one part in work at a time, written in one transaction that also moves the
lane's progress row. After any doubt (a lost connection, an error at COMMIT) the row is read again,
locked, before anything is repeated: the lock waits for the old transaction to end, if the server
still has it, so that "not there" means that it never will be.

While a lane is busy, what arrives gathers in its next part: parts grow with the load, and no timer
closes them. Whoever adds waits while parts are full.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import structlog

from binlogd.drainer.backoff import Backoff
from binlogd.drainer.mysql import PACKET_TOO_LARGE, Server, SqlRefused, SqlSession, TryAgain
from binlogd.drainer.parts import (
    SLICE_ROWS,
    Gatherer,
    Limits,
    Part,
    RunKind,
    Statement,
    commit_ts_of,
)
from binlogd.drainer.progress import LanePosition, ProgressTable, low_water
from binlogd.drainer.target import Reader
from binlogd.drainer.txn import Dml
from binlogd.drainer.warned import Warned, changed_value
from binlogd.errors import BinlogdError, ConfigError, DownstreamUnavailable, StatementRejected
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

ATTEMPTS_MAX = 10
FIRST_WAIT_S = 0.02
WAIT_MAX_S = 2.0
WARNINGS_SHOWN_MAX = 20
_WITH_VALUES = frozenset({1062, 1292, 1366, 1586})
"""Errors whose text quotes what was in the row."""


@dataclass(slots=True)
class LaneCounters:
    """Since the lane was made."""

    rows: int = 0
    txns: int = 0
    bytes_written: int = 0
    retries: int = 0
    rows_missing: int = 0
    """Rows to be changed that were not there (tables that are written one by one)."""
    statements_warned: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class LaneContext:
    """What all lanes of a sink have in common."""

    server: Server
    progress: ProgressTable
    limits: Limits
    packet_bytes_max: int
    rng: Random


class LaneWriter:
    """The connection of one lane and its progress row."""

    def __init__(self, lane: int, position: LanePosition, context: LaneContext) -> None:
        self.position = position
        self.counters = LaneCounters()
        self._lane = lane
        self._server, self._progress = context.server, context.progress
        self._packet_bytes_max, self._limits = context.packet_bytes_max, context.limits
        self._rng = context.rng
        self._session: SqlSession | None = None
        self._is_closed = False

    async def open(self) -> None:
        """Connects. Raises DownstreamUnavailable, ConfigError."""
        session = await SqlSession.connect(self._server, for_rows=True)
        if self._is_closed:
            session.close()
            raise DownstreamUnavailable("the sink is closed")
        self._session = session

    def close(self) -> None:
        """Drops the connection and with it what is not committed; no other is made."""
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    async def apply(self, part: Part) -> None:
        """Returns when the part is committed. Raises DownstreamUnavailable after many attempts,
        StatementRejected, or ConfigError when someone else moves this lane."""
        backoff = Backoff(self._rng, first_s=FIRST_WAIT_S, max_s=WAIT_MAX_S)
        while True:  # until applied, or after so many attempts
            try:
                await self._attempt(part, is_doubtful=backoff.attempts > 0)
            except SqlRefused as error:
                raise await self._rejection(error, part) from error
            except DownstreamUnavailable as error:
                self.counters.retries += 1
                self.counters.last_error = str(error)
                if not isinstance(error, TryAgain):
                    self._drop()
                if self._is_closed or backoff.attempts >= ATTEMPTS_MAX:
                    raise
                wait_s = backoff.next_s()
                log.warning("apply_retried", lane=self._lane, cause=str(error), wait_s=wait_s)
                await asyncio.sleep(wait_s)
            else:
                break
        self.position = part.end
        self.counters.rows += part.changes
        self.counters.txns += part.txn_count

    async def _attempt(self, part: Part, *, is_doubtful: bool) -> None:
        if self._session is None:
            await self.open()
        session = self._session
        assert session is not None
        if is_doubtful:
            await session.run(b"ROLLBACK")
            if await self._is_done(session, part):
                return
        for statement in part.statements(self._limits.statement_bytes_max):
            await self._run(session, statement)
        move = self._progress.move(self._lane, self.position, part.end)
        if (await session.run(move)).affected != 1:
            await session.run(b"ROLLBACK")
            raise self._moved_by_another()
        await session.run(b"COMMIT")

    async def _run(self, session: SqlSession, statement: Statement) -> None:
        size = len(statement.text)
        if size + 16 > self._packet_bytes_max:
            raise SqlRefused(
                PACKET_TOO_LARGE,
                f"a row takes {size} bytes and the downstream's max_allowed_packet is"
                f" {self._packet_bytes_max}; raise it there",
            )
        done = await session.run(statement.text)
        self.counters.bytes_written += size
        if done.warnings:
            await self._look_at_warnings(session, statement)
        if statement.kind is RunKind.SINGLE and done.affected == 0:
            self.counters.rows_missing += 1
            if self.counters.rows_missing <= WARNINGS_SHOWN_MAX:
                log.warning("row_not_found", table=statement.target.label, lane=self._lane)

    async def _look_at_warnings(self, session: SqlSession, statement: Statement) -> None:
        """Raises SqlRefused when the downstream took another value than it was given."""
        found = [
            Warned(_text(level), int(code), _text(message))
            for level, code, message in await session.rows(b"SHOW WARNINGS")
        ]
        changed = changed_value(found, statement.target.info)
        if changed is not None:
            raise SqlRefused(changed.code, changed.message)
        self.counters.statements_warned += 1
        if self.counters.statements_warned <= WARNINGS_SHOWN_MAX:
            codes = sorted({each.code for each in found})
            log.warning("statement_warned", table=statement.target.label, codes=codes)

    async def _is_done(self, session: SqlSession, part: Part) -> bool:
        rows = await session.rows(self._progress.read_lane(self._lane))
        found = LanePosition(Tso(rows[0][0]), rows[0][1]) if rows else None
        if found == part.end:
            await session.run(b"ROLLBACK")
            return True
        if found != self.position:
            await session.run(b"ROLLBACK")
            raise self._moved_by_another()
        return False

    def _moved_by_another(self) -> ConfigError:
        return ConfigError(
            f"the progress of lane {self._lane} at {self._server} is not where this process left"
            " it: another Drainer of the same upstream writes to this downstream; stop one of them,"
            " or give it a checkpoint schema of its own (syncer.to.checkpoint.schema)"
        )

    # --- a statement that was refused --------------------------------------------------------

    async def _rejection(self, error: SqlRefused, part: Part) -> StatementRejected:
        """Which transaction it is about, found by running the part again, one row at a time."""
        code, reason = error.code, without_values(error.code, error.reason)
        try:
            statement, item = await self._culprit(part)
        except BinlogdError as further:
            log.warning("rejected_row_not_found", cause=str(further))
            statement, item = None, b""
        finally:
            self._drop()
        if statement is None:
            return StatementRejected(part.first_ts, "rows of several tables", code, reason)
        commit_ts = commit_ts_of(part, statement, item)
        return StatementRejected(commit_ts, str(statement), code, reason)

    async def _culprit(self, part: Part) -> tuple[Statement | None, bytes]:
        session = self._session
        if session is None:
            return None, b""
        await session.run(b"ROLLBACK")
        for statement in part.statements(self._limits.statement_bytes_max):
            try:
                await self._run(session, statement)
            except SqlRefused:
                for item in statement.items:
                    text = statement.head + item + statement.tail
                    single = item if statement.kind is RunKind.SINGLE else text
                    try:
                        await self._run(session, statement._replace(text=single))
                    except SqlRefused:
                        return statement, item
        return None, b""


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def without_values(code: int, reason: str) -> str:
    """The server's text without what it quotes from the row."""
    return re.sub(r"'(?:[^']|'')*'", "'...'", reason, count=1) if code in _WITH_VALUES else reason


class Applier:
    """Hands transactions to lanes. `run` in a task beside `add`; made for one number of lanes."""

    def __init__(self, writers: Sequence[LaneWriter], gatherer: Gatherer) -> None:
        self.writers, self.gatherer = writers, gatherer
        self._work = [asyncio.Event() for _ in writers]
        self._busy: list[Part | None] = [None] * len(writers)
        self._changed = asyncio.Event()
        """A lane took or finished a part, or failed."""
        self._failure: BinlogdError | None = None
        self._is_closing = False
        self._rows_since_turn = 0

    async def run(self) -> None:
        """Ends after `close`. Raises, in a group, what a lane raised."""
        async with asyncio.TaskGroup() as group:
            for lane, writer in enumerate(self.writers):
                group.create_task(self._lane(lane, writer), name=f"lane {lane}")

    async def add(self, dml: Dml, readers: Sequence[Reader]) -> None:
        """Returns when there is room for the next. Raises RowMismatch, and what a lane raised."""
        for _ in self.gatherer.add(dml, readers):
            await self._turn()
            while self.gatherer.must_cut():
                await self._change()
        self._rows_since_turn += dml.row_count
        if self._rows_since_turn >= SLICE_ROWS:
            await self._turn()
        while self.gatherer.is_full():
            self._wake()
            await self._change()

    def skip(self, commit_ts: Tso) -> None:
        """Nothing is to be done up to this commit_ts."""
        self.gatherer.skip(commit_ts)

    def wake(self) -> None:
        """Lanes shall look for work; to be called after the last of several `add`."""
        self._wake()

    async def flush(self) -> None:
        """Returns when all that was added is applied. Raises what a lane raised."""
        self._wake()
        while self.gatherer.changes_waiting or any(self._busy):
            await self._change()
        if self._failure is not None:
            raise self._failure

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

    async def _lane(self, lane: int, writer: LaneWriter) -> None:
        while not self._is_closing:
            self._work[lane].clear()
            part = self.gatherer.take(lane)
            if part is None:
                await self._work[lane].wait()
                continue
            self._busy[lane] = part
            self._changed.set()
            try:
                await writer.apply(part)
            except BinlogdError as error:
                if self._is_closing:
                    return
                self._failure = error
                self._changed.set()
                raise
            self._busy[lane] = None
            self._changed.set()

    async def _turn(self) -> None:
        self._rows_since_turn = 0
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
