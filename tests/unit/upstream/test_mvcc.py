"""What the versions of a key say of a transaction, and how TiDB tells them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import UpstreamUnavailable
from binlogd.ports import Committed, Pending, RolledBack
from binlogd.pump.verdict import AskAgain, Settle, Write, decide
from binlogd.tso import MAX_TS, Tso
from binlogd.upstream.mvcc import KeyHistory, Version, WriteKind, status_of
from binlogd.upstream.tidb.mvcc_answer import key_history

START = Tso(100)
times = st.integers(1, MAX_TS).map(Tso)


def test_a_commit_is_told_by_its_record_whatever_it_did_to_the_key() -> None:
    for kind in (WriteKind.PUT, WriteKind.DELETE, WriteKind.LOCK):
        history = KeyHistory([Version(3, Tso(90), Tso(90)), Version(kind, START, Tso(110))])
        assert status_of(START, history) == Committed(Tso(110))


def test_a_rollback_is_told_by_its_record_also_where_another_commit_hides_it() -> None:
    assert status_of(START, KeyHistory([Version(3, START, START)])) == RolledBack()
    hidden = Version(WriteKind.PUT, Tso(90), START, hides_rollback=True)
    assert status_of(START, KeyHistory([hidden])) == RolledBack()


def test_a_record_of_another_transaction_says_nothing_of_this_one() -> None:
    """Neither its commit at this very timestamp, nor a rollback that it hides at another."""
    beside = Version(WriteKind.PUT, Tso(90), START)
    elsewhere = Version(WriteKind.PUT, Tso(90), Tso(95), hides_rollback=True)
    for other in (beside, elsewhere):
        assert isinstance(status_of(START, KeyHistory([other])), Pending)
        committed = Version(WriteKind.PUT, START, Tso(110))
        assert status_of(START, KeyHistory([other, committed])) == Committed(Tso(110))


def test_a_lock_means_that_it_is_still_running() -> None:
    status = status_of(START, KeyHistory(locked_by=START))
    assert isinstance(status, Pending)
    assert not status.is_traceless
    assert "still running" in status.reason


@given(st.lists(st.tuples(st.sampled_from(WriteKind), times, times)), st.none() | times, times)
def test_nobody_is_rolled_back_because_there_is_nothing(
    writes: list[tuple[WriteKind, Tso, Tso]], lock: Tso | None, start_ts: Tso
) -> None:
    others = [Version(*each) for each in writes if each[1] != start_ts]
    held = lock if lock != start_ts else None
    status = status_of(start_ts, KeyHistory(others, held))
    assert isinstance(status, Pending)
    assert status.is_traceless


def test_who_left_no_trace_is_asked_about_again_unless_the_writer_gave_it_up() -> None:
    nothing = status_of(START, KeyHistory())
    assert isinstance(decide(START, nothing), AskAgain)
    assert decide(START, nothing, has_rollback=True) == Settle()
    running = status_of(START, KeyHistory(locked_by=START))
    assert isinstance(decide(START, running, has_rollback=True), AskAgain)
    done = status_of(START, KeyHistory([Version(0, START, Tso(110))]))
    assert isinstance(decide(START, done, has_rollback=True), Write), "the claim was wrong"


# --- as TiDB writes it -----------------------------------------------------------------------

INFO = {
    "writes": [
        {"start_ts": 100, "commit_ts": 110, "short_value": "CAICAkE="},
        {"type": 3, "start_ts": 90, "commit_ts": 90},
        {"type": 1, "start_ts": 70, "commit_ts": 80, "has_overlapped_rollback": True},
    ],
    "values": [{"start_ts": 100, "value": "gAACAAAAAQMDAAQAYWFhZA=="}],
}
FORMS: dict[str, Any] = {
    "2.1": {"info": INFO},
    "3.0": {"key": "7480", "value": {"info": INFO}},
    "4.0": {"key": "7480", "region_id": 2, "value": {"info": INFO}},
    "list": [{"key": "7480", "region_id": 2, "value": {"info": INFO}}],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_answer_of_every_version_says_the_same(form: str) -> None:
    history = key_history(json.dumps(FORMS[form]).encode())
    assert history.versions == [
        Version(0, Tso(100), Tso(110)),
        Version(3, Tso(90), Tso(90)),
        Version(1, Tso(70), Tso(80), hides_rollback=True),
    ]
    assert history.locked_by is None


def test_a_lock_is_read_and_one_of_nobody_is_none() -> None:
    body = {"value": {"info": {"lock": {"start_ts": 100, "primary": "dA=="}}}}
    assert key_history(json.dumps(body).encode()) == KeyHistory([], START)
    assert key_history(b'{"value": {"info": {"lock": {}}}}').locked_by is None


@pytest.mark.parametrize(
    "body", [b"{}", b'{"value": null}', b'{"value": {}}', b'{"value": {"info": null}}', b"[]"]
)
def test_an_empty_answer_is_a_key_without_versions(body: bytes) -> None:
    assert key_history(body) == KeyHistory([], None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"value": {"region_error": {"message": "epoch not match"}}}', "epoch not match"),
        (b'{"value": {"region_error": {"not_leader": {}}}}', "not_leader"),
        (b'{"value": {"error": "key is locked"}}', "key is locked"),
        (b'{"region_error": {"message": "stale command"}}', "stale command"),
        (b"<html>", "not what TiDB says"),
        (b'{"value": {"info": {"writes": [{"start_ts": -1.5}]}}}', "not what TiDB says"),
    ],
)
def test_what_is_no_answer_is_to_be_asked_for_again(body: bytes, said: str) -> None:
    with pytest.raises(UpstreamUnavailable, match=said):
        key_history(body)


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    with contextlib.suppress(UpstreamUnavailable):
        key_history(body)
