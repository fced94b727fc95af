"""The last change of each key of one table, over a stretch of the log.

Keys are held as bytes, rows as they stand in the log; only what is left at the end is decoded. Of
several parts each walks the whole stretch and holds its share of the keys. A key is what a reader
sees of it, the primary key that the table has as of the read; the row handle where it has none.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

import pyarrow as pa

from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.log.rowkey import (
    SEQ_STEP,
    Handle,
    HandleKind,
    PrimaryKey,
    deleted,
    handle_of,
    inserted,
    primary_key,
    updated,
)
from binlogd.spark.request import ReadRequest
from binlogd.spark.rows import BATCH_ROWS, DELETE, Change, Typed, TypedTable, key_ids, numbered
from binlogd.spark.walk import SchemaChange, Step, WalkedRows
from binlogd.tidb.model import Table, TableAt
from binlogd.tidb.per_table import PerTable
from binlogd.tidb.row import RowDecoder
from binlogd.wire import in_order
from binlogd.wire.in_order import rows_of

UPSERT = "upsert"


class _Last(NamedTuple):
    """The last that was heard of a key."""

    commit_ts: int
    seq: int
    start_ts: int
    schema_version: int
    table: TableAt
    kind: int
    row: bytes
    is_gone: bool


class Net:
    """Part `part` of `parts`; made for one stretch."""

    def __init__(
        self, request: ReadRequest, wanted: TypedTable, typed: Typed, part: int, parts: int
    ) -> None:
        self._request, self._typed = request, typed
        self._primary = primary_of(wanted.info, wanted.version)
        self._part, self._parts = part, parts
        self._last: dict[bytes, _Last] = {}
        self._handles = PerTable(lambda table: handle_of(table.info))
        self._decoders = PerTable(RowDecoder)

    def batches(self, steps: Iterable[Step]) -> Iterator[pa.RecordBatch]:
        """Markers of TRUNCATE and DROP first, then one row for each key that changed since."""
        marker: pa.RecordBatch | None = None
        for step, seq in numbered(steps):
            if isinstance(step, SchemaChange):
                op = self._typed.mark(step)
                if op:
                    marker = self._typed.marker(step, op)
                    self._last.clear()
            elif self._request.wants(step.table.database, step.table.info.name):
                self._take(step, seq)
        if marker is not None and self._part == 0:
            yield marker
        yield from self._decoded()

    def _take(self, rows: WalkedRows, seq: int) -> None:
        handle = self._handles.of(rows.table)
        keys = _Keys(handle, self._primary if handle.kind is HandleKind.HIDDEN else None)
        at = seq * SEQ_STEP
        try:
            for kind, row in rows_of(rows.mutation):
                if kind == in_order.INSERT:
                    self._note(keys.inserted(row), rows, at, kind, row)
                elif kind == in_order.UPDATE:
                    gone, put = keys.updated(row)
                    if gone is not None:
                        self._note(gone, rows, at, kind, row, is_gone=True)
                    self._note(put, rows, at + (gone is not None), kind, row)
                else:
                    self._note(keys.deleted(row), rows, at, kind, row, is_gone=True)
                at += SEQ_STEP
        except CorruptRow as error:
            raise UnreadableRow(rows.table.label, rows.commit_ts, str(error)) from error

    def _note(
        self,
        key: bytes,
        rows: WalkedRows,
        seq: int,
        kind: int,
        row: bytes,
        *,
        is_gone: bool = False,
    ) -> None:
        if self._parts > 1 and zlib.crc32(key) % self._parts != self._part:
            return
        self._last[key] = _Last(
            rows.commit_ts, seq, rows.start_ts, rows.schema_version, rows.table, kind, row, is_gone
        )

    def _decoded(self) -> Iterator[pa.RecordBatch]:
        ordered = sorted(self._last.values(), key=lambda each: each[:2])
        for _, mine in groupby(ordered, lambda each: id(each.table)):
            while some := list(islice(mine, BATCH_ROWS)):
                yield self._typed.batch(some[0].table, list(map(self._change, some)))

    def _change(self, last: _Last) -> Change:
        decoder = self._decoders.of(last.table)
        try:
            if last.kind == in_order.INSERT:
                row = decoder.insert(last.row)
            elif last.kind == in_order.UPDATE:
                row = decoder.update(last.row)[0 if last.is_gone else 1]
            else:
                row = decoder.delete(last.row)
        except CorruptRow as error:
            raise UnreadableRow(last.table.label, last.commit_ts, str(error)) from error
        op = DELETE if last.is_gone else UPSERT
        return Change(last.commit_ts, last.start_ts, last.seq, op, last.schema_version, row, row)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of the rows of one table, as a reader sees them."""

    handle: Handle
    primary: PrimaryKey | None

    def inserted(self, row: bytes) -> bytes:
        """Raises CorruptRow."""
        if self.primary is None:
            return inserted(self.handle, row).key
        return self.primary.inserted(row)

    def updated(self, row: bytes) -> tuple[bytes | None, bytes]:
        """The key that goes, if one does, and the key that is put. Raises CorruptRow."""
        if self.primary is None:
            gone, put = updated(self.handle, row)
            return gone, put.key
        old, new = self.primary.updated(row)
        return (None if old == new else old), new

    def deleted(self, row: bytes) -> bytes:
        """Raises CorruptRow."""
        if self.primary is None:
            return deleted(self.handle, row)
        return self.primary.deleted(row)


def primary_of(info: Table, version: int) -> PrimaryKey | None:
    """None where the row handle is the primary key, or there is none. A table's rows have one kind
    of handle from its CREATE TABLE on."""
    if handle_of(info).kind is not HandleKind.HIDDEN or not key_ids(info):
        return None
    decoder = RowDecoder(TableAt("", info, version, None, {}, may_lack_columns=True))
    return primary_key(info, list(decoder.defaults(key_ids(info)).values()))
