"""A stream of the data source without a Spark, killed after every batch and begun again.

What stays between two batches is what Spark writes down: the offset, as JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from binlogd.errors import ConfigError, SchemaChanged
from binlogd.snapshot.formats.columns import arrow_column
from binlogd.snapshot.spec import TypeOptions
from binlogd.spark.source import BinlogdSource, arrow_schema
from binlogd.tidb.model import Table
from binlogd.tso import MAX_TS, Tso
from binlogd.wire.peek import peek
from tests.support import snapshot_reader
from tests.support.data_directory import write_log
from tests.support.logged import Logged
from tests.support.recordings_reader import Row
from tests.workload.generator import Options, Workload

KILLED = 0.3
"""After this share of its batches a query is killed."""
ENDS = ("truncate", "drop")
GONE = "delete"


@dataclass(frozen=True)
class Growing:
    """The log of a workload and its DDL history, as they stood at several moments of its life."""

    logged: Logged
    payloads: list[bytes]
    stages: list[tuple[int, bytes]]
    """How many payloads there were, and the history."""
    segment_bytes: int

    @classmethod
    def made(cls, directory: Path, options: Options, rng: Random, stages: int) -> Growing:
        """Plays the workload to its end; nothing is written yet."""
        workload, payloads, seen = Workload(options), list[bytes](), list[tuple[int, bytes]]()
        ddl: set[int] = set()
        for record in workload.records():
            payloads.append(record.payload)
            ddl |= {peek(record.payload).ddl_job_id} - {0}
            if len(ddl) <= workload.job_count:  # else the job of a binlog is not over yet
                seen.append((len(payloads), workload.history()))
        ends = sorted({*rng.sample(range(len(seen)), min(stages, len(seen)) - 1), len(seen) - 1})
        logged = Logged(directory / "data", directory / "history.json", workload)
        return cls(logged, payloads, [seen[end] for end in ends], rng.choice([2_000, 1 << 15]))

    def grown(self) -> Iterator[Logged]:
        """The same log, further each time."""
        for count, history in self.stages:
            data = self.logged.data_dir
            data.mkdir(exist_ok=True)
            write_log(data, self.payloads[:count], segment_bytes=self.segment_bytes)
            self.logged.history.write_bytes(history)
            yield self.logged


@dataclass
class Stream:
    """A query with a checkpoint, which is killed behind a batch now and then."""

    options: dict[str, str]
    rng: Random
    batches: list[pa.Table] = field(default_factory=list)
    _offset: str = ""
    _schema: StructType | None = None
    """That of the query while it lives."""

    def drain(self) -> None:
        """Everything that is there. A query that ends by a new schema is begun again."""
        while True:  # ends with what is there
            try:
                while self._batch():
                    if self.rng.random() < KILLED:
                        self._schema = None
            except (SchemaChanged, ConfigError):
                assert self._schema is not None, "what was just begun knows the newest schema"
                self._schema = None
            else:
                return

    def rows(self) -> pa.Table:
        """All of it, in the columns that every batch has."""
        last = self.batches[-1].schema
        names = [each for each in last.names if all(each in of.column_names for of in self.batches)]
        return pa.concat_tables([each.select(names) for each in self.batches])

    def _batch(self) -> bool:
        is_new = self._schema is None
        schema = self._schema or BinlogdSource(self.options).schema()
        reader = BinlogdSource(self.options).streamReader(schema)
        start = json.loads(self._offset) if self._offset else reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, None)
        if end == start:
            return False
        rows = self._rows(schema, start, end)
        if is_new:
            assert rows.equals(self._rows(schema, start, end)), "done again, it is the same"
        self._schema, self._offset = schema, json.dumps(end)
        self.batches.append(rows)
        return True

    def _rows(self, schema: StructType, start: dict[str, int], end: dict[str, int]) -> pa.Table:
        reader = BinlogdSource(self.options).streamReader(schema)
        parts = reader.partitions(start, end)
        batches = [batch for part in parts for batch in reader.read(part)]
        return pa.Table.from_batches(batches, arrow_schema(schema))


def key_columns(table: Table) -> list[str]:
    """What a reader tells rows apart by: the primary key."""
    primary = table.primary_index()
    if primary is not None:
        return [table.columns[each.offset].name for each in primary.columns]
    handle = table.handle_column()
    return [handle.name] if handle is not None else []


def folded(table: Table, batches: Sequence[pa.Table]) -> Counter[Row]:
    """What a reader of a stream holds who keeps the last row of each primary key, canonical."""
    keys = key_columns(table)
    held: dict[Hashable, dict[str, Any]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            key = tuple(row[name] for name in keys)
            if row["_op"] in ENDS:
                held.clear()
            elif row["_op"] == GONE:
                held.pop(key, None)
            else:
                held[key] = row
    columns = [each for each in table.columns if each.is_public]
    entries = [arrow_column(each, TypeOptions()).entry() for each in columns]
    if not held:
        return Counter()
    whole = pa.Table.from_pylist(list(held.values()), batches[-1].schema)
    return snapshot_reader.rows_of(whole.select([each.name for each in columns]), entries)


def tables_at(workload: Workload, at: Tso = MAX_TS) -> dict[str, Table]:
    """Those that a stream can be folded of: they have a primary key."""
    return {
        ".".join(name): table
        for name, table in workload.model.tables(at).items()
        if key_columns(table)
    }
