"""SQLite without threads and files: the real one in memory, and what a power loss leaves of it.

The index of a shard is SQL, and SQL is where its faults would be: so the simulation runs the real
library, and simulates what is around it. A kill leaves every transaction that was committed. A
power loss takes with it some of the last, never one from the middle, and none that was made durable
(`synchronous = FULL`): that is what SQLite promises of a WAL.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from binlogd.host import database
from tests.sim.loop import PROCESS, Process

_KEPT = 0.25
"""How often the state behind a transaction is kept, as one that a power loss may go back to."""


class SimDatabase:
    """One database file, and connections to it that are all the same one."""

    def __init__(self, rng: random.Random, content: bytes = b"") -> None:
        self._rng = rng
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        if content:
            self.connection.deserialize(content)
        self._survives = [self._content()]
        self._is_full_sync = False

    def _content(self) -> bytes:
        """As of the last commit; SQLite has no bytes for a database that nothing is in yet."""
        (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        return self.connection.serialize() if pages else b""

    def crash(self) -> SimDatabase:
        """What the next boot finds."""
        states = [*self._survives, self._content()]
        return SimDatabase(self._rng, self._rng.choice(states))

    # --- what the index calls on a connection --------------------------------------------------

    def execute(self, statement: str, arguments: Sequence[object] = ()) -> sqlite3.Cursor:
        if statement.startswith("PRAGMA synchronous"):
            self._is_full_sync = statement.endswith("FULL")
        if statement.startswith("PRAGMA journal_mode"):
            return self.connection.execute("SELECT 'wal'")
        return self.connection.execute(statement, arguments)

    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> sqlite3.Cursor:
        return self.connection.executemany(statement, rows)

    def commit(self) -> None:
        self.connection.commit()
        if self._is_full_sync:
            self._survives = [self._content()]
        elif self._rng.random() < _KEPT:
            self._survives.append(self._content())

    def rollback(self) -> None:
        self.connection.rollback()


class Databases:
    """All databases of one machine, by path."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._there: dict[str, SimDatabase] = {}

    def of(self, path: str) -> SimDatabase:
        """The one at a path; a new one if there is none."""
        if path not in self._there:
            self._there[path] = SimDatabase(self._rng)
        return self._there[path]

    def remove(self, path: Path) -> None:
        """As of a file that is deleted."""
        self._there.pop(str(path), None)

    def crash(self) -> Databases:
        """What the next boot finds."""
        after = Databases(self._rng)
        after._there = {path: each.crash() for path, each in self._there.items()}
        return after

    def rows(self, name: str, statement: str) -> Iterator[tuple[Path, tuple[Any, ...]]]:
        """What a query gives in each database whose file has this name."""
        for path, each in self._there.items():
            if Path(path).name == name:
                for row in each.connection.execute(statement):
                    yield Path(path), row

    async def take(self) -> None:
        """The time of one hop to a connection's thread."""
        await asyncio.sleep(self._rng.uniform(0.00005, 0.002))


class _Cursor:
    async def close(self) -> None:
        """Nothing is kept."""


class SimConnection:
    """As much of aiosqlite's connection as is used."""

    def __init__(self, databases: Databases, path: str) -> None:
        self._databases = databases
        self._conn = databases.of(path)

    async def _execute(self, call: Callable[..., Any], *arguments: object) -> Any:
        await self._databases.take()
        return call(*arguments)

    async def execute(self, statement: str, arguments: Sequence[object] = ()) -> _Cursor:
        await self._execute(self._conn.execute, statement, arguments)
        return _Cursor()

    async def executescript(self, script: str) -> None:
        await self._execute(self._conn.connection.executescript, script)

    async def execute_fetchall(
        self, statement: str, arguments: Sequence[object] = ()
    ) -> list[tuple[object, ...]]:
        await self._databases.take()
        return self._conn.execute(statement, arguments).fetchall()

    async def commit(self) -> None:
        await self._execute(self._conn.commit)

    async def close(self) -> None:
        """The database stays."""


class _Opening:
    """A connection that is opened when it is awaited."""

    def __init__(self, databases: Databases, path: str) -> None:
        self._databases, self._path = databases, path

    def __await__(self) -> Generator[Any, None, SimConnection]:
        yield from self._databases.take().__await__()
        return SimConnection(self._databases, self._path)


@contextmanager
def inline_sqlite(databases_of: Callable[[Process], Databases]) -> Iterator[None]:
    """Whoever connects to a database gets those of the process that it belongs to."""

    def connect(path: object, **_: object) -> _Opening:
        process = PROCESS.get()
        assert process is not None, "of a machine"
        return _Opening(databases_of(process), str(path))

    kept, database._Connection = database._Connection, connect  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        database._Connection = kept  # type: ignore[misc]
