"""What a batch asks of the log before it: rows that came while DROP or REORGANIZE PARTITION was at
work, where it begins then, and which schema versions rows had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from binlogd.errors import CorruptRow, UnreadableRow
from binlogd.snapshot.log.moves import PartitionsEnded
from binlogd.snapshot.log.rowkey import NUMBER_BYTES, Op, placed
from binlogd.snapshot.spec import DoubtfulRows
from binlogd.snapshot.tables.doubts import LOOKED_AT_MAX, DoubtStep, DoubtWait, waits
from binlogd.spark.changes import change_runs
from binlogd.spark.inputs import Input, jobs_with
from binlogd.spark.lake.homes import GONE, LateRows, TwinKeys
from binlogd.spark.lake.manifest import WAY_PAST, LakeBatch, PipelineStopped
from binlogd.spark.request import ReadRequest
from binlogd.spark.walk import LogWalk, SchemaChange
from binlogd.tso import Tso, plus_ms
from binlogd.wire import peek
from binlogd.wire.mutation import mutations_of

LATE_MAX = 2_000_000
"""Rows that are kept in mind."""
ASKED_MS = 600_000
"""Of the log before and behind the begin of a DDL job, for the schema versions of its rows."""


def newest_version(source: Input, end: Tso, before_ts: int) -> int:
    """The highest schema version of rows whose transaction began before a time, as far as the log
    of some minutes tells; 0 where it tells none. Raises what the log raises."""
    after = max(source.gone_ts(), plus_ms(Tso(before_ts), -ASKED_MS), Tso(0))
    newest = 0
    for binlog in source.binlogs(after, min(end, plus_ms(Tso(before_ts), ASKED_MS))):
        if binlog.start_ts < before_ts and not peek.peek(bytes(binlog.payload)).ddl_job_id:
            newest = max(newest, mutations_of(binlog.payload, lambda _: False)[0])
    return newest


def late_rows(source: Input, batch: LakeBatch, asked: ReadRequest, start: Tso) -> LateRows:
    """Looks through the log from the begin of such DDL to the begin of the batch.

    Raises PipelineStopped where the log of then is gone, and what the log raises.
    """
    moves = batch.moves
    dropping = {
        move.table_id: move.began_ts
        for move in reversed(moves.moves)
        if isinstance(move, PartitionsEnded) and 0 < move.began_ts < start
    }
    writing_twice = {
        each.table_id: each.copied_ts
        for each in reversed(moves.twice)
        if each.copied_ts < start and each.version > batch.version
    }
    if not dropping and not writing_twice:
        return {}
    after = Tso(min((*dropping.values(), *writing_twice.values())))
    if source.gone_ts() > after:
        raise PipelineStopped(
            f"a partition was dropped or reorganized from commit_ts {after} on, and the log is"
            f" complete behind {source.gone_ts()} only: which rows went with it is not told."
            f" {WAY_PAST}"
        )
    late = _Late(batch, frozenset(dropping), frozenset(writing_twice))
    walk = LogWalk(source.history(), partial(jobs_with, source))
    for rows in change_runs(asked, walk, source.binlogs(after, start)):
        if isinstance(rows, SchemaChange):
            continue
        for row in rows.to_pylist():
            late.take(row)
        if late.count > LATE_MAX:
            raise PipelineStopped(
                f"a partition was dropped or reorganized from commit_ts {after} on, and more than"
                f" {LATE_MAX} rows came to its table before {start}: which went with it is not"
                f" told. {WAY_PAST}"
            )
    return late.found


def in_doubt(source: Input, batch: LakeBatch, start: Tso) -> tuple[DoubtfulRows, ...]:
    """Rows of which nobody knows whether they saw a DDL of partitions: of one that is done in this
    batch all that came until its end, of one before it what came since. Raises what the log raises.
    """

    def since(step: DoubtStep) -> int:
        is_done_before = step.move.version <= batch.version
        begin = start if is_done_before else step.turn.published_ts
        return max(begin, step.turn.published_ts, source.gone_ts())

    return doubts_of(source, waits(batch.after, batch.moves, since), Tso(batch.end))


def doubts_of(source: Input, asked: Iterable[DoubtWait], end: Tso) -> tuple[DoubtfulRows, ...]:
    """What the log up to a moment tells of each. Raises what the log raises."""
    found = []
    for each in asked:
        upto = Tso(min(each.turn.settled_ts, end))
        limit = None
        for number, binlog in enumerate(source.binlogs(Tso(each.since_ts), upto)):
            if number == LOOKED_AT_MAX:
                limit = number
                break
            if not binlog.is_fake and not peek.peek(bytes(binlog.payload)).ddl_job_id:
                version, tables = mutations_of(binlog.payload, {each.table_id}.__contains__)
                for change in tables:
                    each.take(change, version, binlog.commit_ts)
        if each.rows or limit is not None:
            found.append(each.report(limit))
    return tuple(found)


class _Late:
    """Takes the changes of then, in their order."""

    def __init__(self, batch: LakeBatch, dropping: frozenset[int], writing_twice: frozenset[int]):
        self._batch, self._dropping = batch, dropping
        self._follower = batch.moves.followed()
        self._twins = TwinKeys(self._follower)
        self.found: dict[int, dict[bytes, int]] = {
            table_id: {} for table_id in dropping | writing_twice
        }
        self.count = 0

    def take(self, row: Mapping[str, Any]) -> None:
        """Raises UnreadableRow."""
        table_id = row["table_id"]
        of_table = self.found.get(table_id)
        if of_table is None:
            return
        version = self._batch.moves.seen(table_id, row["schema_version"], row["commit_ts"])
        try:
            twin = self._twins.gone({**row, "schema_version": version})
            key = self._held(row, row["key"])
            gone = self._held(row, twin) if twin is not None else None
        except CorruptRow as error:
            raise UnreadableRow(f"table id {table_id}", row["commit_ts"], str(error)) from error
        of_table.pop(key, None)
        if row["op"] != Op.DELETE and table_id in self._dropping:
            of_table[key] = version
            self.count += 1
        if gone is not None:
            of_table[gone] = GONE
            self.count += 1

    def _held(self, row: Mapping[str, Any], key: bytes) -> bytes:
        """The key that the lake has of a row."""
        table_id, batch = row["table_id"], self._batch
        if table_id not in batch.placed:
            return key
        place = self._follower.place_at(table_id, batch.version_of(table_id), row["row"])
        return placed(key[:NUMBER_BYTES], place)
