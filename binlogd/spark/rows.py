"""Row changes as Arrow batches: typed rows of one table, rows as JSON, or whole binlogs.

Chunks of one table and one schema version are decoded at a time, column by column, and brought to
the columns of the read: by column id, by name where MODIFY COLUMN gave it another id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from binlogd.archive.reading import gathered
from binlogd.binlog import CommittedBinlog
from binlogd.errors import ConfigError, CorruptRow, SchemaChanged, UnreadableRow
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column
from binlogd.snapshot.log.rowkey import SEQ_STEP
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark.request import ReadRequest
from binlogd.spark.walk import SchemaChange, Step, WalkedRows
from binlogd.tidb.model import Column, Table, TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.schema import SchemaTracker
from binlogd.wire import in_order
from binlogd.wire.in_order import changes_of

BATCH_ROWS = 16_384
BATCH_BYTES = 16 << 20

INSERT, UPDATE, DELETE = "insert", "update", "delete"
_OPS = {in_order.INSERT: INSERT, in_order.UPDATE: UPDATE, in_order.DELETE: DELETE}
TRUNCATE, DROP, DDL = "truncate", "drop", "ddl"

MARKS = (("_commit_ts", pa.int64()), ("_seq", pa.int32()), ("_op", pa.string()))
"""Before the columns of a table: when, the place within the transaction, and what was done."""

RAW = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("start_ts", pa.int64()),
        ("seq", pa.int32()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("table_id", pa.int64()),
        ("schema_version", pa.int64()),
        ("op", pa.string()),
        ("row", pa.string()),
        ("before", pa.string()),
        ("query", pa.string()),
    ]
)
"""`row` is the row afterwards (of a delete the one that went), `before` an update's row before."""

BINLOG = pa.schema([("commit_ts", pa.int64()), ("start_ts", pa.int64()), ("payload", pa.binary())])


def binlog_batches(binlogs: Iterable[CommittedBinlog]) -> Iterator[pa.RecordBatch]:
    """Whole binlogs as TiDB wrote them, Commit and Prewrite joined."""
    words = ((each.commit_ts, each.start_ts, each.payload) for each in binlogs)
    for rows in gathered(words, lambda row: len(row[2]), BATCH_ROWS, BATCH_BYTES):
        arrays = map(pa.array, zip(*rows, strict=True), BINLOG.types)
        yield pa.RecordBatch.from_arrays(list(arrays), schema=BINLOG)


# --- which columns a read has ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypedTable:
    """The table of a typed read as of the moment that its columns were chosen."""

    info: Table
    version: int
    columns: tuple[Column, ...]
    is_strict: bool
    """Whether a column that is added later ends the read."""


def wanted_table(schema: SchemaTracker, request: ReadRequest) -> TypedTable:
    """Raises ConfigError for a table or column that is not there."""
    name = f"{request.database}.{request.table}"
    for named, info in schema.tables():
        if request.wants(named.database, named.table) and not (info.is_view or info.is_sequence):
            break
    else:
        raise ConfigError(
            f"option table: {name}: the DDL history tells no such table at that moment; with `to`"
            " a moment at which it was there can be chosen"
        )
    columns = info.stored_columns()
    if request.columns:
        by_name = {each.name.lower(): each for each in columns}
        unknown = [each for each in request.columns if each.lower() not in by_name]
        if unknown:
            raise ConfigError(
                f"option columns: {name} has no stored column {', '.join(unknown)}; it has"
                f" {', '.join(by_name)}"
            )
        columns = [by_name[each.lower()] for each in request.columns]
    is_strict = not (request.columns or request.ignores_new_columns)
    return TypedTable(info, schema.version, tuple(columns), is_strict)


def key_ids(info: Table) -> tuple[int, ...]:
    """Ids of the columns of the primary key; of none, if a table has none."""
    return tuple(each.id for each in info.primary_key())


def typed_schema(wanted: TypedTable, types: TypeOptions) -> pa.Schema:
    """The batches of a typed read."""
    columns = [(each.name, arrow_column(each, types).type) for each in wanted.columns]
    return pa.schema([*MARKS, *columns])


# --- decoding a chunk --------------------------------------------------------------------------


@dataclass(slots=True)
class Change:
    """One row change; `old` and `new` by column id."""

    commit_ts: int
    start_ts: int
    seq: int
    op: str
    schema_version: int
    old: Mapping[int, Value]
    new: Mapping[int, Value]

    @property
    def row(self) -> Mapping[int, Value]:
        """The row afterwards; of a delete the one that went."""
        return self.old if self.op == DELETE else self.new


def numbered(steps: Iterable[Step]) -> Iterator[tuple[Step, int]]:
    """Each step with the number of row changes before it in its transaction."""
    last_ts = seq = 0
    for step in steps:
        if step.commit_ts != last_ts:
            last_ts, seq = step.commit_ts, 0
        yield step, seq
        if isinstance(step, WalkedRows):
            seq += len(step.mutation.sequence)


def row_bytes(rows: WalkedRows) -> int:
    """Bytes of a row change on the average, for what is held in memory."""
    of = rows.mutation
    size = sum(map(len, of.inserted)) + sum(map(len, of.updated)) + sum(map(len, of.deleted))
    return size // max(1, len(of.sequence))


def decoded(decoders: PerTable[RowDecoder], rows: WalkedRows, seq: int) -> Iterator[Change]:
    """The row changes of one table in their order. Raises UnreadableRow."""
    moment = rows.commit_ts, rows.start_ts
    try:
        for kind, old, new in changes_of(rows.mutation, decoders.of(rows.table)):
            yield Change(*moment, seq, _OPS[kind], rows.schema_version, old, new)
            seq += 1
    except CorruptRow as error:
        raise UnreadableRow(rows.table.label, rows.commit_ts, str(error)) from error


class Typed:
    """Typed rows of one table, in commit order.

    Invariant. Whoever keeps the last row of each primary key holds what the table holds.
    Why it holds. A row comes without the row before. So an update that changes the primary key,
    which TiDB tells of tables whose key is not their row handle, is a delete of the old key and an
    insert.
    """

    def __init__(self, request: ReadRequest, wanted: TypedTable, schema: pa.Schema) -> None:
        self._request, self._wanted, self._schema = request, wanted, schema
        self._key_ids = key_ids(wanted.info)
        self._decoders = PerTable(RowDecoder)
        self._sources = PerTable(lambda of: [self._source(of, each) for each in wanted.columns])
        self._losses: Counter[str] = Counter()

    def batches(self, steps: Iterable[Step]) -> Iterator[pa.RecordBatch]:
        """Batches of the schema. Raises SchemaChanged, UnreadableRow."""
        chunk: list[Change] = []
        table: TableAt | None = None
        size = 0
        for step, seq in numbered(steps):
            if isinstance(step, SchemaChange):
                op = self.mark(step)
                if op:
                    yield from self._whole(table, chunk)
                    chunk, size = [], 0
                    yield self.marker(step, op)
            elif self._request.wants(step.table.database, step.table.info.name):
                if step.table is not table:
                    yield from self._whole(table, chunk)
                    chunk, size = [], 0
                table, each_bytes = step.table, row_bytes(step)
                for change in self._by_key(decoded(self._decoders, step, seq)):
                    chunk.append(change)
                    size += each_bytes
                    if len(chunk) >= BATCH_ROWS or size >= BATCH_BYTES:
                        yield self.batch(table, chunk)
                        chunk, size = [], 0
        yield from self._whole(table, chunk)

    def _by_key(self, changes: Iterable[Change]) -> Iterator[Change]:
        """The same, numbered so that there is room, each about one key."""
        for change in changes:
            change.seq *= SEQ_STEP
            old, new = change.old, change.new
            if change.op == UPDATE and any(old.get(i) != new.get(i) for i in self._key_ids):
                yield replace(change, op=DELETE)
                yield replace(change, op=INSERT, seq=change.seq + 1)
            else:
                yield change

    def _whole(self, table: TableAt | None, chunk: Sequence[Change]) -> Iterator[pa.RecordBatch]:
        if table is not None and chunk:
            yield self.batch(table, chunk)

    def mark(self, change: SchemaChange) -> str:
        """What a DDL means for the table: nothing, its end, its rows' end. Raises SchemaChanged."""
        effect, request = change.effect, self._request
        if effect is None:
            return ""
        if any(request.wants(named.database, named.table) for named, _ in effect.dropped):
            return TRUNCATE if change.truncates else DROP
        for old, new in effect.renamed:
            hit = [name for name in (old, new) if request.wants(name.database, name.table)]
            if hit and not request.follows_renames:
                raise SchemaChanged(
                    f"{request.database}.{request.table}",
                    change.commit_ts,
                    f"{old.database}.{old.table} was renamed to {new.database}.{new.table}",
                    'read the new name, or set the option renames to "follow" to go on with'
                    " whatever table has the name",
                )
        return ""

    def marker(self, change: SchemaChange, op: str) -> pa.RecordBatch:
        """A row without values: what was there before is gone."""
        marks = [[change.commit_ts], [0], [op]]
        arrays = [
            pa.array(marks[at] if at < len(marks) else [None], field.type)
            for at, field in enumerate(self._schema)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def batch(self, table: TableAt, changes: Sequence[Change]) -> pa.RecordBatch:
        """Changes of one table at one moment. Raises SchemaChanged, UnreadableRow."""
        arrays = [
            pa.array([each.commit_ts for each in changes], pa.int64()),
            pa.array([each.seq for each in changes], pa.int32()),
            pa.array([each.op for each in changes], pa.string()),
        ]
        rows = [each.row for each in changes]
        targets = self._schema.types[len(MARKS) :]
        self._check_new(table, changes[0])
        for source, target in zip(self._sources.of(table), targets, strict=True):
            arrays.append(self._array(table, source, rows, target, changes[0].commit_ts))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(
        self,
        table: TableAt,
        source: _Source,
        rows: Sequence[Mapping[int, Value]],
        target: pa.DataType,
        commit_ts: int,
    ) -> pa.Array:
        if source.column is None:
            return pa.array([source.default] * len(rows), target)
        values = [row.get(source.column_id) for row in rows]
        try:
            array = source.column.build(values, self._losses)
        except CorruptRow as error:
            raise UnreadableRow(table.label, commit_ts, str(error)) from error
        if array.type == target:
            return array
        try:
            return array.cast(target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaChanged(
                table.label,
                commit_ts,
                f"column {source.column.column.name} was {array.type} then, and the read has it as"
                f" {target}: {error}",
                "end this read before that commit_ts (`to`) and begin another behind it (`from`);"
                " a stream that is started again takes the new type",
            ) from error

    def _source(self, table: TableAt, column: Column) -> _Source:
        """Where a column of the read comes from in rows of this table."""
        public = [each for each in table.info.columns if each.is_public and not each.is_virtual]
        same = [each for each in public if each.id == column.id]
        named = [each for each in public if each.name.lower() == column.name.lower()]
        for found in same or named:
            return _Source(found.id, arrow_column(found, self._request.types), None)
        return _Source(column.id, None, self._default(column))

    def _default(self, column: Column) -> Any:
        """What a row from before the column's ADD COLUMN has in it."""
        info = self._wanted.info
        decoder = RowDecoder(TableAt("", info, self._wanted.version, None, {}, False))
        value = decoder.defaults([column.id])[column.id]
        built = arrow_column(column, self._request.types).build([value], self._losses)
        return built[0].as_py()

    def _check_new(self, table: TableAt, first: Change) -> None:
        """A column that the read does not have must not get lost in silence."""
        wanted = self._wanted
        if not wanted.is_strict or table.version <= wanted.version:
            return
        ids = {each.id for each in wanted.info.columns}
        names = {each.name.lower() for each in wanted.info.columns}
        new = [
            each.name
            for each in table.info.stored_columns()
            if each.id not in ids and each.name.lower() not in names
        ]
        if new:
            raise SchemaChanged(
                table.label,
                first.commit_ts,
                f"column {', '.join(new)} was added after the columns of this read were chosen",
                "start the stream again: it takes the column along, and its checkpoint stays; or"
                " set the option schemaChange to ignore, or name the columns by `columns`",
            )


@dataclass(frozen=True, slots=True)
class _Source:
    """A column of older or newer rows; without `column` it did not exist, and reads `default`."""

    column_id: int
    column: ArrowColumn | None
    default: Any


# --- rows as JSON ------------------------------------------------------------------------------


class JsonRows:
    """Rows of any table, as JSON."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request
        self._decoders = PerTable(RowDecoder)
        self._columns = PerTable(self._columns_of)
        self._losses: Counter[str] = Counter()

    def batches(self, steps: Iterable[Step]) -> Iterator[pa.RecordBatch]:
        """Batches of RAW. Raises UnreadableRow."""
        held: list[tuple[TableAt, Change] | SchemaChange] = []
        size = 0
        for step, seq in numbered(steps):
            if isinstance(step, SchemaChange):
                if self._is_wanted(step):
                    held.append(step)
                continue
            if not self._request.wants(step.table.database, step.table.info.name):
                continue
            each_bytes = row_bytes(step)
            for change in decoded(self._decoders, step, seq):
                held.append((step.table, change))
                size += each_bytes
                if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield self._batch(held)
                    held, size = [], 0
        if held:
            yield self._batch(held)

    def _is_wanted(self, change: SchemaChange) -> bool:
        if change.effect is None:
            return False
        names = [change.effect.name, *change.effect.created]
        names += [name for pair in change.effect.renamed for name in pair]
        return any(
            not name.table or self._request.wants(name.database, name.table) for name in names
        )

    def _batch(self, held: Sequence[tuple[TableAt, Change] | SchemaChange]) -> pa.RecordBatch:
        rows = self._texts(held, lambda change: change.row)
        before = self._texts(held, lambda change: change.old if change.op == UPDATE else None)
        table: list[tuple[Any, ...]] = []
        for at, each in enumerate(held):
            if isinstance(each, SchemaChange):
                table.append((*_ddl_of(each), DDL, None, None, each.query))
            else:
                table.append((*_where(*each), each[1].op, rows[at], before.get(at), None))
        arrays = map(pa.array, zip(*table, strict=True), RAW.types)
        return pa.RecordBatch.from_arrays(list(arrays), schema=RAW)

    def _texts(self, held: Sequence[Any], row_of: Any) -> dict[int, str]:
        """JSON of the rows by their place in `held`; each table's are built together."""
        of_table: dict[int, tuple[TableAt, list[tuple[int, Mapping[int, Value]]]]] = {}
        for at, each in enumerate(held):
            if not isinstance(each, SchemaChange):
                row = row_of(each[1])
                if row is not None:
                    of_table.setdefault(id(each[0]), (each[0], []))[1].append((at, row))
        found: dict[int, str] = {}
        for table, rows in of_table.values():
            columns = self._columns.of(table)
            try:
                built = [
                    each.build(
                        [row.get(each.column.id) for _, row in rows], self._losses
                    ).to_pylist()
                    for each in columns
                ]
            except CorruptRow as error:
                raise UnreadableRow(table.label, 0, str(error)) from error
            names = [each.column.name for each in columns]
            for (at, _), values in zip(rows, zip(*built, strict=True), strict=True):
                found[at] = msgspec.json.encode(dict(zip(names, values, strict=True))).decode()
        return found

    def _columns_of(self, table: TableAt) -> list[ArrowColumn]:
        return [arrow_column(each, self._request.types) for each in table.info.stored_columns()]


def _ddl_of(change: SchemaChange) -> tuple[Any, ...]:
    assert change.effect is not None, "what has no effect is passed over"
    name, job = change.effect.name, change.job
    when = change.commit_ts, change.start_ts, 0
    return (*when, name.database, name.table, job.table_id, job.schema_version)


def _where(table: TableAt, change: Change) -> tuple[Any, ...]:
    when = change.commit_ts, change.start_ts, change.seq
    return (*when, table.database, table.info.name, table.info.id, change.schema_version)
