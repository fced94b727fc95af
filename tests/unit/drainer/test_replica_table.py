"""A table of a replica changes its shape as the upstream's did, or says that it cannot."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from binlogd.drainer.sqlite.replica import NotStorable, Stored, create, renamed, reshape, storer_of
from binlogd.tidb.model import (
    FLAG_NOT_NULL,
    FLAG_PRIMARY_KEY,
    FLAG_UNSIGNED,
    Column,
    FieldType,
    Index,
    IndexColumn,
    Table,
    Tp,
)
from binlogd.tidb.rewrite import Unconvertible, converter
from tests.support.column_kinds import KINDS, Kind

TWO_MOMENTS = Tp.TIMESTAMP, Tp.DATETIME
ID = Column(1, "id", 0, FieldType(Tp.LONG, flag=FLAG_NOT_NULL | FLAG_PRIMARY_KEY))
INT = FieldType(Tp.LONG)
VARCHAR = FieldType(Tp.VARCHAR, flen=20, charset="utf8mb4")


def table(*columns: Column, indexes: tuple[Index, ...] = ()) -> Table:
    placed = tuple(replace(each, offset=n) for n, each in enumerate((ID, *columns)))
    return Table(7, "t", placed, pk_is_handle=True, indexes=indexes)


def after(
    old: Table, new: Table, *rows: tuple[Stored, ...], changed: Mapping[str, str] | None = None
) -> list[tuple[object, ...]]:
    """The rows of a table with these rows, once it is reshaped; its columns come first."""
    replica = sqlite3.connect(":memory:")
    for text in create("s.t", old):
        replica.execute(text)
    marks = ", ".join("?" * len(old.columns))
    replica.executemany(f'INSERT INTO "s.t" VALUES ({marks})', rows)
    changes = reshape("s.t", old, new, changed or {})
    for each in changes.functions:
        replica.create_function(each.name, each.arguments, each)
    try:
        for text, values in changes.statements:
            replica.execute(text, values)
    except sqlite3.OperationalError as error:
        replica.close()
        refusals = [each.refusal for each in changes.functions if each.refusal]
        raise Unconvertible(*refusals) from error
    found = replica.execute('SELECT * FROM "s.t" ORDER BY id')
    rows_now = found.fetchall()
    names = tuple(each[0] for each in found.description)
    replica.close()
    return [names, *rows_now]


def test_a_column_that_comes_has_its_default_in_the_rows_that_are_there() -> None:
    new = Column(2, "n", 1, FieldType(Tp.NEW_DECIMAL, flen=8, decimal=2), origin_default="2.5")
    assert after(table(), table(new), (1,)) == [("id", "n"), (1, "2.50")]


def test_a_column_that_goes_takes_its_index_with_it() -> None:
    index = Index(1, "i", (IndexColumn("v", 1),))
    old = table(Column(2, "v", 1, VARCHAR), indexes=(index,))
    assert after(old, table(), (1, "x")) == [("id",), (1,)]


def test_a_renamed_and_rewritten_column_keeps_its_values() -> None:
    old, new = table(Column(2, "v", 1, INT)), table(Column(3, "w", 1, VARCHAR))
    assert after(old, new, (1, 42), changed={"w": "v"}) == [("id", "w"), (1, "42")]


def test_nothing_is_copied_where_nothing_changes() -> None:
    old = table(Column(2, "v", 1, VARCHAR))
    wider = table(Column(2, "v", 1, replace(VARCHAR, flen=200)))
    assert reshape("s.t", old, wider, {}).statements == []


@pytest.mark.parametrize(
    ("was", "now", "value", "becomes"),
    [
        (INT, VARCHAR, -7, "-7"),
        (INT, FieldType(Tp.NEW_DECIMAL, flen=10, decimal=3), 12, "12.000"),
        (INT, FieldType(Tp.LONGLONG), 12, 12),
        (FieldType(Tp.YEAR), INT, 2024, 2024),
        (FieldType(Tp.BIT, flen=8), INT, 255, 255),
        (FieldType(Tp.ENUM, elems=("a", "b")), FieldType(Tp.ENUM, elems=("b", "c", "a")), "a", "a"),
        (FieldType(Tp.ENUM, elems=("a", "b")), VARCHAR, "b", "b"),
        (
            FieldType(Tp.DATETIME, decimal=0),
            FieldType(Tp.DATE),
            "2024-02-29 23:59:59",
            "2024-02-29",
        ),
        (VARCHAR, FieldType(Tp.STRING, flen=9, charset="utf8mb4"), "x  ", "x"),
        (FieldType(Tp.DOUBLE), FieldType(Tp.NEW_DECIMAL, flen=30, decimal=5), 0.1, "0.10000"),
        (FieldType(Tp.FLOAT), VARCHAR, 0.10000000149011612, "0.1"),
        (FieldType(Tp.SET, elems=("a", "b")), FieldType(Tp.SET, elems=("b", "a")), "a,b", "b,a"),
        (FieldType(Tp.ENUM, elems=("", "b")), INT, "", 1),
        (VARCHAR, FieldType(Tp.BLOB, charset="binary"), "é", "é".encode()),
        (VARCHAR, FieldType(Tp.LONGLONG, flag=FLAG_UNSIGNED), str(1 << 63), str(1 << 63)),
    ],
)
def test_values_are_converted_as_upstream(
    was: FieldType, now: FieldType, value: Stored, becomes: Stored
) -> None:
    old, new = table(Column(2, "v", 1, was)), table(Column(3, "v", 1, now))
    assert after(old, new, (1, value), (2, None))[1:] == [(1, becomes), (2, None)]


def test_a_float_that_is_not_rewritten_keeps_its_digits() -> None:
    narrow, wide = (FieldType(Tp.DOUBLE, flen=5, decimal=n) for n in (1, 2))
    old, new = table(Column(2, "v", 1, narrow)), table(Column(2, "v", 1, wide))
    assert after(old, new, (1, 0.125))[1:] == [(1, 0.125)]


def test_what_only_the_upstream_can_convert_is_refused() -> None:
    old, new = (table(Column(n, "v", 1, FieldType(tp))) for n, tp in enumerate(TWO_MOMENTS, 2))
    with pytest.raises(NotStorable, match=r"column v .* the time zone of the session counted"):
        reshape("s.t", old, new, {})


@pytest.mark.parametrize("value", ["twelve", b"\xff"])
def test_a_value_that_the_upstream_may_have_cut_is_refused_by_its_column(value: Stored) -> None:
    old, new = table(Column(2, "v", 1, VARCHAR)), table(Column(3, "v", 1, INT))
    with pytest.raises(Unconvertible, match=r"column v .* cannot be converted for certain"):
        after(old, new, (1, "7"), (2, value))


@pytest.mark.parametrize("old", KINDS, ids=lambda kind: kind.sql)
def test_every_pair_of_types_is_converted_as_an_export_does_it_or_refused(old: Kind) -> None:
    was = replace(old.column, id=2, name="v")
    for new in KINDS:
        now = replace(new.column, id=3, name="v")
        try:
            convert = converter(was, now)
        except Unconvertible:
            continue
        sure: list[tuple[Stored, Stored]] = []
        for value in old.values:
            with suppress(Unconvertible):
                sure.append((storer_of(was)(value), storer_of(now)(convert(value))))
        rows = [(at, stored) for at, (stored, _) in enumerate(sure)]
        found = after(table(was), table(now), *rows)[1:]
        assert found == [(at, stored) for at, (_, stored) in enumerate(sure)], new.sql


def test_a_name_is_free_again_once_its_table_has_another() -> None:
    index = Index(1, "i", (IndexColumn("v", 1),))
    info = table(Column(2, "v", 1, VARCHAR), indexes=(index,))
    replica = sqlite3.connect(":memory:")
    for text in [*create("s.a", info), *renamed("s.a", 's."b', info), *create("s.a", info)]:
        replica.execute(text)
    replica.close()


def test_numbers_that_sqlite_has_not_are_kept_digit_by_digit() -> None:
    big = Column(2, "n", 1, FieldType(Tp.LONGLONG, flag=FLAG_UNSIGNED))
    store = storer_of(big)
    values = [0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    replica = sqlite3.connect(":memory:")
    for text in create("s.t", table(big)):
        replica.execute(text)
    replica.executemany('INSERT INTO "s.t" VALUES (?, ?)', enumerate(map(store, values)))
    found = [int(n) for (n,) in replica.execute('SELECT n FROM "s.t" ORDER BY id')]
    replica.close()
    assert found == values


def test_text_that_is_no_utf_8_stays_bytes() -> None:
    store = storer_of(Column(2, "v", 1, VARCHAR))
    assert (store("é".encode()), store(b"\xff"), store(None)) == ("é", b"\xff", None)
