"""`spark.read.format("binlogd")` and `spark.readStream.format("binlogd")`.

    orders = spark.read.format("binlogd").option("table", "shop.orders").load("/var/lib/binlogd")
    spark.readStream.format("binlogd").load("s3://lake/binlogs")

The driver decides a range of commit_ts and cuts it; each part is read, decoded and brought to the
columns of the read by itself. An offset of a stream is a commit_ts: everything up to it is done.
The same range gives the same rows whenever it is read, so with a checkpoint they come exactly once.

Rows travel as Arrow batches whose schema is the one that Spark was told, which Spark 4.3 checks.
Source: pyspark/sql/datasource.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DecimalType, StructField, StructType

from binlogd.errors import ConfigError, Refused
from binlogd.snapshot.formats.columns import ARROW_TYPES, spark_type
from binlogd.spark.changes import change_runs
from binlogd.spark.inputs import Input, jobs_with, open_input
from binlogd.spark.net import Net
from binlogd.spark.request import ReadRequest, request
from binlogd.spark.rows import (
    BINLOG,
    RAW,
    JsonRows,
    Typed,
    TypedTable,
    binlog_batches,
    typed_schema,
    wanted_table,
)
from binlogd.spark.steps import CHANGES, STEPS, change_rows, packed_steps
from binlogd.spark.walk import LogWalk, schema_as_of
from binlogd.tso import Tso

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2
    HAS_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # the same name, if empty
        """Spark does not ask."""
else:
    HAS_LIMITS = True
    """Whether Spark tells a source where a micro-batch begins, and how much it may have."""


_SCHEMAS = {
    "raw": RAW,
    "binlog": BINLOG,
    **dict.fromkeys(("changes", "changelog"), CHANGES),
    **dict.fromkeys(("change-steps", "changelog-steps"), STEPS),
}
"""Of all forms but typed rows."""
_OFFSET = "commit_ts"
SPARK_MIN = (4, 1)


@dataclass(frozen=True)
class SourcePart(InputPartition):
    """The transactions in (after, upto]; of a net read the keys of part `number` of `parts`."""

    after: Tso
    upto: Tso
    number: int
    parts: int
    pins: str
    wanted: TypedTable | None


class BinlogdSource(DataSource):
    """The data source; `request` has the options."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises ConfigError on a Spark that is older than SPARK_MIN."""
        if tuple(map(int, pyspark.__version__.split(".")[:2])) < SPARK_MIN:
            raise ConfigError(
                f"this is Spark {pyspark.__version__}; binlogd needs 4.1 or newer: run it on"
                " another cluster, and read there what it writes"
            )
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "binlogd"

    def schema(self) -> StructType:
        """Of a table as of `to`, or as of now. Raises ConfigError, NotRunning."""
        asked = request(self.options)
        schema = _SCHEMAS.get(asked.form)
        if schema is None:
            schema = typed_schema(_wanted(asked, open_input(asked)), asked.types)
        fields = [
            StructField(each.name, from_arrow_type(each.type, prefer_timestamp_ntz=True))
            for each in schema
        ]
        return StructType(fields)

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`."""
        return BatchReader(request(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """For `spark.readStream`."""
        return StreamReader(request(self.options), schema)


class _Reading:
    """What batch and stream have in common."""

    def __init__(self, asked: ReadRequest, schema: StructType) -> None:
        self._asked, self._schema = asked, schema
        self._wanted: TypedTable | None = None

    def _cut(self, source: Input, after: Tso, upto: Tso) -> list[SourcePart]:
        if after >= upto:
            return []
        after = source.begin(after, upto)
        if self._asked.form == "rows" and self._wanted is None:
            self._wanted = _of_schema(_wanted(self._asked, source), self._schema, self._asked)
        pins = source.pin()
        if self._asked.is_net:
            parts = self._asked.partitions
            return [SourcePart(after, upto, at, parts, pins, self._wanted) for at in range(parts)]
        bounds = source.bounds(after, upto, self._asked)
        begins = [after, *bounds[:-1]]
        return [
            SourcePart(begin, end, at, len(bounds), pins, self._wanted)
            for at, (begin, end) in enumerate(zip(begins, bounds, strict=True))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one part. Spark makes a part of its own where there is none."""
        if not isinstance(partition, SourcePart):
            return
        asked = self._asked
        source = open_input(asked, partition.pins)
        binlogs = source.binlogs(partition.after, partition.upto)
        if asked.form == "binlog":
            yield from binlog_batches(binlogs)
            return
        walk = LogWalk(source.history(), partial(jobs_with, source))
        if asked.form in ("changes", "changelog"):
            yield from change_rows(change_runs(asked, walk, binlogs))
            return
        if asked.form in ("change-steps", "changelog-steps"):
            yield from packed_steps(change_runs(asked, walk, binlogs))
            return
        steps = walk.steps(binlogs)
        if asked.form == "raw":
            yield from JsonRows(asked).batches(steps)
            return
        assert partition.wanted is not None, "a typed read knows its table"
        typed = Typed(asked, partition.wanted, arrow_schema(self._schema))
        if asked.is_net:
            net = Net(asked, partition.wanted, typed, partition.number, partition.parts)
            yield from net.batches(steps)
        else:
            yield from typed.batches(steps)


class BatchReader(_Reading, DataSourceReader):
    """A range that is there already."""

    def partitions(self) -> list[SourcePart]:
        """Raises Refused for a `to` that is not decided yet."""
        source = open_input(self._asked)
        resolved = source.resolved_ts()
        upto = self._asked.upto or resolved
        if upto > resolved:
            raise Refused(
                f"option to: {upto} is above {resolved}, up to where every transaction is decided"
                " and there; leave it out to read up to that, or wait"
            )
        return self._cut(source, self._asked.after, upto)


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches, from one commit_ts to the next."""

    def __init__(self, asked: ReadRequest, schema: StructType) -> None:
        super().__init__(asked, schema)
        self._target: Tso | None = None
        check_limit(asked, has_limits=HAS_LIMITS)

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint begins."""
        return {_OFFSET: self._asked.after}

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that will be read."""
        self._target = self._end(open_input(self._asked))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the option maxTransactionsPerTrigger says: its rows are transactions."""
        return ReadMaxRows(self._asked.limit) if self._asked.limit else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, int]:
        """Up to where there is something, for the progress of a query: its backlog lies between."""
        return {_OFFSET: self._end(open_input(self._asked))}

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Up to where the next micro-batch goes, as far as Spark's limit. Spark before 4.2 gives no
        `start` and no limit. Raises ConfigError for a limit by something else than rows."""
        source = open_input(self._asked)
        end = self._end(source) if self._target is None else self._target
        if start is None:
            return {_OFFSET: end}
        begin = Tso(start[_OFFSET])
        if end <= begin:
            return {_OFFSET: begin}
        first = source.begin(begin, end)
        if not source.has_any(first, end):
            return {_OFFSET: begin}  # nothing but time has passed
        transactions = _transactions(limit)
        if transactions:
            end = source.reach(first, end, transactions)
        return {_OFFSET: end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[SourcePart]:
        """The parts of one micro-batch."""
        source = open_input(self._asked)
        return self._cut(source, Tso(start[_OFFSET]), Tso(end[_OFFSET]))

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept per batch."""

    def _end(self, source: Input) -> Tso:
        resolved = source.resolved_ts()
        return min(resolved, self._asked.upto) if self._asked.upto else resolved


def check_limit(asked: ReadRequest, *, has_limits: bool) -> None:
    """Raises ConfigError where Spark would ignore maxTransactionsPerTrigger."""
    if asked.limit and not has_limits:
        raise ConfigError(
            "option maxTransactionsPerTrigger: this Spark does not tell a source where a batch"
            " begins, so the first one would be the whole backlog whatever the option says: leave"
            " it out (`binlogd pipeline --batch 0`), or take Spark 4.2 or newer"
        )


def _transactions(limit: ReadLimit | None) -> int:
    """How many a micro-batch may have; 0 is no limit. A whole transaction comes at least."""
    if limit is None or isinstance(limit, ReadAllAvailable):
        return 0
    if isinstance(limit, ReadMaxRows):
        return max(1, limit.max_rows)
    raise ConfigError(
        f"a micro-batch is limited by {type(limit).__name__}, which binlogd cannot count: it has"
        " maxTransactionsPerTrigger alone"
    )


# --- schemas -----------------------------------------------------------------------------------


def _wanted(asked: ReadRequest, source: Input) -> TypedTable:
    return wanted_table(schema_as_of(source.history().jobs.values(), asked.upto), asked)


def _of_schema(wanted: TypedTable, schema: StructType, asked: ReadRequest) -> TypedTable:
    """The columns that Spark was told, in that order. Raises ConfigError."""
    by_name = {each.name: each for each in wanted.columns}
    names = [field.name for field in schema.fields[3:]]
    missing = [name for name in names if name not in by_name]
    if missing:
        raise ConfigError(
            f"{asked.database}.{asked.table} has no column {', '.join(missing)} any more: start"
            " the read again, which takes the columns of now, or choose some by `columns`"
        )
    return replace(wanted, columns=tuple(by_name[name] for name in names))


_ARROW_TYPES = {
    spark_type(each): each
    for each in ARROW_TYPES
    if not (pa.types.is_duration(each) or pa.types.is_time(each))
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects of the batches. Raises ConfigError for a type that no column has."""
    fields = []
    for field in schema.fields:
        if isinstance(field.dataType, DecimalType):
            type_ = pa.decimal128(field.dataType.precision, field.dataType.scale)
        else:
            name = field.dataType.simpleString().upper()
            if name not in _ARROW_TYPES:
                raise ConfigError(f"column {field.name}: binlogd has no values of type {name}")
            type_ = _ARROW_TYPES[name]
        fields.append(pa.field(field.name, type_, nullable=field.nullable))
    return pa.schema(fields)
