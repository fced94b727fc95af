"""Rows that are turned into Arrow column by column hold what they hold one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.errors import CorruptRow
from binlogd.snapshot.formats.columns import ArrowColumn, arrow_column
from binlogd.snapshot.log.rowkey import handle_of
from binlogd.snapshot.spec import TypeOptions
from binlogd.snapshot.tables.catalog import TablePlan
from binlogd.snapshot.writing.row_arrays import RowArrays
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_UNSIGNED, Tp
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt
from binlogd.tidb.row import RowDecoder, Value, encode_insert

KEY = FLAG_PRIMARY_KEY | FLAG_NOT_NULL


def integers(bits: int) -> st.SearchStrategy[Value]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.integers(-3, 3)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Value]:
    def text(number: int) -> str:
        shown = str(abs(number)).zfill(scale + 1)
        return ("-" if number < 0 else "") + f"{shown[:-scale]}.{shown[-scale:]}"

    return st.integers(-(10**digits) + 1, 10**digits - 1).map(text)


dates = st.one_of(
    st.dates().map(str),
    st.sampled_from(["0000-00-00", "2023-02-31", "2024-02-29", "2023-00-01", "0001-01-01"]),
)
moments = st.tuples(dates, st.times()).map(
    lambda each: f"{each[0]} {each[1]:%H:%M:%S}.{each[1].microsecond // 1000:03d}"
)
texts = st.text(max_size=70).map(str.encode) | st.binary(max_size=4)
Values = st.SearchStrategy[Value]
COLUMNS: list[tuple[FieldType, Values]] = [
    (FieldType(Tp.VARCHAR, flen=80, charset="utf8mb4"), texts),
    (FieldType(Tp.BLOB, charset="binary"), texts),
    (FieldType(Tp.LONG), integers(32)),
    (FieldType(Tp.LONGLONG, FLAG_UNSIGNED), st.integers(0, 2**64 - 1)),
    (FieldType(Tp.INT24, FLAG_UNSIGNED), st.integers(0, 2**24 - 1)),
    (FieldType(Tp.TINY, flen=1), integers(8)),
    (FieldType(Tp.YEAR, FLAG_UNSIGNED), st.sampled_from([0, 1901, 2155])),
    (FieldType(Tp.NEW_DECIMAL, flen=12, decimal=2), decimals(12, 2)),
    (FieldType(Tp.NEW_DECIMAL, flen=30, decimal=10), decimals(30, 10)),
    (FieldType(Tp.NEW_DECIMAL, flen=18, decimal=9), decimals(18, 9)),
    (FieldType(Tp.DOUBLE), st.floats(allow_nan=False, allow_infinity=False)),
    (FieldType(Tp.FLOAT), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (FieldType(Tp.DATE), dates),
    (FieldType(Tp.DATETIME, decimal=3), moments),
    (FieldType(Tp.TIMESTAMP, decimal=3), moments),
    (FieldType(Tp.ENUM, elems=("a", "b")), st.integers(0, 3)),
    (FieldType(Tp.SET, elems=("a", "b")), st.integers(0, 7)),
    (FieldType(Tp.BIT, flen=9), st.integers(0, 511)),
    (FieldType(Tp.DURATION, decimal=0), st.sampled_from(["-838:59:59", "00:00:01"])),
    (FieldType(Tp.JSON), st.sampled_from(["{}", "[1, 2]"])),
]
options = st.builds(
    TypeOptions,
    invalid_text=st.sampled_from(["error", "replace", "binary"]),
    tinyint1=st.sampled_from(["tinyint", "boolean"]),
    bigint_unsigned=st.sampled_from(["decimal", "bigint"]),
    zero_dates=st.sampled_from(["null", "error", "string"]),
)


def keyed(kinds: list[FieldType], key: str) -> Table:
    """A table whose first column is its integer key, its clustered text, or nothing of that."""
    first = {
        "integer": FieldType(Tp.LONGLONG, KEY),
        "common": FieldType(Tp.VARCHAR, KEY, 40, charset="utf8mb4", collate="utf8mb4_bin"),
        "hidden": FieldType(Tp.LONGLONG),
    }[key]
    columns = tuple(
        Column(number, f"c{number}", number - 1, kind, origin_default=None)
        for number, kind in enumerate([first, *kinds], 1)
    )
    primary = Index(1, "PRIMARY", (IndexColumn("c1", 0),), is_unique=True, is_primary=True)
    return Table(
        7,
        "t",
        columns,
        indexes=(primary,) if key == "common" else (),
        pk_is_handle=key == "integer",
        is_common_handle=key == "common",
    )


def decoder_of(table: Table) -> RowDecoder:
    return RowDecoder(TableAt("d", table, 1, None, {}, may_lack_columns=True))


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except CorruptRow:
        return "corrupt"


Read = Callable[[list[Counter[str]]], list[pa.Array]]


def told(read: Read, columns: list[ArrowColumn]) -> object:
    def both() -> object:
        losses = [Counter[str]() for _ in columns]
        arrays = read(losses)
        assert [each.type for each in arrays] == [each.type for each in columns]
        for each in arrays:
            each.validate(full=True)
        return [each.to_pylist() for each in arrays], [+each for each in losses]

    return outcome(both)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, list[bytes]]:
    kinds = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=6))
    key = draw(st.sampled_from(["integer", "common", "hidden"]))
    table = keyed([kind for kind, _ in kinds], key)
    rows = []
    for number in range(draw(st.integers(1, 6))):
        row: dict[int, Value] = {1: b"k%d" % number if key == "common" else number}
        for column_id, (_, values) in enumerate(kinds, 2):
            row[column_id] = draw(st.none() | values)
        rows.append(encode_insert(table, row, handle=number))
    if draw(st.integers(0, 4)) == 0:
        damaged = bytearray(draw(st.sampled_from(rows)))
        damaged[draw(st.integers(0, len(damaged) - 1))] = draw(st.integers(0, 255))
        rows.append(bytes(damaged))
    return table, rows


@settings(max_examples=50, deadline=None)
@given(tables(), options)
def test_columns_hold_what_rows_hold_one_by_one(
    made: tuple[Table, list[bytes]], types: TypeOptions
) -> None:
    check(*made, types)


def test_a_row_that_ends_behind_its_handle_is_corrupt_either_way() -> None:
    table = keyed([FieldType(Tp.VARCHAR, flen=80, charset="utf8mb4")], "common")
    whole = encode_insert(table, {1: b"k0", 2: None}, handle=None)
    cut = bytes([whole[0], 2 * (len(whole) - 2)]) + whole[2:]  # its handle goes to the end
    assert check(table, [whole, cut], TypeOptions()) == "corrupt"


def check(table: Table, rows: list[bytes], types: TypeOptions) -> object:
    """The columns, or that a row is corrupt."""
    columns = [arrow_column(each, types) for each in table.columns]
    plan = TablePlan("d", table, handle_of(table), table.columns, (), ())
    decoder = decoder_of(table)
    many = RowArrays(plan, columns, lambda _: decoder)
    versions = np.ones(len(rows), np.int64)

    def one_by_one(losses: list[Counter[str]]) -> list[pa.Array]:
        decoded = [decoder.insert(row) for row in rows]
        return [
            each.build([row[each.column.id] for row in decoded], lost)
            for each, lost in zip(columns, losses, strict=True)
        ]

    def together(losses: list[Counter[str]]) -> list[pa.Array]:
        # behind another one, as a slice of a batch is
        array = pa.array([b"before", *rows], pa.binary()).slice(1)
        return many.arrays(array, versions, losses)

    found = told(together, columns)
    assert found == told(one_by_one, columns)
    return found


def test_rows_of_several_versions_lack_what_each_means() -> None:
    table = keyed([FieldType(Tp.LONG), FieldType(Tp.VARCHAR, flen=9, charset="utf8mb4")], "integer")
    columns = [arrow_column(each, TypeOptions()) for each in table.columns]
    plan = TablePlan("d", table, handle_of(table), table.columns, (), ())
    whole = encode_insert(table, {1: 5, 2: 6, 3: b"x"}, handle=5)
    cut = encode_insert(keyed([], "integer"), {1: 7}, handle=7)

    def decoder(version: int) -> RowDecoder:
        key, number, text = table.columns
        then = replace(number, origin_default=version)
        return decoder_of(replace(table, columns=(key, then, text)))

    many = RowArrays(plan, columns, decoder)
    rows = pa.array([cut, whole, cut, cut], pa.binary())
    arrays = many.arrays(rows, np.array([1, 1, 2, 1], np.int64), [Counter() for _ in columns])
    assert [each.to_pylist() for each in arrays] == [
        [7, 5, 7, 7],
        [1, 6, 2, 1],
        [None, "x", None, None],
    ]
