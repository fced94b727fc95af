"""The log through Spark: one task reads a few slices of pinned files in a Python worker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from binlogd.errors import Refused
from binlogd.host.disk import put_in_place
from binlogd.snapshot.formats.columns import spark_type
from binlogd.snapshot.log.events import Reads, WantedTables, committed_prewrites, events
from binlogd.snapshot.log.packets import PACKETS, Spread, folded
from binlogd.snapshot.log.prewrites import PACKED, LogHeads, heads, packed, unpacked
from binlogd.snapshot.log.reader import Slice

_OF = b"binlogd.slices"
Task = tuple[Slice, ...]
RowsOfTask = Callable[[int], Iterator[pa.RecordBatch]]
"""The row changes that the task of a number reads, in batches."""
Take = Callable[[Iterator[pa.RecordBatch], int], Iterator[pa.RecordBatch]]


def log(spark: SparkSession, tasks: Sequence[Task], kept: Path | None = None) -> LogHeads:
    """The heads of all binlogs of the log. Raises Refused where there is none.

    What an earlier run of the same export found is in `kept`, and put there where it is not.
    """
    if not tasks:
        raise Refused("the log holds no binlogs: there is nothing to export")
    parts = [part for task in tasks for part in task]
    found = _kept_heads(kept, parts) if kept is not None else None
    if found is None:
        found = _read_heads(spark, tasks)
        if kept is not None:
            _keep_heads(kept, parts, found)
    numbers, packs, ddl = (found.column(name).to_pylist() for name in PACKED.names)
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    return LogHeads(parts, [unpacked(packs[each], ddl[each]) for each in order])


def _read_heads(spark: SparkSession, tasks: Sequence[Task]) -> pa.Table:
    begins = _begins(tasks)

    def read(number: int) -> Iterator[pa.RecordBatch]:
        for place, part in enumerate(tasks[number], begins[number]):
            yield packed(place, heads(part))

    rows = per_task(spark, len(tasks), read, PACKED).collect()
    return pa.Table.from_pylist([row.asDict() for row in rows], PACKED)


def _keep_heads(path: Path, parts: Sequence[Slice], found: pa.Table) -> None:
    """Puts them down for whoever goes on with an export that was killed, whole and synced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(".new")
    stamped = found.replace_schema_metadata({_OF: _digest(parts)})
    pq.write_table(stamped, making, compression="none", write_page_checksum=True)
    put_in_place(making, path)


def _kept_heads(path: Path, parts: Sequence[Slice]) -> pa.Table | None:
    """What was put down of just these slices, which is told by the checksums of its pages too; None
    where that is not there: the log is read again."""
    try:
        found = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None
    if (found.schema.metadata or {}).get(_OF) != _digest(parts) or len(found) != len(parts):
        return None
    return found.select(PACKED.names)


def _digest(parts: Sequence[Slice]) -> bytes:
    return hashlib.sha256(repr(list(parts)).encode()).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class RowScan:
    """The row changes of the wanted tables, as so many tasks read them."""

    spark: SparkSession
    tasks: int
    changes: RowsOfTask

    def spread(self, to: Spread) -> DataFrame:
        """As `PACKETS`, each partition by table and piece.

        A task gives no more of a key than what its last change tells, and its first one where what
        was before counts.
        """
        changes = self.changes

        def read(number: int) -> Iterator[pa.RecordBatch]:
            for batch in changes(number):
                yield to.packets(folded(batch))

        packets = per_task(self.spark, self.tasks, read, PACKETS)
        return packets.repartitionById(to.partitions, "partition").sortWithinPartitions(
            "table_id", "piece"
        )

    def each(self, take: Take, schema: pa.Schema) -> DataFrame:
        """What `take` makes of those of a task, which it gets with the number of the task."""
        changes = self.changes
        return per_task(
            self.spark, self.tasks, lambda number: take(changes(number), number), schema
        )


def of_slices(tasks: Sequence[Task], reads: Sequence[bytes], wanted: WantedTables) -> RowsOfTask:
    """Out of what is read of each slice: `events.Reads`, packed. Every task gets all of them."""
    begins = _begins(tasks)

    def changes(number: int) -> Iterator[pa.RecordBatch]:
        for place, part in enumerate(tasks[number], begins[number]):
            yield from events(committed_prewrites(part, Reads.unpacked(reads[place])), wanted)

    return changes


def _begins(tasks: Sequence[Task]) -> list[int]:
    """The number of the first slice of each task."""
    return list(accumulate(map(len, tasks), initial=0))


def per_task(
    spark: SparkSession,
    count: int,
    read: RowsOfTask,
    schema: pa.Schema,
    *,
    parts_max: int | None = None,
) -> DataFrame:
    """What so many tasks read, each told by its number; with `parts_max` some are one to Spark."""

    def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(number)

    parts = min(count, parts_max or count)
    return spark.range(0, count, 1, parts).mapInArrow(read_all, ddl_of(schema))


def ddl_of(schema: pa.Schema) -> str:
    """An Arrow schema as Spark's DDL."""
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)
