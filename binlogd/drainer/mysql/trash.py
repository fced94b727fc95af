"""The trash schema of a MySQL or MariaDB: made at the start, and emptied of what is too old.

Age is upstream time: from the start of the job that dropped a table to what is applied here. So a
replica that lags keeps what a RECOVER on its way still needs. Names: ddl/trash_names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from binlogd.drainer import sql
from binlogd.drainer.ddl.trash_names import TrashStatistics, dropped_by
from binlogd.drainer.mysql.connection import MySqlServer, SqlSession
from binlogd.errors import BinlogdError
from binlogd.tso import NO_TS, Tso, physical_ms

LOOK_EVERY_S = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TrashOptions:
    """The schema, and for how long a table stays in it."""

    schema: str
    keep_s: float


class TrashBin:
    """Drops what is too old, one table at a time, on a connection of its own."""

    def __init__(self, server: MySqlServer, options: TrashOptions) -> None:
        self._server, self._options = server, options
        self._now = TrashStatistics()

    async def prepare(self, session: SqlSession) -> None:
        """Makes the schema. Raises SqlRefused, DownstreamUnavailable."""
        await session.run(b"CREATE DATABASE IF NOT EXISTS " + sql.ident(self._options.schema))

    async def run(self, applied_ts: Callable[[], Tso]) -> None:
        """Looks again and again until cancelled; trouble here is told and harms nothing else."""
        while True:  # until cancelled
            try:
                await self.sweep(applied_ts())
            except BinlogdError as error:
                log.warning("trash_not_emptied", cause=str(error), schema=self._options.schema)
                self._now = replace(self._now, last_error=str(error))
            await asyncio.sleep(min(LOOK_EVERY_S, self._options.keep_s))

    async def sweep(self, applied_ts: Tso) -> None:
        """Drops what is too old at `applied_ts`. Raises SqlRefused, DownstreamUnavailable."""
        session = await SqlSession.connect(self._server)
        try:
            rows = await session.rows(
                b"SELECT table_name FROM information_schema.tables WHERE table_schema = "
                + sql.text(self._options.schema)
            )
            found = sorted(
                (ts, str(name)) for (name,) in rows if (ts := dropped_by(str(name))) is not None
            )
            limit_ms = physical_ms(applied_ts) - self._options.keep_s * 1000
            kept = [ts for ts, _ in found if physical_ms(ts) > limit_ms]
            for ts, name in found[: len(found) - len(kept)]:
                table = sql.qualified(self._options.schema, name)
                await session.run(b"DROP TABLE IF EXISTS " + table, is_long=True)
                self._now = replace(self._now, dropped=self._now.dropped + 1)
                log.info("trash_table_dropped", table=name, dropped_upstream_ts=ts)
            self._now = TrashStatistics(len(kept), min(kept, default=NO_TS), self._now.dropped)
        finally:
            session.close()

    def statistics(self) -> TrashStatistics:
        """How it stands; cheap."""
        return self._now
