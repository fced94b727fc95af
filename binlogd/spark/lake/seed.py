"""The first page of a lake: the tables of a snapshot or a dump, as of its commit_ts.

Each table that is in the lake is noted in a file of its own; who was killed goes on with the next
one. The lake is nothing to readers before the last one is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from binlogd.errors import BinlogdError
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.base_loader import LoadedBase, rows_of
from binlogd.spark.lake.layout import LakeLayout
from binlogd.spark.lake.manifest import (
    DIRECTORY,
    LakeTable,
    LakeTables,
    PipelineStopped,
    found,
    leaving_of,
    placed_of,
)
from binlogd.spark.lake.moving import Lake, check_names, show
from binlogd.spark.lake.rows import lake_schema

SEEDS = "_seed"


class Seeded(msgspec.Struct, frozen=True):
    """A table that is there, of a base of this moment."""

    commit_ts: int
    table: LakeTable
    rows: int


def todo(lake: Lake, begin: LoadedBase) -> list[int]:
    """The tables that are not in the lake yet. Raises PipelineStopped."""
    check_names(begin.tables)
    return [table_id for table_id in begin.tables if _seeded(lake, begin, table_id) is None]


def seed_table(lake: Lake, begin: LoadedBase, table_id: int) -> Seeded:
    """Puts a table into the lake, from its beginning. Raises PipelineStopped."""
    plan, counts = begin.tables[table_id], [0]
    schema, content = lake_schema(plan, begin.types), lake.content()
    try:
        asked = lake.layouts.get(plan.label, LakeLayout()).of(schema, lake.place.kind)
        made = LakeTable(table_id, f"{DIRECTORY}{table_id}", 0, layout=asked)
        head = content.kind.create(made, schema, plan.label, begin.commit_ts)
        rows = _counted(plan, begin, schema, counts)
        head = content.append(head, schema, rows, begin.commit_ts)
    except (BinlogdError, OSError, ValueError) as error:
        raise PipelineStopped(f"{begin.directory}: {plan.label}: {error}") from error
    done = Seeded(begin.commit_ts, head, counts[0])
    lake.manifest().store.put(f"{SEEDS}/{table_id}.json", msgspec.json.encode(done))
    return done


def finish_seed(lake: Lake, begin: LoadedBase) -> LakeTables:
    """Makes the tables the lake's, when all are there."""
    tables = {
        plan.label: each.table
        for table_id, plan in begin.tables.items()
        if (each := _seeded(lake, begin, table_id)) is not None
    }
    placed, leaving = placed_of(begin.tables), leaving_of(begin.tables)
    now = LakeTables(begin.commit_ts, tables, lake.place.kind, placed, leaving=leaving)
    manifest = lake.manifest()
    if manifest.read().commit_ts:
        raise PipelineStopped(
            f"{lake.place.shown}: another pipeline began there meanwhile; stop this one"
        )
    manifest.turn(now, begin.tracker)
    manifest.store.remove_directory(SEEDS)
    show(lake, now)
    return now


def _seeded(lake: Lake, begin: LoadedBase, table_id: int) -> Seeded | None:
    name = f"{SEEDS}/{table_id}.json"
    seeded = found(lake.manifest().store, name, Seeded, lake.place.shown)
    return seeded if seeded is not None and seeded.commit_ts == begin.commit_ts else None


def _counted(
    plan: TablePlan, begin: LoadedBase, schema: pa.Schema, counts: list[int]
) -> Iterator[pa.RecordBatch]:
    for rows, keys in rows_of(plan, begin.types):
        assert keys is not None, "a base that does not tell keys is refused"
        counts[0] += rows.num_rows
        yield pa.RecordBatch.from_arrays([*rows.columns, keys], schema=schema)
