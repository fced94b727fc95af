"""Where the Drainer writes: a MySQL (`replica`), or a store in memory that takes rows by table id,
one transaction after the other.

`make_downstream` is the one place that says which kind a world has.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.sink import Sink
from binlogd.drainer.txn import Ddl, Dml, Skip, Txn
from binlogd.tidb.model import Table, TableAt
from binlogd.tidb.row import RowDecoder, Value, encode_insert
from binlogd.tso import Tso
from binlogd.wire.mutation import Mutation
from tests.contract.memory_sink import MemorySink, MemoryStore, count_changes
from tests.sim.replica import Database, Replica
from tests.sim.tidb import Tidb
from tests.workload.model import Model

Row = tuple[tuple[int, Value], ...]
"""Values by column id, in the order of the ids; columns that hold what they were not given are left
out."""


class Downstream(Protocol):
    """A database that outlives its Drainers."""

    dialect: Dialect
    changes_columns: bool
    """Whether tables may get and lose columns."""
    on_visible: Callable[[Tso], None]
    """Called with each new state: up to which commit_ts it shows what the upstream did."""

    def sink(self) -> Sink:
        """A new life in front of it."""
        ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The saved one."""
        ...

    def writer_died(self) -> None:
        """The process of the Drainer is dead; its connections are seen to end after a while."""
        ...

    def heal(self) -> None:
        """No fault from here on."""
        ...

    def look(self, tidb: Tidb) -> None:
        """At what has become visible since the last look. Raises AssertionError where the upstream
        never was so."""
        ...

    def look_at_saved(self, checkpoint: Checkpoint, tidb: Tidb) -> None:
        """I10, at the moment of a save. Raises AssertionError."""
        ...

    def look_at_rest(self, tidb: Tidb) -> None:
        """All is said to be there. Raises AssertionError."""
        ...

    def differences(self, model: Model, commit_ts: Tso) -> list[str]:
        """What is not as upstream after the transaction of commit_ts."""
        ...


@dataclass
class ByTableId(MemoryStore):
    """Rows as they were written, under the id that their table had then."""

    by_id: dict[int, Counter[Row]] = field(default_factory=dict)

    def apply(self, txn: Txn) -> int:
        failure = self.failures.pop(0, None)
        if failure is not None:
            raise failure
        rows = 0
        match txn:
            case Dml():
                for change in txn.changes:
                    rows += self._change(change.table, change.mutation, txn.commit_ts)
            case Ddl():
                self.statements += txn.statements
            case Skip():
                pass
        if not isinstance(txn, Skip):
            self.commit_tss.append(txn.commit_ts)
        self.applied_ts = txn.commit_ts
        return rows

    def _change(self, table: TableAt, mutation: Mutation, commit_ts: Tso) -> int:
        ids = {column.id for column in table.info.columns}

        def kept(values: Mapping[int, Value]) -> Row:
            return tuple(sorted((n, value) for n, value in values.items() if n in ids))

        rows = self.by_id.setdefault(mutation.table_id, Counter())
        return count_changes(rows, kept, table, mutation, commit_ts)


class MemoryDownstream:
    """A store in memory, behind the sink of the contract tests."""

    dialect = Dialect.MYSQL
    changes_columns = False

    def __init__(self) -> None:
        self.store = ByTableId()
        self._commits_seen = 0
        self.on_visible: Callable[[Tso], None] = lambda _: None

    def sink(self) -> Sink:
        return MemorySink(self.store)

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self.store.checkpoint

    def writer_died(self) -> None:
        """Nothing of it is here."""

    def heal(self) -> None:
        self.store.failures.pop(0, None)

    def look(self, tidb: Tidb) -> None:
        """I8, and isolation: what becomes visible is one upstream transaction after the other."""
        commits = self.store.commit_tss
        if len(commits) == self._commits_seen:
            return
        upstream = self._upstream(tidb)[: len(commits)]
        assert commits == upstream, f"applied {_first_difference(commits, upstream)}"
        self._commits_seen = len(commits)

    def look_at_saved(self, checkpoint: Checkpoint, tidb: Tidb) -> None:
        visible = set(self.store.commit_tss)
        every = self._upstream(tidb)
        lacking = [ts for ts in every if ts <= checkpoint.commit_ts and ts not in visible]
        assert not lacking, f"I10: checkpoint {checkpoint.commit_ts} without {lacking[:3]}"

    def look_at_rest(self, tidb: Tidb) -> None:
        self.look(tidb)
        assert self.store.commit_tss == self._upstream(tidb)

    def _upstream(self, tidb: Tidb) -> list[Tso]:
        """What commits there are, in order; one that changes nothing need not be applied."""
        ledger, applied = tidb.ledger, set(self.store.commit_tss)
        return sorted(
            ts
            for ts in ledger.committed.values()
            if ts in applied or ts not in ledger.perhaps_unseen
        )

    def differences(self, model: Model, commit_ts: Tso) -> list[str]:
        """Compares table by table, by the columns that are public then."""
        found = []
        for name, table in model.tables(commit_ts).items():
            expected = _expected(model, table, commit_ts)
            every = self.store.by_id.get(table.id, Counter())
            held = Counter({row: count for row, count in every.items() if count})
            if expected != held:
                missing, more = expected - held, held - expected
                found.append(f"{'.'.join(name)}: missing {missing}, too many {more}")
        return found


def _expected(model: Model, table: Table, commit_ts: Tso) -> Counter[Row]:
    """What the model says, through the same encoding that a binlog takes."""
    columns = [column for column in table.columns if column.is_public]
    at = TableAt("", table, 0, None, {}, may_lack_columns=True)
    decoder = RowDecoder(at)
    found: Counter[Row] = Counter()
    for row in model._table_contents(table, commit_ts).rows:
        values = {column.id: value for column, value in zip(columns, row, strict=True)}
        found[tuple(sorted(decoder.insert(encode_insert(table, values, handle=1)).items()))] += 1
    return found


def _first_difference(found: Sequence[Tso], expected: Sequence[Tso]) -> str:
    for n, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            return f"{one} where upstream has {other}, after {n}"
    return f"{len(found)} transactions, upstream has {len(expected)}"


def make_downstream(rng: random.Random, database: Database | None) -> Downstream:
    """The downstream of a world; without a database, a store in memory."""
    return MemoryDownstream() if database is None else Replica(rng, database)
