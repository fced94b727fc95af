"""A keyspace on disk: every version and every lease, in tables of `upstream.db`.

    keyspace         mod_revision, sub PRIMARY KEY, key, create_revision, version, value, lease
                     version 0: the key was deleted
    keyspace_leases  id PRIMARY KEY, ttl
    keyspace_marks   name PRIMARY KEY, value
                     revision, compacted; cluster and member: what an etcd client is told

A write is one SQLite transaction, and only goes in where the writer has seen all before it: another
process may write as well (`binlogd nodes --mark` beside a running node). All of this happens in one
thread, so no two calls meet, and a transaction is never left open.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from binlogd.errors import ConfigError, UpstreamUnavailable
from binlogd.host.threads import Threads
from binlogd.ports import NodeStatus
from binlogd.upstream.entry import entry_json, node_key
from binlogd.upstream.keyspace.versions import FIRST_REVISION, KeyVersion

T = TypeVar("T")

_BUSY_S = 5.0
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS keyspace (
        mod_revision INTEGER NOT NULL,
        sub INTEGER NOT NULL,
        key BLOB NOT NULL,
        create_revision INTEGER NOT NULL,
        version INTEGER NOT NULL,
        value BLOB NOT NULL,
        lease INTEGER NOT NULL,
        PRIMARY KEY (mod_revision, sub)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS keyspace_keys ON keyspace (key, mod_revision);
    CREATE TABLE IF NOT EXISTS keyspace_leases (id INTEGER PRIMARY KEY, ttl INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS keyspace_marks (
        name TEXT PRIMARY KEY, value INTEGER NOT NULL
    ) WITHOUT ROWID;
"""
_COLUMNS = "key, mod_revision, create_revision, version, value, lease"


@dataclass(frozen=True, slots=True)
class Content:
    """What was written behind a revision."""

    revision: int
    compacted: int
    versions: Sequence[KeyVersion]


@dataclass(frozen=True, slots=True)
class EtcdIdentity:
    """By which numbers an etcd client knows the cluster and its one member."""

    cluster: int
    member: int


class KeyspaceDatabase:
    """One connection, in a thread of its own. Methods raise UpstreamUnavailable."""

    def __init__(self, path: Path, thread: Threads, connection: sqlite3.Connection) -> None:
        self._path, self._thread, self._connection = path, thread, connection
        self._is_closed = False

    @classmethod
    async def open(cls, path: Path) -> KeyspaceDatabase:
        """Opens or makes the tables. Raises ConfigError when the file is no such database."""
        thread = Threads(1, name="keyspace")
        try:
            return cls(path, thread, await thread.run(lambda: _connected(path)))
        except sqlite3.Error as error:
            thread.close()
            raise ConfigError(f"{path}: cannot be opened as a database: {error}") from error

    async def close(self) -> None:
        """Closes the connection."""
        self._is_closed = True
        await self._thread.run(self._connection.close)
        self._thread.close()

    async def identity(self, make: Callable[[], int]) -> EtcdIdentity:
        """Made at the first call, and kept."""

        def read() -> EtcdIdentity:
            for name in ("cluster", "member"):
                self._connection.execute(
                    "INSERT INTO keyspace_marks VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
                    (name, make()),
                )
            return EtcdIdentity(self._mark("cluster", 0), self._mark("member", 0))

        return await self._run(read)

    async def leases(self) -> Mapping[int, int]:
        """The time to live in seconds, by the number of the lease."""
        return await self._run(
            lambda: dict(self._connection.execute("SELECT id, ttl FROM keyspace_leases"))
        )

    async def read(self, after: int, compacted: int) -> Content | None:
        """What others have written since; None if there is nothing. After a compaction by somebody
        else it is everything that is left, and `compacted` is another than before."""
        return await self._run(
            lambda: self._in_transaction(lambda: self._read(after, compacted), "BEGIN")
        )

    def write(
        self, before: int, compacted: int, after: int, versions: Sequence[KeyVersion]
    ) -> asyncio.Future[Content | None]:
        """Adds versions to a keyspace that is at `before`, which is then at `after`, durably.

        If it is not, nothing is written, and what has been written since is the result. It has
        happened when the future is done; who waits may be cancelled meanwhile.
        """

        def write() -> Content | None:
            found = self._read(before, compacted)
            if found is None:
                self._connection.executemany(
                    f"INSERT INTO keyspace (sub, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(sub, *_row(version)) for sub, version in enumerate(versions)],
                )
                self._put_mark("revision", after)
            return found

        return self._run(lambda: self._in_transaction(write))

    async def put_lease(self, number: int, ttl_s: int) -> None:
        """Keeps a lease."""
        await self._run(
            lambda: self._connection.execute(
                "INSERT OR REPLACE INTO keyspace_leases VALUES (?, ?)", (number, ttl_s)
            )
        )

    async def remove_lease(self, number: int) -> None:
        """Forgets it."""
        await self._run(
            lambda: self._connection.execute("DELETE FROM keyspace_leases WHERE id = ?", (number,))
        )

    def compact(self, revision: int) -> asyncio.Future[None]:
        """Forgets what was overwritten or deleted up to a revision. As `write`."""

        def compact() -> None:
            self._connection.execute(
                "DELETE FROM keyspace WHERE mod_revision <= ? AND (version = 0 OR EXISTS ("
                "  SELECT 1 FROM keyspace AS newer WHERE newer.key = keyspace.key"
                "  AND newer.mod_revision > keyspace.mod_revision AND newer.mod_revision <= ?))",
                (revision, revision),
            )
            self._put_mark("compacted", revision)

        return self._run(lambda: self._in_transaction(compact))

    # --- in the thread ---------------------------------------------------------------------

    def _in_transaction(self, act: Callable[[], T], begin: str = "BEGIN IMMEDIATE") -> T:
        self._connection.execute(begin)
        try:
            result = act()
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return result

    def _read(self, after: int, compacted: int) -> Content | None:
        revision = self._mark("revision", FIRST_REVISION)
        now_compacted = self._mark("compacted", 0)
        if revision == after and now_compacted == compacted:
            return None
        since = after if now_compacted == compacted else 0
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM keyspace WHERE mod_revision > ? ORDER BY mod_revision, sub",
            (since,),
        )
        return Content(revision, now_compacted, [KeyVersion(*row) for row in rows])

    def _mark(self, name: str, absent: int) -> int:
        row = self._connection.execute(
            "SELECT value FROM keyspace_marks WHERE name = ?", (name,)
        ).fetchone()
        return absent if row is None else int(row[0])

    def _put_mark(self, name: str, value: int) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO keyspace_marks VALUES (?, ?)", (name, value)
        )

    def _run(self, act: Callable[[], T]) -> asyncio.Future[T]:
        def translated() -> T:
            try:
                return act()
            except sqlite3.Error as error:
                raise UpstreamUnavailable(f"{self._path}: {error}") from error

        if self._is_closed:
            raise UpstreamUnavailable(f"{self._path} is closed")
        return self._thread.run(translated)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        _take_over(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _take_over(connection: sqlite3.Connection) -> None:
    """The nodes of a file that was made before they stood in a keyspace."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        columns = [column[1] for column in connection.execute("PRAGMA table_info(nodes)")]
        if columns:
            for revision, row in enumerate(
                connection.execute("SELECT * FROM nodes ORDER BY kind, node_id").fetchall(),
                FIRST_REVISION + 1,
            ):
                node = NodeStatus(**dict(zip(columns, row, strict=True)))
                connection.execute(
                    f"INSERT INTO keyspace (sub, {_COLUMNS}) VALUES (0, ?, ?, ?, 1, ?, 0)",
                    (node_key(node.kind, node.node_id), revision, revision, entry_json(node)),
                )
                connection.execute(
                    "INSERT OR REPLACE INTO keyspace_marks VALUES ('revision', ?)", (revision,)
                )
            connection.execute("DROP TABLE nodes")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _row(version: KeyVersion) -> tuple[object, ...]:
    return (
        version.key,
        version.mod_revision,
        version.create_revision,
        version.version,
        version.value,
        version.lease,
    )
