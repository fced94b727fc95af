"""Tables of a lake before the changes of a batch: new ones, new columns, rows that DDL moved.

The driver decides and commits. Rows that are written anew for it are read and written by tasks,
some files each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import pyarrow as pa

from binlogd.errors import CorruptRow
from binlogd.snapshot.log.moves import PartitionsEnded, ids_of
from binlogd.snapshot.log.rowkey import HandleKind
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.lake.content import SHARE_BYTES, TouchedFiles, dealt, failing_as
from binlogd.spark.lake.files import DataFile, LakeFiles
from binlogd.spark.lake.homes import ExistingRows, LateRows
from binlogd.spark.lake.layout import LakeLayout
from binlogd.spark.lake.manifest import DIRECTORY, LakeBatch, LakeTable, LakeTables
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.rows import (
    KEY_COLUMN,
    Adapt,
    KeyChanges,
    adaptation,
    is_of_files,
    lake_schema,
)

T = TypeVar("T")
R = TypeVar("R")
GONE_MAX = 250_000
"""Rows that went with partitions: so many are taken out by their keys, with more of them the table
is written anew."""


class Rewriting(NamedTuple):
    """Files of a table before a batch whose rows go into new files of one after it; `follows`: of
    these rows those that belong to it by then, as partitions went."""

    origin: LakeTable
    into: LakeTable
    follows: bool
    files: Sequence[DataFile]


class Executors(Protocol):
    """Where work is done; `cores` pieces at a time."""

    cores: int

    def map(self, act: Callable[[T], R], work: Sequence[T]) -> list[R]:
        """What comes of each, in their order. Raises what one raises."""


def prepare(
    lake: Lake, now: LakeTables, batch: LakeBatch, late: LateRows, tasks: Executors
) -> dict[int, LakeTable]:
    """Makes the tables that are new, and takes the others to their new columns and partitions.

    `late` are rows that came while partitions of their tables went. Raises PipelineStopped, and
    what `tasks` raises.
    """
    preparing = _Preparing(lake, now, batch, late, tasks)
    return {table_id: preparing.table(table_id) for table_id in batch.after}


def rewritten(lake: Lake, batch: LakeBatch, late: LateRows, work: Rewriting) -> list[str]:
    """The names of the new files. Raises PipelineStopped."""
    origin, into = work.origin.table_id, work.into.table_id
    before, plan = batch.before[origin], batch.after[into]
    held, schema = (lake_schema(each, batch.types) for each in (before, plan))
    files = LakeFiles(lake.place, work.origin)
    with failing_as(plan.label, CorruptRow):
        adapt = adaptation(before, plan, batch.types)
        if work.follows:
            adapt = _kept(ExistingRows.of(batch, origin, late), into, adapt)
        rows = (
            adapt(pa.Table.from_batches([each]))
            for file in work.files
            for each in files.read(file.name, held)
        )
        return LakeFiles(lake.place, work.into).written(schema, rows)


class _Preparing:
    def __init__(
        self, lake: Lake, now: LakeTables, batch: LakeBatch, late: LateRows, tasks: Executors
    ) -> None:
        self._lake, self._content, self._batch, self._late = lake, lake.content(), batch, late
        self._now, self._there, self._tasks = now, now.by_id(), tasks

    def table(self, table_id: int) -> LakeTable:
        """A table of the batch as it is before its changes: made or widened, with the rows that DDL
        brought from others. Raises PipelineStopped, with its name."""
        plan, head = self._batch.after[table_id], self._there.get(table_id)
        schema = lake_schema(plan, self._batch.types)
        with failing_as(plan.label, CorruptRow):
            if head is None:
                head = self._made(
                    f"{DIRECTORY}{table_id}", plan, schema, self._layout(plan, schema)
                )
            else:
                head = self._own(head, plan, schema)
            origins = self._batch.origins.get(table_id, frozenset())
            for origin in sorted(origins & self._there.keys() - {table_id}):
                head = self._brought(head, schema, origin)
            return head

    def _written(self, origin: LakeTable, into: LakeTable, *, follows: bool) -> list[str]:
        """The names of files with the rows of a table before, as they are in one after."""
        work = TouchedFiles(self._content.kind.files(origin), [])
        many = self._tasks.cores if work.size_bytes > SHARE_BYTES else 1
        shares = [Rewriting(origin, into, follows, each.may) for each in dealt(work, many)]
        act = partial(rewritten, self._lake, self._batch, self._late)
        return [name for names in self._tasks.map(act, shares) for name in names]

    def _own(self, head: LakeTable, plan: TablePlan, schema: pa.Schema) -> LakeTable:
        """What stays of a table that was there, with the columns of now."""
        table_id, batch = head.table_id, self._batch
        before = batch.before.get(table_id)
        if before is None:
            return head
        layout = self._layout(plan, schema, head)
        gone, is_keyed_anew = pa.array([], pa.binary()), self._is_keyed_anew(plan)
        follows = table_id in batch.origins or is_keyed_anew
        if follows and not is_keyed_anew:
            gone = self._gone(head, ExistingRows.of(batch, table_id, self._late))
        held = lake_schema(before, batch.types)
        into = msgspec.structs.replace(head, layout=layout)
        if not head.layout.parts_as(layout, held, schema):
            into = self._made(f"{DIRECTORY}{table_id}-{batch.end}", plan, schema, layout)
        is_anew = is_keyed_anew or len(gone) > GONE_MAX or into.directory != head.directory
        evolved = None
        if not is_anew and (held.equals(schema, check_metadata=True) or is_of_files(before, plan)):
            evolved = self._content.kind.evolve(into, held, schema, batch.end)
        if evolved is None:
            come = self._written(head, into, follows=follows)
            return self._content.kind.rewrite(into, schema, come, batch.end)
        if len(gone):
            changes = KeyChanges(schema.empty_table(), gone)
            return self._content.merge(evolved, schema, [changes], batch.end)
        return evolved

    def _layout(
        self, plan: TablePlan, schema: pa.Schema, head: LakeTable | None = None
    ) -> LakeLayout:
        """What was asked for, or else that of the table, or of the last one of this name."""
        name, kind = plan.label, self._lake.place.kind
        if name in self._lake.layouts:
            return self._lake.layouts[name].of(schema, kind)
        if head is not None:
            return head.layout.left_in(schema, kind)
        last = self._now.tables.get(name)
        is_like = last is not None and last.layout.left_in(schema, kind) == last.layout
        return last.layout if last is not None and is_like else LakeLayout()

    def _made(
        self, directory: str, plan: TablePlan, schema: pa.Schema, layout: LakeLayout
    ) -> LakeTable:
        """A table with no row yet."""
        made = LakeTable(plan.info.id, directory, 0, layout=layout)
        return self._content.kind.create(made, schema, plan.label, self._batch.end)

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

    def _brought(self, head: LakeTable, schema: pa.Schema, origin: int) -> LakeTable:
        """A table with the rows that came to it from another one."""
        there, existing = self._there[origin], ExistingRows.of(self._batch, origin, self._late)
        if not any(
            home is not None and home.table_id == head.table_id
            for rows in self._content.read(there, existing.schema)
            for home in existing.homes(rows)
        ):
            return head
        come = self._written(there, head, follows=True)
        return self._content.kind.replace(head, schema, [], come, self._batch.end)


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
