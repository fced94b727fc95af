"""Transactions that tell names into MySQL, MariaDB or TiDB: by one connection, in their order.

Invariant. The downstream moves from one state that the upstream had to a later one. Why it holds: a
downstream transaction is a run of whole upstream transactions, cut where it gets large; a DDL waits
for all before it. `applied_ts` moves when the COMMIT is answered.

This is the road of what is read from files (a replay, the original's relay log). It keeps no
progress downstream: who starts again after a crash says so, and rows are written safely.

Source: tidb-binlog reparo/syncer/mysql.go, pkg/loader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random

import structlog

from binlogd.drainer import sql
from binlogd.drainer.ddl.comments import TwoReadings, check_escapes
from binlogd.drainer.ddl.edits import Dialect, alter_parts, begins, edited, split
from binlogd.drainer.messages.named import NamedDdl, NamedRow, NamedTransaction
from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import (
    NO_SUCH_TABLE,
    MySqlServer,
    SqlRefused,
    SqlSession,
    TryAgain,
    patiently,
)
from binlogd.drainer.mysql.named_sql import NamedTable, Piece
from binlogd.drainer.mysql.refusals import FORGIVEN, changed_value, is_lax_enough, shortened
from binlogd.errors import StatementRejected, UnsupportedDdl
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedOptions:
    """`is_safe`: some of it may have been applied before. A downstream transaction ends behind the
    transaction that brings it to one of the limits."""

    is_safe: bool
    batch_bytes_max: int = 1 << 20
    batch_txns_max: int = 500
    statement_bytes_max: int = 1 << 20


@dataclass(slots=True)
class NamedCounters:
    """What was applied. `rows_missing`: updates and deletes that found no row (not told where rows
    are written safely), `missing_in` by table. `columns_missing`: `database.table.column` of rows,
    which the downstream lacks: nothing was written there."""

    transactions: int = 0
    rows: int = 0
    ddls: int = 0
    rows_missing: int = 0
    missing_in: Counter[str] = field(default_factory=Counter)
    columns_missing: list[str] = field(default_factory=list)
    retries: int = 0


class NamedApplier:
    """Used by one task: `open`, `apply`..., `flush`, `close`."""

    def __init__(self, server: MySqlServer, options: NamedOptions, rng: Random) -> None:
        self.applied_ts = NO_TS
        self.counters = NamedCounters()
        self._server, self._options, self._rng = server, options, rng
        self._rows: SqlSession | None = None
        self._control: SqlSession | None = None
        self._dialect = Dialect.MYSQL
        self._tables: dict[tuple[str, str], NamedTable] = {}
        self._batch: list[NamedTransaction] = []
        self._batch_bytes = 0

    async def open(self) -> None:
        """Connects. Raises DownstreamUnavailable, ConfigError."""
        self._control = await SqlSession.connect(self._server)
        self._rows = await SqlSession.connect(self._server, for_rows=True)
        ((version,),) = await self._control.rows(b"SELECT VERSION()")
        if "tidb" in str(version).lower():
            self._dialect = Dialect.TIDB

    async def apply(self, transaction: NamedTransaction, size_bytes: int) -> None:
        """The next one, in commit order; applied at once, or with those that follow. Raises
        StatementRejected, DownstreamUnavailable, and Corrupt of its rows: all before it is applied
        then, or not, as `applied_ts` says."""
        if transaction.ddl is not None:
            await self.flush()
            await self._ddl(transaction.commit_ts, transaction.ddl)
            self.applied_ts = transaction.commit_ts
            return
        self._batch.append(transaction)
        self._batch_bytes += size_bytes
        options = self._options
        is_full = self._batch_bytes >= options.batch_bytes_max
        if is_full or len(self._batch) >= options.batch_txns_max:
            await self.flush()

    async def flush(self) -> None:
        """Returns when everything given is applied. Raises as `apply`."""
        if not self._batch:
            return
        rows, missing = await patiently(
            self._transaction, self._rng, first_s=0.05, event="replay_retried"
        )
        self.counters.transactions += len(self._batch)
        self.counters.rows += rows
        self.counters.rows_missing += missing.total()
        self.counters.missing_in += missing
        self._note_left_out()
        self.applied_ts = self._batch[-1].commit_ts
        self._batch, self._batch_bytes = [], 0

    def close(self) -> None:
        """Drops the connections; what was not committed is rolled back by the server."""
        for session in (self._rows, self._control):
            if session is not None:
                session.close()

    # --- rows ------------------------------------------------------------------------------

    async def _transaction(self) -> tuple[int, Counter[str]]:
        """The batch as one downstream transaction: its rows, and by table those not found."""
        assert self._rows is not None, "apply before open"
        session, rows, missing = self._rows, 0, Counter[str]()
        try:
            for transaction in self._batch:
                run = _Run(session, transaction.commit_ts, self._options.statement_bytes_max)
                for row in transaction.rows():
                    table = await self._table(row, transaction.commit_ts)
                    for piece in table.pieces(row):
                        await run.add(piece, table)
                    rows += 1
                await run.end()
                missing += run.missing
            await session.run(b"COMMIT")
        except (TryAgain, StatementRejected) as error:
            self.counters.retries += isinstance(error, TryAgain)
            await session.run(b"ROLLBACK")
            raise
        return rows, Counter() if self._options.is_safe else missing

    async def _table(self, row: NamedRow, commit_ts: Tso) -> NamedTable:
        key = row.database, row.table
        table = self._tables.get(key)
        if table is None:
            assert self._control is not None, "apply before open"
            found = await catalog.table_of(self._control, row.database, row.table)
            if found is None:
                missing = SqlRefused(NO_SUCH_TABLE, "the table does not exist downstream")
                raise missing.of_rows(commit_ts, f"rows of {row.database}.{row.table}")
            table = NamedTable(row.database, row.table, found, is_safe=self._options.is_safe)
            self._tables[key] = table
        return table

    # --- DDL -------------------------------------------------------------------------------

    async def _ddl(self, commit_ts: Tso, ddl: NamedDdl) -> None:
        assert self._control is not None, "apply before open"
        self._tables.clear()
        for statement in split(ddl.text):
            text = self._edited(commit_ts, statement)
            if not text:
                log.info("ddl_passed_over", commit_ts=commit_ts, statement=shortened(statement))
                continue
            pairs = product(("CREATE", "DROP"), ("DATABASE", "SCHEMA"))  # which may not be there
            is_of_database = any(begins(text, *pair) for pair in pairs)
            try:
                await self._execute(commit_ts, "" if is_of_database else ddl.database, text)
            except SqlRefused as error:
                raise error.of_ddl(commit_ts, shortened(text)) from error
        self.counters.ddls += 1

    async def _execute(self, commit_ts: Tso, database: str, text: str) -> None:
        """Strictly, but for what is made: that has no values that nobody would tell of after a
        crash. Raises as `_patiently`."""
        assert self._control is not None, "apply before open"
        statement = text.encode("utf-8", "surrogateescape")
        try:
            if database:
                await self._patiently(b"USE " + sql.ident(database))
            await self._patiently(statement)
        except SqlRefused as error:
            if begins(text, "CREATE") and is_lax_enough(error.code, text, was_strict=True):
                async with self._control.lax():
                    await self._patiently(statement)
                return
            if error.code not in FORGIVEN:
                raise
            error.forgiven(commit_ts, shortened(text))
            for part in alter_parts(text):
                await self._execute(commit_ts, database, part)

    def _edited(self, commit_ts: Tso, statement: str) -> str:
        """Raises UnsupportedDdl."""
        left_out: list[str] = []
        try:
            check_escapes(statement)
            text = edited(statement, self._dialect, left_out)
        except TwoReadings as error:
            raise UnsupportedDdl(commit_ts, statement, str(error)) from error
        for part in left_out:
            log.warning("ddl_changed", commit_ts=commit_ts, left_out=part)
        return text

    async def _patiently(self, statement: bytes) -> None:
        assert self._control is not None, "apply before open"
        run = partial(self._control.run, statement, is_long=True)
        await patiently(run, self._rng, first_s=0.1, event="ddl_retried")

    def _note_left_out(self) -> None:
        left_out = {f"{at.label}.{name}" for at in self._tables.values() for name in at.left_out}
        if new := left_out.difference(self.counters.columns_missing):
            log.warning("columns_left_out", columns=sorted(new))
            self.counters.columns_missing += sorted(new)


class _Run:
    """Pieces of one transaction, joined to statements while they have one head."""

    def __init__(self, session: SqlSession, commit_ts: Tso, bytes_max: int) -> None:
        self.missing = Counter[str]()
        self._session, self._commit_ts, self._bytes_max = session, commit_ts, bytes_max
        self._pieces: list[Piece] = []
        self._table: NamedTable | None = None
        self._size_bytes = 0

    async def add(self, piece: Piece, table: NamedTable) -> None:
        is_other = not self._pieces or not piece.head or self._pieces[0].head != piece.head
        if is_other or self._size_bytes + len(piece.item) > self._bytes_max:
            await self.end()
        self._pieces.append(piece)
        self._table = table
        self._size_bytes += len(piece.item) + 1

    async def end(self) -> None:
        """Sends what was added, as one statement; counts the rows that it did not find, by table.
        Raises what a refused statement is for a sink, and DownstreamUnavailable."""
        if not self._pieces or self._table is None:
            return
        first = self._pieces[0]
        items = [piece.item for piece in self._pieces]
        tail = sql.delete_tail(items) if first.head and first.finds_row else b""
        statement = first.head + b",".join(items) + tail
        try:
            done = await self._session.run(statement)
            if done.warnings:
                await self._look_at_warnings(self._table)
        except SqlRefused as error:
            shown = statement.decode("utf-8", "replace")
            raise error.of_rows(self._commit_ts, shortened(shown)) from error
        if first.finds_row:
            self.missing[self._table.label] += max(0, len(self._pieces) - done.affected)
        self._pieces, self._size_bytes = [], 0

    async def _look_at_warnings(self, table: NamedTable) -> None:
        changed = changed_value(await self._session.warnings(), table.members)
        if changed is not None:
            reason = f"the downstream would change a value: {changed.message}"
            raise SqlRefused(changed.code, reason)
