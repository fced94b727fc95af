"""How each table is written, looked up when its first row comes, and kept until a DDL.

Invariant. While lanes stand apart, a table has the lanes, and its lanes the changes, that it had
when the first of them was written, whatever became of the downstream meanwhile: a trigger or a key
that came or went, an option that was changed. Why it holds. That decision (`rows.shape.former`) is
noted downstream before the first row is written by it, and replaced in a transaction that levels
all lanes, or that ends a DDL of the table (which levels them as well). A start that finds lanes
apart reads the notes, and what lies between the slowest lane and the fastest is written by them.

One row of progress is never apart from itself, so nothing is noted for one order of all. Where each
lane is a process (`lane_sink`), the first of them that meets a table decides for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from binlogd.drainer.mysql.connection import NO_SUCH_TABLE, SqlRefused
from binlogd.drainer.rows.shape import (
    AS_BEFORE,
    DownstreamTable,
    Mode,
    Shapes,
    former,
    other_members,
)
from binlogd.drainer.rows.target import Reader, Target
from binlogd.drainer.txn import Ddl, Dml
from binlogd.tidb.model import TableAt
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)

READERS_MAX = 10_000


class Tables:
    """`look` describes a table downstream, `flush` writes all that waits, `note` notes a decision
    downstream, durably, unless one is there, and tells which is. What these raise is raised by
    `readers_of`."""

    def __init__(
        self,
        shapes: Shapes,
        look: Callable[[str, str], Awaitable[DownstreamTable | None]],
        flush: Callable[[], Awaitable[None]],
        note: Callable[[int, str], Awaitable[str]],
    ) -> None:
        self._shapes, self._look, self._flush, self._note = shapes, look, flush, note
        self._targets: dict[int, Target] = {}
        self._readers: dict[int, Reader] = {}
        self._noted: dict[int, str] = {}
        self._high_ts = NO_TS
        self._is_noting = True

    def begin(
        self, noted: Mapping[int, str], high_ts: Tso = NO_TS, *, is_noting: bool = True
    ) -> None:
        """Lanes are level, and nothing is noted; or they stand apart up to `high_ts`."""
        self._targets.clear()
        self._readers.clear()
        self._noted, self._high_ts, self._is_noting = dict(noted), high_ts, is_noting

    def known_readers(self, dml: Dml) -> list[Reader] | None:
        """None when some table is met for the first time."""
        readers = self._readers
        try:
            return [readers[id(change.table)] for change in dml.changes]
        except KeyError:
            return None

    async def readers_of(self, dml: Dml) -> list[Reader] | None:
        """None when lanes must be level first: a table is to have other ones than are noted. Raises
        StatementRejected, ConfigError, DownstreamUnavailable."""
        readers = []
        for change in dml.changes:
            known = self._readers.get(id(change.table))
            reader = known or await self._new_reader(change.table, dml.commit_ts)
            if reader is None:
                return None
            readers.append(reader)
        return readers

    async def _new_reader(self, table: TableAt, commit_ts: Tso) -> Reader | None:
        target = self._targets.get(table.info.id)
        if target is None or target.info is not table.info or target.database != table.database:
            if target is not None:  # its rows may wait under the old shape
                await self._flush()
            target = await self._new_target(table, commit_ts)
            if target is None:
                return None
            self._targets[table.info.id] = target
        if len(self._readers) >= READERS_MAX:
            self._readers.clear()
        reader = self._readers[id(table)] = Reader(table, target)
        return reader

    async def _new_target(self, table: TableAt, commit_ts: Tso) -> Target | None:
        found = await self._found(table, commit_ts)
        shape = self._shapes.of(table.database, table.info, found)
        table_id, decision = table.info.id, former(shape)
        noted = self._noted.get(table_id)
        if noted is None and self._is_noting:
            noted = self._noted[table_id] = await self._note(table_id, decision)
        if noted is not None and noted != decision:
            if commit_ts > self._high_ts:
                return None
            shape = self._shapes.as_before(noted, table.database, table.info, found)
        target = Target(table.database, table.info, shape)
        if shape.mode is not Mode.MERGED or shape.reason == AS_BEFORE:
            log.info("table_written_in_order", table=target.label, reason=shape.reason)
        return target

    async def _found(self, table: TableAt, commit_ts: Tso) -> DownstreamTable:
        try:
            found = await self._look(table.database, table.info.name)
        except SqlRefused as error:
            what = f"information_schema about {table.label}"
            raise error.of_rows(commit_ts, what, is_theirs=False) from error
        if found is None:
            missing = SqlRefused(NO_SUCH_TABLE, "the table does not exist downstream")
            raise missing.of_rows(commit_ts, f"rows of {table.label}")
        if column := other_members(table.info, found):
            other = SqlRefused(
                1265, f"column {column} has other members than upstream, or is of text"
            )
            raise other.of_rows(commit_ts, f"rows of {table.label}")
        return found

    def touched(self, ddl: Ddl) -> list[int]:
        """The ids of tables that the DDL changed, or may have."""
        ids = {ddl.job.table_id, *(table.id for table in ddl.job.tables)}
        if ddl.job.table is not None:
            ids.add(ddl.job.table.id)
        for table_id, target in self._targets.items():
            if target.database.lower() == ddl.database.lower():
                ids.add(table_id)
        return sorted(ids)

    def forget(self, ids: Sequence[int]) -> None:
        """What is known of these tables; what is noted of them stays."""
        for table_id in ids:
            self._targets.pop(table_id, None)
        self._readers.clear()

    def forget_notes(self, ids: Sequence[int]) -> None:
        """They were taken away downstream."""
        for table_id in ids:
            self._noted.pop(table_id, None)
