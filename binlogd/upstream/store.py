"""What the standalone upstream remembers, in one SQLite file.

    facts     name TEXT PRIMARY KEY, value INTEGER
              cluster_id; tso_limit: no timestamp at or above it was handed out
    ddl_history  id INTEGER PRIMARY KEY, finished_ts, start_ts, schema_version, raw BLOB
              jobs of the schema history, as JSON (as it was served); the rest is in the JSON too

Unsigned 64-bit numbers are stored as the signed number with the same bits.
Every write is one statement and durable when its call returns (synchronous = FULL): the connection
is shared, so a transaction of several statements would take in those of others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiosqlite

from binlogd.errors import ConfigError, UpstreamUnavailable
from binlogd.tidb.job_index import JobEntry
from binlogd.tso import Tso

_ROWS_MAX = 500  # of one statement; SQLite allows 32,766 parameters
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS ddl_history (
        id INTEGER PRIMARY KEY,
        finished_ts INTEGER NOT NULL,
        start_ts INTEGER NOT NULL,
        schema_version INTEGER NOT NULL,
        raw BLOB NOT NULL
    );
    CREATE INDEX IF NOT EXISTS ddl_history_times
        ON ddl_history (finished_ts, start_ts, schema_version);
    CREATE TABLE IF NOT EXISTS skips (
        commit_ts INTEGER PRIMARY KEY, reason TEXT NOT NULL, decided_ms INTEGER NOT NULL
    );
"""
_BEFORE = """
    INSERT OR IGNORE INTO ddl_history SELECT
        id,
        coalesce(json_extract(CAST(raw AS TEXT), '$.binlog.FinishedTS'), 0),
        coalesce(json_extract(CAST(raw AS TEXT), '$.start_ts'), 0),
        coalesce(json_extract(CAST(raw AS TEXT), '$.binlog.SchemaVersion'), 0),
        raw
    FROM ddl_jobs;
    DROP TABLE ddl_jobs;
"""
"""Takes over the jobs of a file that was made before jobs could be looked up by time."""


StoredJob = tuple[JobEntry, bytes]
"""A job, and its JSON."""


@dataclass(frozen=True, slots=True)
class SkipEntry:
    """A transaction that an operator decided to pass over, why, and when by the wall clock."""

    commit_ts: Tso
    reason: str
    decided_ms: int


class UpstreamStore:
    """One open file; methods may be called at the same time. Raise UpstreamUnavailable."""

    def __init__(self, path: Path, connection: aiosqlite.Connection) -> None:
        self._path = path
        self._connection = connection

    @classmethod
    async def open(cls, path: Path) -> UpstreamStore:
        """Opens or makes the file. Raises ConfigError when it is no such database."""
        connection = aiosqlite.connect(path, isolation_level=None)
        try:
            await connection
            await connection.execute("PRAGMA journal_mode = WAL")
            await connection.execute("PRAGMA synchronous = FULL")
            await connection.executescript(_SCHEMA)
            if await connection.execute_fetchall(
                "SELECT 1 FROM sqlite_master WHERE name = 'ddl_jobs'"
            ):
                await connection.executescript(_BEFORE)
        except sqlite3.Error as error:
            await connection.close()
            raise ConfigError(f"{path}: cannot be opened as a database: {error}") from error
        return cls(path, connection)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def close(self) -> None:
        """Closes the file."""
        await self._connection.close()

    # --- facts -----------------------------------------------------------------------------

    async def fact(self, name: str) -> int | None:
        """An unsigned number kept under a name."""
        with self._translated():
            rows = await self._connection.execute_fetchall(
                "SELECT value FROM facts WHERE name = ?", (name,)
            )
        return next((_unsigned(row[0]) for row in rows), None)

    async def put_fact(self, name: str, value: int) -> None:
        """Sets it."""
        with self._translated():
            await self._connection.execute(
                "INSERT INTO facts VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, _signed(value)),
            )

    async def put_fact_once(self, name: str, value: int) -> int:
        """Sets it unless it is there; returns what is there now."""
        with self._translated():
            await self._connection.execute(
                "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
                (name, _signed(value)),
            )
        kept = await self.fact(name)
        assert kept is not None, "facts are never removed"
        return kept

    # --- skips -----------------------------------------------------------------------------

    async def put_skip(self, skip: SkipEntry) -> None:
        """Records a decision; the first reason stays."""
        with self._translated():
            await self._connection.execute(
                "INSERT INTO skips VALUES (?, ?, ?) ON CONFLICT (commit_ts) DO NOTHING",
                (_signed(skip.commit_ts), skip.reason, skip.decided_ms),
            )

    async def skips(self) -> list[SkipEntry]:
        """All decisions, by commit_ts."""
        with self._translated():
            rows = await self._connection.execute_fetchall(
                "SELECT commit_ts, reason, decided_ms FROM skips ORDER BY commit_ts"
            )
        return [SkipEntry(Tso(_unsigned(ts)), reason, at) for ts, reason, at in rows]

    # --- DDL jobs --------------------------------------------------------------------------

    async def put_jobs(self, jobs: Sequence[StoredJob]) -> None:
        """Adds jobs; a job that is there is replaced. Should it fail or be given up, some are
        there."""
        for begin in range(0, len(jobs), _ROWS_MAX):
            some = jobs[begin : begin + _ROWS_MAX]
            rows = ",".join(["(?, ?, ?, ?, ?)"] * len(some))
            with self._translated():
                await self._connection.execute(
                    f"INSERT OR REPLACE INTO ddl_history VALUES {rows}",
                    [value for entry, raw in some for value in _row_of(entry, raw)],
                )

    async def job(self, job_id: int) -> bytes | None:
        """The JSON of one job."""
        return next(iter(await self.read_jobs([job_id])), None)

    async def read_jobs(self, job_ids: Sequence[int]) -> list[bytes]:
        """The JSON of these jobs, in their order; one that is not there is left out."""
        found: dict[int, bytes] = {}
        for begin in range(0, len(job_ids), _ROWS_MAX):
            some = job_ids[begin : begin + _ROWS_MAX]
            with self._translated():
                rows = await self._connection.execute_fetchall(
                    f"SELECT id, raw FROM ddl_history WHERE id IN ({','.join('?' * len(some))})",
                    some,
                )
            found.update((job_id, raw) for job_id, raw in rows)
        return [found[job_id] for job_id in job_ids if job_id in found]

    async def job_entries(self) -> list[JobEntry]:
        """What is known of every job but its JSON."""
        with self._translated():
            rows = await self._connection.execute_fetchall(
                "SELECT finished_ts, start_ts, schema_version, id"
                " FROM ddl_history INDEXED BY ddl_history_times"
            )
        return [JobEntry(*row) for row in rows]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UpstreamUnavailable(f"{self._path}: {error}") from error


def kept_jobs(path: Path) -> list[bytes]:
    """The JSON of every job that a file holds, by id, while a binlogd may be writing it.

    For tools: it blocks, and changes nothing. Raises ConfigError when it is no such database.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            table = "ddl_history" if "ddl_history" in tables else "ddl_jobs"  # an older binlogd's
            rows = database.execute(f"SELECT raw FROM {table} ORDER BY id").fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: cannot be read as a database: {error}") from error
    return [bytes(raw) for (raw,) in rows]


def _row_of(entry: JobEntry, raw: bytes) -> tuple[int | bytes, ...]:
    return entry.id, entry.finished_ts, entry.start_ts, entry.schema_version, raw


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _unsigned(value: int) -> int:
    return value & ((1 << 64) - 1)
