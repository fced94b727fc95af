"""A keyspace on disk: every version and every lease, in tables of `upstream.db`.

    keyspace         mod_revision, sub PRIMARY KEY, key, create_revision, version, value, lease
                     version 0: the key was deleted
    keyspace_leases  id PRIMARY KEY, ttl
    keyspace_marks   name PRIMARY KEY, value; each twice, once as `NAME (copy)`
                     revision, compacted; cluster and member: what an etcd client is told

A write is one SQLite transaction, which first reads what another process has written meanwhile
(`binlogd nodes --mark` beside a running node). A transaction is never left open.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec

from binlogd.ports import NodeStatus
from binlogd.upstream.entry import entry_json, node_key
from binlogd.upstream.keyspace.versions import FIRST_REVISION, KeyVersion
from binlogd.upstream.store import COPY

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
    CREATE TABLE IF NOT EXISTS keyspace_checksums (
        mod_revision INTEGER NOT NULL, sub INTEGER NOT NULL, checksum INTEGER NOT NULL,
        PRIMARY KEY (mod_revision, sub)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS keyspace_leases (id INTEGER PRIMARY KEY, ttl INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS keyspace_marks (
        name TEXT PRIMARY KEY, value INTEGER NOT NULL
    ) WITHOUT ROWID;
"""
_COLUMNS = "key, mod_revision, create_revision, version, value, lease"  # as in KeyVersion


class Content(msgspec.Struct, frozen=True):
    """What was written behind a revision."""

    revision: int
    compacted: int
    versions: Sequence[KeyVersion]


class EtcdIdentity(msgspec.Struct, frozen=True):
    """By which numbers an etcd client knows the cluster and its one member."""

    cluster: int
    member: int


class KeyspaceDatabase:
    """One connection, for one thread. Methods raise sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the tables, in the file of an open `UpstreamStore`, which looks at every
        page of it: once is enough."""
        self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
            self._take_over()
        except (sqlite3.Error, ValueError):
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        """All of its block, durably, or nothing. From its beginning nobody else writes."""
        self._connection.execute(begin)
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def identity(self, make: Callable[[], int]) -> EtcdIdentity:
        """Made at the first call, and kept."""
        for name in ("cluster", "member"):
            self._connection.execute(
                "INSERT INTO keyspace_marks VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
                (name, make()),
            )
            self._connection.execute(
                "INSERT INTO keyspace_marks SELECT ?2, value FROM keyspace_marks WHERE name = ?1"
                " ON CONFLICT (name) DO NOTHING",
                (name, name + COPY),
            )
        return EtcdIdentity(self._mark("cluster", 0), self._mark("member", 0))

    def read(self, after: int, compacted: int) -> Content | None:
        """What others have written since; None if there is nothing. After a compaction by somebody
        else it is everything that is left, and `compacted` is another than before. In a
        transaction."""
        revision = self._mark("revision", FIRST_REVISION)
        now_compacted = self._mark("compacted", 0)
        if revision == after and now_compacted == compacted:
            return None
        since = after if now_compacted == compacted else 0
        rows = self._connection.execute(
            f"SELECT checksum, {_COLUMNS} FROM keyspace LEFT JOIN keyspace_checksums"
            " USING (mod_revision, sub) WHERE mod_revision > ? ORDER BY mod_revision, sub",
            (since,),
        )
        return Content(revision, now_compacted, [_checked(*row) for row in rows])

    def add(self, versions: Sequence[KeyVersion], revision: int) -> None:
        """Adds the changes of a revision. In a transaction that has read all before it."""
        self._connection.executemany(
            f"INSERT INTO keyspace (sub, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(sub, *astuple(version)) for sub, version in enumerate(versions)],
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO keyspace_checksums VALUES (?, ?, ?)",
            [(each.mod_revision, sub, _sum_of(each)) for sub, each in enumerate(versions)],
        )
        self._put_mark("revision", revision)

    def compact(self, revision: int) -> None:
        """Forgets what was overwritten or deleted up to a revision. In a transaction."""
        self._connection.execute(
            "DELETE FROM keyspace WHERE mod_revision <= ? AND (version = 0 OR EXISTS ("
            "  SELECT 1 FROM keyspace AS newer WHERE newer.key = keyspace.key"
            "  AND newer.mod_revision > keyspace.mod_revision AND newer.mod_revision <= ?))",
            (revision, revision),
        )
        self._connection.execute(
            "DELETE FROM keyspace_checksums WHERE mod_revision <= ? AND NOT EXISTS ("
            "  SELECT 1 FROM keyspace AS k WHERE k.mod_revision = keyspace_checksums.mod_revision"
            "  AND k.sub = keyspace_checksums.sub)",
            (revision,),
        )
        self._put_mark("compacted", revision)

    def leases(self) -> Mapping[int, int]:
        """The time to live in seconds, by the number of the lease."""
        return dict(self._connection.execute("SELECT id, ttl FROM keyspace_leases"))

    def put_lease(self, number: int, ttl_s: int) -> None:
        """Keeps a lease."""
        self._connection.execute(
            "INSERT OR REPLACE INTO keyspace_leases VALUES (?, ?)", (number, ttl_s)
        )

    def remove_lease(self, number: int) -> None:
        """Forgets it."""
        self._connection.execute("DELETE FROM keyspace_leases WHERE id = ?", (number,))

    def _take_over(self) -> None:
        """The nodes of a file that was made before they stood in a keyspace."""
        with self.transaction():
            columns = [each[1] for each in self._connection.execute("PRAGMA table_info(nodes)")]
            if not columns:
                return
            rows = self._connection.execute("SELECT * FROM nodes ORDER BY kind, node_id").fetchall()
            for revision, row in enumerate(rows, FIRST_REVISION + 1):
                node = NodeStatus(**dict(zip(columns, row, strict=True)))
                key = node_key(node.kind, node.node_id)
                self.add([KeyVersion(key, revision, revision, 1, entry_json(node), 0)], revision)
            self._connection.execute("DROP TABLE nodes")

    def _mark(self, name: str, absent: int) -> int:
        rows = self._connection.execute(
            "SELECT DISTINCT value FROM keyspace_marks WHERE name IN (?, ?)", (name, name + COPY)
        ).fetchall()
        if len(rows) > 1:
            raise sqlite3.DatabaseError(f"{name} is two numbers: {rows[0][0]} and {rows[1][0]}")
        return int(rows[0][0]) if rows else absent

    def _put_mark(self, name: str, value: int) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO keyspace_marks VALUES (?1, ?3), (?2, ?3)",
            (name, name + COPY, value),
        )


def _checked(checksum: int | None, *row: Any) -> KeyVersion:
    """Raises sqlite3.DatabaseError for one that is not as it was added."""
    version = KeyVersion(*row)
    if checksum not in (None, _sum_of(version)):
        raise sqlite3.DatabaseError(f"the key {version.key!r} does not match its checksum")
    return version


def _sum_of(version: KeyVersion) -> int:
    return int(google_crc32c.value(repr(astuple(version)).encode()))
