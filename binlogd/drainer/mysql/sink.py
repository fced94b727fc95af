"""MySQL, MariaDB or TiDB as the downstream: transactions in commit order in, rows there.

Rows go to lanes (`apply`), by decoders generated for each table. A DDL is a barrier: everything
before it is applied and the progress of all lanes stands right before it; a note is written that it
is begun; it is executed, which commits by itself; the note is taken away and the progress moved in
one transaction. A restart that finds the note looks whether the table has changed since, and runs
the statement again only if not; errors that say "this is done already" are forgiven (`refusals`).

Where transactions shall stay whole (`is_transactional`) they go to an `OrderedApplier` instead,
once lanes that a former process left at different places have caught up with each other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Sized
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

import structlog

from binlogd.drainer import sql
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl import session_clock
from binlogd.drainer.ddl.edits import alter_parts, begins, without_foreign_keys
from binlogd.drainer.ddl.marks import with_long_text
from binlogd.drainer.doubt import say_cut
from binlogd.drainer.filtering.loopback import LoopControl
from binlogd.drainer.mysql import catalog, ddl_note
from binlogd.drainer.mysql.apply import Applier, LaneApplier
from binlogd.drainer.mysql.connection import (
    Done,
    MySqlServer,
    SqlRefused,
    SqlSession,
    TryAgain,
    patiently,
)
from binlogd.drainer.mysql.ddl_watch import DdlWatch
from binlogd.drainer.mysql.ordered import LOCK_WAIT, OrderedApplier
from binlogd.drainer.mysql.refusals import (
    FORGIVEN,
    FORGIVEN_AGAIN,
    NO_FOREIGN_KEY,
    ROW_TOO_LARGE,
    cut_by_ddl,
    is_lax_enough,
    shortened,
)
from binlogd.drainer.mysql.store import MySqlStore
from binlogd.drainer.mysql.tables import Tables
from binlogd.drainer.mysql.trash import TrashBin, TrashOptions
from binlogd.drainer.mysql.writer import LaneContext, LaneCounters, RowWriter
from binlogd.drainer.rows.parts import Gatherer, Limits
from binlogd.drainer.rows.progress import LanePosition, PendingDdl, Restart
from binlogd.drainer.rows.shape import DownstreamTable, Shapes
from binlogd.drainer.rows.target import Reader
from binlogd.drainer.sink import RowNotFoundRule, SinkStatistics
from binlogd.drainer.txn import Ddl, Dml, Txn, combined
from binlogd.errors import DdlOutcomeUnknown, DownstreamUnavailable, StatementRejected
from binlogd.tso import MAX_TS, NO_TS, Tso

log = structlog.get_logger(__name__)

T = TypeVar("T")
OLD_SESSION_WAITS_MAX = 30
POSITION_EVERY_S = 60.0
POSITION = b"SHOW MASTER STATUS"
_KEEPS_NO_BINLOG = 1105
"""TiDB's error without a number of its own."""


@dataclass(frozen=True, slots=True)
class MySqlSinkOptions:
    """`lanes` is what `conflict.lanes_for` makes of worker-count. `schema` holds the checkpoint.
    With `is_transactional` there are as many connections, and progress in one row."""

    lanes: int = 4
    is_transactional: bool = False
    has_positions: bool = False
    """The downstream tells a timestamp of its own (TiDB)."""
    loop: LoopControl | None = None
    schema: str = "tidb_binlog"
    checkpoint_table: str = "checkpoint"
    checkpoint_server: MySqlServer | None = None
    """Where the checkpoint is, if not with the data."""
    trash: TrashOptions | None = None
    limits: Limits = field(default_factory=Limits)
    shapes: Shapes = field(default_factory=Shapes)
    row_not_found: RowNotFoundRule = RowNotFoundRule.STOP
    tells_missing: bool = True
    """Whether the downstream holds what the log says, and nothing is left out or done by others."""
    passed_over: Sized = ()
    """What an operator chose to leave out: by key, a row that is missing stops nothing then."""
    now_ts: Tso = NO_TS
    """What data that others have loaded may hold already, at the most."""

    @property
    def progress_rows(self) -> int:
        """How many progress rows the layout has."""
        return 1 if self.is_transactional else self.lanes


class MySqlSink:
    """A `Sink`; see the module."""

    def __init__(
        self, server: MySqlServer, cluster_id: int, options: MySqlSinkOptions, rng: Random
    ) -> None:
        self._server, self._options, self._rng = server, options, rng
        self._trash = TrashBin(server, options.trash) if options.trash is not None else None
        self._store = MySqlStore(
            server, options.schema, cluster_id, options.checkpoint_table, options.checkpoint_server
        )
        self._control: SqlSession | None = None
        self._ddl_session: SqlSession | None = None
        """Of the DDL that is at work: all of it runs on one, with the notes about it."""
        self._laying_out = asyncio.Lock()
        self._applier: Applier | None = None
        """Where transactions go; `run` follows when it is replaced."""
        self._restart, self._low_ts = Restart((), None), NO_TS
        self._is_laid_out = False
        self._tables = Tables(options.shapes, self._described, self.flush, self._store.note_shape)
        self._retired: list[LaneCounters] = []
        """Of the layouts before this one."""
        self._watch = DdlWatch(server)
        self._ts_map: dict[str, int] = {}
        """The last two moments of both sides that are known to be equal."""
        self._position_due_s = 0.0
        self._ddls = self._in_doubt = 0
        self._is_unread = False
        """A former life did the DDL that is at work without strictness, and read no warnings."""

    # --- the protocol ----------------------------------------------------------------------

    async def open(self) -> Checkpoint | None:
        """See Sink. Raises DownstreamUnavailable, ConfigError."""
        options = self._options
        checkpoint, restart, noted = await self._store.open(options.progress_rows, options.now_ts)
        await self._connect()
        self._restart, self._low_ts = restart, restart.low_ts
        is_same = not options.is_transactional and len(restart.lanes) == options.lanes
        self._is_laid_out = restart.is_level or is_same
        is_noting = not (options.is_transactional and restart.is_level)
        self._tables.begin(noted, restart.high_ts, is_noting=is_noting)
        self._applier = await self._made(restart.lanes, level=restart.is_level)
        log.info(
            "downstream_opened",
            server=str(self._server),
            lanes=len(restart.lanes),
            low_ts=restart.low_ts,
            high_ts=restart.high_ts,
        )
        return checkpoint

    async def _connect(self) -> None:
        """The session for all but rows, and what rows are written with."""
        options = self._options
        packet_bytes_max = await self._store.packet_bytes_max()
        self._control = await SqlSession.connect(self._server)
        if self._trash is not None:
            await self._trash.prepare(self._control)
        limits = options.limits
        statement_bytes_max = min(limits.statement_bytes_max, packet_bytes_max - 1024)
        self._context = LaneContext(
            self._server,
            self._store.progress,
            replace(limits, statement_bytes_max=statement_bytes_max),
            packet_bytes_max,
            self._rng,
            options.loop,
            options.shapes.leaves_out_columns,
            options.row_not_found,
            options.passed_over,
        )
        for statement in options.loop.create() if options.loop is not None else ():
            await self._control.run(statement)

    async def run(self) -> None:
        """See Sink."""
        if self._trash is None:
            await self._apply()
            return
        async with asyncio.TaskGroup() as group:
            sweeping = group.create_task(self._trash.run(self.applied_ts), name="trash")
            await self._apply()
            sweeping.cancel()

    async def _apply(self) -> None:
        applier = None
        while applier is not self._applier:
            applier = self._current
            await applier.run()

    async def submit(self, txns: Sequence[Txn]) -> None:
        """See Sink. Raises also what `run` raises, and StatementRejected of a DDL."""
        options, clock = self._options, asyncio.get_running_loop().time
        if options.has_positions and clock() >= self._position_due_s:
            await self.flush()
            await self._asked(self._note_position)
        for txn in combined(txns):
            if txn.commit_ts <= self._low_ts:
                continue
            if isinstance(txn, Dml):
                if self._is_layout_due(txn.commit_ts):
                    await self._laid_out_anew()
                readers = self._tables.known_readers(txn) or await self._readers_of(txn)
                await self._current.add(txn, readers)
            elif isinstance(txn, Ddl):
                await self._ddl(txn)
            else:
                self._current.gatherer.skip(txn.commit_ts)
        self._current.wake()

    async def flush(self) -> None:
        """See Sink."""
        await self._current.flush()

    def applied_ts(self) -> Tso:
        """See Sink."""
        applier = self._applier
        return self._restart.low_ts if applier is None else applier.applied_ts()

    async def save(self, checkpoint: Checkpoint) -> None:
        """See Sink."""
        checkpoint = replace(checkpoint, ts_map={**checkpoint.ts_map, **self._ts_map})
        async with self._laying_out:
            left = self._restart.lanes if self._applier is None else self._current.positions
            await self._store.save(checkpoint, left)

    async def close(self) -> None:
        """See Sink."""
        if self._applier is not None:
            self._applier.close()
        if self._control is not None:
            self._control.close()
        self._store.close()

    def statistics(self) -> SinkStatistics:
        """See Sink."""
        counters = self._retired[:]
        positions: Sequence[LanePosition] = ()
        rows_queued = txns_queued = 0
        if (applier := self._applier) is not None:
            counters += [writer.counters for writer in applier.writers]
            positions = applier.positions
            rows_queued, txns_queued = applier.changes_queued, applier.txns_queued
        retries = sum((each.retries for each in counters), Counter[str]())
        return SinkStatistics(
            applied_ts=self.applied_ts(),
            txns_applied=sum(each.txns for each in counters),
            rows_applied=sum(each.rows for each in counters),
            ddls_applied=self._ddls,
            lane_ts=tuple(each.whole_ts for each in positions),
            furthest_ts=max((each.commit_ts for each in positions), default=NO_TS),
            txns_queued=txns_queued,
            rows_queued=rows_queued,
            bytes_written=sum(each.bytes_written for each in counters),
            retries=retries.total(),
            retries_by_kind=dict(retries),
            ddl=self._watch.running,
            query_seconds=self._server.times.statistics(),
            rows_not_found=sum(each.rows_not_found for each in counters),
            values_in_doubt=self._in_doubt,
            trash=self._trash.statistics() if self._trash is not None else None,
        )

    async def _note_position(self, session: SqlSession) -> None:
        """Asks a TiDB, while nothing is in work, for its own timestamp: read as of it, it holds
        exactly what the upstream held at `primary-ts`. Tools that compare two clusters take such a
        pair. Raises DownstreamUnavailable.

        Source: tidb-binlog drainer/sync/mysql.go, pkg/loader/load.go.
        """
        self._position_due_s = asyncio.get_running_loop().time() + POSITION_EVERY_S
        try:
            rows = await session.rows(POSITION)
        except SqlRefused as error:
            if error.code != _KEEPS_NO_BINLOG:
                log.warning("downstream_position_unknown", cause=str(error))
            return
        if rows and rows[0][1]:
            self._ts_map = {"primary-ts": self.applied_ts(), "secondary-ts": int(rows[0][1])}

    # --- lanes -----------------------------------------------------------------------------

    @property
    def _known_after(self) -> Tso:
        """From where on the log tells which rows the downstream holds."""
        return self._restart.repeated_ts if self._options.tells_missing else MAX_TS

    @property
    def _current(self) -> Applier:
        assert self._applier is not None, "the sink is not open"
        return self._applier

    async def _made(self, positions: Sequence[LanePosition], *, level: bool) -> Applier:
        context = replace(self._context, lanes=len(positions))
        limits = context.limits.of_lane(len(positions))
        gatherer = Gatherer(positions, limits, self._known_after)
        applier: Applier
        if self._options.is_transactional and level:
            wishes = (LOCK_WAIT,) if self._options.lanes > 1 else ()
            writers = [RowWriter(each, context, wishes) for each in range(self._options.lanes)]
            applier = OrderedApplier(writers, gatherer, positions[0])
        else:
            writers = [RowWriter(lane, context) for lane in range(len(positions))]
            applier = LaneApplier(writers, gatherer, positions)
        try:
            for writer in writers:
                await writer.open()
        except BaseException:
            applier.close()
            raise
        return applier

    def _is_layout_due(self, commit_ts: Tso) -> bool:
        """Whether lanes have caught up with each other, and another layout is wanted."""
        return not self._is_laid_out and commit_ts > self._restart.high_ts

    async def _laid_out_anew(self) -> Applier:
        before, wanted = self._current, self._options.progress_rows
        await before.flush()
        positions = [LanePosition(before.applied_ts())] * wanted
        async with self._laying_out:
            await self._store.lay_out(before.positions, positions)
            log.info("lanes_laid_out", before=len(before.positions), lanes=wanted)
            self._retired += [writer.counters for writer in before.writers]
            self._applier = await self._made(positions, level=True)
        self._tables.begin({}, is_noting=not self._options.is_transactional)
        self._is_laid_out = True
        before.close()
        return self._applier

    # --- tables ----------------------------------------------------------------------------

    async def _readers_of(self, dml: Dml) -> list[Reader]:
        try:
            readers = await self._tables.readers_of(dml)
        except StatementRejected:  # a server that went back may lack the table
            await self._store.if_left(self._current.positions)
            raise
        if readers is None:
            await self._laid_out_anew()
            readers = await self._tables.readers_of(dml)
        assert readers is not None, "nothing is noted once lanes are level"
        return readers

    async def _described(self, database: str, table: str) -> DownstreamTable | None:
        return await self._asked(lambda session: catalog.table_of(session, database, table))

    async def _asked(self, question: Callable[[SqlSession], Awaitable[T]]) -> T:
        """The answer; on a new connection if the old one is gone (it idles most of the time)."""
        if self._control is not None:
            try:
                return await question(self._control)
            except TryAgain:
                raise
            except DownstreamUnavailable as error:
                log.info("control_connection_renewed", cause=str(error))
                self._control.close()
        self._control = await SqlSession.connect(self._server)
        return await question(self._control)

    # --- DDL -------------------------------------------------------------------------------

    async def _ddl(self, ddl: Ddl) -> None:
        applier = self._current
        if self._is_layout_due(ddl.commit_ts):
            applier = await self._laid_out_anew()
        await applier.flush()
        if ddl.commit_ts <= self._restart.high_ts:
            # Lanes are level at every DDL that is executed: this one was skipped the first time.
            if ddl.statements:
                log.warning("ddl_came_too_late", commit_ts=ddl.commit_ts)
            self._tables.forget(self._tables.touched(ddl))
            applier.gatherer.skip(ddl.commit_ts)
            return
        pending = self._restart.ddl
        if pending is not None and pending.commit_ts != ddl.commit_ts:
            pending = None
        begun, self._ddl_session = False, None
        is_alter = begins(ddl.statement, "ALTER")
        self._is_unread = is_alter and pending is not None and ddl_note.was_lax(pending.before)
        for step, statement in enumerate(ddl.statements):
            if pending is not None and step < pending.step:
                continue
            again = pending if pending is not None and step == pending.step else None
            await self._execute(ddl, step, statement, again)
            begun = True
        if self._is_unread:
            self._say_cut(ddl, ddl.statement, ())
        touched = self._tables.touched(ddl)
        self._tables.forget(touched)
        if begun or pending is not None:
            session, left = await self._session_for_ddl(), applier.positions
            position = await self._until_done(
                lambda: self._store.end_ddl(session, ddl.commit_ts, left, touched)
            )
            applier.stand_at(position)
            self._tables.forget_notes(touched)
            self._ddls += 1
        applier.gatherer.skip(ddl.commit_ts)  # no checkpoint passes the DDL while its note is there

    async def _execute(
        self,
        ddl: Ddl,
        step: int,
        text: str,
        again: PendingDdl | None,
        part: int = 0,
        *,
        is_lax: bool = False,
    ) -> None:
        """`part` counts, from 1, the parts of an ALTER that was refused as a whole; what `is_lax`
        was refused for strictness, and is done without."""
        if again is not None:
            await self._wait_for_end_of(again)
        target = ddl.target(step)
        session = await self._session_for_ddl()
        turn = ddl_note.goes_round(text, ddl.session_database or target.database)
        before = await ddl_note.taken(session, target.database, target.table, turn)
        if again is not None and again.part == part:
            place = ddl_note.TableOrPartition(target.database, target.table)
            former = ddl_note.Note.of(again.before)
            found = await ddl_note.outcome(session, ddl, place, turn, former, before)
            if found is ddl_note.Outcome.UNKNOWN:
                raise DdlOutcomeUnknown(ddl.commit_ts, shortened(text))
            if found is ddl_note.Outcome.DONE:
                log.info("ddl_found_done", commit_ts=ddl.commit_ts, statement=shortened(text))
                return
        applier, left = self._current, self._current.positions
        may_cut = is_lax and begins(text, "ALTER")
        before = before._replace(is_lax=may_cut or self._is_unread)
        note = PendingDdl(ddl.commit_ts, step, session.thread_id, str(before), part)
        position = await self._until_done(lambda: self._store.begin_ddl(session, note, left))
        applier.stand_at(position)
        try:
            await self._run_as_upstream(session, ddl, text, is_lax=is_lax)
        except SqlRefused as error:
            if not is_lax and is_lax_enough(error.code, text, was_strict=ddl.job.was_strict):
                await self._execute(ddl, step, text, again, part, is_lax=True)
                return
            other = self._changed(ddl, text, error)
            if other == text:
                self._forgive(ddl, text, error, again)
                await self._execute_parts(ddl, step, text, again)
            elif other:
                await self._execute(ddl, step, other, again, part)

    async def _session_for_ddl(self) -> SqlSession:
        """The connection for the DDL that is at work, from its first statement to its end.

        Behind another one there may be another server, which has the notes of what was done so far
        and lacks it. Raises DownstreamUnavailable where the first is gone: a restart looks it up.
        """
        if self._ddl_session is None:
            await self._asked(lambda session: session.rows(b"SELECT 1"))
            self._ddl_session = self._control
        assert self._ddl_session is not None, "it has just answered"
        return self._ddl_session

    async def _run_as_upstream(
        self, session: SqlSession, ddl: Ddl, text: str, *, is_lax: bool
    ) -> None:
        """In the database, at the time and in the zone of the DDL. Raises as `SqlSession.run`."""
        settings = session_clock.settings(ddl.job)
        work = self._set_and_run(session, ddl, settings, text, is_lax=is_lax)
        refused = None
        try:
            await self._watch.over(ddl.commit_ts, shortened(text), session, work)
        except SqlRefused as error:
            refused = error
        if settings:  # they were for this statement
            await self._until_done(lambda: session.run(session_clock.RESET))
        if refused is not None:
            raise refused

    async def _set_and_run(
        self,
        session: SqlSession,
        ddl: Ddl,
        settings: Sequence[session_clock.Setting],
        text: str,
        *,
        is_lax: bool,
    ) -> None:
        if ddl.session_database:
            await self._patiently(session, b"USE " + sql.ident(ddl.session_database))
        for setting in settings:
            try:
                await self._patiently(session, setting.statement.encode())
            except SqlRefused:
                if not setting.otherwise:
                    raise
                await self._patiently(session, setting.otherwise.encode())
        loop = self._options.loop
        sent = (loop.marked(text) if loop is not None else text).encode("utf-8", "surrogateescape")
        if not is_lax:
            await self._patiently(session, sent)
            return
        async with session.lax():
            done = await self._patiently(session, sent)
            found = await session.warnings() if done.warnings else []
        cut = cut_by_ddl(found, dict(ddl.job.warnings))
        if cut:
            self._say_cut(ddl, text, [f"{each.code}: {each.message}" for each in cut])

    def _say_cut(self, ddl: Ddl, text: str, warnings: Sequence[str]) -> None:
        self._in_doubt += 1
        say_cut(ddl, shortened(text), warnings)

    async def _execute_parts(
        self, ddl: Ddl, step: int, text: str, again: PendingDdl | None
    ) -> None:
        """The parts of an ALTER that was refused as a whole, since the server did nothing of it.
        Unless it did all of it in a former life, and nobody can tell."""
        if again is not None and not ddl.target(step).table:
            return
        begun = again.part if again is not None else 0
        for number, part in enumerate(alter_parts(text), start=1):
            if number >= begun:
                await self._execute(ddl, step, part, again if number == begun else None, number)

    def _changed(self, ddl: Ddl, text: str, error: SqlRefused) -> str:
        """What to execute instead of a refused statement, "" for nothing; or the statement."""
        other = text
        if error.code == ROW_TOO_LARGE:
            indexes = ddl.job.table.indexes if ddl.job.table else ()
            indexed = (part.name.lower() for index in indexes for part in index.columns)
            other = with_long_text(text, indexed)
        elif error.code in NO_FOREIGN_KEY:
            other = without_foreign_keys(text)
        if other != text:
            log.warning(
                "ddl_changed", commit_ts=ddl.commit_ts, before=shortened(text), reason=error.reason
            )
        return other

    def _forgive(self, ddl: Ddl, text: str, error: SqlRefused, again: PendingDdl | None) -> None:
        """Raises StatementRejected for an error that does not say that all is done."""
        forgiven = FORGIVEN if again is None else FORGIVEN_AGAIN
        if ddl.takes_back or error.code not in forgiven:
            raise error.of_ddl(ddl.commit_ts, shortened(text)) from error
        error.forgiven(ddl.commit_ts, shortened(text))

    async def _patiently(self, session: SqlSession, statement: bytes) -> Done:
        """Runs a statement of a DDL, which is watched, again when it met another one."""
        return await self._until_done(lambda: session.run(statement, is_long=True))

    async def _until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does it, again when it met somebody else's work."""
        return await patiently(work, self._rng, first_s=0.1, event="ddl_retried")

    async def _wait_for_end_of(self, begun: PendingDdl) -> None:
        """A connection that was lost may still be at the DDL; it is not run again beside it."""
        note = ddl_note.Note.of(begun.before)
        connection = note.connection if note is not None else ""
        for _ in range(OLD_SESSION_WAITS_MAX):
            if not await self._asked(
                lambda session: catalog.is_busy(session, begun.session_id, connection)
            ):
                return
            await asyncio.sleep(1.0)
        raise DownstreamUnavailable(
            f"{self._server}: connection {begun.session_id} is still at the DDL that was begun"
        )
