"""Rows on their way into a lake: the columns of a table, values out of row bytes, rows that were
there with the columns of now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.formats.columns import ArrowColumn
from binlogd.snapshot.log.datums import arrow_stream
from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.built_on import ColumnSource, traced
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.adapt import adapter
from binlogd.snapshot.writing.rows import RowsAsOf
from binlogd.snapshot.writing.writer import arrow_columns, schema_of
from binlogd.spark.lake.manifest import PipelineStopped, label
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.rewrite import Unconvertible
from binlogd.tidb.row import Value
from binlogd.tidb.schema import SchemaTracker

KEY_COLUMN = "_binlogd_key"
KEY_ID = 2_000_000_000
"""The field id of the key; TiDB's column ids, which are those of the others, stay far below."""

_WIDTHS = [[pa.int8(), pa.int16(), pa.int32(), pa.int64()], [pa.float32(), pa.float64()]]

PIECE_BYTES = 64 << 20
PIECE_ROWS = 250_000
"""Of changes that are in memory together: whichever comes first."""
PACKET_BYTES = 8 << 20
PACKET_ROWS = 32_768
"""Of changes that are decoded together, and travel so: whichever comes first."""
PACKETS = pa.schema([("table_id", pa.int64()), ("puts", pa.binary()), ("gone", pa.binary())])
"""`KeyChanges` of a table, each of its parts as an Arrow stream."""


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What some keys of a table hold at the end of a batch; `puts` ends with the key column."""

    puts: pa.Table
    gone: pa.Array

    @property
    def keys(self) -> pa.ChunkedArray:
        """All of them."""
        return pa.chunked_array([*self.puts[KEY_COLUMN].chunks, self.gone], pa.binary())


def lake_schema(plan: TablePlan, types: TypeOptions) -> pa.Schema:
    """The columns upstream, by name and id, and the key."""
    key = pa.field(KEY_COLUMN, pa.binary(), metadata={"PARQUET:field_id": str(KEY_ID)})
    return schema_of(arrow_columns(plan, types)).append(key)


def is_readable_as(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether Iceberg reads files with one type as another. Source: Iceberg Table Spec, Schema
    Evolution; decimals never keep their id upstream."""
    return was == now or any(
        was in widths and now in widths[widths.index(was) :] for widths in _WIDTHS
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
    losses = dict[str, Counter[str]]()

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

_Winner = tuple[int, int, int, bytes, bytes, int]
"""table_id, op, schema_version, key, row, commit_ts."""
_NAMES = ("table_id", "op", "schema_version", "key", "row", "commit_ts")


def winners_by_table(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[int, Iterator[list[_Winner]]]]:
    """Winners that come sorted by table: each table with its winners, some at a time."""
    return groupby(_pieces(batches), key=lambda piece: piece[0][0])


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[list[_Winner]]:
    """Never of two tables."""
    held: list[_Winner] = []
    size = 0
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _NAMES]
        winner: _Winner
        for winner in zip(*columns, strict=True):
            is_full = len(held) >= PACKET_ROWS or size >= PACKET_BYTES
            if held and (is_full or held[0][0] != winner[0]):
                yield held
                held, size = [], 0
            held.append(winner)
            size += len(winner[3]) + len(winner[4])
    if held:
        yield held


def decoded(
    plan: TablePlan,
    schemas: SchemaTracker,
    pieces: Iterable[Sequence[_Winner]],
    types: TypeOptions,
) -> Iterator[KeyChanges]:
    """Raises UnreadableRow, PipelineStopped."""
    rows, columns, schema = (
        RowsAsOf(plan, schemas),
        arrow_columns(plan, types),
        lake_schema(plan, types),
    )
    for winners in pieces:
        puts = [each for each in winners if each[1] != Op.DELETE]
        values = _values(plan, rows, columns, puts)
        losses: Counter[str] = Counter()
        try:
            arrays = [column.build(of, losses) for column, of in zip(columns, values, strict=True)]
        except CorruptRow as error:
            raise UnreadableRow(label(plan), puts[-1][5], str(error)) from error
        keys = pa.array([each[3] for each in puts], pa.binary())
        gone = pa.array([each[3] for each in winners if each[1] == Op.DELETE], pa.binary())
        yield KeyChanges(pa.Table.from_arrays([*arrays, keys], schema=schema), gone)


def _values(
    plan: TablePlan, rows: RowsAsOf, columns: Sequence[ArrowColumn], puts: Sequence[_Winner]
) -> list[list[Value]]:
    values: list[list[Value]] = [[] for _ in columns]
    for _, _, version, _, row, commit_ts in puts:
        try:
            found = rows.decode(version, row)
        except CorruptRow as error:
            raise UnreadableRow(label(plan), commit_ts, str(error)) from error
        except Unconvertible as error:
            raise PipelineStopped(f"{label(plan)}: {error}") from error
        for column, into in zip(columns, values, strict=True):
            into.append(found.get(column.column.id))
    return values


# --- changes that travel -----------------------------------------------------------------------


def packed(table_id: int, changes: KeyChanges) -> pa.RecordBatch:
    """One of `PACKETS`."""
    gone = pa.RecordBatch.from_arrays([changes.gone], ["gone"])
    puts = pa.RecordBatch.from_struct_array(changes.puts.to_struct_array().combine_chunks())
    parts = [[table_id], [arrow_stream(puts)], [arrow_stream(gone)]]
    return pa.RecordBatch.from_arrays(list(map(pa.array, parts, PACKETS.types)), schema=PACKETS)


def changes_by_table(
    packets: Iterable[pa.RecordBatch],
) -> Iterator[tuple[int, Iterator[KeyChanges]]]:
    """Packets that come sorted by table: each table with its changes, as many at a time as may be
    in memory together."""
    rows = (row for each in packets for row in zip(*map(pa.Array.to_pylist, each), strict=True))
    for table_id, mine in groupby(rows, key=itemgetter(0)):
        yield table_id, _together(mine)


def _together(packets: Iterable[tuple[int, bytes, bytes]]) -> Iterator[KeyChanges]:
    puts, gone, rows, size = list[pa.Table](), list[pa.Array](), 0, 0
    for _, put, went in packets:
        puts.append(pa.ipc.open_stream(put).read_all())
        gone.append(pa.ipc.open_stream(went).read_all()["gone"].combine_chunks())
        rows, size = rows + len(puts[-1]) + len(gone[-1]), size + len(put) + len(went)
        if rows >= PIECE_ROWS or size >= PIECE_BYTES:
            yield KeyChanges(pa.concat_tables(puts), pa.concat_arrays(gone))
            puts, gone, rows, size = [], [], 0, 0
    if puts:
        yield KeyChanges(pa.concat_tables(puts), pa.concat_arrays(gone))
