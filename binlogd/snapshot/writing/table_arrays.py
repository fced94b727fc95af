"""Rows of the log as the columns of their table, for whoever writes tables: exports and lakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.formats.columns import ArrowColumn
from binlogd.snapshot.log.datums import is_first, longs
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.row_arrays import RowArrays
from binlogd.snapshot.writing.rows import RowsAsOf
from binlogd.tidb.row import Value
from binlogd.tidb.schema import SchemaTracker

CHUNK_ROWS = 16_384
"""Rows that are turned into Arrow at a time."""
CHUNK_BYTES = 16 << 20


def by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one table each, so many that they may be decoded together."""
    for batch in batches:
        begins = np.flatnonzero(is_first(longs(batch, "table_id"))).tolist()
        for begin, end in pairwise([*begins, len(batch)]):
            rows = batch.column("row").slice(begin, end - begin)
            for at, size in _chunks(rows):
                yield batch.slice(begin + at, size)


def _chunks(rows: pa.Array) -> Iterator[tuple[int, int]]:
    """Where chunks of rows begin, and how many rows they have."""
    sizes = pc.binary_length(rows).to_numpy(zero_copy_only=False)
    begin = 0
    while begin < len(rows):
        total = np.cumsum(sizes[begin : begin + CHUNK_ROWS], dtype=np.int64)
        count = max(1, int(np.searchsorted(total, CHUNK_BYTES, "right")))
        yield begin, count
        begin += count


class TableArrays:
    """Rows of one table as of the moment, whatever schema version wrote them."""

    def __init__(
        self, plan: TablePlan, schemas: SchemaTracker, columns: Sequence[ArrowColumn]
    ) -> None:
        self._plan, self._columns = plan, columns
        self._rows = RowsAsOf(plan, schemas)
        self._arrays = RowArrays(plan, columns, self._rows.decoder)

    def arrays(self, puts: pa.RecordBatch, losses: Sequence[Counter[str]]) -> list[pa.Array]:
        """The columns of rows, by their `row`, `schema_version` and `commit_ts`. Counts what is
        lost. Raises UnreadableRow, Unconvertible."""
        try:
            if self._rows.has_stand_ins:
                return self._one_by_one(puts, losses)
            return self._arrays.arrays(puts.column("row"), longs(puts, "schema_version"), losses)
        except CorruptRow as error:
            self._each_decoded(puts)  # tells which one it is
            raise UnreadableRow(self._plan.label, 0, str(error)) from error

    def decoded(self, version: int, row: bytes, commit_ts: int) -> dict[int, Value]:
        """One of them, by column id. Raises UnreadableRow, Unconvertible."""
        try:
            return self._rows.decode(version, row)
        except CorruptRow as error:
            raise UnreadableRow(self._plan.label, commit_ts, str(error)) from error

    def _one_by_one(self, puts: pa.RecordBatch, losses: Sequence[Counter[str]]) -> list[pa.Array]:
        decoded = self._each_decoded(puts)
        return [
            each.build([row[each.column.id] for row in decoded], lost)
            for each, lost in zip(self._columns, losses, strict=True)
        ]

    def _each_decoded(self, puts: pa.RecordBatch) -> list[dict[int, Value]]:
        names = ("schema_version", "row", "commit_ts")
        columns = (puts.column(name).to_pylist() for name in names)
        return [self.decoded(*each) for each in zip(*columns, strict=True)]
