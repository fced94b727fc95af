"""Values that come before their column: kept, and written right behind the DDL that makes it.

An ALTER with several changes shows a column that it adds some moments before its binlog. Rows of
these moments have values for it that have no place downstream yet. So the changes of transactions
that know a schema which no DDL binlog has made are kept for a while; when the DDL comes, the last
state of each row that has such a value is written once more, as an update behind the DDL and before
whatever follows.

What cannot be carried is in doubt, which the caller says aloud: changes that are no longer kept (a
restart in between, too many of them), rows without a primary key, an ALTER that rewrites another
column at the same time (rows of the moments in between have it under either id).

A DDL of partitions leaves more to be done (see `late`): rows that came while DROP PARTITION was at
work and lie in the next partition are written once more behind it. Its steps are told by schema
versions, so these rows are ahead as well; where jobs of several versions run beside each other, a
version may be made by one and known by the binlog of another. Then the changes of partitioned
tables are kept for some time in any case, up to the same limits.

Invariant. No checkpoint is saved between a DDL and the values that go behind it (`savable`).
Nor does one pass a change that is kept of a partitioned table, as long as it may be needed.
So a process that dies there meets the DDL again: with the rows, where the checkpoint saved last is
older than the job, and otherwise it says that they are in doubt.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from binlogd.drainer.filtering.route import TableRouter
from binlogd.drainer.late import WORKS, KeptChange, left_by
from binlogd.drainer.rows.parts import size_of
from binlogd.drainer.txn import Ddl, Dml, TableChange, Txn
from binlogd.errors import CorruptRow
from binlogd.tidb.model import ActionType, Table, TableAt
from binlogd.tidb.row import RowDecoder, Value, encode_update
from binlogd.tidb.schema import SchemaTracker
from binlogd.tidb.turns import turn_of
from binlogd.tso import NO_TS, Tso, plus_ms
from binlogd.wire.in_order import DELETE, INSERT, UPDATE, Values, changes_of, mutation_of, rows_of
from binlogd.wire.mutation import Mutation

KEPT_CHANGES_MAX = 50_000
KEPT_BYTES_MAX = 32 << 20
_CHANGE_BYTES, _ROW_BYTES = 400, 40  # of the objects around, roughly
TABLES_KEPT_MAX = 10_000
_DDLS_KEPT_MAX = 256
_VERSIONS_KEPT_MAX = 256
_KEPT_MS = 120_000
"""How long changes of partitioned tables may hold a checkpoint back."""
_STEPS: dict[int, int] = {
    **dict.fromkeys(
        (
            ActionType.ADD_COLUMN,
            ActionType.DROP_COLUMN,
            ActionType.ADD_INDEX,
            ActionType.DROP_INDEX,
            ActionType.ADD_PRIMARY_KEY,
        ),
        4,
    ),
    ActionType.DROP_TABLE: 3,
    ActionType.DROP_SCHEMA: 3,
    ActionType.DROP_TABLE_PARTITION: 3,
    ActionType.ADD_TABLE_PARTITION: 2,
    ActionType.EXCHANGE_TABLE_PARTITION: 2,
    ActionType.REORGANIZE_PARTITION: 5,
}
"""Schema versions that a job makes; of others one. More of them tell of another job at work."""


class _Done(NamedTuple):
    commit_ts: Tso
    schema_version: int


class _Written(NamedTuple):
    kept_after: Tso
    values_ts: Tso


class InDoubt(NamedTuple):
    """Rows of a table that changed in `after_ts < commit_ts <= up_to_ts` may lack values."""

    columns: tuple[str, ...]
    after_ts: Tso
    up_to_ts: Tso


class RowsInDoubt(NamedTuple):
    """Of rows of a table that changed in `after_ts < commit_ts <= up_to_ts` nobody knows whether
    they went with a partition; how many, and why, as far as that is known."""

    after_ts: Tso
    up_to_ts: Tso
    rows: int = 0
    reason: str = ""


class EarlyColumns:
    """Fed with every transaction above `after`, in order; asked what is due before each."""

    def __init__(self, schema: SchemaTracker, router: TableRouter, after: Tso) -> None:
        self._schema, self._router = schema, router
        self._kept: deque[KeptChange] = deque()
        self._kept_bytes = 0
        self._last_ahead: OrderedDict[int, Tso] = OrderedDict()
        self._from_version = schema.version
        self._complete_after = after
        """Everything above has been kept, so far as it ran ahead."""
        self.waiting: list[TableChange] = []
        """What is due before the next transaction; empty most of the time."""
        self._due_after = self._kept_after = NO_TS
        self._written: deque[_Written] = deque()
        """DDLs whose values were handed out, and are not known to be applied."""
        self._done: deque[_Done] = deque(maxlen=_DDLS_KEPT_MAX)
        self._first_seen: dict[int, Tso] = {}
        """The least start_ts of the newest schema versions."""
        self._keeps_since = self._keeps_until = NO_TS
        """From one DDL on all changes of partitioned tables are kept, up to a commit_ts."""

    def saw(self, txn: Txn) -> InDoubt | RowsInDoubt | None:
        """Takes note of a transaction; says what is in doubt behind a DDL."""
        if isinstance(txn, Dml):
            is_ahead = txn.schema_version > self._schema.version
            if is_ahead or txn.commit_ts <= self._keeps_until:
                first = self._first_seen.get(txn.schema_version, txn.start_ts)
                self._first_seen[txn.schema_version] = min(first, txn.start_ts)
                if len(self._first_seen) > _VERSIONS_KEPT_MAX:
                    del self._first_seen[min(self._first_seen)]
                for change in txn.changes:
                    if is_ahead or change.table.info.partition_ids:
                        self._keep(txn, change)
        elif isinstance(txn, Ddl):
            return self._saw_ddl(txn)
        return None

    def due(self, before_ts: Tso) -> Dml | None:
        """What is to be written before a transaction with this commit_ts; once. It stands right
        behind its DDL, in every life: a sink knows by the commit_ts what it has."""
        if not self.waiting or before_ts <= self._due_after + 1:
            return None
        return self._due_with(Tso(self._due_after + 1), self._schema.version, ())

    def joined(self, txn: Txn) -> Txn:
        """A transaction at the very commit_ts where something is due, with it in front."""
        if not self.waiting or isinstance(txn, Ddl) or txn.commit_ts <= self._due_after:
            return txn
        if isinstance(txn, Dml):
            return self._due_with(txn.commit_ts, txn.schema_version, txn.changes)
        return self._due_with(txn.commit_ts, self._schema.version, ())

    def _due_with(self, commit_ts: Tso, version: int, changes: tuple[TableChange, ...]) -> Dml:
        found = {change.table.info.id: change for change in self.left()}
        for change in changes:
            table_id = change.table.info.id
            if (due := found.get(table_id)) is not None:
                rows = [*rows_of(due.mutation), *rows_of(change.mutation)]
                found[table_id] = TableChange(change.table, mutation_of(table_id, rows))
            else:
                found[table_id] = change
        self._written.append(_Written(self._kept_after, commit_ts))
        return Dml(self._due_after, commit_ts, version, tuple(found.values()))

    def left(self) -> tuple[TableChange, ...]:
        """What is due and cannot be written any more, since nothing will follow."""
        changes, self.waiting = tuple(self.waiting), []
        return changes

    def savable(self, applied_ts: Tso, *, at_rest: bool = False) -> Tso:
        """Up to where a checkpoint may stand when everything up to `applied_ts` is applied.

        At rest nothing is held back for a job that may be at work and that nothing tells of: if it
        was, its DDL is in doubt after the next start, which is said.
        """
        while self._written and self._written[0].values_ts <= applied_ts:
            self._written.popleft()
        needed = [applied_ts]
        if self._written:
            needed.append(self._written[0].kept_after)
        elif self.waiting:
            needed.append(self._kept_after)
        since = plus_ms(applied_ts, -_KEPT_MS)
        for kept in self._kept:
            is_ahead = kept.schema_version > self._schema.version
            is_needed = is_ahead or (applied_ts <= self._keeps_until and not at_rest)
            if kept.commit_ts > since and is_needed and kept.change.table.info.partition_ids:
                needed.append(Tso(kept.commit_ts - 1))
                break
        return min(needed)

    # --- keeping ---------------------------------------------------------------------------

    def _keep(self, txn: Dml, change: TableChange) -> None:
        commit_ts = txn.commit_ts
        rows = change.mutation
        size_bytes = size_of(rows) + _CHANGE_BYTES + _ROW_BYTES * len(rows.sequence)
        if txn.schema_version > self._schema.version:
            table_id = change.table.info.id
            self._last_ahead.pop(table_id, None)  # the table that was ahead last stands last
            self._last_ahead[table_id] = commit_ts
            if len(self._last_ahead) > TABLES_KEPT_MAX:
                _, gone_ts = self._last_ahead.popitem(last=False)
                self._complete_after = max(self._complete_after, gone_ts)
        if size_bytes > KEPT_BYTES_MAX:
            self._kept.clear()
            self._kept_bytes, self._complete_after = 0, commit_ts
            return
        # tuples of their own: rows of a large binlog would keep all of it
        kinds = tuple(rows.inserted), tuple(rows.updated), tuple(rows.deleted)
        own = TableChange(change.table, Mutation(rows.table_id, *kinds, rows.sequence))
        self._kept.append(KeptChange(commit_ts, txn.schema_version, own, size_bytes))
        self._kept_bytes += size_bytes
        while len(self._kept) > KEPT_CHANGES_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            gone = self._kept.popleft()
            self._kept_bytes -= gone.size_bytes
            self._complete_after = gone.commit_ts

    def _saw_ddl(self, ddl: Ddl) -> InDoubt | RowsInDoubt | None:
        done = self._done[-1].schema_version if self._done else self._from_version
        explained = _STEPS.get(ddl.job.type, 1)
        if ddl.schema_version > done + explained or ddl.commit_ts <= self._keeps_until:
            # another job is at work: rows of its steps may have versions that are known now
            if ddl.commit_ts > self._keeps_until:
                self._keeps_since = ddl.commit_ts
            self._keeps_until = plus_ms(ddl.commit_ts, _KEPT_MS)
        found: InDoubt | RowsInDoubt | None = None
        if not ddl.is_skipped and ddl.effect.added:
            found = self._backfill(ddl)
        elif not ddl.is_skipped and ddl.job.type in WORKS and ddl.effect.before is not None:
            found = self._leave(ddl, ddl.effect.before)
        if ddl.schema_version:
            self._done.append(_Done(ddl.commit_ts, ddl.schema_version))
        return found

    def _leave(self, ddl: Ddl, before: Table) -> RowsInDoubt | None:
        """What a DDL of partitions leaves to be done."""
        began = Tso(ddl.job.began_ts)
        known = [each.schema_version for each in self._done if each.commit_ts <= began]
        known += [version for version, first in self._first_seen.items() if first < began]
        others = {each.schema_version for each in self._done}
        turn = turn_of(ddl.job, ddl.commit_ts, others, max(known, default=0))
        left = left_by(ddl.job, before, turn, self._kept_of(before.id, began))
        if left.rows is not None:
            after = self._schema.table_at(before.id, ddl.schema_version)
            assert after is not None, "a DDL of partitions leaves a table"
            self._put_due(ddl, after, left.rows)
        unkept = [
            each
            for each in self._done
            if each.commit_ts > began and each.schema_version >= turn.version
        ]
        is_kept = not unkept or (
            self._keeps_since <= unkept[0].commit_ts and ddl.commit_ts <= self._keeps_until
        )
        reason = left.reason
        if (self._complete_after > began or not is_kept) and not reason:
            reason = "changes of this time are not kept any more"
        if left.doubtful or reason:
            return RowsInDoubt(began, ddl.commit_ts, left.doubtful, reason)
        return None

    def _put_due(self, ddl: Ddl, after: TableAt, rows: Mutation) -> None:
        since = Tso(ddl.job.start_ts)
        called = self._router.table(after) if self._router.has_rules else after
        self._kept_after = min(since, self._kept_after) if self.waiting else since
        self.waiting.append(TableChange(called, rows))
        self._due_after = ddl.commit_ts

    def _backfill(self, ddl: Ddl) -> InDoubt | None:
        assert ddl.job.table is not None, "a DDL that adds columns leaves a table"
        table_id, since = ddl.job.table.id, Tso(ddl.job.start_ts)
        last_ts = self._last_ahead.pop(table_id, NO_TS)
        is_complete = self._complete_after <= since
        if last_ts <= since and is_complete:
            return None
        after = self._schema.table_at(table_id, ddl.schema_version)
        backfilled = None
        if is_complete and after is not None and not ddl.effect.rewrites:
            backfilled = _backfilled(after, self._kept_of(table_id, since), ddl.effect.added)
        if backfilled is None or after is None:
            return InDoubt(ddl.effect.added, since, max(last_ts, ddl.commit_ts))
        if backfilled.updated:
            self._put_due(ddl, after, backfilled)
        return None

    def _kept_of(self, table_id: int, since: Tso) -> list[KeptChange]:
        return [
            each
            for each in self._kept
            if each.change.table.info.id == table_id and each.commit_ts > since
        ]


def _backfilled(at: TableAt, came: Iterable[KeptChange], added: tuple[str, ...]) -> Mutation | None:
    """Updates that put values of the added columns in place; None where that cannot be told."""
    info = at.info
    key = _key_columns(info)
    decoder = RowDecoder(at)
    lasting: dict[tuple[Value, ...], Values] = {}
    if not key:
        return None
    try:
        for change in came:  # each moves the last states of rows on, in their order
            for kind, old, new in changes_of(change.rows, decoder):
                if kind != INSERT:
                    lasting.pop(tuple(old[each] for each in key), None)
                if kind != DELETE:
                    lasting[tuple(new[each] for each in key)] = new
    except CorruptRow:
        return None
    columns = [column.id for column in info.columns if column.name in added]
    absent = decoder.defaults(columns)
    updated = []
    for values in lasting.values():
        if any(values[each] != absent[each] for each in columns):
            before = {**values, **absent}
            handle = 0 if info.has_hidden_id else None
            updated.append(encode_update(info, before, values, handle=handle))
    return Mutation(info.id, [], updated, [], bytes([UPDATE]) * len(updated))


def _key_columns(info: Table) -> tuple[int, ...]:
    """The columns of the primary key; none where there is no key, or one of beginnings."""
    index = info.primary_index()
    if index is not None and any(part.length != -1 for part in index.columns):
        return ()
    return tuple(each.id for each in info.primary_key())
