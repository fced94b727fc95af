"""Rows beside a DDL of partitions, in all its kinds, with a key and without."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from binlogd.drainer.late import KeptChange, Left, followed, left_by, without_repeats
from binlogd.drainer.txn import TableChange
from binlogd.tidb.encode import encode_delete, encode_insert, encode_update
from binlogd.tidb.kinds import (
    DELETE,
    FLAG_NOT_NULL,
    FLAG_PRIMARY_KEY,
    INSERT,
    UPDATE,
    ActionType,
    PartitionKind,
    Tp,
)
from binlogd.tidb.model import (
    Column,
    FieldType,
    Job,
    Table,
    TableAt,
    job_from_json,
    table_to_json,
)
from binlogd.tidb.moved_rows import Doubt
from binlogd.tidb.partitioning import Partition, Partitioning
from binlogd.tidb.row import Value
from binlogd.tidb.schema import SchemaTracker
from binlogd.tidb.turns import turn_of
from binlogd.tso import Tso
from binlogd.wire.in_order import mutation_of
from binlogd.wire.mutation import Mutation

K = Column(1, "k", 0, FieldType(Tp.LONGLONG, FLAG_PRIMARY_KEY | FLAG_NOT_NULL))
N = Column(2, "n", 1, FieldType(Tp.LONGLONG))
LOW, HIGH, NEW = Partition(101, ("10",)), Partition(102, ("MAXVALUE",)), Partition(103, ("10",))
SPLIT = Partition(104, ("20",)), Partition(105, ("MAXVALUE",))
PLAIN_ID = 50
VERSION, BEGAN, DONE, FINISHED, COPIED = 9, 1000, 1200, 1300, 1100


def table(*parts: Partition, kind: int = PartitionKind.RANGE, is_keyed: bool = True) -> Table:
    told = Partitioning(kind, "`k`", (), parts)
    ids = tuple(each.id for each in parts)
    return Table(
        40,
        "t",
        (K, N),
        pk_is_handle=is_keyed,
        partition_ids=ids,
        partitioning=told if ids else None,
    )


def job(kind: int, after: Table, table_id: int = 40) -> Job:
    known = {
        "id": 7,
        "type": int(kind),
        "state": 6,
        "schema_id": 2,
        "table_id": table_id,
        "real_start_ts": BEGAN,
        "start_ts": BEGAN - 1,
        "snapshot_ver": COPIED,
        "binlog": {
            "SchemaVersion": VERSION,
            "FinishedTS": FINISHED,
            "TableInfo": json.loads(table_to_json(after)),
        },
    }
    return job_from_json(json.dumps(known).encode())


def created(info: Table, version: int = 1) -> Job:
    return replace(
        job(ActionType.CREATE_TABLE, info, info.id),
        id=info.id,
        schema_version=version,
        finished_ts=5,
    )


def rows(info: Table, *changes: tuple[int, int, int]) -> Mutation:
    """Of (kind, k, n); an update is of a row that had 0 before. Hidden ids are 100 * n."""
    made = []
    for kind, k, n in changes:
        values: dict[int, Value] = {K.id: k, N.id: n}
        handle = None if info.pk_is_handle else 100 * max(n, 1)
        if kind == INSERT:
            made.append((kind, encode_insert(info, values, handle=handle)))
        elif kind == UPDATE:
            old: dict[int, Value] = {K.id: k, N.id: 0}
            made.append((kind, encode_update(info, old, values, handle=handle)))
        else:
            made.append((kind, encode_delete(info, values, handle=handle)))
    return mutation_of(info.id, made)


def tracker_after(kind: int, before: Table, after: Table) -> SchemaTracker:
    tracker = SchemaTracker()
    tracker.apply(created(before), 5)
    plain = replace(before, id=PLAIN_ID, name="plain", partition_ids=(), partitioning=None)
    tracker.apply(created(plain), 5)
    is_exchange = kind == ActionType.EXCHANGE_TABLE_PARTITION
    tracker.apply(job(kind, after, PLAIN_ID if is_exchange else 40), 0)
    return tracker


TRUNCATED = table(NEW, HIGH)
EXCHANGED = table(LOW._replace(id=PLAIN_ID), HIGH)


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(
    ("kind", "after", "version", "commit_ts", "expected"),
    [
        (ActionType.TRUNCATE_TABLE_PARTITION, TRUNCATED, 8, DONE + 1, {40: [15]}),
        (ActionType.TRUNCATE_TABLE_PARTITION, TRUNCATED, 8, FINISHED + 1, {40: [5, 15]}),
        (ActionType.TRUNCATE_TABLE_PARTITION, TRUNCATED, 9, DONE + 1, {40: [5, 15]}),
        (ActionType.EXCHANGE_TABLE_PARTITION, EXCHANGED, 8, DONE + 1, {101: [5], 40: [15]}),
        (ActionType.EXCHANGE_TABLE_PARTITION, EXCHANGED, 9, DONE + 1, {40: [5, 15]}),
    ],
)
def test_a_row_behind_a_ddl_is_where_it_was_written(
    kind: int,
    after: Table,
    version: int,
    commit_ts: int,
    expected: dict[int, list[int]],
    *,
    is_kept: bool,
) -> None:
    before = table(LOW, HIGH)
    tracker = tracker_after(kind, before, after)
    if is_kept:
        tracker = SchemaTracker.from_snapshot(tracker.snapshot())
    change = rows(before, (INSERT, 5, 1), (INSERT, 15, 2))
    found = followed(tracker.moved, [change], version, commit_ts)
    assert {each.table_id: len(each.inserted) for each in found} == {
        table_id: len(keys) for table_id, keys in expected.items()
    }
    is_moved = version < VERSION and commit_ts <= FINISHED
    assert tracker.moved.take_doubts() == ([Doubt(40, 1)] if is_moved else [])


def test_a_row_of_an_exchanged_plain_table_is_in_the_partition_with_those_that_are_there() -> None:
    before = table(LOW, HIGH)
    moved = tracker_after(ActionType.EXCHANGE_TABLE_PARTITION, before, EXCHANGED).moved
    late = msgspec.structs.replace(rows(before, (INSERT, 6, 1), (DELETE, 7, 2)), table_id=PLAIN_ID)
    (found,) = followed(moved, [late, rows(before, (INSERT, 15, 2))], 8, DONE + 1)
    assert found.table_id == 40
    assert found.sequence == bytes([INSERT, DELETE, INSERT])


def test_changes_and_deletions_of_what_is_gone_are_left_out() -> None:
    moved = tracker_after(ActionType.TRUNCATE_TABLE_PARTITION, table(LOW, HIGH), TRUNCATED).moved
    change = rows(table(LOW, HIGH), (UPDATE, 5, 1), (DELETE, 6, 1), (UPDATE, 15, 1))
    (found,) = followed(moved, [change], 8, DONE + 1)
    assert found.sequence == bytes([UPDATE])


def test_where_partitions_are_not_told_apart_rows_stay_and_are_named() -> None:
    before = table(LOW, HIGH, kind=PartitionKind.KEY)
    moved = tracker_after(ActionType.TRUNCATE_TABLE_PARTITION, before, TRUNCATED).moved
    (found,) = followed(moved, [rows(before, (INSERT, 5, 1))], 8, DONE + 1)
    assert len(found.inserted) == 1
    (doubt,) = moved.take_doubts()
    assert "range, list or hash" in doubt.reason


def test_a_ddl_is_forgotten_when_no_row_can_be_older() -> None:
    moved = tracker_after(ActionType.TRUNCATE_TABLE_PARTITION, table(LOW, HIGH), TRUNCATED).moved
    assert moved.pasts
    assert moved.table_ids(FINISHED + 1) == frozenset()
    assert not moved.pasts


def kept(commit_ts: int, version: int, changed: Mutation) -> KeptChange:
    at = TableAt("shop", table(LOW, HIGH), 5, None, {}, may_lack_columns=False)
    return KeptChange(Tso(commit_ts), version, TableChange(at, changed), 0)


def left(kind: int, before: Table, after: Table, *came: KeptChange) -> Left:
    made = job(kind, after)
    return left_by(made, before, turn_of(made, DONE, ()), came)


@pytest.mark.parametrize("is_keyed", [True, False])
def test_rows_that_no_longer_saw_a_dropped_partition_are_written_again(*, is_keyed: bool) -> None:
    before, after = table(LOW, HIGH, is_keyed=is_keyed), table(HIGH, is_keyed=is_keyed)
    found = left(
        ActionType.DROP_TABLE_PARTITION,
        before,
        after,
        kept(1010, 6, rows(before, (INSERT, 1, 1))),
        kept(1020, 7, rows(before, (INSERT, 2, 2), (INSERT, 3, 3), (INSERT, 15, 4))),
        kept(1030, 8, rows(before, (INSERT, 4, 5), (DELETE, 3, 3))),
    )
    assert found.doubtful == 1  # the first: what it saw nobody knows
    assert found.rows == rows(before, (INSERT, 2, 2), (INSERT, 4, 5))


def test_the_last_state_of_a_row_is_written_again() -> None:
    before = table(LOW, HIGH)
    change = rows(before, (INSERT, 2, 0), (UPDATE, 2, 8))
    found = left(ActionType.DROP_TABLE_PARTITION, before, table(HIGH), kept(1020, 7, change))
    assert found == Left(rows(before, (INSERT, 2, 8)))


def test_a_row_that_would_fit_no_partition_saw_its_own() -> None:
    before, after = table(LOW, HIGH), table(LOW)
    came = kept(1020, 6, rows(before, (INSERT, 15, 1)))
    assert left(ActionType.DROP_TABLE_PARTITION, before, after, came) == Left()


@pytest.mark.parametrize("is_keyed", [True, False])
def test_of_a_row_that_is_written_twice_behind_the_copying_one_is_taken_out(
    *, is_keyed: bool
) -> None:
    before = table(LOW, HIGH, is_keyed=is_keyed)
    after = table(LOW, *SPLIT, is_keyed=is_keyed)
    twice = rows(before, (INSERT, 15, 3), (INSERT, 15, 3), (INSERT, 5, 4), (INSERT, 5, 4))
    found = left(
        ActionType.REORGANIZE_PARTITION,
        before,
        after,
        kept(COPIED, 7, twice),
        kept(COPIED + 1, 8, twice),
    )
    assert found == Left(None if is_keyed else rows(before, (DELETE, 15, 3)))
    moved = tracker_after(ActionType.REORGANIZE_PARTITION, before, after).moved
    (late,) = followed(moved, [twice], 8, DONE + 1)
    assert len(late.inserted) == (4 if is_keyed else 3)


def test_an_update_or_a_deletion_that_is_written_twice_is_taken_once() -> None:
    info = table(LOW, HIGH, is_keyed=False)
    twice = rows(
        info,
        *[(INSERT, 5, 1)] * 2,
        *[(UPDATE, 5, 1)] * 2,
        *[(DELETE, 5, 1)] * 2,
        (UPDATE, 5, 2),
        (UPDATE, 5, 3),
    )
    kinds = [INSERT, INSERT, UPDATE, DELETE, UPDATE, UPDATE]
    assert without_repeats(twice).sequence == bytes(kinds)
