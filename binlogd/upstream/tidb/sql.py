"""A TiDB's MySQL port: one connection, made when it is needed and again when it broke.

A session here only reads, so that a repeated statement does no harm. Source: TiDB
pkg/executor/show.go, fetchShowMasterStatus; pkg/sessionctx/variable/sysvar.go, tidb_current_ts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pymysql.err import MySQLError

from binlogd.errors import UpstreamUnavailable
from binlogd.host.tls import ClientTls
from binlogd.status import TsoStatus
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.upstream.tidb.servers import Several
from binlogd.wire.mysql import MysqlConnection

CONNECT_S = 5.0
ANSWER_S = 10.0
_WITHOUT_TLS = (
    "it offers no TLS at its MySQL port, and [security] asks for it: give TiDB"
    " security.ssl-cert and ssl-key, or set upstream.sql-tls = false"
)


@dataclass(frozen=True, slots=True)
class SqlLogin:
    """Who asks. With `tls`, nothing is said to a server that does not speak it."""

    user: str
    password: str = field(repr=False)
    tls: ClientTls | None = None


class TidbRefused(UpstreamUnavailable):
    """The server understood the statement and does not answer it: `code` is its error."""

    def __init__(self, server: str, code: int, reason: str) -> None:
        self.code = code
        super().__init__(f"tidb {server}: error {code}: {reason}")


class SqlLost(UpstreamUnavailable):
    """The connection was ended before the answer came."""


class TidbSql:
    """The MySQL port of one TiDB, for any number of tasks: one statement list at a time."""

    def __init__(self, address: tuple[str, int], login: SqlLogin) -> None:
        self._host, self._port = address
        self._login = login
        self._connection: MysqlConnection | None = None
        self.version = ""
        """As the server said it at the last connection; such as v7.1.0."""
        self._speaking = asyncio.Lock()

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"

    async def rows(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """What the last of some statements gives; they run behind each other on one session.

        A session that was idle may have been ended meanwhile, by TiDB's wait_timeout or by a
        balancer in between: then another one is asked. Raises TidbRefused, and UpstreamUnavailable
        when there is no answer.
        """
        async with self._speaking:
            was_connected = self._connection is not None
            try:
                return await self._asked(statements)
            except SqlLost:
                if not was_connected:
                    raise
            return await self._asked(statements)

    async def _asked(self, statements: Sequence[str]) -> Sequence[tuple[Any, ...]]:
        is_whole, is_alone = False, False
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await self._connected()
            is_alone = len(statements) == 1
            async with asyncio.timeout(ANSWER_S):
                for statement in statements:
                    await connection.query(statement)
                found: Sequence[tuple[Any, ...]] = connection.result.rows or ()
            is_whole = True
        except TimeoutError as error:
            raise UpstreamUnavailable(f"tidb {self} does not answer") from error
        except (MySQLError, OSError, RuntimeError, AttributeError) as error:
            meaning = self._meaning(error)
            is_whole = is_alone and isinstance(meaning, TidbRefused)  # that was the answer
            raise meaning from error
        finally:
            if not is_whole:  # cancelled, perhaps: an answer may still be on its way
                self.close()
        return found

    def close(self) -> None:
        """Drops the connection; the next statement makes another."""
        if self._connection is not None:
            with suppress(AttributeError, RuntimeError):  # of a connection that is half made
                self._connection.close()
            self._connection = None

    async def _connected(self) -> MysqlConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        connection = self._connection = MysqlConnection(
            (self._host, self._port),
            self._login.user,
            self._login.password,
            autocommit=True,
            tls=self._login.tls,
            without_tls=_WITHOUT_TLS,
        )
        await connection.open()
        self.version = str(connection.server_version).rpartition("-TiDB-")[2]
        return connection

    def _meaning(self, error: Exception) -> UpstreamUnavailable:
        if isinstance(error, MySQLError) and error.args and isinstance(error.args[0], int):
            code, reason = error.args[0], str(error.args[-1])
            if error.__cause__ is not None:
                reason += f": {error.__cause__}"
            if code < _CLIENT_ERRORS[0] or code > _CLIENT_ERRORS[1]:
                return TidbRefused(str(self), code, reason)
            return SqlLost(f"tidb {self}: {reason}")
        return SqlLost(f"tidb {self}: {error or type(error).__name__}")


_CLIENT_ERRORS = (2000, 2999)
"""What pymysql says of a connection, in the numbers of MySQL's client library."""


class TidbTso:
    """A TsoSource: timestamps that TiDB's own transactions begin with, from PD.

    Why none is ahead of a writer: it was handed out by PD, and a commit_ts that is asked for later
    is larger. `SHOW MASTER STATUS` gives one in every version with binlog, and asks for REPLICATION
    CLIENT; a transaction's `@@tidb_current_ts` asks for no privilege. `TIDB_CURRENT_TSO()` says the
    same, from 6.5 on only.
    """

    def __init__(self, servers: Several[TidbSql]) -> None:
        self._servers = servers
        self._last_ts = NO_TS
        self._answered_at_s = 0.0
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
        self._answered_at_s = asyncio.get_running_loop().time()
        return ts

    def statistics(self) -> TsoStatus:
        """How it stands."""
        now_s = asyncio.get_running_loop().time()
        return TsoStatus(
            last_ts=self._last_ts,
            age_s=now_s - self._answered_at_s if self._last_ts else None,
            requests=self._asked,
            slow=0,
            errors=self._errors,
            went_back=0,
            trouble=self._trouble,
        )

    def observe(self, ts: Tso) -> None:
        """PD hands out larger ones anyhow."""


async def _timestamp(server: TidbSql) -> Tso:
    ts = 0
    with suppress(TidbRefused):  # no privilege, or no such statement any more
        ts = _number(server, await server.rows("SHOW MASTER STATUS"), column=1)
    if not ts:
        rows = await server.rows("BEGIN", "SELECT @@tidb_current_ts")
        ts = _number(server, rows, column=0)
        await server.rows("ROLLBACK")
    if not 0 < ts <= MAX_TS:
        raise UpstreamUnavailable(f"tidb {server}: {ts} is no timestamp")
    return Tso(ts)


def _number(server: TidbSql, rows: object, *, column: int) -> int:
    try:
        return int(rows[0][column])  # type: ignore[index]  # whatever it is, it is looked at here
    except (IndexError, TypeError, ValueError) as error:
        raise UpstreamUnavailable(f"tidb {server}: no timestamp in {rows!r:.200}") from error
