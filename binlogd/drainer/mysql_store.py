"""The rows that a sink keeps about itself downstream: checkpoint and progress.

Everything here replaces rows by given values, so a statement whose answer was lost is simply run
again. Source of the checkpoint table: tidb-binlog drainer/checkpoint/mysql.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from binlogd.drainer import sql
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.mysql import Server, SqlRefused, SqlSession
from binlogd.drainer.progress import (
    LanePosition,
    PendingDdl,
    ProgressTable,
    Restart,
    restart_of,
)
from binlogd.errors import ConfigError, DownstreamUnavailable


class MySqlStore:
    """Used by one sink; every method raises DownstreamUnavailable when the server is gone."""

    def __init__(self, server: Server, schema: str, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self._server, self._schema = server, schema
        self._checkpoints = sql.qualified(schema, "checkpoint")
        self._session: SqlSession | None = None
        self._lock = asyncio.Lock()

    @property
    def progress(self) -> ProgressTable:
        """The statements about progress rows."""
        return ProgressTable(self._schema, self.cluster_id)

    async def open(self) -> tuple[Checkpoint | None, Restart]:
        """Creates what is missing and reads what is there. Raises ConfigError as well."""
        await self._run(
            [
                b"CREATE DATABASE IF NOT EXISTS " + sql.ident(self._schema),
                b"CREATE TABLE IF NOT EXISTS "
                + self._checkpoints
                + b"(clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)",
                self.progress.create(),
            ]
        )
        checkpoint = await self._load()
        rows = await self._rows(self.progress.read())
        found = [
            (int(lane), int(lanes), int(ts), int(piece), int(session), str(note))
            for lane, lanes, ts, piece, session, note in rows
        ]
        return checkpoint, restart_of(found, checkpoint)

    async def packet_bytes_max(self) -> int:
        """The largest statement that the server takes."""
        rows = await self._rows(b"SELECT @@max_allowed_packet")
        return int(rows[0][0])

    async def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint."""
        await self._run(
            [
                b"REPLACE INTO %b VALUES (%d, %b)"
                % (self._checkpoints, self.cluster_id, sql.quoted(checkpoint.to_json()))
            ]
        )

    async def lay_out(self, positions: Sequence[LanePosition]) -> None:
        """Replaces the progress rows of all lanes."""
        await self._transaction(self.progress.lay_out(positions))

    async def begin_ddl(self, ddl: PendingDdl, positions: Sequence[LanePosition]) -> None:
        """Notes that all before the DDL is applied, and that it is begun."""
        await self._transaction([*self.progress.lay_out(positions), self.progress.begin_ddl(ddl)])

    async def end_ddl(self, positions: Sequence[LanePosition]) -> None:
        """Notes that the DDL is done."""
        await self._transaction([*self.progress.lay_out(positions), self.progress.end_ddl()])

    def close(self) -> None:
        """Drops the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    async def _load(self) -> Checkpoint | None:
        query = b"SELECT clusterID, checkPoint FROM " + self._checkpoints
        if self.cluster_id != 0:
            query += b" WHERE clusterID = %d" % self.cluster_id
        rows = await self._rows(query)
        if len(rows) > 1:
            raise ConfigError(
                "there are multi row in checkpoint table: several upstream clusters; give"
                " upstream.cluster-id"
            )
        if not rows:
            return None
        self.cluster_id = int(rows[0][0])
        return Checkpoint.from_json(str(rows[0][1] or "{}"))

    async def _run(self, statements: Sequence[bytes]) -> None:
        async with self._lock:
            for statement in statements:
                await self._once_more(lambda session, text=statement: session.run(text))

    async def _rows(self, statement: bytes) -> list[tuple[Any, ...]]:
        async with self._lock:
            rows: list[tuple[Any, ...]] = await self._once_more(
                lambda session: session.rows(statement)
            )
            return rows

    async def _transaction(self, statements: Sequence[bytes]) -> None:
        async with self._lock:
            await self._once_more(lambda session: session.transaction(statements))

    async def _once_more(self, work: Any) -> Any:
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


def _refused(error: SqlRefused) -> ConfigError:
    return ConfigError(
        f"the downstream refuses the checkpoint tables: {error}; the user needs CREATE, SELECT,"
        " INSERT, UPDATE and DELETE on the checkpoint schema (syncer.to.checkpoint.schema)"
    )
