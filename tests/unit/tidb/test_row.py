"""Which columns a decoded row has, and what they hold when the row does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from binlogd.errors import CorruptRow
from binlogd.tidb.columns import Value
from binlogd.tidb.encode import datum_of, encode_delete, encode_insert, encode_update
from binlogd.tidb.kinds import (
    FLAG_NOT_NULL,
    FLAG_PRIMARY_KEY,
    FLAG_UNSIGNED,
    SchemaState,
    Tp,
)
from binlogd.tidb.model import Column, FieldType, Index, IndexColumn, Table, TableAt
from binlogd.tidb.row import RowDecoder

TEXT = FieldType(Tp.VARCHAR, 0, 20, charset="utf8mb4", collate="utf8mb4_bin")
ID = Column(1, "id", 0, FieldType(Tp.LONG, FLAG_PRIMARY_KEY | FLAG_NOT_NULL))
NAME = Column(2, "name", 1, TEXT)
AGE = Column(3, "age", 2, FieldType(Tp.LONG))


def table(*columns: Column, **rest: object) -> Table:
    placed = tuple(replace(each, offset=place) for place, each in enumerate(columns))
    info = Table(id=7, name="t", columns=placed, pk_is_handle=True)
    return replace(info, **rest)  # type: ignore[arg-type]  # fields of Table, by name


def decoder(
    info: Table,
    *,
    defaults_from: Table | None = None,
    aliases: Mapping[int, int] | None = None,
    may_lack_columns: bool = False,
) -> RowDecoder:
    at = TableAt("test", info, 1, defaults_from, aliases or {}, may_lack_columns)
    return RowDecoder(at)


def test_a_null_that_was_left_out_is_null() -> None:
    info = table(ID, NAME, AGE)
    row = encode_insert(info, {1: 1, 2: None, 3: None}, handle=None)
    assert row == b"\x08\x02\x00"
    assert decoder(info).insert(row) == {1: 1, 2: None, 3: None}


def test_a_column_newer_than_the_row_has_its_origin_default() -> None:
    before, age = table(ID, NAME), replace(AGE, origin_default="18")
    row = encode_insert(before, {1: 1, 2: b"a"}, handle=None)
    assert decoder(table(ID, NAME, age), defaults_from=before).insert(row)[3] == 18


def test_a_column_newer_than_a_deleted_row_has_its_origin_default() -> None:
    before, age = table(ID, NAME), replace(AGE, origin_default="18")
    row = encode_delete(before, {1: 1, 2: b"a"}, handle=None)
    assert decoder(table(ID, NAME, age), defaults_from=before).delete(row)[3] == 18


def test_a_null_left_out_by_an_old_tidb_is_null_though_the_origin_default_is_not() -> None:
    info = table(ID, NAME, replace(AGE, origin_default="5"))
    row = b"\x08\x02\x08\x04\x02\x02a"
    assert decoder(info, defaults_from=info).insert(row)[3] is None
    assert decoder(info).insert(row)[3] == 5


def test_a_not_null_column_that_no_row_can_lack_starts_with_zero() -> None:
    strict = replace(AGE, field_type=FieldType(Tp.LONG, FLAG_NOT_NULL))
    assert decoder(table(ID, strict)).insert(b"\x08\x02\x00") == {1: 1, 3: 0}


def test_an_update_that_lacks_a_column_is_refused() -> None:
    row = encode_update(table(ID, NAME), {1: 1, 2: b"a"}, {1: 1, 2: b"b"}, handle=None)
    with pytest.raises(CorruptRow, match="no value for age"):
        decoder(table(ID, NAME, AGE)).update(row)


def test_an_update_may_lack_a_column_that_is_being_dropped() -> None:
    info = table(ID, NAME, replace(AGE, origin_default="5"))
    row = encode_update(table(ID, NAME), {1: 1, 2: b"a"}, {1: 1, 2: b"b"}, handle=None)
    dropping = decoder(info, defaults_from=info, may_lack_columns=True)
    assert dropping.update(row) == ({1: 1, 2: b"a", 3: 5}, {1: 1, 2: b"b", 3: 5})
    assert dropping.columns_held(row) == {1, 2}


def test_a_deleted_row_lacks_a_column_that_is_being_dropped() -> None:
    info = table(ID, NAME, AGE)
    row = encode_delete(table(ID, NAME), {1: 1, 2: b"a"}, handle=None)
    assert decoder(info, defaults_from=info, may_lack_columns=True).delete(row) == {1: 1, 2: b"a"}


def test_columns_that_the_table_does_not_have_any_more_are_passed_over() -> None:
    row = encode_insert(table(ID, NAME, AGE), {1: 1, 2: b"a", 3: 4}, handle=None)
    assert decoder(table(ID, AGE)).insert(row) == {1: 1, 3: 4}


def test_a_column_with_the_id_of_the_coming_schema_is_found_by_its_alias() -> None:
    coming = replace(AGE, id=9, field_type=FieldType(Tp.LONGLONG, FLAG_UNSIGNED))
    old: dict[int, Value] = {1: 1, 2: b"a", 9: 4}
    new: dict[int, Value] = {1: 1, 2: b"a", 9: 5}
    row = encode_update(table(ID, NAME, coming), old, new, handle=None)
    aliased = decoder(table(ID, NAME, AGE), aliases={9: 3})
    assert aliased.update(row) == ({1: 1, 2: b"a", 3: 4}, {1: 1, 2: b"a", 3: 5})


def test_an_alias_in_front_of_all_other_columns_goes_to_its_own_half() -> None:
    coming = replace(AGE, id=9)
    info = table(coming, ID, NAME, pk_is_handle=False)
    row = encode_update(info, {9: 4, 1: 1, 2: None}, {9: 5, 1: 1, 2: None}, handle=3)
    old, new = decoder(table(AGE, ID, NAME, pk_is_handle=False), aliases={9: 3}).update(row)
    assert (old[3], new[3]) == (4, 5)


def test_a_value_under_an_alias_takes_the_form_of_the_present_type() -> None:
    coming = replace(AGE, id=9, field_type=TEXT)
    row = encode_insert(table(ID, coming), {1: 1, 9: b"42"}, handle=None)
    assert decoder(table(ID, AGE), aliases={9: 3}).insert(row) == {1: 1, 3: 42}


def test_the_present_id_wins_over_the_coming_one() -> None:
    coming = replace(AGE, id=9)
    row = encode_insert(table(ID, AGE, coming), {1: 1, 3: 4, 9: 99}, handle=None)
    assert decoder(table(ID, AGE), aliases={9: 3}).insert(row) == {1: 1, 3: 4}


def test_a_column_that_is_not_public_is_written_but_not_given() -> None:
    arriving = replace(AGE, state=SchemaState.WRITE_ONLY, origin_default="7")
    info = table(ID, NAME, arriving)
    row = encode_insert(info, {1: 1, 2: b"a"}, handle=None)
    assert decoder(table(ID, NAME, AGE)).insert(row)[3] == 7
    assert decoder(info).insert(row) == {1: 1, 2: b"a"}


def test_virtual_columns_are_in_deleted_rows_only() -> None:
    virtual = replace(AGE, generated_expr="`id` + 1")
    stored = Column(4, "twice", 3, FieldType(Tp.LONG), generated_expr="1", generated_stored=True)
    info = table(ID, virtual, stored)
    values: dict[int, Value] = {1: 1, 3: 2, 4: 3}
    kept = {1: 1, 4: 3}
    rows = decoder(info)
    assert rows.insert(encode_insert(info, values, handle=None)) == kept
    assert rows.update(encode_update(info, values, values, handle=None)) == (kept, kept)
    assert rows.delete(encode_delete(info, values, handle=None)) == values


def test_a_prefix_key_is_in_the_row_in_full() -> None:
    primary = Index(1, "PRIMARY", (IndexColumn("name", 0, 2),), is_primary=True)
    info = table(NAME, AGE, pk_is_handle=False, is_common_handle=True, indexes=(primary,))
    row = encode_insert(info, {2: "äöü".encode(), 3: 1}, handle=None)
    assert row.startswith(datum_of(NAME, "äö".encode()))
    assert decoder(info).insert(row) == {2: "äöü".encode(), 3: 1}


def test_a_clustered_table_without_its_index_is_refused() -> None:
    with pytest.raises(CorruptRow, match="no index"):
        decoder(table(NAME, pk_is_handle=False, is_common_handle=True))


def test_an_unsigned_handle_above_the_signed_range_comes_back() -> None:
    kind = FieldType(Tp.LONGLONG, FLAG_UNSIGNED | FLAG_PRIMARY_KEY | FLAG_NOT_NULL)
    info = table(replace(ID, field_type=kind), AGE)
    row = encode_insert(info, {1: (1 << 64) - 2, 3: 1}, handle=None)
    assert row.startswith(b"\x08\x03")
    assert decoder(info).insert(row) == {1: (1 << 64) - 2, 3: 1}


def test_a_hidden_multi_valued_column_holds_json() -> None:
    hidden = Column(
        5, "_V$", 2, FieldType(Tp.LONGLONG, is_array=True), generated_expr="x", hidden=True
    )
    info = table(ID, hidden)
    row = encode_delete(info, {1: 1, 5: "[1, 2]"}, handle=None)
    assert decoder(info).delete(row) == {1: 1, 5: "[1, 2]"}


def test_a_column_id_may_have_any_integer_form() -> None:
    row = b"\x08\x02" + b"\x09\x02" + datum_of(NAME, b"a") + b"\x03" + bytes((0x80,))
    row += bytes(6) + b"\x03" + datum_of(AGE, 4)
    assert decoder(table(ID, NAME, AGE)).insert(row) == {1: 1, 2: b"a", 3: 4}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"", "cut"),
        (b"\x08\x02", "cut"),
        (b"\x08\x02\x08\x04", "cut"),
        (b"\x08\x02\x08\x04\x02\x06a", "a string of 3 bytes"),
        (b"\x08\x02\x08\x04\x05\x80" + bytes(7), "flag 5"),
        (b"\x08\x02\x02\x02a\x00", "stands for a column id"),
        (b"\x08\x02\x08\x04\x02\x00\x08\x04\x02\x00", "a second value"),
        (b"\x08\x02\x00\x00", "a second value"),
        (b"\x63", "unknown flag 99"),
    ],
)
def test_a_row_that_breaks_the_rules_is_corrupt(row: bytes, reason: str) -> None:
    with pytest.raises(CorruptRow, match=reason):
        decoder(table(ID, NAME, AGE)).insert(row)


def test_half_an_update_is_corrupt() -> None:
    row = encode_update(table(ID, NAME), {1: 1, 2: b"a"}, {1: 1, 2: b"b"}, handle=None)
    with pytest.raises(CorruptRow, match="one value only of name"):
        decoder(table(ID, NAME)).update(row[:-5])


def test_three_images_are_corrupt() -> None:
    row = encode_update(table(ID), {1: 1}, {1: 1}, handle=None)
    with pytest.raises(CorruptRow, match="a third value"):
        decoder(table(ID)).update(row + row)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (AGE, b"text"),
        (AGE, 1 << 63),
        (Column(1, "u", 0, FieldType(Tp.LONG, FLAG_UNSIGNED)), -1),
        (NAME, "text"),
        (Column(1, "d", 0, FieldType(Tp.NEW_DECIMAL, 0, 3, 1)), "100.0"),
        (Column(1, "d", 0, FieldType(Tp.DATE)), "2024-13-01"),
        (Column(1, "j", 0, FieldType(Tp.JSON)), "{"),
        (Column(1, "g", 0, FieldType(Tp.GEOMETRY)), b""),
    ],
)
def test_a_value_that_the_column_cannot_hold_is_refused(column: Column, value: Value) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        datum_of(column, value)


def test_rows_of_a_table_without_a_clustered_key_need_a_handle() -> None:
    with pytest.raises(ValueError, match="handle"):
        encode_insert(table(NAME, pk_is_handle=False), {2: b"a"}, handle=None)
