"""What a Pump takes is read again, after a restart, as what it was taken for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import BinlogdError, FromTheFuture, MalformedBinlog
from binlogd.log.pointer import FIRST
from binlogd.pump.admission import Admission
from binlogd.pump.log.kind import entry_of
from binlogd.pump.state import NodeState
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, fake, prewrite_binlog, rollback_binlog
from binlogd.wire.fields import uvarint

ADMISSION = Admission(
    state=NodeState.ONLINE, free_bytes=2, free_bytes_min=1, record_bytes_max=1 << 20
)
TIMESTAMPS = st.sampled_from([0, 1, 2, 5, (1 << 62) - 1, (1 << 63) - 1, -1]) | st.integers(
    -(1 << 63), (1 << 63) - 1
)


@given(st.integers(0, 5), TIMESTAMPS, TIMESTAMPS)
def test_a_binlog_keeps_its_kind(tp: int, start_ts: int, commit_ts: int) -> None:
    payload = b"".join(
        (b"\x08", uvarint(tp), b"\x10", uvarint(start_ts), b"\x18", uvarint(commit_ts))
    )
    try:
        item = ADMISSION.item(payload)
    except BinlogdError:
        return
    if item is not None:
        found = entry_of(*FIRST, item.payload, lambda _: Path("a segment"))
        assert (found.tp, found.start_ts, found.commit_ts) == (
            item.tp,
            item.start_ts,
            item.commit_ts,
        )
        assert (found.fid, found.offset, found.length) == (*FIRST, len(item.payload))


@given(st.integers(1, 2), st.integers(1 << 62, (1 << 63) - 1))
def test_a_timestamp_at_the_end_of_time_is_refused(tp: int, ts: int) -> None:
    payload = b"".join((b"\x08", uvarint(tp), b"\x10", uvarint(ts), b"\x18", uvarint(ts + 1)))
    with pytest.raises(MalformedBinlog, match=r"timestamp|cannot have"):
        ADMISSION.item(payload)


def test_a_timestamp_far_above_all_clocks_is_refused_and_one_below_is_taken() -> None:
    admission = Admission(
        state=NodeState.ONLINE, free_bytes=2, free_bytes_min=1, record_bytes_max=1 << 20
    )
    admission.horizon = compose(1_700_000_600_000)
    far, near = compose(1_700_000_600_000), compose(1_700_000_599_999)
    payloads = [
        prewrite_binlog(near, prewrite_key=b"k"),
        commit_binlog(Tso(near - 1), near),
        prewrite_binlog(far, prewrite_key=b"k"),
        commit_binlog(near, far),
        rollback_binlog(far),
        fake(far),
    ]
    outcomes = admission.admit(payloads).outcomes
    assert outcomes[:2] == [None, None]
    assert all(isinstance(each, FromTheFuture) for each in outcomes[2:])
    assert "pump.timestamp-ahead-max" in str(outcomes[2])
    assert admission.from_the_future == 4


_ADMISSIONS = [
    ADMISSION,
    Admission(state=NodeState.PAUSED, free_bytes=2, free_bytes_min=1, record_bytes_max=60),
    Admission(state=NodeState.ONLINE, free_bytes=1, free_bytes_min=1, record_bytes_max=60),
]
_PAYLOADS = st.one_of(
    st.builds(
        lambda tp, start, commit, tail: b"".join(
            (b"\x08", uvarint(tp), b"\x10", uvarint(start), b"\x18", uvarint(commit), tail)
        ),
        st.integers(0, 4),
        TIMESTAMPS,
        TIMESTAMPS,
        st.sampled_from(
            [
                *(b"", b"\x38\x00\x40\x00", b"\x2a\x01x\x38\x00\x40\x00", b"\x38\x05\x40\x02"),
                *(tag + uvarint((1 << 64) - 1) + b"\x38\x00\x40\x00" for tag in (b"\x22", b"\x32")),
            ]
        ),
    ),
    st.binary(max_size=12),
)


@given(st.lists(_PAYLOADS, max_size=6), st.sampled_from(_ADMISSIONS))
def test_a_batch_is_taken_as_each_of_its_binlogs_would_be(
    payloads: list[bytes], admission: Admission
) -> None:
    admitted = admission.admit(payloads)
    taken = dict(zip(admitted.positions, admitted.items, strict=True))
    for position, payload in enumerate(payloads):
        try:
            item, refusal = admission.item(payload), None
        except BinlogdError as error:
            item, refusal = None, str(error)
        assert taken.get(position) == item
        assert (str(admitted.outcomes[position]) if refusal else None) == refusal
        assert (admitted.outcomes[position] is None) == (refusal is None)
    assert admitted.refused == sum(each is not None for each in admitted.outcomes)
