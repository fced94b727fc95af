"""Framing and names of binlog files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.drainer.files.log import (
    FRAMING,
    OVERHEAD_BYTES,
    LogFile,
    encode_record,
    file_name,
    log_files,
    records_in,
)
from binlogd.errors import CorruptRelay


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5))
def test_records_come_back(payloads: list[bytes]) -> None:
    data = b"".join(map(encode_record, payloads))
    assert len(data) == sum(len(payload) + OVERHEAD_BYTES for payload in payloads)
    found = FRAMING.split(data)
    assert [record.payload for record in records_in([found.records])] == payloads
    assert found.consumed == len(data)
    assert [end for _, end, _ in records_in([found.records])][-1:] == [len(data)][: len(payloads)]


def test_a_record_is_the_original_s() -> None:
    assert encode_record(b"abc").hex(" ") == (
        "04 05 1b 1c 03 00 00 00 00 00 00 00 61 62 63 b7 3f 4b 36"
    )


def test_a_record_cut_at_any_byte_is_short() -> None:
    data = encode_record(b"payload")
    for cut in range(1, len(data)):
        found = FRAMING.split(data[:cut])
        assert not found.records
        assert found.fault is None
        assert found.needs > cut


def test_a_flipped_bit_outside_the_length_is_no_short_record() -> None:
    data = encode_record(b"payload")
    for index in [*range(4), *range(12, len(data))]:
        for bit in range(8):
            flipped = bytearray(data)
            flipped[index] ^= 1 << bit
            found = FRAMING.split(bytes(flipped))
            assert not found.records
            assert found.fault is not None


def test_a_name_has_its_number_and_the_time_of_its_making_in_utc() -> None:
    assert file_name(3, 1_700_000_000_999) == "binlog-0000000000000003-20231114221320"


def test_files_are_found_among_strangers_in_order() -> None:
    names = [
        "binlog-0000000000000002-20240101000000-414529105591271429.gz",
        "binlog-0000000000000001-20240101000000",
        "binlog-0000000000000000",
        ".lock",
        "savepoint",
        "binlog-0000000000000003-20240101000000.tmp",
        "binlog-x",
    ]
    assert log_files(names) == [
        LogFile(0, names[2]),
        LogFile(1, names[1]),
        LogFile(2, names[0]),
    ]


@pytest.mark.parametrize("numbers", [(0, 2), (5, 6, 8), (1, 1)])
def test_a_missing_or_doubled_file_is_damage(numbers: tuple[int, ...]) -> None:
    names = [f"binlog-{n:016d}-2024010100000{k}" for k, n in enumerate(numbers)]
    with pytest.raises(CorruptRelay):
        log_files(names)
