"""Numbers of variable length mean the same to all that read them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from binlogd.errors import CorruptRow, MalformedBinlog
from binlogd.snapshot.log.datums import padded, uvarints
from binlogd.tidb.datum import Flag, skip_datum
from binlogd.tidb.varint import (
    read_uvarint,
    read_varint,
    skip_varint,
    uvarint,
    varint,
)
from binlogd.wire import fields
from binlogd.wire.stamps import is_timestamp_at

UINT64 = st.integers(0, 127) | st.integers(0, 1 << 21) | st.integers(0, (1 << 64) - 1)


def _many(data: bytes, at: int) -> tuple[int, int]:
    values, ends = uvarints(padded(data), np.array([at]))
    if ends[0] < 0:
        raise CorruptRow("too long")
    return int(values[0]), int(ends[0])


@given(UINT64)
@example(1 << 63)
@example((1 << 13) - 1)
@example(1 << 13)
@example((1 << 62) - 1)
def test_a_number_comes_back_by_every_reader(value: int) -> None:
    data = b"\xff" + uvarint(value) + b"\x80"
    end = len(data) - 1
    for read in (read_uvarint, fields.read_uvarint, _many):
        assert read(data, 1) == (value, end)
    assert skip_varint(data, 1) == end
    assert skip_datum(bytes((Flag.UVARINT,)) + data[1:], 0) == end
    signed = value - (1 << 63)
    assert read_varint(varint(signed), 0)[0] == signed
    assert fields.int64(uvarint(signed)) == signed


@given(UINT64, st.integers(0, 62), st.integers(0, (1 << 62) - 1))
@example((1 << 56) - 1, 0, 1)
@example(1 << 56, 7, 1 << 56)
def test_a_timestamp_is_told_by_its_nine_bytes_and_no_other_number_is(
    ts: int, bit: int, other: int
) -> None:
    data = b"\xff" + uvarint(ts) + bytes(9)
    assert is_timestamp_at(data, 1, ts) == (1 << 56 <= ts < 1 << 62)
    assert not is_timestamp_at(data, 1, ts ^ 1 << bit)
    assert is_timestamp_at(data, 1, other) == (other == ts and other >= 1 << 56)
    padded_zero = b"\x80" * 8 + b"\x00"
    assert not is_timestamp_at(padded_zero, 0, 0)


@given(st.lists(st.integers(0x80, 0xFF), min_size=8, max_size=10), st.integers(0, 0x7F))
def test_what_has_more_than_64_bits_is_no_number_of_a_row(head: list[int], last: int) -> None:
    data = bytes((*head, last))
    readers: list[Callable[[bytes, int], object]] = [read_uvarint, _many, skip_varint]
    found = []
    for read in readers:
        with suppress(CorruptRow):
            found.append(read(data, 0))
    is_number = len(head) < 9 or (len(head) == 9 and last < 2)
    assert len(found) == (len(readers) if is_number else 0)
    with suppress(MalformedBinlog):  # as Go does, protobuf cuts the tenth byte
        assert fields.read_uvarint(data, 0)[1] == len(data)
