"""Rows that a real TiDB wrote are decoded, written again, and add up to what its tables held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from binlogd.tidb.columns import Value
from binlogd.tidb.datum import read_datum
from binlogd.tidb.defaults import missing_value
from binlogd.tidb.encode import needs_restored_data
from binlogd.tidb.kinds import STRING_TYPES, Tp
from binlogd.tidb.layout import ROWID
from binlogd.tidb.model import Column, Table, TableAt, jobs_from_json
from binlogd.tidb.row import RowDecoder, encode_delete, encode_insert, encode_update
from binlogd.tidb.schema import SchemaTracker
from binlogd.wire import peek
from binlogd.wire.mutation import mutations
from tests.support.recordings_reader import (
    RECORDINGS,
    Canonical,
    canonical_value,
    committed,
    expected,
    history,
)

INSERT, UPDATE, DELETE = 0, 1, 4
Row = frozenset[tuple[int, Value]]


@dataclass(frozen=True, slots=True)
class Change:
    """One row of a recording with the table as it saw it."""

    kind: int
    table: TableAt
    row: bytes


def changes(name: str, tracker: SchemaTracker) -> Iterator[Change]:
    """The rows of a recording in commit order, a table's rows in the order of execution."""
    jobs = {job.id: job for job in jobs_from_json(history(RECORDINGS / name))}
    tracker.load(jobs.values())
    for binlog in committed(RECORDINGS / name):
        body = peek.body(binlog.payload)
        if body.ddl_job_id:
            if body.ddl_job_id in jobs:  # a SETVAL has no job
                tracker.apply(jobs[body.ddl_job_id], body.ddl_schema_state)
            continue
        version, tables = mutations(body.prewrite_value)
        for mutation in tables:
            table = tracker.table_at(mutation.table_id, version)
            if table is None:  # dropped meanwhile, or a partition that was exchanged
                continue
            lists = {
                INSERT: iter(mutation.inserted),
                UPDATE: iter(mutation.updated),
                DELETE: iter(mutation.deleted),
            }
            for kind in mutation.sequence:
                yield Change(kind, table, next(lists[kind]))


class Decoders:
    """A decoder for each table as it is seen."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[TableAt, RowDecoder]] = {}

    def of(self, table: TableAt) -> RowDecoder:
        if id(table) not in self._kept:
            self._kept[id(table)] = table, RowDecoder(table)
        return self._kept[id(table)][1]


# --- bytes ----------------------------------------------------------------------------------


def row_id(change: Change) -> int | None:
    """The hidden handle that the row carries."""
    info = change.table.info
    if info.pk_is_handle or info.is_common_handle:
        return None
    if change.kind == INSERT:
        handle = read_datum(change.row, 0)[1]
    else:
        at, datums = 0, []
        while at < len(change.row):
            _, value, at = read_datum(change.row, at)
            datums.append(value)
        assert datums[-2] == ROWID
        handle = datums[-1]
    assert isinstance(handle, int)
    return handle


def encoded(change: Change, decoder: RowDecoder) -> bytes:
    info, handle = change.table.info, row_id(change)
    if change.kind == INSERT:
        return encode_insert(info, decoder.insert(change.row), handle=handle)
    if change.kind == DELETE:
        return encode_delete(info, decoder.delete(change.row), handle=handle)
    return encode_update(info, *decoder.update(change.row), handle=handle)


def has_weights(change: Change) -> bool:
    """An insert whose clustered key holds collation weights: they cannot be made here."""
    index = change.table.info.primary_index()
    if change.kind != INSERT or not change.table.info.is_common_handle or index is None:
        return False
    columns = [change.table.info.columns[each.offset] for each in index.columns]
    return any(
        each.field_type.tp in STRING_TYPES
        and needs_restored_data(each)
        and not each.field_type.collate.endswith("_bin")
        for each in columns
    )


TEMPORAL_DOCUMENTS = 16
"""Rows with dates, times or opaque values inside JSON: their text is not enough."""


@pytest.mark.parametrize("name", ["types", "keys"])
def test_recorded_rows_are_written_as_tidb_wrote_them(name: str) -> None:
    decoders, same, other = Decoders(), 0, 0
    for change in changes(name, SchemaTracker()):
        if encoded(change, decoders.of(change.table)) == change.row:
            same += 1
        elif change.table.info.name == "json_docs":
            other += 1
        else:
            assert has_weights(change), change.table.info.name
    assert same > 1000
    assert other == (TEMPORAL_DOCUMENTS if name == "types" else 0)


@pytest.mark.parametrize("name", ["mixed", "ddl"])  # the rows of the others add up, below
def test_every_recorded_row_decodes(name: str) -> None:
    decoders, rows = Decoders(), 0
    for change in changes(name, SchemaTracker()):
        decoder = decoders.of(change.table)
        decode = {INSERT: decoder.insert, UPDATE: decoder.update, DELETE: decoder.delete}
        decode[change.kind](change.row)
        rows += 1
    assert rows > 1000


# --- contents ---------------------------------------------------------------------------------

WRONG_UPSTREAM = ("keys_wrong.",)
"""Schemas where TiDB's binlog deletes rows that its tables keep."""


class Contents:
    """The rows of each table as the binlogs leave them, by table id."""

    def __init__(self) -> None:
        self._rows: dict[int, Counter[Row]] = {}
        self._seen: dict[int, Table] = {}
        self._decoders = Decoders()

    def apply(self, change: Change) -> None:
        decoder, rows = self._decoders.of(change.table), self.rows(change.table.info)
        if change.kind == INSERT:
            rows[row_of(decoder.insert(change.row))] += 1
            return
        if change.kind == UPDATE:
            old, new = decoder.update(change.row)
            self._remove(rows, old)
            rows[row_of(new)] += 1
            return
        stored = {each.id for each in change.table.info.columns if not each.is_virtual}
        values = decoder.delete(change.row)
        self._remove(rows, {each: values[each] for each in values.keys() & stored})

    @staticmethod
    def _remove(rows: Counter[Row], values: dict[int, Value]) -> None:
        row = row_of(values)
        assert rows[row] > 0
        rows[row] -= 1

    def rows(self, info: Table) -> Counter[Row]:
        """The rows of a table, with the defaults of the columns that came since they were made."""
        if self._seen.get(info.id) is not info:
            self._seen[info.id] = info
            old = self._rows.get(info.id, Counter())
            self._rows[info.id] = Counter(
                {filled(row, info): count for row, count in (+old).items()}
            )
        return self._rows[info.id]


def row_of(values: dict[int, Value]) -> Row:
    return frozenset(values.items())


def filled(row: Row, info: Table) -> Row:
    values = dict(row)
    columns = [each for each in info.columns if each.is_public and not each.is_virtual]
    return row_of(
        {each.id: values[each.id] if each.id in values else missing_value(each) for each in columns}
    )


def notation(column: Column, value: Value) -> Any:
    """A value as the recordings write it."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return {"hex": value.hex()} if column.is_binary else value.decode()
        return {"hex": value.hex()}
    tp = column.field_type.tp
    if tp == Tp.BIT:
        return {"hex": f"{value:x}"}
    if tp in (Tp.ENUM, Tp.SET):
        return {"enum" if tp == Tp.ENUM else "set": value}
    return value


@pytest.mark.parametrize("name", ["types", "keys", pytest.param("large", marks=pytest.mark.soak)])
def test_the_rows_of_a_recording_add_up_to_what_the_tables_held(name: str) -> None:
    tracker, contents = SchemaTracker(), Contents()
    for change in changes(name, tracker):
        contents.apply(change)
    tables = {(f"{named.database}.{named.table}").lower(): info for named, info in tracker.tables()}
    compared = 0
    for table in expected(RECORDINGS / name):
        if table.kind != "table" or table.rows is None or table.label.startswith(WRONG_UPSTREAM):
            continue
        info = tables[table.label.lower()]
        places = {column.name.lower(): place for place, column in enumerate(table.columns)}
        columns = [
            each
            for each in info.columns
            if each.is_public and not each.is_virtual and each.name.lower() in places
        ]
        readers = [canonical_value(table.columns[places[each.name.lower()]]) for each in columns]
        wanted = Counter(
            tuple(row[places[each.name.lower()]] for each in columns) for row in table.rows
        )
        found: Counter[tuple[Canonical, ...]] = Counter()
        for row, count in contents.rows(info).items():
            values = dict(row)
            canonical = tuple(
                None if values[column.id] is None else read(notation(column, values[column.id]))
                for read, column in zip(readers, columns, strict=True)
            )
            found[canonical] += count
        assert +found == wanted, table.label
        compared += 1
    assert compared > 0
