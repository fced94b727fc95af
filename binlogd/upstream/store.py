"""What the standalone upstream remembers, in one SQLite file.

    facts     name TEXT PRIMARY KEY, value INTEGER; each twice, once as `NAME (copy)`
              cluster_id; tso_limit: no timestamp at or above it was handed out
    ddl_history  id INTEGER PRIMARY KEY, finished_ts, start_ts, schema_version, raw BLOB
              jobs of the schema history, as JSON (as it was served); the rest is in the JSON too

Unsigned 64-bit numbers are stored as the signed number with the same bits.
Every write is one statement and durable when its call returns (synchronous = FULL): the connection
is shared, so a transaction of several statements would take in those of others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import google_crc32c
import msgspec

from binlogd.errors import ConfigError, Corrupt, UpstreamUnavailable
from binlogd.host.database import Connection, FileAt, connection_to, is_damage, make_database
from binlogd.ports import Clock
from binlogd.tidb.job_index import JobEntry
from binlogd.tidb.varint import UINT64_MASK
from binlogd.tso import Tso
from binlogd.wire.fields import signed

_REMEDY = "bring back a whole copy of it; of a new node, remove it"
_LOOK = "see that it may be read and written, its disk works, and files may be opened (ulimit -n)"
_INTEGRITY = "PRAGMA integrity_check(1)"
"""SQLite's pages have no checksums; but rows that are lost leave bytes that nobody has."""
COPY = " (copy)"
"""Behind the name of a fact or mark, of a second one that has to be the same."""
_JOBS = """
    SELECT j.id, j.raw, group_concat(c.checksum) FROM ddl_history AS j
    LEFT JOIN ddl_checksums AS c USING (id)
"""
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
    CREATE TABLE IF NOT EXISTS ddl_checksums (
        id INTEGER, checksum INTEGER, PRIMARY KEY (id, checksum)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS skips (
        commit_ts INTEGER PRIMARY KEY, reason TEXT NOT NULL, decided_ms INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS skip_checksums (
        commit_ts INTEGER PRIMARY KEY, checksum INTEGER NOT NULL
    );
"""
_SHAPE = """
    SELECT m.name, c.name, c.type, c."notnull", c.pk
    FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'
"""
_HEADER_BYTES = 100
"""SQLite takes a file of one byte for a new one."""
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


class SkipEntry(msgspec.Struct, frozen=True):
    """A transaction that an operator decided to pass over, why, and when by the wall clock."""

    commit_ts: Tso
    reason: str
    decided_ms: int


class UpstreamStore:
    """One open file; methods may be called at the same time. Raise UpstreamUnavailable, and Corrupt
    for what was changed in the file by nobody."""

    def __init__(self, path: Path, connection: Connection) -> None:
        self.path = path
        self._connection = connection
        self._file = FileAt(path)

    @classmethod
    async def open(cls, path: Path) -> UpstreamStore:
        """Opens or makes the file. Raises ConfigError when it is no such database."""
        size = _size(path)
        if size is not None and size < _HEADER_BYTES:
            raise ConfigError(f"{path} is empty, so it was cut", todo=_REMEDY)
        connection = connection_to(path, isolation_level=None)
        try:
            if size is None:
                await make_database(path, _SCHEMA)
            await connection
            await _check_pages(path, connection)
            await connection.execute("PRAGMA journal_mode = WAL")
            await connection.execute("PRAGMA synchronous = FULL")
            await connection.executescript(_SCHEMA)
            if await connection.execute_fetchall(
                "SELECT 1 FROM sqlite_master WHERE name = 'ddl_jobs'"
            ):
                await connection.executescript(_BEFORE)
        except BaseException as error:  # whoever is cancelled leaves no thread behind either
            await connection.close()
            if isinstance(error, sqlite3.Error | ValueError):  # its words may be no text
                reason = f"{path}: cannot be opened as a database: {error}"
                raise ConfigError(reason, todo=_REMEDY if is_damage(error) else _LOOK) from error
            raise
        return cls(path, connection)

    async def close(self) -> None:
        """Closes the file."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- facts -----------------------------------------------------------------------------

    async def fact(self, name: str) -> int | None:
        """An unsigned number kept under a name."""
        with self._translated():
            rows = await self._connection.execute_fetchall(
                "SELECT value FROM facts WHERE name IN (?, ?)", (name, name + COPY)
            )
        found = {int(value) for (value,) in rows}
        if len(found) > 1:
            numbers = " and ".join(str(each & UINT64_MASK) for each in sorted(found))
            raise Corrupt(f"{self.path}: {name} is two numbers: {numbers}", todo=_REMEDY)
        return next((each & UINT64_MASK for each in found), None)

    async def put_fact(self, name: str, value: int) -> None:
        """Sets it."""
        with self._translated():
            await self._connection.execute(
                "INSERT INTO facts VALUES (?1, ?3), (?2, ?3)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, name + COPY, signed(value)),
            )

    async def put_fact_once(self, name: str, value: int) -> int:
        """Sets it unless it is there; returns what is there now."""
        with self._translated():
            await self._connection.execute(
                "INSERT INTO facts SELECT column1, column2 FROM (VALUES (?1, ?3), (?2, ?3))"
                " WHERE NOT EXISTS (SELECT 1 FROM facts WHERE name = ?1)"
                " ON CONFLICT (name) DO NOTHING",
                (name, name + COPY, signed(value)),
            )
        kept = await self.fact(name)
        assert kept is not None, "facts are never removed"
        return kept

    # --- skips -----------------------------------------------------------------------------

    async def put_skip(self, skip: SkipEntry) -> None:
        """Records a decision; the first reason stays."""
        with self._translated():
            added = await self._connection.execute(
                "INSERT INTO skips VALUES (?, ?, ?) ON CONFLICT (commit_ts) DO NOTHING",
                (signed(skip.commit_ts), skip.reason, skip.decided_ms),
            )
            if added.rowcount:  # one without a checksum is believed
                await self._connection.execute(
                    "INSERT OR REPLACE INTO skip_checksums VALUES (?, ?)",
                    (signed(skip.commit_ts), _sum_of(skip)),
                )

    async def skips(self) -> list[SkipEntry]:
        """All decisions, by commit_ts."""
        with self._translated():
            rows = await self._connection.execute_fetchall(
                "SELECT commit_ts, reason, decided_ms FROM skips ORDER BY commit_ts"
            )
            checksums = await self._connection.execute_fetchall("SELECT * FROM skip_checksums")
        found = [SkipEntry(Tso(ts & UINT64_MASK), reason, at) for ts, reason, at in rows]
        sums = {int(ts): int(checksum) for ts, checksum in checksums}
        for each in found:
            if sums.pop(signed(each.commit_ts), checksum := _sum_of(each)) != checksum:
                raise Corrupt(f"{self.path}: {each} does not match its checksum", todo=_REMEDY)
        if sums:
            raise Corrupt(f"{self.path}: skip {min(sums) & UINT64_MASK} is missing", todo=_REMEDY)
        return found

    # --- DDL jobs --------------------------------------------------------------------------

    async def put_jobs(self, jobs: Sequence[StoredJob]) -> None:
        """Adds jobs; a job that is there is replaced. Should it fail or be given up, some are
        there."""
        for begin in range(0, len(jobs), _ROWS_MAX):
            some = jobs[begin : begin + _ROWS_MAX]
            rows = ",".join(["(?, ?, ?, ?, ?)"] * len(some))
            sums = ",".join(["(?, ?)"] * len(some))
            with self._translated():
                await self._connection.execute(  # first: a job without one is believed
                    f"INSERT OR IGNORE INTO ddl_checksums VALUES {sums}",
                    [each for entry, raw in some for each in (entry.id, google_crc32c.value(raw))],
                )
                await self._connection.execute(
                    f"INSERT OR REPLACE INTO ddl_history VALUES {rows}",
                    [value for entry, raw in some for value in (entry.id, *entry[:3], raw)],
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
                    f"{_JOBS} WHERE j.id IN ({','.join('?' * len(some))}) GROUP BY j.id", some
                )
            found.update(_checked(self.path, rows))
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
            self._file.must_be()
        except sqlite3.DatabaseError as error:
            raise UpstreamUnavailable(f"{self.path}: {error}") from error


def kept_jobs(path: Path) -> list[bytes]:
    """The JSON of every job that a file holds, by id, while a binlogd may be writing it.

    For tools: it blocks, and changes nothing. Raises ConfigError when it is no such database.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            table = "ddl_history" if "ddl_history" in tables else "ddl_jobs"  # an older binlogd's
            query = f"SELECT id, raw, NULL FROM {table} ORDER BY id"
            if "ddl_checksums" in tables:
                query = f"{_JOBS} GROUP BY j.id ORDER BY j.id"
            damage = database.execute(_INTEGRITY).fetchone()[0]
            if damage == "ok":
                damage = _changed_table(database.execute(_SHAPE).fetchall())
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
            rows = database.execute(query).fetchall()
    except (sqlite3.Error, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a database: {error}") from error
    return [raw for _, raw in _checked(path, rows)]


def _size(path: Path) -> int | None:
    """In bytes; None where there is no file."""
    return path.stat().st_size if path.exists() else None


async def _check_pages(path: Path, connection: Connection) -> None:
    ((damage,),) = await connection.execute_fetchall(_INTEGRITY)
    if damage == "ok":
        damage = _changed_table(await connection.execute_fetchall(_SHAPE))
    if damage != "ok":
        raise ConfigError(f"{path}: the database is damaged: {damage}", todo=_REMEDY)


def _changed_table(found: Iterable[Any]) -> str:
    """`ok` where each table that is there has the columns of `_SCHEMA`: SQLite reads what it was
    made by from its pages, and other words there make another table."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(_SCHEMA)
        wanted = fresh.execute(_SHAPE).fetchall()
    there = {tuple(column) for column in found}
    tables = {name for name, *_ in there}
    changed = (name for name, *rest in wanted if name in tables and (name, *rest) not in there)
    return next((f"table {name} has other columns" for name in changed), "ok")


def _checked(path: Path, rows: Iterable[Any]) -> Iterator[tuple[int, bytes]]:
    """Jobs by id. Raises Corrupt."""
    for job_id, raw, known in rows:
        if not isinstance(raw, bytes):
            raise Corrupt(f"{path}: DDL job {job_id} is no bytes", todo=_REMEDY)
        if known and str(google_crc32c.value(raw)) not in known.split(","):
            raise Corrupt(f"{path}: DDL job {job_id} does not match its checksum", todo=_REMEDY)
        yield job_id, raw


def _sum_of(skip: SkipEntry) -> int:
    return int(google_crc32c.value(f"{skip.commit_ts} {skip.decided_ms} {skip.reason}".encode()))


AGAIN = " already; the reason that was given first stays"
"""What is said of a skip that was decided before."""


class SkipList:
    """Transactions that an operator decided to pass over, by `binlogd skip`. They count like
    `syncer.ignore-txn-commit-ts`, from the moment of the decision and after every restart; why and
    when is kept with them. Methods raise UpstreamUnavailable."""

    def __init__(self, store: UpstreamStore, clock: Clock, decided: list[SkipEntry]) -> None:
        self._store, self._clock = store, clock
        self._decided = {each.commit_ts: each for each in decided}

    @classmethod
    async def open(cls, store: UpstreamStore, clock: Clock) -> SkipList:
        """Reads what was decided before."""
        return cls(store, clock, await store.skips())

    @property
    def commit_tss(self) -> Set[Tso]:
        """What is passed over; grows with every decision."""
        return self._decided.keys()

    def decided(self) -> list[SkipEntry]:
        """All decisions, by commit_ts."""
        return [self._decided[ts] for ts in sorted(self._decided)]

    async def add(self, commit_ts: Tso, reason: str) -> bool:
        """Records a decision, durably; False if it was made before. Raises ConfigError."""
        if not reason.strip():
            raise ConfigError(
                "reason is missing: whoever looks at this later will want to know why"
            )
        if commit_ts in self._decided:
            return False
        skip = SkipEntry(commit_ts, reason, self._clock.wall_ms())
        await self._store.put_skip(skip)
        self._decided[commit_ts] = skip
        return True
