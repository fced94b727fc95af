"""What the server holds: schemas, tables, sessions, and the history of what was committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.sim.mysqld.errors import no_database, no_table
from tests.sim.mysqld.tables import Definition, Table, TableKey, Transaction, Values

if TYPE_CHECKING:
    from tests.sim.mysqld.session import Session

SYSTEM_SCHEMA = "information_schema"


@dataclass(frozen=True)
class TableImage:
    """A table as everybody sees it: rows by a number that a row keeps."""

    number: int
    definition: Definition
    rows: Mapping[int, Values]
    partition_numbers: tuple[int, ...] = ()

    def named(self) -> list[dict[str, Any]]:
        """The rows, their values by the names of the columns."""
        names = [column.name for column in self.definition.columns]
        return [dict(zip(names, values, strict=True)) for values in self.rows.values()]


@dataclass(frozen=True)
class Committed:
    """A state that everybody could see, and what led to it.

    `cause` is "commit", the text of a DDL, or "failover": then `lost` states are gone. `state`
    holds all tables, those that did not change as the very objects of the state before.
    """

    number: int
    at_s: float
    thread_id: int
    cause: str
    changed: tuple[TableKey, ...]
    schemas: frozenset[str]
    state: Mapping[TableKey, TableImage]
    lost: int = 0


@dataclass
class Server:
    """One server. `history_max` states are kept; `on_commit` is called with each."""

    version: str = "10.11.11-MariaDB-simulated"
    max_allowed_packet: int = 256 << 20
    history_max: int = 100_000
    is_read_only: bool = False
    databases: dict[str, dict[str, Table]] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    on_commit: list[Callable[[Committed], None]] = field(default_factory=list)
    clock: Callable[[], float] = lambda: 0.0
    _numbers: int = 1000

    def __post_init__(self) -> None:
        self.history: deque[Committed] = deque(maxlen=self.history_max)
        self._last = Committed(0, 0.0, 0, "start", (), frozenset(), {})
        self.history.append(self._last)
        self.lineage: deque[Committed] = deque(self.history, maxlen=self.history_max)
        """What the state of now came from: of the history, without what a failover lost."""

    @property
    def state(self) -> Committed:
        """What everybody sees now."""
        return self._last

    # --- looking up ----------------------------------------------------------------------------

    def table(self, key: TableKey) -> Table:
        """Raises ServerError: there is none."""
        database, name = key
        tables = self.databases.get(database)
        if tables is None or name not in tables:
            raise no_table(database, name)
        return tables[name]

    def tables_of(self, database: str) -> dict[str, Table]:
        """Raises ServerError: there is no such schema."""
        if database not in self.databases:
            raise no_database(database)
        return self.databases[database]

    def number(self) -> int:
        """A number that no table, partition or connection had before."""
        self._numbers += 1
        return self._numbers

    # --- committing ----------------------------------------------------------------------------

    def commit(self, transaction: Transaction, thread_id: int) -> None:
        """Makes its changes seen; a transaction without any leaves no trace."""
        changed = {table.number for table in transaction.commit()}
        if changed:
            keys = tuple(
                (database, name)
                for database, tables in self.databases.items()
                for name, table in tables.items()
                if table.number in changed
            )
            self.record("commit", keys, thread_id)

    def record(self, cause: str, changed: tuple[TableKey, ...], thread_id: int) -> None:
        """A new state; of DDL all tables are looked at."""
        state: dict[TableKey, TableImage] = {}
        known = self._last.state
        touched = frozenset(changed)
        for database, tables in self.databases.items():
            for name, table in tables.items():
                key = database, name
                old = known.get(key)
                if old is None or key in touched or old.definition is not table.definition:
                    old = self._image(table)
                state[key] = old
        self._append(cause, changed, thread_id, state)

    def _image(self, table: Table) -> TableImage:
        return TableImage(
            table.number, table.definition, table.committed(), table.partition_numbers
        )

    def _append(
        self,
        cause: str,
        changed: tuple[TableKey, ...],
        thread_id: int,
        state: Mapping[TableKey, TableImage],
        lost: int = 0,
    ) -> None:
        made = Committed(
            self._last.number + 1,
            self.clock(),
            thread_id,
            cause,
            changed,
            frozenset(self.databases),
            state,
            lost,
        )
        self._last = made
        self.history.append(made)
        self.lineage.append(made)
        for each in self.on_commit:
            each(made)

    # --- faults --------------------------------------------------------------------------------

    def crash(self) -> None:
        """All sessions end; what was not committed is undone."""
        sessions, self.sessions = self.sessions, {}
        for session in sessions.values():
            session.end()

    def go_back(self, lost: int) -> None:
        """Another server takes over, which lacks the last states. Its sessions begin anew."""
        self.crash()
        lost = min(lost, len(self.lineage) - 1)
        for _ in range(lost):  # nobody has them any more: the next one that takes over neither
            self.lineage.pop()
        there = self.lineage[-1]
        self.databases = {schema: {} for schema in sorted(there.schemas)}
        for (database, name), image in there.state.items():
            table = Table(image.number, image.definition, image.partition_numbers)
            table.load(image.rows)
            self.databases[database][name] = table
        changed = tuple(
            key
            for key in sorted({*there.state, *self._last.state})
            if there.state.get(key) is not self._last.state.get(key)
        )
        self._append("failover", changed, 0, there.state, lost)
