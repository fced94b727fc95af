"""Values that come before their column: kept, and written right behind the DDL that makes it.

An ALTER with several changes shows a column that it adds some moments before its binlog. Rows of
these moments have values for it that have no place downstream yet. So the changes of transactions
that know a schema which no DDL binlog has made are kept for a while; when the DDL comes, the last
state of each row that has such a value is written once more, as an update behind the DDL and before
whatever follows.

What cannot be carried is in doubt, which the caller says aloud: changes that are no longer kept (a
restart in between, too many of them), rows without a primary key, an ALTER that rewrites another
column at the same time (rows of the moments in between have it under either id).

Invariant. No checkpoint is saved between a DDL and the values that go behind it (`savable`).
So a process that dies there meets the DDL again: with the rows, where the checkpoint saved last is
older than the job, and otherwise it says that they are in doubt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from binlogd.drainer.filtering.route import Router
from binlogd.drainer.rows.parts import size_of
from binlogd.drainer.txn import Ddl, Dml, TableChange, Txn
from binlogd.errors import CorruptRow
from binlogd.tidb.model import Table, TableAt
from binlogd.tidb.row import RowDecoder, Value, encode_update
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import NO_TS, Tso
from binlogd.wire.peek import Mutation

_KEPT_CHANGES_MAX = 10_000
_KEPT_BYTES_MAX = 16 << 20
_INSERT, _UPDATE = 0, 1

Values = dict[int, Value]


class _Kept(NamedTuple):
    commit_ts: Tso
    change: TableChange
    size_bytes: int


class _Written(NamedTuple):
    kept_after: Tso
    values_ts: Tso


class InDoubt(NamedTuple):
    """Rows of a table that changed in `after_ts < commit_ts <= up_to_ts` may lack values."""

    columns: tuple[str, ...]
    after_ts: Tso
    up_to_ts: Tso


class Carry:
    """Fed with every transaction above `after`, in order; asked what is due before each."""

    def __init__(self, schema: SchemaTracker, router: Router, after: Tso) -> None:
        self._schema, self._router = schema, router
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._last_ahead: dict[int, Tso] = {}
        self._complete_after = after
        """Everything above has been kept, so far as it ran ahead."""
        self._due: list[TableChange] = []
        self._due_after = self._kept_after = NO_TS
        self._written: deque[_Written] = deque()
        """DDLs whose values were handed out, and are not known to be applied."""
        self.rows_carried = 0

    def saw(self, txn: Txn) -> InDoubt | None:
        """Takes note of a transaction; says when values of a DDL's new columns are in doubt."""
        if isinstance(txn, Dml) and txn.schema_version > self._schema.version:
            for change in txn.changes:
                self._keep(txn.commit_ts, change)
        elif isinstance(txn, Ddl) and txn.added and not txn.is_skipped:
            return self._carry(txn)
        return None

    def due(self, before_ts: Tso) -> Dml | None:
        """What is to be written before a transaction with this commit_ts; once."""
        changes = self.left()
        if not changes:
            return None
        commit_ts = max(Tso(before_ts - 1), Tso(self._due_after + 1))
        self._written.append(_Written(self._kept_after, commit_ts))
        return Dml(self._due_after, commit_ts, self._schema.version, changes)

    def left(self) -> tuple[TableChange, ...]:
        """What is due and cannot be written any more, since nothing will follow."""
        changes, self._due = tuple(self._due), []
        return changes

    def savable(self, applied_ts: Tso) -> Tso:
        """Up to where a checkpoint may stand when everything up to `applied_ts` is applied."""
        while self._written and self._written[0].values_ts <= applied_ts:
            self._written.popleft()
        if self._written:
            return min(applied_ts, self._written[0].kept_after)
        return min(applied_ts, self._kept_after) if self._due else applied_ts

    # --- keeping ---------------------------------------------------------------------------

    def _keep(self, commit_ts: Tso, change: TableChange) -> None:
        rows, size_bytes = change.mutation, size_of(change.mutation)
        self._last_ahead[change.table.info.id] = commit_ts
        if size_bytes > _KEPT_BYTES_MAX:
            self._kept.clear()
            self._kept_bytes, self._complete_after = 0, commit_ts
            return
        # lists of their own: rows of a large binlog would keep all of it
        lists = list(rows.inserted), list(rows.updated), list(rows.deleted)
        own = TableChange(change.table, Mutation(rows.table_id, *lists, rows.sequence))
        self._kept.append(_Kept(commit_ts, own, size_bytes))
        self._kept_bytes += size_bytes
        while len(self._kept) > _KEPT_CHANGES_MAX or self._kept_bytes > _KEPT_BYTES_MAX:
            gone = self._kept.popleft()
            self._kept_bytes -= gone.size_bytes
            self._complete_after = gone.commit_ts

    def _carry(self, ddl: Ddl) -> InDoubt | None:
        assert ddl.job.table is not None, "a DDL that adds columns leaves a table"
        table_id, since = ddl.job.table.id, Tso(ddl.job.start_ts)
        last_ts = self._last_ahead.pop(table_id, NO_TS)
        is_complete = self._complete_after <= since
        if last_ts <= since and is_complete:
            return None
        changes = [
            each.change.mutation
            for each in self._kept
            if each.change.table.info.id == table_id and each.commit_ts > since
        ]
        after = self._schema.table_at(table_id, ddl.schema_version)
        carried = None
        if is_complete and after is not None and not ddl.rewrites:
            carried = _carried(after, changes, frozenset(ddl.added))
        if carried is None or after is None:
            return InDoubt(ddl.added, since, max(last_ts, ddl.commit_ts))
        if carried.updated:
            called = self._router.table(after) if self._router.has_rules else after
            self._kept_after = min(since, self._kept_after) if self._due else since
            self._due.append(TableChange(called, carried))
            self._due_after = ddl.commit_ts
            self.rows_carried += len(carried.updated)
        return None


def _carried(at: TableAt, changes: Iterable[Mutation], added: frozenset[str]) -> Mutation | None:
    """Updates that put values of the added columns in place; None where that cannot be told."""
    info = at.info
    key = _key_columns(info)
    decoder = RowDecoder(at)
    lasting: dict[tuple[Value, ...], Values] = {}
    if not key:
        return None
    try:
        for mutation in changes:
            _follow(decoder, mutation, key, lasting)
    except CorruptRow:
        return None
    columns = [column.id for column in info.columns if column.name in added]
    absent = decoder.defaults(columns)
    updated = []
    for values in lasting.values():
        if any(values[each] != absent[each] for each in columns):
            before = {**values, **absent}
            handle = None if info.pk_is_handle or info.is_common_handle else 0
            updated.append(encode_update(info, before, values, handle=handle))
    return Mutation(info.id, [], updated, [], bytes([_UPDATE]) * len(updated))


def _follow(
    decoder: RowDecoder,
    mutation: Mutation,
    key: tuple[int, ...],
    lasting: dict[tuple[Value, ...], Values],
) -> None:
    """Moves the last states of rows on by the changes of one transaction, in their order."""
    inserted, updated, deleted = map(iter, (mutation.inserted, mutation.updated, mutation.deleted))
    for kind in mutation.sequence:
        if kind == _INSERT:
            new = decoder.insert(next(inserted))
            lasting[tuple(new[each] for each in key)] = new
        elif kind == _UPDATE:
            old, new = decoder.update(next(updated))
            lasting.pop(tuple(old[each] for each in key), None)
            lasting[tuple(new[each] for each in key)] = new
        else:
            gone = decoder.delete(next(deleted))
            lasting.pop(tuple(gone[each] for each in key), None)


def _key_columns(info: Table) -> tuple[int, ...]:
    """The columns of the primary key; none where there is no key, or one of beginnings."""
    handle = info.handle_column()
    if handle is not None:
        return (handle.id,)
    index = info.primary_index()
    if index is None or any(part.length != -1 for part in index.columns):
        return ()
    return tuple(info.columns[part.offset].id for part in index.columns)
