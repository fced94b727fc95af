"""What TiKV's records of a key say of a transaction whose primary key it is.

Invariant. Committed and rolled back are read from a record that TiKV keeps, or that it has just
made for good. Absence is no record: the transaction may not have arrived yet, or garbage collection
may have taken its record.

| TiKV has | then |
|---|---|
| a write of the transaction | committed, at its commit_ts |
| its rollback, alone or in the write of another at the same timestamp | rolled back |
| its lock | let TiKV decide, by a clock that is GRACE_S slow: it ends one whose time is over |
| nothing, and it is young | wait, unless its writer has sent a Rollback (`pump/verdict.py`) |
| nothing, it is old, and that was so GRACE_S ago | let TiKV decide, if no commit can be collected |

Of a lock, the records have the transaction and no more: neither how long it lives nor whether an
async commit holds it. CheckTxnStatus knows both, and does what follows from it in one step.

Why TiKV is asked by a slow clock: a transaction of a few keys has a lock of three seconds that
nobody prolongs, and while TiKV or PD hesitates for that long its TiDB still commits it. Whoever
reads the key has a reason to end it at once; here nobody waits for anything but the watermark.

Source: tidb-binlog pump/storage/storage.go, resolve; TiKV src/storage/types.rs, into_proto, and
src/storage/txn/actions/check_txn_status.rs; client-go txnkv/transaction/2pc.go, txnLockTTL.
"""

from __future__ import annotations

from dataclasses import dataclass

from binlogd.ports import Committed, Pending, RolledBack, TxnStatus
from binlogd.tso import Tso, physical_ms, plus_ms
from binlogd.upstream.mvcc import KeyHistory, Version, status_of
from binlogd.wire.generated.kvrpcpb import Action, CheckTxnStatusResponse, MvccInfo, MvccWrite

YOUNG_S = 600.0
"""TiDB gives up a transaction after ten minutes; nobody is asked to roll back a younger one."""
DECIDED = (Action.NoAction, Action.TTLExpireRollback, Action.LockNotExistRollback)
"""What CheckTxnStatus does to a transaction whose fate it then says, if it leaves no lock."""
GRACE_S = 10.0
"""A lock whose time is over is left to its writer for so long; so is a prewrite that is not there
yet, of a statement that ran for more than ten minutes: its binlog may be faster."""


@dataclass(frozen=True, slots=True)
class LetTikvDecide:
    """Ask CheckTxnStatus. `makes_rollback`: what is absent is rolled back for good by asking."""

    makes_rollback: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """No record and no lock, and it is old: whether its record can be gone must be known first."""


def from_records(start_ts: Tso, info: MvccInfo, now: Tso) -> TxnStatus | LetTikvDecide | Absent:
    """What the records say; `now` is a timestamp that was taken before they were read."""
    recorded = status_of(start_ts, KeyHistory([_version(each) for each in info.writes]))
    if not isinstance(recorded, Pending):
        return recorded
    if info.lock is not None and info.lock.start_ts == start_ts:
        return LetTikvDecide(makes_rollback=False)
    age_s = (physical_ms(now) - physical_ms(start_ts)) / 1000
    if age_s > YOUNG_S:
        return Absent()
    return Pending(
        f"TiKV knows nothing of transaction start_ts {start_ts}, which is {age_s:.1f} s old;"
        f" it is decided at {YOUNG_S:g} s",
        is_traceless=True,
    )


def absent_too_shortly(start_ts: Tso, for_s: float) -> Pending | None:
    """Why it is too early to ask for a rollback; None: it is not."""
    if for_s >= GRACE_S:
        return None
    return Pending(
        f"TiKV knows nothing of transaction start_ts {start_ts}; its prewrite may be on its way: it"
        f" is decided when that is so for {GRACE_S:g} s",
        is_traceless=True,
    )


def from_absence(
    start_ts: Tso, gc_safe_point: Tso, *, gives_up_abandoned: bool
) -> TxnStatus | LetTikvDecide:
    """What is to be made of no record. `gc_safe_point` was read after that was seen: while it is
    not above start_ts, no record of a commit (which lies above) can have been collected."""
    if gc_safe_point <= start_ts:
        return LetTikvDecide(makes_rollback=True)
    if gives_up_abandoned:
        return RolledBack()
    return Pending(
        f"TiKV has no record of transaction start_ts {start_ts}, and garbage collection has passed"
        f" it (safe point {gc_safe_point}), so a commit may have been there; to give it up, set"
        ' upstream.abandoned-prewrite = "rollback"',
        is_traceless=True,
    )


def slow_clock(now: Tso) -> Tso:
    """The time that TiKV is told when it is to decide."""
    return plus_ms(now, -int(GRACE_S * 1000))


def from_check(start_ts: Tso, answer: CheckTxnStatusResponse) -> TxnStatus:
    """What TiKV has decided; a rollback of it is for good."""
    if answer.error is not None:
        if answer.error.txn_not_found is not None:
            return Pending(f"the lock of transaction start_ts {start_ts} went meanwhile")
        return Pending(f"TiKV does not tell of transaction start_ts {start_ts}: {answer.error}")
    if answer.commit_version:
        return Committed(Tso(answer.commit_version))
    if answer.lock_ttl:
        return Pending(_of_lock(start_ts, answer))
    if answer.action in DECIDED:
        return RolledBack()
    return Pending(f"TiKV has not decided on transaction start_ts {start_ts} yet")


def _version(write: MvccWrite) -> Version:
    return Version(
        write.type, Tso(write.start_ts), Tso(write.commit_ts), write.has_overlapped_rollback
    )


def _of_lock(start_ts: Tso, answer: CheckTxnStatusResponse) -> str:
    if answer.lock_info is not None and answer.lock_info.use_async_commit:
        return (
            f"transaction start_ts {start_ts} is locked by an async commit, which a TiDB with"
            " binlog does not do; whoever reads its keys through a TiDB ends it"
        )
    return (
        f"transaction start_ts {start_ts} runs: its lock lives for {answer.lock_ttl} ms after it"
        f" began, and {GRACE_S:g} s more are given"
    )
