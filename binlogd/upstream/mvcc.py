"""What a key's versions say of a transaction: the decision, whoever read them.

Never rolled back from absence alone: the transaction may not have come to TiKV yet, or garbage
collection may have taken its record. A lock means that it is still running: with binlog on there is
neither async commit nor one-phase commit, so that a lock commits nothing by itself.

Source: TiKV's write records, kvproto kvrpcpb.proto (MvccInfo); tidb-binlog pump/storage/storage.go,
resolve; client-go txnkv/txnlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from binlogd.ports import Committed, Pending, RolledBack, TxnStatus
from binlogd.tso import NO_TS, Tso


class WriteKind(IntEnum):
    """`kvrpcpb.Op`, as far as a version has it. Any but ROLLBACK stands for a commit."""

    PUT = 0
    DELETE = 1
    LOCK = 2
    ROLLBACK = 3


class Version(msgspec.Struct, frozen=True):
    """A write record of a key, by the names that TiDB's JSON has. `hides_rollback`: the transaction
    whose start_ts is the commit_ts of this one was rolled back, and this record stands in its
    place."""

    kind: int = msgspec.field(name="type", default=WriteKind.PUT)
    start_ts: Tso = NO_TS
    commit_ts: Tso = NO_TS
    hides_rollback: bool = msgspec.field(name="has_overlapped_rollback", default=False)


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """All that a key has: write records in any order, and the transaction that locks it. For how
    long it does, TiKV does not tell here."""

    versions: Sequence[Version] = ()
    locked_by: Tso | None = None


def status_of(start_ts: Tso, history: KeyHistory) -> TxnStatus:
    """The fate of the transaction of `start_ts`, by the versions of its primary key."""
    for version in history.versions:
        if version.start_ts == start_ts:
            if version.kind == WriteKind.ROLLBACK:
                return RolledBack()
            return Committed(version.commit_ts)
    for version in history.versions:
        if version.commit_ts == start_ts and version.hides_rollback:
            return RolledBack()
    if history.locked_by == start_ts:
        return Pending(
            f"transaction start_ts {start_ts} is still running: its primary key is locked; if its"
            " TiDB is gone, the lock ends with the next read of that row, or with TiDB's garbage"
            " collection"
        )
    return Pending(
        f"TiKV has neither a lock nor a record of transaction start_ts {start_ts}",
        is_traceless=True,
    )
