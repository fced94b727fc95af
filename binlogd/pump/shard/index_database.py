"""The SQLite database of a shard's index: its tables, its transactions, and what damages it.

Invariant. What is written together is one transaction, so a crash leaves its rows in agreement;
`synchronous = NORMAL` may lose the last transactions with the power, never some.

Source: docs/FORMAT.md, index.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from binlogd.errors import ConfigError, CorruptIndex, IndexUnavailable
from binlogd.host.database import Connection, connection_to, is_damage
from binlogd.log import index_file, tally
from binlogd.log.pointer import FileId
from binlogd.pump.shard.found import senseless
from binlogd.tso import Tso

_SCHEMA = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 4000;
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS prewrites (
    start_ts INTEGER PRIMARY KEY, fid INTEGER, offset INTEGER, length INTEGER);
CREATE TABLE IF NOT EXISTS commits (
    commit_ts INTEGER, start_ts INTEGER, fid INTEGER, offset INTEGER, length INTEGER,
    PRIMARY KEY (commit_ts, start_ts)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rollbacks (start_ts INTEGER PRIMARY KEY, fid INTEGER);
CREATE TABLE IF NOT EXISTS segments (
    fid INTEGER PRIMARY KEY, sealed INTEGER, size INTEGER, max_ts INTEGER, needed_ts INTEGER,
    checksum INTEGER);
CREATE TABLE IF NOT EXISTS late (
    commit_ts INTEGER, start_ts INTEGER, fid INTEGER, offset INTEGER, length INTEGER,
    PRIMARY KEY (commit_ts, start_ts)) WITHOUT ROWID;
"""
_VALUES = " VALUES "
_TOGETHER = 64  # rows of one statement
_BUSY_TIMEOUT_S = 1.0
_PIECE = 2_000  # rows deleted in one transaction: filing waits for no more than that
_KEYS = {"prewrites": "start_ts", "commits": "commit_ts, start_ts", "rollbacks": "start_ts"}

Statement = tuple[str, Sequence[tuple[object, ...]]]
"""What is executed for each of some rows."""


class IndexDatabase:
    """A connection to write and one to read, each with its own thread.

    Methods raise IndexUnavailable, and of damage CorruptIndex before `on_damage`.
    """

    def __init__(self, path: Path, writer: Connection, reader: Connection) -> None:
        self.path = path
        self._writer = writer
        self._reader = reader
        self._writing = asyncio.Lock()
        self.damage: str | None = None
        self._on_damage: Callable[[], None] | None = None

    @classmethod
    async def open(cls, path: Path) -> IndexDatabase:
        """Opens or makes it. Raises CorruptIndex, IndexUnavailable, or ConfigError when a newer
        binlogd made it."""
        with _translated(path):
            writer = await connection_to(path, timeout=_BUSY_TIMEOUT_S)
            try:
                await writer.executescript(_SCHEMA + tally.SCHEMA)
                await _check_format(path, writer)
                reader = await connection_to(path, timeout=_BUSY_TIMEOUT_S)
            except BaseException:
                await writer.close()
                raise
        return cls(path, writer, reader)

    async def close(self) -> None:
        """Closes both connections, after the transaction that is going on."""
        async with self._writing:
            await self._reader.close()
            await self._writer.close()

    def on_damage(self, callback: Callable[[], None]) -> None:
        """From now on, `callback` hears of damage, which is left in `damage`; whoever reads or
        writes gets IndexUnavailable instead of CorruptIndex: another index will take this one's
        place.
        """
        self._on_damage = callback

    def found_damage(self, reason: str) -> IndexUnavailable:
        """Takes note that it is wrong, and gives the error to raise for it."""
        self.damage = self.damage or reason
        if self._on_damage is not None:
            self._on_damage()
        return IndexUnavailable(self.path, f"it is damaged ({self.damage}) and is made again")

    async def query(self, query: str, arguments: Sequence[object] = ()) -> list[Any]:
        """The rows that a query finds."""
        with self._guarded():
            return list(await self._reader.execute_fetchall(query, arguments))

    async def query_numbers(self, query: str, arguments: Sequence[object]) -> list[Any]:
        """Rows of timestamps and places: of anything else it is damage."""
        rows = await self.query(query, arguments)
        if (row := senseless(rows)) is not None:
            with self._guarded():
                raise CorruptIndex(self.path, f"a row of it makes no sense: {row}")
        return rows

    async def transact(self, statements: Sequence[Statement], *, is_durable: bool = False) -> int:
        """One transaction, in one hop to the writer's thread; nothing of it is there when it fails.
        The power may take it along with itself unless it `is_durable`. Returns how many rows it
        changed."""
        writer = self._writer
        async with self._writing:
            with self._guarded():
                # aiosqlite's own way to its thread: a hop for each statement costs more than they
                hop: Any = writer._execute  # noqa: SLF001 - see above
                connection = writer._conn  # noqa: SLF001 - see above
                return int(
                    await hop(lambda: _transacted(connection, statements, is_durable=is_durable))
                )

    async def forget_rows(self, *, first_fid: FileId, upto: Tso) -> int:
        """Deletes some rows, with timestamps <= upto, of segments before `first_fid`. Returns how
        many; call again until it is 0."""
        statements: list[Statement] = []
        for table, key in _KEYS.items():
            first = key.partition(",")[0]
            statement = (
                f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table}"
                f" WHERE {first} <= ? AND fid < ? LIMIT {_PIECE})"
            )
            statements.append((statement, [(upto, first_fid)]))
        return await self.transact(statements)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self.damage is not None and self._on_damage is not None:
            raise self.found_damage(self.damage)
        try:
            with _translated(self.path):
                yield
        except CorruptIndex as error:
            if self._on_damage is None:
                raise
            raise self.found_damage(error.reason) from error


def _transacted(
    connection: sqlite3.Connection, statements: Sequence[Statement], *, is_durable: bool
) -> int:
    if is_durable:
        connection.execute("PRAGMA synchronous = FULL")
    changed = 0
    try:
        for statement, rows in statements:
            changed += _executed(connection, statement, rows)
        connection.commit()
    except sqlite3.Error:
        connection.rollback()
        raise
    finally:
        if is_durable:
            connection.execute("PRAGMA synchronous = NORMAL")
    return changed


def _executed(
    connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]
) -> int:
    """Executes it for each row, and inserts many rows by one statement: the interpreter is let go
    of and taken back for each, which the event loop feels."""
    changed = at = 0
    head, is_insert, values = statement.partition(_VALUES)
    while is_insert and len(rows) - at >= _TOGETHER:
        some = rows[at : at + _TOGETHER]
        together = f"{head}{_VALUES}{','.join([values] * _TOGETHER)}"
        changed += connection.execute(together, list(chain.from_iterable(some))).rowcount
        at += _TOGETHER
    if at < len(rows):
        changed += connection.executemany(statement, rows[at:]).rowcount
    return changed


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into ours."""
    try:
        yield
    except Exception as error:
        if is_damage(error):
            raise CorruptIndex(path, str(error)) from error
        if isinstance(error, sqlite3.Error):
            raise IndexUnavailable(path, str(error)) from error
        raise


async def _check_format(path: Path, writer: Connection) -> None:
    await writer.execute("INSERT OR IGNORE INTO marks VALUES ('format', ?)", (index_file.FORMAT,))
    await writer.commit()
    rows = list(await writer.execute_fetchall("SELECT value FROM marks WHERE name = 'format'"))
    if rows[0][0] != index_file.FORMAT:
        raise ConfigError(
            f"{path} has format {rows[0][0]}, this binlogd knows {index_file.FORMAT}: use the"
            " version that wrote it, or delete the index, which is then made again from the log"
        )
