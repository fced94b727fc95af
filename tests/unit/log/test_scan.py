"""A damaged length is told from an append that was cut short, whatever frames the records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlogd.drainer.files import log
from binlogd.log import record, scan
from binlogd.log.drive import Reading, of_bytes
from binlogd.log.scan import Ending, Framing, judge
from binlogd.tso import Tso

FRAMINGS = {"segment": (record.FRAMING, record.encode), "file": (log.FRAMING, log.encode_record)}
PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4)


def ending(framing: Framing, content: bytes, at: int) -> Ending:
    return Reading(judge(framing, at=at, size=len(content)), of_bytes(content)).ended().ending


@pytest.mark.parametrize("name", FRAMINGS)
@pytest.mark.parametrize("chunk", [7, scan.CHUNK_BYTES])
@settings(max_examples=25)
@given(payloads=PAYLOADS, position=st.integers(0, 7), bit=st.integers(0, 7), which=st.integers(0))
def test_a_flipped_bit_of_a_length_is_never_torn(
    name: str, chunk: int, payloads: list[bytes], position: int, bit: int, which: int
) -> None:
    framing, encode = FRAMINGS[name]
    records = [encode(each) for each in payloads]
    at = sum(map(len, records[: which % len(records)]))
    damaged = bytearray(b"".join(records))
    damaged[at + 4 + position] ^= 1 << bit
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scan, "CHUNK_BYTES", chunk)
        assert ending(framing, bytes(damaged), at) is Ending.DAMAGED


@pytest.mark.parametrize("name", FRAMINGS)
@settings(max_examples=25)
@given(payloads=PAYLOADS, cut=st.integers(1))
def test_a_prefix_of_an_append_is_torn_and_all_of_it_whole(
    name: str, payloads: list[bytes], cut: int
) -> None:
    framing, encode = FRAMINGS[name]
    records = [encode(each) for each in payloads]
    content, at = b"".join(records), sum(map(len, records[:-1]))
    assert ending(framing, content, at) is Ending.WHOLE
    assert ending(framing, content[: -1 - cut % (len(records[-1]) - 1)], at) is Ending.TORN


def test_a_footer_proves_that_nothing_was_torn() -> None:
    content = record.encode(b"payload")[:-2] + record.footer(Tso(7))
    assert ending(record.FRAMING, content, 0) is Ending.DAMAGED
