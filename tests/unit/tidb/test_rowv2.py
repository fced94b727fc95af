"""Rows in the storage format, should one ever appear in a binlog."""

from __future__ import annotations

from dataclasses import replace
from struct import pack

import pytest

from binlogd.errors import CorruptRow
from binlogd.tidb.kinds import FLAG_UNSIGNED, Tp
from binlogd.tidb.model import Column, FieldType, Table, TableAt
from binlogd.tidb.row import RowDecoder

COLUMNS = (
    Column(1, "a", 0, FieldType(Tp.LONGLONG)),
    Column(2, "b", 1, FieldType(Tp.LONGLONG, FLAG_UNSIGNED)),
    Column(3, "c", 2, FieldType(Tp.VARCHAR, charset="utf8mb4")),
)
TABLE = Table(id=1, name="t", columns=COLUMNS)


def decoder(table: Table = TABLE) -> RowDecoder:
    return RowDecoder(TableAt("test", table, 1, None, {}, may_lack_columns=False))


def small(values: dict[int, bytes], nulls: tuple[int, ...] = (), flags: int = 0) -> bytes:
    ends = [sum(len(each) for each in list(values.values())[: n + 1]) for n in range(len(values))]
    head = pack("<BBHH", 0x80, flags, len(values), len(nulls)) + bytes([*values, *nulls])
    return head + pack(f"<{len(ends)}H", *ends) + b"".join(values.values())


def test_both_halves_of_an_update_may_have_the_storage_format() -> None:
    old, new = small({1: b"\xff", 2: b"\xff"}, (3,)), small({1: b"\x01", 3: b"xy"}, (2,))
    assert decoder().update(old + new) == (
        {1: -1, 2: 255, 3: None},
        {1: 1, 2: None, 3: b"xy"},
    )


def test_an_inserted_row_has_its_handle_in_front() -> None:
    assert decoder().insert(b"\x08\x02" + small({1: b"\x07"}, (2, 3))) == {1: 7, 2: None, 3: None}


@pytest.mark.parametrize(("header", "size"), [(0x01, 5), (0x09, 9)])
def test_a_checksum_is_stepped_over(header: int, size: int) -> None:
    row = small({1: b"\x07"}, (2, 3), flags=2) + bytes((header, *range(1, size)))
    assert decoder().delete(row) == {1: 7, 2: None, 3: None}
    with pytest.raises(CorruptRow, match="checksum"):
        decoder().delete(row[:-1])


def test_large_rows_have_wide_ids_and_offsets() -> None:
    table = replace(TABLE, columns=(replace(COLUMNS[0], id=300), replace(COLUMNS[2], id=70_000)))
    text = b"x" * 70_000
    head = pack("<BBHH", 0x80, 1, 2, 0) + pack("<4I", 300, 70_000, 2, 2 + len(text))
    assert decoder(table).delete(head + b"\xe8\x03" + text) == {300: 1000, 70_000: text}


@pytest.mark.parametrize(
    "row",
    [
        b"\x80",
        small({1: b"\x07"})[:-1],
        small({1: b"\x07\x07\x07"}),
        pack("<BBHH", 0x80, 0, 2, 0) + b"\x01\x02" + pack("<2H", 2, 1) + b"\x01\x02",
        pack("<BBHH", 0x80, 0, 60_000, 0),
    ],
)
def test_a_row_that_is_cut_or_contradicts_itself_is_corrupt(row: bytes) -> None:
    with pytest.raises(CorruptRow):
        decoder().delete(row)
