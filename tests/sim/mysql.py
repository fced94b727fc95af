"""A transactional MySQL in memory, at the seam where a session meets its server.

`SimMySql(rng)` is a server; `server()` is what a MySqlSink is given in the place of a real address.
No thread, no socket, no clock but the loop's: on a simulated loop the same seed gives the same run.
It knows what binlogd sends and nothing else: anything besides raises NotSimulated, which no part of
the product catches.

    downstream = SimMySql(Random(7))
    sink = MySqlSink(downstream.server(), cluster_id, options, Random(7))
    downstream.faults.commits = {Fault.CUT_DONE: 0.01, Fault.CUT_LATER: 0.01}
    downstream.fail_over(lost=3)
    for state in downstream.history: ...   # every state that a reader could see, in order

`rows("db", "table")` are the committed rows by the names of columns; `on_commit` takes functions
that are called with each new state. `cut("drainer")` is the death of a process: `server("drainer")`
labels its connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from random import Random
from typing import Any

from pymysql import err

from binlogd.drainer.mysql.connection import MySqlServer
from tests.sim.mysqld.errors import READ_ONLY, ServerError
from tests.sim.mysqld.faults import Fault, Faults
from tests.sim.mysqld.lexing import NotSimulated, Statement, statements
from tests.sim.mysqld.locks import deadlock, timed_out
from tests.sim.mysqld.server import Committed, Server
from tests.sim.mysqld.session import Answer, Session
from tests.sim.mysqld.tables import Values

__all__ = ["Committed", "Fault", "Faults", "NotSimulated", "SimMySql"]
_REQUEST_ARRIVES = 0.5
"""How likely a request that was given up on its way arrives all the same."""


class SimMySql:
    """See the module."""

    def __init__(
        self, rng: Random, faults: Faults | None = None, history_max: int = 100_000
    ) -> None:
        self.rng = rng
        self.faults = faults or Faults()
        self.inside = Server(history_max=history_max)
        self.connections: dict[int, SimConnection] = {}
        self.connections_max = 151
        self.is_down = False
        self.inside.clock = _loop_time
        self.sessions_begun = 0

    # --- for the product -----------------------------------------------------------------------

    def server(self, origin: str = "", **settings: Any) -> MySqlServer:
        """What a sink takes; `settings` are further fields of MySqlServer."""
        connector: Callable[..., SimConnection] = partial(SimConnection, self, origin)
        return MySqlServer("simulated", 3306, "binlogd", "", connector=connector, **settings)

    # --- for a world and its checkers ----------------------------------------------------------

    @property
    def history(self) -> Sequence[Committed]:
        """All states that were seen, in order; the first is empty."""
        return self.inside.history

    @property
    def on_commit(self) -> list[Callable[[Committed], None]]:
        """Called with each new state, in the moment in which it can be seen."""
        return self.inside.on_commit

    def rows(self, database: str, table: str) -> list[dict[str, Any]]:
        """What is committed. KeyError: there is no such table."""
        return self.inside.state.state[database, table].named()

    def execute(self, *texts: str) -> list[Values]:
        """Statements on a session of their own, at once; the rows of the last. Raises ServerError,
        also where one would have to wait."""
        session = self.session()
        rows: list[Values] = []
        try:
            for text in texts:
                for statement in statements(text.encode("utf-8", "surrogateescape")):
                    rows = _at_once(session.execute(statement)).rows or []
        finally:
            session.end()
        return rows

    def session(self, *, autocommit: bool = True, user: str = "root") -> Session:
        """A session that is opened past all faults. It waits for no lock (`is_orphan`)."""
        session = Session(self.inside, self.inside.number(), user, autocommit=autocommit)
        session.is_orphan = True
        self.inside.sessions[session.thread_id] = session
        return session

    # --- faults --------------------------------------------------------------------------------

    def cut(self, origin: str) -> None:
        """The process that made these connections is dead."""
        for connection in [each for each in self.connections.values() if each.origin == origin]:
            connection.close()

    def crash(self) -> None:
        """Every connection is lost, what is not committed is undone. `is_down` keeps it so."""
        self._lose_all()
        self.inside.crash()

    def fail_over(self, lost: int) -> None:
        """As `crash`; another server answers then, which lacks the last states."""
        self._lose_all()
        self.inside.go_back(lost)

    def kill(self, connection: SimConnection) -> None:
        """One connection, by an operator."""
        connection.lose(err.OperationalError(2013, "Lost connection to server during query"))
        if connection.session is not None:
            connection.session.end()

    def hurry(self) -> None:
        """What is slow at this moment is done now."""
        for connection in self.connections.values():
            connection.hurry()

    def _lose_all(self) -> None:
        for connection in list(self.connections.values()):
            connection.lose(err.OperationalError(2013, "Lost connection to server during query"))


class SimConnection:
    """In the place of `MysqlConnection`; takes what that takes, behind the server and an origin."""

    def __init__(
        self,
        server: SimMySql,
        origin: str,
        address: tuple[str, int],
        user: str,
        password: str,
        *,
        autocommit: bool,
        tls: object,
        without_tls: str,
    ) -> None:
        self.origin, self.session = origin, None
        self.result: _Result | None = None
        self.closed = True
        self._server, self._user, self._autocommit = server, user, autocommit
        self._several = False
        self._pending: list[Statement] = []
        self._waiting: asyncio.Future[None] | None = None
        self._is_at_work = False
        self._on_its_way: Statement | None = None

    session: Session | None

    # --- what MysqlConnection has --------------------------------------------------------------

    async def open(self, *, several: bool = False) -> None:
        """Raises MySQLError."""
        self.closed, self._several = False, several
        server = self._server
        try:
            await self._pause(self._drawn(server.faults.latency_s))
        except asyncio.CancelledError:
            self.closed = True
            raise
        if server.is_down:
            self.closed = True
            raise err.OperationalError(2003, "Can't connect to server on 'simulated' (111)")
        is_full = len(server.connections) >= server.connections_max
        if is_full or server.rng.random() < server.faults.refused:
            self.closed = True
            raise err.OperationalError(1040, "Too many connections")
        number = server.inside.number()
        self.session = Session(server.inside, number, self._user, autocommit=self._autocommit)
        server.inside.sessions[number] = self.session
        server.connections[number] = self
        server.sessions_begun += 1

    async def query(self, sql: bytes) -> None:
        """Raises MySQLError, OSError; NotSimulated."""
        if self.closed or self.session is None:
            raise err.InterfaceError(0, "Not connected")
        if len(sql) >= self._server.inside.max_allowed_packet:
            self.close()
            raise err.OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes")
        self._pending = statements(sql)
        if len(self._pending) > 1 and not self._several:
            raise _told(
                ServerError(1064, "You have an error in your SQL syntax; several statements")
            )
        await self._next(self._drawn(self._server.faults.latency_s))

    async def next_result(self) -> None:
        """As `query`."""
        await self._next(0.0)

    def thread_id(self) -> int:
        """The server's number of this connection."""
        assert self.session is not None, "it was opened"
        return self.session.thread_id

    def close(self) -> None:
        """At once on this side; the server notices after a while."""
        if not self.closed:
            self.lose(ConnectionError("it was closed under a read"))
            self._leave(self._arriving())

    # --- a statement ---------------------------------------------------------------------------

    async def _next(self, latency_s: float) -> None:
        server, session = self._server, self.session
        assert session is not None
        statement = self._pending.pop(0)
        self.result = None
        autocommit = bool(session.variables["autocommit"]) and session.transaction is None
        fault = server.faults.of(statement, server.rng, autocommit=autocommit)
        self._is_at_work = True
        try:
            answer = await self._answered(session, statement, fault, latency_s)
        except ServerError as error:
            self._pending.clear()
            raise _told(error) from None
        except asyncio.CancelledError:
            if not self.closed:
                self.closed = True
                self._leave(self._arriving())
            raise
        finally:
            self._is_at_work, self._on_its_way = False, None
        self.result = _Result(answer, has_next=bool(self._pending))
        if fault is Fault.CUT_AFTER:
            self._cut_off(None)

    async def _answered(
        self, session: Session, statement: Statement, fault: Fault | None, latency_s: float
    ) -> Answer:
        there_s = self._server.rng.random() * latency_s if latency_s else 0.0
        self._on_its_way = statement
        await self._pause(there_s)
        self._on_its_way = None
        if fault in (Fault.CUT_BEFORE, Fault.CUT_LATER):
            raise self._cut_off(statement if fault is Fault.CUT_LATER else None)
        self._refuse(session, fault)
        await self._take_time(session, statement, fault)
        answer = await session.execute(statement)
        if self.closed:  # while it waited for a lock
            raise ConnectionError("it was closed under a read")
        if fault is Fault.CUT_DONE:
            raise self._cut_off(None)
        await self._pause(latency_s - there_s)
        return answer

    def _arriving(self) -> Statement | None:
        """What was sent and given up, if it arrives all the same."""
        statement, self._on_its_way = self._on_its_way, None
        return statement if self._server.rng.random() < _REQUEST_ARRIVES else None

    def _refuse(self, session: Session, fault: Fault | None) -> None:
        if fault is Fault.DEADLOCK:
            session.rollback()
            raise deadlock()
        if fault is Fault.LOCK_TIMEOUT:
            raise timed_out()
        if fault is Fault.READ_ONLY:
            raise READ_ONLY

    async def _take_time(self, session: Session, statement: Statement, fault: Fault | None) -> None:
        faults = self._server.faults
        spans = [faults.slow_s] if fault is Fault.SLOW else []
        if statement.shape[:6].upper() in (b"CREATE", b"ALTER "):
            spans.append(faults.ddl_s)
        session.busy_with = "executing"
        for span in spans:
            await self._pause(self._drawn(span))
        session.busy_with = ""

    def _drawn(self, span: tuple[float, float]) -> float:
        return self._server.rng.uniform(*span) if span[1] else 0.0

    def hurry(self) -> None:
        """A pause that it is in ends."""
        if self._waiting is not None:
            _wake(self._waiting)

    async def _pause(self, seconds: float) -> None:
        """Ends early, with an error, when the connection is lost."""
        loop = asyncio.get_running_loop()
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            self._waiting = loop.create_future()
            timer = loop.call_later(seconds, _wake, self._waiting)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        if self.closed:
            raise ConnectionError("it was closed under a read")

    # --- an end --------------------------------------------------------------------------------

    def _cut_off(self, statement: Statement | None) -> err.OperationalError:
        """The connection is lost; what the server still does with it."""
        self.closed = True
        self._leave(statement)
        return err.OperationalError(2013, "Lost connection to server during query")

    def lose(self, error: Exception) -> None:
        """Tells whoever waits at this end."""
        self.closed = True
        if self.session is not None:
            self._server.connections.pop(self.session.thread_id, None)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
        transaction = self.session.transaction if self.session is not None else None
        if transaction is not None and transaction.waiting is not None and self._is_at_work:
            answer = transaction.waiting.answer
            if not answer.done():
                answer.set_exception(error)

    def _leave(self, statement: Statement | None) -> None:
        """The server notices after a while, and may do a last statement before."""
        session = self.session
        if session is None:
            return
        self._server.connections.pop(session.thread_id, None)
        linger_s = self._drawn(self._server.faults.linger_s)
        finish = partial(_finish, session, statement)
        if linger_s <= 0:
            finish()
        else:
            # the server's, whatever becomes of the process that was at this end
            asyncio.get_running_loop().call_later(linger_s, finish, context=Context())


class _Result:
    """As aiomysql's: the answer to one statement."""

    def __init__(self, answer: Answer, *, has_next: bool) -> None:
        self.rows, self.affected_rows = answer.rows, answer.affected
        self.warning_count, self.has_next = answer.warnings, has_next


def _finish(session: Session, statement: Statement | None) -> None:
    if session.thread_id not in session.server.sessions:  # the server was restarted meanwhile
        return
    if statement is not None:
        session.is_orphan = True
        try:
            _at_once(session.execute(statement))
        except ServerError:
            session.rollback()
    session.end()


def _at_once(work: Coroutine[Any, Any, Answer]) -> Answer:
    """What does not wait. Raises ServerError."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    work.close()
    raise timed_out()


def _told(error: ServerError) -> err.MySQLError:
    kind = err.error_map.get(error.code, err.OperationalError)
    made: err.MySQLError = kind(error.code, error.reason)
    return made


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _loop_time() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # before there is a loop
        return 0.0
