"""Tables of a lake before the changes of a batch: new ones, new columns, rows that DDL moved."""

from __future__ import annotations

from contextlib import closing
from itertools import count

import pyarrow as pa

from binlogd.errors import CorruptRow
from binlogd.snapshot.log.moves import PartitionsEnded, ids_of
from binlogd.snapshot.log.rowkey import HandleKind
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.lake.content import FAILS, LakeContent
from binlogd.spark.lake.homes import ExistingRows, LateRows
from binlogd.spark.lake.manifest import (
    DIRECTORY,
    LakeBatch,
    LakeTable,
    LakeTables,
    PipelineStopped,
    label,
)
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.rows import (
    KEY_COLUMN,
    Adapt,
    KeyChanges,
    adaptation,
    is_of_files,
    lake_schema,
)
from binlogd.tidb.rewrite import Unconvertible

GONE_MAX = 250_000
"""Rows that went with partitions: so many are taken out by their keys, with more of them the table
is written anew."""


def prepare(
    lake: Lake, now: LakeTables, batch: LakeBatch, late: LateRows | None = None
) -> dict[int, LakeTable]:
    """Makes the tables that are new, and takes the others to their new columns and partitions.

    `late` are rows that came while partitions of their tables went. Raises PipelineStopped.
    """
    with closing(lake.content()) as content:
        preparing = _Preparing(content, now, batch, late or {})
        return {table_id: preparing.table(table_id) for table_id in batch.after}


class _Preparing:
    def __init__(
        self, content: LakeContent, now: LakeTables, batch: LakeBatch, late: LateRows
    ) -> None:
        self._content, self._batch, self._late = content, batch, late
        self._there = now.by_id()

    def table(self, table_id: int) -> LakeTable:
        plan, head = self._batch.after[table_id], self._there.get(table_id)
        schema = lake_schema(plan, self._batch.types)
        try:
            if head is None:
                directory, end = f"{DIRECTORY}{table_id}", self._batch.end
                head = self._content.kind.create(table_id, directory, schema, label(plan), end)
            else:
                head = self._own(head, plan, schema)
            origins = self._batch.origins.get(table_id, frozenset())
            for origin in sorted(origins & self._there.keys() - {table_id}):
                head = self._brought(head, plan, schema, origin)
            return head
        except (*FAILS, Unconvertible, CorruptRow) as error:
            raise PipelineStopped(f"{label(plan)}: {error}") from error

    def _own(self, head: LakeTable, plan: TablePlan, schema: pa.Schema) -> LakeTable:
        """What stays of a table that was there, with the columns of now."""
        table_id, batch = head.table_id, self._batch
        before = batch.before.get(table_id)
        if before is None:
            return head
        existing, gone = None, pa.array([], pa.binary())
        is_keyed_anew = self._is_keyed_anew(plan)
        if table_id in batch.origins or is_keyed_anew:
            existing = ExistingRows.of(batch, table_id, self._late)
            gone = gone if is_keyed_anew else self._gone(head, existing)
        is_anew = is_keyed_anew or len(gone) > GONE_MAX
        evolved = None if is_anew else self._evolved(head, before, plan)
        if evolved is None:
            adapt = adaptation(before, plan, batch.types)
            if existing is not None:
                adapt = _kept(existing, table_id, adapt)
            rows = self._content.read(head, lake_schema(before, batch.types))
            made = (adapt(pa.Table.from_batches([each])) for each in rows)
            return self._content.rewrite(head, schema, made, batch.end)
        if len(gone):
            changes = KeyChanges(schema.empty_table(), gone)
            return self._content.merge(evolved, schema, [changes], batch.end)
        return evolved

    def _evolved(self, head: LakeTable, before: TablePlan, plan: TablePlan) -> LakeTable | None:
        """A table with the columns of now; None where that takes other files."""
        old, now = (lake_schema(each, self._batch.types) for each in (before, plan))
        if old.equals(now, check_metadata=True):
            return head
        if not is_of_files(before, plan):
            return None
        return self._content.kind.evolve(head, old, now, self._batch.end)

    def _is_keyed_anew(self, plan: TablePlan) -> bool:
        """Whether rows that stay in a table may have another key in it: one with their partition,
        or with another one."""
        table_id, batch = plan.info.id, self._batch
        if plan.handle.kind is not HandleKind.PLACED:
            return False
        is_elsewhere = any(
            table_id in ids_of(move) and not isinstance(move, PartitionsEnded)
            for move in batch.moves.moves
            if move.version > batch.version
        )
        return is_elsewhere or table_id not in batch.placed or bool(self._late.get(table_id))

    def _gone(self, head: LakeTable, existing: ExistingRows) -> pa.Array:
        """The keys of rows that are no more, or elsewhere; some of them where they are many."""
        found, count = [pa.array([], pa.binary())], 0
        for rows in self._content.read(head, existing.schema):
            homes = existing.homes(rows)
            mask = [home is None or home.table_id != head.table_id for home in homes]
            found.append(rows.column(KEY_COLUMN).filter(pa.array(mask, pa.bool_())))
            count += len(found[-1])
            if count > GONE_MAX:
                break
        return pa.concat_arrays([each.cast(pa.binary()) for each in found])

    def _brought(
        self, head: LakeTable, plan: TablePlan, schema: pa.Schema, origin: int
    ) -> LakeTable:
        """A table with the rows that came to it from another one."""
        batch, there = self._batch, self._there[origin]
        existing = ExistingRows.of(batch, origin, self._late)
        if not any(
            home is not None and home.table_id == head.table_id
            for rows in self._content.read(there, existing.schema)
            for home in existing.homes(rows)
        ):
            return head
        before = batch.before[origin]
        kept = _kept(existing, head.table_id, adaptation(before, plan, batch.types))
        whole = self._content.read(there, lake_schema(before, batch.types))
        rows = (kept(pa.Table.from_batches([each])) for each in whole)
        return self._content.append(head, schema, rows, batch.end)


def _kept(existing: ExistingRows, table_id: int, adapt: Adapt) -> Adapt:
    """Of some rows those that belong to a table, with its columns and their keys in it."""
    moves = existing.moves

    def kept(rows: pa.Table) -> pa.RecordBatch:
        whole = rows.combine_chunks().to_batches()[0]
        found = zip(count(), existing.homes(whole), whole.column(KEY_COLUMN).to_pylist())
        stay = [
            (number, moves.key(home, key))
            for number, home, key in found
            if home is not None and home.table_id == table_id
        ]
        left = pa.Table.from_batches([whole.take(pa.array([each for each, _ in stay], pa.int64()))])
        keys = pa.array([key for _, key in stay], pa.binary())
        return adapt(left.set_column(left.schema.get_field_index(KEY_COLUMN), KEY_COLUMN, keys))

    return kept
