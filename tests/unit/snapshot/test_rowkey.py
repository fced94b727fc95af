"""Keys from raw rows: the same row has the same key, however a binlog tells about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import CorruptRow
from binlogd.snapshot.log.rowkey import (
    Handle,
    HandleKind,
    PrimaryKey,
    columns_of,
    deleted,
    inserted,
    primary_key,
    updated,
)
from binlogd.tidb.datum import as_signed
from binlogd.tidb.kinds import FLAG_NOT_NULL, FLAG_PRIMARY_KEY, FLAG_UNSIGNED, Tp
from binlogd.tidb.layout import ROWID
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt
from binlogd.tidb.row import RowDecoder, Value, encode_delete, encode_insert, encode_update

KEY_FLAGS = FLAG_PRIMARY_KEY | FLAG_NOT_NULL


def column(id_: int, tp: int, flag: int = 0, flen: int = 40, decimal: int = 0) -> Column:
    kind = FieldType(tp, flag, flen, decimal, "utf8mb4", "utf8mb4_general_ci")
    return Column(id_, f"c{id_}", id_ - 1, kind)


BY_INTEGER = Table(
    1,
    "t",
    (column(1, Tp.VARCHAR), column(2, Tp.LONGLONG, KEY_FLAGS | FLAG_UNSIGNED)),
    pk_is_handle=True,
)
BY_COLUMNS = Table(
    2,
    "t",
    (
        column(1, Tp.VARCHAR, KEY_FLAGS),
        column(2, Tp.NEW_DECIMAL, KEY_FLAGS, 12, 3),
        column(3, Tp.LONG),
    ),
    indexes=(Index(1, "PRIMARY", (IndexColumn("c2", 1), IndexColumn("c1", 0)), 5, True, True),),
    is_common_handle=True,
)
BY_NOTHING = Table(3, "t", (column(1, Tp.VARCHAR), column(2, Tp.LONG)))

INTEGER = Handle(HandleKind.INTEGER, (2,))
COLUMNS = Handle(HandleKind.COMMON, (2, 1))
HIDDEN = Handle(HandleKind.HIDDEN, (ROWID,))

texts = st.text(max_size=12).map(str.encode)
numbers = st.integers(0, 999_999_999_999).map(lambda n: f"{n // 1000}.{n % 1000:03d}")
ints = st.none() | st.integers(-(2**31), 2**31 - 1)
uint64s = st.integers(0, 2**64 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)


def decoder(table: Table) -> RowDecoder:
    return RowDecoder(TableAt("d", table, 1, None, {}, may_lack_columns=False))


def check(
    table: Table,
    handle: Handle,
    old: dict[int, Value],
    new: dict[int, Value],
    rows: tuple[int | None, int | None],
) -> None:
    """The three kinds of rows agree about keys, and what stays decodes to the new values."""
    old_row, new_row = rows
    put = inserted(handle, encode_insert(table, old, handle=old_row))
    assert put.key == deleted(handle, encode_delete(table, old, handle=old_row))
    gone, after = updated(handle, encode_update(table, old, new, handle=old_row))
    same = inserted(handle, encode_insert(table, new, handle=new_row))
    assert after.key == same.key
    assert (gone or after.key) == put.key
    assert decoder(table).insert(after.row) == new
    assert columns_of(handle, after.row) >= {each.id for each in table.columns}


@given(uint64s, texts, texts)
def test_an_integer_key(key: int, before: bytes, after: bytes) -> None:
    handle = as_signed(key)
    check(BY_INTEGER, INTEGER, {1: before, 2: key}, {1: after, 2: key}, (handle, handle))


@given(texts, texts, numbers, numbers, ints)
def test_a_key_of_columns_ends_where_only_case_changes(
    a: bytes, b: bytes, x: str, y: str, rest: int | None
) -> None:
    check(BY_COLUMNS, COLUMNS, {1: a, 2: x, 3: rest}, {1: b, 2: y, 3: rest}, (None, None))
    gone, put = updated(
        COLUMNS,
        encode_update(BY_COLUMNS, {1: b"A", 2: x, 3: 1}, {1: b"a", 2: x, 3: 1}, handle=None),
    )
    assert gone is not None
    assert gone != put.key


@given(int64s, texts, ints)
def test_a_hidden_row_id(rowid: int, text: bytes, number: int | None) -> None:
    check(BY_NOTHING, HIDDEN, {1: text, 2: 1}, {1: b"x", 2: number}, (rowid, rowid))


def test_an_update_without_its_key_column_is_corrupt() -> None:
    row = encode_update(BY_NOTHING, {1: b"a", 2: 1}, {1: b"b", 2: 1}, handle=7)
    with pytest.raises(CorruptRow, match="without column 99 of its key"):
        updated(Handle(HandleKind.INTEGER, (99,)), row)


@given(st.integers(1, 30))
def test_a_cut_row_is_corrupt_or_another_row(size: int) -> None:
    whole = encode_update(BY_NOTHING, {1: b"abc", 2: 100}, {1: b"def", 2: 200}, handle=7)
    if size < len(whole):
        with pytest.raises(CorruptRow):
            updated(HIDDEN, whole[:size])


BESIDE = replace(BY_COLUMNS, is_common_handle=False)


@given(old=st.tuples(texts, numbers), new=st.tuples(texts, numbers), rest=ints, handle=int64s)
def test_a_primary_key_beside_a_hidden_handle_is_the_same_in_every_kind_of_row(
    old: tuple[bytes, str], new: tuple[bytes, str], rest: int | None, handle: int
) -> None:
    key = primary_key(BESIDE, ["1.500", b"x"])
    before, after = ({1: each[0], 2: each[1], 3: rest} for each in (old, new))
    gone, put = key.updated(encode_update(BESIDE, before, after, handle=handle))
    assert gone == key.inserted(encode_insert(BESIDE, before, handle=handle + 1))
    assert gone == key.deleted(encode_delete(BESIDE, before, handle=handle))
    assert put == key.inserted(encode_insert(BESIDE, after, handle=handle))
    assert (gone == put) is (old[0] == new[0] and float(old[1]) == float(new[1]))


def test_a_row_from_before_a_column_of_the_key_has_the_default_in_it() -> None:
    key = primary_key(BESIDE, ["1.5", b"x"])
    younger = encode_insert(BESIDE, {1: b"a", 2: "1.500", 3: 7}, handle=1)
    older = encode_insert(replace(BESIDE, columns=BESIDE.columns[::2]), {1: b"a", 3: 7}, handle=1)
    assert key.inserted(older) == key.inserted(younger)
    assert isinstance(key, PrimaryKey)
