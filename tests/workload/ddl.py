"""DDL statements as a TiDB runs them: steps, waits, binlogs, history.

A script is an iterator that yields where other sessions may go on. A job's binlog is that of the
transaction that ends it; DROP COLUMN has one more, when its column becomes DELETE ONLY. A step
waits until no open transaction works with an older schema of the table (metadata lock), but a
transaction of the schema before may still commit after it.
Source: pingcap/tidb ddl/{ddl_worker,column,table,index}.go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from binlogd.tidb.kinds import ActionType, JobState, SchemaState, Tp
from binlogd.tidb.model import Index, IndexColumn, Scalar, Table
from tests.workload.catalogue import Catalogue, DdlJob, with_column_state, with_columns
from tests.workload.model import Model, RowKey, TableName
from tests.workload.schema import (
    MULTIPLE_KEY,
    UNIQUE_KEY,
    ColumnDef,
    TableDef,
    build_column,
    build_table,
    column_sql,
    create_table_sql,
    decimal,
    enum,
    flagged,
    integer,
    is_below,
    json,
    name_json,
    partition_name,
    quoted,
    real,
    temporal,
    type_sql,
    varchar,
    with_partitions,
)
from tests.workload.store import Store
from tests.workload.timeline import Fate, Timeline
from tests.workload.values import Value

Script = Iterator[None]


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column to add: its declaration, TiDB's origin default, and what that means in a row."""

    definition: ColumnDef
    origin_default: Scalar
    missing: Value


def new_columns(name: str) -> tuple[NewColumn, ...]:
    """Columns of every kind of default, nullable and not."""
    moment, stamp = "2021-06-01 09:00:00", "2020-01-01 00:00:00"
    largest = str((1 << 64) - 1)
    return (
        NewColumn(ColumnDef(name, integer(), not_null=True, default="7"), "7", 7),
        NewColumn(ColumnDef(name, integer(), not_null=True), "0", 0),
        NewColumn(ColumnDef(name, varchar(10), default="app"), "app", b"app"),
        NewColumn(ColumnDef(name, real("DOUBLE")), None, None),
        NewColumn(ColumnDef(name, decimal(8, 2), default="2.5"), "2.5", "2.50"),
        NewColumn(
            ColumnDef(name, temporal(Tp.DATETIME, 3), not_null=True, default=moment),
            moment,
            f"{moment}.000",
        ),
        NewColumn(ColumnDef(name, enum("m", "n"), not_null=True), "m", 1),
        NewColumn(ColumnDef(name, temporal(Tp.TIMESTAMP), default=stamp), stamp, stamp),
        NewColumn(ColumnDef(name, json()), None, None),
        NewColumn(
            ColumnDef(name, integer("BIGINT", unsigned=True), default=largest),
            largest,
            (1 << 64) - 1,
        ),
    )


class DdlSession:
    """The DDL owner: runs one job at a time, in between the transactions of the others."""

    def __init__(
        self,
        rng: random.Random,
        catalogue: Catalogue,
        store: Store,
        timeline: Timeline,
        model: Model,
    ) -> None:
        self._rng = rng
        self._catalogue = catalogue
        self._store = store
        self._timeline = timeline
        self._model = model
        self.blocked: set[int] = set()
        """Table ids that no new transaction may touch."""

    def create_database(self, name: str) -> Script:
        """CREATE DATABASE."""
        database_id = self._catalogue.next_id()
        job = self._start(
            ActionType.CREATE_SCHEMA,
            (name, ""),
            f"CREATE DATABASE {quoted(name)} CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin",
            ids=(database_id, 0),
        )
        yield from self._announce(
            job,
            SchemaState.PUBLIC,
            lambda: self._catalogue.add_database(name, database_id),
            database=(database_id, name),
        )

    def drop_database(self, name: str) -> Script:
        """DROP DATABASE, with the tables in it."""
        ids = [table.id for (database, _), table in self._tables() if database == name]
        database_id = self._catalogue.databases[name]
        yield from self._take(ids)
        job = self._start(
            ActionType.DROP_SCHEMA,
            (name, ""),
            f"DROP DATABASE {quoted(name)}",
            ids=(database_id, 0),
            raw_args=[ids],
        )

        def gone() -> None:
            self._catalogue.drop_database(name)
            for each in ids:
                self._store.drop(each)

        yield from self._announce(job, SchemaState.NONE, gone, database=(database_id, name))

    def create_table(self, definition: TableDef) -> Script:
        """CREATE TABLE."""
        partition_ids = [self._catalogue.next_id() for _ in range(definition.partitions)]
        table = build_table(definition, self._catalogue.next_id(), partition_ids)
        name = (definition.database, definition.name)
        job = self._start_on(
            ActionType.CREATE_TABLE, name, create_table_sql(definition), table_id=table.id
        )

        def there() -> None:
            self._catalogue.add_table(name, table)
            self._store.create(table.id, self._catalogue.missing[table.id])

        yield from self._announce(job, SchemaState.PUBLIC, there, table=lambda: table)

    def drop_table(self, name: TableName) -> Script:
        """DROP TABLE."""
        table = self._catalogue.tables[name]
        yield from self._take([table.id])
        job = self._start_on(ActionType.DROP_TABLE, name, f"DROP TABLE {quoted(*name)}")
        self._catalogue.step()
        self._catalogue.step()

        def gone() -> None:
            self._catalogue.drop_table(name)
            self._store.drop(table.id)

        yield from self._announce(job, SchemaState.NONE, gone, table=lambda: table)

    def truncate_table(self, name: TableName) -> Script:
        """TRUNCATE TABLE; rows that come later for the old id are nobody's."""
        old = self._catalogue.tables[name]
        new_id = self._catalogue.next_id()
        job = self._start_on(ActionType.TRUNCATE_TABLE, name, f"TRUNCATE TABLE {quoted(*name)}")

        def anew() -> None:
            table = self._catalogue.truncate_table(name, new_id)
            self._store.drop(old.id)
            self._store.create(table.id, self._catalogue.missing[table.id])

        yield from self._announce(
            job, SchemaState.PUBLIC, anew, table=lambda: self._catalogue.tables[name]
        )

    def rename_table(self, old: TableName, new: TableName) -> Script:
        """RENAME TABLE, also into another database. The job tells the new one, and the old name."""
        job = self._catalogue.start(
            ActionType.RENAME_TABLE,
            (new[0], old[1]),
            f"RENAME TABLE {quoted(*old)} TO {quoted(*new)}",
            start_ts=self._timeline.next_ts(),
            ids=(self._catalogue.databases[new[0]], self._catalogue.tables[old].id),
        )
        yield from self._announce(
            job,
            SchemaState.PUBLIC,
            lambda: self._catalogue.rename_table(old, new),
            table=lambda: self._catalogue.tables[new],
        )

    def add_column(self, name: TableName, new: NewColumn) -> Script:
        """ADD COLUMN, by way of DELETE ONLY, WRITE ONLY and WRITE REORGANIZATION."""
        table = self._catalogue.tables[name]
        column = build_column(
            new.definition,
            column_id=self._catalogue.next_column_id(table.id),
            offset=len(table.columns),
            origin_default=new.origin_default,
        )
        job = self._start_on(
            ActionType.ADD_COLUMN,
            name,
            f"ALTER TABLE {quoted(*name)} ADD COLUMN {column_sql(new.definition)}",
        )
        self._catalogue.missing[table.id][column.id] = new.missing
        table = with_columns(table, [*table.columns, replace(column, state=SchemaState.NONE)])
        for state in (
            SchemaState.DELETE_ONLY,
            SchemaState.WRITE_ONLY,
            SchemaState.WRITE_REORGANIZATION,
        ):
            self._catalogue.change_table(name, with_column_state(table, column.id, state))
            yield from self._settle(table.id)
        yield from self._announce_table(
            job, name, with_column_state(table, column.id, SchemaState.PUBLIC)
        )

    def drop_column(self, name: TableName, column: str) -> Script:
        """DROP COLUMN, by way of WRITE ONLY, DELETE ONLY (announced) and DELETE REORGANIZATION."""
        table = self._catalogue.tables[name]
        (column_id,) = (each.id for each in table.columns if each.name == column)
        job = self._start_on(
            ActionType.DROP_COLUMN,
            name,
            f"ALTER TABLE {quoted(*name)} DROP COLUMN {quoted(column)}",
            raw_args=[name_json(column), False, [], []],
        )
        self._catalogue.change_table(
            name, with_column_state(table, column_id, SchemaState.WRITE_ONLY)
        )
        yield from self._settle(table.id)
        hidden = with_column_state(table, column_id, SchemaState.DELETE_ONLY)
        yield from self._announce(
            job,
            SchemaState.DELETE_ONLY,
            lambda: self._catalogue.change_table(name, hidden),
            state=None,
        )
        yield from self._settle(table.id)
        self._catalogue.change_table(
            name, with_column_state(table, column_id, SchemaState.DELETE_REORGANIZATION)
        )
        yield from self._settle(table.id)
        rest = with_columns(table, [each for each in table.columns if each.id != column_id])
        yield from self._announce_table(job, name, rest, schema_state=SchemaState.NONE)

    def widen_column(self, name: TableName, column: str) -> Script:
        """MODIFY COLUMN of a VARCHAR to one that is longer: no row is rewritten."""
        table = self._catalogue.tables[name]
        wider = tuple(
            replace(each, field_type=replace(each.field_type, flen=each.field_type.flen + 10))
            if each.name == column
            else each
            for each in table.columns
        )
        (declared,) = (each for each in wider if each.name == column)
        job = self._start_on(
            ActionType.MODIFY_COLUMN,
            name,
            f"ALTER TABLE {quoted(*name)} MODIFY COLUMN"
            f" {quoted(column)} {type_sql(declared.field_type)}",
            raw_args=[[], []],
        )
        yield from self._announce_table(job, name, replace(table, columns=wider))

    def add_index(self, name: TableName, index: str, column: str) -> Script:
        """ADD INDEX; rows do not show it."""
        table = self._catalogue.tables[name]
        job = self._start_on(
            ActionType.ADD_INDEX,
            name,
            f"ALTER TABLE {quoted(*name)} ADD INDEX {quoted(index)}({quoted(column)})",
        )
        for _ in range(3):
            self._catalogue.step()
            yield from self._settle(table.id)
        added = self._indexed(table, index, column, is_unique=False)
        yield from self._announce_table(job, name, added)

    def add_unique(self, name: TableName, index: str, column: str) -> Script:
        """ADD UNIQUE, rolled back where two rows have the same value."""
        table = self._catalogue.tables[name]
        yield from self._take([table.id])
        job = self._start_on(
            ActionType.ADD_INDEX,
            name,
            f"ALTER TABLE {quoted(*name)} ADD UNIQUE {quoted(index)}({quoted(column)})",
        )
        for _ in range(3):
            self._catalogue.step()
        added = self._indexed(table, index, column, is_unique=True)
        if self._store.table(table.id).rebuild_unique(added, added.indexes[-1]):
            yield from self._announce_table(job, name, added)
        else:
            yield from self._announce(
                job,
                SchemaState.NONE,
                self._catalogue.step,
                state=JobState.ROLLBACK_DONE,
                table=lambda: table,
            )
        self.blocked.discard(table.id)

    def drop_index(self, name: TableName, index: str) -> Script:
        """DROP INDEX of one that is not unique."""
        table = self._catalogue.tables[name]
        job = self._start_on(
            ActionType.DROP_INDEX,
            name,
            f"ALTER TABLE {quoted(*name)} DROP INDEX {quoted(index)}",
            raw_args=[name_json(index), False, 1, []],
        )
        for _ in range(3):
            self._catalogue.step()
            yield from self._settle(table.id)
        kept = tuple(each for each in table.indexes if each.name != index)
        yield from self._announce_table(
            job, name, replace(table, indexes=kept), schema_state=SchemaState.NONE
        )

    def empty_partition(self, name: TableName, number: int, *, drops: bool) -> Script:
        """TRUNCATE PARTITION, which gives it another id, or DROP PARTITION: the rows go with it,
        and new ones of its range lie in the next. No transaction is open meanwhile."""
        table = self._catalogue.tables[name]
        assert table.partitioning is not None
        parts = list(table.partitioning.parts)
        old = parts[number]
        yield from self._take([table.id])
        word = "DROP" if drops else "TRUNCATE"
        job = self._start_on(
            ActionType.DROP_TABLE_PARTITION if drops else ActionType.TRUNCATE_TABLE_PARTITION,
            name,
            f"ALTER TABLE {quoted(*name)} {word} PARTITION {quoted(partition_name(old))}",
            raw_args=[[old.id]],
        )
        parts[number : number + 1] = [] if drops else [old._replace(id=self._catalogue.next_id())]
        for _ in range(2 if drops else 0):
            self._catalogue.step()
        rows = self._store.table(table.id)
        gone = [
            key
            for key in rows.rows
            if isinstance(key, int)
            and is_below(key, old)
            and not any(is_below(key, each) for each in table.partitioning.parts[:number])
        ]
        after = with_partitions(table, table.partitioning.expr, parts)

        def emptied() -> None:
            self._catalogue.change_table(name, after)
            for key in gone:
                rows.put(table, key, None)

        yield from self._announce(
            job, SchemaState.NONE, emptied, table=lambda: after, emptied={table.id: gone}
        )
        self.blocked.discard(table.id)

    # --- steps ---------------------------------------------------------------------------

    def _tables(self) -> list[tuple[TableName, Table]]:
        return list(self._catalogue.tables.items())

    def _indexed(self, table: Table, name: str, column: str, *, is_unique: bool) -> Table:
        (at,) = (each for each in table.columns if each.name == column)
        index = Index(
            id=self._catalogue.next_index_id(table.id),
            name=name,
            columns=(IndexColumn(column, at.offset),),
            is_unique=is_unique,
        )
        table = flagged(table, column, UNIQUE_KEY if is_unique else MULTIPLE_KEY)
        return replace(table, indexes=(*table.indexes, index))

    def _start(
        self,
        action: ActionType,
        target: TableName,
        statement: str,
        *,
        ids: tuple[int, int],
        raw_args: object = None,
    ) -> DdlJob:
        return self._catalogue.start(
            action,
            target,
            statement,
            start_ts=self._timeline.next_ts(),
            ids=ids,
            raw_args=raw_args,
        )

    def _start_on(
        self,
        action: ActionType,
        name: TableName,
        statement: str,
        *,
        table_id: int | None = None,
        raw_args: object = None,
    ) -> DdlJob:
        if table_id is None:
            table_id = self._catalogue.tables[name].id
        ids = (self._catalogue.databases[name[0]], table_id)
        return self._start(action, name, statement, ids=ids, raw_args=raw_args)

    def _pause(self) -> Script:
        for _ in range(self._rng.randint(1, 12)):
            yield

    def _settle(self, table_id: int) -> Script:
        """Some time, and until no transaction on the table works with an older schema."""
        yield from self._pause()
        while (self._store.oldest_version(table_id) or MAX_VERSION) < self._catalogue.version:
            yield  # ends: transactions end, new ones are of this version

    def _take(self, table_ids: list[int]) -> Script:
        """Until no transaction is open on the tables; none may begin from now on."""
        self.blocked.update(table_ids)
        yield from self._pause()
        while any(self._store.oldest_version(each) is not None for each in table_ids):
            yield  # ends: transactions end, and none begins

    def _announce_table(
        self,
        job: DdlJob,
        name: TableName,
        table: Table,
        *,
        schema_state: SchemaState = SchemaState.PUBLIC,
    ) -> Script:
        yield from self._announce(
            job,
            schema_state,
            lambda: self._catalogue.change_table(name, table),
            table=lambda: table,
        )

    def _announce(
        self,
        job: DdlJob,
        schema_state: SchemaState,
        change: Callable[[], None],
        *,
        state: JobState | None = JobState.SYNCED,
        table: Callable[[], Table] | None = None,
        database: tuple[int, str] | None = None,
        emptied: Mapping[int, Iterable[RowKey]] = MappingProxyType({}),
    ) -> Script:
        """The transaction of a step that has a binlog. `state` None: the job goes on.

        An ended job stands in the history before its Commit binlog can be seen.
        """
        fate, mark = Fate(self._timeline.next_ts()), job.mark(schema_state)
        self._timeline.prewrite(fate, job.prewrite_key(), ddl=mark)
        yield from self._pause()
        fate.commit_ts = self._timeline.next_ts()
        change()
        self._model.define(fate.commit_ts, self._catalogue.tables, self._catalogue.missing, emptied)
        if state is not None:
            self._catalogue.finish(
                job,
                self._timeline.next_ts(),
                schema_state=schema_state,
                state=state,
                table=table() if table else None,
                database=database,
            )
        self._timeline.commit(fate, job.prewrite_key(), ddl=mark)
        yield


MAX_VERSION = 1 << 62
