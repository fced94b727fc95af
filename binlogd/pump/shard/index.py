"""A shard's index: which record of the log holds which transaction.

Invariant I2. The log is the truth: everything here can be made again by scanning it, and no row
points past synced bytes. Rows and marks of one batch are one transaction, so a crash leaves them
in agreement.

Prewrites and commits are kept apart, and commits by (commit_ts, start_ts): a fake whose timestamp
equals that of a real binlog replaces nothing.

Source: tidb-binlog pump/storage/storage.go (LevelDB there); docs/FORMAT.md, index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from binlogd.errors import CorruptIndex, IndexUnavailable
from binlogd.log import index_file, tally
from binlogd.log.pointer import FileId, Place, ValuePointer
from binlogd.pump.log.entry import Entry
from binlogd.pump.log.kind import rows_of
from binlogd.pump.shard.found import FoundCommit, found_commits
from binlogd.pump.shard.index_database import IndexDatabase, Statement
from binlogd.tso import MAX_TS, NO_TS, Tso

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
_MARKS_SAVED = "INSERT OR REPLACE INTO marks VALUES (?,?)"
LATE_MAX = 65_536
_ASKED = 500  # transactions of one query


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
    """Files entries, and finds them. Methods raise as those of its `database`, which is its own."""

    def __init__(self, database: IndexDatabase) -> None:
        self.database = database
        self.compared_from = MAX_TS
        """Every stretch of the log behind it was found to be filed, see `check_filed`."""
        self._tally: tally.Tally | None = None

    @classmethod
    async def open(cls, path: Path) -> SqliteIndex:
        """Opens or makes its database. Raises as that does."""
        return cls(await IndexDatabase.open(path))

    async def close(self) -> None:
        """Closes its database, after the transaction that is going on."""
        await self.database.close()

    # --- filing ----------------------------------------------------------------------------

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
        statements: list[Statement] = [
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
        await self.database.transact(statements, is_durable=is_durable or bool(late))
        self._tally = now

    async def forget_segments(self, fids: Sequence[FileId], *, marks: index_file.Marks) -> None:
        """Takes segments out, durably, before their files are deleted."""
        statements: list[Statement] = [
            ("DELETE FROM segments WHERE fid = ?", [(fid,) for fid in fids]),
            (tally.FORGOTTEN, [(marks.first_fid,)]),
            (_MARKS_SAVED, index_file.mark_rows(marks)),
        ]
        await self.database.transact(statements, is_durable=True)

    async def forget_late(self, commit_tss: Iterable[Tso]) -> None:
        """Somebody has decided about late commits."""
        rows = [(commit_ts,) for commit_ts in commit_tss]
        deleted = "DELETE FROM late WHERE commit_ts = ?"
        await self.database.transact([(deleted, rows)], is_durable=True)

    # --- reading ---------------------------------------------------------------------------

    async def late(self) -> LateKept:
        """The late commits that nobody has decided about."""
        rows = await self.database.query_numbers(
            "SELECT * FROM late ORDER BY commit_ts LIMIT ?", (LATE_MAX,)
        )
        count = (await self.database.query("SELECT count(*) FROM late"))[0][0]
        return LateKept([LateRow(ts, of, Place(*place)) for ts, of, *place in rows], count)

    async def marks(self) -> index_file.Marks | None:
        """What was saved last; None in a new index."""
        try:
            return index_file.marks_of(await self.database.query(index_file.MARKS_QUERY))
        except ValueError as error:
            raise CorruptIndex(self.database.path, str(error)) from error

    async def segments(self) -> list[index_file.Segment]:
        """The segments it remembers, oldest first."""
        try:
            return index_file.segments_of(await self.database.query(index_file.SEGMENTS_QUERY))
        except ValueError as error:
            raise CorruptIndex(self.database.path, str(error)) from error

    async def commits_after(self, after: Tso, *, upto: Tso, limit: int) -> list[FoundCommit]:
        """Commits and fakes with after < commit_ts <= upto, in order, the first `limit`."""
        arguments = after, upto, limit
        with suppress(IndexUnavailable, msgspec.DecodeError, TypeError):  # the rows say why
            ((text,),) = await self.database.query(_COMMITS_PACKED, arguments)
            return found_commits(_packed.decode(text))
        rows = await self.database.query_numbers(_COMMITS_AFTER, arguments)
        try:
            return found_commits(rows)
        except TypeError as error:  # a flipped bit makes a number nothing
            raise self.database.found_damage(f"a row lacks a number: {error}") from error

    async def prewrites(self, start_ts: Sequence[Tso]) -> dict[Tso, Place]:
        """Where the prewrites of these transactions stand, as far as they are filed."""
        found = {}
        for begin in range(0, len(start_ts), _ASKED):
            some = start_ts[begin : begin + _ASKED]
            rows = await self.database.query_numbers(
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
        if await self.database.query("SELECT 1 FROM rollbacks WHERE start_ts = ?", (start_ts,)):
            return NO_TS
        rows = await self.database.query(
            "SELECT commit_ts FROM commits WHERE commit_ts > ? AND start_ts = ? LIMIT 1",
            (start_ts, start_ts),
        )
        return Tso(rows[0][0]) if rows else None

    async def has_commit(self, commit_ts: Tso, start_ts: Tso) -> bool:
        """Whether this very commit is filed."""
        return bool(
            await self.database.query(
                "SELECT 1 FROM commits WHERE commit_ts = ? AND start_ts = ?", (commit_ts, start_ts)
            )
        )
