"""A replica in one SQLite file: every state that a reader sees is one that the upstream had.

Invariant. The file holds exactly the transactions up to the commit_ts that it names itself, each
once. Why it holds: whole transactions are applied in commit order, DDL among them, and the progress
is written in the same SQLite transaction, which is durable when it returns (synchronous = FULL).
What a table looks like is told in `replica`, what else the file has in docs/FORMAT.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.pending import PendingItem, PendingLimits, PendingTransactions, pending_whole
from binlogd.drainer.rows.parts import size_of
from binlogd.drainer.rows.shape import tells_missing
from binlogd.drainer.sink import RowNotFoundRule, SinkStatistics
from binlogd.drainer.sqlite import replica
from binlogd.drainer.sqlite.ddl import ReplicaCatalog, ReplicaTable, changes_of, follow, name_of
from binlogd.drainer.sqlite.replica import NotStorable, Stored
from binlogd.drainer.sqlite.rows import SqliteRowWriter
from binlogd.drainer.txn import BY_HAND, Ddl, Dml, TableChange, Txn
from binlogd.errors import (
    BinlogdError,
    ConfigError,
    CorruptRow,
    DownstreamUnavailable,
    DownstreamWentBack,
    RowMismatch,
    RowNotFound,
    StatementRejected,
    UnsupportedDdl,
)
from binlogd.host.database import Connection, FileAt, connection_to
from binlogd.ports import Disk
from binlogd.tidb.model import TableAt, table_from_json, table_to_json
from binlogd.tidb.per_table import PerTable
from binlogd.tso import Tso

_LIMITS = PendingLimits(queued_rows=100_000, group_rows=20_000)
SLICE_ROWS = 500
SLICE_BYTES = 4 << 20
"""Rows that go to SQLite's thread at once."""
LOCK_WAIT_S = 10.0
WARNINGS_SHOWN_MAX = 20

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS _binlogd_progress (
        id INTEGER PRIMARY KEY CHECK (id = 1), commit_ts INTEGER NOT NULL, checkpoint TEXT
    );
    INSERT OR IGNORE INTO _binlogd_progress VALUES (1, 0, NULL);
    CREATE TABLE IF NOT EXISTS _binlogd_tables (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE COLLATE NOCASE, info BLOB NOT NULL
    );
    CREATE TABLE IF NOT EXISTS _binlogd_whole (id INTEGER PRIMARY KEY);
"""

_MAGIC = b"SQLite format 3\0"
_TABLES = "SELECT name, info, id IN (SELECT id FROM _binlogd_whole) FROM _binlogd_tables"

log = structlog.get_logger(__name__)


class _Run(NamedTuple):
    """Rows of one transaction, one after the other, that go by one statement."""

    commit_ts: Tso
    sql: str
    writer: SqliteRowWriter
    must_match: bool
    values: list[tuple[Stored, ...]]


class SqliteSink:
    """A `Sink` that writes `path`; see the module."""

    def __init__(
        self,
        path: Path,
        disk: Disk,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        row_not_found: RowNotFoundRule = RowNotFoundRule.STOP,
        tells_missing: bool = True,
        passed_over: Sized = (),
    ) -> None:
        """As those of `MySqlSinkOptions` are `row_not_found`, `tells_missing`, `passed_over`."""
        self._path, self._disk, self._lock_wait_s = path, disk, lock_wait_s
        self._row_not_found, self._rows_not_found = row_not_found, 0
        self._tells_missing, self._passed_over = tells_missing, passed_over
        self._connection: Connection | None = None
        self._catalog = ReplicaCatalog({})
        self._writers = PerTable(self._new_writer)
        self._pending = PendingTransactions[Txn](_LIMITS)
        self._made: list[_Run] = []
        self._rows_made = 0

    # --- opening -----------------------------------------------------------------------------

    async def open(self) -> Checkpoint | None:
        """Opens or makes the file. Raises ConfigError when it is something else,
        DownstreamUnavailable when it is locked."""
        with _opening(self._path):
            await self._disk.make_directory(self._path.parent)
            self._connection = connection = await connection_to(
                self._path, isolation_level=None, timeout=self._lock_wait_s
            )
            await connection.execute("PRAGMA journal_mode = WAL")
            await connection.execute("PRAGMA synchronous = FULL")
            # a table that is made anew under its name: views that others have put on it stay
            await connection.execute("PRAGMA legacy_alter_table = ON")
            await connection.executescript(_SCHEMA)
            (progress,) = await connection.execute_fetchall(
                "SELECT commit_ts, checkpoint FROM _binlogd_progress"
            )
            tables = await connection.execute_fetchall(_TABLES)
            self._file = FileAt(self._path)
        held = [
            ReplicaTable(name, table_from_json(info), bool(whole)) for name, info, whole in tables
        ]
        self._catalog = ReplicaCatalog({each.info.id: each for each in held})
        self._pending.begin(Tso(progress[0]))
        return Checkpoint.from_json(progress[1]) if progress[1] else None

    # --- submitting --------------------------------------------------------------------------

    async def submit(self, txns: Sequence[Txn]) -> None:
        """Queues; waits for room. Raises what `run` failed with."""
        await self._pending.put(map(pending_whole, txns))

    async def flush(self) -> None:
        """Returns when everything submitted is durable. Raises what `run` failed with."""
        await self._pending.flush()

    # --- applying ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Applies what is queued; ends after `close`."""
        await self._pending.run(self._apply)

    async def _apply(self, items: Sequence[PendingItem[Txn]]) -> None:
        """Some whole transactions in one of SQLite's, with the progress."""
        group = [item.form for item in items]
        assert self._connection is not None, "run before open"
        last_ts = group[-1].commit_ts
        await self._execute("BEGIN IMMEDIATE", (), self._pending.applied_ts)
        try:
            await self._progress("commit_ts", last_ts)
            for txn in group:
                match txn:
                    case Dml():
                        for change in txn.changes:
                            await self._change(change, txn.commit_ts)
                    case Ddl():
                        await self._execute_made()
                        await self._alter(txn)
            await self._execute_made()
            await self._execute("COMMIT", (), last_ts)
        except BaseException:
            if self._connection.in_transaction:
                await self._connection.rollback()
            raise

    async def _change(self, change: TableChange, commit_ts: Tso) -> None:
        """The rows of one table: they wait, some of them, for those of other changes."""
        mutation = change.mutation
        row_bytes = size_of(mutation) // max(len(mutation.sequence), 1)
        slice_rows = max(1, min(SLICE_ROWS, SLICE_BYTES // max(row_bytes, 1)))
        try:
            if self._catalog.get(change.table.info.id) is None:
                await self._take_in(change.table, commit_ts)
            writer, run = self._writers.of(change.table), None
            for one in writer.changes(mutation):
                if self._rows_made >= slice_rows:
                    await self._execute_made()
                    run = None
                if run is None or run.sql != one.sql:
                    run = _Run(commit_ts, one.sql, writer, one.must_match, [])
                    self._made.append(run)
                run.values.append(one.values)
                self._rows_made += 1
        except CorruptRow as error:
            raise RowMismatch(change.table.label, commit_ts, str(error)) from error

    async def _execute_made(self) -> None:
        """In one hop to SQLite's thread: a hop costs more than a row does."""
        runs, self._made, self._rows_made = self._made, [], 0
        if not runs:
            return
        assert self._connection is not None
        # aiosqlite's own way to its thread; it has none that others may take
        hop: Any = self._connection._execute  # noqa: SLF001 - see above
        connection = self._connection._conn  # noqa: SLF001 - see above
        rule, passed_over = self._row_not_found, self._passed_over
        missed = await hop(lambda: _executed(connection, runs, rule, passed_over, self._path))
        for error in missed:
            self._rows_not_found += 1
            if self._rows_not_found <= WARNINGS_SHOWN_MAX:
                log.warning("row_not_found", rule=self._row_not_found.value, cause=error.message)

    def _new_writer(self, table: TableAt) -> SqliteRowWriter:
        held = self._catalog.get(table.info.id)
        assert held is not None, "taken in before"
        says_missing = held.is_whole and self._tells_missing and tells_missing(held.info)
        return SqliteRowWriter(held.name, held.info, table, tells_missing=says_missing)

    async def _take_in(self, table: TableAt, commit_ts: Tso) -> None:
        """A table that was there before this replica began.

        Where one of this name is held it has got another id by a DDL that was left out here, such
        as a TRUNCATE: it goes on with the rows that it has.
        """
        held = ReplicaTable(name_of(table.database, table.info.name), table.info)
        if self._catalog.named(held.name) is None:
            for text in replica.create(held.name, held.info):
                await self._execute(text, (), commit_ts)
        self._catalog.put(held)
        await self._keep_tables(commit_ts)
        log.info("table_taken_in", table=held.name, commit_ts=commit_ts)

    async def _alter(self, ddl: Ddl) -> None:
        self._writers = PerTable(self._new_writer)
        if ddl.is_skipped:
            if ddl.reason in BY_HAND:
                follow(ddl, self._catalog)
                await self._keep_tables(ddl.commit_ts)
            return
        try:
            statements, functions = changes_of(ddl, self._catalog)
        except NotStorable as error:
            raise UnsupportedDdl(ddl.commit_ts, ddl.statement, str(error)) from error
        assert self._connection is not None, "run before open"
        for each in functions:
            await self._connection.create_function(each.name, each.arguments, each)
        try:
            for text, values in statements:
                await self._execute(text, values, ddl.commit_ts)
        except StatementRejected as error:
            refusal = next((each.refusal for each in functions if each.refusal), "")
            if not refusal:
                raise
            raise UnsupportedDdl(ddl.commit_ts, ddl.statement, refusal) from error
        await self._keep_tables(ddl.commit_ts)

    async def _keep_tables(self, commit_ts: Tso) -> None:
        """What has changed in the catalog; first what goes, since its name may come again."""
        changes = self._catalog.changes()
        for table_id in changes:
            for name in ("_binlogd_tables", "_binlogd_whole"):
                await self._execute(f"DELETE FROM {name} WHERE id = ?", (table_id,), commit_ts)
        for table_id, held in changes.items():
            if held is not None:
                row = table_id, held.name, table_to_json(held.info)
                await self._execute("INSERT INTO _binlogd_tables VALUES (?, ?, ?)", row, commit_ts)
                if held.is_whole:
                    text = "INSERT INTO _binlogd_whole VALUES (?)"
                    await self._execute(text, (table_id,), commit_ts)

    async def _execute(self, text: str, values: Iterable[object], commit_ts: Tso) -> int:
        """Rows that it changed."""
        assert self._connection is not None
        try:
            return (await self._connection.execute(text, tuple(values))).rowcount
        except sqlite3.Error as error:
            raise _refused(error, text, commit_ts, self._path) from error

    # --- progress ----------------------------------------------------------------------------

    def applied_ts(self) -> Tso:
        """Everything up to here is in the file, durable."""
        return self._pending.applied_ts

    async def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint. Raises DownstreamUnavailable; where the file is gone, with which
        SQLite would go on, DownstreamWentBack."""
        async with self._pending.writing:
            try:
                self._file.must_be()
            except sqlite3.OperationalError as error:
                path, left = str(self._path), str(self._pending.applied_ts)
                raise DownstreamWentBack(path, f"nothing: {error}", left) from error
            await self._progress("checkpoint", checkpoint.to_json().decode())

    async def _progress(self, column: str, value: int | str) -> None:
        """Raises DownstreamUnavailable where somebody else has moved it: rows would come twice."""
        moved = await self._execute(
            f"UPDATE _binlogd_progress SET {column} = ? WHERE commit_ts = ?",
            (value, self._pending.applied_ts),
            self._pending.applied_ts,
        )
        if not moved:
            raise DownstreamUnavailable(
                f"another process writes to {self._path}: only one may, stop it"
            )

    async def close(self) -> None:
        """Drops what is queued, waits for a group that is under way, closes the file."""
        self._pending.close()
        async with self._pending.writing:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()

    def statistics(self) -> SinkStatistics:
        """How it stands; cheap."""
        return replace(self._pending.statistics(), rows_not_found=self._rows_not_found)


def look(path: Path) -> None:
    """Whether a file that is there can be opened as a replica, by its first bytes: SQLite would
    leave files beside it. Raises as `SqliteSink.open`."""
    with _opening(path), path.open("r+b") as file:
        if file.read(len(_MAGIC)) not in (b"", _MAGIC):
            raise sqlite3.DatabaseError("file is not a database")


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Raises for what SQLite says of a file that is opened."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
            raise DownstreamUnavailable(f"{path}: {error}") from error
        raise ConfigError(
            f"{path}: cannot be opened as a replica: {error}",
            todo="move away what is there, or name another directory in syncer.to.dir",
        ) from error


_PASSING = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL}
)
_OF_THE_STATEMENT = frozenset(
    {
        *(0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH),
        *(sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_SCHEMA),
    }
)
"""0: Python refuses it. Anything else is wrong with the file: to pass over a transaction does not
help."""


def _executed(
    connection: sqlite3.Connection,
    runs: Sequence[_Run],
    rule: RowNotFoundRule,
    passed_over: Sized,
    path: Path,
) -> list[RowNotFound]:
    """Rows that were not there and may be missing. Raises DownstreamUnavailable, StatementRejected,
    RowNotFound."""
    missed: list[RowNotFound] = []
    for run in runs:
        try:
            if run.must_match:
                asked = rule.by_key(passed_over) if run.writer.has_key else rule
                missed += _matched(connection, run, asked)
            else:
                connection.executemany(run.sql, run.values)
        except sqlite3.Error as error:
            raise _refused(error, run.sql, run.commit_ts, path) from error
    return missed


def _matched(
    connection: sqlite3.Connection, run: _Run, rule: RowNotFoundRule
) -> Iterator[RowNotFound]:
    """Each row that its statement does not find. Raises RowNotFound."""
    cursor = connection.cursor()
    for values in run.values:
        if cursor.execute(run.sql, values).rowcount:
            continue
        error = run.writer.not_found(run.sql, values, run.commit_ts)
        if rule is RowNotFoundRule.STOP:
            raise error
        is_written = run.writer.has_key or rule is RowNotFoundRule.REPAIR
        if is_written and (instead := run.writer.instead(run.sql, values)):
            cursor.execute(*instead)
        yield error


def _refused(error: sqlite3.Error, text: str, commit_ts: Tso, path: Path) -> BinlogdError:
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in _OF_THE_STATEMENT:
        return StatementRejected(commit_ts, text, code, str(error))
    return DownstreamUnavailable(f"{path}: cannot be written now: {error}")
