"""What TiKV's records say of a transaction, and when they say nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.ports import Committed, Pending, RolledBack
from binlogd.tso import Tso, compose, plus_ms
from binlogd.upstream.tikv.fate import (
    GRACE_S,
    Absent,
    LetTikvDecide,
    absent_too_shortly,
    from_absence,
    from_check,
    from_records,
    slow_clock,
)
from binlogd.wire.generated.kvrpcpb import (
    Action,
    CheckTxnStatusResponse,
    LockInfo,
    MvccInfo,
    MvccLock,
    MvccWrite,
    Op,
    TxnNotFound,
)
from binlogd.wire.generated.kvrpcpb import (
    KeyError as TxnError,
)

START = compose(1_795_235_844_000)
COMMIT = plus_ms(START, 40)
SOON = plus_ms(START, 2000)
YOUNG = plus_ms(START, 600_000)
OLD = plus_ms(START, 600_001)


def write(op: int, start_ts: int = START, commit_ts: int = COMMIT, **rest: bool) -> MvccWrite:
    return MvccWrite(type=Op(op), start_ts=start_ts, commit_ts=commit_ts, **rest)  # type: ignore[arg-type] # flags by name


OTHERS = [write(Op.Put, START + 7, COMMIT + 9), write(Op.Rollback, START - 5, START - 5)]


@pytest.mark.parametrize("op", [Op.Put, Op.Del, Op.Lock, Op.Insert])
def test_a_write_of_the_transaction_is_its_commit(op: int) -> None:
    info = MvccInfo(writes=[*OTHERS, write(op)])
    assert from_records(START, info, SOON) == Committed(COMMIT)


def test_its_rollback_is_its_rollback() -> None:
    info = MvccInfo(writes=[*OTHERS, write(Op.Rollback, START, START)])
    assert from_records(START, info, SOON) == RolledBack()


def test_a_rollback_may_stand_in_the_write_of_another() -> None:
    shared = write(Op.Put, START - 9, START, has_overlapped_rollback=True)
    assert from_records(START, MvccInfo(writes=[shared]), SOON) == RolledBack()
    alone = MvccInfo(writes=[write(Op.Put, START - 9, START)])
    assert isinstance(from_records(START, alone, SOON), Pending)


def test_a_commit_counts_more_than_a_rollback_beside_it() -> None:
    shared = write(Op.Put, START - 9, START, has_overlapped_rollback=True)
    info = MvccInfo(writes=[shared, write(Op.Put)])
    assert from_records(START, info, SOON) == Committed(COMMIT)


def test_a_lock_says_nothing_of_its_time_so_that_tikv_decides_by_a_slow_clock() -> None:
    info = MvccInfo(lock=MvccLock(start_ts=START, primary=b"k"), writes=OTHERS)
    for now in (SOON, OLD):
        assert from_records(START, info, now) == LetTikvDecide(makes_rollback=False)
    assert slow_clock(plus_ms(START, 10_000)) == START


def test_the_lock_of_an_async_commit_is_for_others_to_decide_on() -> None:
    lock = LockInfo(lock_ttl=1, use_async_commit=True)
    found = from_check(START, CheckTxnStatusResponse(lock_ttl=1, lock_info=lock))
    assert isinstance(found, Pending)
    assert "async commit" in found.reason


@pytest.mark.parametrize(
    "info", [MvccInfo(), MvccInfo(writes=OTHERS), MvccInfo(lock=MvccLock(start_ts=START + 1))]
)
def test_absence_alone_says_nothing_of_a_young_transaction(info: MvccInfo) -> None:
    young = from_records(START, info, YOUNG)
    assert isinstance(young, Pending)
    assert young.is_traceless
    assert "600.0 s old" in young.reason
    assert isinstance(from_records(START, info, OLD), Absent)


def test_absence_counts_when_it_has_lasted() -> None:
    assert absent_too_shortly(START, GRACE_S) is None
    early = absent_too_shortly(START, GRACE_S - 0.1)
    assert early is not None
    assert early.is_traceless


def test_absence_is_no_proof_where_garbage_collection_has_been() -> None:
    asked = LetTikvDecide(makes_rollback=True)
    assert from_absence(START, START, gives_up_abandoned=False) == asked
    assert from_absence(START, Tso(START - 1), gives_up_abandoned=True) == asked
    kept = from_absence(START, Tso(START + 1), gives_up_abandoned=False)
    assert isinstance(kept, Pending)
    assert kept.is_traceless
    assert 'upstream.abandoned-prewrite = "rollback"' in kept.reason
    assert from_absence(START, Tso(START + 1), gives_up_abandoned=True) == RolledBack()


def test_what_tikv_decides_counts() -> None:
    assert from_check(START, CheckTxnStatusResponse(commit_version=COMMIT)) == Committed(COMMIT)
    for action in (Action.NoAction, Action.TTLExpireRollback, Action.LockNotExistRollback):
        answer = CheckTxnStatusResponse(action=Action(action))
        assert from_check(START, answer) == RolledBack()


@pytest.mark.parametrize(
    "answer",
    [
        CheckTxnStatusResponse(lock_ttl=20_000, lock_info=LockInfo(lock_ttl=20_000)),
        CheckTxnStatusResponse(lock_ttl=1, action=Action(Action.MinCommitTSPushed)),
        CheckTxnStatusResponse(action=Action(Action.TTLExpirePessimisticRollback)),
        CheckTxnStatusResponse(action=Action(Action.LockNotExistDoNothing)),
        CheckTxnStatusResponse(error=TxnError(txn_not_found=TxnNotFound(START, b"k"))),
        CheckTxnStatusResponse(error=TxnError(abort="no")),
    ],
)
def test_what_tikv_has_not_decided_is_asked_again(answer: CheckTxnStatusResponse) -> None:
    assert isinstance(from_check(START, answer), Pending)


@given(
    writes=st.lists(
        st.builds(
            MvccWrite,
            type=st.sampled_from([Op(Op.Put), Op(Op.Rollback), Op(Op.Lock)]),
            start_ts=st.integers(START - 2, START + 2),
            commit_ts=st.integers(START - 2, START + 5),
            has_overlapped_rollback=st.booleans(),
        ),
        max_size=5,
    ),
    age_ms=st.integers(0, 10**6),
)
def test_nobody_is_rolled_back_without_a_record(*, writes: list[MvccWrite], age_ms: int) -> None:
    found = from_records(START, MvccInfo(writes=writes), plus_ms(START, age_ms))
    if isinstance(found, Committed):
        assert any(each.start_ts == START and each.commit_ts == found.commit_ts for each in writes)
    if isinstance(found, RolledBack):
        assert any(
            (each.start_ts == START and each.type == Op.Rollback)
            or (each.commit_ts == START and each.has_overlapped_rollback)
            for each in writes
        )
