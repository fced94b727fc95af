"""A session on the server's side: it executes statements, and holds a transaction open."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tests.sim.mysqld import catalog, reading, variables, writing
from tests.sim.mysqld.ddl import is_ddl, run_ddl
from tests.sim.mysqld.errors import READ_ONLY, ServerError, no_database
from tests.sim.mysqld.expressions import bound
from tests.sim.mysqld.lexing import Literal, NotSimulated, Statement
from tests.sim.mysqld.locks import Lock
from tests.sim.mysqld.parsing import (
    Assign,
    Call,
    Delete,
    Insert,
    Plan,
    Select,
    Simple,
    Update,
    plan_of,
)
from tests.sim.mysqld.server import Server
from tests.sim.mysqld.tables import Record, Table, TableKey, Transaction, Values


class Answer(NamedTuple):
    """To one statement; `rows` None: it is no query."""

    rows: list[Values] | None = None
    affected: int = 0
    warnings: int = 0


class Warned(NamedTuple):
    """A line of SHOW WARNINGS."""

    level: str
    code: int
    message: str


class Session:
    """`execute` runs one statement at a time; `end` undoes what is open."""

    def __init__(self, server: Server, thread_id: int, user: str, *, autocommit: bool) -> None:
        self.server, self.thread_id, self.user = server, thread_id, user
        self.database = ""
        self.transaction: Transaction | None = None
        self.variables = dict(variables.DEFAULTS) | {"autocommit": int(autocommit)}
        self.isolation = "REPEATABLE READ"
        self.warnings: list[Warned] = []
        self.new_row: Values = ()
        self.busy_with = ""
        """The state that the list of processes shows; "" while it sleeps."""
        self.is_orphan = False
        """Nobody waits for its answers any more, so it waits for no lock."""
        self.is_over = False
        """It was ended; a statement that it is still at does nothing more."""
        self._is_explicit = False

    # --- what the rest of the server asks -----------------------------------------------------

    @property
    def is_strict(self) -> bool:
        """Whether a value that does not fit is an error."""
        return bool(variables.STRICT & set(str(self.variables["sql_mode"]).split(",")))

    def variable(self, name: str) -> Any:
        """See Surroundings."""
        special = {
            "version": self.server.version,
            "max_allowed_packet": self.server.max_allowed_packet,
            "log_bin": 0,
            "binlog_format": "MIXED",
            "read_only": int(self.server.is_read_only),
            "pseudo_thread_id": self.thread_id,
        }
        if name in special:
            return special[name]
        if name not in self.variables:
            raise ServerError(1193, f"Unknown system variable '{name}'")
        return self.variables[name]

    def exists(self, select: Select, args: Sequence[Literal]) -> bool:
        """See Surroundings."""
        return reading.has_rows(self, select, args)

    def key(self, name: TableKey) -> TableKey:
        """A table's name with its schema. Raises ServerError."""
        database = name[0] or self.database
        if not database:
            raise ServerError(1046, "No database selected")
        return database, name[1]

    def warn(self, code: int, message: str, level: str = "Warning") -> None:
        """Notes a warning of the statement at work."""
        self.warnings.append(Warned(level, code, message))

    def begun(self) -> Transaction:
        """The open transaction, or a new one."""
        if self.transaction is None or self.transaction.is_lost:
            self.transaction = Transaction()
        return self.transaction

    async def opened(self, name: TableKey) -> Table:
        """A table for this transaction, behind whatever DDL is at it. Raises ServerError."""
        key = self.key(name)
        while True:  # until the table of that name is the one that was waited for
            table = self.server.table(key)
            await self._acquire(table.metadata, "lock_wait_timeout", is_exclusive=False)
            if self.server.databases.get(key[0], {}).get(key[1]) is table:
                return table

    async def lock(self, record: Record) -> None:
        """A row, for this transaction alone. Raises ServerError."""
        if record.lock is None:
            record.lock = Lock()
        await self._acquire(record.lock, "innodb_lock_wait_timeout")

    async def lock_definition(self, table: Table) -> None:
        """For a DDL. Raises ServerError."""
        await self._acquire(table.metadata, "lock_wait_timeout")

    async def _acquire(self, lock: Lock, limit: str, *, is_exclusive: bool = True) -> None:
        timeout_s = 0.0 if self.is_orphan else float(self.variables[limit])
        owner = self.begun()
        busy, self.busy_with = self.busy_with, "Waiting for a lock"
        try:
            await lock.acquire(owner, timeout_s, is_exclusive=is_exclusive)
        finally:
            self.busy_with = busy
        # between the grant and this turn
        if self.is_over:
            raise ServerError(1927, "Connection was killed")
        if owner.is_lost:
            raise ServerError(1213, "Deadlock found when trying to get lock")

    # --- statements ----------------------------------------------------------------------------

    async def execute(self, statement: Statement) -> Answer:
        """One statement. Raises ServerError, NotSimulated."""
        plan = None if is_ddl(statement.shape) else plan_of(statement.shape)
        if not (isinstance(plan, Simple) and plan.kind == "SHOW WARNINGS"):
            self.warnings = []
        self.busy_with = "executing"
        try:
            if plan is None:
                answer = await self._ddl(statement)
            elif isinstance(plan, Simple):
                answer = self._simple(plan)
            elif isinstance(plan, Assign):
                answer = self._assign(plan, statement.args)
            else:
                answer = await self._with_tables(plan, statement.args)
        except ServerError as error:
            self.warnings = [Warned("Error", error.code, error.reason)]
            raise
        finally:
            self.busy_with = ""
        if isinstance(plan, Simple):
            return answer
        return answer._replace(warnings=len(self.warnings))

    async def _with_tables(self, plan: Plan, args: Sequence[Literal]) -> Answer:
        if isinstance(plan, Select) and not (plan.is_locking and plan.table):
            await self._open_to_read(plan)
            rows = reading.rows_of(self, plan, args)
            self._end_if_alone()
            return Answer(rows)
        if self.server.is_read_only and not isinstance(plan, Select):
            raise READ_ONLY
        transaction = self.begun()
        mark = len(transaction.undo)
        try:
            if isinstance(plan, Select):
                answer = Answer(await reading.locked_rows(self, plan, args))
            elif isinstance(plan, Insert):
                answer = Answer(affected=await writing.insert(self, plan, args))
            elif isinstance(plan, Update):
                answer = Answer(affected=await writing.update(self, plan, args))
            else:
                assert isinstance(plan, Delete)
                answer = Answer(affected=await writing.delete(self, plan, args))
        except BaseException:
            if not transaction.is_lost:
                transaction.undo_to(mark)
            if transaction.is_lost or not self._is_in_transaction:
                self.rollback()
            raise
        self._end_if_alone()
        return answer

    async def _open_to_read(self, plan: Select) -> None:
        """In a transaction a table keeps its definition once it was read."""
        if plan.table and self._is_in_transaction and not catalog.is_system(plan.table):
            await self.opened(plan.table)

    @property
    def _is_in_transaction(self) -> bool:
        return self._is_explicit or not self.variables["autocommit"]

    def _end_if_alone(self) -> None:
        if not self._is_in_transaction:
            self.commit()

    async def _ddl(self, statement: Statement) -> Answer:
        self.commit()
        if self.server.is_read_only:
            raise READ_ONLY
        try:
            affected = await run_ddl(self, statement)
        finally:
            self.rollback()
        return Answer(affected=affected)

    # --- the transaction -----------------------------------------------------------------------

    def commit(self) -> None:
        """What is open."""
        transaction, self.transaction = self.transaction, None
        self._is_explicit = False
        if transaction is None or transaction.is_lost:
            return
        if self.server.is_read_only and transaction.undo:
            transaction.rollback()
            raise READ_ONLY
        self.server.commit(transaction, self.thread_id)

    def rollback(self) -> None:
        """What is open."""
        transaction, self.transaction = self.transaction, None
        self._is_explicit = False
        if transaction is not None and not transaction.is_lost:
            if transaction.waiting is not None:
                transaction.waiting.lock.forget(transaction.waiting)
            transaction.rollback()

    def end(self) -> None:
        """The connection is gone."""
        self.is_over = True
        waiting = self.transaction.waiting if self.transaction is not None else None
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_exception(ServerError(1927, "Connection was killed"))
        self.rollback()
        self.server.sessions.pop(self.thread_id, None)

    def _savepoint(self, name: str) -> None:
        if self._is_in_transaction:
            transaction = self.begun()
            transaction.savepoints.pop(name, None)
            transaction.savepoints[name] = len(transaction.undo)

    def _rollback_to(self, name: str) -> None:
        transaction = self.transaction
        if transaction is None or name not in transaction.savepoints:
            raise ServerError(1305, f"SAVEPOINT {name} does not exist")
        mark = transaction.savepoints[name]
        transaction.undo_to(mark)
        names = list(transaction.savepoints)
        for later in names[names.index(name) + 1 :]:
            del transaction.savepoints[later]

    # --- what needs no table -------------------------------------------------------------------

    def _simple(self, plan: Simple) -> Answer:
        name = plan.names[-1] if plan.names else ""
        if plan.kind in ("BEGIN", "COMMIT", "ROLLBACK"):
            self.commit() if plan.kind != "ROLLBACK" else self.rollback()
            self._is_explicit = plan.kind == "BEGIN"
            return Answer()
        if plan.kind == "SHOW CREATE TABLE":
            return Answer(catalog.show_create(self, self.key((plan.names[0], name))))
        if plan.kind == "SHOW WARNINGS":
            most = int(self.variables["max_error_count"])
            return Answer([tuple(each) for each in self.warnings[:most]])
        if plan.kind == "SHOW MASTER STATUS":
            return Answer([])
        self._run_simple(plan.kind, name)
        return Answer()

    def _run_simple(self, kind: str, name: str) -> None:
        if kind == "SAVEPOINT":
            self._savepoint(name.lower())
        elif kind == "ROLLBACK TO":
            self._rollback_to(name.lower())
        elif kind == "USE":
            if name not in self.server.databases:
                raise no_database(name)
            self.database = name
        elif kind == "SET NAMES":
            if name.lower() != "utf8mb4":
                raise NotSimulated(f"the character set {name} of a session")
        elif name != "READ COMMITTED":
            raise NotSimulated(f"the isolation level {name}")
        else:
            self.isolation = name

    def _assign(self, plan: Assign, args: Sequence[Literal]) -> Answer:
        for name, expression in plan.pairs:
            if expression is None:
                value = variables.DEFAULTS.get(name)
            elif isinstance(expression, Call) and expression.name == "UNIX_TIMESTAMP":
                value = self._unix_timestamp(bound(expression.operands[0])((), args, self))
            else:
                value = bound(expression)((), args, self)
            self.variables[name] = variables.checked(name, value)
        return Answer()

    def _unix_timestamp(self, text: str) -> int:
        if self.variables["time_zone"] not in ("+00:00", "SYSTEM"):
            raise NotSimulated(f"a moment in the zone {self.variables['time_zone']}")
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
