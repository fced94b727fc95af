"""What tables hold at a moment: DataFrames in, DataFrames out; nothing here reads or writes.

Works on raw rows: which change of a key wins needs its key and its timestamps only, so rows are
decoded after this, and only those that won.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from binlogd.snapshot.log.rowkey import Op
from binlogd.tso import NO_TS, Tso


def commits(heads: DataFrame, commit_ts: Tso) -> DataFrame:
    """start_ts and commit_ts of the transactions that changed rows up to the moment."""
    return (
        heads.where(f"tp = 1 and ddl_job_id = 0 and commit_ts <= {commit_ts}")
        .groupBy("start_ts")
        .agg(F.min("commit_ts").alias("commit_ts"))
    )


def newest(
    events: DataFrame,
    committed: DataFrame,
    since: Mapping[int, Tso] | None = None,
    *,
    partitions: int,
) -> DataFrame:
    """The last change of each key, unless it is a delete. `events` as `reader.EVENTS`.

    In just so many partitions, by table and key: what goes into each is the same in every run.

    `since`: of these tables, changes with a commit_ts above it only, and deletes as well. Of
    `reader.CHANGES`, the row that each key held before the first of them is told too.
    """
    newest_first = Window.partitionBy("table_id", "key").orderBy(
        F.desc("commit_ts"), F.desc("seq"), F.desc("start_ts")
    )
    changes = events.join(committed, "start_ts")
    is_wanted = F.col("op") != Op.DELETE.value
    if since:
        begins = F.create_map(*(F.lit(each) for pair in since.items() for each in pair))
        from_ts = F.coalesce(begins[F.col("table_id")], F.lit(NO_TS))
        changes = changes.where(F.col("commit_ts") > from_ts)
        is_wanted = is_wanted | (from_ts > NO_TS)
    columns = ["table_id", "key", "op", "schema_version", "commit_ts", "row"]
    if "before" in events.columns:
        changes = _with_first(changes)
        columns += ["before", "before_version"]
    return (
        changes.repartition(partitions, "table_id", "key")
        .withColumn("newest", F.row_number().over(newest_first))
        .where((F.col("newest") == 1) & is_wanted)
        .select(*columns)
    )


def _with_first(changes: DataFrame) -> DataFrame:
    """With the operation of each key's first change, and the row that it found."""
    all_of_it = (
        Window.partitionBy("table_id", "key")
        .orderBy("commit_ts", "seq", "start_ts")
        .rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    )
    return (
        changes.withColumn("first_op", F.first("op").over(all_of_it))
        .withColumn("before", F.first("before").over(all_of_it))
        .withColumn("before_version", F.first("schema_version").over(all_of_it))
    )


def net_changes(events: DataFrame, committed: DataFrame, from_ts: Tso) -> DataFrame:
    """What each key came to behind `from_ts`: its row at the end, and the one it had before.

    A row that came and went is no change; one that went and came back is an UPDATE, like one that
    was updated. `events` as `reader.CHANGES`.
    """
    newest_first = Window.partitionBy("table_id", "key").orderBy(
        F.desc("commit_ts"), F.desc("seq"), F.desc("start_ts")
    )
    is_new = F.col("first_op") == Op.PUT.value
    is_gone = F.col("op") == Op.DELETE.value
    return (
        _with_first(_behind(events, committed, from_ts))
        .withColumn("newest", F.row_number().over(newest_first))
        .where((F.col("newest") == 1) & ~(is_new & is_gone))
        .withColumn(
            "op",
            F.when(is_gone, Op.DELETE.value)
            .when(is_new | (F.col("op") == Op.UNKNOWN_TABLE.value), F.col("first_op"))
            .otherwise(Op.UPDATE.value),
        )
        .select(*_CHANGE_COLUMNS)
    )


def all_changes(events: DataFrame, committed: DataFrame, from_ts: Tso) -> DataFrame:
    """Every change behind `from_ts`. `events` as `reader.CHANGES`."""
    return (
        _behind(events, committed, from_ts)
        .withColumn("before_version", F.col("schema_version"))
        .select(*_CHANGE_COLUMNS)
    )


_CHANGE_COLUMNS = (
    "table_id",
    "op",
    "commit_ts",
    "seq",
    "schema_version",
    "row",
    "before_version",
    "before",
)


def _behind(events: DataFrame, committed: DataFrame, from_ts: Tso) -> DataFrame:
    return events.join(committed, "start_ts").where(F.col("commit_ts") > from_ts)
