"""The log as DataFrames: one Spark task reads a few slices of pinned files in a Python worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from binlogd.errors import Refused
from binlogd.snapshot.formats.columns import spark_type
from binlogd.snapshot.log import reader

Task = tuple[reader.Slice, ...]


def heads(spark: SparkSession, parts: Sequence[Task]) -> DataFrame:
    """One row per binlog of the log, as `reader.HEADS`. Raises Refused where there is none."""
    if not parts:
        raise Refused("the log holds no binlogs: there is nothing to export")
    return _per_slice(spark, parts, reader.heads, reader.HEADS)


def events(spark: SparkSession, parts: Sequence[Task], wanted: reader.Wanted) -> DataFrame:
    """One row per row change of the wanted tables, as `wanted.schema`, committed or not."""
    return _per_slice(spark, parts, lambda part: reader.events(part, wanted), wanted.schema)


def _per_slice(
    spark: SparkSession,
    parts: Sequence[Task],
    read: Callable[[reader.Slice], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in parts[number]:
                    yield from read(part)

    count = len(parts)
    return spark.range(0, count, 1, count).mapInArrow(read_all, ddl_of(schema))


def ddl_of(schema: pa.Schema) -> str:
    """An Arrow schema as Spark's DDL."""
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)
