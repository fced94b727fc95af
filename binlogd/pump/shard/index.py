"""A shard's index: which record of the log holds which transaction. Owns the SQLite database.

Invariant I2. The log is the truth: everything here can be made again by scanning it, and no row
points past synced bytes. Rows and marks of one batch are one transaction, so a crash leaves them
in agreement; `synchronous = NORMAL` may lose the last transactions with the power, never some.

Prewrites and commits are kept apart, and commits by (commit_ts, start_ts): a fake whose timestamp
equals that of a real binlog replaces nothing.

Source: tidb-binlog pump/storage/storage.go (LevelDB there); docs/FORMAT.md, index.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from binlogd.errors import ConfigError, CorruptIndex, IndexUnavailable
from binlogd.host.database import Connection, connection_to, is_damage
from binlogd.log import index_file, tally
from binlogd.log.pointer import FileId, Place, ValuePointer
from binlogd.pump.log.entry import Entry
from binlogd.pump.log.kind import rows_of
from binlogd.pump.shard.found import FoundCommit, found_commits, senseless
from binlogd.tso import MAX_TS, NO_TS, Tso

_SCHEMA = """
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
_COMMITS_AFTER = """
SELECT c.commit_ts, c.start_ts, c.fid, c.offset, c.length, p.fid pf, p.offset po, p.length pl
FROM commits c LEFT JOIN prewrites p ON p.start_ts = c.start_ts AND c.start_ts <> c.commit_ts
WHERE c.commit_ts > ? AND c.commit_ts <= ? ORDER BY c.commit_ts, c.start_ts LIMIT ?
"""
_COMMITS_PACKED = f"""
SELECT json_group_array(json_array(commit_ts, start_ts, fid, offset, length, pf, po, pl)) FROM (
{_COMMITS_AFTER})
"""
"""The same as one text, because for each row the interpreter is let go of and taken back. It keeps
the order of the rows, which have a limit. Before 3.38 not every SQLite knows JSON."""
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Maybe = _Number | None
_packed = msgspec.json.Decoder(
    list[tuple[_Number, _Number, _Number, _Number, _Number, _Maybe, _Maybe, _Maybe]]
)
LATE_MAX = 65_536
_PIECE = 2_000  # rows deleted in one transaction: filing waits for no more than that


_MARKS_SAVED = "INSERT OR REPLACE INTO marks VALUES (?,?)"

_VALUES = " VALUES "
_TOGETHER = 64  # rows of one statement
_BUSY_TIMEOUT_S = 1.0
_ASKED = 500  # transactions of one query

_Statement = tuple[str, Sequence[tuple[object, ...]]]
"""What is executed for each of some rows."""


class LateRow(NamedTuple):
    """A commit that came below the watermark, and where it stands."""

    commit_ts: Tso
    start_ts: Tso
    place: Place


class LateKept(NamedTuple):
    """The first of all late commits of a shard, as many as are held in memory, and their number."""

    rows: list[LateRow]
    total: int


class SqliteIndex:
    """One database with a connection to write and one to read, each with its own thread."""

    def __init__(self, path: Path, writer: Connection, reader: Connection) -> None:
        self.path = path
        self._writer = writer
        self._reader = reader
        self._writing = asyncio.Lock()
        self._tally: tally.Tally | None = None
        self._compared_from = MAX_TS
        self.damage: str | None = None
        self._on_damage: Callable[[], None] | None = None

    @classmethod
    async def open(cls, path: Path) -> SqliteIndex:
        """Opens or makes it. Raises CorruptIndex, IndexUnavailable, or ConfigError when a newer
        binlogd made it."""
        writer = await _connect(path)
        try:
            with _translated(path):
                for pragma in (
                    "journal_mode = WAL",
                    "synchronous = NORMAL",
                    "wal_autocheckpoint = 4000",
                ):
                    await (await writer.execute(f"PRAGMA {pragma}")).close()
                await writer.executescript(_SCHEMA + tally.SCHEMA)
                await _check_format(path, writer)
            reader = await _connect(path)
        except BaseException:
            await writer.close()
            raise
        return cls(path, writer, reader)

    async def close(self) -> None:
        """Closes both connections, after the transaction that is going on."""
        async with self._writing:
            await self._reader.close()
            await self._writer.close()

    # --- damage ----------------------------------------------------------------------------

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

    # --- writing ---------------------------------------------------------------------------

    async def put(
        self,
        entries: Sequence[Entry],
        marks: index_file.Marks | None = None,
        segments: Iterable[index_file.Segment] = (),
        *,
        late: Sequence[LateRow] = (),
        is_durable: bool = False,
    ) -> None:
        """Files entries, marks and segments in one transaction; repeating it changes nothing. The
        power may take it along with itself unless it `is_durable`, or some are `late`.

        Raises IndexUnavailable (nothing was filed), or CorruptIndex before `on_damage`.
        """
        prewrites, commits, rollbacks = rows_of(entries)
        statements: list[_Statement] = [
            ("INSERT OR REPLACE INTO prewrites VALUES (?,?,?,?)", prewrites),
            ("INSERT OR REPLACE INTO commits VALUES (?,?,?,?,?)", commits),
            ("INSERT OR REPLACE INTO rollbacks VALUES (?,?)", rollbacks),
            (
                "INSERT OR REPLACE INTO segments VALUES (?,?,?,?,?,?)",
                [msgspec.structs.astuple(each) for each in segments],
            ),
            (
                "INSERT OR REPLACE INTO late VALUES (?,?,?,?,?)",
                [(each.commit_ts, each.start_ts, *each.place) for each in late],
            ),
            (_MARKS_SAVED, [] if marks is None else index_file.mark_rows(marks)),
        ]
        now = self._tally
        if entries:
            begin = ValuePointer(entries[0].fid, entries[0].offset)
            now = tally.tally_with(now, begin, entries[-1].end, commits)
            statements.append((tally.SAVED, [now] if now.commits else []))
        await self._transact(statements, is_durable=is_durable or bool(late))
        self._tally = now

    async def forget_segments(self, fids: Sequence[FileId], *, marks: index_file.Marks) -> None:
        """Takes segments out, durably, before their files are deleted. Raises as `put` does."""
        statements: list[_Statement] = [
            ("DELETE FROM segments WHERE fid = ?", [(fid,) for fid in fids]),
            (tally.FORGOTTEN, [(marks.first_fid,)]),
            (_MARKS_SAVED, index_file.mark_rows(marks)),
        ]
        await self._transact(statements, is_durable=True)

    async def forget_rows(self, *, first_fid: FileId, upto: Tso) -> int:
        """Deletes some rows, with timestamps <= upto, of segments before `first_fid`.

        Returns how many; call again until it is 0. Raises as `put` does.
        """
        statements: list[_Statement] = []
        for table, key in (
            ("prewrites", "start_ts"),
            ("commits", "commit_ts, start_ts"),
            ("rollbacks", "start_ts"),
        ):
            first = key.partition(",")[0]
            statement = (
                f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table}"
                f" WHERE {first} <= ? AND fid < ? LIMIT {_PIECE})"
            )
            statements.append((statement, [(upto, first_fid)]))
        return await self._transact(statements)

    async def forget_late(self, commit_tss: Iterable[Tso]) -> None:
        """Somebody has decided about late commits. Raises as `put` does."""
        rows = [(commit_ts,) for commit_ts in commit_tss]
        await self._transact([("DELETE FROM late WHERE commit_ts = ?", rows)], is_durable=True)

    # --- reading ---------------------------------------------------------------------------

    async def late(self) -> LateKept:
        """The late commits that nobody has decided about."""
        rows = await self._rows("SELECT * FROM late ORDER BY commit_ts LIMIT ?", (LATE_MAX,))
        count = (await self._all("SELECT count(*) FROM late"))[0][0]
        return LateKept([LateRow(ts, of, Place(*place)) for ts, of, *place in rows], count)

    async def marks(self) -> index_file.Marks | None:
        """What was saved last; None in a new index."""
        try:
            return index_file.marks_of(await self._all(index_file.MARKS_QUERY))
        except ValueError as error:
            raise CorruptIndex(self.path, str(error)) from error

    async def segments(self) -> list[index_file.Segment]:
        """The segments it remembers, oldest first."""
        try:
            return index_file.segments_of(await self._all(index_file.SEGMENTS_QUERY))
        except ValueError as error:
            raise CorruptIndex(self.path, str(error)) from error

    async def commits_after(self, after: Tso, *, upto: Tso, limit: int) -> list[FoundCommit]:
        """Commits and fakes with after < commit_ts <= upto, in order, the first `limit`."""
        arguments = after, upto, limit
        with suppress(IndexUnavailable, msgspec.DecodeError, TypeError):  # the rows say why
            ((text,),) = await self._all(_COMMITS_PACKED, arguments)
            return found_commits(_packed.decode(text))
        rows = await self._rows(_COMMITS_AFTER, arguments)
        try:
            return found_commits(rows)
        except TypeError as error:  # a flipped bit makes a number nothing
            raise self.found_damage(f"a row lacks a number: {error}") from error

    async def doubtful(self, after: Tso) -> list[tally.Tally]:
        """The stretches of the log with commits behind `after` that do not hold what was filed of
        them. What was compared once is not compared again, unless `compared` was never told."""
        if after >= self._compared_from:
            return []
        return [tally.Tally(*row) for row in await self._all(tally.UNFIT, (after, MAX_TS))]

    def compared(self, after: Tso) -> None:
        """Every stretch behind `after` has what the log has."""
        self._compared_from = min(self._compared_from, after)

    async def prewrites(self, start_ts: Sequence[Tso]) -> dict[Tso, Place]:
        """Where the prewrites of these transactions stand, as far as they are filed."""
        found = {}
        for begin in range(0, len(start_ts), _ASKED):
            some = start_ts[begin : begin + _ASKED]
            rows = await self._rows(
                "SELECT start_ts, fid, offset, length FROM prewrites"
                f" WHERE start_ts IN ({','.join('?' * len(some))})",
                some,
            )
            found.update({Tso(ts): Place(fid, offset, size) for ts, fid, offset, size in rows})
        return found

    async def outcome(self, start_ts: Tso) -> Tso | None:
        """The commit_ts of a transaction, 0 for a rollback, None if neither is filed.

        Looks through the commits behind start_ts: for the rare transaction that is asked about.
        """
        if await self._all("SELECT 1 FROM rollbacks WHERE start_ts = ?", (start_ts,)):
            return NO_TS
        rows = await self._all(
            "SELECT commit_ts FROM commits WHERE commit_ts > ? AND start_ts = ? LIMIT 1",
            (start_ts, start_ts),
        )
        return Tso(rows[0][0]) if rows else None

    async def has_commit(self, commit_ts: Tso, start_ts: Tso) -> bool:
        """Whether this very commit is filed."""
        return bool(
            await self._all(
                "SELECT 1 FROM commits WHERE commit_ts = ? AND start_ts = ?", (commit_ts, start_ts)
            )
        )

    async def _rows(self, query: str, arguments: Sequence[object]) -> list[Any]:
        """Rows of timestamps and places."""
        rows = await self._all(query, arguments)
        if (row := senseless(rows)) is not None:
            with self._guarded():
                raise CorruptIndex(self.path, f"a row of it makes no sense: {row}")
        return rows

    async def _all(self, query: str, arguments: Sequence[object] = ()) -> list[Any]:
        with self._guarded():
            return list(await self._reader.execute_fetchall(query, arguments))

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

    async def _transact(self, statements: Sequence[_Statement], *, is_durable: bool = False) -> int:
        """One transaction, in one hop to the writer's thread. Returns how many rows it changed."""
        writer = self._writer
        async with self._writing:
            with self._guarded():
                # aiosqlite's own way to its thread: a hop for each statement costs more than they
                hop: Any = writer._execute  # noqa: SLF001 - see above
                connection = writer._conn  # noqa: SLF001 - see above
                return int(
                    await hop(lambda: _transacted(connection, statements, is_durable=is_durable))
                )


def _transacted(
    connection: sqlite3.Connection, statements: Sequence[_Statement], *, is_durable: bool
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


async def _connect(path: Path) -> Connection:
    with _translated(path):
        return await connection_to(path, timeout=_BUSY_TIMEOUT_S)


async def _check_format(path: Path, writer: Connection) -> None:
    await writer.execute("INSERT OR IGNORE INTO marks VALUES ('format', ?)", (index_file.FORMAT,))
    await writer.commit()
    rows = list(await writer.execute_fetchall("SELECT value FROM marks WHERE name = 'format'"))
    if rows[0][0] != index_file.FORMAT:
        raise ConfigError(
            f"{path} has format {rows[0][0]}, this binlogd knows {index_file.FORMAT}: use the"
            " version that wrote it, or delete the index, which is then made again from the log"
        )
