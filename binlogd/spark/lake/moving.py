"""A batch of the pipeline into a lake of any kind: look, prepare, merge, turn the page.

    now = lake.manifest().read()
    check(now, batch)                       before anything is touched
    heads = prepare(lake, now, batch)       tables that are new, new columns, rows that DDL moved;
                                            by the driver (`preparing`)
    ... decode(batch, rows)                 what the changed keys hold; by workers, key by key
    ... merge(lake, heads, batch, packets)  puts it there; by workers, table by table
    finish(lake, batch, heads)              one write makes it hold

`heads` are the versions that a batch has come to, table by table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

from binlogd.snapshot.spec import DoubtfulRows
from binlogd.spark.counts import RowCounts, total
from binlogd.spark.lake.kinds import LakeFailed, LakeKind
from binlogd.spark.lake.manifest import (
    IN_DOUBT_MAX,
    LakeBatch,
    LakeManifest,
    LakeMode,
    LakeTable,
    LakeTables,
    PipelineStopped,
    label,
    leaving_of,
    placed_of,
)
from binlogd.spark.lake.place import LakeLocation
from binlogd.spark.lake.rows import (
    KeyChanges,
    changes_by_table,
    decoded,
    lake_schema,
    packed,
    winners_by_table,
)
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

Heads = Mapping[int, LakeTable]
_LOST = (
    "Nothing of the batch is published: run the pipeline again, and if it says the same, tell us:"
    " it is a bug of binlogd"
)


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake by its place: nothing of it is open, so it travels to workers. `catalog` is the name
    of an Iceberg catalog that has its tables too, or ""."""

    place: LakeLocation
    mode: LakeMode = "upsert"
    catalog: str = ""

    def manifest(self) -> LakeManifest:
        """Raises ConfigError."""
        return LakeManifest(self.place, self.mode)

    def kind(self) -> LakeKind:
        """What makes versions of its tables. Raises ConfigError."""
        if self.place.kind == "delta":
            from binlogd.spark.lake.delta import Delta

            return Delta(self.place)
        from binlogd.spark.lake.iceberg import Iceberg

        return Iceberg(self.place)


class Span(Protocol):
    """What is asked of the range of a batch."""

    @property
    def start(self) -> Tso:
        """Behind which commit_ts it begins."""
        ...

    @property
    def is_first(self) -> bool:
        """Whether it is the first one of its checkpoint."""
        ...


class Merged(msgspec.Struct, frozen=True):
    """What a merge did to a table."""

    head: LakeTable
    rows_put: int
    rows_gone: int


class ReadChanges(NamedTuple):
    """What a batch read of a table: its changes, and how many keys these are of."""

    counts: RowCounts
    keys: int


def begin(now: LakeTables, of: Span, gone_ts: Tso, where: str) -> Tso:
    """Where a batch begins for a lake that is where it is: what it has, it is not given again.

    Raises PipelineStopped for a lake that lacks what was before the batch, and for a log that does
    (it is complete behind `gone_ts` only).
    """
    if now.commit_ts >= of.start or (of.is_first and not now.commit_ts):
        start = max(Tso(now.commit_ts), of.start)
        if start >= gone_ts:
            return start
        raise PipelineStopped(
            f"{where} is at commit_ts {now.commit_ts}, and the log is complete behind {gone_ts}"
            " only: begin at an empty place, with a snapshot or a dump of that moment or later"
            " (--base), or a changelog behind that (--from)"
        )
    raise PipelineStopped(
        f"{where} is at commit_ts {now.commit_ts}, and this batch begins at {of.start}: what lies"
        " between would be lost. It was restored, or is not the one that this checkpoint was made"
        " with: begin with another --checkpoint (and --take-over), which goes on where the lake is"
    )


def check(now: LakeTables, batch: LakeBatch, *, is_first: bool) -> None:
    """Whether rows from before the batch are in the lake. Raises PipelineStopped."""
    there = now.by_id()
    needed = set(batch.after).union(*batch.origins.values())
    missing = [
        label(plan)
        for table_id, plan in batch.before.items()
        if table_id in needed and table_id not in there
    ]
    if missing:
        where = "where the pipeline begins" if is_first else "before this batch"
        raise PipelineStopped(
            f"{', '.join(missing)}: there already {where}, and its older rows are in no binlog that"
            " is read; begin at the beginning of the log (no --from), with a snapshot or a dump"
            " (--base, into a place where no lake is yet), or leave it out (--except)"
        )


def decode(batch: LakeBatch, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Winners of some keys of tables as `PACKETS` of what their columns hold; they come sorted by
    table. Raises PipelineStopped, UnreadableRow."""
    schemas: SchemaTracker | None = None
    for table_id, pieces in winners_by_table(batches):
        schemas = schemas or SchemaTracker.from_snapshot(batch.tracker)
        plan = batch.after[table_id]
        try:
            for changes in decoded(plan, schemas, pieces, batch.types):
                yield packed(table_id, changes)
        except pa.ArrowInvalid as error:
            raise PipelineStopped(f"{label(plan)}: {error}") from error


def merge(
    lake: Lake, heads: Heads, batch: LakeBatch, packets: Iterable[pa.RecordBatch]
) -> Iterator[Merged]:
    """Puts the changes of some tables in place; they come sorted by table, with all of a table.

    Raises PipelineStopped.
    """
    with closing(lake.kind()) as kind:
        for table_id, pieces in changes_by_table(packets):
            plan, counts = batch.after[table_id], [0, 0]
            schema = lake_schema(plan, batch.types)
            changes = _counted(pieces, counts)
            try:
                head = kind.merge(heads[table_id], schema, changes, batch.end)
            except (LakeFailed, pa.ArrowInvalid) as error:
                raise PipelineStopped(f"{label(plan)}: {error}") from error
            check_rows(label(plan), heads[table_id].rows, head.rows, put=counts[0], gone=counts[1])
            yield Merged(head, *counts)


def check_rows(table: str, before: int | None, after: int | None, *, put: int, gone: int) -> None:
    """Raises PipelineStopped for rows that no change put there or took."""
    if before is None or after is None or before - gone <= after <= before + put:
        return
    raise PipelineStopped(
        f"{table}: had {before} rows and has {after} when {put} were put and {gone} went. {_LOST}"
    )


def accounted(
    batch: LakeBatch, read: Mapping[int, ReadChanges], merged: Sequence[Merged]
) -> dict[int, RowCounts]:
    """By table id what was read and written, when each key that changed was written. Raises
    PipelineStopped."""
    done = {each.head.table_id: each for each in merged}
    found = {}
    for table_id in read.keys() | done.keys():
        counts, keys = read.get(table_id, ReadChanges(RowCounts(), 0))
        of = done.get(table_id)
        put, gone = (of.rows_put, of.rows_gone) if of is not None else (0, 0)
        if put + gone != keys:
            raise PipelineStopped(
                f"{label(batch.after[table_id])}: {keys} keys changed up to commit_ts {batch.end},"
                f" and {put + gone} were written. {_LOST}"
            )
        found[table_id] = msgspec.structs.replace(counts, put=put, gone=gone)
    return found


def _counted(changes: Iterable[KeyChanges], counts: list[int]) -> Iterator[KeyChanges]:
    for each in changes:
        counts[0] += each.puts.num_rows
        counts[1] += len(each.gone)
        yield each


def finish(
    lake: Lake,
    batch: LakeBatch,
    heads: Heads,
    in_doubt: Sequence[DoubtfulRows],
    counts: Mapping[int, RowCounts],
) -> LakeTables:
    """Says which versions belong together from now on, which rows of the batch are in doubt, and
    what it counted."""
    tables = {label(plan): heads[table_id] for table_id, plan in batch.after.items()}
    manifest = lake.manifest()
    last = manifest.read()
    before = {last.tables[name].table_id: each for name, each in last.counted.items()}
    now = LakeTables(
        batch.end,
        tables,
        lake.place.kind,
        placed_of(batch.after),
        (*last.in_doubt, *in_doubt)[-IN_DOUBT_MAX:],
        leaving_of(batch.after),
        counted={
            name: total(of[each.table_id] for of in (before, counts) if each.table_id in of)
            for name, each in tables.items()
        },
        counted_from=last.counts_begin(),
    )
    manifest.turn(now, batch.tracker)
    show(lake, now)
    return now


def show(lake: Lake, now: LakeTables, *, checks_all: bool = False) -> None:
    """Lets readers find the tables by name, where the kind of lake has such a thing; what a batch
    did not touch is looked at with `checks_all` alone. Raises CatalogFailed, PipelineStopped."""
    with closing(lake.kind()) as kind:
        kind.show(now)
    if lake.catalog:
        from binlogd.spark.lake.names import CatalogNames

        CatalogNames(lake.place, lake.catalog).follow(now, checks_all=checks_all)
