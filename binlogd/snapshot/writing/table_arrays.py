"""Rows of the log as the columns of their table, for whoever writes tables: exports and lakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.errors import CorruptRow, UnknownTable, UnreadableRow
from binlogd.snapshot.formats.columns import ArrowColumn
from binlogd.snapshot.log.datums import is_first, longs
from binlogd.snapshot.log.rowkey import columns_of
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.row_arrays import RowArrays
from binlogd.tidb.model import Column
from binlogd.tidb.rewrite import Convert, Unconvertible, converter
from binlogd.tidb.row import RowDecoder, Value
from binlogd.tidb.schema import SchemaTracker

CHUNK_ROWS = 16_384
"""Rows that are turned into Arrow at a time."""
CHUNK_BYTES = 16 << 20
Losses = dict[str, Counter[str]]
"""What the columns of a table lost, by their names: how often, by what it was."""


def of_tables(
    batches: Iterable[pa.RecordBatch], tables: Mapping[int, TablePlan]
) -> Iterator[tuple[TablePlan, Iterator[pa.RecordBatch]]]:
    """Each table with its rows, which come by table, as `by_table` gives them. Raises
    UnknownTable."""

    def plan(rows: pa.RecordBatch) -> TablePlan:
        names = ("table_id", "commit_ts", "schema_version")
        table_id, *moment = (rows[name][0].as_py() for name in names)
        if table_id not in tables:
            raise UnknownTable(table_id, *moment)
        return tables[table_id]

    return groupby(by_table(batches), plan)


def by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one table each, so many that they may be decoded together."""
    for batch in batches:
        begins = np.flatnonzero(is_first(longs(batch, "table_id"))).tolist()
        for begin, end in pairwise([*begins, len(batch)]):
            rows = batch.slice(begin, end - begin)
            for at, size in _chunks(rows):
                yield rows.slice(at, size)


def _chunks(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Where chunks of rows begin, and how many rows they have."""
    sizes = np.zeros(len(rows), np.int64)
    for name in {"row", "before"}.intersection(rows.schema.names):
        sizes += pc.binary_length(rows[name]).to_numpy(zero_copy_only=False)
    begin = 0
    while begin < len(rows):
        total = np.cumsum(sizes[begin : begin + CHUNK_ROWS])
        count = max(1, int(np.searchsorted(total, CHUNK_BYTES, "right")))
        yield begin, count
        begin += count


class TableArrays:
    """Rows of one table as of the moment, whatever schema version wrote them. A column that a
    MODIFY COLUMN replaced has another id in older rows; its value there is converted."""

    def __init__(
        self, plan: TablePlan, schemas: SchemaTracker, columns: Sequence[ArrowColumn]
    ) -> None:
        self._plan, self._schemas, self._columns = plan, schemas, columns
        self._decoders: dict[int, RowDecoder] = {}
        self._arrays = RowArrays(plan, columns, self._decoder)
        self._stand_ins = [
            (column.id, stand_ins)
            for column in plan.columns
            if (stand_ins := _stand_ins(column, plan))
        ]

    def arrays(self, puts: pa.RecordBatch, losses: Losses) -> list[pa.Array]:
        """The columns of rows, by their `row`, `schema_version` and `commit_ts`. Counts what is
        lost. Raises UnreadableRow, Unconvertible."""
        lost = [losses.setdefault(each.column.name, Counter()) for each in self._columns]
        try:
            if self._stand_ins:  # each row needs a look of its own
                decoded, columns = self._each_decoded(puts), zip(self._columns, lost, strict=True)
                return [
                    each.build([row[each.column.id] for row in decoded], of) for each, of in columns
                ]
            return self._arrays.arrays(puts.column("row"), longs(puts, "schema_version"), lost)
        except CorruptRow as error:
            self._each_decoded(puts)  # tells which one it is
            raise UnreadableRow(self._plan.label, 0, str(error)) from error

    def befores(self, changes: pa.RecordBatch) -> tuple[list[pa.Array], pa.Array]:
        """The columns of what keys held before they changed, by `before`, `before_version` and
        `commit_ts`, NULL where they held nothing; and whether each held something. Raises
        UnreadableRow, Unconvertible."""
        was_there = pc.not_equal(changes["before"], b"")
        held = changes.filter(was_there)
        columns = [held[name] for name in ("before", "before_version", "commit_ts")]
        rows = pa.RecordBatch.from_arrays(columns, ["row", "schema_version", "commit_ts"])
        is_there = was_there.to_numpy(zero_copy_only=False)
        places = pa.array(np.cumsum(is_there) - 1, mask=~is_there)
        return [each.take(places) for each in self.arrays(rows, {})], was_there

    def _each_decoded(self, puts: pa.RecordBatch) -> list[dict[int, Value]]:
        names = ("schema_version", "row", "commit_ts")
        columns = (puts.column(name).to_pylist() for name in names)
        return [self._decoded(*each) for each in zip(*columns, strict=True)]

    def _decoded(self, version: int, row: bytes, commit_ts: int) -> dict[int, Value]:
        try:
            values = self._decoder(version).insert(row)
            present = columns_of(self._plan.handle, row) if self._stand_ins else set()
        except CorruptRow as error:
            raise UnreadableRow(self._plan.label, commit_ts, str(error)) from error
        for column_id, stand_ins in self._stand_ins:
            if column_id not in present:
                _stand_in(values, column_id, stand_ins, present, version)
        return values

    def _decoder(self, version: int) -> RowDecoder:
        """Who decodes rows of a schema version, but for stand-ins."""
        decoder = self._decoders.get(version)
        if decoder is None:
            table = self._schemas.table_at(self._plan.info.id, version)
            assert table is not None, "the catalog was made by the same tracker"
            decoder = self._decoders[version] = RowDecoder(replace(table, info=self._plan.info))
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
