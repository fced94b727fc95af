"""Which moment of a TiDB downstream equals which of the upstream: `ts-map` of the checkpoint.

At most once a minute, while nothing is in work, the downstream is asked for its own timestamp: read
as of it, it holds exactly what the upstream held at `primary-ts`. Tools that compare two clusters
take such a pair of snapshots. Source: tidb-binlog drainer/sync/mysql.go, pkg/loader/load.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from binlogd.drainer.mysql.connection import SqlRefused, SqlSession
from binlogd.tso import Tso

log = structlog.get_logger(__name__)

EVERY_S = 60.0
QUESTION = b"SHOW MASTER STATUS"
_UNKNOWN = 1105
"""TiDB's error without a number of its own: it keeps no binlog."""


class Positions:
    """The last pair that is known."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._pair: dict[str, int] = {}

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask again."""
        return asyncio.get_running_loop().time() >= self._next_s

    async def take(self, session: SqlSession, applied_ts: Tso) -> None:
        """Asks, while everything up to `applied_ts` is committed and nothing after it is begun.
        Raises DownstreamUnavailable."""
        self._next_s = asyncio.get_running_loop().time() + EVERY_S
        try:
            rows = await session.rows(QUESTION)
        except SqlRefused as error:
            if error.code != _UNKNOWN:
                log.warning("downstream_position_unknown", cause=str(error))
            return
        if rows and rows[0][1]:
            self._pair = {"primary-ts": int(applied_ts), "secondary-ts": int(rows[0][1])}

    def onto(self, ts_map: Mapping[str, int]) -> Mapping[str, int]:
        """What a checkpoint that had this map is saved with."""
        return {**ts_map, **self._pair}
