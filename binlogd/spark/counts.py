"""Row changes in numbers: what a batch read of them, and what it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.snapshot.log.datums import longs
from binlogd.snapshot.log.rowkey import Op


class RowCounts(msgspec.Struct, frozen=True):
    """An update that gives a row another key counts as the delete of one and the update of another
    where it is written by keys. `bytes` are those of keys and rows, of binlogs where these are
    applied whole. `put` and `gone` are what was written: keys of a lake that hold a row now and
    that hold none any more; into a database, changes and 0."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    bytes: int = 0
    put: int = 0
    gone: int = 0

    def plus(self, other: RowCounts) -> RowCounts:
        """Both together."""
        return RowCounts(*map(sum, zip(*map(msgspec.structs.astuple, (self, other)), strict=True)))

    @property
    def changes(self) -> int:
        """How many were read."""
        return self.inserts + self.updates + self.deletes


READ = pa.schema(
    [(name, pa.int64()) for name in ("table_id", "inserts", "updates", "deletes", "bytes")]
)
"""By table, what was read of it."""
_KINDS = Op.PUT.value, Op.UPDATE.value, Op.DELETE.value


def counted(changes: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`READ` of some `EVENTS`."""
    found = by_table(row for each in changes for row in _rows(each))
    rows = [(table_id, *msgspec.structs.astuple(of)) for table_id, of in found.items()]
    columns = [[row[at] for row in rows] for at in range(len(READ))]
    yield pa.RecordBatch.from_arrays(list(map(pa.array, columns, READ.types)), schema=READ)


def _rows(changes: pa.RecordBatch) -> Iterator[tuple[int, ...]]:
    tables, table = np.unique(longs(changes, "table_id"), return_inverse=True)
    op, many = changes["op"].to_numpy(), len(tables)
    size = pc.add(pc.binary_length(changes["key"]), pc.binary_length(changes["row"]))
    columns = [np.bincount(table, op == kind, many) for kind in _KINDS]
    columns.append(np.bincount(table, size.to_numpy(), many))
    return zip(tables.tolist(), *(each.astype(int).tolist() for each in columns), strict=True)


def by_table(read: Iterable[tuple[int, ...]]) -> dict[int, RowCounts]:
    """Rows of `READ`, those of a table together."""
    found: dict[int, RowCounts] = {}
    for table_id, *of in read:
        found[table_id] = found.get(table_id, RowCounts()).plus(RowCounts(*of))
    return found


def total(counts: Iterable[RowCounts]) -> RowCounts:
    """All together."""
    return reduce(RowCounts.plus, counts, RowCounts())
