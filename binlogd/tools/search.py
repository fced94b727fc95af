"""Transactions that somebody looks for in a log: by a timestamp, by a time, or by table and row.

What comes out is bounded: a transaction may be larger than a page can show. By
table and row the newest come first: the window is read in slices from its end, each four times as
long as the one behind it, so that what happened a minute ago does not wait for last week.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.messages.named import NamedColumn, NamedRow, RowKind
from binlogd.errors import ConfigError, CorruptPayload, CorruptRow
from binlogd.host.child import TimeOver, give, stop_after, yield_to_others
from binlogd.serving.answers import (
    FoundColumn,
    FoundDdl,
    FoundMoment,
    FoundRecord,
    FoundRow,
    FoundTransaction,
    LookUp,
    Question,
)
from binlogd.settings.quantities import wall_clock
from binlogd.tidb.columns import Value
from binlogd.tidb.model import Job
from binlogd.tools.chosen import Met, NothingFound, chosen, table_patterns
from binlogd.tools.reading import Source, find_sources, known_jobs, transactions
from binlogd.tools.records import records_of_transaction
from binlogd.tools.row_index import ANY, RowFrame, picked
from binlogd.tools.row_indexing import indexed
from binlogd.tools.shown import KINDS, cut, json_value, printable, readable, value_text
from binlogd.tools.transaction import CommitWindow, Meter, Transaction
from binlogd.tso import MAX_TS, NO_TS, Tso, compose, physical_ms

ROWS_MAX = 100
VALUE_CHARS_MAX = 400
SQL_CHARS_MAX = 20_000
_FIRST_SLICE_MS, _LONGER = 1_000, 4
_PICKED_AT_ONCE = 64


@dataclass(slots=True)
class Found:
    """What was found so far, and how far the looking has come; it may be read at any moment.

    `is_complete` says that the whole window was looked at, or as much as was asked for found.
    """

    transactions: list[FoundTransaction] = field(default_factory=list)
    records: list[FoundRecord] = field(default_factory=list)
    looked_from: Tso = MAX_TS
    looked_to: Tso = NO_TS
    is_complete: bool = False

    def answer(self) -> LookUp:
        """What is said of it."""
        return LookUp(
            transactions=self.transactions,
            records=self.records,
            looked_from=_moment(self.looked_from),
            looked_to=_moment(self.looked_to),
            complete=self.is_complete,
        )


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """What is looked through."""

    sources: Sequence[Source]
    jobs: Sequence[Job]

    def between(self, start: Tso, stop: Tso) -> Iterator[Transaction]:
        """The transactions of a window. Raises Corrupt, OSError."""
        return transactions(self.sources, CommitWindow(start, stop), jobs=self.jobs, meter=Meter())

    def read(
        self, start: Tso, stop: Tso, only: Sequence[Tso] | None, ddls: Sequence[Tso]
    ) -> Iterator[Transaction]:
        """The same, or those of them with these commit_ts; `ddls` are those of all DDLs. Raises
        Corrupt, OSError."""
        if only is None:
            yield from self.between(start, stop)
            return
        if not only:
            return
        # While a job is open, its binlog says what rows look like.
        opened = {
            ts: min(
                [ts, *(job.start_ts for job in self.jobs if job.start_ts < ts <= job.finished_ts)]
            )
            for ts in only
        }
        before = {ddl for ddl in ddls for ts, begin in opened.items() if begin <= ddl < ts}
        window, wanted = CommitWindow(min([*only, *before]), stop), sorted({*only, *before})
        for each in transactions(self.sources, window, jobs=self.jobs, meter=Meter(), only=wanted):
            if each.commit_ts in opened:
                yield each


def by_timestamp(log: SearchedLog, ts: Tso, found: Found) -> None:
    """The transaction whose commit_ts or start_ts it is; else the records that carry it.

    Raises Corrupt, OSError.
    """
    found.looked_from = ts
    for transaction in log.between(ts, MAX_TS):  # a commit lies behind its start
        if ts in (transaction.commit_ts, transaction.start_ts):
            found.transactions.append(_shown(transaction, transaction.rows()))
            break
        found.looked_to = transaction.commit_ts
    else:
        for line in records_of_transaction(log.sources, ts, Meter()):
            found.records.append(
                FoundRecord(
                    kind=line.kind,
                    start_ts=str(line.start_ts),
                    time=wall_clock(line.start_ts),
                    size_bytes=line.size_bytes,
                    detail=line.detail,
                    place=f"{line.place.path}:{line.place.offset}",
                )
            )
    found.is_complete = True


def by_time(log: SearchedLog, start: Tso, stop: Tso, limit: int, found: Found) -> None:
    """The first transactions of a window, in commit order. Raises Corrupt, OSError."""
    found.looked_from = start
    for transaction in islice(log.between(start, stop), limit):
        found.transactions.append(_shown(transaction, transaction.rows()))
        found.looked_to = transaction.commit_ts
    found.is_complete = True


def by_row(log: SearchedLog, question: Question, found: Found) -> None:
    """The last changes of some rows, or of all, the newest first; both ends are included.

    Raises Corrupt, OSError, ConfigError; NothingFound for a table that the schema history does not
    know.
    """
    start, stop = Tso(question.start), Tso(min(question.stop, MAX_TS))
    parts, ddls, wanted = _slices(start, stop), list[Tso](), None
    if question.table:
        patterns = table_patterns([question.table], "table")
        wanted = TableFilter(do_tables=patterns, ignored_databases=())
        _expect_known(log.jobs, wanted, question.table)
        _expect_columns(log.jobs, wanted, question)
        if rows_index := indexed(log.sources, log.jobs):
            parts = _picked(rows_index, wanted, question.row, start, stop)
            ddls = [Tso(ts) for frame in rows_index for ts in frame.head.ddls]
    for begin, end, only in parts:
        newest: list[FoundTransaction] = []
        for transaction, rows in chosen(log.read(begin, end, only, ddls), wanted):
            shown = _shown(transaction, _matching(rows, question.row))
            is_found = shown.rows or shown.note if transaction.ddl is None else not question.row
            if is_found:
                newest = [*newest, shown][-question.limit :]
        found.looked_to = max(found.looked_to, end)
        found.looked_from = begin
        found.transactions += newest[::-1]
        if len(found.transactions) >= question.limit:
            del found.transactions[question.limit :]
            break
    found.is_complete = True


def _expect_known(jobs: Sequence[Job], wanted: TableFilter, asked: str) -> None:
    """Rows have their names from these jobs: what none of them names need not be looked for."""
    names = _names(jobs)
    if not names or any(wanted.replicates(*each) for each in names):
        return
    met = Met()
    for name in names:
        met.table(*name)
    raise NothingFound(f"no table {asked} in the schema history", todo=met.near([asked]))


def _expect_columns(jobs: Sequence[Job], wanted: TableFilter, question: Question) -> None:
    """A column that no version of the tables has had need not be looked for."""
    of_id = _databases(jobs)
    columns = {
        column.name.lower(): column.name
        for job in jobs
        for table in ([job.table] if job.table is not None else job.tables)
        if wanted.replicates(job.schema_name or of_id.get(job.schema_id, ""), table.name)
        for column in table.columns
    }
    missing = [name for name in question.row if name.lower() not in columns]
    if columns and missing:
        raise ConfigError(
            f"{question.table} has no column {', '.join(missing)}; its columns are"
            f" {', '.join(columns.values())}"
        )


def _databases(jobs: Sequence[Job]) -> dict[int, str]:
    of_id = {job.schema_id: job.schema_name for job in jobs if job.schema_name}
    return of_id | {job.database.id: job.database.name for job in jobs if job.database is not None}


def _names(jobs: Sequence[Job]) -> set[tuple[str, str]]:
    """Every name that a table has had, and each database with "". A job of several tables may have
    moved them: they count for every database."""
    of_id = _databases(jobs)
    found = {(database, "") for database in of_id.values()}
    for job in jobs:
        database = job.schema_name or of_id.get(job.schema_id, "")
        found |= {(database, job.table.name)} if job.table is not None else set()
        found |= {(each, table.name) for each in of_id.values() for table in job.tables}
    return found


_Slice = tuple[Tso, Tso, Sequence[Tso] | None]
"""Both ends of a part of a window, and what of it is to be looked at, if not all."""


def _slices(start: Tso, stop: Tso) -> Iterator[_Slice]:
    """A window in parts, the last first."""
    length_ms, end = _FIRST_SLICE_MS, stop
    while end >= start:  # ends: they get longer
        begin = Tso(max(start, compose(max(0, physical_ms(end) - length_ms))))
        yield begin, end, None
        end, length_ms = Tso(begin - 1), length_ms * _LONGER


def _picked(
    found: Iterable[RowFrame], wanted: TableFilter, row: Mapping[str, str], start: Tso, stop: Tso
) -> Iterator[_Slice]:
    """The same by the row index: the transactions that may have such a row, the newest first. Where
    the index is damaged, all that is left."""
    by_age = sorted(found, key=lambda frame: -frame.head.max_ts)
    floors = [Tso(max(start - 1, frame.head.max_ts)) for frame in by_age[1:]]
    waiting = set[Tso]()
    for frame, floor in zip(by_age, [*floors, Tso(start - 1)], strict=True):
        if start <= frame.head.max_ts and frame.head.min_ts <= stop:
            of_frame = _of_frame(frame, wanted, row)
            if of_frame is None:
                yield from _slices(start, stop)
                return
            waiting |= {ts for ts in of_frame if start <= ts <= stop}
        due = sorted((ts for ts in waiting if ts > floor), reverse=True)
        waiting.difference_update(due)
        for at in range(0, len(due), _PICKED_AT_ONCE):
            some = due[at : at + _PICKED_AT_ONCE]
            yield some[-1], stop, some[::-1]
            stop = Tso(some[-1] - 1)
        if floor < stop:
            yield Tso(floor + 1), stop, ()
            stop = floor


def _of_frame(frame: RowFrame, wanted: TableFilter, row: Mapping[str, str]) -> set[Tso] | None:
    found = frame.commits(ANY)
    for table in frame.head.tables:
        some = picked(frame, table, row) if wanted.replicates(*table[:2]) else set()
        found = found | some if found is not None and some is not None else None
    return found


def _matching(rows: Iterator[NamedRow], wanted: Mapping[str, str]) -> Iterator[NamedRow]:
    if not wanted:
        return rows
    by_name = {name.lower(): text for name, text in wanted.items()}
    return (row for row in rows if _is_it(row, by_name))


def _is_it(row: NamedRow, wanted: Mapping[str, str]) -> bool:
    matched = 0
    for column in row.columns:
        text = wanted.get(column.name.lower())
        if text is None:
            continue
        values = [column.new] if row.kind is RowKind.INSERT else [column.old]
        if row.kind is RowKind.UPDATE:
            values.append(column.new)
        if not any(_says(value, column.mysql_type, text) for value in values):
            return False
        matched += 1
    return matched == len(wanted)  # it may be older than a column


def _says(value: Value, mysql_type: str, text: str) -> bool:
    if value is None:
        return text.upper() == "NULL"
    shown = json_value(value, mysql_type)
    return text in (str(shown), value_text(value, mysql_type))


def _shown(transaction: Transaction, rows: Iterator[NamedRow]) -> FoundTransaction:
    shown: list[FoundRow] = []
    note, has_more, ddl = transaction.note, False, transaction.ddl
    if ddl is None:
        try:
            shown = [_row(row) for row in islice(rows, ROWS_MAX)]
            has_more = next(rows, None) is not None
        except (CorruptRow, CorruptPayload) as error:
            note = f"the rows from here on do not decode: {error}"
    return FoundTransaction(
        commit_ts=str(transaction.commit_ts),
        start_ts=str(transaction.start_ts or ""),
        time=wall_clock(transaction.commit_ts),
        size_bytes=transaction.size_bytes,
        place=f"{transaction.place.path}:{transaction.place.offset}",
        note=note,
        ddl=FoundDdl(printable(ddl.database), cut(readable(ddl.text), SQL_CHARS_MAX))
        if ddl
        else None,
        rows=shown,
        has_more_rows=has_more,
    )


def _row(row: NamedRow) -> FoundRow:
    columns = [_column(row, column) for column in row.columns]
    return FoundRow(KINDS[row.kind], printable(row.database), printable(row.table), columns)


def _column(row: NamedRow, column: NamedColumn) -> FoundColumn:
    is_key = bool(row.keys) and column.name in row.keys[0]
    old = None if row.kind is RowKind.INSERT else _value(column.old, column.mysql_type)
    new = None if row.kind is RowKind.DELETE else _value(column.new, column.mysql_type)
    is_changed = row.kind is RowKind.UPDATE and column.old != column.new
    return FoundColumn(printable(column.name), column.mysql_type, is_key, old, new, is_changed)


def _value(value: Value, mysql_type: str) -> str:
    return cut(value_text(value, mysql_type), VALUE_CHARS_MAX)


def _moment(ts: Tso) -> FoundMoment | None:
    return FoundMoment(str(ts), wall_clock(ts)) if NO_TS < ts < MAX_TS else None


def main() -> int:
    """Answers one question; CANNOT and a sentence on standard error when it cannot."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    yield_to_others(question.memory_bytes_max)
    too_large = "a transaction on the way is too large to look at; `binlogd txn` can"
    return give(lambda: _answered(question), too_large)


def _answered(question: Question) -> bytes:
    found = Found()
    try:
        stop_after(question.seconds)
        _look(question, found)
        stop_after(0)
    except TimeOver:
        found.is_complete = False  # and `found` tells how far it came
    return msgspec.json.encode(found.answer())


def _look(question: Question, found: Found) -> None:
    log_dir, *others = map(Path, question.paths)
    begun = [path for path in others if path.is_dir() and any(path.iterdir())]
    sources = find_sources([log_dir, *begun])  # a relay log begins with the first binlog
    log = SearchedLog(sources, known_jobs(sources, None))
    if question.ts:
        by_timestamp(log, Tso(question.ts), found)
    elif question.table or not question.start:
        by_row(log, question, found)
    else:
        start, stop = Tso(question.start), Tso(min(question.stop, MAX_TS))
        by_time(log, start, stop, question.limit, found)


if __name__ == "__main__":
    sys.exit(main())
