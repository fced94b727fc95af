"""The messages of the batched write, against generated ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import MalformedBinlog
from binlogd.wire import batch as wire
from binlogd.wire.generated import binlogd as pb

_numbers = st.integers(0, (1 << 64) - 1)


@given(_numbers, _numbers, st.lists(st.binary(max_size=300), max_size=9))
def test_a_batch_is_what_protobuf_writes(number: int, cluster: int, payloads: list[bytes]) -> None:
    theirs = bytes(pb.WriteBatch(number, cluster, payloads))
    ours = wire.Batch(number, cluster, payloads)
    assert wire.encode_batch(ours) == theirs
    assert wire.decode_batch(theirs) == ours


@given(
    _numbers,
    st.lists(
        st.builds(wire.Refusal, st.integers(0, 1 << 31), st.integers(0, 16), st.text(max_size=200)),
        max_size=5,
    ),
)
def test_an_answer_is_what_protobuf_writes(number: int, refusals: list[wire.Refusal]) -> None:
    theirs = bytes(
        pb.WriteBatchAnswer(number, [pb.Refusal(r.position, r.status, r.message) for r in refusals])
    )
    ours = wire.BatchAnswer(number, refusals)
    assert wire.encode_answer(ours) == theirs
    assert wire.decode_answer(theirs) == ours


def test_fields_that_are_not_known_are_passed_over() -> None:
    message = b"\x08\x05" + b"\x2a\x02xx" + b"\x9a\x00\x01p" + b"\x1a\x01q"
    assert wire.decode_batch(message) == wire.Batch(5, 0, [b"p", b"q"])


@pytest.mark.parametrize("damage", [b"\x1a", b"\x1a\x05ab", b"\x08", b"\x0a\x01x", b"\x07"])
def test_what_is_no_batch_is_malformed(damage: bytes) -> None:
    with pytest.raises(MalformedBinlog):
        wire.decode_batch(damage)


def test_a_batch_of_more_binlogs_than_are_allowed_is_no_batch() -> None:
    """A gigabyte of empty ones would take dozens of gigabytes as objects."""
    allowed = wire.Batch(1, 2, [b""] * wire.BINLOGS_MAX)
    assert wire.decode_batch(wire.encode_batch(allowed)) == allowed
    with pytest.raises(MalformedBinlog, match="at most 65536 binlogs"):
        wire.decode_batch(wire.encode_batch(allowed) + b"\x1a\x00")
