"""Decodes the rows that a table holds and writes them as Parquet files, each synced and hashed.

Runs in Spark's Python workers, one call for each partition, and knows nothing of Spark. Rows come
sorted by table, so one file is open at a time; a table has at least as many files as partitions
have rows of it. Rows are decoded here, into Arrow, and go from there to the file: sending them back
to the JVM only to have them written would cost as much as the decoding.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from binlogd.errors import CorruptRow, RowMismatch, UnknownTable
from binlogd.snapshot.catalog import TablePlan
from binlogd.snapshot.columns import ArrowColumn, arrow_column
from binlogd.snapshot.rewrite import Convert, Unconvertible, converter
from binlogd.snapshot.rowkey import columns_of
from binlogd.tidb.model import Column
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.schema import SchemaTracker

CHUNK_ROWS = 8_192
"""Rows that are turned into Arrow at a time."""
CHUNK_BYTES = 16 << 20
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 << 20

RESULTS = pa.schema(
    [
        ("table_id", pa.int64()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.string()),
        ("losses", pa.string()),
        ("problem", pa.string()),
    ]
)
"""One written file each, or (with `problem`) why a table cannot be told."""

Winner = tuple[int, int, int, bytes]
"""table_id, schema_version, commit_ts, row."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how files are written."""

    staging: str
    invalid_text: str
    rows_per_file_max: int


@dataclass(frozen=True, slots=True)
class Written:
    """A file, or why there is none."""

    table_id: int
    name: str = ""
    rows: int = 0
    size_bytes: int = 0
    sha256: str = ""
    losses: str = "{}"
    problem: str = ""


def write(
    batches: Iterable[pa.RecordBatch],
    tables: dict[int, TablePlan],
    tracker: bytes,
    target: Target,
    part: str,
) -> Iterator[pa.RecordBatch]:
    """Writes the rows of one partition; `part` makes its file names its own. Yields `RESULTS`.

    Raises RowMismatch, UnknownTable.
    """
    schemas = SchemaTracker.from_snapshot(tracker)
    current: TableWriter | None = None
    done: list[Written] = []
    for batch in batches:
        for winner in _winners(batch):
            table_id = winner[0]
            if current is None or current.table_id != table_id:
                if table_id not in tables:
                    raise UnknownTable(table_id, winner[2], winner[1])
                done += current.close() if current else []
                current = TableWriter(table_id, tables[table_id], schemas, target, part)
            current.add(winner)
    done += current.close() if current else []
    yield _results(done)


def write_empty(plan: TablePlan, target: Target) -> list[Written]:
    """The file of a table without rows, so that its columns are there to be read."""
    writer = TableWriter(plan.info.id, plan, SchemaTracker(), target, "empty")
    writer.flush(is_last=True)
    return writer.close()


def _winners(batch: pa.RecordBatch) -> Iterator[Winner]:
    names = ("table_id", "schema_version", "commit_ts", "row")
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def _results(done: list[Written]) -> pa.RecordBatch:
    columns = {
        name: [getattr(each, name) for each in done]
        for name in RESULTS.names  # fields of Written
    }
    return pa.RecordBatch.from_pydict(columns, schema=RESULTS)


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
    """The rows of one table in one partition, on their way into files."""

    def __init__(
        self, table_id: int, plan: TablePlan, schemas: SchemaTracker, target: Target, part: str
    ) -> None:
        self.table_id = table_id
        self._plan, self._schemas, self._target, self._part = plan, schemas, target, part
        self._rows = _Rows(plan, schemas)
        self._columns = [arrow_column(each, target.invalid_text) for each in plan.columns]
        self._schema = pa.schema([_field(each) for each in self._columns])
        self._values: list[list[Value]] = [[] for _ in self._columns]
        self._ids = [each.id for each in plan.columns]
        self._losses: dict[str, Counter[str]] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._chunk_rows = self._chunk_bytes = 0
        self._waiting_rows = self._waiting_bytes = self._file_rows = 0
        self._file: pq.ParquetWriter | None = None
        self._path = Path()
        self._problem = ""
        self._done: list[Written] = []

    def add(self, winner: Winner) -> None:
        """Takes a row. Raises RowMismatch."""
        if self._problem:
            return
        _, version, commit_ts, row = winner
        try:
            values = self._rows.decode(version, row)
            for column, column_id in zip(self._values, self._ids, strict=True):
                column.append(values[column_id])
            self._chunk_rows += 1
            self._chunk_bytes += len(row)
            if self._chunk_rows >= CHUNK_ROWS or self._chunk_bytes >= CHUNK_BYTES:
                self.flush()
        except CorruptRow as error:
            raise RowMismatch(self._label(), commit_ts, str(error)) from error
        except Unconvertible as error:
            self._problem = str(error)

    def flush(self, *, is_last: bool = False) -> None:
        """Turns what has gathered into Arrow, and into a row group when there is enough."""
        arrays = [
            each.build(values, self._losses.setdefault(each.column.name, Counter()))
            for each, values in zip(self._columns, self._values, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for values in self._values:
            values.clear()
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += self._chunk_bytes
        self._chunk_rows = self._chunk_bytes = 0
        is_full = self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES
        if is_last or is_full:
            self._write_row_group()

    def close(self) -> list[Written]:
        """Finishes the last file. What was written, or the problem."""
        if not self._problem:
            try:
                if self._chunk_rows:
                    self.flush()
                if self._waiting:
                    self._write_row_group()
            except CorruptRow as error:
                raise RowMismatch(self._label(), 0, str(error)) from error
        self._finish_file()
        if self._problem:
            return [Written(self.table_id, problem=self._problem)]
        return self._done

    def _label(self) -> str:
        return f"{self._plan.database}.{self._plan.info.name}"

    def _write_row_group(self) -> None:
        if self._file is None:
            name = f"part-{self._part}-{len(self._done):03d}.zstd.parquet"
            self._path = Path(self._target.staging, directory_name(self._plan), name)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(
                self._path, self._schema, compression="zstd", coerce_timestamps="us"
            )
        self._file.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._file_rows += self._waiting_rows
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0
        if self._file_rows >= self._target.rows_per_file_max:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        losses = {name: +lost for name, lost in self._losses.items() if +lost}
        self._losses.clear()
        written = Written(
            self.table_id,
            f"{self._path.parent.name}/{self._path.name}",
            self._file_rows,
            self._path.stat().st_size,
            digest,
            json.dumps(losses),
        )
        self._done.append(written)
        self._file_rows = 0


def _field(column: ArrowColumn) -> pa.Field:
    """Parquet keeps TiDB's column id as the field id, which stays when a column is renamed."""
    return pa.field(
        column.column.name, column.type, metadata={"PARQUET:field_id": str(column.column.id)}
    )


# --- rows to values ------------------------------------------------------------------------


class _Rows:
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
