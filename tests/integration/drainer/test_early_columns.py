"""Values that came before their column stand in it downstream."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.early_columns import EarlyColumns, InDoubt, RowsInDoubt
from binlogd.drainer.filtering.route import TableRouter
from binlogd.drainer.translate import Translator
from binlogd.drainer.txn import Ddl, Dml, TableChange, Txn
from binlogd.tidb.model import ActionType, Table, jobs_from_json
from binlogd.tidb.row import Value, encode_delete, encode_insert, encode_update
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.wire.fields import uvarint
from binlogd.wire.mutation import Mutation
from binlogd.wire.slices import RowSlices
from tests.support.ddl_upstream import ID, Upstream, table, with_column
from tests.support.decoding import decoded
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, committed, history
from tests.support.replay import SKIPPED, apply_all, filter_for, sink_for
from tests.workload import schema as tidb
from tests.workload.schema import ColumnDef

WORD = ColumnDef("v", tidb.varchar(20))
BEFORE = table(10, "t", ID, WORD)
AFTER = with_column(BEFORE, ColumnDef("w", tidb.integer()), origin="7")
CREATE = "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `v` VARCHAR(20))"
ALTER = "ALTER TABLE `t` ADD COLUMN `w` INT DEFAULT 7, ADD INDEX (`v`)"


class Ahead(Upstream):
    """Rows of someone who has the new column already."""

    def rows(
        self,
        inserted: Sequence[Sequence[Value]] = (),
        updated: Sequence[tuple[Sequence[Value], Sequence[Value]]] = (),
        deleted: Sequence[Sequence[Value]] = (),
        info: Table = AFTER,
    ) -> None:
        self._ts += 10
        at = self.schema.table_at(10, self._ts)
        assert at is not None

        def values(row: Sequence[Value]) -> dict[int, Value]:
            return {c.id: v for c, v in zip(info.columns, row, strict=True)}

        mutation = Mutation(
            10,
            [encode_insert(info, values(row), handle=None) for row in inserted],
            [encode_update(info, values(a), values(b), handle=None) for a, b in updated],
            [encode_delete(info, values(row), handle=None) for row in deleted],
            b"\0" * len(inserted) + b"\1" * len(updated) + b"\4" * len(deleted),
        )
        change = TableChange(at, mutation)
        self.txns.append(Dml(Tso(self._ts - 1), Tso(self._ts), self._ts + 5, (change,)))


def carried(txns: Sequence[Txn]) -> Iterator[tuple[Txn, InDoubt | RowsInDoubt | None]]:
    """What the sink is given, as the walk does it, and what was said to be in doubt."""
    upstream = Upstream()
    early = EarlyColumns(upstream.schema, TableRouter(), Tso(100))
    for txn in txns:
        due = early.due(txn.commit_ts)
        if due is not None:
            yield due, None
        if not isinstance(txn, Dml):
            upstream.schema.apply(txn.job, 5)  # type: ignore[union-attr] # the others are DDL
        txn = early.joined(txn)
        yield txn, early.saw(txn)


async def test_the_last_value_of_each_row_stands_in_the_new_column(mariadb: MariaDb) -> None:
    upstream = Ahead()
    upstream.database("shop", "CREATE DATABASE `shop`;")
    upstream.ddl(ActionType.CREATE_TABLE, CREATE, BEFORE)
    upstream.insert(10, [1, b"old"], [2, b"old"])
    upstream.rows(inserted=[[3, b"a", 30], [4, b"b", 7], [5, b"c", 50]])
    upstream.rows(updated=[([1, b"old", 7], [1, b"new", 10]), ([3, b"a", 30], [8, b"a", 80])])
    upstream.rows(deleted=[[5, b"c", 50]])
    upstream.ddl(ActionType.MULTI_SCHEMA_CHANGE, ALTER, AFTER, start_ts=121)
    upstream.rows(updated=[([8, b"a", 80], [8, b"z", 81])])
    found = list(carried(upstream.txns))
    assert [doubt for _, doubt in found if doubt] == []
    await apply_all(sink_for(mariadb), (txn for txn, _ in found))
    assert mariadb.execute("SELECT * FROM shop.t ORDER BY id") == [
        (b"1", b"new", b"10"),
        (b"2", b"old", b"7"),
        (b"4", b"b", b"7"),
        (b"8", b"z", b"81"),
    ]


@pytest.mark.parametrize("reason", ["began before", "no key", "another column is rewritten"])
def test_what_cannot_be_carried_is_said_to_be_in_doubt(reason: str) -> None:
    upstream = Ahead()
    before, after = BEFORE, AFTER
    if reason == "no key":
        before = table(10, "t", ID, WORD, primary="")
        after = with_column(before, ColumnDef("w", tidb.integer()), origin="7")
    if reason == "another column is rewritten":
        after = with_column(table(10, "t", ID), WORD)
        after = with_column(after, ColumnDef("w", tidb.integer()))
        moved = [c if c.name == "id" else replace(c, id=c.id + 5) for c in after.columns]
        after = Table(10, "t", tuple(moved), indexes=after.indexes, pk_is_handle=True)
    upstream.database("shop", "CREATE DATABASE `shop`;")
    upstream.ddl(ActionType.CREATE_TABLE, CREATE, before)
    upstream.rows(inserted=[[3, b"a", 30]])
    start_ts = 5 if reason == "began before" else 121
    upstream.ddl(ActionType.MULTI_SCHEMA_CHANGE, ALTER, after, start_ts=start_ts)
    ((_, doubt),) = [each for each in carried(upstream.txns) if each[1] is not None]
    assert isinstance(doubt, InDoubt)
    assert doubt.columns == ("w",)
    assert doubt.after_ts == start_ts


def test_no_checkpoint_stands_between_a_ddl_and_the_values_behind_it() -> None:
    upstream = Ahead()
    upstream.database("shop", "CREATE DATABASE `shop`;")
    upstream.ddl(ActionType.CREATE_TABLE, CREATE, BEFORE)
    upstream.rows(inserted=[[3, b"a", 30]])
    upstream.ddl(ActionType.MULTI_SCHEMA_CHANGE, ALTER, AFTER, start_ts=121)
    walked = Upstream()
    early = EarlyColumns(walked.schema, TableRouter(), Tso(100))
    for txn in upstream.txns:
        if not isinstance(txn, Dml):
            walked.schema.apply(txn.job, 5)  # type: ignore[union-attr] # the others are DDL
        assert early.savable(txn.commit_ts) == txn.commit_ts
        early.saw(txn)
    ddl_ts = upstream.txns[-1].commit_ts
    assert early.savable(ddl_ts) == 121
    due = early.due(Tso(ddl_ts + 10))
    assert due is not None
    assert early.savable(Tso(due.commit_ts - 1)) == 121
    assert early.savable(due.commit_ts) == due.commit_ts


@pytest.mark.parametrize("rows", [5, 40])
def test_a_large_transaction_ahead_of_its_schema_is_not_held_for_what_may_be_carried(
    rows: int,
) -> None:
    """Neither its binlog, nor its rows as objects of their own where they are too many to keep."""
    upstream = Ahead()
    upstream.database("shop", "CREATE DATABASE `shop`;")
    upstream.ddl(ActionType.CREATE_TABLE, CREATE, BEFORE)
    at = upstream.schema.table_at(10, 1000)
    assert at is not None
    early = EarlyColumns(upstream.schema, TableRouter(), Tso(100))
    tracemalloc.start()
    try:
        row = b"\x12" + uvarint((1 << 20) - 4) + bytes((1 << 20) - 4)
        binlog = row * 48
        inserted = RowSlices(binlog, row[0])
        for number in range(rows):
            inserted.append(number << 20, (1 << 20) - 4)
        mutation = Mutation(10, cast("list[bytes]", inserted), [], [], bytes(rows))
        txn = Dml(Tso(199), Tso(200), 1000, (TableChange(at, mutation),))
        tracemalloc.reset_peak()
        early.saw(txn)
        assert tracemalloc.get_traced_memory()[1] < (48 + 7) << 20
        del row, binlog, inserted, mutation, txn
        assert tracemalloc.get_traced_memory()[0] < 6 << 20
    finally:
        tracemalloc.stop()


def _walk(last: int, after: Tso = NO_TS) -> tuple[Tso, dict[int, Mutation]]:
    """What is handed out behind each DDL of partitions of a recording, by its commit_ts, of a life
    that begins at a checkpoint and ends somewhere; and the checkpoint that it leaves."""
    jobs = {job.id: job for job in jobs_from_json(history(RECORDINGS / "windows"))}
    schema = SchemaTracker()
    schema.load(jobs.values())
    translator = Translator(schema, filter_for(SKIPPED["windows"]), Dialect.MYSQL)
    early = EarlyColumns(schema, TableRouter(), after)
    found: dict[int, Mutation] = {}
    ddl_ts = applied_ts = NO_TS
    for binlog in _binlogs()[:last]:
        txn = translator.translate(decoded(binlog, jobs))
        applied_ts = txn.commit_ts
        if txn.commit_ts <= after:
            continue
        due = early.due(binlog.commit_ts)
        if due is not None:
            found[ddl_ts] = due.changes[0].mutation
        if (held := early.joined(txn)) is not txn:
            assert isinstance(held, Dml)
            found[ddl_ts] = held.changes[0].mutation
        early.saw(txn)
        if isinstance(txn, Ddl):
            ddl_ts = txn.commit_ts
    return early.savable(applied_ts), found


@cache
def _binlogs() -> list[CommittedBinlog]:
    return list(committed(RECORDINGS / "windows"))


def test_a_life_that_ends_while_a_partition_is_dropped_loses_nothing_of_what_goes_behind() -> None:
    binlogs = _binlogs()
    _, whole = _walk(len(binlogs))
    assert len(whole) > 4
    for ddl_ts, rows in list(whole.items())[:2]:
        at = next(n for n, each in enumerate(binlogs) if each.commit_ts == ddl_ts)
        for cut in (at - 12, at, at + 1):
            checkpoint, _ = _walk(cut)
            assert checkpoint <= binlogs[cut - 1].commit_ts
            _, found = _walk(at + 2, checkpoint)
            assert found.get(ddl_ts) == rows


@pytest.mark.parametrize("gap", [1, 2, 9])
def test_what_goes_behind_a_ddl_has_one_place_whatever_follows_when(gap: int) -> None:
    upstream = Ahead()
    upstream.database("shop", "CREATE DATABASE `shop`;")
    upstream.ddl(ActionType.CREATE_TABLE, CREATE, BEFORE)
    upstream.rows(inserted=[[3, b"a", 30]])
    upstream.ddl(ActionType.MULTI_SCHEMA_CHANGE, ALTER, AFTER, start_ts=121)
    walked = Upstream()
    early = EarlyColumns(walked.schema, TableRouter(), Tso(100))
    for txn in upstream.txns:
        if not isinstance(txn, Dml):
            walked.schema.apply(txn.job, 5)  # type: ignore[union-attr] # the others are DDL
        early.saw(txn)
    ddl_ts = upstream.txns[-1].commit_ts
    upstream.rows(inserted=[[4, b"b", 40]])
    (change,) = cast(Dml, upstream.txns[-1]).changes
    following = Dml(ddl_ts, Tso(ddl_ts + gap), 200, (change,))
    due, joined = early.due(following.commit_ts), early.joined(following)
    assert early.due(Tso(ddl_ts + 50)) is None
    found = [each for each in (due, joined) if each is not None]
    kinds = [cast(Dml, each).changes[0].mutation.sequence for each in found]
    assert kinds == ([b"\1\0"] if gap == 1 else [b"\1", b"\0"])
    assert found[0].commit_ts == ddl_ts + 1
