"""What tables hold at a moment: DataFrames in, DataFrames out; nothing here reads or writes.

Works on raw rows: which change of a key wins needs its key and its timestamps only, so rows are
decoded after this, and only those that won.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from binlogd.snapshot.rowkey import Op
from binlogd.tso import Tso


def commits(heads: DataFrame, commit_ts: Tso) -> DataFrame:
    """start_ts and commit_ts of the transactions that changed rows up to the moment."""
    return (
        heads.where(f"tp = 1 and ddl_job_id = 0 and commit_ts <= {commit_ts}")
        .groupBy("start_ts")
        .agg(F.min("commit_ts").alias("commit_ts"))
    )


def newest(events: DataFrame, committed: DataFrame) -> DataFrame:
    """The last change of each key, unless it is a delete. `events` as `reader.EVENTS`."""
    newest_first = Window.partitionBy("table_id", "key").orderBy(
        F.desc("commit_ts"), F.desc("seq"), F.desc("start_ts")
    )
    return (
        events.join(committed, "start_ts")
        .withColumn("newest", F.row_number().over(newest_first))
        .where(f"newest = 1 and op <> {Op.DELETE.value}")
        .select("table_id", "key", "schema_version", "commit_ts", "row")
    )
