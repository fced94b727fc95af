"""A value log's records and footers, against the Go Pump's bytes and against damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.log import record
from binlogd.tso import Tso

_PREWRITE = bytes.fromhex("08001001180038004000")
_VECTORS = {
    "prewrite of start_ts 1": ("e8563a820a000000000000006c166ade", _PREWRITE.hex()),
    "commit 1, 2": ("e8563a820a000000000000007c1f765a", "08011001180238004000"),
    "fake": (
        "e8563a821a00000000000000277b31e2",
        "080210b78bd08c91f6e3dc0518b78bd08c91f6e3dc0538004000",
    ),
}


@pytest.mark.parametrize(("header", "payload"), _VECTORS.values(), ids=_VECTORS)
def test_a_record_has_the_go_pumps_bytes(header: str, payload: str) -> None:
    assert record.encode(bytes.fromhex(payload)).hex() == header + payload


@pytest.mark.parametrize(
    ("max_ts", "footer"),
    [(2, "020000000000000022b93a12"), (412518831548007863, "b7059411b18fb90522b93a12")],
)
def test_a_footer_has_the_go_pumps_bytes(max_ts: int, footer: str) -> None:
    assert record.footer(Tso(max_ts)).hex() == footer
    assert record.footer_ts(bytes.fromhex(footer)) == max_ts


def test_other_bytes_are_no_footer() -> None:
    assert record.footer_ts(b"") is None
    assert record.footer_ts(record.footer(Tso(2))[:-1]) is None
    assert record.footer_ts(bytes(12)) is None


@given(st.lists(st.binary(max_size=50)))
def test_what_is_encoded_is_split_again(payloads: list[bytes]) -> None:
    stretch = b"".join(map(record.encode, payloads))
    found = record.FRAMING.split(stretch)
    assert [payload for _, payload in found.records] == payloads
    assert (found.consumed, found.needs, found.fault) == (len(stretch), 0, None)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4), st.data())
def test_a_cut_record_says_how_many_bytes_it_takes(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole = [record.encode(payload) for payload in payloads]
    cut = data.draw(st.integers(1, len(whole[-1]) - 1))
    before = b"".join(whole[:-1])
    found = record.FRAMING.split(before + whole[-1][:cut])
    assert len(found.records) == len(payloads) - 1
    assert found.consumed == len(before)
    assert found.fault is None
    assert found.needs == (record.HEADER_BYTES if cut < record.HEADER_BYTES else len(whole[-1]))


@given(st.binary(min_size=1, max_size=40), st.data())
def test_no_flipped_bit_goes_unseen(payload: bytes, data: st.DataObject) -> None:
    stretch = bytearray(record.encode(payload))
    bit = data.draw(st.integers(0, len(stretch) * 8 - 1))
    stretch[bit // 8] ^= 1 << bit % 8
    found = record.FRAMING.split(bytes(stretch))
    assert not found.records
    assert found.fault is not None or found.needs > len(stretch)


def test_a_length_above_the_limit_is_not_believed() -> None:
    monster = struct.pack("<IQI", record.RECORD_MAGIC, 1 << 60, 0)
    assert "above the record limit" in str(record.FRAMING.split(monster).fault)


def test_a_record_of_known_length_is_checked() -> None:
    encoded = record.encode(b"payload")
    assert record.decode(encoded, length=7) == b"payload"
    assert "the index 6" in str(record.decode(encoded, length=6))
    assert "wrong magic" in str(record.decode(b"x" + encoded[1:], length=7))
    assert "checksum mismatch" in str(record.decode(encoded[:-1] + b"x", length=7))
    assert "the file ends" in str(record.decode(encoded[:-1], length=7))


@given(st.lists(st.binary(max_size=40)), st.integers(0, 5), st.integers(0, 200))
def test_records_stand_together_up_to_what_is_too_large(
    payloads: list[bytes], begin: int, bytes_max: int
) -> None:
    records, end = record.together(payloads, begin, bytes_max=bytes_max, each_max=30)
    assert records == b"".join(map(record.encode, payloads[begin:end]))
    assert len(records) <= bytes_max
    assert all(len(each) <= 30 for each in payloads[begin:end])
    if begin < len(payloads) and end < len(payloads):
        size = len(payloads[end])
        assert size > 30 or len(records) + record.HEADER_BYTES + size > bytes_max
    else:
        assert end == max(begin, len(payloads))
