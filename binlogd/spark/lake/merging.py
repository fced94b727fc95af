"""The changes of a batch into the tables of a lake: decoded, dealt out, put in place.

    parts = parts_of(read, cores)                  how many tasks put a table's changes in place
    ... decode(batch, parts, turn, rows)           what keys hold now; by workers, key by key
    ... merge(lake, heads, batch, parts, packets)  puts it there; by workers, part by part

A table of which little changes is one part: its worker makes the next version. Where much changes,
or large files are touched, workers only write files, and one commit names them:

    work = shares(lake, heads, batch, written, parts)    the files that are touched; by the driver
    ... leave(lake, heads, batch, share)                 what is left of some of them; by workers
    commit(lake, heads, batch, written, left)            the next version; by the driver

Names of files are new in each attempt of a task: what counts are those that Spark accepted. `heads`
are the versions that a batch begins with, table by table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate
from typing import NamedTuple

import msgspec
import pyarrow as pa

from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.counts import RowCounts
from binlogd.spark.lake.content import (
    FAILS,
    SHARE_BYTES,
    KeySet,
    LakeContent,
    TouchedFiles,
    Upsert,
    dealt,
    leave,
)
from binlogd.spark.lake.files import LakeFiles
from binlogd.spark.lake.manifest import LakeBatch, LakeTable, PipelineStopped, label
from binlogd.spark.lake.moving import Heads, Lake
from binlogd.spark.lake.rows import (
    changes_by_table,
    decoded,
    lake_schema,
    packed,
    winners_by_table,
)
from binlogd.tidb.schema import SchemaTracker

PART_BYTES = 32 << 20
"""Of keys and rows as TiDB wrote them: with more of a table, another task writes some of it."""
PARTS_A_CORE = 4
_LOST = (
    "Nothing of the batch is published: run the pipeline again, and if it says the same, tell us:"
    " it is a bug of binlogd"
)


class ReadChanges(NamedTuple):
    """What a batch read of a table: its changes, and how many keys these are of."""

    counts: RowCounts
    keys: int


class Parts(NamedTuple):
    """Among which of `total` parts of a batch the changes of a table are dealt out, by its id: the
    first of them, and how many. `cores` are at work."""

    total: int
    cores: int
    of: Mapping[int, tuple[int, int]]

    def at(self, table_id: int, turn: int) -> int:
        """The part whose turn it is."""
        first, many = self.of[table_id]
        return (first + turn % many) % self.total


class Merged(msgspec.Struct, frozen=True, tag=True):
    """What a merge did to a table."""

    head: LakeTable
    rows_put: int
    rows_gone: int


class WrittenPart(msgspec.Struct, frozen=True, tag=True):
    """A part of the changes of a table, in no version yet: files with the rows that were put, files
    with the keys of those that went, and bounds of all of these keys."""

    table_id: int
    put: list[str]
    gone: list[str]
    rows_put: int
    rows_gone: int
    low: bytes
    high: bytes


Done = Merged | WrittenPart
"""What a worker says of a table."""


class FileShare(NamedTuple):
    """Files of a table that one task goes through, and files with the keys that it looks for."""

    table_id: int
    work: TouchedFiles
    keys: Sequence[str]


class LeftFiles(NamedTuple):
    """Files of a table that go, and those that come with what is left of them."""

    table_id: int
    gone: Sequence[str]
    come: Sequence[str]


def parts_of(read: Mapping[int, ReadChanges], cores: int) -> Parts:
    """What is largest comes first, so that its parts are different tasks."""
    by_size = sorted(read, key=lambda each: -read[each].counts.bytes)
    many = [min(cores, 1 + read[each].counts.bytes // PART_BYTES) for each in by_size]
    firsts = accumulate(many, initial=0)
    of = {each: (first, size) for each, first, size in zip(by_size, firsts, many, strict=False)}
    return Parts(max(1, min(sum(many), PARTS_A_CORE * cores)), cores, of)


def decode(
    batch: LakeBatch, parts: Parts, turn: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Winners of some keys of tables as `PACKETS` of what their columns hold; they come sorted by
    table. Each worker begins with a turn of its own. Raises PipelineStopped, UnreadableRow."""
    schemas: SchemaTracker | None = None
    for table_id, pieces in winners_by_table(batches):
        schemas = schemas or SchemaTracker.from_snapshot(batch.tracker)
        plan = batch.after[table_id]
        with _told(plan):
            for number, changes in enumerate(decoded(plan, schemas, pieces, batch.types), turn):
                yield packed(table_id, parts.at(table_id, number), changes)


def merge(
    lake: Lake, heads: Heads, batch: LakeBatch, parts: Parts, packets: Iterable[pa.RecordBatch]
) -> Iterator[Done]:
    """Puts changes in place that come sorted by table. Raises PipelineStopped."""
    with closing(lake.content()) as content:
        for table_id, changes in changes_by_table(packets):
            plan, head = batch.after[table_id], heads[table_id]
            with _told(plan):
                schema = lake_schema(plan, batch.types)
                upsert = Upsert(content.files(head), schema, changes)
                done = None
                if parts.of[table_id][1] == 1:
                    done = _finished(content, head, schema, upsert, parts, batch.end)
                if done is None:
                    yield _written(table_id, upsert)
                else:
                    yield _checked(plan, head, done, upsert.rows_put, upsert.rows_gone)


def _finished(
    content: LakeContent,
    head: LakeTable,
    schema: pa.Schema,
    upsert: Upsert,
    parts: Parts,
    end: int,
) -> LakeTable | None:
    """None where others are to help."""
    work = content.touched(head, *upsert.keys.bounds())
    if parts.cores > 1 and work.size_bytes > SHARE_BYTES:
        return None
    return content.finish(head, schema, upsert, work, end)


def _written(table_id: int, upsert: Upsert) -> WrittenPart:
    put, gone = upsert.writer.close(), upsert.gone_keys()
    bounds = upsert.keys.bounds()
    return WrittenPart(table_id, put, gone, upsert.rows_put, upsert.rows_gone, *bounds)


# --- one version by several tasks ----------------------------------------------------------------


def shares(
    lake: Lake, heads: Heads, batch: LakeBatch, written: Sequence[WrittenPart], cores: int
) -> list[FileShare]:
    """The files that tables' changes touch, of each table as many shares as there are cores. Raises
    PipelineStopped."""
    found = []
    with closing(lake.content()) as content:
        for table_id, mine in _by_table(written).items():
            low, high = min(each.low for each in mine), max(each.high for each in mine)
            with _told(batch.after[table_id]):
                work = content.touched(heads[table_id], low, high)
            keys = [name for each in mine for name in (*each.put, *each.gone)]
            found += [FileShare(table_id, each, keys) for each in dealt(work, cores)]
    return found


def leave_share(lake: Lake, heads: Heads, batch: LakeBatch, share: FileShare) -> LeftFiles:
    """Writes what is left of the files of a share. Raises PipelineStopped."""
    plan = batch.after[share.table_id]
    with _told(plan):
        schema = lake_schema(plan, batch.types)
        files = LakeFiles(lake.place, heads[share.table_id].directory)
        keys, writer = KeySet.of(map(files.keys, share.keys)), files.writer(schema)
        return LeftFiles(share.table_id, leave(writer, schema, keys, share.work), writer.close())


def commit(
    lake: Lake,
    heads: Heads,
    batch: LakeBatch,
    written: Sequence[WrittenPart],
    left: Sequence[LeftFiles],
) -> Iterator[Merged]:
    """The next version of each table, with all that was written for it. Raises PipelineStopped."""
    with closing(lake.kind()) as kind:
        for table_id, mine in _by_table(written).items():
            plan, head = batch.after[table_id], heads[table_id]
            rest = [each for each in left if each.table_id == table_id]
            gone = [name for each in rest for name in each.gone]
            come = [name for each in mine for name in each.put]
            come += [name for each in rest for name in each.come]
            put, went = sum(each.rows_put for each in mine), sum(each.rows_gone for each in mine)
            with _told(plan):
                now = kind.replace(head, lake_schema(plan, batch.types), gone, come, batch.end)
                yield _checked(plan, head, now, put, went)


def _by_table(written: Iterable[WrittenPart]) -> dict[int, list[WrittenPart]]:
    found = dict[int, list[WrittenPart]]()
    for each in written:
        found.setdefault(each.table_id, []).append(each)
    return found


# --- what must be ---------------------------------------------------------------------------------


@contextmanager
def _told(plan: TablePlan) -> Iterator[None]:
    """What goes wrong, with the table."""
    try:
        yield
    except FAILS as error:
        raise PipelineStopped(f"{label(plan)}: {error}") from error


def _checked(plan: TablePlan, head: LakeTable, now: LakeTable, put: int, gone: int) -> Merged:
    check_rows(label(plan), head.rows, now.rows, put=put, gone=gone)
    return Merged(now, put, gone)


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
