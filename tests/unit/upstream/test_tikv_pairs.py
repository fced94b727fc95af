"""The answer to a scan is read by slicing as protobuf would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.upstream.tikv.pairs import ScanAnswer
from binlogd.wire.generated import errorpb
from binlogd.wire.generated.kvrpcpb import KeyError as TxnError
from binlogd.wire.generated.kvrpcpb import KvPair, LockInfo, ScanResponse

errors = st.none() | st.builds(
    TxnError, locked=st.builds(LockInfo, lock_version=st.integers(0, 2**64 - 1)), abort=st.text()
)
pairs = st.builds(
    KvPair,
    key=st.binary(max_size=300),
    value=st.binary(max_size=300),
    commit_ts=st.integers(0, 2**64 - 1),
    error=errors,
)
answers = st.builds(
    ScanResponse,
    pairs=st.lists(pairs, max_size=5),
    error=errors,
    region_error=st.none() | st.builds(errorpb.Error, message=st.text()),
)


@given(answer=answers)
def test_it_is_what_protobuf_reads(answer: ScanResponse) -> None:
    found = ScanAnswer().parse(bytes(answer))
    assert found.pairs == [(pair.key, pair.value) for pair in answer.pairs]
    assert found.region_error == answer.region_error
    heard = [each.error for each in answer.pairs if each.error is not None]
    assert (found.error is None) == (answer.error is None and not heard)
    if answer.error is not None:
        assert found.error == answer.error
    elif heard:
        assert found.error == heard[0]


@given(answer=answers, cut=st.integers(1, 20))
def test_what_is_cut_is_no_answer_or_a_shorter_one(answer: ScanResponse, cut: int) -> None:
    whole = bytes(answer)
    try:
        found = ScanAnswer().parse(whole[:-cut])
    except (ValueError, EOFError):
        return
    assert len(found.pairs) <= len(answer.pairs)


def test_what_is_no_protobuf_is_refused() -> None:
    with pytest.raises(ValueError, match="proto"):
        ScanAnswer().parse(b"\x07\x07")
