"""One connection to MySQL, MariaDB or TiDB; its errors, named by what to do next.

A session speaks utf8mb4, UTC and READ COMMITTED, checks no foreign keys (the changes of children
are in the binlog as well; REPLACE would cascade) and has backslash escapes on. It is used by one
task at a time; a query that is cancelled or not answered closes it.

Error codes: MariaDB's and MySQL's lists of server errors; TiDB's errno/errcode.go. Source of the
session variables: tidb-binlog pkg/loader/util.go.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog
from pymysql.err import MySQLError

from binlogd.drainer import sql
from binlogd.drainer.backoff import Backoff
from binlogd.drainer.mysql.refusals import OF_VALUES, Warned
from binlogd.errors import (
    BinlogdError,
    ConfigError,
    DownstreamUnavailable,
    Refused,
    StatementRejected,
)
from binlogd.host.tls import ClientTls
from binlogd.telemetry.histogram import Histogram, HistogramStatistics, doubling
from binlogd.wire.mysql import MysqlConnection

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 300.0
ATTEMPTS_MAX = 10
T = TypeVar("T")
log = structlog.get_logger(__name__)

PACKET_TOO_LARGE = 1153
UNKNOWN_COLUMN = 1054
NO_SUCH_TABLE = 1146
_DENIED = frozenset({1044, 1142, 1143, 1227, 1370})
"""A privilege is missing: the next transaction is refused, too."""
NO_TABLE = frozenset({1046, 1049, 1146})
"""A table is not there, or its schema."""
WAYS_OUT = {
    UNKNOWN_COLUMN: "add the column downstream, or leave out what it lacks by"
    " syncer.to.sync-mode = 2",
    NO_SUCH_TABLE: "create the table downstream, or leave it out by syncer.ignore-table",
    1062: "the row is there already, or the upstream has several rows that are one by a unique key"
    " that it lacks: compare the table with the upstream's",
    PACKET_TOO_LARGE: "raise max_allowed_packet downstream",
    1115: "the downstream lacks this character set: make the table there by hand with another one",
    1273: "the downstream lacks this collation: make the table there by hand with another one",
    **dict.fromkeys(
        _DENIED,
        "grant the user what deploy/grants.sql says: SELECT, INSERT, UPDATE, DELETE, CREATE, DROP,"
        " ALTER, INDEX, REFERENCES, CREATE VIEW, SHOW VIEW, TRIGGER, PROCESS, REPLICATION CLIENT",
    ),
}
"""What to do about a refusal, by its error code."""
_FITS_NOT = (
    "nothing of it was done: compare the table with the upstream, give the row downstream a value"
    " that fits, and let the Drainer try again"
)
"""What to do about a DDL that would cut a value."""

GONE = frozenset(
    {0, 1040, 1042, 1043, 1045, 1047, 1053, 1077, 1078, 1079, 1080, 1129, 1130, 1152, 1158, 1159}
    | {1160, 1161, 1184, 1203, 1226, 1698, 1820, 1862, 1927, 2002, 2003, 2005, 2006, 2013, 2014}
    | {2027, 2055, 3032, 3118, 3159, 4031, 4151}
)
"""The connection ended, or none can be made; 1047 is a node of Galera without its cluster."""
_WAYS_IN = {
    **dict.fromkeys(
        (1045, 1698),
        "check user and password (of the configuration: syncer.to.user, syncer.to.password), and"
        " from where the server lets this user in",
    ),
    **dict.fromkeys(
        (2002, 2003, 2005),
        "check host and port (of the configuration: syncer.to.host, syncer.to.port), and that the"
        " server runs",
    ),
    **dict.fromkeys((1129, 1130), "let connections from this host in, at the server"),
    **dict.fromkeys((1040, 1203, 1226), "raise that limit of the server, or of the user"),
    **dict.fromkeys((1820, 1862, 3118, 4151), "unlock the user at the server, renew its password"),
    3159: "have TLS (of the configuration: syncer.to.security)",
}
"""What to do about a connection that cannot be made, by its error code."""
READ_ONLY = frozenset({1290, 1836, 1792, 3989})
"""The server takes no writes: a replica that is to be promoted, or maintenance."""
FULL = frozenset({1021, 1114, 3675})
"""The server has no room; an operator can heal that while we wait."""
OF_FILES = frozenset({3, 1004, 1005, 1006, 1025, 1026, 1030, 1180, 1598})
"""A file cannot be made or written, or a COMMIT be done: for want of room, if it says so."""
_NO_SPACE = re.compile(r"(?i)err(or|no|code):? 28\b")
TRY_AGAIN = frozenset(
    {1020, 1180, 1205, 1206, 1213, 1297, 1317, 1412, 1637, 1969, 3024, 3100, 3101, 3572}
    | {8002, 8005, 8022, 8027, 8028, 9001, 9002, 9003, 9004, 9005, 9007, 9011}
)
"""Nothing was done (after a ROLLBACK), and the same may succeed now: deadlocks, lock waits,
interrupted statements, a COMMIT that Group Replication takes back, TiDB's conflicts and schema
changes."""


_SHOWN_BYTES_MAX = 160


class TryAgain(DownstreamUnavailable):
    """The statement met another one; its transaction is to be run again."""


class ReadOnly(DownstreamUnavailable):
    """The server takes no writes at present."""


class NoRoom(DownstreamUnavailable):
    """The server's disk or table space is full."""


RETRY_KINDS = {TryAgain: "contention", ReadOnly: "read-only", NoRoom: "no-room"}
"""Classes of errors that are tried again, for counters and reports; any other is "connection"."""


class SqlRefused(Refused):
    """The server understood and will not do it; who knows the transaction says what it means."""

    todo = "mend downstream what it names, and let the Drainer try again"

    def __init__(self, code: int, reason: str, where: str = "") -> None:
        """`where` is said of a statement that is no transaction's: the server, and what it was."""
        self.code, self.reason = code, reason
        super().__init__(f"{where}error {code}: {reason}", todo=WAYS_OUT.get(code, ""))

    def of_rows(
        self, commit_ts: int, statement: str, *, is_theirs: bool = True
    ) -> StatementRejected:
        """Of rows. A missing privilege cannot be passed over, nor what is not known to be this
        transaction's (`is_theirs`)."""
        can_skip = is_theirs and self.code not in _DENIED
        return StatementRejected(
            commit_ts, statement, self.code, self.reason, todo=self.todo, can_skip=can_skip
        )

    def of_ddl(self, commit_ts: int, statement: str) -> StatementRejected:
        """Of a DDL, which can be done by hand and passed over."""
        todo = _FITS_NOT if self.code in OF_VALUES else self.todo
        return StatementRejected(commit_ts, statement, self.code, self.reason, todo=todo)

    def forgiven(self, commit_ts: int, statement: str) -> None:
        """Says it of a DDL: what it would do is done already."""
        of = {"commit_ts": commit_ts, "statement": statement}
        log.warning("ddl_forgiven", **of, code=self.code, reason=self.reason)


class Done(NamedTuple):
    """The answer to a statement. `affected` counts rows found, changed or not."""

    affected: int
    warnings: int


class QueryTimes:
    """How long a server took to answer, in seconds. Source: tidb-binlog drainer/metrics.go."""

    def __init__(self) -> None:
        self._seconds = {kind: Histogram(_SECONDS) for kind in ("exec", "commit")}

    def answered(self, statement: bytes | None, took_s: float) -> None:
        """None: a further answer to what was sent together."""
        self._seconds["commit" if statement == b"COMMIT" else "exec"].observe(took_s)

    def statistics(self) -> Mapping[str, HistogramStatistics]:
        """So far."""
        return {kind: seconds.statistics() for kind, seconds in self._seconds.items()}


class ServerConnection(Protocol):
    """What a session speaks through; `MysqlConnection` says what each of these promises."""

    closed: bool
    result: Any

    async def open(self, *, several: bool = False) -> None: ...  # noqa: D102
    async def query(self, sql: bytes) -> Any: ...  # noqa: D102
    async def next_result(self) -> Any: ...  # noqa: D102
    def thread_id(self) -> int: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class MySqlServer:
    """Where the downstream is, and what its sessions are to be like.

    `sql_mode` None is the mode under which all that TiDB may hold can be written. `params` are
    session variables of the operator, which win. `time_zone` is that of the moments in literals.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    sql_mode: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    time_zone: str = "+00:00"
    tls: ClientTls | None = None
    """With it, nothing is said to a server that does not speak TLS."""
    table: str = "syncer.to"
    """Of the configuration, where its keys are."""
    times: QueryTimes = field(default_factory=QueryTimes, repr=False, compare=False)
    """Of all sessions."""
    connector: Callable[..., ServerConnection] = field(default=MysqlConnection, compare=False)
    """Takes what `MysqlConnection` takes. In a simulation the server is in memory."""

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


_SECONDS = doubling(0.00005, 18)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")  # a variable that holds one takes no text
_DEFAULT_MODE = "ALLOW_INVALID_DATES"
_STRICT_MODE = "STRICT_ALL_TABLES"
_STRICT_MODES = frozenset({_STRICT_MODE, "STRICT_TRANS_TABLES", "TRADITIONAL"})
_MODES_OF_ROWS = (b"sql_mode = CONCAT(@@sql_mode, ',TIME_ROUND_FRACTIONAL')",)
"""A fraction that a MODIFY or a generated column has no room for is rounded, as by TiDB and MySQL;
MariaDB cuts it off, without a warning."""
_MODES = (*_MODES_OF_ROWS, b"sql_mode = CONCAT(@@sql_mode, ',IGNORE_BAD_TABLE_OPTIONS')")
"""Options of tables that TiDB has (STATS_BUCKETS) are let pass."""
_NO_ESCAPES = frozenset({"NO_BACKSLASH_ESCAPES", "EMPTY_STRING_IS_NULL"})
_HARMFUL_MODES = _NO_ESCAPES | {"ANSI_QUOTES", "ANSI"}
_WISHES = (
    b"in_predicate_conversion_threshold = 0",  # MariaDB: a long IN list stays a range
    b"max_statement_time = 0",
    b"max_error_count = 65535",  # each warning counts: it may tell of a value that was changed
    b"innodb_strict_mode = OFF",  # whether a row fits is told by the row, not by the widest one
    b"explicit_defaults_for_timestamp = 1",
    b"tidb_placement_mode = 'ignore'",
    b"allow_auto_random_explicit_insert = 1",
    b"completion_type = 0",  # a COMMIT ends its transaction, and no more
    b"sql_select_limit = 18446744073709551615, sql_big_selects = 1",  # answers are whole
    b"default_storage_engine = InnoDB",  # of the tables of our own
    b"lc_messages = 'en_US', sql_notes = 1",  # what a warning is about is read in its text
)
"""Variables that some servers know; others refuse them."""


WITHOUT_EFFECT = frozenset({"time_zone"})
"""Sessions are in the zone of the literals: what a TIMESTAMP holds is the same under any other."""


class SqlSession:
    """A connection. `connect` makes one, `close` ends it at once and is safe to call again."""

    def __init__(self, connection: ServerConnection, server: MySqlServer) -> None:
        self._connection = connection
        self._server = server

    @classmethod
    async def connect(
        cls, server: MySqlServer, *, for_rows: bool = False, wishes: Sequence[bytes] = ()
    ) -> SqlSession:
        """Connects and prepares the session. Raises DownstreamUnavailable, ConfigError.

        For rows autocommit is off, `run_all` works, and modes that would change the meaning of a
        literal are left out; DDL is in the upstream's words, and the operator's sql_mode holds but
        for what a backslash means and for strictness. `wishes` are variables that are set where the
        server knows them.
        """
        connection = server.connector(
            (server.host, server.port),
            server.user,
            server.password,
            autocommit=not for_rows,
            tls=server.tls,
            without_tls=f"the server offers no TLS, and {server.table}.security asks for it",
        )
        session = cls(connection, server)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.open(several=for_rows)
            await session._prepare(for_rows=for_rows, wishes=wishes)
        except BaseException as error:  # cancelled, perhaps
            session.close()
            if not isinstance(error, SqlRefused | MySQLError | OSError | TimeoutError):
                raise
            ours = error if isinstance(error, SqlRefused) else _ours(error, server)
            if isinstance(ours, SqlRefused):
                ours = ConfigError(
                    f"{server} refuses a session: error {ours.code}: {ours.reason}; see"
                    " syncer.sql-mode and syncer.to.params, or --time-zone"
                )
            raise ours from error
        return session

    async def _prepare(self, *, for_rows: bool, wishes: Sequence[bytes]) -> None:
        server = self._server
        await self.run(b"SET NAMES utf8mb4")
        base = session_mode(server.sql_mode, for_rows=for_rows)
        await self.run(
            b"SET SESSION autocommit = %d, time_zone = %b, foreign_key_checks = 0, sql_mode = %b"
            % (not for_rows, sql.text(server.time_zone), sql.text(base))
        )
        for wish in (*_WISHES, *wishes, *(_MODES_OF_ROWS if for_rows else _MODES)):
            with suppress(SqlRefused):
                await self.run(b"SET SESSION " + wish)
        query = b"SELECT @@log_bin AND @@session.binlog_format = 'STATEMENT'"
        rows = await self.rows_if_told(query)  # not told by a server without a binlog
        if not (rows and rows[0][0]):  # with such a binlog InnoDB refuses the level
            await self.run(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        for name, value in server.params.items():
            if name.lower() in WITHOUT_EFFECT:
                continue
            said = value.encode() if _NUMBER.fullmatch(value) else sql.text(value)
            await self.run(b"SET SESSION " + sql.ident(name) + b" = " + said)

    @property
    def thread_id(self) -> int:
        """The server's number of this connection."""
        return self._connection.thread_id()

    async def run(self, statement: bytes, *, is_long: bool = False) -> Done:
        """Executes one statement; a long one (DDL) may take any time. Raises TryAgain,
        DownstreamUnavailable or SqlRefused. After DownstreamUnavailable that is no TryAgain the
        session is closed."""
        return _done(await self._result_of(statement, is_long=is_long))

    async def run_all(self, statements: Sequence[bytes], done: list[Done]) -> None:
        """Executes statements in order, in one round trip; none that follows a failing one.

        For a session for rows alone: no other may send more than one statement at a time.
        The answers are appended to `done`, so that after an error its length names the statement
        that failed. What a warning says is known of the last one only. Raises as `run`.
        """
        result = await self._result_of(b";".join(statements), is_long=False)
        done.append(_done(result))
        while result.has_next:  # ends: an answer for each statement
            result = await self._result_of(None, is_long=False)
            done.append(_done(result))

    async def rows(self, statement: bytes) -> list[tuple[Any, ...]]:
        """The rows of a query. Raises as `run`."""
        result = await self._result_of(statement, is_long=False)
        return list(result.rows or ())

    async def rows_if_told(self, statement: bytes) -> list[tuple[Any, ...]]:
        """None as well where the server does not know what is asked, or lets this user not see it.
        Raises DownstreamUnavailable."""
        with suppress(SqlRefused):
            return await self.rows(statement)
        return []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """All that runs in the block, or nothing. Raises as `run`; whether it was done is unknown
        if the connection broke at the end."""
        await self.run(b"START TRANSACTION")
        try:
            yield
            await self.run(b"COMMIT")
        except BinlogdError:
            if not self._connection.closed:
                await self.run(b"ROLLBACK")
            raise

    async def warnings(self) -> list[Warned]:
        """What the last statement was done with. Raises as `run`."""
        rows = await self.rows(b"SHOW WARNINGS")
        return [Warned(str(level), int(code), _readable(str(said))) for level, code, said in rows]

    @asynccontextmanager
    async def lax(self) -> AsyncIterator[None]:
        """What runs in the block is not strict: a value that does not fit is cut with a warning."""
        mode = str((await self.rows(b"SELECT @@sql_mode"))[0][0])
        left = [each for each in mode.split(",") if each not in _STRICT_MODES]
        await self.run(b"SET SESSION sql_mode = " + sql.text(",".join(left)))
        strict_again = b"SET SESSION sql_mode = " + sql.text(mode)
        try:
            yield
            await self.run(strict_again)
        except BinlogdError:
            if not self._connection.closed:
                await self.run(strict_again)
            raise

    def close(self) -> None:
        """Drops the connection; an open transaction is rolled back by the server."""
        self._connection.close()

    async def _result_of(self, statement: bytes | None, *, is_long: bool) -> Any:
        """The answer to a statement; None: the next one to those sent before."""
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        try:
            async with asyncio.timeout(None if is_long else ANSWER_TIMEOUT_S):
                if statement is None:
                    await self._connection.next_result()
                else:
                    await self._connection.query(statement)
        except (MySQLError, OSError, TimeoutError, RuntimeError) as error:
            ours = _ours(error, self._server, statement or b"")
            if not isinstance(ours, TryAgain | SqlRefused):
                self.close()
            raise ours from error
        self._server.times.answered(statement, clock() - begin_s)
        return self._connection.result


async def patiently(
    work: Callable[[], Awaitable[T]], rng: Random, *, first_s: float, event: str
) -> T:
    """Does it, again when it met somebody else's work; `event` is what the log calls that. Raises
    what it raises, and TryAgain after many attempts."""
    backoff = Backoff(rng, first_s=first_s, max_s=5.0)
    while True:  # until done, refused, or after so many attempts
        try:
            return await work()
        except TryAgain as error:
            if backoff.attempts >= ATTEMPTS_MAX:
                raise
            wait_s = backoff.next_s()
            log.warning(event, cause=str(error), wait_s=wait_s)
            await asyncio.sleep(wait_s)


def _done(result: Any) -> Done:
    return Done(int(result.affected_rows or 0), int(result.warning_count or 0))


def _readable(said: str) -> str:
    """What a server quotes from a row may be no text."""
    return said.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def session_mode(sql_mode: str | None, *, for_rows: bool) -> str:
    """The sql_mode of a session: zero stays zero, and literals are read as they are written.

    Outside of rows it is strict. Zero dates and days that no month has are no matter of strictness:
    TiDB may hold them, and no binlog tells under which mode they came.
    """
    said = _DEFAULT_MODE if sql_mode is None else sql_mode
    modes = [mode.strip() for mode in said.split(",") if mode.strip()]
    harmful = _HARMFUL_MODES if for_rows else _NO_ESCAPES
    modes = [mode for mode in modes if mode.upper() not in harmful]
    wanted = ["NO_AUTO_VALUE_ON_ZERO"] if for_rows else ["NO_AUTO_VALUE_ON_ZERO", _STRICT_MODE]
    modes += [mode for mode in wanted if mode not in (each.upper() for each in modes)]
    return ",".join(modes)


def _ours(error: BaseException, server: MySqlServer, statement: bytes = b"") -> BinlogdError:
    if isinstance(error, TimeoutError):
        return DownstreamUnavailable(f"{server} does not answer")
    if not isinstance(error, MySQLError):
        return DownstreamUnavailable(f"the connection to {server} broke: {error}")
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    reason = str(error.args[1] if len(error.args) > 1 else error)
    if isinstance(error.__cause__, OSError):  # such as a certificate that does not verify
        reason += f": {error.__cause__}"
    for codes, kind, says in _WAITED_FOR:
        is_full = codes is FULL and code in OF_FILES and _NO_SPACE.search(reason)
        if code in codes or is_full:
            todo = _WAYS_IN.get(code, "").replace("syncer.to", server.table)
            return kind(f"{server}{says}: error {code}: {reason}", todo=todo)
    said = statement[:_SHOWN_BYTES_MAX].decode(errors="replace")
    return SqlRefused(code, reason, f"{server} refuses {said}: " if said else "")


_WAITED_FOR: Sequence[tuple[frozenset[int], type[DownstreamUnavailable], str]] = (
    (FULL, NoRoom, " has no room"),  # 1180 is TRY_AGAIN's where it is not for want of room
    (TRY_AGAIN, TryAgain, ""),
    (GONE, DownstreamUnavailable, " cannot be used"),
    (READ_ONLY, ReadOnly, " is read-only"),
)
