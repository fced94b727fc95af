"""Which transactions and rows of a reading somebody wants to see or to apply."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from binlogd.drainer.ddl.names import name_of
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.messages.named import NamedRow
from binlogd.errors import ConfigError, GaveUp
from binlogd.tools.transaction import CommitWindow, Transaction
from binlogd.tso import NO_TS, Tso

_ANY = "~"
_TABLES_MAX = 10_000
_NEAR_MAX = 3
_ALIKE = 0.75
"""Of 1: how much of two names is the same."""


class NothingFound(GaveUp):
    """Somebody asked for transactions by table or time, and there are none."""

    todo = "`binlogd dump --heads` lists what there is"


@dataclass(slots=True)
class Met:
    """What a reading came past, wanted or not: it explains why nothing was found.

    `tables` are the names of the rows and DDLs, so many as tell a mistyped one.
    """

    transactions: int = 0
    found: int = 0
    first_ts: Tso = NO_TS
    last_ts: Tso = NO_TS
    tables: set[tuple[str, str]] = field(default_factory=set)

    def transaction(self, commit_ts: Tso) -> None:
        """One more was read."""
        self.transactions += 1
        self.first_ts, self.last_ts = self.first_ts or commit_ts, commit_ts

    def table(self, database: str, table: str) -> None:
        """Rows or a DDL of a table were read."""
        if len(self.tables) < _TABLES_MAX:
            self.tables.add((database, table))

    def expect_some(self, asked: Sequence[str], window: CommitWindow) -> None:
        """Raises NothingFound where somebody asked for tables or a window and got nothing."""
        if self.found or (not asked and window == CommitWindow()):
            return
        if not self.transactions:
            raise NothingFound(
                f"no transaction has a commit_ts from {window.start} to {window.stop}"
            )
        between = f"{self.transactions} transactions, commit_ts {self.first_ts} to {self.last_ts}"
        raise NothingFound(
            f"no rows or DDL of {', '.join(asked)} in {between}", todo=self.near(asked)
        )

    def near(self, asked: Sequence[str]) -> str:
        """Which tables may be meant; "" where none was met."""
        names = {f"{database}.{table}" for database, table in self.tables if table}
        plain = {table: f"{database}.{table}" for database, table in self.tables if table}
        near = [
            plain.get(name, name)
            for text in asked
            for name in difflib.get_close_matches(text, [*names, *plain], _NEAR_MAX, _ALIKE)
        ]
        if near:
            return f"near: {', '.join(dict.fromkeys(near))}"
        some = sorted(names)[:_NEAR_MAX]
        return f"tables there: {', '.join(some)}, and {len(names) - len(some)} more" if some else ""


def table_patterns(texts: Iterable[str], option: str) -> list[TablePattern]:
    """`DB.TABLE` or `DB`, each a name or `~regular expression`, as patterns. Raises ConfigError."""
    found = []
    for text in texts:
        database, dot, table = text.partition(".~" if text.startswith("~") else ".")
        if not database or (dot and not table):
            raise ConfigError(
                f"{option} {text!r}: expected DB, DB.TABLE or DB.~expression; an expression for the"
                " database begins with ~ and is followed by one for the table"
            )
        expression = "~" + table if dot == ".~" else table
        found.append(TablePattern(database, expression or _ANY))
    return found


def chosen(
    found: Iterable[Transaction], wanted: TableFilter | None, met: Met | None = None
) -> Iterator[tuple[Transaction, Iterator[NamedRow]]]:
    """Each transaction with those of its rows that are wanted; without any, it is passed over.

    A transaction whose rows nobody can tell (see its note) is wanted when no filter is given.
    `met` is told what was read.
    """
    met = met or Met()
    for transaction in found:
        met.transaction(transaction.commit_ts)
        rows = _wanted(transaction, wanted, met)
        if rows is not None:
            met.found += 1
            yield transaction, rows


def _wanted(
    transaction: Transaction, wanted: TableFilter | None, met: Met
) -> Iterator[NamedRow] | None:
    if wanted is None:
        return transaction.rows()
    if wanted.ignores_transaction(transaction.commit_ts):
        return None
    if transaction.ddl is not None:
        name = name_of(transaction.ddl)
        met.table(*name)
        return iter(()) if wanted.executes_ddl and wanted.replicates(*name) else None
    rows = _wanted_rows(transaction, wanted, met)
    first = next(rows, None)
    return None if first is None else chain((first,), rows)


def _wanted_rows(transaction: Transaction, wanted: TableFilter, met: Met) -> Iterator[NamedRow]:
    for row in transaction.rows():
        met.table(row.database, row.table)
        if wanted.replicates(row.database, row.table):
            yield row
