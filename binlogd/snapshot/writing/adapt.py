"""Rows of a base become rows of the table as it is now: chunk by chunk, with their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from binlogd.errors import ConfigError, Corrupt, CorruptRow
from binlogd.snapshot.bases.dump import DumpFile
from binlogd.snapshot.bases.dump_rows import DumpRows, Raw, rows_of
from binlogd.snapshot.bases.read_back import values_of
from binlogd.snapshot.formats.columns import ArrowColumn
from binlogd.snapshot.log.rowkey import HandleKind, key_of_values
from binlogd.snapshot.spec import FileEntry
from binlogd.snapshot.tables.built_on import BaseReuse, ColumnSource, Dumped
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.changed import keys_of, keys_of_changes, type_of_keys
from binlogd.snapshot.writing.files import KEY_COLUMN
from binlogd.snapshot.writing.table_arrays import Losses
from binlogd.snapshot.writing.writer import schema_of
from binlogd.tidb.columns import single
from binlogd.tidb.defaults import in_form_of, missing_value
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.model import Column
from binlogd.tidb.rewrite import Convert, converter
from binlogd.tidb.row import Value

DUMP_ROWS = 32_768
"""Rows of a dump that are turned into Arrow at a time."""


class Chunk(NamedTuple):
    """Some rows of a base as rows of the table now, and their keys where they tell them."""

    rows: pa.RecordBatch
    keys: pa.Array | None
    size_bytes: int


def _base(plan: TablePlan) -> BaseReuse:
    assert plan.carry is not None, "the table has a base"
    return plan.carry


# --- a snapshot's files ------------------------------------------------------------------------


def parquet_chunks(
    plan: TablePlan,
    columns: Sequence[ArrowColumn],
    file: FileEntry,
    losses: Losses,
    *,
    has_keys: bool,
    kept: Sequence[pa.Array] | None = None,
) -> Iterator[Chunk]:
    """The rows of a file of a snapshot, by row group: those that are `kept`, of each of them."""
    base, schema = _base(plan), schema_of(columns)
    pairs = list(zip(columns, base.sources, strict=True))
    adapts = [adapter(column, source) for column, source in pairs]
    names = [source.name for _, source in pairs if source]
    held = pq.ParquetFile(Path(base.directory, file.name))
    groups = keys_in(plan, file) if has_keys else None
    for group in range(held.num_row_groups):
        table = held.read_row_group(group, names)
        keys = next(groups) if groups is not None else None
        if kept is not None:
            table = table.filter(kept[group])
            keys = keys.filter(kept[group]) if keys is not None else None
        arrays = [adapt(table, losses) for adapt in adapts]
        yield Chunk(pa.RecordBatch.from_arrays(arrays, schema=schema), keys, table.nbytes)


def keys_in(plan: TablePlan, file: FileEntry) -> Iterator[pa.Array]:
    """The keys of a file of a snapshot, for each row group of its rows.

    Raises Corrupt where there are more or fewer keys than rows.
    """
    base = _base(plan)
    directory = Path(base.directory)
    if file.keys is not None:
        metadata = pq.read_metadata(directory / file.name)
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        keys = _groups(directory / file.keys.name, KEY_COLUMN)
        yield from _regrouped(keys, sizes, f"{directory}: {file.keys.name}")
        return
    handle = plan.handle.column_ids[0]
    pairs = zip(plan.columns, base.sources, strict=True)
    name = next(source.name for column, source in pairs if column.id == handle and source)
    yield from map(keys_of, _groups(directory / file.name, name))


def _groups(path: Path, column: str) -> Iterator[pa.Array]:
    held = pq.ParquetFile(path)
    for group in range(held.num_row_groups):
        yield held.read_row_group(group, [column]).column(0).combine_chunks()


def _regrouped(keys: Iterator[pa.Array], sizes: Sequence[int], name: str) -> Iterator[pa.Array]:
    """So many keys at a time: files of handles had row groups of their own once."""
    waiting = next(keys, None)
    for size in sizes:
        while waiting is not None and len(waiting) < size:
            more = next(keys, None)
            waiting = pa.concat_arrays([waiting, more]) if more is not None else None
        if waiting is None:
            raise Corrupt(f"{name}: fewer handles than rows; export with --base none")
        yield waiting.slice(0, size)
        waiting = waiting.slice(size) if len(waiting) > size else next(keys, None)
    if waiting is not None and len(waiting):
        raise Corrupt(f"{name}: more handles than rows; export with --base none")


_Adapt = Callable[[pa.Table, Losses], pa.Array]


def adapter(column: ArrowColumn, source: ColumnSource | None) -> _Adapt:
    """What makes a column out of the rows of a base."""
    if source is None:
        value = missing_value(column.column)
        return lambda table, losses: _repeated(column, value, table.num_rows, losses)
    if not source.conversions:
        return lambda table, _: _cast(table.column(source.name).combine_chunks(), column.type)
    convert, old = _conversion(source), source.conversions[0].old

    def converted(table: pa.Table, losses: Losses) -> pa.Array:
        values = [convert(value) for value in values_of(old, table.column(source.name))]
        return column.build(values, _lost(losses, column))

    return converted


def _conversion(source: ColumnSource) -> Convert:
    steps = [converter(step.old, step.new) for step in source.conversions]

    def convert(value: Value) -> Value:
        for step in steps:
            value = step(value)
        return value

    return convert


def _lost(losses: Losses, column: ArrowColumn) -> Counter[str]:
    return losses.setdefault(column.column.name, Counter())


def _repeated(column: ArrowColumn, value: Value, rows: int, losses: Losses) -> pa.Array:
    one: Counter[str] = Counter()
    array = column.build([value], one)
    _lost(losses, column).update({reason: count * rows for reason, count in one.items()})
    return array.take(pa.array(np.zeros(rows, np.int64)))


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int64())
    return array.cast(type_)


# --- a dump's files ------------------------------------------------------------------------------


def dump_chunks(
    plan: TablePlan, columns: Sequence[ArrowColumn], file: DumpFile, losses: Losses
) -> Iterator[Chunk]:
    """The rows of a file of a dump. Raises CorruptRow, Corrupt, ConfigError, OSError."""
    carry, schema = _base(plan), schema_of(columns)
    assert carry.dumped is not None, "the base is a dump"
    zone = time_zone(carry.dumped.zone) if carry.dumped.zone else None
    for rows in rows_of(carry.directory, file, DUMP_ROWS):
        places = _places(carry.dumped, rows, file)
        readers = {
            column.name: (places[column.name], reader_of(column, zone))
            for column in carry.dumped.columns
        }
        arrays = [
            _dumped_column(column, source, rows, readers, losses)
            for column, source in zip(columns, carry.sources, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield Chunk(batch, _dumped_keys(plan, carry.dumped, rows, readers), batch.nbytes)


def _places(dumped: Dumped, rows: DumpRows, file: DumpFile) -> dict[str, int]:
    """Where each column stands in a row."""
    names = [column.name for column in dumped.columns]
    given = list(rows.names) if rows.names is not None else names
    places = {name.lower(): place for place, name in enumerate(given)}
    missing = [name for name in names if name.lower() not in places]
    if missing or len(given) != len(rows.rows[0]):
        raise CorruptRow(
            f"{file.name} has rows of {len(rows.rows[0])} values for the columns"
            f" {', '.join(given)}, and the table had {', '.join(names)} then"
        )
    return {name: places[name.lower()] for name in names}


Read = Callable[[Raw], Value]
_Readers = dict[str, tuple[int, Read]]


def _dumped_column(
    column: ArrowColumn,
    source: ColumnSource | None,
    rows: DumpRows,
    readers: _Readers,
    losses: Losses,
) -> pa.Array:
    if source is None:
        return _repeated(column, missing_value(column.column), len(rows.rows), losses)
    values = _read(readers[source.name], rows.rows)
    if source.conversions:
        convert = _conversion(source)
        values = [convert(value) for value in values]
    return column.build(values, _lost(losses, column))


def _read(reader: tuple[int, Read], rows: list[list[Raw]]) -> list[Value]:
    place, read = reader
    return [read(row[place]) for row in rows]


def _dumped_keys(
    plan: TablePlan, dumped: Dumped, rows: DumpRows, readers: _Readers
) -> pa.Array | None:
    if plan.handle.kind in (HandleKind.HIDDEN, HandleKind.PLACED):
        return None
    by_id: dict[int, Column] = {column.id: column for column in dumped.columns}
    columns = [by_id[column_id] for column_id in plan.handle.column_ids]
    values = [_read(readers[column.name], rows.rows) for column in columns]
    kind = plan.handle.kind
    keys = [key_of_values(kind, columns, each) for each in zip(*values, strict=True)]
    return keys_of_changes(pa.array(keys, pa.binary()), type_of_keys(plan))


# --- a dump's values, as if they came from the log ---------------------------------------------


def time_zone(name: str) -> tzinfo:
    """The zone that a dump was taken in: a name, or an offset like +08:00. Raises ConfigError."""
    try:
        if name[:1] in ("+", "-"):
            found = datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo
            assert found is not None, "an offset was given"
            return found
        return ZoneInfo(name)
    except (ValueError, ZoneInfoNotFoundError, OSError) as error:
        raise ConfigError(
            f"--base-time-zone {name}: write UTC, +08:00, or a name like Europe/Berlin: {error}"
        ) from None


def reader_of(column: Column, zone: tzinfo | None) -> Read:
    """What reads the values of a column, and raises CorruptRow; a TIMESTAMP needs the zone."""
    plain = _plain_reader(column, zone)

    def read(raw: Raw) -> Value:
        if raw is None:
            return None
        try:
            return plain(raw)
        except ValueError as error:
            raise CorruptRow(f"column {column.name} of the dump: {error}") from error

    return read


def _plain_reader(column: Column, zone: tzinfo | None) -> Callable[[bytes], Value]:
    tp = column.field_type.tp
    if tp == Tp.TIMESTAMP:
        return lambda raw: _instant(column, raw, zone)
    return _READERS.get(tp) or (lambda raw: in_form_of(column, raw.decode()))


_READERS: dict[int, Callable[[bytes], Value]] = {
    **dict.fromkeys(STRING_TYPES, bytes),
    **dict.fromkeys((Tp.TINY, Tp.SHORT, Tp.INT24, Tp.LONG, Tp.LONGLONG, Tp.YEAR), int),
    Tp.BIT: lambda raw: int.from_bytes(raw, "big"),
    Tp.FLOAT: lambda raw: single(float(raw)),
    Tp.DOUBLE: float,
}


def _instant(column: Column, raw: bytes, zone: tzinfo | None) -> Value:
    assert zone is not None, "the base is refused where nobody knows it"
    text = raw.decode()
    if zone is UTC or text.startswith("0000-00-00"):
        return in_form_of(column, text)
    wall = datetime.fromisoformat(text).replace(tzinfo=zone)
    if wall.utcoffset() != wall.replace(fold=1).utcoffset():
        raise ValueError(
            f"{text} is no moment, or two, in {zone}, whose clocks were put forward or back then;"
            " take the dump with --params time_zone=+00:00"
        )
    moment = wall.astimezone(UTC)
    return in_form_of(column, f"{moment:%Y-%m-%d %H:%M:%S.%f}")
