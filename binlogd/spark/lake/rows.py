"""Rows on their way into a lake: the columns of a table, values out of row bytes, rows that were
there with the columns of now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.built_on import ColumnSource, traced
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.adapt import adapter
from binlogd.snapshot.writing.table_arrays import Losses, TableArrays, by_table
from binlogd.snapshot.writing.writer import arrow_columns, schema_of
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.schema import SchemaTracker

KEY_COLUMN = "_binlogd_key"
KEY_ID = 2_000_000_000
"""The field id of the key; TiDB's column ids, which are those of the others, stay far below."""

_READABLE_AS = [  # a type, and behind it those that its values may be read as
    [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    [pa.float32(), pa.float64()],
    [pa.string_view(), pa.large_string(), pa.string()],  # delta-rs notes views in its files
    [pa.binary_view(), pa.large_binary(), pa.binary()],
]


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What some keys of a table hold at the end of a batch; `puts` ends with the key column."""

    puts: pa.Table
    gone: pa.Array


def lake_schema(plan: TablePlan, types: TypeOptions) -> pa.Schema:
    """The columns upstream, by name and id, and the key."""
    key = pa.field(KEY_COLUMN, pa.binary(), metadata={"PARQUET:field_id": str(KEY_ID)})
    return schema_of(arrow_columns(plan, types)).append(key)


def is_readable_as(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether Iceberg reads files with one type as another. Source: Iceberg Table Spec, Schema
    Evolution; decimals never keep their id upstream."""
    return was == now or any(
        was in types and now in types[types.index(was) :] for types in _READABLE_AS
    )


# --- rows that were there ----------------------------------------------------------------------

Adapt = Callable[[pa.Table], pa.RecordBatch]


def adaptation(before: TablePlan, after: TablePlan, types: TypeOptions) -> Adapt:
    """What makes rows of a table before into rows after: by column id, as the snapshot does it.
    Raises CorruptRow; what it gives, Unconvertible too."""
    schema = lake_schema(after, types)
    adapters = [
        adapter(column, source)
        for column, source in zip(arrow_columns(after, types), _sources(before, after), strict=True)
    ]
    losses = Losses()

    def adapt(rows: pa.Table) -> pa.RecordBatch:
        arrays = [each(rows, losses) for each in adapters]
        return pa.RecordBatch.from_arrays(
            [*arrays, rows[KEY_COLUMN].combine_chunks()], schema=schema
        )

    return adapt


def is_of_files(before: TablePlan, after: TablePlan) -> bool:
    """Whether rows of a table before hold what those after do: no value of a column that stays was
    converted, and one that came is NULL in them. Raises CorruptRow."""
    return all(
        not source.conversions if source is not None else missing_value(column) is None
        for column, source in zip(after.columns, _sources(before, after), strict=True)
    )


def _sources(before: TablePlan, after: TablePlan) -> list[ColumnSource | None]:
    """The column that each was, None for a new one."""
    held = {each.id: each.name for each in before.columns}
    found = [traced(each.id, held, after.rewritten) for each in after.columns]
    return [ColumnSource(held[was], tuple(steps)) if was in held else None for was, steps in found]


# --- rows that changed -------------------------------------------------------------------------


def decoded(
    plan: TablePlan, schemas: SchemaTracker, winners: Iterable[pa.RecordBatch], types: TypeOptions
) -> Iterator[KeyChanges]:
    """Changes of keys of a table, one of each, some at a time. Raises UnreadableRow,
    Unconvertible."""
    columns, schema = arrow_columns(plan, types), lake_schema(plan, types)
    rows = TableArrays(plan, schemas, columns)
    for some in by_table(winners):
        is_gone = pc.equal(some["op"], Op.DELETE)
        puts = some.filter(pc.invert(is_gone))
        made = pa.Table.from_arrays([*rows.arrays(puts, {}), puts["key"]], schema=schema)
        yield KeyChanges(made, some.filter(is_gone)["key"])
