"""What the Translator is given, and a sink: one value per committed transaction, in commit order.

A `Dml` still holds row bytes beside the table each belongs to; decoding is left to the sink, which
knows what it wants from a row. `Ddl` is a barrier. `Skip` only moves progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from binlogd.binlog import CommittedBinlog
from binlogd.tidb.kinds import RECOVERIES
from binlogd.tidb.known_tables import Effect, Named
from binlogd.tidb.model import ActionType, Job, TableAt
from binlogd.tso import Tso
from binlogd.wire.mutation import Mutation
from binlogd.wire.peek import Body

BY_DECISION = "ignore-txn-commit-ts"
"""The `reason` of what an operator chose to pass over, and does by hand."""
NO_DDL = "syncer.sync-ddl = false"
"""The `reason` of every DDL where none is asked for; whoever shapes the downstream does them."""
BY_HAND = frozenset({BY_DECISION, NO_DDL})

_NO_EFFECT = Effect(is_in_force=False, name=Named(""))
_OF_THE_DATABASE_ITSELF = frozenset(
    {ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA, ActionType.RECOVER_SCHEMA}
)


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """A joined binlog, opened once. `ddl` is None for one with rows; `job` is None where the DDL
    has none (setval), or where it was not to be had and is ignored."""

    binlog: CommittedBinlog
    ddl: Body | None = None
    job: Job | None = None


class TableChange(msgspec.Struct, frozen=True, gc=False):
    """The rows that one transaction changed in one table, in their order."""

    table: TableAt
    mutation: Mutation


class Dml(msgspec.Struct, frozen=True, gc=False):
    """A transaction with at least one row; at most one change per table."""

    start_ts: Tso
    commit_ts: Tso
    schema_version: int
    changes: tuple[TableChange, ...]

    @property
    def row_count(self) -> int:
        """Rows inserted, updated and deleted, over all tables."""
        return sum(len(change.mutation.sequence) for change in self.changes)


@dataclass(frozen=True, slots=True)
class Ddl:
    """A finished schema change.

    `statement` is the text for this downstream; `further` holds what must follow it under the same
    commit_ts (a batch of CREATE TABLE is one job with many statements). A skipped Ddl is not
    executed: what a sink remembers about tables must be forgotten all the same. `database` and
    `table` name what changed, as it is called afterwards; both may be "". `reason` says why it is
    skipped. `created` names the tables of a batch, `renamed` holds (old, new) in their order.
    """

    start_ts: Tso
    commit_ts: Tso
    schema_version: int
    job: Job
    statement: str
    database: str
    table: str
    is_skipped: bool
    further: tuple[str, ...] = ()
    reason: str = ""
    created: tuple[Named, ...] = ()
    renamed: tuple[tuple[Named, Named], ...] = ()
    is_qualified: bool = False
    """Every name in the statements tells its database."""
    targets: tuple[Named, ...] = ()
    """What each statement changes, where that is not `table`: what goes into the trash, or comes
    out of it."""
    effect: Effect = _NO_EFFECT
    """What it did to the schema upstream."""

    @property
    def takes_back(self) -> bool:
        """Whether it brings rows back out of the trash: what is missing there is not forgiven."""
        return bool(self.targets) and self.job.type in RECOVERIES

    def target(self, step: int) -> Named:
        """What a statement changes."""
        return self.targets[step] if self.targets else Named(self.database, self.table)

    @property
    def statements(self) -> tuple[str, ...]:
        """What to execute, in order; empty for a skipped one."""
        return () if self.is_skipped else (self.statement, *self.further)

    @property
    def session_database(self) -> str:
        """The database to USE before executing; "" for none, where it need not be there."""
        is_named = self.is_qualified or self.job.type in _OF_THE_DATABASE_ITSELF
        return "" if is_named else self.database


class Skip(msgspec.Struct, frozen=True, gc=False):
    """Nothing to do at this commit_ts: a fake binlog, or everything in it was filtered. `reason` is
    "" for what is left out by the way, and a word for the log where it is remarkable."""

    commit_ts: Tso
    reason: str = ""


Txn = Dml | Ddl | Skip


def combined(txns: Sequence[Txn]) -> list[Txn]:
    """Transactions of one commit_ts as one, so that progress can name what is applied."""
    found: list[Txn] = []
    for txn in txns:
        last = found[-1] if found else None
        if isinstance(txn, Dml) and isinstance(last, Dml) and last.commit_ts == txn.commit_ts:
            changes = last.changes + txn.changes
            found[-1] = msgspec.structs.replace(last, changes=changes)
        else:
            found.append(txn)
    return found
