"""The rows that a sink keeps about itself downstream: checkpoint and progress.

Everything here replaces rows by given values, so a statement whose answer was lost is simply run
again. Whoever answers may be another server than before: nothing is written without a look, in the
same transaction, whether the lanes are where this process left them.

Source of the checkpoint table: tidb-binlog drainer/checkpoint/mysql.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from binlogd.drainer import sql
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.mysql import catalog
from binlogd.drainer.mysql.connection import NO_TABLE, MySqlServer, SqlRefused, SqlSession
from binlogd.drainer.mysql.progress_table import ProgressTable, lanes_of
from binlogd.drainer.rows.progress import (
    TABLE_NAME,
    LanePosition,
    PendingDdl,
    Restart,
    Row,
    not_as_left,
    restart_of,
    went_back,
)
from binlogd.errors import ConfigError, DownstreamUnavailable
from binlogd.tso import NO_TS, Tso

log = structlog.get_logger(__name__)

T = TypeVar("T")


class _Place:
    """A server where rows about the sink are kept: one connection, made anew when it is gone. Every
    method raises DownstreamUnavailable, and ConfigError for what the server refuses."""

    def __init__(self, server: MySqlServer) -> None:
        self._server = server
        self._session: SqlSession | None = None
        self._lock = asyncio.Lock()

    def __str__(self) -> str:
        """The server, for people."""
        return str(self._server)

    async def run(self, statements: Sequence[bytes]) -> None:
        """Runs each, committed by itself."""
        async with self._lock:
            for statement in statements:
                await self._once_more(partial(SqlSession.run, statement=statement))

    async def rows(self, statement: bytes) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        async with self._lock:
            return await self._once_more(lambda session: session.rows(statement))

    async def transaction(self, work: Callable[[SqlSession], Awaitable[T]]) -> T:
        """All that the work runs, or nothing; it must bear to be done again."""

        async def together(session: SqlSession) -> T:
            async with session.transaction():
                return await work(session)

        async with self._lock:
            return await self._once_more(together)

    def close(self) -> None:
        """Drops the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    async def _once_more(self, work: Callable[[SqlSession], Awaitable[T]]) -> T:
        """Runs the work; once more on a new connection if the old one turns out to be gone."""
        try:
            if self._session is not None:
                with suppress(DownstreamUnavailable):
                    return await work(self._session)
                self.close()
            self._session = await SqlSession.connect(self._server)
            return await work(self._session)
        except SqlRefused as error:
            raise _refused(error) from error


async def _each(statements: Sequence[bytes], session: SqlSession) -> None:
    for statement in statements:
        await session.run(statement)


class MySqlStore:
    """Used by one sink; every method raises DownstreamUnavailable when the server is gone.

    Progress is beside the data. The checkpoint may be on another server, `elsewhere`; then it is
    saved there first, with a note of it, and the note of it here: one that is lost in between
    changes nothing.
    """

    def __init__(
        self,
        server: MySqlServer,
        schema: str,
        cluster_id: int,
        table: str = "checkpoint",
        elsewhere: MySqlServer | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self._schema, self._table = schema, table
        self._checkpoints = sql.qualified(schema, table)
        self._here = _Place(server)
        self._there = _Place(elsewhere) if elsewhere is not None else self._here

    @property
    def progress(self) -> ProgressTable:
        """The statements about progress rows."""
        return ProgressTable(self._schema, self.cluster_id)

    async def open(
        self, lanes: int, now_ts: Tso = NO_TS
    ) -> tuple[Checkpoint | None, Restart, Mapping[int, str]]:
        """Creates what is missing and reads what is there; lays out so many lanes, unless those
        that are there must catch up with each other first: then by the shapes that are noted of
        tables, the last of what is returned. A copy that was loaded meanwhile is as of `now_ts` at
        the latest. Raises ConfigError as well.
        """
        await self._made()
        checkpoint, noted_ts = await self._kept()
        looked_at = await self._restart(checkpoint, noted_ts) if self._is_elsewhere else None
        if looked_at is not None and looked_at.is_set_back and checkpoint:
            checkpoint = _as_set(checkpoint)
            await self._there.run([self._replaced_by(checkpoint)])
        checkpoint, restart, noted = await self._here.transaction(
            lambda session: self._taken_over(session, checkpoint, noted_ts, lanes, now_ts)
        )
        if self._is_elsewhere and checkpoint and checkpoint.commit_ts > restart.low_ts:
            log.warning(
                "checkpoint_ahead_of_the_data",
                checkpoint_ts=checkpoint.commit_ts,
                begins_at_ts=restart.low_ts,
            )
            return _as_set(replace(checkpoint, commit_ts=restart.low_ts)), restart, noted
        if checkpoint is None and restart.low_ts > NO_TS:  # none was saved yet
            return Checkpoint(restart.low_ts), restart, noted
        return checkpoint, restart, noted

    async def owner(self, decide: Callable[[str], str | None]) -> None:
        """Asks `decide` what to note of who keeps the downstream, by what is noted ("" for
        nothing); None leaves it. What it raises is raised. Raises ConfigError as well."""
        await self._made()
        await self._load()

        async def decided(session: SqlSession) -> None:
            rows = await session.rows(self.progress.owner())
            note = decide(str(rows[0][0]) if rows else "")
            if note is not None:
                await session.run(self.progress.owned(note))

        await self._here.transaction(decided)

    async def _made(self) -> None:
        """Creates what is missing."""
        schema = b"CREATE DATABASE IF NOT EXISTS " + sql.ident(self._schema)
        checkpoints = (
            b"CREATE TABLE IF NOT EXISTS "
            + self._checkpoints
            + b"(clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)"
        )
        await self._there.run([schema, checkpoints])
        await self._here.run([schema])
        if self._is_elsewhere:
            await self._there.run([self.progress.create()])
        await self._here.run([self.progress.create(), self.progress.create_shapes()])
        look = partial(catalog.table_of, database=self._schema, table=TABLE_NAME)
        made = await self._here.transaction(look)
        if made is not None and not made.is_rolled_back:
            raise ConfigError(
                f"{self._here}: {self._schema}.{TABLE_NAME} has an engine without transactions, so"
                " that rows could be applied twice or not at all: make it ENGINE = InnoDB"
            )

    async def _restart(self, checkpoint: Checkpoint | None, noted_ts: Tso | None) -> Restart:
        rows = await self._here.rows(self.progress.look())
        return restart_of(map(_row, rows), checkpoint, noted_ts)

    @property
    def _is_elsewhere(self) -> bool:
        return self._there is not self._here

    async def _kept(self) -> tuple[Checkpoint | None, Tso | None]:
        """The checkpoint, and what is noted beside it; None where that is beside the data.

        Both by one statement: of two moments, with a save of somebody else between them, they look
        as if the checkpoint had been set by hand.
        """
        checkpoint = await self._load()  # and which cluster it is of, where nobody has told
        if not self._is_elsewhere:
            return checkpoint, None
        of_cluster = b" WHERE clusterID = %d" % self.cluster_id
        kept = b"SELECT checkPoint FROM " + self._checkpoints + of_cluster
        both = b"SELECT (" + kept + b"), (" + self.progress.noted() + b")"
        ((text, noted_ts),) = await self._there.rows(both)
        checkpoint = Checkpoint.from_json(str(text)) if text is not None else None
        return checkpoint, Tso(int(noted_ts or NO_TS))

    async def _taken_over(
        self,
        session: SqlSession,
        checkpoint: Checkpoint | None,
        noted_ts: Tso | None,
        lanes: int,
        now_ts: Tso,
    ) -> tuple[Checkpoint | None, Restart, Mapping[int, str]]:
        """Reads and lays out in one transaction, behind whatever a former process has in work.

        A COMMIT that its server is still at holds the lock of the lane's row: waiting for it tells
        whether the rows that it belongs to are there. A checkpoint beside them is read with them:
        one that was read before is of the server that this one has taken the place of, and ahead
        of the note here as if it had been set by hand.
        """
        rows = [_row(each) for each in await session.rows(self.progress.read())]
        if not self._is_elsewhere:
            checkpoint = self._decoded(await session.rows(self._checkpoint()))
        restart = restart_of(rows, checkpoint, noted_ts)
        statements: tuple[bytes, ...] = ()
        if restart.is_set_back:
            log.warning("checkpoint_was_set_back", commit_ts=restart.low_ts)
            statements = self.progress.set_to(restart.low_ts)
        if restart.is_set_back and checkpoint and not self._is_elsewhere:
            checkpoint = _as_set(checkpoint)
            statements = (self._replaced_by(checkpoint), *statements)
        if restart.is_set_back or (restart.is_first and now_ts > NO_TS):
            restart = restart._replace(repeated_ts=max(restart.repeated_ts, now_ts))
            statements = (*statements, self.progress.repeated(restart.repeated_ts))
        noted: dict[int, str] = {}
        if restart.is_level:
            statements = (*statements, self.progress.forget_shapes())
            restart = restart._replace(lanes=(LanePosition(restart.high_ts),) * lanes)
        else:
            shapes = await session.rows(self.progress.shapes())
            noted = {int(table_id): str(shape) for table_id, shape in shapes}
        await _each([*statements, *self.progress.lay_out(restart.lanes)], session)
        return checkpoint, restart, noted

    async def stored(self) -> Checkpoint | None:
        """The checkpoint that is there, if there is one; changes nothing. Raises ConfigError."""
        there = await self._there.rows(
            b"SELECT 1 FROM information_schema.tables" + catalog.where(self._schema, self._table)
        )
        return await self._load() if there else None

    async def packet_bytes_max(self) -> int:
        """The largest statement that the server takes."""
        rows = await self._here.rows(b"SELECT @@max_allowed_packet")
        return int(rows[0][0])

    async def save(self, checkpoint: Checkpoint, left: Sequence[LanePosition]) -> None:
        """Replaces the checkpoint, and notes which one it is. `left` is where the lanes stand, or
        further by now. Raises DownstreamWentBack where they do not."""
        note = self.progress.saved(checkpoint.commit_ts)
        if self._is_elsewhere:
            await self.if_left(left)
            await self._there.transaction(partial(_each, [self._replaced_by(checkpoint), note]))
            await self.if_left(left, note)
        else:
            await self.if_left(left, self._replaced_by(checkpoint), note)

    async def if_left(
        self, left: Sequence[LanePosition], *statements: bytes
    ) -> Sequence[LanePosition]:
        """Runs statements beside a look at the lanes, and tells where these are once nobody is at
        them; `left` and what it raises as for `save`, and ConfigError."""

        async def together(session: SqlSession) -> Sequence[LanePosition]:
            found = await self._lanes(session, left)
            if wrong := went_back(str(self._here), found, left):
                raise wrong
            await _each(statements, session)
            return found

        return await self._here.transaction(together)

    async def set_to(self, checkpoint: Checkpoint, now_ts: Tso) -> None:
        """Everything begins anew behind this checkpoint; nobody may be at work. The data may be of
        any moment up to `now_ts`."""
        notes = (
            *self.progress.set_to(checkpoint.commit_ts),
            self.progress.repeated(max(now_ts, checkpoint.commit_ts)),
        )
        if self._is_elsewhere:
            saved = self.progress.saved(checkpoint.commit_ts)
            await self._there.transaction(partial(_each, [self._replaced_by(checkpoint), saved]))
            await self._here.transaction(partial(_each, notes))
        else:
            await self._here.transaction(partial(_each, [self._replaced_by(checkpoint), *notes]))

    async def state(self) -> tuple[Checkpoint | None, Restart]:
        """What is stored, without a change to anything. Raises ConfigError as well."""
        checkpoint, noted_ts = await self._kept()
        return checkpoint, await self._restart(checkpoint, noted_ts)

    def _replaced_by(self, checkpoint: Checkpoint) -> bytes:
        text = sql.quoted(checkpoint.to_json())
        return b"REPLACE INTO %b VALUES (%d, %b)" % (self._checkpoints, self.cluster_id, text)

    async def lay_out(self, left: Sequence[LanePosition], wanted: Sequence[LanePosition]) -> None:
        """Replaces the progress rows of all lanes, which are as they were left, by others that are
        level. Raises DownstreamWentBack, ConfigError where they are not."""
        notes = [self.progress.forget_shapes()]
        await self._here.transaction(lambda session: self._laid_out(session, left, wanted, notes))

    async def note_shape(self, table_id: int, shape: str) -> str:
        """Notes how a table is written while lanes stand apart, and tells it."""
        await self._here.run([self.progress.note_shape(table_id, shape)])
        return shape

    async def first_shape(self, table_id: int, shape: str) -> str:
        """As `note_shape` where several processes meet a table: who comes first decides."""

        async def decided(session: SqlSession) -> str:
            await session.rows(self.progress.read())  # one after the other
            found = await session.rows(self.progress.shape(table_id))
            if not found:
                await session.run(self.progress.note_shape(table_id, shape))
            return str(found[0][0]) if found else shape

        return await self._here.transaction(decided)

    async def begin_ddl(
        self, session: SqlSession, ddl: PendingDdl, left: Sequence[LanePosition]
    ) -> LanePosition:
        """Notes on the connection of the DDL that all before it is applied, and that it is begun:
        where all lanes stand now. Raises SqlRefused, DownstreamWentBack, ConfigError."""
        position = LanePosition(Tso(ddl.commit_ts - 1))
        wanted = [position] * len(left)
        async with session.transaction():
            await self._laid_out(session, left, wanted, [self.progress.begin_ddl(ddl)])
        return position

    async def end_ddl(
        self,
        session: SqlSession,
        commit_ts: Tso,
        left: Sequence[LanePosition],
        touched: Sequence[int],
    ) -> LanePosition:
        """Notes on the connection of the DDL that it is done; the shapes of the tables that it
        touched are forgotten. As `begin_ddl`.

        On that one: another server may have the note and lack the DDL.
        """
        position = LanePosition(commit_ts)
        wanted = [position] * len(left)
        notes = [self.progress.end_ddl(), self.progress.forget_shapes(touched)]
        async with session.transaction():
            await self._laid_out(session, left, wanted, notes)
        return position

    async def _laid_out(
        self,
        session: SqlSession,
        left: Sequence[LanePosition],
        wanted: Sequence[LanePosition],
        notes: Sequence[bytes],
    ) -> None:
        """In a transaction of the session."""
        found = await self._lanes(session, left)
        if found not in (list(left), list(wanted)):  # or done, and its answer was lost
            raise not_as_left(str(self._here), found, left)
        await _each([*self.progress.lay_out(wanted), *notes], session)

    async def _lanes(self, session: SqlSession, left: Sequence[LanePosition]) -> list[LanePosition]:
        """Where the lanes stand, locked."""
        try:
            rows = await session.rows(self.progress.read())
        except SqlRefused as error:
            if error.code in NO_TABLE:
                raise not_as_left(str(self._here), (), left) from error
            raise
        return lanes_of(_row(each) for each in rows)

    def close(self) -> None:
        """Drops the connections."""
        self._here.close()
        self._there.close()

    async def _load(self) -> Checkpoint | None:
        return self._decoded(await self._there.rows(self._checkpoint()))

    def _checkpoint(self) -> bytes:
        query = b"SELECT clusterID, checkPoint FROM " + self._checkpoints
        if self.cluster_id != 0:
            query += b" WHERE clusterID = %d" % self.cluster_id
        return query

    def _decoded(self, rows: Sequence[tuple[Any, ...]]) -> Checkpoint | None:
        if len(rows) > 1:
            raise ConfigError(
                "there are multi row in checkpoint table: several upstream clusters; give"
                " upstream.cluster-id"
            )
        if not rows:
            return None
        self.cluster_id = int(rows[0][0])
        return Checkpoint.from_json(str(rows[0][1] or "{}"))


def _as_set(checkpoint: Checkpoint) -> Checkpoint:
    """What is meant by a checkpoint that was set by hand: whoever did it did not ask the schema."""
    return replace(checkpoint, consistent=False, schema_version=0)


def _row(found: tuple[Any, ...]) -> Row:
    lane, count, commit_ts, piece, session_id, note = found
    return int(lane), int(count), int(commit_ts), int(piece), int(session_id), str(note)


def _refused(error: SqlRefused) -> ConfigError:
    if error.code in NO_TABLE:
        return ConfigError(
            f"there is no checkpoint: {error.reason}: no Drainer has written there yet, or"
            " syncer.to.checkpoint.schema names another place"
        )
    return ConfigError(
        f"the downstream refuses the checkpoint tables: {error}; the user needs CREATE, SELECT,"
        " INSERT, UPDATE and DELETE on the checkpoint schema (syncer.to.checkpoint.schema)"
    )
