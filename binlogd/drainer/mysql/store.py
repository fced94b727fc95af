"""The rows that a sink keeps about itself downstream: checkpoint and progress.

Everything here replaces rows by given values, so a statement whose answer was lost is simply run
again. Source of the checkpoint table: tidb-binlog drainer/checkpoint/mysql.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from binlogd.drainer import sql
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.mysql.connection import Server, SqlRefused, SqlSession
from binlogd.drainer.rows.progress import (
    LanePosition,
    PendingDdl,
    ProgressTable,
    Restart,
    Row,
    restart_of,
)
from binlogd.errors import ConfigError, DownstreamUnavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")


class _Place:
    """A server where rows about the sink are kept: one connection, made anew when it is gone.

    Every method raises DownstreamUnavailable, and ConfigError for what the server refuses.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session: SqlSession | None = None
        self._lock = asyncio.Lock()

    async def run(self, statements: Sequence[bytes]) -> None:
        """Runs each, committed by itself."""
        async with self._lock:
            for statement in statements:
                await self._once_more(partial(_run, statement))

    async def rows(self, statement: bytes) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        async with self._lock:
            return await self._once_more(lambda session: session.rows(statement))

    async def transaction(self, statements: Sequence[bytes]) -> None:
        """All of them or none."""

        async def together(session: SqlSession) -> None:
            async with session.transaction():
                for statement in statements:
                    await session.run(statement)

        await self.alone(together)

    async def alone(self, work: Callable[[SqlSession], Awaitable[T]]) -> T:
        """Some statements that belong together; they must bear to be run again."""
        async with self._lock:
            return await self._once_more(work)

    def close(self) -> None:
        """Drops the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    async def _once_more(self, work: Callable[[SqlSession], Awaitable[T]]) -> T:
        """Runs the work; once more on a new connection if the old one turns out to be gone."""
        try:
            if self._session is not None:
                return await work(self._session)
        except DownstreamUnavailable:
            self.close()
        except SqlRefused as error:
            raise _refused(error) from error
        self._session = await SqlSession.connect(self._server)
        try:
            return await work(self._session)
        except SqlRefused as error:
            raise _refused(error) from error


class MySqlStore:
    """Used by one sink; every method raises DownstreamUnavailable when the server is gone.

    Progress is beside the data. The checkpoint may be on another server, `elsewhere`; then it is
    saved there first, and the note of it here: one that is lost in between changes nothing.
    """

    def __init__(
        self,
        server: Server,
        schema: str,
        cluster_id: int,
        table: str = "checkpoint",
        elsewhere: Server | None = None,
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

    async def open(self, lanes: int) -> tuple[Checkpoint | None, Restart]:
        """Creates what is missing and reads what is there; lays out so many lanes, unless those
        that are there must catch up with each other first. Raises ConfigError as well.
        """
        checkpoint = await self._made()
        if checkpoint is not None and (await self._restart(checkpoint)).is_set_back:
            checkpoint = _as_set(checkpoint)
            await self._there.run([self._replaced_by(checkpoint)])
        stored = checkpoint
        restart = await self._here.alone(lambda session: self._taken_over(session, stored, lanes))
        return checkpoint, restart

    async def owner(self, decide: Callable[[str], str | None]) -> None:
        """Asks `decide` what to note of who keeps the downstream, by what is noted ("" for
        nothing); None leaves it. What it raises is raised. Raises ConfigError as well."""
        await self._made()

        async def decided(session: SqlSession) -> None:
            async with session.transaction():
                rows = await session.rows(self.progress.owner())
                note = decide(str(rows[0][0]) if rows else "")
                if note is not None:
                    await session.run(self.progress.owned(note))

        await self._here.alone(decided)

    async def _made(self) -> Checkpoint | None:
        """Creates what is missing; the checkpoint that is there."""
        schema = b"CREATE DATABASE IF NOT EXISTS " + sql.ident(self._schema)
        checkpoints = (
            b"CREATE TABLE IF NOT EXISTS "
            + self._checkpoints
            + b"(clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)"
        )
        await self._there.run([schema, checkpoints])
        await self._here.run([schema])
        checkpoint = await self._load()
        await self._here.run([self.progress.create()])
        return checkpoint

    async def _restart(self, checkpoint: Checkpoint | None) -> Restart:
        rows = await self._here.rows(self.progress.look())
        return restart_of([_row(each) for each in rows], checkpoint)

    async def _taken_over(
        self, session: SqlSession, checkpoint: Checkpoint | None, lanes: int
    ) -> Restart:
        """Reads and lays out in one transaction, behind whatever a former process has in work.

        A COMMIT that its server is still at holds the lock of the lane's row: waiting for it tells
        whether the rows that it belongs to are there.
        """
        async with session.transaction():
            rows = [_row(each) for each in await session.rows(self.progress.read())]
            restart = restart_of(rows, checkpoint)
            statements: tuple[bytes, ...] = ()
            if restart.is_set_back:
                log.warning("checkpoint_was_set_back", commit_ts=restart.low_ts)
                statements = self.progress.set_to(restart.low_ts)
            if restart.is_level:
                level = (LanePosition(restart.high_ts),) * lanes
                restart = Restart(level, restart.ddl, is_set_back=restart.is_set_back)
            for statement in (*statements, *self.progress.lay_out(restart.lanes)):
                await session.run(statement)
        return restart

    async def stored(self) -> Checkpoint | None:
        """The checkpoint that is there, if there is one; changes nothing. Raises ConfigError."""
        there = await self._there.rows(
            b"SELECT 1 FROM information_schema.tables WHERE table_schema = "
            + sql.text(self._schema)
            + b" AND table_name = "
            + sql.text(self._table)
        )
        return await self._load() if there else None

    async def packet_bytes_max(self) -> int:
        """The largest statement that the server takes."""
        rows = await self._here.rows(b"SELECT @@max_allowed_packet")
        return int(rows[0][0])

    async def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint, and notes which one it is."""
        await self._replace(checkpoint, [self.progress.saved(checkpoint.commit_ts)])

    async def set_to(self, checkpoint: Checkpoint) -> None:
        """Everything begins anew behind this checkpoint; nobody may be at work."""
        await self._replace(checkpoint, self.progress.set_to(checkpoint.commit_ts))

    async def state(self) -> tuple[Checkpoint | None, Restart]:
        """What is stored, without a change to anything. Raises ConfigError as well."""
        checkpoint = await self._load()
        return checkpoint, await self._restart(checkpoint)

    async def _replace(self, checkpoint: Checkpoint, notes: Sequence[bytes]) -> None:
        if self._there is self._here:
            await self._here.transaction([self._replaced_by(checkpoint), *notes])
        else:
            await self._there.run([self._replaced_by(checkpoint)])
            await self._here.transaction(notes)

    def _replaced_by(self, checkpoint: Checkpoint) -> bytes:
        text = sql.quoted(checkpoint.to_json())
        return b"REPLACE INTO %b VALUES (%d, %b)" % (self._checkpoints, self.cluster_id, text)

    async def lay_out(self, positions: Sequence[LanePosition]) -> None:
        """Replaces the progress rows of all lanes."""
        await self._here.transaction(self.progress.lay_out(positions))

    async def begin_ddl(self, ddl: PendingDdl, positions: Sequence[LanePosition]) -> None:
        """Notes that all before the DDL is applied, and that it is begun."""
        await self._here.transaction(
            [*self.progress.lay_out(positions), self.progress.begin_ddl(ddl)]
        )

    async def end_ddl(self, positions: Sequence[LanePosition]) -> None:
        """Notes that the DDL is done."""
        await self._here.transaction([*self.progress.lay_out(positions), self.progress.end_ddl()])

    def close(self) -> None:
        """Drops the connections."""
        self._here.close()
        self._there.close()

    async def _load(self) -> Checkpoint | None:
        query = b"SELECT clusterID, checkPoint FROM " + self._checkpoints
        if self.cluster_id != 0:
            query += b" WHERE clusterID = %d" % self.cluster_id
        rows = await self._there.rows(query)
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


async def _run(statement: bytes, session: SqlSession) -> None:
    await session.run(statement)


def _refused(error: SqlRefused) -> ConfigError:
    return ConfigError(
        f"the downstream refuses the checkpoint tables: {error}; the user needs CREATE, SELECT,"
        " INSERT, UPDATE and DELETE on the checkpoint schema (syncer.to.checkpoint.schema)"
    )
