"""Where the Drainer writes: rows by table id, one transaction after the other, all of it visible.

`make_downstream` is the one place that says which kind a world has.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.ddl.edits import Dialect
from binlogd.drainer.sink import Sink
from binlogd.drainer.txn import Ddl, Dml, Skip, Txn
from binlogd.errors import DownstreamUnavailable
from binlogd.tidb.model import Table, TableAt
from binlogd.tidb.row import RowDecoder, Value, encode_insert
from binlogd.tso import NO_TS, Tso
from binlogd.wire.peek import Mutation
from tests.contract.memory_sink import MemorySink, MemoryStore, count_changes
from tests.workload.model import Model

Row = tuple[tuple[int, Value], ...]
"""Values by column id, in the order of the ids; columns that hold what they were not given are left
out."""


class Downstream(Protocol):
    """A database that outlives its Drainers."""

    dialect: Dialect
    changes_columns: bool
    """Whether tables may get and lose columns."""

    def sink(self) -> Sink:
        """A new life in front of it."""
        ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The saved one."""
        ...

    @property
    def commits(self) -> list[Tso]:
        """commit_ts of the transactions that were applied, in the order in which they became
        visible."""
        ...

    def differences(self, model: Model, commit_ts: Tso) -> list[str]:
        """What is not as upstream after the transaction of commit_ts."""
        ...

    async def disturb(self, rng: random.Random) -> None:
        """One fault of its own kind."""
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

    def sink(self) -> Sink:
        return MemorySink(self.store)

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self.store.checkpoint

    @property
    def commits(self) -> list[Tso]:
        return self.store.commit_tss

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

    async def disturb(self, rng: random.Random) -> None:
        self.store.failures[0] = DownstreamUnavailable("the connection was lost")
        await asyncio.sleep(rng.uniform(0.1, 3.0))
        self.store.failures.pop(0, None)


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


def make_downstream(rng: random.Random) -> Downstream:
    """The downstream of a world."""
    del rng
    return MemoryDownstream()


def first_ts(downstream: Downstream) -> Tso:
    """Up to where a checkpoint was saved."""
    return downstream.checkpoint.commit_ts if downstream.checkpoint is not None else NO_TS
