"""What the heads of all binlogs tell: which moment is decided, and which DDL lies before it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlogd.errors import Corrupt, Refused
from binlogd.snapshot.spec import ExportSpec
from binlogd.snapshot.tables.catalog import DdlBinlog
from binlogd.tso import Tso, plus_ms


def moment(heads: DataFrame, spec: ExportSpec) -> tuple[Tso, Tso, Tso]:
    """Where the log begins, the commit_ts of the snapshot, and up to where the log is complete.

    Whatever commits at or below a commit_ts that lay in the log before its files were pinned had
    its prewrite acknowledged by then, so it is in the pinned files. A prewrite without an outcome
    commits above its start_ts, and above every commit_ts that lies before it in its own shard.

    Raises Refused.
    """
    is_fake = (F.col("tp") == 2) & (F.col("start_ts") == F.col("commit_ts"))
    outcomes = heads.where((F.col("tp") != 0) & ~is_fake).select("start_ts").distinct()
    prewrites = (
        heads.where("tp = 0").groupBy("start_ts", "shard").agg(F.min("position").alias("at"))
    )
    opened = prewrites.join(outcomes, "start_ts", "left_anti")
    commits = heads.select(F.col("shard").alias("of"), "position", F.col("commit_ts").alias("ts"))
    start = opened.select(F.col("shard").alias("of"), F.lit(-1), F.lit(0)).distinct()
    is_ahead = (F.col("of") == F.col("shard")) & (F.col("position") < F.col("at"))
    floors = (
        F.broadcast(opened)
        .join(commits.union(start), is_ahead)
        .groupBy("start_ts")
        .agg(F.greatest("start_ts", F.max("ts")).alias("floor"))
    )
    seen = heads.agg(
        F.min(F.nullif("start_ts", F.lit(0))).alias("first"),
        F.max(F.when(F.col("is_seen"), F.col("commit_ts"))).alias("last"),
    ).collect()[0]
    cap = seen["last"] or 0
    floor = floors.agg(F.min("floor").alias("floor")).collect()[0]["floor"]
    resolved = cap if floor is None else min(cap, floor)
    resolved = Tso(max(resolved, min(spec.known_resolved_ts, cap)))
    resolved = max(resolved, Tso(min(spec.base_ts, cap)))
    if resolved == 0:
        raise Refused("the log holds no committed transaction: there is nothing to export")
    if spec.as_of > max(resolved, spec.known_resolved_ts):
        raise Refused(
            f"--as-of {spec.as_of} is above {resolved}, up to where every transaction of the log"
            " is decided; export `latest`, or let --wait wait until the writers have come so far"
        )
    commit_ts = Tso(spec.as_of or plus_ms(resolved, -spec.before_latest_ms))
    if commit_ts < spec.base_ts:
        raise Refused(
            f"{commit_ts} lies before the base, {spec.base_ts}; name an older base by --base"
        )
    return Tso(seen["first"]), commit_ts, resolved


def check_pairs(heads: DataFrame, commit_ts: Tso, since_ts: Tso) -> None:
    """Every commit above `since_ts` has its prewrite, and a transaction one commit_ts.

    Raises Corrupt.
    """
    commits = heads.where(f"tp = 1 and commit_ts > {since_ts} and commit_ts <= {commit_ts}")
    twice = commits.groupBy("start_ts").agg(
        F.min("commit_ts").alias("commit_ts"), F.max("commit_ts").alias("other")
    )
    prewrites = heads.where("tp = 0").select("start_ts", F.lit(1).alias("has_prewrite")).distinct()
    odd = twice.join(prewrites, "start_ts", "left").where(
        "has_prewrite is null or commit_ts <> other"
    )
    for row in odd.limit(1).collect():
        reason = (
            "the log does not hold its Prewrite"
            if row["has_prewrite"] is None
            else f"another Commit of it says {row['other']}"
        )
        raise Corrupt(f"transaction {row['start_ts']} committed at {row['commit_ts']}: {reason}")


def ddl_binlogs(heads: DataFrame, commit_ts: Tso) -> list[DdlBinlog]:
    """The DDL that is committed at the moment, oldest first."""
    rows = heads.where(f"ddl_job_id <> 0 and commit_ts <= {commit_ts}")
    found = {
        (row["commit_ts"], row["start_ts"]): DdlBinlog(
            Tso(row["commit_ts"]),
            row["ddl_job_id"],
            row["ddl_state"],
            bytes(row["ddl_query"] or b"").decode(errors="replace"),
        )
        for row in rows.collect()
    }
    return [found[key] for key in sorted(found)]
