"""The walk along a layout gives the bytes of the generic way, or leaves the row to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.messages.pb_rows import ChangeEncoder, row_events
from binlogd.drainer.messages.pb_write import TableEncoder, dml_binlog
from binlogd.errors import CorruptRow
from binlogd.tidb.encode import encode_delete, encode_insert, encode_update
from binlogd.tidb.kinds import UnexpectedLayout
from binlogd.tidb.model import (
    FLAG_NOT_NULL,
    Column,
    FieldType,
    SchemaState,
    Table,
    TableAt,
    Tp,
)
from binlogd.tidb.row import RowDecoder
from binlogd.tso import Tso
from tests.support.pb_reader import PbTransaction, decode
from tests.support.row_strategies import Mutilation, Sample, mutilations, samples

Encode = Callable[[bytes], bytes]


def ways(at: TableAt) -> list[tuple[Encode, Encode]]:
    """Per kind of row: by the walk, and the long way."""
    decoder, encoder = RowDecoder(at), TableEncoder(at.database, at.info)
    quick = row_events(at)
    assert quick is not None
    return [
        (quick.insert, lambda row: encoder.insert(decoder.insert(row))),
        (quick.update, lambda row: encoder.update(*decoder.update(row))),
        (quick.delete, lambda row: encoder.delete(decoder.delete(row))),
    ]


def rows_of(sample: Sample, data: st.DataObject) -> list[bytes]:
    table = sample.table
    handle = None if table.pk_is_handle or table.is_common_handle else 5
    old, new = data.draw(sample.rows()), data.draw(sample.rows())
    return [
        encode_insert(table, new, handle=handle),
        encode_update(table, old, new, handle=handle),
        encode_delete(table, old, handle=handle),
    ]


def meaning(event: bytes) -> PbTransaction:
    return decode(dml_binlog(Tso(1), [event]))


@given(samples(), st.data())
def test_rows_as_tidb_writes_them_give_the_same_bytes(sample: Sample, data: st.DataObject) -> None:
    for (quick, slow), row in zip(ways(sample.at()), rows_of(sample, data), strict=True):
        assert quick(row) == slow(row)


@given(samples(), st.data(), mutilations())
def test_a_damaged_row_means_the_same_or_is_left_to_the_long_way(
    sample: Sample, data: st.DataObject, damage: Mutilation
) -> None:
    for (quick, slow), row in zip(ways(sample.at()), rows_of(sample, data), strict=True):
        damaged = damage(row)
        try:
            event = quick(damaged)
        except (UnexpectedLayout, CorruptRow, IndexError):
            continue
        # a varint may be longer than it needs to be, and is passed on as it is
        assert str(meaning(event)) == str(meaning(slow(damaged)))


def column(number: int, tp: int, flag: int = 0) -> Column:
    return Column(number, f"c{number}", number - 1, FieldType(tp, flag))


NARROW = Table(1, "t", (column(1, Tp.LONG), column(2, Tp.LONG, FLAG_NOT_NULL)))


def at(table: Table, **facts: object) -> TableAt:
    plain = TableAt("d", table, 2, None, {}, may_lack_columns=False)
    return replace(plain, **facts)  # type: ignore[arg-type]  # a few fields by name


def test_a_row_without_columns_is_read() -> None:
    table = Table(1, "t", (column(1, Tp.LONG),))
    quick, slow = ways(at(table))[0]
    row = encode_insert(table, {1: None}, handle=9)
    assert row.endswith(b"\0")
    assert quick(row) == slow(row)


def test_a_row_that_ends_behind_its_handle_is_left_to_the_long_way() -> None:
    quick, _ = ways(at(Table(1, "t", (column(1, Tp.LONG),))))[0]
    with pytest.raises(UnexpectedLayout):
        quick(b"\x08\x12")


def test_a_missing_column_goes_the_long_way() -> None:
    row = encode_insert(Table(1, "t", NARROW.columns[:1]), {1: 4}, handle=9)
    encoder = ChangeEncoder(at(NARROW))
    event = encoder.insert(row)
    (found,) = meaning(event).events
    assert [each.value for each in found.columns.values()] == [4, 0]


def test_a_table_in_the_middle_of_a_schema_change_goes_the_long_way() -> None:
    coming = replace(NARROW.columns[1], state=SchemaState.WRITE_ONLY)
    assert row_events(at(Table(1, "t", (NARROW.columns[0], coming)))) is None
    assert row_events(at(NARROW, aliases={7: 2})) is None


def test_a_table_of_many_columns_is_walked() -> None:
    table = Table(1, "t", tuple(column(number, Tp.BLOB) for number in range(1, 1018)))
    values = {number: b"x" * (number % 300) for number in range(1, 1018)}
    for (quick, slow), row in zip(
        ways(at(table)),
        [
            encode_insert(table, values, handle=1),
            encode_update(table, values, values, handle=1),
            encode_delete(table, values, handle=1),
        ],
        strict=True,
    ):
        assert quick(row) == slow(row)
