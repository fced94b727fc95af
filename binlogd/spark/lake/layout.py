"""How the rows of a table of a lake lie in its files: apart by the values of some columns, and
sorted by others.

    --partition-by 'shop.orders:region,day(created)'   a file has rows of one region and day
    --cluster-by shop.orders:customer                  and these in the order of the customers

A table that nothing is said of keeps the layout that it has, by TiDB's column ids. Where its rows
are to lie apart by others, or DDL changed such a column, the table is made anew (`preparing`). Rows
are found by their keys whatever the layout is, so an UPDATE may take a row to another partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.errors import ConfigError
from binlogd.spark.lake.place import Kind

TEXT_BYTES_MAX = 256
"""Of a text that rows lie apart by. Files tell no bounds of very long ones, by which Iceberg finds
out the partition of a file."""
UNITS = ("year", "month", "day", "hour")
"""Of a time, by which rows may lie apart in Iceberg."""
_ID = b"PARQUET:field_id"
_COLUMN = re.compile(rf"(?:({'|'.join(UNITS)})\((.+)\)|(.+))")


class LaidBy(msgspec.Struct, frozen=True):
    """A column, or the begin of the `unit` of a time; `id` is the field id of the column, 0 as long
    as no table is looked at."""

    column: str
    unit: str = ""
    id: int = 0

    def __str__(self) -> str:
        return f"{self.unit}({self.column})" if self.unit else self.column


class LakeLayout(msgspec.Struct, frozen=True):
    """What rows lie apart by, and what they are sorted by inside of a file."""

    partition_by: tuple[LaidBy, ...] = ()
    cluster_by: tuple[LaidBy, ...] = ()

    def __str__(self) -> str:
        ways = (("partitioned", self.partition_by), ("clustered", self.cluster_by))
        return " and ".join(f"{how} by {', '.join(map(str, by))}" for how, by in ways if by)

    def of(self, schema: pa.Schema, kind: Kind) -> LakeLayout:
        """For a table with these columns. Raises ValueError."""
        parts = tuple(_found(each, schema) for each in self.partition_by)
        for each in parts:
            if why := _unfit(each, schema.field(each.column).type, kind):
                raise ValueError(f"rows cannot lie apart by {each}: {why}")
        return LakeLayout(parts, tuple(_found(each, schema) for each in self.cluster_by))

    def left_in(self, schema: pa.Schema, kind: Kind) -> LakeLayout:
        """What is left of it when its table has these columns."""
        if self == LakeLayout():
            return self
        now = {field_id(each): each for each in schema}
        parts, sorts = (
            tuple(LaidBy(now[each.id].name, each.unit, each.id) for each in by if each.id in now)
            for by in (self.partition_by, self.cluster_by)
        )
        fit = (each for each in parts if not _unfit(each, now[each.id].type, kind))
        return LakeLayout(tuple(fit), sorts)

    def parts_as(self, other: LakeLayout, before: pa.Schema, after: pa.Schema) -> bool:
        """Whether files of a table with these columns before are such as the other layout has them
        after."""
        types, now = ({field_id(each): each.type for each in of} for of in (before, after))
        return self.partition_by == other.partition_by and all(
            types[each.id] == now[each.id] for each in self.partition_by
        )

    def apart(self, rows: pa.RecordBatch) -> Iterator[tuple[bytes, pa.RecordBatch]]:
        """Rows by where they lie. Raises ValueError for a text that is too long."""
        if not self.partition_by:
            yield b"", rows
            return
        values = [_values(each, rows) for each in self.partition_by]
        codes = np.zeros(rows.num_rows, np.int64)
        for each in values:
            encoded = each.dictionary_encode(null_encoding="encode")
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
            codes = np.unique(codes, return_inverse=True)[1]
        order, counts = np.argsort(codes, kind="stable"), np.bincount(codes)
        for places in np.split(order, np.cumsum(counts)[:-1]):
            where = repr([each[int(places[0])].as_py() for each in values])
            yield where.encode(), rows.take(pa.array(places))

    def in_order(self, rows: pa.Table) -> pa.Table:
        """The rows of a part of a file, as they lie in it."""
        ids = {field_id(each): each.name for each in rows.schema}
        keys = [(ids[each.id], "ascending") for each in self.cluster_by if each.id in ids]
        return rows.sort_by(keys) if keys else rows


Layouts = Mapping[str, LakeLayout]
"""By `database.table`; where it is said, by directory."""


def layouts_of(partition_by: Sequence[str], cluster_by: Sequence[str]) -> dict[str, LakeLayout]:
    """What `--partition-by` and `--cluster-by` say. Raises ConfigError."""
    parts, sorts = _by_table("--partition-by", partition_by), _by_table("--cluster-by", cluster_by)
    if units := [each for of in sorts.values() for each in of if each.unit]:
        raise ConfigError(f"--cluster-by {units[0]}: rows are sorted by columns as they are")
    return {
        name: LakeLayout(parts.get(name, ()), sorts.get(name, ()))
        for name in parts.keys() | sorts.keys()
    }


def _by_table(option: str, words: Sequence[str]) -> dict[str, tuple[LaidBy, ...]]:
    found: dict[str, tuple[LaidBy, ...]] = {}
    for each in words:
        table, _, columns = each.partition(":")
        laid = tuple(_laid(column.strip()) for column in columns.split(",") if column.strip())
        if not laid or "." not in table or table in found:
            twice = "twice the same table" if table in found else "DATABASE.TABLE:COLUMN,..."
            raise ConfigError(f"{option} {each}: expected DATABASE.TABLE:COLUMN,..., got {twice}")
        found[table] = laid
    return found


def _laid(text: str) -> LaidBy:
    match = _COLUMN.fullmatch(text)
    assert match is not None, "there is some text"
    unit, inner, plain = match.groups()
    return LaidBy(plain or inner, unit or "")


def _found(by: LaidBy, schema: pa.Schema) -> LaidBy:
    field = next((each for each in schema if each.name.lower() == by.column.lower()), None)
    if field is None:
        raise ValueError(f"has no column {by.column}, by which it is to be laid out")
    return LaidBy(field.name, by.unit, field_id(field))


def _unfit(by: LaidBy, type_: pa.DataType, kind: Kind) -> str:
    """Why rows cannot lie apart by it; "" where they can."""
    of = pa.types
    if by.unit and kind == "delta":
        return "Delta takes columns as they are. Take a DATE column, or --cluster-by"
    is_time = of.is_timestamp(type_)
    if by.unit:
        is_fit = is_time or (of.is_date(type_) and by.unit != "hour")
        return "" if is_fit else f"it is {type_}, and units are those of times, or of a DATE"
    if of.is_integer(type_) or of.is_string(type_) or of.is_date(type_):
        return ""
    hint = f", times by day({by.column}) in Iceberg" if is_time else ""
    return f"it is {type_}, and only integers, texts and DATE can be taken{hint}"


def _values(by: LaidBy, rows: pa.RecordBatch) -> pa.Array:
    values = rows.column([field_id(each) for each in rows.schema].index(by.id))
    if by.unit:
        return pc.floor_temporal(values, unit=by.unit)
    if pa.types.is_string(values.type):
        longest = pc.max(pc.binary_length(values)).as_py() or 0
        if longest > TEXT_BYTES_MAX:
            raise ValueError(
                f"a row has {longest} bytes in {by.column}, by which rows lie apart, and at most"
                f" {TEXT_BYTES_MAX} can be: leave the table out (--except), or begin another lake"
                " with --cluster-by in the place of --partition-by"
            )
    return values


def field_id(field: pa.Field) -> int:
    """TiDB's id of a column; 0 where it is not told."""
    return int((field.metadata or {}).get(_ID, b"0"))
