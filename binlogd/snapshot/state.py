"""What tables hold at a moment: DataFrames in, DataFrames out; nothing here reads or writes.

Works on raw rows: which change of a key wins needs its key and its timestamps only, so rows are
decoded after this, and only those that won.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from binlogd.snapshot.rowkey import Op
from binlogd.tso import NO_TS, Tso


def commits(heads: DataFrame, commit_ts: Tso) -> DataFrame:
    """start_ts and commit_ts of the transactions that changed rows up to the moment."""
    return (
        heads.where(f"tp = 1 and ddl_job_id = 0 and commit_ts <= {commit_ts}")
        .groupBy("start_ts")
        .agg(F.min("commit_ts").alias("commit_ts"))
    )


def newest(
    events: DataFrame, committed: DataFrame, since: Mapping[int, Tso] | None = None
) -> DataFrame:
    """The last change of each key, unless it is a delete. `events` as `reader.EVENTS`.

    `since`: of these tables, changes with a commit_ts above it only, and deletes as well.
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
    return (
        changes.withColumn("newest", F.row_number().over(newest_first))
        .where((F.col("newest") == 1) & is_wanted)
        .select("table_id", "key", "op", "schema_version", "commit_ts", "row")
    )
