"""Decodes the rows that a table holds, into Arrow and from there into its files.

Runs in Spark's Python workers, one call for each partition, and knows nothing of Spark. Rows come
sorted by table, so one file is open at a time; a table has at least as many files as partitions
have rows of it. Rows are decoded here, into Arrow, and go from there to the file: sending them back
to the JVM only to have them written would cost as much as the decoding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import starmap
from typing import NamedTuple

import pyarrow as pa

from binlogd.errors import Corrupt, CorruptRow, UnknownTable, UnreadableRow
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column, mysql_type
from binlogd.snapshot.log.rowkey import HandleKind, Op, columns_of
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.tables.rewrite import Convert, Unconvertible, converter
from binlogd.snapshot.writing.changed import ChangedKeys, keys_as
from binlogd.snapshot.writing.files import TableFiles, Target, Written, results
from binlogd.snapshot.writing.loose import GoneRows
from binlogd.tidb.model import Column
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.schema import SchemaTracker

CHUNK_ROWS = 8_192
"""Rows that are turned into Arrow at a time."""
CHUNK_BYTES = 16 << 20


class Winner(NamedTuple):
    """The last change of a key. `before` is the row that the key held before the first one, where
    that is asked for and there was one."""

    table_id: int
    key: bytes
    op: int
    schema_version: int
    commit_ts: int
    row: bytes
    before: bytes = b""
    before_version: int = 0


def write(
    batches: Iterable[pa.RecordBatch],
    tables: dict[int, TablePlan],
    tracker: bytes,
    target: Target,
    part: str,
) -> Iterator[pa.RecordBatch]:
    """Writes the rows of one partition; `part` makes its file names its own. Yields `RESULTS`.

    Raises UnreadableRow, UnknownTable.
    """
    schemas = SchemaTracker.from_snapshot(tracker)
    current: TableWriter | None = None
    done: list[Written] = []
    for batch in batches:
        for winner in _winners(batch):
            table_id = winner.table_id
            if current is None or current.table_id != table_id:
                if table_id not in tables:
                    raise UnknownTable(table_id, winner.commit_ts, winner.schema_version)
                done += current.close() if current else []
                current = TableWriter(tables[table_id], schemas, target, part)
            current.add(winner)
    done += current.close() if current else []
    yield results(done)


def write_empty(plan: TablePlan, target: Target) -> list[Written]:
    """The file of a table without rows, so that its columns are there to be read."""
    writer = TableWriter(plan, SchemaTracker(), target, "empty")
    writer.flush()
    return writer.close()


def _winners(batch: pa.RecordBatch) -> Iterator[Winner]:
    given = [name for name in Winner._fields if name in batch.schema.names]
    columns = (batch.column(name).to_pylist() for name in given)
    return starmap(Winner, zip(*columns, strict=True))


def directory_name(plan: TablePlan) -> str:
    """The directory of a table inside a snapshot; the manifest tells which is whose."""
    parts = (_quoted(plan.database), _quoted(plan.info.name))
    name = ".".join(parts)
    return name if len(name.encode()) <= _NAME_BYTES_MAX else f"table-{plan.info.id}"


_NAME_BYTES_MAX = 200
_ODD = re.compile(r"[^\w-]")


def _quoted(name: str) -> str:
    return _ODD.sub(lambda odd: "".join(f"%{byte:02X}" for byte in odd[0].encode()), name)


class TableWriter:
    """The rows of one table in one partition, on their way into files.

    Of a table that has rows in a base, the keys that changed are put down as well. What an export
    that was killed had finished is taken as it is; its rows are only counted.
    """

    def __init__(self, plan: TablePlan, schemas: SchemaTracker, target: Target, part: str) -> None:
        self.table_id = plan.info.id
        self._plan = plan
        self._rows = Rows(plan, schemas)
        self._columns = arrow_columns(plan, target.types)
        self._schema = schema_of(self._columns)
        self._files = table_files(plan, self._columns, target, part)
        self._key_type = self._files.key_type
        self._done = target.finished(self.table_id, part)
        self._changed: ChangedKeys | None = None
        self._gone: _GoneRows | None = None
        if plan.carry is not None and self._done is None:
            if plan.carry.is_loose:
                self._gone = _GoneRows(target.keys, plan, part, self._rows, self._columns)
            else:
                self._changed = ChangedKeys(target.keys, plan, part)
        self._target, self._part, self._passed = target, part, 0
        self._values: list[list[Value]] = [[] for _ in self._columns]
        self._keys: list[bytes] = []
        self._ids = [each.id for each in plan.columns]
        self._chunk_rows = self._chunk_bytes = 0
        self._problem = ""

    def add(self, winner: Winner) -> None:
        """Takes a row. Raises UnreadableRow."""
        if self._problem:
            return
        if self._changed is not None:
            self._changed.add(winner.key)
        if self._done is not None:
            self._passed += winner.op != Op.DELETE
            return
        try:
            if self._gone is not None:
                self._gone.add(winner)
            if winner.op != Op.DELETE:
                self._take(winner)
        except CorruptRow as error:
            raise UnreadableRow(self._label(), winner.commit_ts, str(error)) from error
        except Unconvertible as error:
            self._problem = str(error)

    def _take(self, winner: Winner) -> None:
        values = self._rows.decode(winner.schema_version, winner.row)
        for column, column_id in zip(self._values, self._ids, strict=True):
            column.append(values[column_id])
        if self._key_type is not None:
            self._keys.append(winner.key)
        self._chunk_rows += 1
        self._chunk_bytes += len(winner.row)
        if self._chunk_rows >= CHUNK_ROWS or self._chunk_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Turns what has gathered into Arrow."""
        arrays = [
            each.build(values, self._files.losses.setdefault(each.column.name, Counter()))
            for each, values in zip(self._columns, self._values, strict=True)
        ]
        keys = keys_as(self._keys, self._key_type) if self._key_type is not None else None
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for values in self._values:
            values.clear()
        self._keys.clear()
        self._files.add(batch, keys, self._chunk_bytes)
        self._chunk_rows = self._chunk_bytes = 0

    def close(self) -> list[Written]:
        """Finishes the last file. What was written, or the problem."""
        if self._done is not None:
            return self._taken(self._done)
        if self._chunk_rows and not self._problem:
            try:
                self.flush()
            except CorruptRow as error:
                raise UnreadableRow(self._label(), 0, str(error)) from error
        done = self._files.close()
        for each in (self._changed, self._gone):
            if each is not None:
                each.close()
        if self._problem:
            return [Written(self.table_id, problem=self._problem)]
        self._target.finish(self.table_id, self._part, done)
        return done

    def _taken(self, done: list[Written]) -> list[Written]:
        rows = sum(each.rows for each in done)
        if rows != self._passed:
            raise Corrupt(
                f"{self._label()}: the export that is resumed had {rows} rows where the log has"
                f" {self._passed}; export without --resume"
            )
        return done

    def _label(self) -> str:
        return f"{self._plan.database}.{self._plan.info.name}"


def table_files(
    plan: TablePlan,
    columns: Sequence[ArrowColumn],
    target: Target,
    part: str,
    *,
    has_keys: bool = True,
) -> TableFiles:
    """What rows of a table are written to; without `has_keys` nobody knows their row handles."""
    return TableFiles(
        plan.info.id,
        directory_name(plan),
        schema_of(columns),
        target,
        part,
        key_type(plan, columns) if has_keys and target.kind.is_base else None,
        mysql_types=tuple(mysql_type(each.column) for each in columns),
        table=plan.info.name,
    )


class _GoneRows:
    """The rows that keys of a table held before they changed, on their way to `loose`."""

    def __init__(
        self, directory: str, plan: TablePlan, part: str, rows: Rows, columns: list[ArrowColumn]
    ) -> None:
        self._file = GoneRows(directory, plan.info.id, part)
        self._rows, self._columns, self._schema = rows, columns, schema_of(columns)
        self._winners: list[Winner] = []
        self._befores: list[dict[int, Value]] = []

    def add(self, winner: Winner) -> None:
        before: dict[int, Value] = {}
        if winner.before:
            before = self._rows.decode(winner.before_version, winner.before)
        self._winners.append(winner)
        self._befores.append(before)
        if len(self._winners) >= CHUNK_ROWS:
            self._flush()

    def close(self) -> None:
        if self._winners:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        arrays = [
            column.build([before.get(column.column.id) for before in self._befores], Counter())
            for column in self._columns
        ]
        self._file.add(
            [winner.key for winner in self._winners],
            pa.RecordBatch.from_arrays(arrays, schema=self._schema),
            was_there=[bool(winner.before) for winner in self._winners],
        )
        self._winners.clear()
        self._befores.clear()


def arrow_columns(plan: TablePlan, types: TypeOptions) -> list[ArrowColumn]:
    """The way out of each column of a table."""
    return [arrow_column(each, types) for each in plan.columns]


def schema_of(columns: Iterable[ArrowColumn]) -> pa.Schema:
    """Parquet keeps TiDB's column id as the field id, which stays when a column is renamed."""
    return pa.schema(
        pa.field(each.column.name, each.type, metadata={"PARQUET:field_id": str(each.column.id)})
        for each in columns
    )


def key_type(plan: TablePlan, columns: Iterable[ArrowColumn]) -> pa.DataType | None:
    """How the row handles of a table are kept; None where a column of it is the handle."""
    if plan.handle.kind is HandleKind.COMMON:
        return pa.binary()
    is_told = plan.handle.kind is HandleKind.INTEGER and any(
        each.column.id == plan.handle.column_ids[0] and each.type != pa.bool_() for each in columns
    )
    return None if is_told else pa.int64()


# --- rows to values ------------------------------------------------------------------------


class Rows:
    """Decodes rows of one table as of the moment, whatever schema version wrote them."""

    def __init__(self, plan: TablePlan, schemas: SchemaTracker) -> None:
        self._plan, self._schemas = plan, schemas
        self._decoders: dict[int, RowDecoder] = {}
        self._seen: dict[int, int] = {}
        self._stand_ins = [
            (column.id, stand_ins)
            for column in plan.columns
            if (stand_ins := _stand_ins(column, plan))
        ]

    def decode(self, version: int, row: bytes) -> dict[int, Value]:
        """Values by column id. Raises CorruptRow, Unconvertible."""
        values = self._decoder(version).insert(row)
        if self._stand_ins:
            present = columns_of(self._plan.handle, row)
            for column_id, stand_ins in self._stand_ins:
                if column_id not in present:
                    _stand_in(values, column_id, stand_ins, present, version)
        return values

    def _decoder(self, version: int) -> RowDecoder:
        decoder = self._decoders.get(version)
        if decoder is None:
            table = self._schemas.table_at(self._plan.info.id, version)
            assert table is not None, "the catalog was made by the same tracker"
            decoder = RowDecoder(replace(table, info=self._plan.info))
            self._decoders[version] = decoder
        return decoder


class _StandIn(NamedTuple):
    """An older id of a column, the version that ended it, and the conversions from there."""

    column_id: int
    until: int
    conversions: list[Convert]


def _stand_ins(column: Column, plan: TablePlan) -> list[_StandIn]:
    """Newest first."""
    replaced = {each.new.id: each for each in plan.rewritten}
    found: list[_StandIn] = []
    chain: list[Convert] = []
    column_id = column.id
    while column_id in replaced:  # ids only grow, so the chain ends
        step = replaced[column_id]
        chain = [_converter(step.old, step.new), *chain]
        found.append(_StandIn(step.old.id, step.version, chain))
        column_id = step.old.id
    return found


def _converter(old: Column, new: Column) -> Convert:
    """A conversion that is refused only when a row needs it."""
    try:
        return converter(old, new)
    except Unconvertible as error:
        reason = str(error)

    def refuse(value: Value) -> Value:
        if value is None:
            return None
        raise Unconvertible(reason)

    return refuse


def _stand_in(
    values: dict[int, Value],
    column_id: int,
    stand_ins: list[_StandIn],
    present: set[int],
    version: int,
) -> None:
    """Puts in what a row of this version means by not having the column."""
    chosen: _StandIn | None = None
    for each in stand_ins:
        if version >= each.until or (chosen and chosen.column_id in present):
            break
        chosen = each
    if chosen is None:
        return
    value = values[chosen.column_id]
    for convert in chosen.conversions:
        value = convert(value)
    values[column_id] = value
