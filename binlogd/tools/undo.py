"""Taking transactions back: the same rows the other way round, newest first.

An insert becomes a delete, a delete an insert, an update has its values exchanged. A DDL cannot be
taken back: where one of a wanted table lies in the window, nothing is done.

Memory: the log is read once to learn its length, then in chunks from its end, so that a chunk and
one transaction's rows are held at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from binlogd.drainer import sql
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.messages.named import NamedColumn, NamedRow, NamedTransaction, RowKind
from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedCounters, NamedOptions
from binlogd.drainer.mysql.named_sql import is_binary, value_literal
from binlogd.errors import Cancelled, DownstreamUnavailable, GaveUp, StatementRejected
from binlogd.settings.quantities import wall_clock
from binlogd.tidb.columns import Value
from binlogd.tidb.model import Job
from binlogd.tools.chosen import Met, chosen
from binlogd.tools.reading import Source, transactions
from binlogd.tools.shown import decoded
from binlogd.tools.transaction import CommitWindow, Meter, Transaction
from binlogd.tso import NO_TS, Tso

CHUNK_BYTES = 32 << 20
_INVERSE = {
    RowKind.INSERT: RowKind.DELETE,
    RowKind.UPDATE: RowKind.UPDATE,
    RowKind.DELETE: RowKind.INSERT,
}


@dataclass(frozen=True, slots=True)
class UndoneLog:
    """What is taken back, out of which files: everything in the window that the filter wants."""

    sources: Sequence[Source]
    window: CommitWindow
    jobs: Sequence[Job]
    wanted: TableFilter
    asked: Sequence[str] = ()
    """The tables of the filter as somebody wrote them."""


def inverse(row: NamedRow) -> NamedRow:
    """The row change that takes this one back."""
    columns = tuple(each._replace(old=each.new, new=each.old) for each in row.columns)
    return replace(row, kind=_INVERSE[row.kind], columns=columns)


def taken_back(log: UndoneLog, meter: Meter) -> Iterator[NamedTransaction]:
    """Transactions that undo the wanted ones, newest first; commit_ts tells which is undone.

    Raises before the first one GaveUp when there is a DDL or a transaction whose rows cannot
    be told, NothingFound when there is nothing to take back; and Corrupt.
    """
    for window in reversed(_chunks(log, meter)):
        chunk = list(_wanted(log, window, Meter(), Met()))
        while chunk:  # a chunk gets smaller as it is done
            yield _inverted(chunk.pop(), log.wanted)


def _wanted(log: UndoneLog, window: CommitWindow, meter: Meter, met: Met) -> Iterator[Transaction]:
    found = transactions(log.sources, window, jobs=log.jobs, meter=meter)
    for transaction, rows in chosen(found, log.wanted, met):
        del rows
        yield transaction


def _chunks(log: UndoneLog, meter: Meter) -> list[CommitWindow]:
    """Windows of some size each, which hold all of the wanted transactions between them."""
    chunks: list[CommitWindow] = []
    first = last = NO_TS
    size_bytes, met = 0, Met()
    for transaction in _wanted(log, log.window, meter, met):
        _check(transaction)
        if first and size_bytes >= CHUNK_BYTES and transaction.commit_ts > last:
            chunks.append(CommitWindow(first, last))
            first, size_bytes = NO_TS, 0
        first, last = first or transaction.commit_ts, transaction.commit_ts
        size_bytes += transaction.size_bytes
    met.expect_some(log.asked, log.window)
    return [*chunks, CommitWindow(first, last)] if first else chunks


def _check(transaction: Transaction) -> None:
    where = f"commit_ts {transaction.commit_ts} ({wall_clock(transaction.commit_ts)})"
    if transaction.ddl is not None:
        raise GaveUp(
            f"{where} is a DDL, which cannot be taken back: {transaction.ddl.text.rstrip(';')};"
            f" begin behind it, with --from {transaction.commit_ts + 1}, or choose other tables by"
            " --table"
        )
    if transaction.raw is not None and transaction.raw.unexplained:
        raise GaveUp(f"{where}: {transaction.note}; give --schema-history")


def _inverted(transaction: Transaction, wanted: TableFilter) -> NamedTransaction:
    def rows() -> Iterator[NamedRow]:
        found = [row for row in transaction.rows() if wanted.replicates(row.database, row.table)]
        while found:
            yield inverse(found.pop())

    return NamedTransaction(transaction.commit_ts, None, rows)


async def undo(found: Iterator[NamedTransaction], server: MySqlServer) -> NamedCounters:
    """Takes them back on a server, each one in one transaction of the server's.

    Raises GaveUp and Cancelled; what was undone before stays undone.
    """
    options = NamedOptions(is_safe=False, batch_txns_max=1)
    applier = NamedApplier(server, options, Random())
    try:
        await applier.open()
        for transaction in found:
            await applier.apply(transaction, 0)
    except asyncio.CancelledError:
        unsure = "; whether the one that was under way is taken back, its rows tell"
        raise Cancelled("cancelled", todo=_go_on(applier.applied_ts) + unsure) from None
    except (StatementRejected, DownstreamUnavailable) as error:
        raise GaveUp(str(error), todo=_go_on(applier.applied_ts)) from error
    finally:
        applier.close()
    return applier.counters


def _go_on(undone_ts: Tso) -> str:
    if undone_ts == NO_TS:
        return "nothing was taken back"
    return (
        f"what was committed from {undone_ts} ({wall_clock(undone_ts)}) on is taken back; go on"
        f" with --to {undone_ts - 1}"
    )


# --- as text -----------------------------------------------------------------------------


def preamble() -> Iterator[str]:
    """What the statements of a script count on: text, UTC, exact values, the upstream's own checks
    of foreign keys, and in a TiDB (which reads this comment) leave to write an AUTO_RANDOM."""
    yield "SET NAMES utf8mb4;"
    yield (
        "SET time_zone = '+00:00', foreign_key_checks = 0,"
        " sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION'"
        " /*T! , allow_auto_random_explicit_insert = 1 */;"
    )


def script(transaction: NamedTransaction) -> Iterator[str]:
    """The transaction as SQL, one statement a line. Raises GaveUp."""
    yield f"-- takes back commit_ts {transaction.commit_ts} ({wall_clock(transaction.commit_ts)})"
    yield "START TRANSACTION;"
    for row in transaction.rows():
        yield _statement(row).decode("utf-8", "backslashreplace") + ";"
    yield "COMMIT;"


def _statement(row: NamedRow) -> bytes:
    table = sql.qualified(row.database, row.table)
    written = [each for each in row.columns if not each.is_generated]
    if row.kind is RowKind.INSERT:
        names = [each.name for each in written]
        literals = [_literal(each.new, each.mysql_type) for each in written]
        return sql.write_head(b"INSERT", table, names) + b"(" + b",".join(literals) + b")"
    where = b" WHERE " + b" AND ".join(_conditions(row)) + b" LIMIT 1"
    if row.kind is RowKind.DELETE:
        return b"DELETE FROM " + table + where
    changed = [each for each in written if each.old != each.new] or written
    pairs = [(each.name, _literal(each.new, each.mysql_type)) for each in changed]
    return b"UPDATE " + table + b" SET " + sql.assignments(pairs) + where


def _conditions(row: NamedRow) -> Iterator[bytes]:
    """What finds the row: a key that has values, else all that it holds."""
    held = {each.name: each for each in row.columns}
    for key in row.keys:
        columns = [held.get(name) for name in key]
        if all(each is not None and each.old is not None for each in columns):
            yield from (_equals(each) for each in columns if each is not None)
            return
    yield from map(_equals, row.columns)


def _equals(column: NamedColumn) -> bytes:
    if column.old is None:
        return sql.ident(column.name) + b" IS NULL"
    if column.mysql_type == "json":
        raise GaveUp(
            f"a table without a key has the JSON column {column.name}, by which no row is found in"
            " the same way everywhere; take it back on a server, with --into"
        )
    literal = _literal(column.old, column.mysql_type)
    return sql.is_value(column.name, column.mysql_type, literal)


def _literal(value: Value, mysql_type: str) -> bytes:
    if isinstance(value, bytes):
        if is_binary(mysql_type) or decoded(value) is None:  # no text, as a script is
            return b"x'" + value.hex().encode() + b"'"
        return sql.quoted(value)
    return value_literal(value, mysql_type)
