"""A TiDB in miniature: sessions, DDL and a timestamp oracle, all from one seed.

`Workload(options).records()` gives the WriteBinlog requests in the order in which they leave;
`model` knows what every table must contain at every commit_ts that has been handed out, and
`history()` is what `/ddl/history` would answer. The same options give the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Table
from tests.workload.catalogue import Catalogue
from tests.workload.ddl import DdlSession, Script, new_columns
from tests.workload.draft import Draft
from tests.workload.model import Model, TableName
from tests.workload.schema import TableDef
from tests.workload.statements import Statements
from tests.workload.store import Store
from tests.workload.tables import STANDARD
from tests.workload.timeline import Fate, Habits, Record, Timeline

_ADDED_COLUMNS_MAX = 3
_DDL_TURNS = 0.1
_TRUNCATABLE = ("audit", "days", "order_lines")


@dataclass(frozen=True, slots=True)
class Options:
    """What to make. Shares are of transactions; `ddl_every` counts transactions, 0 is never.

    `prefix` stands before every name of a database. A table with `rows_max` rows shrinks again; 0
    lets it grow.
    """

    seed: int = 1
    transactions: int = 1000
    sessions: int = 8
    rollbacks: float = 0.04
    large: float = 0.002
    large_rows: int = 300
    rows_max: int = 0
    ddl_every: int = 120
    tables: tuple[TableDef, ...] = STANDARD
    prefix: str = ""
    habits: Habits = field(default_factory=Habits)
    begin_ms: int = 1_700_000_000_000
    history: bool = True


@dataclass(frozen=True, slots=True)
class WorkloadStatistics:
    """What has been made so far. `rows` are those of committed transactions."""

    committed: int
    rolled_back: int
    rows: int
    ddl_jobs: int
    repeats: int
    late: int
    lost: int


class Workload:
    """See the module. `records()` can be asked once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._table_defs = tuple(
            replace(each, database=options.prefix + each.database) for each in options.tables
        )
        self._rng = random.Random(options.seed)
        self.model = Model(history=options.history)
        self._catalogue = Catalogue()
        self._store = Store()
        self._timeline = Timeline(self._rng, options.habits, begin_ms=options.begin_ms)
        self._ddl = DdlSession(self._rng, self._catalogue, self._store, self._timeline, self.model)
        self._statements = Statements(self._rng, self._store, rows_max=options.rows_max)
        self._begun = 0
        self._is_ending = False
        self._committed = 0
        self._rolled_back = 0
        self._rows = 0
        self._serial = 0

    def history(self) -> bytes:
        """The JSON of `/ddl/history` at this moment."""
        return self._catalogue.history()

    @property
    def job_count(self) -> int:
        """How many jobs the history has; it changes only when this does."""
        return self._catalogue.job_count

    def end(self) -> None:
        """No transaction begins any more; what has begun is still told by `records()`."""
        self._is_ending = True

    @property
    def _goes_on(self) -> bool:
        return not self._is_ending and self._begun < self._options.transactions

    def statistics(self) -> WorkloadStatistics:
        """What has been made so far."""
        return WorkloadStatistics(
            committed=self._committed,
            rolled_back=self._rolled_back,
            rows=self._rows,
            ddl_jobs=self._catalogue.job_count,
            repeats=self._timeline.repeats,
            late=self._timeline.late,
            lost=self._timeline.lost,
        )

    def records(self) -> Iterator[Record]:
        """Every request, in the order in which they leave. Outcomes may be late or repeated."""
        yield from self._play([], self._bootstrap())
        sessions = [self._session() for _ in range(self._options.sessions)]
        yield from self._play(sessions, self._ddl_worker())
        yield from self._timeline.rest()

    def _play(self, sessions: list[Script], ddl: Script) -> Iterator[Record]:
        """One turn after the other, of any session; every tenth or so is the DDL owner's."""
        is_ddl_over = False
        while sessions or not is_ddl_over:
            self._timeline.turn()
            if not is_ddl_over and (not sessions or self._rng.random() < _DDL_TURNS):
                is_ddl_over = next(ddl, StopIteration) is StopIteration
            elif sessions:
                session = self._rng.choice(sessions)
                if next(session, StopIteration) is StopIteration:
                    sessions.remove(session)
            yield from self._timeline.leaving()

    def _bootstrap(self) -> Script:
        for name in self._lasting_databases():
            yield from self._ddl.create_database(name)
        for definition in self._table_defs:
            yield from self._ddl.create_table(definition)

    # --- transactions --------------------------------------------------------------------

    def _session(self) -> Script:
        while self._goes_on:
            draft = self._draft()
            if draft is None:
                yield
                continue
            self._begun += 1
            yield from self._run(*draft)

    def _draft(self) -> tuple[Fate, Draft] | None:
        """A transaction with at least one change; None if nothing could be changed just now."""
        fate = Fate(self._timeline.next_ts())
        draft = Draft(self._store, fate.start_ts, self._catalogue.version)
        usable = [
            table for table in self._catalogue.tables.values() if table.id not in self._ddl.blocked
        ]
        if self._rng.random() < self._options.large:
            table = self._rng.choice(usable)
            for _ in range(self._options.large_rows):
                self._statements.insert(draft, table)
        else:
            for table in self._rng.sample(usable, min(len(usable), self._rng.choice(_TABLES))):
                for _ in range(self._rng.randint(1, 4)):
                    self._statements.run(draft, table)
        if not draft.row_changes:
            draft.end()
            return None
        return fate, draft

    def _run(self, fate: Fate, draft: Draft) -> Script:
        yield from self._pause(6)
        key = draft.prewrite_key()
        self._timeline.prewrite(fate, key, draft.prewrite_value(), rows=draft.row_changes)
        yield from self._pause(6)
        if self._rng.random() < self._options.rollbacks:
            self._rolled_back += 1
            draft.end()
            self._timeline.rollback(fate, key)
        else:
            self._committed += 1
            self._rows += draft.row_changes
            fate.commit_ts = self._timeline.next_ts()
            self.model.write(fate.commit_ts, draft.changes())
            draft.commit()
            self._timeline.commit(fate, key)
        yield

    def _pause(self, turns_max: int) -> Script:
        for _ in range(self._rng.randint(0, turns_max)):
            yield

    # --- DDL -----------------------------------------------------------------------------

    def _ddl_worker(self) -> Script:
        every = self._options.ddl_every
        due = every
        while every and self._goes_on:
            if self._begun < due:
                yield
                continue
            due += every
            for script in self._some_ddl():
                yield from script

    def _some_ddl(self) -> Iterable[Script]:
        choices: tuple[tuple[Callable[[], Iterable[Script]], int], ...] = (
            (self._add_column, 8),
            (self._drop_column, 5),
            (self._add_index, 3),
            (self._drop_index, 2),
            (self._add_unique, 3),
            (self._rename, 3),
            (self._truncate, 3),
            (self._side_table, 3),
            (self._widen, 2),
            (self._scratch_database, 1),
        )
        if any(table.partition_ids for _, table in self._tables()):
            choices += ((self._empty_partition, 4),)
        makers = [make for make, _ in choices]
        (make,) = self._rng.choices(makers, [weight for _, weight in choices])
        return make()

    def _next_name(self, stem: str) -> str:
        self._serial += 1
        return f"{stem}{self._serial}"

    def _tables(self) -> list[tuple[TableName, Table]]:
        return list(self._catalogue.tables.items())

    def _add_column(self) -> Iterable[Script]:
        name, table = self._rng.choice(self._tables())
        if len(_added_columns(table)) >= _ADDED_COLUMNS_MAX:
            return self._drop_column()
        column = self._rng.choice(new_columns(self._next_name("added_")))
        return [self._ddl.add_column(name, column)]

    def _drop_column(self) -> Iterable[Script]:
        """Not of a table without key, whose rows are told apart by all their columns."""
        found = [
            (name, column)
            for name, table in self._tables()
            for column in _added_columns(table)
            if table.pk_is_handle or table.primary_index() is not None
        ]
        return [self._ddl.drop_column(*self._rng.choice(found))] if found else []

    def _add_index(self) -> Iterable[Script]:
        found = list(self._indexable())
        if not found:  # the tables were chosen without such a column
            return []
        name, column = self._rng.choice(found)
        return [self._ddl.add_index(name, self._next_name("ix_"), column)]

    def _add_unique(self) -> Iterable[Script]:
        found = list(self._indexable())
        if not found:  # the tables were chosen without such a column
            return []
        name, column = self._rng.choice(found)
        return [self._ddl.add_unique(name, self._next_name("uq_"), column)]

    def _drop_index(self) -> Iterable[Script]:
        found = [
            (name, index.name)
            for name, table in self._tables()
            for index in table.indexes
            if index.name.startswith("ix_")
        ]
        return [self._ddl.drop_index(*self._rng.choice(found))] if found else []

    def _rename(self) -> Iterable[Script]:
        (database, old), _ = self._rng.choice(self._tables())
        target = self._rng.choice(self._lasting_databases())
        stem = old.rstrip("0123456789").rstrip("_")
        return [self._ddl.rename_table((database, old), (target, self._next_name(f"{stem}_")))]

    def _truncate(self) -> Iterable[Script]:
        found = [name for name, _ in self._tables() if name[1].startswith(_TRUNCATABLE)]
        return [self._ddl.truncate_table(self._rng.choice(found))] if found else []

    def _empty_partition(self) -> Iterable[Script]:
        """Dropped only while two are left: the last one has no bound."""
        found = [(name, len(each.partition_ids)) for name, each in self._tables()]
        found = [(name, count) for name, count in found if count]
        if not found:
            return []
        name, count = self._rng.choice(found)
        number = self._rng.randrange(count)
        drops = number < count - 1 and count > 2 and self._rng.random() < 0.4
        return [self._ddl.empty_partition(name, number, drops=drops)]

    def _side_table(self) -> Iterable[Script]:
        """Makes a table beside the others, or drops the one made last time."""
        found = [name for name, _ in self._tables() if name[1].startswith("side_")]
        if found:
            return [self._ddl.drop_table(self._rng.choice(found))]
        template = self._rng.choice(self._table_defs)
        name = self._next_name("side_")
        return [self._ddl.create_table(replace(template, name=name))]

    def _widen(self) -> Iterable[Script]:
        found = [
            (name, column.name)
            for name, table in self._tables()
            for column in table.columns
            if column.field_type.tp == Tp.VARCHAR
            and column.field_type.charset != "binary"
            and column.field_type.flen < 190
            and not column.not_null
            and column.default is None
            and not _is_indexed(table, column.name)
        ]
        return [self._ddl.widen_column(*self._rng.choice(found))] if found else []

    def _scratch_database(self) -> Iterable[Script]:
        stem = f"{self._options.prefix}scratch_"
        scratch = [name for name in self._catalogue.databases if name.startswith(stem)]
        if scratch:
            return [self._ddl.drop_database(scratch[0])]
        name = self._next_name(stem)
        template = self._rng.choice(self._table_defs)
        return [
            self._ddl.create_database(name),
            self._ddl.create_table(replace(template, database=name)),
        ]

    def _lasting_databases(self) -> list[str]:
        return sorted({definition.database for definition in self._table_defs})

    def _indexable(self) -> Iterator[tuple[TableName, str]]:
        """Columns for an index, of tables without partitions: those take no other unique key."""
        for name, table in self._tables():
            for column in () if table.partition_ids else table.columns:
                short = column.field_type.tp == Tp.VARCHAR and column.field_type.flen >= 20
                if (short or column.field_type.tp == Tp.LONG) and not _is_indexed(
                    table, column.name
                ):
                    yield name, column.name


_TABLES = (1, 1, 1, 2, 2, 3, 4)


def _added_columns(table: Table) -> list[str]:
    return [
        column.name
        for column in table.columns
        if column.name.startswith("added_") and not _is_indexed(table, column.name)
    ]


def _is_indexed(table: Table, column: str) -> bool:
    return any(each.name == column for index in table.indexes for each in index.columns)
