"""Which transactions and rows of a reading somebody wants to see or to apply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from binlogd.drainer.ddl.names import name_of
from binlogd.drainer.filtering.filter import TableFilter, TablePattern
from binlogd.drainer.messages.named import NamedRow
from binlogd.errors import ConfigError
from binlogd.tools.transaction import Transaction

_ANY = "~"


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
    found: Iterable[Transaction], wanted: TableFilter | None
) -> Iterator[tuple[Transaction, Iterator[NamedRow]]]:
    """Each transaction with those of its rows that are wanted; without any, it is passed over.

    A transaction whose rows nobody can tell (see its note) is wanted when no filter is given.
    """
    for transaction in found:
        if wanted is None:
            yield transaction, transaction.rows()
            continue
        if wanted.ignores_transaction(transaction.commit_ts):
            continue
        if transaction.ddl is not None:
            if wanted.executes_ddl and wanted.replicates(*name_of(transaction.ddl)):
                yield transaction, iter(())
            continue
        rows = _wanted_rows(transaction, wanted)
        first = next(rows, None)
        if first is not None:
            yield transaction, chain((first,), rows)


def _wanted_rows(transaction: Transaction, wanted: TableFilter) -> Iterator[NamedRow]:
    return (row for row in transaction.rows() if wanted.replicates(row.database, row.table))
