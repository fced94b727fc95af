"""Timestamps from a TiDB: those that its own transactions begin with, from PD.

Why none is ahead of a writer: it was handed out by PD, and a commit_ts that is asked for later is
larger. `SHOW MASTER STATUS` gives one in every version with binlog, and asks for REPLICATION
CLIENT; a transaction's `@@tidb_current_ts` asks for no privilege. `TIDB_CURRENT_TSO()` says the
same, from 6.5 on only. Source: TiDB pkg/executor/show.go, fetchShowMasterStatus; pkg/sessionctx/
variable/sysvar.go, tidb_current_ts.
"""

from __future__ import annotations

import asyncio
import math

from binlogd.errors import UpstreamUnavailable
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.upstream.tidb.servers import Several
from binlogd.upstream.tidb.sql import TidbRefused, TidbSql
from binlogd.upstream.upstream import TsoStatistics

_OF_BINLOG = ("SHOW MASTER STATUS",)
_OF_TRANSACTION = ("BEGIN", "SELECT @@tidb_current_ts")


class TidbTso:
    """A TsoSource."""

    def __init__(self, servers: Several[TidbSql]) -> None:
        self._servers = servers
        self._last_ts = NO_TS
        self._told_at_s = -math.inf
        self._asked = self._errors = 0
        self._trouble = ""

    async def next(self) -> Tso:
        """A timestamp of now. Raises UpstreamUnavailable."""
        self._asked += 1
        try:
            ts = await self._servers.ask(_timestamp)
        except UpstreamUnavailable as error:
            self._errors += 1
            self._trouble = str(error)
            raise
        self._last_ts, self._trouble = ts, ""
        self._told_at_s = asyncio.get_running_loop().time()
        return ts

    def statistics(self) -> TsoStatistics:
        """How it stands."""
        return TsoStatistics(
            last_ts=self._last_ts,
            age_s=asyncio.get_running_loop().time() - self._told_at_s,
            asked=self._asked,
            errors=self._errors,
            trouble=self._trouble,
        )

    def observe(self, ts: Tso) -> None:
        """PD hands out larger ones anyhow."""


async def _timestamp(server: TidbSql) -> Tso:
    ts = 0
    try:
        ts = _number(server, await server.rows(*_OF_BINLOG), column=1)
    except TidbRefused:  # no privilege, or no such statement any more
        ts = 0
    if not ts:
        ts = _number(server, await server.rows(*_OF_TRANSACTION), column=0)
        await server.rows("ROLLBACK")
    if not 0 < ts <= MAX_TS:
        raise UpstreamUnavailable(f"tidb {server}: {ts} is no timestamp")
    return Tso(ts)


def _number(server: TidbSql, rows: object, *, column: int) -> int:
    try:
        return int(rows[0][column])  # type: ignore[index]  # whatever it is, it is looked at here
    except (IndexError, TypeError, ValueError) as error:
        raise UpstreamUnavailable(f"tidb {server}: no timestamp in {rows!r:.200}") from error
