"""Rows beside a DDL of partitions: where those are that come behind it, and what those that came
before it leave to be done (see `tidb.turns`).

A downstream runs the DDL at the commit_ts of its binlog. So of the rows that came before, those
that no longer saw a partition on its way out went with it there, and are written once more. Of a
table without a key, reorganized, it has rows twice of which TiDB has one; these are taken out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from binlogd.drainer.txn import TableChange
from binlogd.errors import CorruptRow
from binlogd.tidb.datum import read_datum
from binlogd.tidb.encode import encode_delete, encode_insert
from binlogd.tidb.kinds import ActionType
from binlogd.tidb.model import Job, Table
from binlogd.tidb.moved_rows import Gone, MovedRows, hidden_id
from binlogd.tidb.partitions import PartitionLookup, Unplaceable
from binlogd.tidb.row import Value
from binlogd.tidb.turns import Turn
from binlogd.tso import Tso
from binlogd.wire.in_order import DELETE, INSERT, UPDATE, mutation_of, rows_of
from binlogd.wire.mutation import Mutation


def followed(
    moved: MovedRows, mutations: list[Mutation], version: int, commit_ts: int
) -> list[Mutation]:
    """At most one mutation for each table. Raises CorruptRow."""
    table_ids = moved.table_ids(commit_ts)
    if not any(each.table_id in table_ids for each in mutations):
        return mutations
    found: dict[int, list[tuple[int, bytes]]] = {}
    for mutation in mutations:
        if mutation.table_id not in table_ids:
            found.setdefault(mutation.table_id, []).extend(rows_of(mutation))
            continue
        for table_id, row in moved.where(mutation.table_id, rows_of(mutation), version, commit_ts):
            found.setdefault(table_id, []).append(row)
    return [mutation_of(table_id, rows) for table_id, rows in found.items()]


def without_repeats(mutation: Mutation) -> Mutation:
    """Without the updates and deletions that TiDB writes a second time while a reorganization is at
    work: the same bytes, right behind. Nobody changes a row twice in the same way."""
    if not (mutation.updated or mutation.deleted) or len(mutation.sequence) < 2:
        return mutation
    rows: list[tuple[int, bytes]] = []
    for each in rows_of(mutation):
        if each[0] == INSERT or not rows or rows[-1] != each:
            rows.append(each)
    return mutation_of(mutation.table_id, rows) if len(rows) < len(mutation.sequence) else mutation


class KeptChange(NamedTuple):
    """What one transaction changed in one table; `size_bytes` is what it takes in memory."""

    commit_ts: Tso
    schema_version: int
    change: TableChange
    size_bytes: int

    @property
    def rows(self) -> Mutation:
        """What happened to rows."""
        return self.change.mutation


class Left(NamedTuple):
    """What is to be done behind a DDL; `doubtful` rows may have belonged to it, or not. With
    `reason` nothing is known."""

    rows: Mutation | None = None
    doubtful: int = 0
    reason: str = ""


WORKS = (ActionType.DROP_TABLE_PARTITION, ActionType.REORGANIZE_PARTITION)
"""Jobs before which rows came that a downstream has otherwise than TiDB."""


def left_by(job: Job, before: Table, turn: Turn, came: Iterable[KeptChange]) -> Left:
    """What a job of `WORKS` leaves to be done of rows that came while it was at work."""
    is_drop = job.type == ActionType.DROP_TABLE_PARTITION
    if not is_drop and not before.has_hidden_id:
        return Left()  # rows that are written twice are one row by their key
    try:
        gone = Gone(job, before)
        assert job.table is not None, "a DDL of partitions leaves a table"
        after = PartitionLookup(job.table)
        if is_drop:
            return _staying(gone, after, before, turn, came)
        return _twice(gone, job, before, came)
    except (Unplaceable, CorruptRow) as error:
        return Left(reason=str(error))


_Key = bytes | tuple[Value, ...]
_There = tuple[int, bytes, dict[int, Value]]


def _staying(
    gone: Gone, after: PartitionLookup, before: Table, turn: Turn, came: Iterable[KeptChange]
) -> Left:
    """Rows that lie in the next partition, by their last state. Those that fit none were written
    when theirs was seen."""
    there: dict[_Key, _There] = {}
    doubtful = 0
    for each in came:
        for kind, row in rows_of(each.rows):
            values = gone.values(kind, row)
            if not gone.has(values) or after.look(values) is None:
                continue
            doubtful += turn.is_doubtful(each.schema_version, each.commit_ts)
            if not turn.is_seen(each.schema_version, each.commit_ts):
                continue
            if kind == UPDATE:
                there.pop(_key(before, kind, row, gone.old_values(row)), None)
            key = _key(before, kind, row, values)
            there.pop(key, None)
            if kind != DELETE:
                there[key] = kind, row, values
    rows = [(INSERT, _inserted(before, *each)) for each in there.values()]
    return Left(mutation_of(before.id, rows) if rows else None, doubtful)


def _twice(gone: Gone, job: Job, before: Table, came: Iterable[KeptChange]) -> Left:
    """Rows that were inserted into an old and a new partition when the older ones had been copied:
    of two that are equal, one behind the other, TiDB has the one that is in the new partition."""
    rows: list[tuple[int, bytes]] = []
    for each in came:
        if each.commit_ts <= job.snapshot_ts:
            continue
        previous: dict[int, Value] | None = None
        for kind, row in rows_of(each.rows):
            values = gone.values(kind, row)
            is_insert = kind == INSERT and gone.has(values)
            if is_insert and values == previous:
                handle = _number(hidden_id(kind, row))
                rows.append((DELETE, encode_delete(before, values, handle=handle)))
            previous = values if is_insert and values != previous else None
    return Left(mutation_of(before.id, rows) if rows else None)


def _key(info: Table, kind: int, row: bytes, values: dict[int, Value]) -> _Key:
    if info.has_hidden_id:
        return hidden_id(kind, row)
    return tuple(values[each.id] for each in info.primary_key())


def _inserted(info: Table, kind: int, row: bytes, values: dict[int, Value]) -> bytes:
    """Raises CorruptRow."""
    if kind == INSERT:
        return row
    handle = _number(hidden_id(kind, row)) if info.has_hidden_id else None
    try:
        return encode_insert(info, values, handle=handle)
    except ValueError as error:
        raise CorruptRow(str(error)) from error


def _number(datum: bytes) -> int:
    _, value, _ = read_datum(datum, 0)
    if not isinstance(value, int):
        raise CorruptRow("a hidden row id that is no number")
    return value
