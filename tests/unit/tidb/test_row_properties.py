"""What holds for every table, row and byte string."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import CorruptRow
from binlogd.tidb import datum, decimals, jsonb, times, varint
from binlogd.tidb.columns import converter_of, reader_of
from binlogd.tidb.encode import encode_delete, encode_insert, encode_update
from binlogd.tidb.model import FLAG_NOT_NULL, Table
from binlogd.tidb.row import RowDecoder
from tests.support.row_strategies import Mutilation, Sample, json_texts, mutilations, samples

HANDLE = 77


def handle_of(table: Table) -> int | None:
    return None if table.pk_is_handle or table.is_common_handle else HANDLE


@given(samples(), st.data())
def test_an_inserted_row_comes_back(sample: Sample, data: st.DataObject) -> None:
    values = data.draw(sample.rows())
    row = encode_insert(sample.table, values, handle=handle_of(sample.table))
    assert RowDecoder(sample.at()).insert(row) == values


@given(samples(), st.data())
def test_both_halves_of_an_updated_row_come_back(sample: Sample, data: st.DataObject) -> None:
    old, new = data.draw(sample.rows()), data.draw(sample.rows())
    row = encode_update(sample.table, old, new, handle=handle_of(sample.table))
    decoder = RowDecoder(sample.at())
    assert decoder.update(row) == (old, new)
    assert decoder.columns_held(row) == old.keys()


@given(samples(), st.data())
def test_a_deleted_row_comes_back(sample: Sample, data: st.DataObject) -> None:
    values = data.draw(sample.rows())
    row = encode_delete(sample.table, values, handle=handle_of(sample.table))
    assert RowDecoder(sample.at()).delete(row) == values


@given(samples(), st.data())
def test_a_datum_means_the_same_on_the_long_way(sample: Sample, data: st.DataObject) -> None:
    values = data.draw(sample.rows())
    row = encode_delete(sample.table, values, handle=handle_of(sample.table))
    at = 0
    for column in sample.table.columns:
        at = datum.skip_datum(row, at)
        flag, natural, end = datum.read_datum(row, at)
        assert datum.skip_datum(row, at) == end
        assert reader_of(column)(row, at) == (values[column.id], end)
        if natural is not None:
            assert converter_of(column)(flag, natural) == values[column.id]
        at = end


def decode_all(sample: Sample, row: bytes) -> None:
    """Whatever the bytes are: values for exactly the columns asked for, or CorruptRow."""
    decoder = RowDecoder(sample.at())
    ids = {column.id for column in sample.table.columns}
    with suppress(CorruptRow):
        assert decoder.insert(row).keys() == ids
    with suppress(CorruptRow):
        old, new = decoder.update(row)
        assert old.keys() == new.keys() == ids
    with suppress(CorruptRow):
        assert decoder.delete(row).keys() <= ids


@given(samples(), st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_are_corrupt(sample: Sample, row: bytes) -> None:
    decode_all(sample, row)


@given(samples(), st.data(), mutilations())
def test_a_damaged_row_decodes_or_is_corrupt(
    sample: Sample, data: st.DataObject, damage: Mutilation
) -> None:
    old, new = data.draw(sample.rows()), data.draw(sample.rows())
    handle = handle_of(sample.table)
    decode_all(sample, damage(encode_insert(sample.table, old, handle=handle)))
    decode_all(sample, damage(encode_update(sample.table, old, new, handle=handle)))
    decode_all(sample, damage(encode_delete(sample.table, old, handle=handle)))


@given(samples(), st.data())
def test_a_row_cut_anywhere_never_passes_for_a_whole_update(
    sample: Sample, data: st.DataObject
) -> None:
    old, new = data.draw(sample.rows()), data.draw(sample.rows())
    row = encode_update(sample.table, old, new, handle=HANDLE)
    hidden = b"" if handle_of(sample.table) is None else b"\x08\x01\x08" + varint.varint(HANDLE)
    cut = data.draw(st.integers(0, len(row.removesuffix(hidden)) - 1))
    with pytest.raises(CorruptRow):
        RowDecoder(sample.at()).update(row[:cut])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_datum_or_corrupt(data: bytes) -> None:
    try:
        flag, _, end = datum.read_datum(data, 0)
    except (CorruptRow, IndexError):
        return
    assert flag == data[0]
    assert 0 < end <= len(data)
    assert datum.skip_datum(data, 0) == end


@given(st.binary(max_size=100))
def test_memcomparable_bytes_come_back_and_sort_like_the_bytes(value: bytes) -> None:
    encoded = datum.memcomparable(value)
    assert datum.read_memcomparable(encoded + b"tail", 0) == (value, len(encoded))


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_memcomparable_bytes_keep_the_order(one: bytes, other: bytes) -> None:
    assert (one < other) == (datum.memcomparable(one) < datum.memcomparable(other))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_comparable_floats_come_back(value: float) -> None:
    assert datum.read_float(datum.comparable_float(value), 0) == (value, 8)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_comparable_floats_keep_the_order(one: float, other: float) -> None:
    assert (one < other) == (datum.comparable_float(one) < datum.comparable_float(other))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_come_back(value: int) -> None:
    assert varint.read_varint(varint.varint(value), 0)[0] == value
    assert datum.read_comparable_int(datum.comparable_int(value), 0) == (value, 8)
    assert datum.as_signed(value & varint.UINT64_MASK) == value


@given(json_texts())
def test_json_text_comes_back(text: str) -> None:
    binary = jsonb.json_bytes(text)
    assert jsonb.json_end(binary, 0) == len(binary)
    assert jsonb.json_text(binary) == text


@given(st.binary(min_size=1, max_size=80))
def test_any_bytes_are_json_or_corrupt(binary: bytes) -> None:
    try:
        text = jsonb.json_text(binary)
    except CorruptRow:
        return
    assert len(text) <= 40 + 8 * len(binary)


@given(json_texts(), mutilations())
def test_damaged_json_is_json_or_corrupt(text: str, damage: Mutilation) -> None:
    try:
        jsonb.json_text(damage(jsonb.json_bytes(text)) or b"\x04\x00")
    except CorruptRow:
        return


@given(st.binary(max_size=40))
def test_any_bytes_are_a_decimal_or_corrupt(data: bytes) -> None:
    try:
        text, end = decimals.read_decimal(data, 0)
    except (CorruptRow, IndexError):
        return
    if text.strip("-0.") or data[2] & 0x80:  # a negative zero has bytes of its own
        assert decimals.decimal_bytes(text, data[0], data[1]) == data[:end]


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 6))
def test_any_number_is_a_time_or_corrupt(packed: int, fsp: int) -> None:
    try:
        text = times.datetime_text(packed, fsp)
    except CorruptRow:
        return
    again = times.packed_time(text)
    assert again >> 24 == packed >> 24
    assert 0 <= (packed & 0xFFFFFF) - (again & 0xFFFFFF) < 10 ** (6 - fsp) or fsp == 0


@given(samples())
def test_a_row_without_any_column_has_the_default_of_each(sample: Sample) -> None:
    table = sample.table
    if table.pk_is_handle or table.is_common_handle:
        return
    values = RowDecoder(sample.at()).insert(b"\x08\x02\x00")
    for column in table.columns:
        assert (values[column.id] is None) == (not column.field_type.flag & FLAG_NOT_NULL)
