"""A table of a replica changes its shape as the upstream's did, or says that it cannot."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
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
    for text, values in reshape("s.t", old, new, changed or {}):
        replica.execute(text, values)
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
    assert reshape("s.t", old, wider, {}) == []


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
    ],
)
def test_values_are_converted_as_upstream(
    was: FieldType, now: FieldType, value: Stored, becomes: Stored
) -> None:
    old, new = table(Column(2, "v", 1, was)), table(Column(3, "v", 1, now))
    assert after(old, new, (1, value), (2, None))[1:] == [(1, becomes), (2, None)]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (VARCHAR, INT),
        (FieldType(Tp.TIMESTAMP), FieldType(Tp.DATETIME)),
        (FieldType(Tp.NEW_DECIMAL, decimal=2), FieldType(Tp.NEW_DECIMAL, decimal=1)),
        (FieldType(Tp.DATETIME, decimal=3), FieldType(Tp.DATE)),
        (FieldType(Tp.DOUBLE), VARCHAR),
        (FieldType(Tp.SET, elems=("a", "b")), FieldType(Tp.SET, elems=("b", "a"))),
        (VARCHAR, FieldType(Tp.BLOB, charset="binary")),
    ],
)
def test_what_only_the_upstream_can_convert_is_refused(was: FieldType, now: FieldType) -> None:
    old, new = table(Column(2, "v", 1, was)), table(Column(3, "v", 1, now))
    with pytest.raises(NotStorable, match="column v, which only the upstream can do"):
        reshape("s.t", old, new, {})


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
