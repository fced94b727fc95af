"""What to do about a prewrite whose outcome is missing, once somebody knows its fate.

Never a guess: whoever does not know says Pending, and the prewrite waits (tidb-binlog issue 1024
was a transaction declared rolled back while its lock was still alive).

Source: tidb-binlog pump/storage/storage.go, resolve.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from binlogd.ports import Committed, Pending, RolledBack, TxnStatus
from binlogd.tso import Tso
from binlogd.wire.binlogs import commit_binlog, rollback_binlog


class Write(msgspec.Struct, frozen=True):
    """Write this binlog through the front door: there is no second road into a shard."""

    payload: bytes


class AskAgain(msgspec.Struct, frozen=True):
    """Nobody can tell yet, for this reason."""

    reason: str


class Settle(msgspec.Struct, frozen=True):
    """It is rolled back, as its Rollback in the log says: nothing is left to write."""


Verdict = Write | Settle | AskAgain


def decide(start_ts: Tso, status: TxnStatus, *, has_rollback: bool = False) -> Verdict:
    """The verdict on the prewrite of `start_ts`; `has_rollback`: the log has a Rollback of it,
    which is no proof (the original believes it, and loses what was committed after all)."""
    match status:
        case Committed(commit_ts=commit_ts):
            if commit_ts <= start_ts:
                return AskAgain(f"commit_ts {commit_ts} is not above start_ts {start_ts}")
            return Write(commit_binlog(start_ts, commit_ts))
        case RolledBack():
            return Settle() if has_rollback else Write(rollback_binlog(start_ts))
        case Pending(is_traceless=True) if has_rollback:
            return Settle()  # a commit needs the lock of before, and the writer sends none any more
        case Pending(reason=reason):
            return AskAgain(reason)
        case _:
            assert_never(status)
