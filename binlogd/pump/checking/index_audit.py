"""Compares every row of a shard's index with the records of its log, for `binlogd check`.

Works on any number of rows: the records come by in batches, in the order of the log, and only their
count is kept. Reads the database as it is and changes nothing in it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from binlogd.binlog import BinlogType
from binlogd.host.database import Connection, connection_to
from binlogd.log import index_file
from binlogd.log.pointer import FileId, Place, ValuePointer
from binlogd.pump.log.entry import Entry
from binlogd.tso import NO_TS, Tso

_PREWRITE, _COMMIT, _ROLLBACK = range(3)
_TABLES = ("prewrites", "commits", "rollbacks")
_SEEN = """
CREATE TEMP TABLE seen (
    kind INTEGER, ts INTEGER, start_ts INTEGER, fid INTEGER, offset INTEGER, length INTEGER)
"""
_MATCHED = {
    _PREWRITE: """
        SELECT count(*) FROM seen s JOIN prewrites i ON i.start_ts = s.ts AND i.fid = s.fid
        AND i.offset = s.offset AND i.length = s.length WHERE s.kind = 0""",
    _COMMIT: """
        SELECT count(*) FROM seen s JOIN commits i ON i.commit_ts = s.ts AND i.start_ts = s.start_ts
        AND i.fid = s.fid AND i.offset = s.offset AND i.length = s.length WHERE s.kind = 1""",
}
_MISSING = """
SELECT s.kind, s.ts, s.start_ts, s.fid, s.offset FROM seen s
LEFT JOIN prewrites p ON s.kind = 0 AND p.start_ts = s.ts
LEFT JOIN commits c ON s.kind = 1 AND c.commit_ts = s.ts AND c.start_ts = s.start_ts
LEFT JOIN rollbacks r ON s.kind = 2 AND r.start_ts = s.ts
WHERE coalesce(p.fid, c.fid, r.fid) IS NULL AND (s.fid, s.offset) < (?, ?)
"""
_ROWS = {
    _PREWRITE: "SELECT start_ts, start_ts, fid, offset, length FROM prewrites WHERE fid >= ?",
    _COMMIT: "SELECT commit_ts, start_ts, fid, offset, length FROM commits WHERE fid >= ?",
}
_PIECE = 1_000


class Row(NamedTuple):
    """A row of `prewrites` or `commits`, and the record that it leads to."""

    table: str
    ts: Tso
    start_ts: Tso
    place: Place

    @property
    def head(self) -> tuple[int, Tso, Tso]:
        """Type and timestamps that its record must have; a fake is a rollback with a commit_ts."""
        if self.table == "prewrites":
            return BinlogType.PREWRITE, self.ts, NO_TS
        tp = BinlogType.ROLLBACK if self.ts == self.start_ts else BinlogType.COMMIT
        return tp, self.start_ts, self.ts


class IndexAudit:
    """Give it every record by `records`, then ask `rows_without_record`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._matched = dict.fromkeys(_MATCHED, 0)

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[IndexAudit]:
        """Opens it to read. Raises sqlite3.Error."""
        async with connection_to(f"file:{quote(str(path))}?mode=ro", uri=True) as connection:
            await connection.execute(_SEEN)
            await connection.execute("CREATE TEMP TABLE rolled_back (start_ts INTEGER PRIMARY KEY)")
            yield cls(connection)

    async def marks(self) -> index_file.Marks | None:
        """What was saved last. Raises sqlite3.Error, or ValueError when it makes no sense."""
        return index_file.marks_of(await self._all(index_file.MARKS_QUERY))

    async def segments(self) -> list[index_file.Segment]:
        """The segments it remembers. Raises sqlite3.Error."""
        return index_file.segments_of(await self._all(index_file.SEGMENTS_QUERY))

    async def outcome(self, start_ts: Tso) -> bool:
        """Whether a rollback or a commit of this transaction is filed. Raises sqlite3.Error."""
        return bool(
            await self._all(
                "SELECT 1 FROM rollbacks WHERE start_ts = ?1 UNION ALL"
                " SELECT 1 FROM commits WHERE commit_ts > ?1 AND start_ts = ?1 LIMIT 1",
                (start_ts,),
            )
        )

    async def damage(self) -> list[str]:
        """What SQLite itself finds wrong, in its words. Raises sqlite3.Error."""
        rows = await self._all("PRAGMA integrity_check(100)")
        return [str(text) for (text,) in rows if text != "ok"]

    async def records(
        self, entries: Sequence[Entry], head: ValuePointer
    ) -> list[tuple[str, ValuePointer]]:
        """Takes the next records; returns which of those before `head` have no row, and where they
        stand. Raises sqlite3.Error."""
        await self._connection.execute("DELETE FROM seen")
        await self._connection.executemany(
            "INSERT INTO seen VALUES (?,?,?,?,?,?)", map(_seen, entries)
        )
        for kind, query in _MATCHED.items():
            ((count,),) = await self._all(query)
            self._matched[kind] += count
        await self._connection.execute(
            "INSERT OR IGNORE INTO rolled_back SELECT s.ts FROM seen s JOIN rollbacks r"
            " ON r.start_ts = s.ts AND r.fid = s.fid WHERE s.kind = 2"
        )
        return [
            (
                f"{_TABLES[kind]} {ts}" + (f", {start_ts}" if kind == _COMMIT else ""),
                ValuePointer(FileId(fid), offset),
            )
            for kind, ts, start_ts, fid, offset in await self._all(_MISSING, tuple(head))
        ]

    async def row_count(self, first_fid: FileId) -> int:
        """Rows that lead to segments which are not deleted. Raises sqlite3.Error."""
        return sum([await self._count(table, first_fid) for table in _TABLES])

    async def rows_without_record(self, first_fid: FileId) -> AsyncGenerator[list[Row], None]:
        """After all records: the rows among which are those that lead to none, to be looked at one
        by one; nothing when every row was met. Raises sqlite3.Error, ValueError."""
        for kind, query in _ROWS.items():
            table = _TABLES[kind]
            if await self._count(table, first_fid) == self._matched[kind]:
                continue
            async with self._connection.execute(query, (first_fid,)) as cursor:
                while rows := list(await cursor.fetchmany(_PIECE)):  # ends with the table
                    if not all(isinstance(each, int) for row in rows for each in row):
                        raise ValueError(f"{table} has a row that is no row of numbers")
                    yield [
                        Row(table, Tso(ts), Tso(start), Place(FileId(fid), offset, length))
                        for ts, start, fid, offset, length in rows
                    ]

    async def rollbacks_without_record(self, first_fid: FileId) -> list[Tso]:
        """After all records: rollbacks that the log does not have. Raises sqlite3.Error."""
        rows = await self._all(
            "SELECT start_ts FROM rollbacks WHERE fid >= ? AND start_ts NOT IN rolled_back",
            (first_fid,),
        )
        return [Tso(start_ts) for (start_ts,) in rows]

    async def _count(self, table: str, first_fid: FileId) -> int:
        query = f"SELECT count(*) FROM {table} WHERE fid >= ?"
        ((count,),) = await self._all(query, (first_fid,))
        return int(count)

    async def _all(self, query: str, arguments: Sequence[object] = ()) -> list[Any]:
        return list(await self._connection.execute_fetchall(query, arguments))


def _seen(entry: Entry) -> tuple[int, ...]:
    start_ts, commit_ts = entry.start_ts, entry.commit_ts
    fid, offset, length = entry.place
    if entry.tp == BinlogType.PREWRITE:
        return (_PREWRITE, start_ts, start_ts, fid, offset, length)
    if commit_ts:
        return (_COMMIT, commit_ts, start_ts, fid, offset, length)
    return (_ROLLBACK, start_ts, start_ts, fid, offset, length)
