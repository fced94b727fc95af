"""Rows of one table into Arrow, column by column instead of row by row.

Invariant. The arrays hold what `RowSpans.decode` and `ArrowColumn.build` give for each row. Why it
holds. Where a datum begins is found for all rows at once; then each column has a way for all of its
datums, or the reader of its type for each. A row in another form than TiDB's, one with a column of
a coming schema, and every row of a table that has stand-ins goes through `RowSpans.decode`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from binlogd.errors import CorruptRow
from binlogd.snapshot.formats.columns import ArrowColumn
from binlogd.snapshot.log.datums import Columns, RowSpans, columns, datum_ends
from binlogd.snapshot.log.rowkey import HandleKind
from binlogd.snapshot.log.vectors import Longs, Mask
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.datum_arrays import Way, way_of
from binlogd.tidb.columns import Reader, Value, reader_of

Losses = Counter[str]
_NOWHERE = -1


class Decoder(NamedTuple):
    """How single rows of a schema version are decoded, and what it means that one lacks columns;
    `aliases` are ids of columns of a coming schema."""

    decode: Callable[[bytes], dict[int, Value]]
    defaults: Callable[[Sequence[int]], Mapping[int, Value]]
    aliases: frozenset[int]


class _Column(NamedTuple):
    out: ArrowColumn
    way: Way | None
    reader: Reader


class RowArrays:
    """The columns of one table."""

    def __init__(
        self,
        plan: TablePlan,
        columns_of: Sequence[ArrowColumn],
        decoder: Callable[[int], Decoder],
    ) -> None:
        self._handle = plan.handle
        self._columns = [_Column(each, way_of(each), reader_of(each.column)) for each in columns_of]
        self._decoder = decoder

    def arrays(self, rows: pa.Array, versions: Longs, losses: Sequence[Losses]) -> list[pa.Array]:
        """The columns of rows that are in the form of inserted rows. Counts what is lost.

        Raises CorruptRow.
        """
        many = RowSpans.of(rows)
        at, handles = self._behind_handle(many)
        found = columns(many, at)
        is_odd = found.is_odd | (at < 0) | (at >= many.ends)  # one without columns says so
        numbers = dict(zip(np.unique(versions).tolist(), range(len(versions)), strict=False))
        decoders = {version: self._decoder(version) for version in numbers}
        for each in {each for decoder in decoders.values() for each in decoder.aliases}:
            is_odd |= (found.ids == each).any(axis=0)
        starts = [self._starts(found, handles, each.out.column.id) for each in self._columns]
        for _, is_twice in starts:
            is_odd |= is_twice
        odd = {
            number: decoders[versions[number].item()].decode(rows[number].as_py())
            for number in np.flatnonzero(is_odd).tolist()
        }
        of = _Of(many, versions, decoders, odd, is_odd)
        return [
            _array(column, start, of, lost)
            for column, (start, _), lost in zip(self._columns, starts, losses, strict=True)
        ]

    def _behind_handle(self, many: RowSpans) -> tuple[Longs, dict[int, Longs]]:
        """Where the columns of each row begin, and where whole key columns are in its handle."""
        at, handles = many.begins, {}
        for column_id in self._handle.column_ids:
            handles[column_id] = at
            at = datum_ends(many, at, many.ends)
        return at, handles

    def _starts(
        self, found: Columns, handles: Mapping[int, Longs], column_id: int
    ) -> tuple[Longs, Mask]:
        """Where the datum of a column is in each row, -1 for nowhere; and which have it twice."""
        is_here = (found.ids == column_id) & (found.begins >= 0)
        start = np.where(is_here, found.begins, _NOWHERE).max(axis=0, initial=_NOWHERE)
        if column_id in handles and self._handle.kind is not HandleKind.HIDDEN:
            start = np.where(start < 0, handles[column_id], start)
        return start, is_here.sum(axis=0) > 1


class _Of(NamedTuple):
    """What a chunk of rows is made of."""

    many: RowSpans
    versions: Longs
    decoders: Mapping[int, Decoder]
    odd: Mapping[int, Mapping[int, Value]]
    is_odd: Mask


def _array(column: _Column, start: Longs, of: _Of, losses: Losses) -> pa.Array:
    """One column: of rows that have it, of those that lack it, and of odd ones."""
    is_there = (start >= 0) & ~of.is_odd
    parts = [_of_datums(column, of.many, start[is_there], losses)]
    if is_there.all():
        return parts[0]
    places = [np.flatnonzero(is_there)]
    column_id = column.out.column.id
    is_lacking = ~is_there & ~of.is_odd
    for version, decoder in of.decoders.items():
        lacking = np.flatnonzero(is_lacking & (of.versions == version))
        if len(lacking):
            value = decoder.defaults([column_id])[column_id]
            parts.append(column.out.build([value] * len(lacking), losses))
            places.append(lacking)
    if of.odd:
        parts.append(column.out.build([each[column_id] for each in of.odd.values()], losses))
        places.append(np.fromiter(of.odd, np.int64, len(of.odd)))
    order = np.empty(len(start), np.int64)
    order[np.concatenate(places)] = np.arange(len(start))
    return pa.concat_arrays(parts).take(pa.array(order))


def _of_datums(column: _Column, many: RowSpans, at: Longs, losses: Losses) -> pa.Array:
    array = column.way(many, at) if column.way is not None else None
    if array is not None:
        return array
    read, raw = column.reader, many.raw
    try:
        values = [read(raw, each)[0] for each in at.tolist()]
    except IndexError as error:
        raise CorruptRow("a row is cut") from error
    return column.out.build(values, losses)
