"""Rows that came while DROP PARTITION was at work, in the log before a batch that begins then."""

from __future__ import annotations

from functools import partial

from binlogd.snapshot.log.moves import Ended
from binlogd.snapshot.log.rowkey import Op
from binlogd.spark.changes import change_batches
from binlogd.spark.inputs import Input, jobs_with
from binlogd.spark.lake.book import WAY_PAST, Batch, PipelineStopped
from binlogd.spark.lake.homes import Latecomers
from binlogd.spark.request import Request
from binlogd.spark.walk import Walk
from binlogd.tso import Tso

LATE_MAX = 2_000_000
"""Rows that are kept in mind."""


def latecomers(source: Input, batch: Batch, asked: Request, start: Tso) -> Latecomers:
    """Looks through the log from the begin of such DDL to the begin of the batch.

    Raises PipelineStopped where the log of then is gone, and what the log raises.
    """
    began = {
        move.table_id: move.began_ts
        for move in reversed(batch.moves.moves)
        if isinstance(move, Ended) and 0 < move.began_ts < start
    }
    if not began:
        return {}
    after = Tso(min(began.values()))
    if source.gone_ts() > after:
        raise PipelineStopped(
            f"a partition was dropped from commit_ts {after} on, and the log is complete behind"
            f" {source.gone_ts()} only: which rows went with it is not told. {WAY_PAST}"
        )
    found: dict[int, dict[bytes, int]] = {table_id: {} for table_id in began}
    count = 0
    walk = Walk(source.jobs(), partial(jobs_with, source))
    for rows in change_batches(asked, walk.steps(source.binlogs(after, start))):
        names = ("table_id", "op", "key", "schema_version", "commit_ts")
        columns = (rows.column(name).to_pylist() for name in names)
        for table_id, op, key, version, commit_ts in zip(*columns, strict=True):
            of_table = found.get(table_id)
            if of_table is None:
                continue
            if op == Op.PUT:
                count += key not in of_table
                of_table[key] = batch.moves.seen(table_id, version, commit_ts)
            else:
                of_table.pop(key, None)
        if count > LATE_MAX:
            raise PipelineStopped(
                f"a partition was dropped from commit_ts {after} on, and more than {LATE_MAX} rows"
                f" came to its table before {start}: which went with it is not told. {WAY_PAST}"
            )
    return found
