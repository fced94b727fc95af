"""The changes of a batch into the tables of a lake: dealt out, decoded, put in place.

    parts = parts_of(read, cores)                  how many tasks put a table's changes in place
    ... spread(batch, parts, after, steps)         sends what was read to these; by workers
    ... merge(lake, heads, batch, parts, packets)  what keys hold now, decoded and put there; by
                                                   workers, part by part

A table of which little changes is one part: its worker makes the next version. Where much changes,
or large files are touched, workers only write files, and one commit names them:

    work = shares(lake, heads, batch, written, parts)    the files that are touched; by the driver
    ... leave(lake, heads, batch, share)                 what is left of some of them; by workers
    commit(lake, heads, batch, written, left)            the next version; by the driver

Names of files are new in each attempt of a task: what counts are those that Spark accepted. `heads`
are the versions that a batch begins with, table by table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlogd.snapshot.log.datums import longs
from binlogd.snapshot.log.events import EVENTS
from binlogd.snapshot.log.packets import PIECE_BYTES, key_hashes, newest, packed, unpacked
from binlogd.snapshot.log.rowkey import Op
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.spark.counts import RowCounts
from binlogd.spark.lake.content import (
    SHARE_BYTES,
    KeySet,
    LakeContent,
    TouchedFiles,
    Upsert,
    dealt,
    failing_as,
    leave,
)
from binlogd.spark.lake.files import FileWriter, LakeFiles
from binlogd.spark.lake.homes import followed
from binlogd.spark.lake.manifest import LakeBatch, LakeTable, PipelineStopped
from binlogd.spark.lake.moving import Heads, Lake
from binlogd.spark.lake.rows import decoded, lake_schema
from binlogd.spark.steps import changes_behind
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

PART_BYTES = 32 << 20
"""Of keys and rows as TiDB wrote them: with more of a table, another task writes some of it."""
PARTS_A_CORE = 2
_AROUND_BYTES = 45
"""Of `EVENTS` for each change, beside its key and row."""
_LOST = (
    "Nothing of the batch is published: run the pipeline again, and if it says the same, tell us:"
    " it is a bug of binlogd"
)


class TableParts(NamedTuple):
    """Among which parts of a batch the changes of a table are dealt out: the first of them, how
    many, and in how many pieces each has them, one after the other."""

    first: int
    many: int
    pieces: int


class Parts(NamedTuple):
    """The `total` parts of a batch, by the id of a table. `cores` are at work."""

    total: int
    cores: int
    of: Mapping[int, TableParts]

    def packets(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """`PACKETS` of changes, each for the part and the piece that its key tells."""
        tables, hashes = longs(changes, "table_id"), key_hashes(changes)
        hashes ^= hashes >> np.uint64(16)  # keys may differ in their high bits alone
        ids, table = np.unique(tables, return_inverse=True)
        of = np.array([self.of[each] for each in ids.tolist()], np.uint64)
        first, many, pieces = of[table].T
        partition = (first + hashes % many) % np.uint64(self.total)
        piece = hashes // many % pieces
        return packed(changes, partition.astype(np.int32), tables, piece.astype(np.int32))


class Took(msgspec.Struct, frozen=True):
    """What came of the changes of a table: so many, of so many keys, of which some hold a row
    now and some hold none any more."""

    changes: int
    keys: int
    rows_put: int
    rows_gone: int


class Merged(msgspec.Struct, frozen=True, tag=True):
    """What a merge did to a table."""

    head: LakeTable
    took: Took


class WrittenPart(msgspec.Struct, frozen=True, tag=True):
    """A part of the changes of a table, in no version yet: files with the rows that were put, files
    with the keys of those that went, and bounds of all of these keys."""

    table_id: int
    put: list[str]
    gone: list[str]
    took: Took
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


def parts_of(read: Mapping[int, RowCounts], cores: int) -> Parts:
    """What is largest comes first, so that its parts are different tasks."""
    size_of = {each: of.bytes + _AROUND_BYTES * of.changes for each, of in read.items()}
    by_size = sorted(read, key=lambda each: -size_of[each])
    many = [min(cores, 1 + size_of[each] // PART_BYTES) for each in by_size]
    firsts = accumulate(many, initial=0)
    of = {
        each: TableParts(first, size, 1 + size_of[each] // (size * PIECE_BYTES))
        for each, first, size in zip(by_size, firsts, many, strict=False)
    }
    return Parts(max(1, min(sum(many), PARTS_A_CORE * cores)), cores, of)


def of_tables(
    batch: LakeBatch, after: Tso, steps: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The changes behind a commit_ts of the tables that there are at the end of a batch, each of
    the table that its row belongs to by then; rows that went are needed no more. Raises
    UnreadableRow."""
    wanted, place = pa.array(batch.after, pa.int64()), EVENTS.get_field_index("row")
    for changes in followed(batch.moves, changes_behind(after, steps)):
        found = changes.filter(pc.is_in(changes["table_id"], value_set=wanted))
        if found.num_rows:
            is_gone = pc.equal(found["op"], Op.DELETE)
            rows = pc.if_else(is_gone, pa.scalar(b"", pa.binary()), found["row"])
            yield found.set_column(place, EVENTS.field(place), rows)


def spread(
    batch: LakeBatch, parts: Parts, after: Tso, steps: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """`PACKETS` of the changes of a batch. Raises UnreadableRow."""
    return map(parts.packets, of_tables(batch, after, steps))


def merge(
    lake: Lake, heads: Heads, batch: LakeBatch, parts: Parts, packets: Iterable[pa.RecordBatch]
) -> Iterator[Done]:
    """Puts changes in place that come by table and piece. Raises PipelineStopped, UnreadableRow,
    TooLargePiece."""
    came, keys = Counter[int](), Counter[int]()
    schemas = SchemaTracker.from_snapshot(batch.tracker)
    pieces = unpacked(_noted(packets, came), lambda table_id: batch.after[table_id].label)
    content = lake.content()
    for table_id, mine in groupby(pieces, key=lambda piece: piece["table_id"][0].as_py()):
        plan, head = batch.after[table_id], heads[table_id]
        with failing_as(plan.label):
            schema = lake_schema(plan, batch.types)
            changes = decoded(plan, schemas, _newest(mine, keys), batch.types)
            upsert = Upsert(content.files(head), schema, changes)
            took = Took(came[table_id], keys[table_id], upsert.rows_put, upsert.rows_gone)
            done = None
            if parts.of[table_id].many == 1:
                done = _finished(content, head, schema, upsert, parts, batch.end)
            if done is None:
                put, gone = upsert.writer.close(), upsert.gone_keys()
                yield WrittenPart(table_id, put, gone, took, *upsert.keys.bounds())
            else:
                yield _checked(plan, head, done, took)


def _noted(packets: Iterable[pa.RecordBatch], came: Counter[int]) -> Iterator[pa.RecordBatch]:
    """The same, of which it is counted how many changes came of each table."""
    for each in packets:
        columns = each["table_id"].to_pylist(), each["count"].to_pylist()
        for table_id, count in zip(*columns, strict=True):
            came[table_id] += count
        yield each


def _newest(pieces: Iterable[pa.RecordBatch], keys: Counter[int]) -> Iterator[pa.RecordBatch]:
    """The last change of each key, which are counted by another way."""
    for each in pieces:
        keys[each["table_id"][0].as_py()] += pc.count_distinct(each["key"]).as_py()
        yield newest(each)


def _finished(
    content: LakeContent, head: LakeTable, schema: pa.Schema, upsert: Upsert, parts: Parts, end: int
) -> LakeTable | None:
    """None where others are to help."""
    work = content.touched(head, *upsert.keys.bounds())
    if parts.cores > 1 and work.size_bytes > SHARE_BYTES:
        return None
    return content.finish(head, schema, upsert, work, end)


# --- one version by several tasks ----------------------------------------------------------------


def shares(
    lake: Lake, heads: Heads, batch: LakeBatch, written: Sequence[WrittenPart], cores: int
) -> list[FileShare]:
    """The files that tables' changes touch, of each table as many shares as there are cores. Raises
    PipelineStopped."""
    found = []
    content = lake.content()
    for table_id, mine in _by_table(written).items():
        low, high = min(each.low for each in mine), max(each.high for each in mine)
        with failing_as(batch.after[table_id].label):
            work = content.touched(heads[table_id], low, high)
        keys = [name for each in mine for name in (*each.put, *each.gone)]
        found += [FileShare(table_id, each, keys) for each in dealt(work, cores)]
    return found


def leave_share(lake: Lake, heads: Heads, batch: LakeBatch, share: FileShare) -> LeftFiles:
    """Writes what is left of the files of a share. Raises PipelineStopped."""
    plan = batch.after[share.table_id]
    with failing_as(plan.label):
        schema = lake_schema(plan, batch.types)
        files = LakeFiles(lake.place, heads[share.table_id])
        keys, writer = KeySet.of(map(files.keys, share.keys)), FileWriter(files, schema)
        return LeftFiles(share.table_id, leave(writer, schema, keys, share.work), writer.close())


def commit(
    lake: Lake,
    heads: Heads,
    batch: LakeBatch,
    written: Sequence[WrittenPart],
    left: Sequence[LeftFiles],
) -> Iterator[Merged]:
    """The next version of each table, with all that was written for it. Raises PipelineStopped."""
    kind = lake.kind()
    for table_id, mine in _by_table(written).items():
        plan, head = batch.after[table_id], heads[table_id]
        rest = [each for each in left if each.table_id == table_id]
        gone = [name for each in rest for name in each.gone]
        come = [name for each in mine for name in each.put]
        come += [name for each in rest for name in each.come]
        each_took = (msgspec.structs.astuple(each.took) for each in mine)
        took = Took(*map(sum, zip(*each_took, strict=True)))
        with failing_as(plan.label):
            now = kind.replace(head, lake_schema(plan, batch.types), gone, come, batch.end)
            yield _checked(plan, head, now, took)


def _by_table(written: Iterable[WrittenPart]) -> dict[int, list[WrittenPart]]:
    found = dict[int, list[WrittenPart]]()
    for each in written:
        found.setdefault(each.table_id, []).append(each)
    return found


# --- what must be ---------------------------------------------------------------------------------


def _checked(plan: TablePlan, head: LakeTable, now: LakeTable, took: Took) -> Merged:
    check_rows(plan.label, head.rows, now.rows, put=took.rows_put, gone=took.rows_gone)
    return Merged(now, took)


def check_rows(table: str, before: int | None, after: int | None, *, put: int, gone: int) -> None:
    """Raises PipelineStopped for rows that no change put there or took."""
    if before is None or after is None or before - gone <= after <= before + put:
        return
    raise PipelineStopped(
        f"{table}: had {before} rows and has {after} when {put} were put and {gone} went. {_LOST}"
    )


def accounted(
    batch: LakeBatch, read: Mapping[int, RowCounts], merged: Sequence[Merged]
) -> dict[int, RowCounts]:
    """By table id what was read and written, when each change that was read came to be merged and
    each key that changed was written. Raises PipelineStopped."""
    done = {each.head.table_id: each.took for each in merged}
    found = {}
    for table_id in read.keys() | done.keys():
        counts = read.get(table_id, RowCounts())
        took = done.get(table_id, Took(0, 0, 0, 0))
        written = took.rows_put + took.rows_gone
        for what, came, left in (
            (f"{counts.changes} changes were read", counts.changes, took.changes),
            (f"{took.keys} keys changed", took.keys, written),
        ):
            if came != left:
                raise PipelineStopped(
                    f"{batch.after[table_id].label}: {what} up to commit_ts {batch.end}, and"
                    f" {left} were written. {_LOST}"
                )
        found[table_id] = msgspec.structs.replace(counts, put=took.rows_put, gone=took.rows_gone)
    return found
